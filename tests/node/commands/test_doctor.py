import io
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from gossamer.node.base.settings.settings import Settings
from gossamer.node.commands.machine import machine_checks, state_checks, torch_checks
from gossamer.node.commands.machine.doctor import run_doctor
from gossamer.node.commands.machine.reach_check import check_reach_of_idle
from gossamer.node.commands.machine.torch_checks import check_compiler
from gossamer.node.machine.torch_probe import TorchReport
from gossamer.node.storage.owner_orders import write_limits
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.gpus import Gpu
from gossamer.node.telemetry.status import PeerStatus, Status
from gossamer.trainer.ipc.choices import CompileChoice
from gossamer.trainer.ipc.environment import CARD_ORDER
from tests.support.ports import free_ports

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
CPU_ONLY = TorchReport(version="2.9", kind="", names=[], hip="")
CARD = Gpu(index=0, uuid="GPU-a", name="Card", memory_total_bytes=8, memory_used_bytes=1)


@contextmanager
def port_that_says(answer: bytes) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1024):
                    pass

        thread = threading.Thread(target=talk)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("num_free", "soft", "num_cores", "level", "advice"),
    [
        (None, -1, 64, "ok", ""),
        (24, -1, 2, "warn", "A node needs some 68: raise --pids-limit"),
        (68, 4096, 2, "ok", ""),
        (68, 4096, 16, "warn", "TasksMax="),
        (None, 24, 2, "warn", "ulimit -u"),
        (4096, 0, 2, "warn", "ulimit -u"),
    ],
)
def test_a_small_limit_of_processes(
    num_free: int | None, soft: int, num_cores: int, level: str, advice: str
) -> None:
    """The node would run for a while, until it needs one thread more."""
    check = machine_checks.check_processes(num_free, soft, num_cores)
    assert (check.level, check.name) == (level, "processes")
    assert advice in check.advice


def test_a_healthy_machine(tmp_path: Path) -> None:
    settings = Settings(
        state_dir=tmp_path / "new",
        listen=("/ip4/127.0.0.1/tcp/0",),
        api="127.0.0.1:0",
        device="cpu",
        cache_bytes=1,
    )
    text = io.StringIO()
    assert run_doctor(settings, None, Console(file=text, width=200)) == 0
    lines = text.getvalue().splitlines()
    for name in ("python", "torch", "device", "state", "disk", "ports", "clock"):
        assert any(line.startswith("ok") and name in line for line in lines), (name, lines)
    assert not (tmp_path / "new").exists()


def test_a_kept_limit_that_is_no_value_any_more_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "check_torch", lambda _device, **_options: iter(()))
    write_limits(StateDir(tmp_path).limits_path, {"memory": "99999999999GiB"})
    settings = Settings(state_dir=tmp_path, listen=("/ip4/127.0.0.1/tcp/0",), api="127.0.0.1:0")
    text = io.StringIO()
    assert run_doctor(settings, None, Console(file=text, width=300)) == 1
    (line,) = (line for line in text.getvalue().splitlines() if " limits " in line)
    assert "`gossamer limits set memory=default`" in line


def test_one_failure_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "check_torch", lambda _device, **_options: iter(()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(
            state_dir=tmp_path,
            listen=(f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}",),
            api="127.0.0.1:0",
        )
        text = io.StringIO()
        assert run_doctor(settings, None, Console(file=text, width=200)) == 1
    assert "Give --listen another port (0 picks a free one)" in text.getvalue()


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ("raise ImportError('no torch here')", "no torch here"),
        ("import os; os.kill(os.getpid(), 9)", "exit status -9"),
        ("print('strange')", "unexpected answer"),
    ],
)
def test_a_torch_that_does_not_work(probe: str, reason: str) -> None:
    (check,) = torch_checks.check_torch("auto", probe)
    assert check.level == "fail"
    assert reason in check.text
    assert "Install torch" in check.advice


@pytest.mark.parametrize(
    ("device", "torch", "gpus", "level"),
    [
        ("auto", CPU_ONLY, [], "ok"),
        ("auto", CPU_ONLY, [CARD], "warn"),
        ("cpu", CPU_ONLY, [CARD], "ok"),
        ("cuda", CPU_ONLY, [CARD], "fail"),
        ("mps", CPU_ONLY, [], "fail"),
        ("auto", TorchReport("2.9", "cuda", ["Card"], ""), [CARD], "ok"),
        ("cuda:1", TorchReport("2.9", "cuda", ["Card"], ""), [CARD], "fail"),
        ("cuda:0", TorchReport("2.9", "cuda", ["Radeon"], "6.2"), [], "ok"),
        ("mps", TorchReport("2.9", "mps", ["Apple GPU"], ""), [], "ok"),
        ("cuda", TorchReport("2.9", "mps", ["Apple GPU"], ""), [], "fail"),
        ("xpu:0", TorchReport("2.9", "xpu", ["Arc"], ""), [], "ok"),
        ("all", TorchReport("2.9", "cuda", ["Card", "Card"], ""), [CARD], "ok"),
        ("all", TorchReport("2.9", "cuda", ["Card", "Card"], "", connects=False), [CARD], "fail"),
        ("all", TorchReport("2.9", "cuda", ["Card"], "", connects=False), [CARD], "ok"),
        ("all", CPU_ONLY, [], "ok"),
        ("cuda:0,cuda:1", TorchReport("2.9", "cuda", ["Card"], ""), [CARD], "fail"),
        ("cuda:0,cuda:1", TorchReport("2.9", "cuda", ["Card", "Card"], ""), [CARD], "ok"),
        ("cpu,cpu", CPU_ONLY, [], "ok"),
    ],
)
def test_devices(device: str, torch: TorchReport, gpus: list[Gpu], level: str) -> None:
    check = torch_checks.check_device(device, torch, gpus)
    assert check.level == level
    assert bool(check.advice) == (level != "ok")


def test_auto_means_the_card_with_the_most_memory() -> None:
    torch = TorchReport("2.9", "cuda", ["Small", "Large"], "", largest=1)
    assert torch_checks.check_device("auto", torch, [CARD]).text == "Large through CUDA"


def test_torch_is_asked_in_the_environment_of_a_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CARD_ORDER, raising=False)
    probe = f"""
import json, os
names = [os.environ["{CARD_ORDER}"]]
print(json.dumps({{"version": "2.9", "kind": "cuda", "names": names, "hip": ""}}))
"""
    checks = {check.name: check.text for check in torch_checks.check_torch("auto", probe)}
    assert checks["device"] == "PCI_BUS_ID through CUDA"


def test_the_state_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "identity.key").write_bytes(b"")
    (tmp_path / "identity.key").chmod(0o644)
    checks = list(state_checks.check_state_dir(tmp_path, running=False))
    assert [check.level for check in checks] == ["warn", "fail"]
    assert checks[0].advice == f"chmod 700 {tmp_path}"
    assert "chmod 600" in checks[1].advice
    (in_a_file,) = state_checks.check_state_dir(tmp_path / "identity.key", running=False)
    assert in_a_file.level == "fail"


def test_disk(tmp_path: Path) -> None:
    assert (
        machine_checks.check_disk(Settings(state_dir=tmp_path / "a" / "b", cache_bytes=1)).level
        == "ok"
    )
    huge = Settings(state_dir=tmp_path, cache_bytes=2**60)
    assert machine_checks.check_disk(huge).level == "warn"


def test_ports_of_a_running_node_are_its_own(tmp_path: Path) -> None:
    (check,) = machine_checks.check_ports(Settings(state_dir=tmp_path), running=True)
    assert check.level == "ok"


def test_clock() -> None:
    assert machine_checks.check_clock(0.0).level == "warn"
    assert machine_checks.check_clock(1.8e9).level == "ok"
    assert machine_checks.check_clock(1.8e9, 1.8e9 + 60).level == "ok"
    back = machine_checks.check_clock(1.8e9, 1.8e9 + 86_400)
    assert back.level == "warn"
    assert "the state was written on 2027-01-16" in back.text


def test_a_seed_that_answers() -> None:
    with port_that_says(b"\x13/multistream/1.0.0\n") as port:
        assert machine_checks.check_seed(f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}").level == "ok"


def test_a_seed_that_is_something_else() -> None:
    with port_that_says(b"SSH-2.0-x\r\n") as port:
        check = machine_checks.check_seed(f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}")
    assert check.level == "fail"
    assert "does not speak libp2p" in check.text


def test_a_seed_that_is_gone() -> None:
    (port,) = free_ports(1)
    check = machine_checks.check_seed(f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}")
    assert check.level == "fail"
    assert "cannot be reached" in check.text
    assert machine_checks.check_seed("nonsense").level == "fail"


def test_a_seed_that_keeps_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "_SEED_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        check = machine_checks.check_seed(f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}")
    assert check.level == "fail"
    assert "did not answer" in check.text


def test_a_state_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (check,) = state_checks.check_state_dir(tmp_path / "file" / "new", running=False)
    assert check.level == "fail"
    assert "--state-dir" in check.advice


def test_a_user_without_bbr_is_told_how_to_allow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = tmp_path / "allowed"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    allowed.write_text("reno cubic\n")
    check = machine_checks.check_congestion_control(allowed)
    assert check.level == "warn"
    assert "reno cubic bbr" in check.advice
    allowed.write_text("reno cubic bbr\n")
    assert machine_checks.check_congestion_control(allowed).level == "ok"
    assert machine_checks.check_congestion_control(tmp_path / "none").level == "ok"


@pytest.mark.parametrize(
    ("peers", "text", "level"),
    [
        (("direct",), "Reachable at /ip4/5.77.0.1/tcp/4610 (confirmed by 1)", "ok"),
        (("relayed",), "Behind a strict router: 1 through a1b2c3. Turn on UPnP", "warn"),
        ((None,), "No member is connected: this node trains alone. Check the network", "fail"),
    ],
)
def test_the_reach_of_a_running_node(
    peers: tuple[str | None, ...],
    text: str,
    level: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = Status(
        peer_id="me",
        run_id=None,
        version="0",
        phase="training",
        reach_text=text,
        peers=tuple(
            PeerStatus(peer_id=str(n), phase="training", round=1, path=path)
            for n, path in enumerate(peers)
        ),
    )
    monkeypatch.setattr(machine_checks, "fetch_status", lambda _: status)
    check = machine_checks.check_reach(StateDir(tmp_path))
    assert (check.level, check.text) == (level, text.partition(". ")[0])


@pytest.mark.parametrize(
    ("choice", "device_type", "is_checked"),
    [
        ("auto", "cuda", True),
        ("auto", "cpu", False),
        ("auto", "mps", False),
        ("on", "cpu", True),
        ("off", "cuda", False),
    ],
)
def test_the_compilers_tools_are_checked_where_they_are_to_be_used(
    monkeypatch: pytest.MonkeyPatch, choice: CompileChoice, device_type: str, is_checked: bool
) -> None:
    monkeypatch.setenv("PATH", "")
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    check = check_compiler(choice, device_type)
    assert (check is not None) is is_checked
    if check is not None:
        assert check.level == "warn"
        assert "a compiler (" in check.text
        assert "python3-dev" in check.advice


def test_a_machine_with_a_compiler_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Python.h").touch()
    (tmp_path / "my-cc").touch(mode=0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "my-cc")
    check = check_compiler("auto", "cuda")
    assert check is not None
    assert check.level == "ok"


def test_what_is_no_address_is_no_peer_to_ask(tmp_path: Path) -> None:
    """The check `seed` says what is wrong with it."""
    settings = Settings(state_dir=tmp_path / "state")
    for wrong in ("LINK", "192.0.2.7:4610", "/ip4/192.0.2.7/tcp/4610"):
        assert check_reach_of_idle(settings, wrong) is None
