"""The services for all users of a machine and for one of them, under a systemd that runs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from tests.support.daemons import poll, wait_for_round
from tests.support.live_systemd import LOG, LiveSystemd, SystemdUnavailable
from tests.support.live_user import LiveUser

pytestmark = [pytest.mark.e2e, pytest.mark.real_processes]

WATCHDOG_SECONDS = 3

HERE = (
    # The interpreter of the tests is not the machine's own.
    "[Service]\nEnvironment=LD_LIBRARY_PATH=/opt/gossamer/python/lib\n"
    "Environment=GOSSAMER_LISTEN=/ip4/127.0.0.1/tcp/0 GOSSAMER_API=127.0.0.1:0\n"
    "Environment=GOSSAMER_THREADS=1 GOSSAMER_LAN=off\n"
    "RestartSec=0.1\n"
)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[LiveSystemd]:
    with contextlib.ExitStack() as stack:
        try:
            systemd = stack.enter_context(LiveSystemd(tmp_path))
        except SystemdUnavailable as reason:
            pytest.skip(str(reason))
        systemd.add(
            f"{HERE}StandardOutput=append:{LOG}\nStandardError=append:{LOG}\n"
            f"WatchdogSec={WATCHDOG_SECONDS}\n"
        )
        yield systemd


@pytest.fixture
def founder(swarm: LocalSwarm, founded: Path) -> LocalNode:
    node = swarm.add()
    shutil.copytree(founded, node.root)
    node.start("start")
    return node


def num_rounds(systemd: LiveSystemd) -> int:
    """Rounds of two peers that the service has committed."""
    return sum("committed  peers=2" in line for line in systemd.log().splitlines())


def is_started_again_after(systemd: LiveSystemd, signal: str, number: int) -> None:
    """Sends a signal to the service, and sees its start with that number and two more rounds."""
    before = num_rounds(systemd)
    systemd.run("systemctl", "kill", "--kill-whom=main", f"--signal={signal}", "gossamer")
    poll(lambda: systemd.show("NRestarts") == str(number), f"start after {signal}")
    poll(lambda: num_rounds(systemd) >= before + 2, f"round after {signal}")


@pytest.mark.long
def test_a_service_trains_is_started_again_and_leaves_in_order(
    systemd: LiveSystemd, founder: LocalNode
) -> None:
    made = systemd.run(systemd.program, "service", "install", "--system", founder.address())
    assert made.returncode == 0, made.stdout + made.stderr + systemd.log()
    assert systemd.show("ActiveState") == "active"
    poll(lambda: num_rounds(systemd) >= 2, "round of the service")
    poll(lambda: systemd.show("StatusText").startswith("training, round "), "word of its work")
    said = [line for line in systemd.log().splitlines() if "the trainer can write" in line]
    assert said[0].endswith("cannot open network connections"), said
    # Its machine loses power, and its event loop hangs.
    for number, name in enumerate(("SIGKILL", "SIGSTOP"), start=1):
        is_started_again_after(systemd, name, number)
    assert systemd.run("systemctl", "stop", "gossamer").returncode == 0
    assert "left in order" in systemd.log().splitlines()[-1]
    assert systemd.show("Result") == "success"
    removed = systemd.run(systemd.program, "service", "uninstall", "--system")
    assert removed.returncode == 0, removed.stderr
    assert systemd.show("LoadState") == "not-found"
    wait_for_round(founder, founder.wait_for(lambda _: True, 10.0, "status").round + 2)


@pytest.mark.long
def test_a_service_with_a_mistake_is_not_started_again(
    systemd: LiveSystemd, founder: LocalNode
) -> None:
    made = systemd.run(
        systemd.program, "service", "install", "--system", "--no-start", founder.address()
    )
    assert made.returncode == 0, made.stdout + made.stderr
    systemd.add("Environment=GOSSAMER_UP_LIMIT=plenty\n")
    assert systemd.run("systemctl", "start", "gossamer").returncode != 0
    assert "GOSSAMER_UP_LIMIT: 'plenty'" in systemd.log()
    assert systemd.show("ActiveState") == "failed"
    assert systemd.show("ExecMainStatus") == "2"
    assert systemd.show("NRestarts") == "0"


@pytest.mark.long
def test_the_service_of_one_user_trains_is_started_again_and_shows_its_log(
    systemd: LiveSystemd, founder: LocalNode
) -> None:
    user = LiveUser(systemd)
    user.add(HERE)

    def service(*words: str) -> tuple[int, str]:
        done = user.run(systemd.program, "service", *words)
        return done.returncode, done.stdout + done.stderr

    def num_rounds_shown() -> int:
        return service("logs", "--lines", "1000")[1].count("committed  peers=2")

    status, text = service("install", founder.address())
    assert status == 0, text
    assert "loginctl enable-linger" in text
    assert user.show("ActiveState") == "active"
    poll(lambda: user.show("StatusText").startswith("training, round "), "word of its work")
    status, text = service("logs")
    assert (status, "`sudo mkdir -p /var/log/journal" in text) == (1, True), text
    user.keep_journal()
    poll(lambda: num_rounds_shown() >= 1, "round in the log")
    user.run("systemctl", "--user", "kill", "--kill-whom=main", "--signal=SIGKILL", "gossamer")
    poll(lambda: user.show("NRestarts") == "1", "start after SIGKILL")
    before = num_rounds_shown()
    poll(lambda: num_rounds_shown() >= before + 2, "round after SIGKILL")
    status, text = service("status")
    assert (status, "Active: active (running)" in text) == (0, True), text
    log = service("logs", "--lines", "1000")[1]
    said = [line for line in log.splitlines() if "the trainer can write" in line]
    assert said[-1].endswith("cannot open network connections"), log
    status, text = service("uninstall")
    assert status == 0, text
    assert user.show("LoadState") == "not-found"
    assert "left in order" in service("logs")[1]
    assert service("uninstall")[0] == 1
