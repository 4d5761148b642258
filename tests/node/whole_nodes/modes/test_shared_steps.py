"""Rounds of shared steps in virtual time: all nodes stay together while nodes come and go."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from gossamer.node.machine.trainer import TrainerListener
from gossamer.node.machine.trainer_process import STUCK_SECONDS_MAX
from gossamer.node.modes.shared_steps import StepTiming
from gossamer.protocol.accounting.partitions import named_tokens_max
from gossamer.protocol.accounting.spans import num_tokens
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.trainer.ipc import messages
from tests.support.node_world import (
    MODEL,
    STEP_SECONDS,
    NumbersTrainer,
    SlowTrainer,
    World,
    assert_account_is_true,
    credited,
    headers_of,
    settled,
    simulate,
    start,
    tokens_of,
)

STEPS = 4
"""Inner steps of a round in this world."""


@pytest.fixture(params=(1, 3), ids=lambda each: f"{each} chunks a step")
def step_chunks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


STEP_TOKENS = 2 * MODEL.context

SLOW_LINK_SECONDS = 0.5
"""One way: fifty times as long as over the others."""

SLOW_LINE = 3_000.0
"""Bytes a second."""

SHORT_SECONDS = 0.002
"""Small against what a step takes over the slow line."""


def test_three_take_every_step_together(tmp_path: Path, step_chunks: int) -> None:
    world = World(tmp_path, seed=1, codec="distro", step_chunks=step_chunks, wait_for_peers=2)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(6, *"abc")
        await settled(world, *"abc")
        world.assert_one_chain(*"abc")
        headers = headers_of(world, "a")[:6]
        for header in headers:
            assert [member.tokens for member in header.members] == 3 * [STEPS * STEP_TOKENS]
        for name in "abc":
            assert_account_is_true(world, name)
            assert world.participant(name).context.work.account.dropped == 0
        # The data of a round is in the ledger one round later: each piece once, none left out.
        told = [span for header in headers for span in header.spans]
        assert sum(span.stop - span.start for span in told) == headers[-2].tokens_total

    simulate(world, story)


class TalkTrainer(NumbersTrainer):
    """Reads conversations, of which a quarter is to be learnt."""

    async def run(self, listener: TrainerListener) -> None:
        stepped = listener.stepped

        def of_talk(step: messages.Step) -> None:
            stepped(msgspec.structs.replace(step, tokens=step.tokens // 4))

        listener.stepped = of_talk  # type: ignore[method-assign]
        await super().run(listener)

    async def train(self, begin: messages.Begin) -> messages.Finished:
        finished = await super().train(begin)
        return msgspec.structs.replace(finished, tokens=finished.tokens // 4)


def test_of_conversations_what_is_learnt_is_credited(tmp_path: Path, step_chunks: int) -> None:
    """A `Ready` that promised all tokens would be credited with four times what was trained."""
    world = World(tmp_path, seed=11, codec="distro", step_chunks=step_chunks, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(partial(world.run, "a", trainer=TalkTrainer))
        await nursery.start(partial(world.run, "b", ["a"], trainer=TalkTrainer))
        await world.reach(4, *"ab")
        await settled(world, *"ab")
        for header in headers_of(world, "a")[:4]:
            assert [each.tokens for each in header.members] == 2 * [STEPS * STEP_TOKENS // 4]
        for name in "ab":
            assert_account_is_true(world, name)
            status = world.participant(name).context.work.status
            assert (status.committed_late, status.dropped) == (0, 0)

    simulate(world, story)


def test_what_it_learns_is_what_a_lone_peer_would_not(tmp_path: Path, step_chunks: int) -> None:
    """Three with targets of their own move every parameter that is sent, by the majority."""
    world = World(tmp_path, seed=2, codec="distro", step_chunks=step_chunks, wait_for_peers=2)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(1, *"abc")
        before = world.participant("a").context.committed.parameters.copy()
        await world.reach(4, *"abc")
        after = world.participant("a").context.committed.parameters
        assert (before != after).mean() > 0.9

    simulate(world, story)


@pytest.mark.long
def test_an_organiser_that_restarts_does_not_begin_another_ring(
    tmp_path: Path, step_chunks: int
) -> None:
    """Its own word of the ring that is at work comes back to it from the others, who would else
    have to take all steps of the round anew, where the new ring is preferred to the old one."""
    steps, rounds = 40, 3
    world = World(
        tmp_path,
        seed=7,
        codec="distro",
        step_chunks=step_chunks,
        wait_for_peers=2,
        inner_steps=steps,
    )
    names = {world.identity(name).peer_id: name for name in "abc"}

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(2, *"abc")
        for _ in range(rounds):
            before = world.round("a")
            await world.reach(before + 1, *"abc")
            head = world.path("a")[-1]
            organiser = names[rank_order(head, 0, names)[0]]
            await trio.sleep(steps * STEP_SECONDS / 4)
            world.crash(organiser)
            await trio.sleep(0.1)
            others = sorted({"a", "b", "c"} - {organiser})
            await nursery.start(world.run, organiser, others)
            await world.reach(before + 2, *others)
            header = headers_of(world, others[0])[before + 1]
            assert header.members[0].peer_id == world.identity(organiser).peer_id
            for name in others:
                assert tokens_of(world, header, name) == steps * STEP_TOKENS
            await world.reach(before + 3, *"abc")

    simulate(world, story)


@pytest.mark.long
def test_a_slow_one_has_a_part_in_some_steps_and_stops_none(
    tmp_path: Path, step_chunks: int
) -> None:
    # Long rounds: the others do wait for its first gradient, which it needs to be ready.
    steps = 20
    world = World(
        tmp_path,
        seed=3,
        codec="distro",
        step_chunks=step_chunks,
        wait_for_peers=2,
        inner_steps=steps,
    )

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"], SlowTrainer)
        await world.reach(3, *"abc")  # by then they know each other's speed
        began, first = trio.current_time(), world.round("a")
        await world.reach(first + 4, *"abc")
        seconds_a_step = (trio.current_time() - began) / (4 * steps)
        # A step of its own takes it ten of theirs.
        assert seconds_a_step < 6 * STEP_SECONDS
        await settled(world, *"abc")
        world.assert_one_chain(*"abc")
        later = headers_of(world, "a")[first : first + 4]
        by_slow = sum(tokens_of(world, header, "c") for header in later)
        by_quick = sum(tokens_of(world, header, "a") for header in later)
        assert 0 < by_slow < by_quick / 2
        assert by_quick == 4 * steps * STEP_TOKENS
        for name in "abc":
            assert_account_is_true(world, name)

    simulate(world, story)


@pytest.mark.long
def test_the_waits_of_slow_ones_do_not_add_up(tmp_path: Path, step_chunks: int) -> None:
    """Each of them would measure the waits of the others as time that a step takes."""
    steps, quick, slow = 20, "abc", "def"
    world = World(
        tmp_path,
        seed=12,
        codec="distro",
        step_chunks=step_chunks,
        wait_for_peers=5,
        inner_steps=steps,
    )

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, quick)
        for name in slow:
            await nursery.start(world.run, name, ["a"], SlowTrainer)
        await world.reach(3, *quick, *slow)  # by then they know each other's speed
        began, first = trio.current_time(), world.round("a")
        await world.reach(first + 4, *quick, *slow)
        seconds_a_step = (trio.current_time() - began) / (4 * steps)
        # A round waits for the first parts of the slow ones: half the time of each of its steps.
        assert seconds_a_step < 5 * STEP_SECONDS
        await settled(world, *quick, *slow)
        world.assert_one_chain(*quick, *slow)
        for header in headers_of(world, "a")[first : first + 4]:
            for name in quick:
                assert tokens_of(world, header, name) == steps * STEP_TOKENS
            for name in slow:
                assert tokens_of(world, header, name) >= 3 * STEP_TOKENS
        for name in (*quick, *slow):
            assert_account_is_true(world, name)

    simulate(world, story)


def test_a_slow_line_stops_no_step_after_the_first_ones(tmp_path: Path, step_chunks: int) -> None:
    steps = 30
    world = World(
        tmp_path,
        seed=4,
        codec="distro",
        step_chunks=step_chunks,
        wait_for_peers=3,
        inner_steps=steps,
    )

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(1, *"abcd")
        began = trio.current_time()
        await world.reach(2, *"abcd")
        usual_seconds = trio.current_time() - began
        slow = world.identity("d").peer_id
        for name in "abc":
            for link in world.network.links(slow, world.identity(name).peer_id):
                link.latency_seconds = SLOW_LINK_SECONDS
        began = trio.current_time()
        await world.reach(3, *"abc")
        slow_seconds = trio.current_time() - began
        print(f"{usual_seconds:.1f} s a round, {slow_seconds:.1f} s with a slow line")
        # Every step waits for two of its links, until they are found to be slow.
        assert 2 * steps * SLOW_LINK_SECONDS > 5 * usual_seconds
        assert slow_seconds < 2 * usual_seconds
        assert 0 < tokens_of(world, headers_of(world, "a")[2], "d") < steps * STEP_TOKENS
        await settled(world, *"abc")
        world.assert_one_chain(*"abc")
        for name in "abc":
            assert_account_is_true(world, name)

    simulate(world, story)


@pytest.mark.parametrize("seed", range(10, 13))
def test_a_peer_that_vanishes_costs_its_part_and_never_the_step(
    tmp_path: Path, step_chunks: int, seed: int
) -> None:
    world = World(tmp_path, seed=seed, codec="distro", step_chunks=step_chunks, wait_for_peers=3)
    draw = random.Random(seed)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(3, *"abcd")
        await trio.sleep(draw.uniform(0.0, 1.0))
        began = world.round("a")
        world.crash("d")
        # The ring that it dies in commits, with all steps.
        await world.reach(began + 1, *"abc", seconds=20.0)
        await world.reach(began + 4, *"abc")
        await settled(world, *"abc")
        world.assert_one_chain(*"abc")
        for header in headers_of(world, "a"):
            for name in "abc":
                assert tokens_of(world, header, name) == STEPS * STEP_TOKENS
        for name in "abc":
            assert_account_is_true(world, name)

    simulate(world, story)


def test_a_newcomer_takes_the_state_and_enters_at_the_next_boundary(
    tmp_path: Path, step_chunks: int
) -> None:
    world = World(tmp_path, seed=20, codec="distro", step_chunks=step_chunks, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(5, *"ab")
        await nursery.start(world.run, "c", ["b"])
        await world.until(lambda: "c" in world.nodes and world.nodes["c"].participant is not None)
        await world.until(lambda: credited(world, "c") > 0)
        await world.reach(world.round("a") + 3, *"abc")
        await settled(world, *"abc")
        world.assert_one_chain(*"abc")
        sizes = [len(header.members) for header in headers_of(world, "a")]
        assert sizes[:4] == 4 * [2]
        assert sizes[-1] == 3
        # No node was alone on the way, and no round of two was lost to the third.
        assert sorted(sizes) == sizes

    simulate(world, story)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 32))
def test_states_and_accounts_under_churn(tmp_path: Path, step_chunks: int, seed: int) -> None:
    world = World(tmp_path, seed=seed, codec="distro", step_chunks=step_chunks)
    draw = random.Random(seed)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(4, *"abcd")
        await world.until(lambda: world.all_shards_are_with(*"bcd"))
        for _ in range(6):
            name = draw.choice("bcd")
            await trio.sleep(draw.uniform(0.0, 2.0))
            world.crash(name)
            await trio.sleep(draw.uniform(0.2, 3.0))
            await nursery.start(world.run, name, ["a"])
        await world.reach(world.round("a") + 3, *"abcd")
        # A node that came back may have been alone for a round; the head rule joins them.
        await world.until(lambda: world.is_one_chain(*"abcd"))
        await settled(world, *"abcd")
        world.assert_one_chain(*"abcd")
        for name in "abcd":
            assert_account_is_true(world, name)

    simulate(world, story)


def test_all_are_killed_and_go_on_from_their_disks(tmp_path: Path, step_chunks: int) -> None:
    world = World(tmp_path, seed=50, codec="distro", step_chunks=step_chunks, wait_for_peers=2)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(5, *"abc")
        await world.until(lambda: world.all_shards_are_with(*"abc"))
        await trio.sleep(0.3)  # in the middle of a round
        reached = min(world.round(name) for name in "abc")
        for name in "abc":
            world.crash(name)
        await trio.sleep(1.0)
        await start(world, nursery, "cab")
        await world.reach(reached + 4, *"abc")
        await settled(world, *"abc")
        world.assert_one_chain(*"abc")
        for name in "abc":
            assert_account_is_true(world, name)

    simulate(world, story)


class CountingTrainer(NumbersTrainer):
    """Word of what became of its parts takes a while, so that the round may be over meanwhile."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self.num_taken = 0
        self.at_begin: list[int] = []
        """Parts that it knew to be taken when each of its rounds began."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        self.at_begin.append(self.num_taken)
        return await super().train(begin)

    async def share(self, *, taken: bool) -> None:
        await trio.sleep(STEP_SECONDS)
        await super().share(taken=taken)
        self.num_taken += taken


def test_a_trainer_knows_of_every_part_that_was_taken_before_it_begins_the_next_round(
    tmp_path: Path, step_chunks: int
) -> None:
    """A part of which the trainer is not told stays in its momentum, and is sent again."""
    world = World(tmp_path, seed=70, codec="distro", step_chunks=step_chunks, wait_for_peers=2)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), CountingTrainer)
        for name in "bc":
            await nursery.start(world.run, name, ["a"], CountingTrainer)
        await world.reach(6, *"abc")
        for name in "abc":
            trainer = world.participant(name).context.trainer
            assert isinstance(trainer, CountingTrainer)
            assert trainer.at_begin[:6] == [STEPS * number for number in range(6)]

    simulate(world, story)


class DyingTrainer(NumbersTrainer):
    """Its worker is gone for a while: no word of a round that runs."""

    async def _share(self, round_number: int, deadline: float) -> None:
        await super()._share(round_number, deadline)
        self._stop = self._stop or round_number % 3 == 0


def test_a_trainer_that_dies_in_its_rounds(tmp_path: Path, step_chunks: int) -> None:
    world = World(tmp_path, seed=60, codec="distro", step_chunks=step_chunks, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"], DyingTrainer)
        await world.reach(8, *"ab")
        await settled(world, *"ab")
        world.assert_one_chain(*"ab")
        for header in headers_of(world, "a"):
            wanted = STEP_TOKENS if header.round % 3 == 0 else STEPS * STEP_TOKENS
            if len(header.members) == 2:
                assert tokens_of(world, header, "b") == wanted
        for name in "ab":
            assert_account_is_true(world, name)

    simulate(world, story)


class HangingTrainer(NumbersTrainer):
    """From its third round on it answers nothing, until it is found to hang and ends."""

    async def _share(self, round_number: int, deadline: float) -> None:
        await super()._share(round_number, deadline)
        if round_number >= 3:
            await trio.sleep(STUCK_SECONDS_MAX)
            self._stop = True


def test_a_trainer_that_hangs_holds_up_one_step(tmp_path: Path, step_chunks: int) -> None:
    """Each step waited for it, for half of a step and a quarter of a second, in the minutes until
    it was found to hang."""
    steps = 30
    world = World(
        tmp_path,
        seed=61,
        codec="distro",
        step_chunks=step_chunks,
        wait_for_peers=2,
        inner_steps=steps,
    )

    async def story(nursery: trio.Nursery) -> None:
        for name in "ab":
            await nursery.start(world.run, name, ["a"] if name > "a" else ())
        await nursery.start(world.run, "c", ["a"], HangingTrainer)
        seconds = []
        for number in (1, 2, 3):
            began = trio.current_time()
            await world.reach(number, *"ab")
            seconds.append(trio.current_time() - began)
        print(f"rounds of {seconds} s")
        patience = StepTiming()
        patience.took(STEP_SECONDS)
        assert steps * patience.partial_sum_patience > 2 * seconds[1]
        assert seconds[2] < 1.5 * seconds[1]
        (header,) = (each for each in headers_of(world, "a") if each.round == 3)
        assert tokens_of(world, header, "c") == STEP_TOKENS
        assert tokens_of(world, header, "a") == steps * STEP_TOKENS

    simulate(world, story)


@pytest.mark.long
@pytest.mark.parametrize("direction", ["up", "down", "both"])
def test_a_slow_line_costs_its_neighbours_at_most_one_round(
    tmp_path: Path, direction: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up, as at home, it costs them nothing."""
    steps = 120
    world = World(
        tmp_path,
        seed=5,
        codec="distro",
        wait_for_peers=3,
        inner_steps=steps,
        latency_seconds=SHORT_SECONDS,
    )
    d = world.identity("d").peer_id

    def blamed() -> set[str]:
        """Returns the nodes that were blamed since the last call."""
        lines = [line for line in capsys.readouterr().out.splitlines() if "reason=slow" in line]
        words = {word for line in lines for word in line.split()}  # the detail names the accuser
        return {name for name in "abcd" if f"peer={world.identity(name).peer_id}" in words}

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(2, *"abcd")
        await trio.sleep(steps * STEP_SECONDS / 8)  # in the middle of a ring
        for name in "abc":
            up, down = world.network.links(d, world.identity(name).peer_id)
            for link in {"up": [up], "down": [down], "both": [up, down]}[direction]:
                link.bytes_per_second = SLOW_LINE
        assert not blamed()
        await world.reach(3, *"abc")
        first = blamed()
        assert "d" in first
        assert len(first) <= (2 if direction == "down" else 1)
        for number in range(4, 6):
            await world.reach(number, *"abc")
            assert blamed() <= {"d"}
        await settled(world, *"abc")
        world.assert_one_chain(*"abc")
        for name in "abc":
            assert_account_is_true(world, name)

    simulate(world, story)


class LongSteps(NumbersTrainer):
    """Rounds are far longer than the time for which others wait."""

    step_seconds = 10 * STEP_SECONDS


class FourTimesLongSteps(NumbersTrainer):
    step_seconds = 4 * LongSteps.step_seconds


@pytest.mark.long
def test_the_data_of_a_member_that_is_four_times_slower_go_to_others(tmp_path: Path) -> None:
    """It has a part in three eighths of each round's steps, and data count from a half on."""
    steps = 8
    world = World(
        tmp_path, seed=7, codec="distro", num_shards=10, inner_steps=steps, gather_seconds=20.0
    )
    bound = named_tokens_max(decode_manifest(world.signed.manifest))

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", [], LongSteps)
        await nursery.start(world.run, "c", ["a"], LongSteps)
        await nursery.start(world.run, "b", ["a"], FourTimesLongSteps)
        await world.reach(20, *"abc", seconds=400.0)
        slow = [tokens_of(world, header, "b") for header in headers_of(world, "a")[2:]]
        assert max(slow) < steps * STEP_TOKENS / 2
        assert sum(slow) > bound
        state = world.participant("b").context.work.account.state
        assert 0 < max(num_tokens(offer.spans) for offer in state.offers) <= bound
        for name in "abc":
            assert world.participant(name).context.swarm.num_banned == 0
            assert world.participant(name).context.feed.epoch_progress().epoch >= 1

    simulate(world, story)
