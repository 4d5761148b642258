"""Rings of minutes on home lines that differ by a factor of five, in virtual time.

The member before the slowest line has half of its bytes yet to send when it has all averages. What
waits there may be of use to some members only, so that the others see nothing happen for half a
minute and more. Nobody may be put out for that.
"""

from __future__ import annotations

import pytest
import trio

from gossamer.node.network import frames
from gossamer.protocol.limits import MIB
from tests.node.rounds.test_ring_faults import PLAN, Lab, run_ring
from tests.support import jumping_clock, memory_stream

LONG = pytest.mark.long

CHUNK_SECONDS = 3.4
"""Time of the slowest line for a chunk: 4 MiB, the largest, on 10 Mbit/s."""
SCALE = 4 * MIB // (PLAN.chunk_elements * 4)
"""The chunks of this test are so much smaller than the largest ones, and so are their pieces."""
SIZES = [(frames, "PIECE_BYTES"), (memory_stream, "PIECE_BYTES"), (memory_stream, "WINDOW_BYTES")]
SLOWEST = PLAN.chunk_elements * 4 / CHUNK_SECONDS


@pytest.mark.parametrize(
    ("num_members", "place"),
    [(4, 0), pytest.param(4, 2, marks=LONG), pytest.param(6, 1, marks=LONG)],
)
def test_unequal_home_lines_lose_nobody_in_a_ring_of_minutes(
    num_members: int, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`place`: of the slowest line in the ring, before or behind one that is twice as fast."""
    for module, name in SIZES:
        monkeypatch.setattr(module, name, getattr(module, name) // SCALE)
    times = [1.0, 5.0, 2.0, 5.0, 3.0, 4.0][:num_members]
    ring_bytes = 2 * (num_members - 1) / num_members * PLAN.num_elements * 4
    slowest_seconds = ring_bytes / SLOWEST

    async def story(lab: Lab) -> None:
        for number, peer in enumerate(lab.order):
            lab.set_line(peer, SLOWEST * times[(number - place) % num_members], down=False)
        with trio.fail_after(3 * slowest_seconds):
            await jumping_clock.until(
                lambda: all(m.is_done(lab.removed) for m in lab.members.values()), 0.1
            )
        assert not lab.reasons()
        last_seconds = max(member.committed_seconds or 0.0 for member in lab.members.values())
        assert last_seconds - lab.began_seconds < 1.1 * slowest_seconds + 2.0

    run_ring(story, num_members)
