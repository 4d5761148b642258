"""`gossamer generate` on a state directory: its process, its errors, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.runs.results.generating import (
    GenerateError,
    Sampling,
    for_terminal,
    generate_text,
    pieces,
)
from gossamer.node.runs.results.reading import read_state
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.trainer.confinement import landlock
from tests.support.imported_run import found_imported_run


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A state directory with the first state of a run, as its daemon locks it."""
    return found_imported_run(tmp_path_factory.mktemp("run"))


def sampling(**changes: Any) -> Sampling:
    given: dict[str, Any] = {"tokens": 12, "temperature": 0.5, "seed": 3, "device": "cpu"}
    return Sampling(**(given | changes))


def test_it_answers_beside_a_daemon(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for number in (None, 0):
        with StateDir(settings.state_dir).locked():
            assert generate_text(settings, "A text", sampling(), number) == 0
        said = capsys.readouterr()
        assert said.err.startswith("round 0, state ")
        assert said.out.startswith("A text")
        assert len(said.out) > len("A text\n")
        answers.append(said.out)
    assert answers[0] == answers[1]


def test_its_process_is_confined_and_ends_with_its_reader(settings: Settings) -> None:
    try:
        landlock.abi_version()
    except OSError as error:
        pytest.skip(f"{error}")
    for switch, expected in (("on", "NoNewPrivs:\t1"), ("off", "NoNewPrivs:\t0")):
        chosen = msgspec.structs.replace(settings, confine_trainer=switch)
        reading = pieces(chosen, read_state(settings), "A text", sampling(tokens=10_000))
        next(reading)
        # The process of the tests may have other children, such as a browser.
        (child,) = (
            each
            for each in psutil.Process().children()
            if "gossamer.trainer.generation.generate" in each.cmdline()
        )
        assert expected in Path(f"/proc/{child.pid}/status").read_text()
        assert child.nice() >= 10
        reading.close()  # type: ignore[attr-defined]
        assert not child.is_running()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": 0}, "--tokens is 0; allowed: 1 to"),
        ({"temperature": -1.0}, "--temperature is -1"),
        ({"temperature": float("nan")}, "--temperature is nan"),
        ({"seed": -1}, "--seed is -1"),
        ({"seed": 10**26}, "--seed is 1"),
        ({"device": "abacus"}, "--device: 'abacus' is not a device"),
        ({"device": "cpu,cpu"}, "--device: 'cpu,cpu' is not one device"),
    ],
)
def test_what_is_not_allowed_is_told(
    settings: Settings, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as told:
        generate_text(settings, "A text", sampling(**changes))
    assert said in str(told.value)


def test_a_device_that_is_not_here_may_be_here_later(settings: Settings) -> None:
    with pytest.raises(GenerateError, match="device 'cuda:77'"):
        generate_text(settings, "A text", sampling(device="cuda:77"))


def test_a_text_that_is_too_long_is_told(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="give a shorter one"):
        generate_text(settings, "x" * 300_000, sampling())


def test_a_round_that_is_not_there_is_told(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match="no round 7 here: the newest one is 0"):
        generate_text(settings, "A text", sampling(), 7)
    with pytest.raises(StateDirError, match="there is no run"):
        generate_text(Settings(state_dir=tmp_path), "A text", sampling())


def test_a_text_moves_no_cursor() -> None:
    assert for_terminal("a\tb\n\x1b[2J\x9b\u202e\u00fc \U0001f469\u200d\U0001f52c") == (
        "a\tb\n\\x1b[2J\\x9b\\u202e\u00fc \U0001f469\u200d\U0001f52c"
    )
