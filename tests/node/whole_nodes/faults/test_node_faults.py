"""Faults of one node in a swarm, in virtual time: its disk, its trainer, its network, its clock."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.network.identity import Identity
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.peers.known_peers_file import SAVE_SECONDS
from gossamer.node.rounds.participant import Participant
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import TokenSchedule
from gossamer.protocol.policy.conduct.ring_conduct import VotesSeen
from gossamer.protocol.policy.redial import BACK_OFF_SECONDS_MAX
from gossamer.protocol.state.chain import credits_of, decode_header, signers_of
from gossamer.protocol.wire.statements import Phase
from gossamer.trainer.ipc import messages
from tests.support.apart import REUNION_SECONDS
from tests.support.balance import is_balanced
from tests.support.node_world import (
    MODEL,
    NumbersTrainer,
    SlowTrainer,
    World,
    headers_of,
    simulate,
    start,
    tokens_of,
)

if TYPE_CHECKING:
    from trio_typing import TaskStatus

SLOW_LINE = 80_000.0
"""Bytes a second: a ring of four takes some half a second."""

COUNTS_TOKENS = TokenSchedule(warmup_tokens=MODEL.context, total_tokens=10**9, cooldown_tokens=0)


@contextmanager
def disk_that_takes_nothing(folder: Path) -> Iterator[None]:
    """Every file that is written below a folder stays behind as a temporary one."""
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target).is_relative_to(folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(target))
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace)
        yield


def phase(node: Participant) -> Phase:
    return node.progress.phase


def isolate(world: World, name: str, others: str) -> None:
    for other in others:
        world.network.cut(world.identity(name).peer_id, world.identity(other).peer_id)


def reunite(world: World, name: str, others: str) -> None:
    for other in others:
        world.network.heal(world.identity(name).peer_id, world.identity(other).peer_id)


def test_a_node_whose_disk_takes_nothing_stays_in_the_ring(tmp_path: Path) -> None:
    world = World(tmp_path, seed=20)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        # It has data to train on for a while.
        await world.until(lambda: world.all_shards_are_with("b"))
        await world.reach(world.round("a") + 2, "a", "b")
        health = world.participant("b").context.health
        with disk_that_takes_nothing(tmp_path / "b"):
            await world.until(lambda: health.problem is not None)
            assert health.problem is not None
            assert "the disk is read-only" in health.problem
            before = world.round("a")
            # More rounds than a checkpoint is old, so that nothing of before would do.
            await world.reach(before + 7, "a", "b", seconds=60)
            chain = world.participant("a").context.committed.chain
            rings = [len(chain.header(head).members) for head in world.path("a")[before:]]
            assert min(rings) == 2, "it did not take part in every round"
        await world.until(lambda: health.problem is None, seconds=45)
        mended = world.round("b")
        for name in "ab":
            world.crash(name)
        shutil.rmtree(tmp_path / "a" / "blocks")
        await trio.sleep(1.0)
        await nursery.start(world.run, "b")
        await world.until(lambda: world.round("b") >= mended, seconds=10)

    simulate(world, story)


@pytest.mark.parametrize("leaves", [True, False])
def test_rounds_that_the_disk_did_not_take_are_on_it_when_it_is_back(
    tmp_path: Path, leaves: bool
) -> None:
    """Also where the node has no further round: it is paused, or it leaves."""
    world = World(tmp_path, seed=20)

    async def story(nursery: trio.Nursery) -> None:
        left = trio.Event()

        async def run_a(task_status: TaskStatus[None]) -> None:
            await world.run("a", task_status=task_status)
            left.set()

        await nursery.start(run_a)
        await world.reach(3, "a")
        node = world.participant("a")
        with disk_that_takes_nothing(tmp_path / "a"):
            await world.reach(15, "a")
            world.nodes["a"].pause()
            await world.until(lambda: phase(node) == "paused", seconds=30)
        head = node.context.committed.head
        if leaves:
            world.nodes["a"].leave()
            await left.wait()
        else:
            await world.until(lambda: node.context.health.problem is None, seconds=60)
            world.crash("a")
        assert StateDir(tmp_path / "a").read_head() == head
        records = (tmp_path / "a" / "chain").glob("0*")
        assert len([*records]) == node.context.committed.entry.round

    simulate(world, story)


def test_a_record_that_waited_needs_no_room_for_a_checkpoint(tmp_path: Path) -> None:
    """Records are small, and a checkpoint is as large as the model. A disk that takes the record
    and no checkpoint has all that a paused node has to write."""
    world = World(tmp_path, seed=20)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(3, "a")
        node = world.participant("a")
        world.nodes["a"].pause()
        await world.until(lambda: phase(node) == "paused", seconds=30)
        chain, health = node.context.committed.chain, node.context.health
        first = chain.commit(world.path("a")[0])
        beside = replace(decode_header(first.header), update_digest=bytes(32))
        with disk_that_takes_nothing(tmp_path / "a" / "chain"):
            chain.add(replace(first, header=to_msgpack(beside)), beside)
        assert health.problem is not None
        with disk_that_takes_nothing(tmp_path / "a" / "blocks"):
            await world.until(lambda: chain.problem is None, seconds=60)
            await trio.sleep(1.0)
            assert health.problem is None

    simulate(world, story)


def test_a_node_that_is_started_again_knows_who_signed_the_rounds(tmp_path: Path) -> None:
    """Its own record of a round has the votes that were enough. The others come a moment later."""
    world = World(tmp_path, seed=21)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(16, *"abcd")
        path = world.path("b")
        world.crash("b")
        state_dir = StateDir(tmp_path / "b")
        genesis_state = Digest(open_signed_manifest(world.signed).genesis_digest)
        run_id = open_signed_manifest(world.signed).run_id
        chain = ChainStore(state_dir.chain_path, run_id, genesis_state, read_only=True)
        rounds = [head for head in path[:-1] if len(chain.header(head).members) == 4]
        assert len(rounds) >= 3
        for head in rounds:
            assert signers_of(chain.commit(head)) == credits_of(chain.header(head)).keys()

    simulate(world, story)


async def ring_of_four_at_work(world: World, nursery: trio.Nursery) -> dict[PeerId, str]:
    """Runs the nodes `abcd` on slow lines until they are in one ring; returns names by peer id."""
    await start(world, nursery, "abcd")
    await world.reach(5, *"abcd")
    await world.until(lambda: world.all_shards_are_with(*"abcd"))
    peers = {world.identity(name).peer_id: name for name in "abcd"}
    for peer in peers:
        for other in peers.keys() - {peer}:
            world.network.link(peer, other).bytes_per_second = SLOW_LINE
    await world.until(lambda: all(len(world.participant(name).rounds.ring) == 4 for name in "abcd"))
    return peers


def test_a_member_that_sits_out_from_now_on_spoils_no_ring_that_is_at_work(tmp_path: Path) -> None:
    """Its conduct counts for the next ring. In this one its neighbours become each other's."""
    world = World(tmp_path, seed=23)

    async def story(nursery: trio.Nursery) -> None:
        peers = await ring_of_four_at_work(world, nursery)
        order = world.participant("a").rounds.ring
        number = world.round("a") + 1
        victim, another = order[1], order[3]
        survivors = [name for peer, name in peers.items() if peer != victim]
        for name in survivors:
            conduct = world.participant(name).context.swarm.admission.partners.conduct
            conduct.put_out(
                number, another, victim, order, votes=VotesSeen(have_begun=True, is_late=True)
            )
            assert not conduct.sits_out(number, victim)
        world.crash(peers[victim])
        await world.reach(number, *survivors, seconds=20)
        for name in survivors:
            conduct = world.participant(name).context.swarm.admission.partners.conduct
            assert conduct.sits_out(number, victim)
            header = headers_of(world, name)[number - 1]
            assert {member.peer_id for member in header.members} == {*order}
            assert all(tokens_of(world, header, other) > 0 for other in survivors)
        world.assert_one_chain(*survivors)

    simulate(world, story)


def test_a_member_that_died_in_a_ring_is_a_neighbour_again_when_it_is_back(tmp_path: Path) -> None:
    """Otherwise the ring that two of three others are left for has no place for one of them."""
    world = World(tmp_path, seed=24)

    async def story(nursery: trio.Nursery) -> None:
        peers = await ring_of_four_at_work(world, nursery)
        dead = [peers[peer] for peer in world.participant("a").rounds.ring[2:]]
        survivors = [name for name in "abcd" if name not in dead]
        number = world.round("a") + 1
        for name in dead:
            world.crash(name)
        await world.reach(number, *survivors, seconds=20)
        for name in dead:
            await nursery.start(world.run, name, survivors)
        await world.until(
            lambda: all(world.participant_or_none(name) is not None for name in dead), seconds=10
        )
        await world.until(
            lambda: all(
                len(world.participant(name).context.swarm.neighbours()[0]) == 3 for name in "abcd"
            ),
            seconds=10,
        )

    simulate(world, story)


def test_a_member_that_all_others_had_trouble_with_keeps_its_place(tmp_path: Path) -> None:
    """It froze next to one of them, and its line was silent next to the other two. In a ring of
    four each of them is its neighbour or the neighbour of both of its neighbours."""
    world = World(tmp_path, seed=25)

    async def story(nursery: trio.Nursery) -> None:
        peers = await ring_of_four_at_work(world, nursery)
        victim, *others = world.participant("a").rounds.ring
        number = world.round("a") + 1
        for other in others:
            for name in (peers[victim], peers[other]):
                conduct = world.participant(name).context.swarm.admission.partners.conduct
                order = (other, victim, *(peer for peer in others if peer != other))
                conduct.put_out(number, victim, other, order)
                assert not conduct.sits_out(number + 1, other)
        for peer, name in peers.items():
            avoids = world.participant(name).context.swarm.admission.partners.is_avoided
            assert all(
                avoids(other) == (victim in (peer, other)) for other in peers.keys() - {peer}
            )
        await world.reach(number + 3, *"abcd", seconds=60)
        for header in headers_of(world, "a")[number : number + 3]:
            assert {member.peer_id for member in header.members} == {*peers}
        world.assert_one_chain(*"abcd")

    simulate(world, story)


@pytest.mark.long
def test_a_node_whose_disk_keeps_it_from_following_waits_for_it(tmp_path: Path) -> None:
    world = World(tmp_path, seed=21)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(5, *"abc")
        node = world.participant("c")
        with disk_that_takes_nothing(tmp_path / "c"):
            isolate(world, "c", "ab")
            missed = world.round("a")
            await world.reach(missed + 5, "a", "b", seconds=60)
            reunite(world, "c", "ab")
            await world.until(lambda: phase(node) == "paused", seconds=60)
            assert node.progress.paused_reason == "disk"
            assert node.context.health.problem is not None
            before = world.round("a")
            await world.reach(before + 5, "a", "b", seconds=30)
            assert phase(node) == "paused"
            chain = world.participant("a").context.committed.chain
            rings = [len(chain.header(head).members) for head in world.path("a")[before + 1 :]]
            assert set(rings) == {2}, "others waited for it"
        await world.reach(world.round("a") + 3, *"abc", seconds=60)
        await world.until(lambda: phase(node) != "paused")
        assert node.progress.paused_reason is None
        await world.until(lambda: node.context.health.problem is None, seconds=45)
        world.assert_one_chain(*"abc")

    simulate(world, story)


@pytest.mark.parametrize("schedule", [None, COUNTS_TOKENS])
def test_a_state_directory_that_is_deleted_under_the_node(
    tmp_path: Path, schedule: TokenSchedule | None
) -> None:
    world = World(tmp_path, seed=22, schedule=schedule)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(5, "a", "b")
        node = world.participant("b")
        health = node.context.health
        shutil.rmtree(tmp_path / "b")
        await world.until(lambda: health.problem is not None)
        assert health.problem is not None
        assert "gone" in health.problem
        reporter = world.nodes["b"].reporter
        assert reporter is not None
        assert health.problem in reporter.line()
        await world.reach(world.round("a") + 3, "a", seconds=60)
        # Without its data it falls behind, and what it would have to fetch has no place.
        await world.until(lambda: phase(node) == "paused", seconds=60)
        assert node.progress.paused_reason == "disk"
        world.assert_one_chain("a", "b")
        assert not (tmp_path / "b").exists(), "it must not be made anew"
        world.nodes["b"].leave()
        await world.until(lambda: phase(node) == "leaving", seconds=10)
        await world.reach(world.round("a") + 2, "a", seconds=30)

    simulate(world, story)


@pytest.mark.parametrize("schedule", [None, COUNTS_TOKENS])
def test_a_node_whose_newest_commit_record_is_damaged_on_disk_goes_on(
    tmp_path: Path, schedule: TokenSchedule | None
) -> None:
    world = World(tmp_path, seed=22, schedule=schedule)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(5, "a", "b")
        record = max((tmp_path / "b" / "chain").glob("0*"))
        content = bytearray(record.read_bytes())
        content[40] ^= 1
        record.write_bytes(content)
        await world.reach(world.round("a") + 3, "a", "b", seconds=60)
        world.assert_one_chain("a", "b")

    simulate(world, story)


class FailingTrainer(NumbersTrainer):
    """Gives up in its third round, until it is resumed."""

    rounds_left = 2

    async def train(self, begin: messages.Begin) -> messages.Finished:
        if self.rounds_left == 0:
            self.is_up, self.failure = False, "the trainer failed: no device"
        if self.failure is not None:
            return await super().train(replace(begin, steps_max=0))
        self.rounds_left -= 1
        return await super().train(begin)

    def resume(self) -> None:
        self.is_up, self.failure, self.rounds_left = True, None, 10**6


def test_a_node_whose_trainer_failed_follows_serves_and_comes_back(tmp_path: Path) -> None:
    world = World(tmp_path, seed=23)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"], FailingTrainer)
        await world.until(lambda: world.nodes["b"].participant is not None)
        node = world.participant("b")
        await world.until(lambda: phase(node) == "failed", seconds=60)
        assert node.progress.problem == "the trainer failed: no device"
        a = world.participant("a")
        peer = world.identity("b").peer_id
        await world.until(lambda: a.context.swarm.living()[peer].phase == "failed")
        before, started = world.round("a"), trio.current_time()
        await world.reach(before + 8, "a", "b", seconds=60)
        # Alone it takes less than a second; waiting for the other would take gather_seconds more.
        assert trio.current_time() - started < 8 * 1.5
        assert a.context.swarm.claims() == {}, "no other peer may have its shards"
        world.assert_one_chain("a", "b")

        # It is the only one whom a newcomer can hear of the run from.
        world.crash("a")
        await nursery.start(world.run, "c", ["b"])
        at_least = world.round("b")
        await world.reach(at_least + 2, "c", "b", seconds=60)
        world.assert_one_chain("b", "c")

        node.resume()
        chain = world.participant("c").context.committed.chain
        await world.until(lambda: len(chain.header(world.path("c")[-1]).members) == 2)
        assert node.progress.problem is None
        account = node.context.work.account
        assert is_balanced(account)

    simulate(world, story)


def are_connected(world: World, names: str) -> bool:
    ids = {name: world.identity(name).peer_id for name in names}
    transports = {name: world.network.get(ids[name]) for name in names}
    return all(
        ids[other] in transport.peers()
        for name, transport in transports.items()
        if transport is not None
        for other in names
        if other != name
    )


class NoTrainer(NumbersTrainer):
    """Never up: its node is in the swarm and does nothing that takes the test's time."""

    is_up = False


@pytest.mark.parametrize("groups", [("abc", "d"), ("ab", "cd"), ("a", "b", "c", "d")])
def test_a_node_that_was_cut_off_for_minutes_is_back_in_seconds(
    tmp_path: Path, groups: tuple[str, ...]
) -> None:
    world = World(tmp_path, seed=24)
    pairs = [
        (world.identity(first).peer_id, world.identity(second).peer_id)
        for group in groups
        for other in groups
        if group < other
        for first in group
        for second in other
    ]

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), NoTrainer)
        for name in "bcd":
            await nursery.start(world.run, name, ["a"], NoTrainer)
        await world.until(lambda: are_connected(world, "abcd"))
        for first, second in pairs:
            world.network.cut(first, second)
        await trio.sleep(150)
        assert not are_connected(world, "abcd")
        assert all(are_connected(world, group) for group in groups)
        for first, second in pairs:
            world.network.heal(first, second)
        healed = trio.current_time()
        await world.until(lambda: are_connected(world, "abcd"), 2 * BACK_OFF_SECONDS_MAX)
        assert trio.current_time() - healed <= REUNION_SECONDS

    simulate(world, story)


@pytest.mark.long
def test_all_are_restarted_and_the_newest_known_addresses_are_dead(tmp_path: Path) -> None:
    """More dead ones than are dialled at once must not keep a node from who lives."""
    world = World(tmp_path, seed=25)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(4, "a", "b")
        await trio.sleep(SAVE_SECONDS + 2)
        for name in "ab":
            world.crash(name)
        await trio.sleep(1.0)
        known = StateDir(tmp_path / "b").known_peers()
        known.saw({world.identity("a").peer_id: known.newest_first()[0][1]})
        for number in range(100):
            dead = Identity.from_seed(digest_of(b"dead %d" % number)).peer_id
            known.saw({dead: (f"/ip4/10.9.9.{number}/tcp/1",)})
        known.save()
        await nursery.start(world.run, "b")
        await trio.sleep(5.0)
        await nursery.start(world.run, "a")
        await world.until(lambda: are_connected(world, "ab"), REUNION_SECONDS)

    simulate(world, story)


def num_members(world: World, name: str) -> int:
    """Members of the ring of the newest round that a node has committed."""
    path = world.path(name)
    chain = world.participant(name).context.committed.chain
    return len(chain.header(path[-1]).members) if path else 0


class OnDisk(NamedTuple):
    """The head that a node's disk holds."""

    tokens_total: int
    head: Digest
    round: int
    signers: frozenset[PeerId]


def newest_on_disk(folder: Path, world: World) -> OnDisk:
    manifest = open_signed_manifest(world.signed)
    state_dir = StateDir(folder)
    genesis_state = Digest(manifest.genesis_digest)
    chain = ChainStore(state_dir.chain_path, manifest.run_id, genesis_state, read_only=True)
    head = Digest(bytes.fromhex(state_dir.head_path.read_text().strip()))
    entry = chain.entry(head)
    return OnDisk(entry.tokens_total, head, entry.round, signers_of(chain.commit(head)))


@pytest.mark.parametrize(
    ("seed", "codec", "num_back"), [(40, "fp32", 3), (41, "fp32", 3), (42, "fp16", 4)]
)
def test_all_are_killed_and_all_or_all_but_one_come_back(
    tmp_path: Path, seed: int, codec: str, num_back: int
) -> None:
    """The run goes on from the newest committed round that any of those that live holds, unless
    fewer members signed it than those that went on without it: the last survivors of a ring."""
    world = World(tmp_path, seed=seed, codec=codec)
    randomness = random.Random(seed)

    async def story(nursery: trio.Nursery) -> None:
        # Rounds take longer than it takes all to be back: who is first must not get far alone.
        await nursery.start(world.run, "a", (), SlowTrainer)
        for name in "bcd":
            await nursery.start(world.run, name, ["a"], SlowTrainer)
        await world.until(lambda: world.all_shards_are_with("b", "c", "d"))
        await world.until(lambda: num_members(world, "a") == 4)
        await world.until(lambda: phase(world.participant("a")) == "averaging")
        # Not at one moment: some may commit a round that others do not have.
        for name in randomness.sample("abcd", 4):
            await trio.sleep(randomness.uniform(0.0, 0.03))
            world.crash(name)
        await trio.sleep(1.0)
        back = randomness.sample("abcd", num_back)
        newest = max(newest_on_disk(tmp_path / name, world) for name in back)
        assert newest.tokens_total > 0
        first, *others = back
        await nursery.start(world.run, first, (), SlowTrainer)
        for name in others:
            await trio.sleep(randomness.uniform(0.0, 1.0))
            await nursery.start(world.run, name, [first], SlowTrainer)
        await world.until(lambda: are_connected(world, "".join(back)))
        await world.reach(max(world.round(name) for name in back) + 1, *back)
        await world.until(lambda: num_members(world, first) == num_back)
        world.assert_one_chain(*back)
        chain, path = world.participant(first).context.committed.chain, world.path(first)
        if newest.head not in path:
            rival = chain.commit(path[newest.round - 1])
            assert len(newest.signers) < len(signers_of(rival))

    simulate(world, story)
