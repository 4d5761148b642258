"""A daemon as the service of a manager that listens at a real socket."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.support.daemons import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

LIMIT_SECONDS = 2.0
"""Limit of the watchdog."""


def heard(channel: socket.socket, seconds: float) -> list[str]:
    """The words that come within some seconds."""
    words: list[str] = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        channel.settimeout(left)
        try:
            words += channel.recv(4096).decode().split("\n")
        except TimeoutError:
            break
    return words


@pytest.mark.long
def test_a_daemon_tells_its_manager_how_it_is(swarm: LocalSwarm, founded: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel,
    ):
        address = f"{folder}/notify"
        channel.bind(address)
        node = swarm.add(
            environment={
                "NOTIFY_SOCKET": address,
                "WATCHDOG_USEC": str(round(LIMIT_SECONDS * 1e6)),
            }
        )
        shutil.copytree(founded, node.root)
        node.start("start")
        words: list[str] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        # Read all the time: the kernel keeps ten words, and the daemon waits for nobody.
        while not any(word.startswith("STATUS=training, round ") for word in words):
            assert time.monotonic() < deadline, (words, node.tail())
            words += heard(channel, 0.5)
        assert words.count("READY=1") == 1
        assert any(word.startswith("STATUS=it ") for word in words), words
        # A process that is stopped sends no beat, and one that goes on does.
        assert heard(channel, LIMIT_SECONDS).count("WATCHDOG=1") >= 2
        node.signal(signal.SIGSTOP)
        heard(channel, LIMIT_SECONDS / 4)
        assert heard(channel, LIMIT_SECONDS) == []
        node.signal(signal.SIGCONT)
        assert "WATCHDOG=1" in heard(channel, LIMIT_SECONDS)
        assert node.leave() == 0, node.tail()
        assert "STOPPING=1" in heard(channel, 0.5)
