from pathlib import Path

import msgspec
import pytest

from gossamer.node.cli import run_command
from gossamer.node.commands.views import top
from gossamer.node.commands.views.top import _owner_line, curve
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import LimitStatus, RuleStatus, Status


def test_the_curve_ends_with_the_newest_value() -> None:
    assert curve([4.0, 2.0, 1.0, 0.0], 4) == "█▅▃▁"  # 1.75 of 7 rounds to 2, and 3.5 to 4
    assert curve([float(number) for number in range(1000)], 8) == "▂▃▄▄▅▆▇█"
    assert curve([1.0, 1.0]) == "▁▁"


def test_limits_and_schedule_are_a_line() -> None:
    status = Status(peer_id="me", run_id=None, version="0", phase="training")
    assert _owner_line(status) == []
    status = msgspec.structs.replace(
        status,
        limits=(LimitStatus(name="upload", setting="up_limit", unit="Mbit/s", text="10"),),
        schedule=(
            RuleStatus(name="work_hours", text="22:00-07:00"),
            RuleStatus(name="on_battery", text="off"),
        ),
    )
    (line, _) = _owner_line(status)
    assert line.plain == "owner     upload 10, work_hours 22:00-07:00"


def test_keys_are_orders_of_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[tuple[str, dict[str, int]]] = []
    monkeypatch.setattr(top, "give_order", lambda _, order, options: given.append((order, options)))
    for key in "pfhrx?":
        top._give(StateDir(tmp_path), key)
    assert given == [
        ("pause", {}),
        ("pause", {"after_round": 1}),
        ("pause", {"seconds": 3600}),
        ("resume", {}),
        ("finish", {}),
    ]


def test_it_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["top"]) == 2
    assert "gossamer status" in capsys.readouterr().err
