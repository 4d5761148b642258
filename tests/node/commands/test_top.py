from pathlib import Path

import msgspec
import pytest

from gossamer.node.app.http.client import ClientError
from gossamer.node.cli import run_command
from gossamer.node.commands.views import top
from gossamer.node.commands.views.top import TYPED_MAX, TypedLine, _owner_line
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import LimitStatus, RuleStatus, Status


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


def test_a_line_is_typed_key_by_key() -> None:
    line = TypedLine()
    assert (line.typed, line.shown) == (None, "")
    line.typed = ""
    assert [line.take(key) for key in "uplaa\x7f\x7foad=10"] == [None] * 13
    assert line.shown.endswith(" upload=10_")
    assert line.take("") is None, "a refresh changes nothing"
    assert line.take("\n") == "upload=10"
    assert line.typed is None
    line.typed = ""
    line.take("x")
    line.take("\x1b")
    assert line.typed is None
    line.typed = ""
    for _ in range(2 * TYPED_MAX):
        line.take("x")
    assert line.take("\r") == "x" * TYPED_MAX


def test_a_typed_line_changes_limits_and_rules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(top, "change_limits", lambda _, wanted: asked.append(wanted))
    said = top._change(StateDir(tmp_path), "upload=10 work_hours='mon-fri 22:00-07:00'")
    assert asked == [{"upload": "10", "work_hours": "mon-fri 22:00-07:00"}]
    assert "from now on" in said
    assert top._change(StateDir(tmp_path), "") == ""
    assert "upload=10" in top._change(StateDir(tmp_path), "upload")
    assert "uplod" in top._change(StateDir(tmp_path), "uplod=1")
    assert "quotation" in top._change(StateDir(tmp_path), "upload='1")
    assert len(asked) == 1


def test_an_order_that_a_full_disk_does_not_take_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(top, "give_order", lambda *_order: "the disk is full")
    monkeypatch.setattr(top, "change_limits", lambda *_change: "the disk is full")
    for said in (
        top._give(StateDir(tmp_path), "p"),
        top._change(StateDir(tmp_path), "upload=10"),
    ):
        assert said.startswith("It holds until this node ends.")
        assert said.endswith(": the disk is full")


def test_what_the_node_refuses_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(_state_dir: StateDir, _wanted: dict[str, str]) -> None:
        raise ClientError("memory: 100 MiB is less than the run needs")

    monkeypatch.setattr(top, "change_limits", refuse)
    assert "less than the run needs" in top._change(StateDir(tmp_path), "memory=100MiB")


def test_it_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["top"]) == 2
    assert "gossamer status" in capsys.readouterr().err
