"""A value that no codec writes in a node's own work: it costs that work, and nothing else.

One flipped bit of a memory without error correction is enough for such a value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from gossamer.node.modes.pending_work import _PendingRound
from gossamer.node.modes.sync_mode import Promise
from gossamer.protocol.accounting.work_records import OUT_OF_RANGE
from tests.support.node_world import (
    NumbersTrainer,
    World,
    assert_account_is_true,
    assert_every_token_counted_once,
    credited,
    headers_of,
    settled,
    simulate,
    start,
)
from tests.support.noted_offences import NotedOffences

SPOILT = (3e30, -3e30, 1e25, float("inf"), float("nan"))
"""2**101 and more, what lies between the bound of own work and that of the codecs, no number."""
MODES: list[dict[str, Any]] = [
    *({"codec": codec} for codec in ("fp32", "fp16", "int8", "int4", "sparse")),
    *({"codec": codec, "overlap": True} for codec in ("fp16", "sparse")),
    {"codec": "int4", "fragments": 2},
    {"codec": "fp16", "fragments": 2, "overlap": True},
    {"codec": "fp16", "displacement": 1.4},
]


class SpoilingTrainer(NumbersTrainer):
    next_is_spoilt = False


def trainer_that_spoils(value: float, *rounds: int) -> type[SpoilingTrainer]:
    """A trainer with one such value in these of its rounds, counted from 1: in the work, and in the
    local parameters, from which it would go on."""

    class Spoiling(SpoilingTrainer):
        num_collected = 0

        async def collect(self) -> bool:
            type(self).num_collected += 1
            is_next = self.next_is_spoilt and self._work.any()
            if self.num_collected in rounds or is_next:
                type(self).next_is_spoilt = False
                assert self._local is not None
                self._work[self._work.size // 2] = value
                self._local[self._local.size // 2] = -value
            return await super().collect()

    return Spoiling


def assert_no_trace(world: World, *names: str) -> None:
    """The state has no trace of the value, and all have the same one."""
    world.assert_one_chain(*names)
    for name in names:
        assert np.abs(world.participant(name).context.committed.parameters).max() < 100.0
        assert_account_is_true(world, name)


def assert_all_is_well(world: World, *names: str) -> None:
    """Likewise, and all data was taken once: in a run that was never split."""
    assert_no_trace(world, *names)
    assert_every_token_counted_once(headers_of(world, names[0]))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_round_whose_work_has_such_a_value_is_dropped_and_no_peer_is_blamed(
    tmp_path: Path, offences: NotedOffences, mode: dict[str, Any]
) -> None:
    world = World(tmp_path, seed=30, wait_for_peers=2, **mode)

    async def story(nursery: trio.Nursery) -> None:
        for name, trainer in zip(
            "abc", (NumbersTrainer, NumbersTrainer, trainer_that_spoils(3e30, 3)), strict=True
        ):
            await nursery.start(world.run, name, ["a"] if name != "a" else [], trainer)
        work = None
        await world.reach(1, *"abc")
        work = world.participant("c").context.work
        await world.until(lambda: work.account.state.dropped.get(OUT_OF_RANGE, 0) > 0)
        before = credited(world, "c")
        await world.reach(world.round("a") + 5, *"abc")
        await settled(world, *"abc")
        assert credited(world, "c") > before, "its later work counts again"
        assert set(work.account.state.dropped) == {OUT_OF_RANGE}
        assert_all_is_well(world, *"abc")

    simulate(world, story)
    assert offences == []


@pytest.mark.parametrize("value", SPOILT)
@pytest.mark.parametrize("mode", MODES[:5], ids=str)
def test_a_node_alone_goes_on_after_such_a_value(
    tmp_path: Path, offences: NotedOffences, mode: dict[str, Any], value: float
) -> None:
    world = World(tmp_path, seed=31, **mode)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", [], trainer_that_spoils(value, 1, 3))
        await world.reach(5, "a")
        await settled(world, "a")
        dropped = world.participant("a").context.work.account.state.dropped
        assert set(dropped) == {OUT_OF_RANGE}
        metric = world.nodes["a"].first.metrics.registry.get_sample_value(
            "gossamer_tokens_dropped_total", {"reason": OUT_OF_RANGE}
        )
        assert metric == dropped[OUT_OF_RANGE] > 0
        assert_all_is_well(world, "a")

    simulate(world, story)
    assert offences == []


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_such_a_value_in_work_that_is_carried_costs_what_is_carried(
    tmp_path: Path, offences: NotedOffences, mode: dict[str, Any]
) -> None:
    """A bit of the host's memory flips while the node trains."""
    world = World(tmp_path, seed=32, wait_for_peers=2, **mode)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(2, *"abc")
        c = world.participant("c")
        await world.until(lambda: c.progress.phase == "training" and c.progress.inner_step == 1)
        c.context.trainer.pending[7] = 3e30
        await world.until(lambda: c.context.work.account.state.dropped.get(OUT_OF_RANGE, 0) > 0)
        before = credited(world, "c")
        await world.reach(world.round("a") + 5, *"abc")
        await settled(world, *"abc")
        assert credited(world, "c") > before
        assert_all_is_well(world, *"abc")

    simulate(world, story)
    assert offences == []


@pytest.mark.parametrize("mode", [mode for mode in MODES if len(mode) > 1][:4], ids=str)
def test_after_a_spoilt_round_earlier_work_is_handed_in_and_the_trainer_starts_from_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any]
) -> None:
    """Overlap and fragments go on from the trainer's own parameters, which have the value too."""
    world = World(tmp_path, seed=35, **mode)
    missed_round = 4
    carried: list[int] = []

    def has_work(work: _PendingRound) -> bool:
        """The first try at this round hands nothing in; before the second the value comes."""
        tokens = work._trainings.work.account.carried
        if work._machine.number == missed_round and not carried:
            carried.append(tokens)
            trainer.next_is_spoilt = True
            return False
        return tokens > 0

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", [], trainer)
        await world.reach(missed_round, "a")
        await settled(world, "a")
        account = world.participant("a").context.work.account
        dropped = account.state.dropped.copy()
        assert dropped[OUT_OF_RANGE] > 0
        assert headers_of(world, "a")[-1].tokens == carried[0] > 0, "and nothing that was dropped"
        await world.reach(missed_round + 6, "a")
        await settled(world, "a")
        assert account.state.dropped == dropped, "one round was spoilt, and none after it"
        assert_no_trace(world, "a")

    trainer = trainer_that_spoils(3e30)
    monkeypatch.setattr(_PendingRound, "has_work", property(has_work))
    simulate(world, story)


@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_such_a_value_that_comes_after_the_last_look_costs_the_part_in_the_ring(
    tmp_path: Path,
    offences: NotedOffences,
    monkeypatch: pytest.MonkeyPatch,
    mode: dict[str, Any],
    names: str,
) -> None:
    """Nothing can be encoded with it, so the node leaves the ring. The others go on."""
    world = World(tmp_path, seed=33, wait_for_peers=len(names) - 1, **mode)
    last, spoilt_round = names[-1], 3
    promise = _PendingRound.promise

    async def promise_and_spoil(work: _PendingRound) -> Promise:
        promised = await promise(work)
        me, number = work._mode.me, work._machine.number
        if me == world.identity(last).peer_id and number == spoilt_round:
            work._trainings.trainer.pending[:] = 3e30
        return promised

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.until(lambda: world.participant_or_none(last) is not None)
        work = world.participant(last).context.work
        await world.until(lambda: work.account.state.dropped.get(OUT_OF_RANGE, 0) > 0)
        monkeypatch.setattr(_PendingRound, "promise", promise)
        before = credited(world, last)
        await world.reach(world.round(names[0]) + 5, *names)
        await settled(world, *names)
        assert credited(world, last) > before
        assert_all_is_well(world, *names)

    monkeypatch.setattr(_PendingRound, "promise", promise_and_spoil)
    simulate(world, story)
    assert offences == []


@pytest.mark.long
def test_a_shared_step_of_which_a_trainer_has_nothing_goes_on_without_it(
    tmp_path: Path, offences: NotedOffences
) -> None:
    """The value is in the trainer's momentum with shared steps, and the momentum begins anew."""
    world = World(tmp_path, seed=34, codec="distro", wait_for_peers=2)

    class Skipping(NumbersTrainer):
        num_offers = 0

        async def _share(self, round_number: int, deadline: float) -> None:
            type(self).num_offers += 1
            if self.num_offers % 3:
                await super()._share(round_number, deadline)

    async def story(nursery: trio.Nursery) -> None:
        for name, trainer in zip("abc", (NumbersTrainer, NumbersTrainer, Skipping), strict=True):
            await nursery.start(world.run, name, ["a"] if name != "a" else [], trainer)
        await world.reach(8, *"abc")
        await settled(world, *"abc")
        world.assert_one_chain(*"abc")
        for name in "abc":
            assert_account_is_true(world, name)
        assert credited(world, "c") > 0

    simulate(world, story)
    assert offences == []
