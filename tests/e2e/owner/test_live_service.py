"""The service for all users of a machine, under a systemd that runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from tests.support.daemons import poll, wait_for_round
from tests.support.live_systemd import LOG, LiveSystemd, SystemdUnavailable

pytestmark = [pytest.mark.e2e, pytest.mark.real_processes]

WATCHDOG_SECONDS = 3


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[LiveSystemd]:
    try:
        systemd = LiveSystemd(tmp_path).__enter__()
    except SystemdUnavailable as reason:
        pytest.skip(str(reason))
    try:
        systemd.add(
            # The interpreter of the tests is not the machine's own.
            "[Service]\nEnvironment=LD_LIBRARY_PATH=/opt/gossamer/python/lib\n"
            "Environment=GOSSAMER_LISTEN=/ip4/127.0.0.1/tcp/0 GOSSAMER_API=127.0.0.1:0\n"
            "Environment=GOSSAMER_THREADS=1 GOSSAMER_LAN=off\n"
            f"StandardOutput=append:{LOG}\nStandardError=append:{LOG}\n"
            f"WatchdogSec={WATCHDOG_SECONDS}\nRestartSec=0.1\n"
        )
        yield systemd
    finally:
        systemd.__exit__(None, None, None)


@pytest.fixture
def founder(swarm: LocalSwarm, founded: Path) -> LocalNode:
    node = swarm.add()
    shutil.copytree(founded, node.root)
    node.start("start")
    return node


def num_rounds(systemd: LiveSystemd) -> int:
    """Rounds of two peers that the service has committed."""
    return sum("committed  peers=2" in line for line in systemd.log().splitlines())


def wait_for_rounds(systemd: LiveSystemd, number: int) -> None:
    poll(lambda: num_rounds(systemd) >= number, f"{number} rounds of the service")


def wait_for_starts(systemd: LiveSystemd, number: int) -> None:
    poll(lambda: systemd.show("NRestarts") == str(number), f"{number} new starts")


def test_a_service_trains_is_started_again_and_leaves_in_order(
    systemd: LiveSystemd, founder: LocalNode
) -> None:
    made = systemd.run(systemd.program, "service", "install", "--system", founder.address())
    assert made.returncode == 0, made.stdout + made.stderr + systemd.log()
    assert systemd.show("ActiveState") == "active"
    wait_for_rounds(systemd, 2)
    poll(lambda: systemd.show("StatusText").startswith("training, round "), "word of its work")
    said = [line for line in systemd.log().splitlines() if "the trainer can write" in line]
    assert said[0].endswith("it cannot open network connections"), said
    # Its machine loses power, and its event loop hangs.
    for number, name in enumerate(("SIGKILL", "SIGSTOP"), start=1):
        before = num_rounds(systemd)
        systemd.run("systemctl", "kill", "--kill-whom=main", f"--signal={name}", "gossamer")
        wait_for_starts(systemd, number)
        wait_for_rounds(systemd, before + 2)
    assert systemd.run("systemctl", "stop", "gossamer").returncode == 0
    assert "left in order" in systemd.log().splitlines()[-1]
    assert systemd.show("Result") == "success"
    removed = systemd.run(systemd.program, "service", "uninstall", "--system")
    assert removed.returncode == 0, removed.stderr
    assert systemd.show("LoadState") == "not-found"
    wait_for_round(founder, founder.wait_for(lambda _: True, 10.0, "status").round + 2)


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
