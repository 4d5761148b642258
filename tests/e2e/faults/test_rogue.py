"""Three daemons, and a rogue that tries everything it has on them while their rounds go on.

The whole catalogue of `tests/rogue`, over the real network: several attacks at once, each with an
identity of its own. Afterwards all daemons live, are on one chain, have grown little, and have
banned.
"""

from __future__ import annotations

import random
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import trio

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import TransportError
from gossamer.protocol.ids import PeerId
from tests.rogue import attacks_connections
from tests.rogue.catalogue import ATTACKS, Attack
from tests.rogue.rogue import Rogue
from tests.support.daemons import (
    PATIENCE_SECONDS,
    digests_on_disk,
    get,
    in_rounds_of,
    poll,
    start_founder,
)

pytestmark = pytest.mark.e2e

ATTACK_SECONDS = 3.0
"""Duration of each attack: long enough to be felt, and then its peer is gone."""

CONNECT_SECONDS = PATIENCE_SECONDS
"""Time in which a rogue has to be let in and told of the run, as any newcomer. All rogues share the
one processor of this process, so with other programs beside it that may take longer than 10 s."""

AT_ONCE = 3
AT_ONCE_IN_RINGS = 2

ROUNDS_MIN = 5
"""Committed in the minute of the attacks; some forty are without them."""

REASONS = {"malformed", "oversized", "forged", "implausible", "protocol"}
"""Each is an offence of some attack."""

BANS_MIN = 3
"""Smallest number of bans by each daemon."""

PASSES_MAX = 3

GROWTH_BYTES_MAX = 150 * 2**20
"""Growth of one daemon's memory. All bounds together allow more; a missing bound lets in far more:
the rogue sends a GB, and keeps hundreds of streams."""


@dataclass
class Watch:
    """The observations of the daemons during the attacks."""

    nodes: list[LocalNode]
    largest: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        for node in self.nodes:
            assert node.is_running, node.tail()
            assert node.process is not None
            size = psutil.Process(node.process.pid).memory_info().rss
            self.largest[node.root.name] = max(size, self.largest.get(node.root.name, 0))

    async def run(self) -> None:
        while True:
            self.look()
            await trio.sleep(0.5)


@pytest.mark.long
def test_the_rounds_go_on_whatever_a_rogue_does(swarm: LocalSwarm, founded: Path) -> None:
    seed = start_founder(swarm, founded)
    address = seed.address()
    nodes = [seed, swarm.join(address), swarm.join(address)]
    for node in nodes:
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three")
    watch = Watch(nodes)
    watch.look()
    before = dict(watch.largest)
    begun = [round_of(node) for node in nodes]

    trio.run(attack_with, watch, [*attacks_connections.ATTACKS, *ATTACKS])
    ended = [round_of(node) for node in nodes]
    # The attacks for which the daemons had no time run once more.
    for _ in range(PASSES_MAX):
        missing, is_quiet = REASONS - reasons_counted(nodes), min(map(bans_of, nodes)) < BANS_MIN
        if not (missing or is_quiet):
            break
        again = [each for each, reason in ATTACKS.items() if is_quiet or reason in missing]
        trio.run(attack_with, watch, again)

    print("rounds:", begun, "->", ended)
    print("resident MB:", {name: size >> 20 for name, size in watch.largest.items()})
    assert min(ended) - max(begun) >= ROUNDS_MIN
    for name, size in watch.largest.items():
        assert size - before[name] <= GROWTH_BYTES_MAX, (before, watch.largest)

    # In peace again: one chain, bit by bit, and every round with all three.
    for node in nodes:
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three after the attacks")
    assert len({tuple(sorted(shared.items())) for shared in shared_digests(nodes)}) == 1
    for node in nodes:
        log = node.log_path.read_text(errors="replace")
        assert "Traceback" not in log, node.tail(80)
        assert "is banned for a while" in log
        bans, offences = counts(node, "bans"), counts(node, "offences")
        print(node.root.name, "bans:", bans, "offences:", offences)
        assert sum(bans.values()) >= BANS_MIN
        assert offences["other"] == bans["other"] == 0
        honest = tuple(f"peer={peer} seconds" for peer in peer_ids(nodes))
        assert not [line for line in log.splitlines() if any(peer in line for peer in honest)]
    assert reasons_counted(nodes) >= REASONS


def bans_of(node: LocalNode) -> float:
    return sum(counts(node, "bans").values())


def reasons_counted(nodes: list[LocalNode]) -> set[str]:
    """The reasons under which offences were counted."""
    return {reason for node in nodes for reason, count in counts(node, "offences").items() if count}


async def attack_with(watch: Watch, chosen: list[Attack]) -> None:
    """These, some at a time: more members that do not work would be more than honest ones."""
    places = trio.CapacityLimiter(AT_ONCE)
    places_in_rings = trio.CapacityLimiter(AT_ONCE_IN_RINGS)

    async def in_turn(attack: Attack) -> None:
        is_member = "member" in attack.__name__ or "ring" in attack.__name__
        async with places_in_rings if is_member else places:
            await attack_once(attack, watch.nodes)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        async with trio.open_nursery() as attacks:
            for attack in chosen:
                attacks.start_soon(in_turn, attack)
        nursery.cancel_scope.cancel()


async def attack_once(attack: Attack, nodes: list[LocalNode]) -> None:
    statuses = [await trio.to_thread.run_sync(node.status) for node in nodes]
    addresses = {PeerId(s.peer_id): s.addresses[0] for s in statuses if s is not None}
    victims = sorted(addresses)
    identity = Identity.generate()
    async with open_libp2p_transport(identity, ["/ip4/127.0.0.1/tcp/0"]) as transport:
        rogue = Rogue(transport, identity, random.Random(attack.__name__), addresses=addresses)
        with trio.move_on_after(CONNECT_SECONDS):
            await attacks_connections.enter(rogue, victims)
        with trio.move_on_after(ATTACK_SECONDS):
            with suppress(TransportError):  # banned meanwhile
                await attack(rogue, victims)
            await trio.sleep_forever()  # what was published is still on its way


def round_of(node: LocalNode) -> int:
    status = poll(node.status, "an answer")
    return status.round


def peer_ids(nodes: list[LocalNode]) -> set[str]:
    return {poll(node.status, "an answer").peer_id for node in nodes}


def shared_digests(nodes: list[LocalNode]) -> list[dict[int, str]]:
    """State digests of the rounds that all nodes have on disk, of each node."""
    chains = [digests_on_disk(node) for node in nodes]
    shared = set.intersection(*(set(chain) for chain in chains))
    assert len(shared) > ROUNDS_MIN
    return [{number: chain[number] for number in shared} for chain in chains]


def counts(node: LocalNode, name: str) -> dict[str, float]:
    pattern = rf'^gossamer_{name}_total{{reason="(\w+)"}} (\S+)$'
    found = re.findall(pattern, get(node, "/metrics")[1], re.MULTILINE)
    assert found
    return {reason: float(value) for reason, value in found}
