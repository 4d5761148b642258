"""What strangers make a node keep: commit records that they sign by themselves."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.heads import side_records
from gossamer.node.heads.side_records import RecordLimits
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import TransportError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.policy.statement_store import STRANGER_BYTES_MAX
from tests.rogue.attacks_claims import long_chains, rounds_of_the_future
from tests.rogue.rogue import Rogue
from tests.support import jumping_clock
from tests.support.measured import measured
from tests.support.node_world import World, simulate

NUM_ROGUES = 4
LIMITS = RecordLimits(peer=40_000, total=100_000)
"""Each rogue's chain has some 200 kB. Without a quota all that they brought, 829 kB, stays."""


def bytes_on_disk(world: World, name: str) -> int:
    return sum(path.stat().st_size for path in (world.root / name / "chain").iterdir())


def bytes_of_own_chain(world: World, name: str) -> int:
    """Bytes of the committed chain: a file is a record behind its digest."""
    committed = world.participant(name).context.committed
    chain = committed.chain
    path = chain.path_between(chain.genesis, committed.head) or []
    return sum(chain.entry(head).num_bytes + 32 for head in path)


@pytest.mark.long
def test_chains_that_strangers_sign_alone_are_under_a_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_records, "STRANGERS", LIMITS)
    monkeypatch.setattr(side_records, "NEWCOMER_ROUNDS", 3)
    monkeypatch.setattr(side_records, "SIDE_BYTES_MAX", LIMITS.peer)
    world = World(tmp_path, seed=23)

    async def attack(number: int) -> None:
        identity = Identity.from_seed(digest_of(b"rogue", bytes([number])))
        async with world.network.transport(identity) as transport:
            victims = [world.identity(name).peer_id for name in "ab"]
            for victim in victims:
                await transport.connect(world.network.addresses_of(victim)[0])
            rogue = Rogue(transport, identity, random.Random(number))
            await rogue.learn_run(victims[0])
            with suppress(TransportError):
                records = await long_chains(rogue, victims)
                assert sum(map(len, records)) > LIMITS.total

    peak = 0

    async def watch() -> None:
        nonlocal peak
        while True:
            for name in "ab":
                beside = bytes_on_disk(world, name) - bytes_of_own_chain(world, name)
                peak = max(peak, beside)
            await trio.sleep(0.25)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(6, "a", "b")
        before = world.round("a")
        async with trio.open_nursery() as watcher:
            watcher.start_soon(watch)
            async with trio.open_nursery() as rogues:
                for number in range(NUM_ROGUES):
                    rogues.start_soon(attack, number)
            watcher.cancel_scope.cancel()
        measured(
            f"{world.round('a') - before} rounds meanwhile; at most {peak:,} bytes of records "
            f"beside the chain, where {LIMITS.total:,} are allowed"
        )
        assert 0 < peak <= 1.1 * LIMITS.total  # each file has a digest more than its record
        await world.reach(world.round("a") + 3, "a", "b")
        for name in "ab":  # nobody stands for them any more
            assert bytes_on_disk(world, name) - bytes_of_own_chain(world, name) <= LIMITS.peer
        world.assert_one_chain("a", "b")

    simulate(world, story)


def test_statements_of_strangers_are_under_a_quota_and_go(tmp_path: Path) -> None:
    world = World(tmp_path, seed=29)
    said: list[int] = []

    async def attack(number: int) -> None:
        identity = Identity.from_seed(digest_of(b"talker", bytes([number])))
        async with world.network.transport(identity) as transport:
            victims = [world.identity(name).peer_id for name in "ab"]
            for victim in victims:
                await transport.connect(world.network.addresses_of(victim)[0])
            rogue = Rogue(transport, identity, random.Random(number))
            await rogue.learn_run(victims[0])
            num_bytes = await rounds_of_the_future(rogue, victims)
            await trio.sleep(0.5)  # all of it has arrived
            said.append(num_bytes)

    def bytes_of_strangers(name: str) -> int:
        context = world.participant(name).context
        members = {world.identity(each).peer_id for each in "ab"}
        statements = context.swarm.gossip.statement_store.statements()
        return sum(len(each.payload) for each, _ in statements if each.author not in members)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(4, "a", "b")
        peak = 0

        def have_all_said() -> bool:
            nonlocal peak
            peak = max(peak, bytes_of_strangers("a"), bytes_of_strangers("b"))
            return len(said) == NUM_ROGUES

        async with trio.open_nursery() as rogues:
            for number in range(NUM_ROGUES):
                rogues.start_soon(attack, number)
            await jumping_clock.until(have_all_said, 0.001)
        await world.reach(world.round("a") + 2, "a", "b")
        kept = max(bytes_of_strangers("a"), bytes_of_strangers("b"))
        measured(
            f"strangers said {sum(said):,} bytes of statements; at most {peak:,} were kept, and "
            f"{kept:,} still are"
        )
        assert sum(said) > 1.5 * NUM_ROGUES * STRANGER_BYTES_MAX
        assert 0 < peak <= NUM_ROGUES * STRANGER_BYTES_MAX
        assert kept < 10_000  # their announcements
        world.assert_one_chain("a", "b")

    simulate(world, story)
