"""The time of a round between far peers against what `gossamer plan` says: whole nodes in virtual
time, in which nothing but the lines takes time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.runs.planning.planning import AGREE_SECONDS, Line, plan_round
from gossamer.protocol.manifest import decode_manifest
from tests.support.node_world import (
    World,
    headers_of,
    simulate,
    start,
)

LATENCY_SECONDS = 0.04
NUM_ROUNDS = 3


@pytest.mark.parametrize(("names", "mbit"), [("abcd", 1e6), ("abcdefghij", 1e6), ("abcdef", 0.5)])
def test_the_plan_is_within_a_fifth_of_rings_with_forty_milliseconds_a_hop(
    tmp_path: Path, names: str, mbit: float
) -> None:
    """Ten peers have sums with wider codes."""
    num_peers = len(names)
    world = World(
        tmp_path,
        seed=83,
        codec="int4",
        latency_seconds=LATENCY_SECONDS,
        wait_for_peers=num_peers - 1,
    )
    measured: list[float] = []

    def are_ready(number: int) -> bool:
        nodes = {name: world.participant(name) for name in names}
        return all(
            node.progress.phase == "averaging" or world.round(name) > number
            for name, node in nodes.items()
        )

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        # Peers that have just met announce themselves beside the rings, which no plan counts.
        await world.reach(4, *names)
        for sender in names:
            for receiver in names:
                ends = (world.identity(name).peer_id for name in (sender, receiver))
                world.network.link(*ends).bytes_per_second = mbit * 1e6 / 8
        for _ in range(NUM_ROUNDS):
            number = max(map(world.round, names))
            await world.reach(number, *names)
            await world.until(lambda number=number: are_ready(number))  # type: ignore[misc]
            began = trio.current_time()
            await world.reach(number + 1, *names)
            measured.append(trio.current_time() - began)
        world.assert_one_chain(*names)
        headers = headers_of(world, "a")
        assert [len(header.members) for header in headers[-NUM_ROUNDS:]] == [num_peers] * NUM_ROUNDS

    simulate(world, story)
    manifest = decode_manifest(world.signed.manifest)
    planned = plan_round(manifest, num_peers, Line(mbit, mbit, LATENCY_SECONDS))
    for seconds in measured:
        assert planned.averaging_seconds - AGREE_SECONDS == pytest.approx(seconds, rel=0.2)
