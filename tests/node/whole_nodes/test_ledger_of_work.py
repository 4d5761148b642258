"""The fates of all tokens, and the data that was consumed, when nodes die, split and come back."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.machine.trainer import TrainerListener
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.protocol.accounting.work_records import ABANDONED
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.state.chain import Header, UpdateIndex
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc import messages
from tests.support.node_world import (
    SHARD_TOKENS,
    NumbersTrainer,
    World,
    assert_account_is_true,
    credited,
    headers_of,
    settled,
    simulate,
    start,
    tokens_of,
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "codec", "overlap", "fragments"),
    [
        (40, "fp32", False, 1),
        (42, "fp16", False, 1),
        (43, "int8", True, 1),
        (44, "int4", True, 1),
        (45, "sparse", True, 1),
        (46, "fp32", False, 2),
        (47, "int4", True, 2),
        (48, "int8", True, 4),
    ],
)
def test_accounts_are_what_the_chain_says_under_churn(
    tmp_path: Path,
    seed: int,
    codec: str,
    overlap: bool,
    fragments: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A round trains for less time than usually lies between two notes: each step is noted here, so
    # that who is killed while it trains knows that it lost something.
    monkeypatch.setattr("gossamer.node.storage.work.work_journal.JOURNAL_SECONDS", 0.0)
    world = World(tmp_path, seed=seed, codec=codec, overlap=overlap, fragments=fragments)
    draw = random.Random(seed)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        for name in "bcd":
            await nursery.start(world.run, name, ["a"])
        await world.reach(4, *"abcd")
        await world.until(lambda: world.all_shards_are_with(*"bcd"))
        for _ in range(5):
            name = draw.choice("bcd")
            await trio.sleep(draw.uniform(0.0, 2.0))
            world.crash(name)
            await trio.sleep(draw.uniform(0.2, 3.0))
            await nursery.start(world.run, name, ["a"])
        await world.reach(world.round("a") + 3, *"abcd")
        await settled(world, *"abcd")
        for name in "abcd":
            assert_account_is_true(world, name)
        survivor = world.participant("a").context.work.status
        assert survivor.trained > 0
        assert survivor.dropped == survivor.lost == 0
        lost = [world.participant(name).context.work.status.lost for name in "bcd"]
        assert max(lost) > 0, "no node was killed while it trained"

    simulate(world, story)


def test_an_account_that_is_gone_is_told_by_the_chain(tmp_path: Path) -> None:
    world = World(tmp_path, seed=44)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.until(lambda: world.round("b") > 3 and credited(world, "b") > 500)
        world.crash("b")
        for path in (tmp_path / "b" / "work").iterdir():
            if path.is_file():
                path.write_bytes(b"rubbish")
        await trio.sleep(1.0)
        await nursery.start(world.run, "b", ["a"])
        await world.reach(world.round("a") + 5, "a", "b")
        await settled(world, "a", "b")
        for name in "ab":
            assert_account_is_true(world, name)
        assert world.participant("b").context.work.status.committed_late > 500

    simulate(world, story)


def test_the_account_does_not_need_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members of a round are not read from blocks that a full disk did not take."""
    world = World(tmp_path, seed=45)

    def not_there(_header: Header) -> UpdateIndex:
        raise CannotRebuildError("no such block")

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.until(lambda: world.round("b") > 3 and credited(world, "b") > 0)
        blocks = world.participant("b").context.committed.blocks
        monkeypatch.setattr(blocks, "update_index", not_there)
        await world.reach(world.round("a") + 5, "a", "b")
        await settled(world, "b")
        assert_account_is_true(world, "b")
        assert world.participant("b").context.work.status.dropped == 0

    simulate(world, story)


@pytest.mark.parametrize("fragments", [1, 2])
def test_the_work_of_the_losing_half_is_carried(tmp_path: Path, fragments: int) -> None:
    # Rounds that last a while: in the time in which the halves find each other they do few.
    world = World(tmp_path, seed=43, fragments=fragments, inner_steps=16)
    pairs = [
        (world.identity(one).peer_id, world.identity(other).peer_id)
        for one in "ab"
        for other in "cd"
    ]

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        for name in "bcd":
            await nursery.start(world.run, name, ["a"])
        await world.reach(6, *"abcd")
        await world.until(lambda: world.all_shards_are_with(*"ab"))
        await world.until(lambda: world.all_shards_are_with(*"cd"))
        for pair in pairs:
            world.network.cut(*pair)
        await world.until(lambda: world.path("a")[-1] not in world.path("c"))
        split = world.round("a")
        await world.reach(split + 3, *"abcd")
        branches = {name: world.path(name) for name in "abcd"}
        for pair in pairs:
            world.network.heal(*pair)
        await world.until(lambda: len({world.path(name)[-1] for name in "abcd"}) == 1)
        await world.reach(world.round("a") + 3, *"abcd")
        await settled(world, *"abcd")
        world.assert_one_chain(*"abcd")
        losers = [name for name in "abcd" if branches[name][-1] not in world.path(name)]
        assert losers
        for name in "abcd":
            assert_account_is_true(world, name)
            status = world.participant(name).context.work.status
            assert status.dropped == status.lost == 0
            reclaimed = world.nodes[name].first.metrics.registry.get_sample_value(
                "gossamer_tokens_reclaimed_total", {"timing": "on_time"}
            )
            assert (reclaimed or 0) > 0 or name not in losers
            assert status.committed_late > 0 or name not in losers
            assert status.carried < status.trained / 10

    simulate(world, story)


def test_what_a_round_took_is_known_although_a_checkpoint_skips_it(tmp_path: Path) -> None:
    """A line breaks in mid-ring. The others commit with a part of what it brought, go on, and have
    a checkpoint of every round, so that no peer need replay that one."""
    # Rounds that last a while: until the peers find each other again, the others do so few that
    # they still have what the round took.
    world = World(tmp_path, seed=44, checkpoint_rounds=1, latency_seconds=0.05, inner_steps=8)
    me = world.identity("c").peer_id
    others = [world.identity(name).peer_id for name in "ab"]

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(4, *"abc")
        await world.until(lambda: world.all_shards_are_with(*"ab"))
        c = world.participant("c")
        await world.until(lambda: c.progress.phase == "training")
        await world.until(lambda: len(c.rounds.ring) == 3)
        await trio.sleep(0.13)  # more than twice the way to another member: its parts are out
        for other in others:
            world.network.cut(me, other)
        cut = world.round("c")
        await world.reach(cut + 3, *"ab")
        assert not world.is_one_chain("a", "c")
        skipped = headers_of(world, "a")[cut]
        tokens = sum(member.tokens for member in skipped.members if member.peer_id == me)
        assert tokens > 0
        for other in others:
            world.network.heal(me, other)
        await world.until(lambda: world.is_one_chain("a", "c"))
        await settled(world, "c")
        assert skipped.digest in world.path("c")
        state = c.context.work.account.state
        assert state.committed_on_time + state.committed_late >= tokens
        assert ABANDONED not in state.dropped
        await world.reach(world.round("a") + 2, *"abc")
        await settled(world, *"abc")
        for name in "abc":
            assert_account_is_true(world, name)

    simulate(world, story)


class SkippingTrainer(NumbersTrainer):
    """In some rounds all its steps are skipped: no gradient was finite."""

    skipped_rounds = range(3, 40, 5)

    async def train(self, begin: messages.Begin) -> messages.Finished:
        if begin.round not in self.skipped_rounds:
            return await super().train(begin)
        listener = self._listener
        skipping = SimpleNamespace(
            needs_data=listener.needs_data,
            stepped=lambda step: listener.stepped(replace(step, tokens=0, skipped=True)),
        )
        self._listener = cast(TrainerListener, skipping)
        finished = await super().train(begin)
        self._listener = listener
        self._work[:] = 0.0
        return replace(finished, tokens=0, loss=math.nan, text_bytes=0)

    async def _share(self, round_number: int, deadline: float) -> None:
        if round_number not in self.skipped_rounds:
            await super()._share(round_number, deadline)


@pytest.mark.parametrize("codec", ["fp32", "distro"])
def test_a_round_whose_steps_are_all_skipped_keeps_no_data_from_the_epoch(
    tmp_path: Path, codec: str
) -> None:
    world = World(tmp_path, seed=51, codec=codec, num_shards=8, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"], SkippingTrainer)
        b = world.nodes["b"]
        await world.until(lambda: b.participant is not None)
        feed = world.participant("b").context.feed
        await world.until(lambda: feed.epoch_progress().epoch >= 2)
        skipped = [
            header
            for header in headers_of(world, "a")
            if header.round in SkippingTrainer.skipped_rounds
        ]
        assert skipped
        assert sum(tokens_of(world, header, "b") for header in skipped) == 0
        await settled(world, "b")
        assert_account_is_true(world, "b")

    simulate(world, story)


def test_a_life_that_named_too_much_data_is_not_followed_by_another(tmp_path: Path) -> None:
    world = World(tmp_path, seed=52)
    bounds = WorkBounds(decode_manifest(world.signed.manifest))

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(3, *"ab")
        work = world.participant("b").context.work
        work.account.state.spans = [Span(0, 0, bounds.span_tokens_max + 1)]
        work.moved_to(world.path("b")[-1])  # writes the account down
        for name in "ab":  # nobody has a newer head, which would be a moment to look at it
            world.crash(name)
        before = credited(world, "b")
        await trio.sleep(1.0)
        await start(world, nursery, "ab")
        await world.until(lambda: world.participant_or_none("b") is not None)
        await world.until(lambda: credited(world, "b") > before)
        assert world.participant("a").context.swarm.num_banned == 0
        named = [span for header in headers_of(world, "b") for span in header.spans]
        assert max(span.stop for span in named) <= SHARD_TOKENS

    simulate(world, story)


def test_a_member_that_carries_more_than_any_peer_takes_is_not_banned(tmp_path: Path) -> None:
    """As after many rounds that it committed alone, and that left the chain."""
    world = World(tmp_path, seed=53)
    bounds = WorkBounds(decode_manifest(world.signed.manifest))

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(3, *"ab")
        work, before = world.participant("b").context.work, credited(world, "b")
        work.trained(world.path("b")[-1], 4, bounds.tokens_max + 100, ())
        await world.until(lambda: credited(world, "b") >= before + bounds.tokens_max)
        for name in "ab":
            assert world.participant(name).context.swarm.num_banned == 0
        assert 100 <= work.status.dropped < bounds.tokens_max
        await settled(world, "b")

    simulate(world, story)


@pytest.mark.long
def test_an_epoch_is_consumed_once_although_a_peer_dies_and_another_joins(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, seed=50, num_shards=12)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        for name in "bc":
            await nursery.start(world.run, name, ["a"])
        await world.reach(3, *"abc")
        await world.until(lambda: credited(world, "c") > SHARD_TOKENS)
        await trio.sleep(0.25)  # in the middle of a round, and of a shard
        world.crash("c")
        await nursery.start(world.run, "d", ["b"])
        a = world.participant("a")
        await world.until(lambda: a.context.feed.epoch_progress().epoch >= 2)
        chain = a.context.committed.chain
        headers = [chain.header(head) for head in world.path("a")]
        members = {member.peer_id for header in headers for member in header.members}
        assert members == {world.identity(name).peer_id for name in "abcd"}

        reached: dict[int, int] = {}
        for header in headers:
            for span in header.spans:
                assert span.start == reached.get(span.partition, 0), "a gap, or a token twice"
                reached[span.partition] = span.stop
        assert reached == a.context.committed.ledger.as_dict()
        assert set(reached) == set(range(12))
        assert all(2 <= position / SHARD_TOKENS <= 3 for position in reached.values())
        progress = a.context.feed.epoch_progress()
        assert progress.epoch == 2
        assert progress.tokens_consumed == sum(reached.values()) - 2 * 12 * SHARD_TOKENS

    simulate(world, story)
