import inspect
import json
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from gossamer.node.base.roles import Found, Join, Resume, Role
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.text_table import Look
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.cli import run_command
from gossamer.node.command_table import COMMANDS, GROUPS, app
from gossamer.node.commands.daemon import orders
from gossamer.node.commands.model import export_model
from gossamer.node.commands.views import status_line
from gossamer.node.commands.views.status_view import status_lines
from gossamer.node.network.identity import Identity
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry import logs
from gossamer.node.telemetry.status import (
    CapacityStatus,
    DataStatus,
    LastRound,
    OuterStep,
    PauseStatus,
    PeerStatus,
    Status,
    WorkStatus,
)
from gossamer.trainer.ipc.measures import StepTimes

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
ADDRESS = f"/ip4/192.0.2.7/tcp/4610/p2p/{PEER}"
RUN_ID = "ab" * 32
STATUS = Status(
    peer_id=PEER,
    run_id=RUN_ID,
    run_name="kitchen",
    version="0.1.0",
    addresses=(ADDRESS,),
    phase="training",
    round=12,
    final_round=90,
    inner_step=3,
    inner_steps=20,
    loss=2.5,
    bits_per_byte=0.9,
    heldout_bits_per_byte=1.1,
    tokens_per_second=1000.0,
    mfu=0.385,
    step_times=StepTimes(forward=1.0, backward=2.0, optimizer=0.5, data=0.25, handover=0.25),
    work=WorkStatus(trained=9000, committed_on_time=7000, committed_late=800, lost=200,
                    carried=1000),
    data=DataStatus(epoch=1, tokens_consumed=250, num_tokens=1000, shards_consumed=3,
                    num_shards=16, expected_tokens=4000),
    capacity=CapacityStatus(
        device="Fast GPU",
        device_kind="cuda",
        device_memory_bytes=24_000_000_000,
        host_memory_bytes=64_000_000_000,
        cores=8,
    ),
    peers=(PeerStatus(peer_id="other-peer", phase="averaging", round=12, tokens_per_second=1234.5,
                      device="[red]GPU\x1b[2J", connected=True),),
    last_round=LastRound(round=12, members=("a", "b"), contributors=("a",), duration_seconds=1.5,
                         bytes_sent=1500, bytes_received=0, outcome="committed"),
    outer_step=OuterStep(learning_rate=1.0, momentum=0.456),
)  # fmt: skip


WITHOUT_STATE = (
    *("init", "plan", "presets", "demo", "watch"),
    *("service uninstall", "service status", "service logs"),
)
ALL_COMMANDS = [
    *((name, line) for name, _, line in COMMANDS),
    *((f"{group} {name}", line) for group, _, commands in GROUPS for name, _, line in commands),
]


class FakeDaemon(ModuleType):
    """Stands where `gossamer.node.app.daemon` is imported from, and notes what it should run."""

    def __init__(self) -> None:
        super().__init__("gossamer.node.app.daemon")
        self.ran: list[tuple[Settings, Role]] = []

    def run(self, settings: Settings, role: Role, state_dir: StateDir) -> int:
        assert state_dir.is_in_use()
        self.ran.append((settings, role))
        return 0


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    fake = FakeDaemon()
    monkeypatch.setitem(sys.modules, "gossamer.node.app.daemon", fake)
    # Logging is the process's: the tests keep theirs.
    monkeypatch.setattr(logs, "configure_logs", lambda *_arguments: None)
    return fake


def errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_start_founds_a_run(daemon: FakeDaemon, tmp_path: Path) -> None:
    manifest, text = tmp_path / "run.toml", tmp_path / "text"
    manifest.touch()
    text.touch()
    state = str(tmp_path / "state")
    arguments = ["start", "--state-dir", state, "--manifest", str(manifest)]
    arguments += ["--corpus", str(text), str(tmp_path), "--listen", "/ip4/127.0.0.1/tcp/0"]
    arguments += ["--listen", "/ip6/::1/tcp/0", "--api", "127.0.0.1:0", "--device", "cpu"]
    arguments += ["--threads", "1", "--cache-bytes", "1GiB", "--log-format", "json"]
    assert run_command(arguments) == 0
    ((settings, role),) = daemon.ran
    assert role == Found(manifest_file=manifest, corpus=(text, tmp_path))
    assert settings == Settings(
        state_dir=Path(state),
        listen=("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"),
        api="127.0.0.1:0",
        device="cpu",
        threads=1,
        cache_bytes=2**30,
        log_format="json",
    )


def test_start_expands_patterns_that_no_shell_expanded(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (second, first, tmp_path / "c.txt"):
        path.touch()
    state = ["--state-dir", str(tmp_path / "state")]
    assert run_command(["start", "--corpus", str(tmp_path / "*.jsonl"), *state]) == 0
    assert daemon.ran[0][1] == Found(corpus=(first, second))
    assert run_command(["start", "--corpus", str(tmp_path / "x*"), *state]) != 0
    assert any("x*: no such file or directory" in line for line in errors(capsys))


def test_start_leaves_out_what_is_bad_if_asked_for(daemon: FakeDaemon, tmp_path: Path) -> None:
    assert run_command(["start", "--skip-bad", "--state-dir", str(tmp_path)]) == 0
    assert daemon.ran[0][1] == Found(skip_bad=True)


def test_start_takes_an_optimizer_beside_a_preset_and_not_beside_a_manifest(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    muon = ["--optimizer", "muon", "--state-dir", str(tmp_path / "state")]
    assert run_command(["start", *muon]) == 0
    assert daemon.ran[0][1] == Found(optimizer="muon")
    (tmp_path / "run.toml").touch()
    assert run_command(["start", "--manifest", str(tmp_path / "run.toml"), *muon]) != 0
    assert any("--manifest and --optimizer" in line for line in errors(capsys))


def test_start_takes_held_out_text_only_where_peers_have_their_own(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest may say that they have: it is read later."""
    text, manifest = tmp_path / "text", tmp_path / "run.toml"
    text.touch()
    manifest.touch()
    given = ["start", "--heldout", str(text), "--state-dir", str(tmp_path / "state")]
    assert run_command(given) == 2
    (line,) = errors(capsys)
    assert "--heldout" in line
    assert "--data own" in line
    assert not daemon.ran
    for more in (["--data", "own"], ["--manifest", str(manifest)]):
        assert run_command([*given, *more]) == 0
    assert [role.heldout for _, role in daemon.ran if isinstance(role, Found)] == [(text,)] * 2


def test_start_goes_on_where_a_run_is(daemon: FakeDaemon, tmp_path: Path) -> None:
    StateDir(tmp_path).manifest_path.write_bytes(b"a run")
    assert run_command(["start", "--state-dir", str(tmp_path)]) == 0
    assert daemon.ran[0][1] == Resume()


@pytest.mark.parametrize("own", [False, True])
def test_start_names_what_is_read_only_when_a_run_is_founded(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """A node that trains on its own text reads that at every start."""
    monkeypatch.setattr("gossamer.node.commands.daemon.start.trains_on_own_text", lambda _: own)
    StateDir(tmp_path).manifest_path.write_bytes(b"a run")
    given = ["--init-from", str(tmp_path), "--corpus", str(tmp_path), "--skip-bad"]
    given += ["--start-after", "all"]
    with capture_logs() as lines:
        assert run_command(["start", *given, "--state-dir", str(tmp_path)]) == 0
    of_text = {"--corpus", "--skip-bad"}
    (line,) = lines
    assert set(line["fields"]["options"]) == {"--init-from", "--start-after"} | (
        set() if own else of_text
    )
    assert "only the founding of a run reads" in line["event"]
    taken = Resume(corpus=(tmp_path,), skip_bad=True) if own else Resume()
    assert daemon.ran[0][1] == taken


def test_join(daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ["--state-dir", str(tmp_path)]
    assert run_command(["join", f"{ADDRESS}#{RUN_ID}", *state]) == 0
    assert run_command(["join", ADDRESS, *state]) == 0
    monkeypatch.setenv("GOSSAMER_BOOTSTRAP", ADDRESS)
    assert run_command(["join", *state]) == 0
    assert [role for _, role in daemon.ran] == [
        Join(addresses=(ADDRESS,), run_id=RUN_ID),
        Join(addresses=(ADDRESS,)),
        Join(addresses=(ADDRESS,)),
    ]


def test_join_goes_on_where_the_same_run_is_and_refuses_another(
    daemon: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    StateDir(tmp_path).manifest_path.write_bytes(b"a run")
    monkeypatch.setattr(StateDir, "run_id", lambda _self: bytes.fromhex(RUN_ID))
    state = ["--state-dir", str(tmp_path)]
    assert run_command(["join", f"{ADDRESS}#{RUN_ID}", *state]) == 0
    assert daemon.ran[0][1] == Resume(addresses=(ADDRESS,))
    assert run_command(["join", f"{ADDRESS}#{'cd' * 32}", *state]) == 2
    assert len(daemon.ran) == 1
    (line,) = errors(capsys)
    assert "holds run ababababab..., not cdcdcdcdcd..." in line


@pytest.mark.parametrize(
    ("arguments", "status", "reasons"),
    [
        (["strat"], 2, ["strat", "--help"]),
        (["start", "--bogus"], 2, ["--bogus", "--help"]),
        (["start", "--threads", "many"], 2, ["many", "--help"]),
        (["join"], 2, ["needs the address of a peer"]),
        (["join", "somewhere"], 2, ["'somewhere' is not a peer's address"]),
        (["join", ADDRESS[:-1]], 2, ["is not a peer id"]),
        (["start", "--manifest", "/none.toml"], 2, ["/none.toml: no such file or directory"]),
        (["start", "--corpus", ""], 2, ["--corpus is given without a file or folder"]),
        (["start", "--corpus"], 2, ["--corpus is given without a file or folder"]),
        (["start", "--corpus", "/none", "/nil"], 2, ["/none: no such", "/nil: no such"]),
        (["start", "--device", "gpu", "--listen", "x"], 2, ["--listen: 'x'", "--device: 'gpu'"]),
        (["status", "--config", "/none.toml"], 2, ["/none.toml: no such file"]),
        (["status"], 1, ["no node runs on"]),
        (["leave"], 1, ["no node runs on"]),
        (["invite"], 2, ["there is no run in"]),
        (["members"], 2, ["there is no run in"]),
        (["rollback", "3"], 2, ["there is no run in"]),
        (["extend"], 2, ["name the tokens with which the run is to end, or give --cool-down"]),
        (["extend", "1000"], 2, ["there is no run in"]),
        (["init", "/none/run.toml"], 2, ["/none/run.toml"]),
        (["init", "--preset", "gigantic"], 2, ["gigantic"]),
    ],
)
def test_mistakes_get_one_line_each(
    daemon: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    reasons: list[str],
) -> None:
    monkeypatch.setenv("GOSSAMER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GOSSAMER_LAN", "off")
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == status
    lines = errors(capsys)
    assert len(lines) == len(reasons), lines
    for line, reason in zip(lines, reasons, strict=True):
        assert line.startswith("gossamer: ")
        assert reason in line
    assert daemon.ran == []
    assert list(tmp_path.iterdir()) == []


def test_init_writes_a_manifest_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.toml"
    assert run_command(["init", str(path)]) == 0
    assert f"gossamer start --manifest {path}" in capsys.readouterr().out
    written = path.read_text()
    assert "[model]" in written
    assert run_command(["init", str(path)]) == 2
    assert "exists already" in errors(capsys)[0]
    assert run_command(["init", str(tmp_path / ("x" * 300))]) == 2
    assert "name too long" in errors(capsys)[0]
    assert path.read_text() == written


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_init_leaves_nothing_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command has to work when the disk has room again."""
    path = tmp_path / "my.toml"
    really_open = Path.open

    def open_full(self: Path, mode: str = "r", *, encoding: str | None = None) -> IO[str]:
        really_open(self, mode, encoding=encoding).close()
        return open("/dev/full", "w")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_full)
        assert run_command(["init", str(path)]) == 1, "it may succeed later"
    assert "no space left on device" in errors(capsys)[0]
    assert list(tmp_path.iterdir()) == []
    assert run_command(["init", str(path)]) == 0


def test_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(status_line, "fetch_status", lambda _state_dir: STATUS)
    assert run_command(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run_name"] == "kitchen"
    assert run_command(["status"]) == 0
    assert "kitchen" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["start", "join"])
@pytest.mark.parametrize(
    ("place", "extra"), [("tensorboard", "tensorboard"), ("wandb:offline", "wandb")]
)
def test_a_log_whose_package_is_missing_says_what_to_install(
    command: str,
    place: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    link = [f"{ADDRESS}#{RUN_ID}"] if command == "join" else []
    assert run_command([command, *link, "--state-dir", str(tmp_path / "s"), "--log-to", place]) == 2
    assert f"pip install 'gossamer[{extra}]'" in errors(capsys)[0]
    assert not (tmp_path / "s").exists()


def test_wandb_that_would_send_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state-dir", str(tmp_path / "s")]
    assert run_command(["start", *state, "--log-to", "wandb"]) == 2
    assert "--log-to: 'wandb' is not one of tensorboard, wandb:offline" in errors(capsys)[0]


@pytest.mark.parametrize(
    ("text", "start_bytes"), [("1GiB", 2**30), ("300kB", 300_000), ("all", None)]
)
def test_a_run_begins_after_so_much_of_its_corpus(
    text: str, start_bytes: int | None, daemon: FakeDaemon, tmp_path: Path
) -> None:
    command = ["start", "--start-after", text, "--state-dir", str(tmp_path)]
    assert run_command(command) == 0
    assert daemon.ran[0][1] == Found(start_bytes=start_bytes)


@pytest.mark.parametrize("text", ["soon", "1kB"])
def test_a_run_begins_with_no_fewer_bytes_than_can_be_used(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["start", "--start-after", text, "--state-dir", str(tmp_path / "s")]
    assert run_command(command) == 2
    assert "--start-after" in errors(capsys)[0]


def test_the_table_shows_what_peers_say_without_believing_it() -> None:
    text = shown(STATUS)
    assert "step 3 of 20" in text
    assert "9,000 tokens trained: 7,000 on time, 800 late, 1,000 carried, 200 lost" in text
    assert "epoch 2, 25.0% of it: 3 of 16 shards consumed" in text
    assert "consumed; 25% of the corpus is there, and its founder adds the rest" in text
    assert "Fast GPU (cuda, 24.0 GB, 8 cores)" in text
    assert "12 committed: 1 of 2 contributed, 1.5 s, 1.5 kB sent" in text
    assert "momentum 0.46, learning rate 1.00" in text
    assert "12 of 90" in text
    assert "0.9000 training, 1.1000 held-out" in text
    assert "1,000 tokens/s, 38.5% of the card's operations (MFU)" in text
    assert "(MFU) while it trained" in shown(PAUSED)
    assert "while it trained" not in text
    assert "forward 25%, backward 50%, optimiser 12%, data 6%, hand-over 6%" in text
    assert "[red]GPU\\x1b[2J" in text
    assert "1,234" in text
    assert "\x1b" not in text
    assert format_bytes(999) == "999 B"


PAUSED = replace(STATUS, phase="paused", paused_reason="user")


def answers(monkeypatch: pytest.MonkeyPatch, *statuses: Status) -> None:
    """The node that was asked to pause has these statuses, one after the other, a second apart."""
    left = list(statuses)
    now = 0.0

    def sleep(_seconds: float) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(orders, "give_order", lambda _state_dir, _order, *_options: None)
    monkeypatch.setattr(
        orders, "fetch_status", lambda _state_dir: left.pop(0) if len(left) > 1 else left[0]
    )
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)


def test_pause_answers_when_the_device_is_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # `paused (disk)` keeps the trainer: the device is not free.
    on_disk = replace(STATUS, phase="paused", paused_reason="disk")
    answers(monkeypatch, *[STATUS] * 12, on_disk, on_disk, PAUSED)
    assert run_command(["pause"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "device" in first
    assert second == "The device is free after 14 s. Go on with: gossamer resume"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_an_order_that_a_full_disk_does_not_take_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    answers(monkeypatch, PAUSED if command == "pause" else STATUS)
    monkeypatch.setattr(orders, "give_order", lambda *_order: "the disk is full")
    assert run_command([command]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("It holds until this node ends.")
    assert first.endswith(": the disk is full")
    assert "The device is free" in second or second == "The node goes on."


def test_pause_of_a_free_device_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, PAUSED)
    assert run_command(["pause"]) == 0
    assert capsys.readouterr().out == "The device is free. Go on with: gossamer resume\n"


def test_a_pause_that_ends_before_the_device_is_free_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its time, or because somebody else resumes: nobody waits for the device any more."""
    ordered = replace(STATUS, pauses=(PauseStatus(reason="user"),))
    answers(monkeypatch, ordered, ordered, STATUS)
    assert run_command(["pause"]) == 1
    assert "the pause has ended before the device was free" in capsys.readouterr().err


def test_pause_of_a_finished_run_says_that_nothing_is_to_be_paused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, replace(STATUS, phase="finished"))
    assert run_command(["pause"]) == 0
    assert "the run is finished" in capsys.readouterr().out


def test_resume_of_a_finished_run_does_not_say_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, replace(STATUS, phase="finished"))
    assert run_command(["resume"]) == 0
    said = capsys.readouterr().out
    assert said == "The run is finished: the node only serves its model, and trains no more.\n"


def test_pause_for_a_time_says_when_the_node_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = datetime.now(timezone(timedelta(hours=5, minutes=45))) + timedelta(hours=2)
    answers(monkeypatch, replace(PAUSED, resumes_at=later.isoformat(timespec="seconds")))
    given = []
    monkeypatch.setattr(orders, "give_order", lambda *order: given.append(order[1:]))
    assert run_command(["pause", "--for", "2h"]) == 0
    text = f"The device is free. The node goes on at {later:%H:%M}, or with: gossamer resume\n"
    assert capsys.readouterr().out == text
    assert given == [("pause", {"seconds": 7200})]


def test_pause_after_the_round_returns_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, STATUS)
    given = []
    monkeypatch.setattr(orders, "give_order", lambda *order: given.append(order[1:]))
    assert run_command(["pause", "--after-round", "--for", "30min"]) == 0
    assert "when its present round ends" in capsys.readouterr().out
    assert given == [("pause", {"after_round": 1, "seconds": 1800})]
    waiting = PauseStatus(reason="user", after_round=True)
    assert "user, from the end of this round" in shown(replace(STATUS, pauses=(waiting,)))


def paused_until(moment: datetime | None, *more: PauseStatus) -> Status:
    end = None if moment is None else moment.isoformat(timespec="seconds")
    pauses = (PauseStatus(reason="user", resumes_at=end), *more)
    return replace(PAUSED, resumes_at=end, pauses=pauses)


def test_a_pause_in_the_place_of_another_is_told_with_its_own_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(timezone(timedelta(hours=5, minutes=45)))
    after = now + timedelta(hours=5)
    answers(monkeypatch, paused_until(after))
    assert run_command(["pause", "--for", "5h"]) == 0
    text = f"The device is free. The node goes on at {after:%H:%M}, or with: gossamer resume\n"
    assert capsys.readouterr().out == text
    answers(monkeypatch, paused_until(None))
    assert run_command(["pause"]) == 0
    assert capsys.readouterr().out == "The device is free. Go on with: gossamer resume\n"


def test_pause_does_not_promise_what_other_causes_keep_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    game = PauseStatus(reason="process", text="game runs")
    answers(monkeypatch, paused_until(None, game))
    assert run_command(["pause"]) == 0
    out = capsys.readouterr().out
    assert out == "The device is free. The node is paused: user; process (game runs)\n"


def test_pause_after_the_round_of_a_node_that_is_in_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, paused_until(None))
    assert run_command(["pause", "--after-round"]) == 0
    assert capsys.readouterr().out == "The device is free. Go on with: gossamer resume\n"
    answers(monkeypatch, replace(STATUS, phase="finished"))
    assert run_command(["pause", "--after-round"]) == 0
    assert "the run is finished" in capsys.readouterr().out


@pytest.mark.parametrize("duration", ["2", "2 weeks", "0h", "31d", ""])
def test_pause_for_no_time_is_a_mistake(duration: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["pause", "--for", duration]) == 2
    assert errors(capsys)[0].startswith("gossamer: --for: ")


def test_pause_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, STATUS)
    assert run_command(["pause"]) == 1
    assert "its device is not free after 180 s" in errors(capsys)[0]


def shown(status: Status) -> str:
    return "\n".join(status_lines(status, Look()))


def test_status_shows_what_was_taken_back_and_what_a_keeper_wants_to() -> None:
    proposal = "a keeper wants to take back all rounds after 7"
    status = replace(STATUS, rolled_back_to=5, rollback_proposal=proposal)
    text = shown(status)
    assert "by the founder or the keepers: the run went on after round 5" in text
    assert proposal in text
    withdrawn = "this node could not go back to round 7"
    assert withdrawn in shown(replace(STATUS, rollback_withdrawn=withdrawn))


def test_status_shows_no_node_that_was_put_out_as_one_that_is_well() -> None:
    problem = "the members of the run do not take this node for one: it was put out of the run"
    status = replace(STATUS, phase="training", put_out=problem, problem=problem)
    lines = status_lines(status, Look(styles=True))
    assert "training, put out of the run" in lines[0]
    assert "\x1b[1;31m" in lines[0], "bold red, and not the green of a node that trains"
    assert "\x1b[32m" not in lines[0]
    assert problem in lines[1]


def test_status_says_when_the_node_goes_on() -> None:
    later = datetime.now(timezone(timedelta(hours=5, minutes=45))) + timedelta(hours=3)
    schedule = PauseStatus(reason="schedule", resumes_at=later.isoformat(timespec="seconds"))
    status = replace(PAUSED, paused_reason="schedule", resumes_at=schedule.resumes_at,
                     pauses=(schedule,))  # fmt: skip
    # The time is that of the node, which may live in another zone.
    assert f"paused  (schedule, resumes at {later:%H:%M})" in shown(status)
    game = PauseStatus(reason="process", text="game\x1b[2J runs")
    both = shown(
        replace(status, paused_reason="schedule", resumes_at=None, pauses=(schedule, game))
    )
    assert "paused  (schedule)" in both
    assert f"schedule, resumes at {later:%H:%M}; process (game\\x1b[2J runs)" in both


def test_resume_says_what_still_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = PauseStatus(reason="schedule")
    answers(monkeypatch, replace(PAUSED, paused_reason="schedule", pauses=(schedule,)))
    assert run_command(["resume"]) == 0
    out = capsys.readouterr().out
    assert out == "Your pause has ended. The node still does not train: schedule\n"
    answers(monkeypatch, STATUS)
    assert run_command(["resume"]) == 0
    assert capsys.readouterr().out == "The node goes on.\n"


def test_a_mistyped_preset_is_told_before_anything_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "state"
    assert run_command(["start", "--preset", "huge", "--state-dir", str(root)]) == 2
    assert errors(capsys)[0].startswith('gossamer: preset is "huge"; allowed: "tiny"')
    assert not root.exists()


@pytest.mark.parametrize("order", ["pause", "resume", "finish", "leave"])
def test_orders(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(orders, "fetch_status", lambda _state_dir: PAUSED)
    monkeypatch.setattr(
        orders, "give_order", lambda _state_dir, name, *_options: given.append(name)
    )
    assert run_command([order]) == 0
    assert given == [order]


@pytest.mark.parametrize("order", ["finish", "leave"])
def test_a_node_that_leaves_while_its_disk_takes_nothing(
    order: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = ""
    monkeypatch.setattr(orders, "give_order", lambda *_order: problem)
    assert run_command([order]) == 0
    well = capsys.readouterr().out
    assert "lost" not in well
    problem = "the disk is full: 7 bytes did not fit"
    assert run_command([order]) == 0
    out = capsys.readouterr().out
    assert problem in out
    assert "is lost" in out
    assert "its state stays" not in out


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom gossamer.node.cli import run_command\n"
        "status = run_command(['--help'])\n"
        "heavy = {'torch', 'numpy', 'libp2p', 'trio', 'structlog'} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(status)\n"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Takes about 0.25 s; the bound is generous because the machine may be busy.
    assert time.perf_counter() - started < 5
    for name, _, help_line in (*COMMANDS, *((name, "", line) for name, line, _ in GROUPS)):
        assert name in done.stdout
        assert help_line[:40] in done.stdout


@pytest.mark.parametrize(("name", "help_line"), ALL_COMMANDS)
def test_a_commands_own_help_says_the_same_and_shows_every_default(
    name: str, help_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    command = app
    for word in name.split():
        command = command[word]
    function = command.default_command
    assert function is not None
    assert (function.__doc__ or "").startswith(help_line)
    text = inspect.cleandoc(function.__doc__ or "").partition("\n\nParameters\n")[0]
    # The line, and all that follows it; help is Markdown, whose backticks are not shown.
    assert " ".join(text.replace("`", "").split()) in " ".join(shown.split())
    assert help_line in " ".join(shown.split())
    arguments = [one for one in command.assemble_argument_collection() if one.show and one.parse]
    assert any("--state-dir" in one.names for one in arguments) == (name not in WITHOUT_STATE)
    # `gossamer join` needs no address where a run is, and `gossamer limits` no word to show them.
    to_show = [one for one in arguments if one.name not in ("ADDRESSES", "LINKS", "WORDS")]
    assert shown.count("[default:") + shown.count("[required]") == len(to_show), shown


def test_id_is_shown_before_a_node_has_run_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "home" / "state"
    for _ in range(2):
        assert run_command(["id", "--state-dir", str(state)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second == Identity.load_or_create(state / "identity.key").peer_id
    assert state.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in state.iterdir()] == ["identity.key"]


def test_export_does_not_overwrite_unless_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Path] = []

    def write(_settings: Settings, directory: Path, *_: object) -> int:
        written.append(directory)
        return 0

    monkeypatch.setattr(export_model, "export_state", write)
    model, new = tmp_path / "model", tmp_path / "new"
    model.mkdir()
    assert run_command(["export", str(model)]) == 0  # empty
    (model / "config.json").write_text("mine")
    assert run_command(["export", str(model)]) == 2
    (line,) = errors(capsys)
    assert str(model) in line
    assert "--force" in line
    assert run_command(["export", str(model), "--force"]) == 0
    assert run_command(["export", str(new)]) == 0
    assert written == [model, model, new]
    for size in ("some", "1kB"):
        assert run_command(["export", str(tmp_path / "other"), "--max-shard-size", size]) == 2
        assert "--max-shard-size" in errors(capsys)[0]
    assert written == [model, model, new]


def test_presets_are_listed_with_their_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("init", "start", "plan"):
        assert run_command([command, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "tiny (0.5 M parameters)" in shown
        assert "150m (215 M)" in shown
        assert "1.1b (1,100 M)" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gossamer 0.")


@pytest.mark.parametrize("command", ["id", "start", "status", "limits"])
def test_a_state_directory_that_is_a_file_is_named_with_what_to_do(
    command: str, daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run_command([command, "--state-dir", str(file)]) in (1, 2)
    (line,) = errors(capsys)
    assert line.count(str(file)) == 1
    assert "Give --state-dir" in line
    assert not daemon.ran
