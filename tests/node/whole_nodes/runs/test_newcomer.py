"""A newcomer to a run with many quick rounds behind it, how it and others who are behind get the
rounds that they missed, and what is kept for them."""

from __future__ import annotations

import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from gossamer.node.peers.chain.chain_records import ChainRecords, OpenedCommit
from gossamer.node.peers.chain.chain_sync import ChainSync
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state.retention import (
    CHECKPOINT_SECONDS,
    CHECKPOINTS_KEPT,
    CHECKPOINTS_MAX,
)
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.wire.chain_messages import ChainRequest
from tests.support.node_world import (
    FastTrainer,
    NumbersTrainer,
    SlowTrainer,
    World,
    credited,
    newest_header,
    simulate,
    start,
)

PATIENCE_SECONDS = 10.0
"""Longest wait for a task of the event loop to begin, in real seconds."""

MISSED_ROUNDS = 4
"""Rounds that the newcomer missed: so few that they are replayed, and no newer checkpoint is
fetched instead."""

SLOW_STEP_SECONDS = 5.0
"""Time of one inner step: the others do not wait for it."""


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[ChainRequest]:
    """Requests for the chain; replies have few records."""
    asked: list[ChainRequest] = []
    request = ChainRecords.request

    async def noted(self: ChainRecords, peer: PeerId, wanted: ChainRequest) -> list[OpenedCommit]:
        asked.append(wanted)
        return await request(self, peer, wanted)

    monkeypatch.setattr(ChainRecords, "request", noted)
    monkeypatch.setattr(limits, "HEADERS_PER_REPLY_MAX", 4)
    return asked


def test_it_learns_each_page_once_and_takes_over_no_old_head(
    tmp_path: Path, requests: list[ChainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=80)
    wanted: list[int] = []
    follow = ChainSync.follow

    async def noted(self: ChainSync, head, sources):  # type: ignore[no-untyped-def]
        wanted.append(self._committed.chain.entry(head).round)
        await follow(self, head, sources)

    monkeypatch.setattr(ChainSync, "follow", noted)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(42, "a")
        requests.clear()
        wanted.clear()
        begun = world.round("a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(begun + 3, "a", "b")
        world.assert_one_chain("a", "b")
        assert min(wanted) >= begun, "a round in the middle of the chain was taken for a goal"
        pages = [request.after_round for request in requests]
        assert len(pages) <= begun / limits.HEADERS_PER_REPLY_MAX + 5
        assert sorted(set(pages)) == sorted(pages), "a page came twice"

    simulate(world, story)


def test_the_next_round_is_fetched_while_one_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=81)
    following: dict[Digest, Digest] = {}
    is_fetching: dict[Digest, threading.Event] = defaultdict(threading.Event)
    num_overlapped = 0
    replay_all, fetch, replay = (
        ChainSync._replay,
        ChainSync._get_averages,
        CommittedState.replay,
    )

    async def noted_replay_all(self, path, get):  # type: ignore[no-untyped-def]
        following.update(pairwise(path))
        await replay_all(self, path, get)

    async def noted_fetch(self, step, get):  # type: ignore[no-untyped-def]
        is_fetching[step].set()
        await fetch(self, step, get)

    def patient_replay(self, head):  # type: ignore[no-untyped-def]
        nonlocal num_overlapped
        if head in following:
            assert is_fetching[following[head]].wait(PATIENCE_SECONDS)
            num_overlapped += 1
        return replay(self, head)

    monkeypatch.setattr(ChainSync, "_replay", noted_replay_all)
    monkeypatch.setattr(ChainSync, "_get_averages", noted_fetch)
    monkeypatch.setattr(CommittedState, "replay", patient_replay)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(2, "a", "b")
        world.crash("b")
        await world.reach(world.round("a") + MISSED_ROUNDS, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(world.round("a") + 2, "a", "b")
        world.assert_one_chain("a", "b")

    simulate(world, story)
    assert num_overlapped >= MISSED_ROUNDS - 2


def test_a_round_of_others_is_fetched_while_my_last_step_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=82)
    here_before: list[bool] = []
    follow = ChainSync.follow

    async def noted(self, head, sources):  # type: ignore[no-untyped-def]
        committed = self._committed
        first, *_ = committed.chain.path_between(committed.head, head) or [head]
        try:
            here_before.append(
                not committed.blocks._store.missing(committed.blocks.of_update(first))
            )
        except CannotRebuildError:  # what it consists of is not known
            here_before.append(False)
        await follow(self, head, sources)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(2, "a", "b")
        monkeypatch.setattr(
            world.participant("b").context.trainer, "step_seconds", SLOW_STEP_SECONDS
        )
        monkeypatch.setattr(ChainSync, "follow", noted)
        await world.reach(world.round("a") + 4, "a", "b")

    simulate(world, story)
    assert here_before
    assert all(here_before)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("between", [1.0, 50.0, 2 * CHECKPOINT_SECONDS])
def test_quick_checkpoints_are_kept_for_a_while(tmp_path: Path, between: float) -> None:
    world = World(tmp_path, seed=81)
    world.local_seconds = clock = Clock()

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        committed = world.participant("a").context.committed
        # Every third round is one.
        while world.round("a") < 45:
            newest = committed.checkpoint_round
            await world.until(lambda newest=newest: committed.checkpoint_round > newest)  # type: ignore[misc]
            clock.seconds += between
            kept = committed.checkpoints
            assert all(committed.blocks.has_state(entry.head) for entry in kept)
            rounds = [entry.round for entry in kept]
            assert rounds == sorted(rounds)
        if between == 1.0:
            assert len(kept) == CHECKPOINTS_MAX
        elif between > CHECKPOINT_SECONDS:
            assert len(kept) == CHECKPOINTS_KEPT
        else:
            assert len(kept) == CHECKPOINTS_KEPT + CHECKPOINT_SECONDS // between

    simulate(world, story)


def test_a_newcomer_gets_into_rounds_that_take_a_fraction_of_a_second(tmp_path: Path) -> None:
    """A round ends while it fetches the one before, and it is several rounds behind for ever if
    nobody waits for it."""
    world = World(tmp_path, seed=4, codec="sparse", latency_seconds=0.03)
    c = world.identity("c").peer_id

    def contributors() -> set[str]:
        return {member.peer_id for member in newest_header(world, "a").members}

    async def story(nursery: trio.Nursery) -> None:
        for name, seeds in (("a", []), ("b", ["a"])):
            await nursery.start(world.run, name, seeds, FastTrainer)
        await world.until(lambda: world.round("a") > 20 and len(contributors()) == 2)
        await nursery.start(world.run, "c", ["a"], FastTrainer)
        await world.until(lambda: c in contributors(), seconds=15.0)
        for _ in range(5):
            number = world.round("a")
            await world.until(lambda: world.round("a") > number)  # noqa: B023
            assert len(contributors()) == 3

    simulate(world, story)


@pytest.mark.parametrize("trainer", [NumbersTrainer, SlowTrainer])
def test_a_newcomer_gets_in_though_no_round_waits_for_it(
    trainer: type[NumbersTrainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose others have spent their waits on somebody else. It begins each round later than
    they do, so it is never ready in time with new work."""
    monkeypatch.setattr("gossamer.protocol.rounds.roster.STRANGER_WAITS_MAX", 0)
    world = World(tmp_path, seed=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "a")
        await world.reach(3, "a")
        await nursery.start(world.run, "b", ["a"], trainer)
        await world.until(lambda: world.participant_or_none("b") is not None)
        began = world.round("a")
        await world.until(lambda: credited(world, "b") > 0)
        assert world.round("a") - began <= 6
        assert world.participant("b").context.work.status.dropped == 0

    simulate(world, story)
