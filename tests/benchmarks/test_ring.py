"""The measured members are real ones, in processes of their own: they must not fall behind nodes.

Small vectors on loopback, and on lines as fast as the machine: that it works, not how fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
import trio
import trio.testing
from msgspec.structs import replace
from rich.console import Console

from gossamer.node.rounds.decisions import LINGER_SECONDS
from gossamer.node.runs.planning.draft import draft_of_preset
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.protocol.codecs.payloads import SPARSE
from gossamer.protocol.codecs.sparse_codec import DEFAULT_K
from gossamer.protocol.manifest import Trust
from gossamer.protocol.state.chunk_plan import ChunkPlan
from tests.benchmarks import ring, traffic
from tests.benchmarks._members import Members
from tests.benchmarks._ring_gossamer import is_finished
from tests.support.measured import measured
from tests.support.netns import NamespacesUnavailable

ELEMENTS = 100_000
NUM_PEERS = 3
LINE = Line(20, 20)

MESSAGE_BYTES_MAX = 250
"""Of what travels with a chunk and is no payload: its number, its members, a signature, and the
acknowledgement of another one. A plan leaves it out."""


@pytest.mark.long
def test_members_average_and_say_what_it_took() -> None:
    options = argparse.Namespace(
        peers=4, elements=ELEMENTS, repeats=1, warm_up=1, mbit=None, chunk_elements=None
    )
    systems = [
        ring.System("Gossamer", "_ring_gossamer", sys.executable, "fp32", packing=packing)
        for packing in (False, True)
    ]
    ring.measure(options, systems, Console(quiet=True))
    plain, packed = (system.turns[0] for system in systems)
    for turn in (plain, packed):
        assert turn.is_whole
        assert turn.identical
        assert turn.error <= ring.error_max("fp32", 4, turn.magnitude)
    assert packed.error == plain.error
    own_links = 4 * ring.ideal_bytes("fp32", ELEMENTS, 4)
    assert own_links <= plain.bytes_sent <= 1.2 * own_links
    assert packed.bytes_sent < 0.9 * plain.bytes_sent


@pytest.mark.long
@pytest.mark.parametrize("codec", ["fp32", "int8", "sparse"])
def test_a_plan_says_the_bytes_that_a_ring_sends_with_open_and_among_members(codec: str) -> None:
    """Of the same model, in the same chunks, which are not packed."""
    draft = draft_of_preset("tiny")
    outer, sync = replace(draft.outer, packing=msgspec.UNSET), draft.sync
    if codec == SPARSE:
        outer, sync = replace(outer, top_k=DEFAULT_K), "sparse"
    else:
        outer = replace(outer, codec=codec)
    plans = {
        trust: plan_round(replace(draft, outer=outer, sync=sync, trust=trust), NUM_PEERS, LINE)
        for trust in get_args(Trust)
    }
    elements, chunk_elements = draft.model.num_parameters, outer.chunk_elements
    options = argparse.Namespace(
        peers=NUM_PEERS, elements=elements, repeats=1, warm_up=1, mbit=None,
        chunk_elements=chunk_elements,
    )  # fmt: skip
    systems = [
        ring.System(trust, "_ring_gossamer", sys.executable, codec, trust=trust, packing=False)
        for trust in plans
    ]
    ring.measure(options, systems, Console(quiet=True))
    num_chunks = ChunkPlan(elements, chunk_elements).num_chunks
    messages = 2 * (NUM_PEERS - 1) * num_chunks / NUM_PEERS
    for system in systems:
        (turn,) = system.turns
        assert turn.is_whole
        planned, sent = plans[system.trust].sent_bytes, turn.bytes_sent / NUM_PEERS
        measured(f"{codec}, {system.trust}: planned {planned:,} bytes, sent {sent:,.0f}")
        assert planned <= sent <= 1.01 * planned + messages * MESSAGE_BYTES_MAX
    assert plans["members"].sent_bytes_open == plans["open"].sent_bytes


@pytest.mark.long
def test_bytes_that_a_member_sends_after_its_own_commit_are_counted() -> None:
    """On slow lines two members often commit while one of them sends averages to the third."""
    elements = 5 * ELEMENTS
    options = argparse.Namespace(
        peers=NUM_PEERS, elements=elements, repeats=12, warm_up=1, mbit=20.0,
        round_trip_ms=0.0, lost=0.0, chunk_elements=16384,
    )  # fmt: skip
    system = ring.System("members", "_ring_gossamer", sys.executable, "fp32", packing=False)
    try:
        ring.measure(options, [system], Console(quiet=True))
    except SystemExit as error:
        if isinstance(error.__cause__, NamespacesUnavailable):
            pytest.skip(str(error))
        raise
    passed_on = NUM_PEERS * ring.ideal_bytes("fp32", elements, NUM_PEERS)
    assert min(turn.bytes_sent for turn in system.turns) >= passed_on


@pytest.mark.long
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
