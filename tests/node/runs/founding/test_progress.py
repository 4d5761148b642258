import json

import pytest
import structlog

from gossamer.node.runs.founding.progress import LINE_SECONDS, ProgressLines, Thinned
from gossamer.node.telemetry.logs import configure_logs


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_at_most_every_ten_seconds_with_rate_and_time_left() -> None:
    clock, lines = FakeClock(), list[str]()
    progress = ProgressLines(lines.append, clock)
    for second in range(100):
        clock.now = 100.0 + second
        progress.show("reading", second * 2_000_000, 3_600_000_000)
    assert LINE_SECONDS == 10
    assert len(lines) == 10
    assert lines[0] == "reading: 3,600.0 MB"
    assert lines[1] == "reading: 0.6% of 3,600.0 MB, 2.0 MB/s, 30 min left"


def test_each_stage_begins_with_a_line_and_has_its_own_rate() -> None:
    clock, lines = FakeClock(), list[str]()
    progress = ProgressLines(lines.append, clock)
    progress.show("reading", 10, 4_000_000)
    clock.now += 9
    progress.show("cutting into tokens", 0, 4_000_000)
    clock.now += 9
    progress.show("cutting into tokens", 3_000_000, 4_000_000)
    clock.now += 1
    progress.show("cutting into tokens", 3_000_000, 4_000_000)
    assert lines == [
        "reading: 4.0 MB",
        "cutting into tokens: 4.0 MB",
        "cutting into tokens: 75.0% of 4.0 MB, 0.3 MB/s, 3 s left",
    ]


def test_nothing_done_and_nothing_to_do_are_no_mistakes() -> None:
    clock, lines = FakeClock(), list[str]()
    progress = ProgressLines(lines.append, clock)
    for total in (0, 10):
        progress.show("reading", 0, total)
        clock.now += LINE_SECONDS
    assert lines == ["reading: 0.0 MB", "reading: 0.0% of 0.0 MB, 0.0 MB/s"]


def test_times_left_are_in_units_that_people_read() -> None:
    clock, lines = FakeClock(), list[str]()
    progress = ProgressLines(lines.append, clock)
    progress.show("reading", 0, 10**11)
    clock.now += 10
    progress.show("reading", 33 * 10**6, 10**11)
    assert lines[-1] == "reading: 0.0% of 100,000.0 MB, 3.3 MB/s, 8.4 h left"


def test_reports_are_passed_on_by_steps_and_by_time() -> None:
    clock = FakeClock()
    thinned = Thinned(clock)
    due = [done for done in range(2_000) if thinned.is_due("reading", done, 2_000)]
    assert due == list(range(0, 2_000, 10))
    # A slow stage is not silent between two of two hundred steps.
    for number in range(5):
        clock.now += 1
        assert thinned.is_due("cutting into tokens", number, 10**9)
        assert not thinned.is_due("cutting into tokens", number, 10**9)


def test_lines_have_the_form_that_was_chosen_after_the_import(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = structlog.get_config()
    try:
        configure_logs("json", "info")
        ProgressLines().show("reading", 0, 10)
    finally:
        structlog.configure(**before)
    assert json.loads(capsys.readouterr().err)["event"] == "reading: 0.0 MB"
