import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gossamer.node.machine import machine_use
from gossamer.node.machine.machine_use import (
    Idle,
    ask,
    is_metered,
    is_on_battery,
    read_idle,
    running_programs,
    sees_programs,
)


def supply(root: Path, name: str, **files: str) -> None:
    (root / name).mkdir(parents=True)
    for file, text in files.items():
        (root / name / file).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("battery", "mains", "on_battery"),
    [
        ("Discharging", "0", True),
        ("Charging", "1", False),
        ("Full", "1", False),
        ("Not charging", "1", False),
        ("Discharging", "1", False),  # a charger that is too weak
        ("Discharging", None, True),
        ("Unknown", None, False),
    ],
)
def test_a_laptop(tmp_path: Path, battery: str, mains: str | None, on_battery: bool) -> None:
    supply(tmp_path, "BAT0", type="Battery", status=battery)
    if mains is not None:
        supply(tmp_path, "AC", type="Mains", online=mains)
    assert is_on_battery("linux", tmp_path) is on_battery


def test_a_laptop_that_is_charged_through_usb(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Full")
    supply(tmp_path, "BAT1", type="Battery", status="Discharging")
    supply(tmp_path, "ucsi-source-psy-1", type="USB", online="1", scope="System")
    assert is_on_battery("linux", tmp_path) is False
    (tmp_path / "ucsi-source-psy-1" / "online").write_text("0\n")
    assert is_on_battery("linux", tmp_path) is True


def test_the_battery_of_a_mouse_is_not_that_of_the_machine(tmp_path: Path) -> None:
    supply(tmp_path, "hidpp_battery_0", type="Battery", status="Discharging", scope="Device")
    assert is_on_battery("linux", tmp_path) is None
    assert is_on_battery("linux", tmp_path / "none") is None


@pytest.mark.parametrize(("plugged", "on_battery"), [(True, False), (False, True), (None, None)])
def test_a_laptop_with_another_system(
    monkeypatch: pytest.MonkeyPatch, plugged: bool | None, on_battery: bool | None
) -> None:
    battery = SimpleNamespace(percent=50, secsleft=9, power_plugged=plugged)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery)
    assert is_on_battery("darwin") is on_battery
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None)
    assert is_on_battery("darwin") is None


@contextmanager
def program(path: Path) -> Iterator[None]:
    """A program under another name, which is not a child of this process."""
    shutil.copy(shutil.which("sleep") or "/bin/sleep", path)
    starter = (
        "import subprocess, sys; null = subprocess.DEVNULL\n"
        "print(subprocess.Popen(sys.argv[1:], stdin=null, stdout=null, stderr=null).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", starter, str(path), "60"], stdout=subprocess.PIPE, check=True
    )
    process = psutil.Process(int(done.stdout))
    try:
        yield
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gossamergame", "gossamergame"),
        ("GossamerGame.exe", "gossamergame"),
        ("gossamergame", "GOSSAMERGAME.EXE"),
        ("gossamer-game-with-a-long-name", "gossamer-game-with-a-long-name"),
    ],
)
def test_a_program_that_runs(tmp_path: Path, name: str, wanted: str) -> None:
    names = (wanted, "gossamer-no-such-program")
    assert running_programs(names) == ()
    with program(tmp_path / name):
        assert running_programs(names) == (wanted,)
    # Killed, it may stay in the list of processes until somebody asks for its exit status.
    deadline = time.monotonic() + 10
    while running_programs(names) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running_programs(names) == ()


def test_this_node_is_no_program_beside_it() -> None:
    """Otherwise `pause_for = ["python"]` would stop it for ever."""

    def process(pid: int, parent: int, status: str = "sleeping") -> SimpleNamespace:
        parents = [SimpleNamespace(pid=parent)]
        return SimpleNamespace(
            pid=pid, info={"name": "node"}, parents=lambda: parents, status=lambda: status
        )

    processes = [
        process(os.getpid(), 1),
        process(3, os.getpid()),
        process(4, 1, psutil.STATUS_ZOMBIE),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil, "process_iter", lambda _attributes: iter(processes))
        assert running_programs(("node",)) == ()
        processes.append(process(2, 1))
        assert running_programs(("node",)) == ("node",)


def test_a_child_of_this_nodes_trainer_is_none_either(tmp_path: Path) -> None:
    """The trainer starts a process for each further device, and compilers."""
    path = tmp_path / "gossamerchild"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", path)
    trainer = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:])\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "child.kill()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", trainer, str(path), "60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        while child.name() != path.name:  # it has not come to its own program yet
            time.sleep(0.01)
        assert running_programs([path.name]) == ()


def test_programs_of_others_may_be_hidden(tmp_path: Path) -> None:
    assert not sees_programs("linux", tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "stat").touch()
    assert sees_programs("linux", tmp_path)
    assert sees_programs("darwin", tmp_path / "none")


X11 = {"DISPLAY": ":0"}
WAYLAND = {"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}
IOREG = """+-o IOHIDSystem  <class IOHIDSystem, id 0x1, registered, matched, active, busy 0>
    {
      "HIDIdleTime" = 90500000000
      "IOClass" = "IOHIDSystem"
    }
"""


@pytest.mark.parametrize(
    ("platform", "environment", "answers", "idle"),
    [
        ("darwin", {}, {"ioreg": IOREG}, Idle(90.5, "ioreg")),
        ("darwin", {}, {"ioreg": "nothing"}, None),
        ("darwin", {}, {}, None),
        ("linux", X11, {"xprintidle": "301500\n"}, Idle(301.5, "xprintidle")),
        ("linux", X11, {"xprintidle": "no\n", "busctl": "b false\nt 0\n"},
         Idle(0.0, "systemd-logind")),
        # Under Wayland, xprintidle counts only what windows of X get.
        ("linux", WAYLAND, {"xprintidle": "301500\n", "busctl": "b true\nt 400000000\n"},
         Idle(600.0, "systemd-logind")),
        ("linux", {}, {"busctl": "b true\nt 0\n"}, Idle(1000.0, "systemd-logind")),
        ("linux", {}, {"busctl": "b true\nt 1000500000\n"}, Idle(0.0, "systemd-logind")),
        ("linux", {}, {"busctl": "s surprise\n"}, None),
        ("linux", X11, {}, None),
    ],
)  # fmt: skip
def test_how_long_nobody_has_used_the_machine(
    platform: str, environment: Mapping[str, str], answers: Mapping[str, str], idle: Idle | None
) -> None:
    def answer(command: Sequence[str]) -> str | None:
        return answers.get(command[0])

    assert read_idle(answer, platform, environment, lambda: 1000.0) == idle


@pytest.mark.parametrize(
    ("platform", "answer", "metered"),
    [
        ("linux", "u 1\n", True),
        ("linux", "u 2\n", False),
        ("linux", "u 3\n", True),  # guessed: the hotspot of a phone
        ("linux", "u 4\n", False),
        ("linux", "u 0\n", None),
        ("linux", "s surprise\n", None),
        ("linux", None, None),
        ("darwin", "u 1\n", None),
        ("win32", "u 1\n", None),
    ],
)
def test_what_network_manager_says_of_the_line(
    platform: str, answer: str | None, metered: bool | None
) -> None:
    asked: list[Sequence[str]] = []

    def ask_system(command: Sequence[str]) -> str | None:
        asked.append(command)
        return answer

    assert is_metered(ask_system, platform) is metered
    for command in asked:
        assert command[0] == "busctl"
        assert "--auto-start=no" in command


def test_busctl_is_asked_as_it_wants_to_be() -> None:
    """The real program takes the options, also where there is no bus to ask."""
    if shutil.which("busctl") is None:
        pytest.skip("busctl is not installed (Debian: apt install systemd)")
    done = subprocess.run(machine_use._NETWORK_MANAGER, capture_output=True, text=True)
    assert "option" not in done.stderr
    assert "Invalid argument" not in done.stderr


def test_a_program_that_is_asked_may_be_missing_fail_or_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_use, "_SECONDS_MAX", 0.2)
    assert ask(["gossamer-no-such-program"]) is None
    assert ask([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert ask(["sleep", "30"]) is None
    assert ask(["printf", "\\377 1"]) == "\ufffd 1"
