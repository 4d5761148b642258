"""A daemon that leaves while its peer stands still."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from tests.support.daemons import (
    PATIENCE_SECONDS,
    digests_on_disk,
    in_rounds_of,
    said,
    shared_rounds,
    start_founder,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

STANDS_STILL_SECONDS = 4.0
"""Longer than the other waits for it before it commits alone, and shorter than a peer lives that
says nothing."""


def processes_of(node: LocalNode) -> list[psutil.Process]:
    assert node.process is not None
    daemon = psutil.Process(node.process.pid)
    return [daemon, *daemon.children(recursive=True)]


@pytest.mark.long
def test_the_last_round_before_a_leave_comes_to_a_peer_that_stood_still(
    swarm: LocalSwarm, founded: Path
) -> None:
    leaver = start_founder(swarm, founded)
    other = swarm.join(leaver.address())
    other.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "a round of two")
    stopped = processes_of(other)
    for process in stopped:
        process.suspend()
    assert leaver.process is not None
    leaver.process.terminate()
    time.sleep(STANDS_STILL_SECONDS)  # the fault itself, not a wait for anything
    for process in stopped:
        process.resume()
    assert leaver.wait(PATIENCE_SECONDS) == 0, leaver.tail()
    assert said(leaver, "stays until another peer has its newest round"), leaver.tail()
    last = max(digests_on_disk(leaver))
    wait_for_round(other, last + 1)
    assert other.leave() == 0, other.tail()
    assert last in shared_rounds(leaver, other)
