"""The measured members are real ones, in processes of their own: they must not fall behind nodes.

Small vectors on loopback, and on lines as fast as the machine: that it works, not how fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing
from rich.console import Console

from gossamer.node.rounds.dispatcher import LINGER_SECONDS
from tests.benchmarks import ring, traffic
from tests.benchmarks._members import Members
from tests.benchmarks._ring_gossamer import is_finished
from tests.support.netns import NamespacesUnavailable

ELEMENTS = 100_000


def test_members_average_and_say_what_it_took() -> None:
    options = argparse.Namespace(
        peers=4, elements=ELEMENTS, repeats=1, mbit=None, chunk_elements=None
    )
    system = ring.System("Gossamer", "_ring_gossamer", sys.executable, "fp32")
    ring.measure(options, [system], Console(quiet=True))
    (turn,) = system.turns
    assert turn.is_whole
    assert turn.identical
    assert turn.error <= ring.error_max("fp32", 4, turn.magnitude)
    own_links = 4 * ring.ideal_bytes("fp32", ELEMENTS, 4)
    assert own_links <= turn.bytes_sent <= 1.2 * own_links


@pytest.mark.parametrize("codec", ["sparse", "distro"])
def test_bytes_are_counted_at_the_interfaces(codec: str) -> None:
    (mode,) = (mode for mode in traffic.MODES if mode.codec == codec)
    try:
        result = traffic.measure(mode, ELEMENTS, 4)
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    # Each member's part goes over every link but one, and something comes on top.
    passed_on = 3 * result.payload_bytes
    assert passed_on < result.sent_mean < passed_on + 300_000
    assert result.sent_mean == pytest.approx(result.received_mean, rel=0.1)


def test_a_member_that_is_out_of_the_ring_does_not_wait_for_ever() -> None:
    async def main() -> None:
        finished, is_out = trio.Event(), trio.Event()
        is_out.set()
        assert not await is_finished(finished, is_out)
        assert trio.current_time() == pytest.approx(began + LINGER_SECONDS)
        finished.set()
        assert await is_finished(finished, is_out)
        assert await is_finished(finished, trio.Event())

    clock = trio.testing.MockClock(autojump_threshold=0)
    began = clock.current_time()
    trio.run(main, clock=clock)


def test_a_turn_without_a_member_ends_the_measurement_and_says_why() -> None:
    class OneIsOut(Members):
        def prepare(self, repeat: int) -> float:
            return 0.0

        def hear(self, ranks: Sequence[int] | None = None) -> list[dict[str, Any]]:
            removed = {"1": "slow"}
            return [
                {"finished_seconds": 1.0, "is_whole": False, "removed": removed},
                {"is_whole": False, "removed": removed},
            ]

    system = ring.System("Gossamer", "", "", "int8", members=OneIsOut())
    with pytest.raises(SystemExit, match=r"member 1 has no average.*member 1: slow"):
        system.turn(3, ELEMENTS)
