"""A member that replaces the records of others in the sets that it passes on (`sparse`, `distro`).

Without audits it sets what the model learns, and its sets are signed by honest finishers. Its own
record in them is the one that it opens. Nobody else is blamed, also while members crash and come
back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import trio

from gossamer.node.modes.pending_work import Contributions
from gossamer.node.modes.ring_steps import RingSteps
from gossamer.node.modes.shared_steps import SharedStepRunner
from gossamer.node.modes.sync_mode import Contribution
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.contributions import add_record, split
from gossamer.protocol.codecs.payloads import SetPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import BLOCK_BYTES_MAX
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from tests.rogue.test_catalogue import count
from tests.rogue.test_sum_audits import (
    FIRST_LIE,
    FORGED_VALUE,
    HONEST,
    LIAR,
    forge,
    lived,
    lying,
    sits_out,
)
from tests.support.node_world import (
    SUMS_TOP_K,
    World,
    simulate,
    start,
)
from tests.support.noted_offences import noted_offences
from tests.support.sum_verdicts import num_audits_due, verdicts_of

pytestmark = pytest.mark.usefixtures("quiet")

MODES: dict[str, dict[str, Any]] = {
    "sets": {"codec": "sparse"},
    "sets that become sums": {"codec": "sparse", "top_k": SUMS_TOP_K},
    "shared steps": {"codec": "distro"},
    "shared steps in chunks": {"codec": "distro", "step_chunks": 3},
}

_follow = SharedStepRunner.follow


def others_changed(payload: Buffer, me: int, change: Callable[[memoryview], Buffer]) -> bytes:
    """A set in which the records of all members but one are changed."""
    result = b""
    for record in split(payload, None, BLOCK_BYTES_MAX):
        mine = record.position == me
        result = add_record(result, record.position, record.block if mine else change(record.block))
    return result


def others_replaced(payload: Buffer, me: int, block: Buffer) -> bytes:
    """A set in which all members but one have the same record."""
    return others_changed(payload, me, lambda _: block)


@contextmanager
def lying_steps(me: PeerId, lie: Callable[[SharedStepRunner, RingSteps], None]) -> Iterator[None]:
    """In this context `lie` changes each ring of shared steps of the node with that id, from the
    round `FIRST_LIE` on."""

    def follow(self: SharedStepRunner, ring: Ring) -> RingSteps:
        made = _follow(self, ring)
        if self._me == me and ring.roster.round >= FIRST_LIE:
            lie(self, made)
        return made

    with patch.object(SharedStepRunner, "follow", follow):
        yield


@contextmanager
def liar(me: PeerId, where: str) -> Iterator[None]:
    """In this context the node with that id replaces what it passes on, or what it finishes."""

    def lie(own: Contributions, made: Contribution, plan: ChunkPlan, ring: Ring) -> None:
        payloads, position = own._payloads, ring.members.index(me)
        assert isinstance(payloads, SetPayloads)

        def forged(chunk: int, payload: Buffer, num_members: int) -> Buffer:
            values = np.full(plan.elements_of(chunk), FORGED_VALUE, np.float32)
            if num_members <= payloads.set_members_max:
                return others_replaced(payload, position, payloads.coder.encode(values))
            assert payloads.sums is not None
            return payloads.sums.of_sum(num_members if where == "sums" else 1).encode(values)

        forge(made, forged, where)

    def lie_in_steps(own: SharedStepRunner, made: RingSteps) -> None:
        coder, position = own._payloads.coder, made._position

        def forged(chunk: int, payload: Buffer, num_members: int) -> Buffer:
            mine = made._given.get(chunk)
            if mine is None or not mine.update:
                return payload
            signs = coder.coders[chunk % coder.num_chunks]
            update = signs.decode(mine.update)
            opposite = signs.encode(replace(update, is_positive=~update.is_positive))
            return others_replaced(payload, position, opposite)

        forge(made, forged, where)

    with lying(me, lie), lying_steps(me, lie_in_steps):
        yield


def is_banned_by_an_auditor(world: World) -> bool:
    return any(count(world, name, "bans", "replaced") for name in HONEST)


@pytest.mark.parametrize("where", ["sums", "averages"])
@pytest.mark.parametrize("mode", MODES)
def test_a_liar_that_opens_its_chunks_is_banned_by_the_auditor(
    tmp_path: Path, mode: str, where: str
) -> None:
    lived(tmp_path, is_banned_by_an_auditor, where=where, lies=liar, **MODES[mode])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["sets", "shared steps"])
def test_a_liar_that_opens_nothing_sits_out(tmp_path: Path, mode: str) -> None:
    def is_over(world: World) -> bool:
        return any(sits_out(world, name, LIAR) for name in HONEST)

    world = lived(tmp_path, is_over, opens=False, lies=liar, **MODES[mode])
    assert all(not verdict.is_replaced for verdict in verdicts_of(world, "a"))


@pytest.mark.parametrize("mode", MODES)
def test_honest_members_are_looked_at_and_nobody_is_blamed(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path, seed=29, **MODES[mode])

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, HONEST)
        await world.reach(16, *HONEST)
        world.assert_one_chain(*HONEST)

    simulate(world, story)
    audits = audits_of(world, HONEST)
    assert audits["good"] >= num_audits_due(world, HONEST) > 8
    assert audits["poor"] == audits["undecided"] == 0


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_members_that_crash_and_come_back_are_not_blamed(tmp_path: Path, mode: str) -> None:
    world = World(tmp_path, seed=31, **MODES[mode])

    async def story(nursery: trio.Nursery) -> None:
        names = HONEST + LIAR
        await start(world, nursery, names)
        await world.reach(3, *names)
        for victim in "dcdbd":
            staying = [name for name in names if name != victim]
            await trio.sleep(world.network.random.uniform(0.0, 1.0))
            world.crash(victim)
            await world.reach(world.round("a") + 2, *staying)
            nursery.start_soon(world.run, victim, ["a"])
            await world.reach(world.round("a") + 3, *names)
        assert all(not verdicts_of(world, name) for name in names)
        for name in names:
            offences = world.participant(name).context.swarm.admission.offences
            assert not any(offences.is_banned(world.identity(other).peer_id) for other in names)

    simulate(world, story)
    assert audits_of(world, "a")["good"] > 0


def audits_of(world: World, names: str) -> dict[str, float]:
    """How often the nodes came to each verdict."""
    audits = {"good": 0.0, "poor": 0.0, "undecided": 0.0}
    for name in names:
        registry = world.nodes[name].first.metrics.registry
        for verdict in audits:
            value = registry.get_sample_value("gossamer_audits_total", {"verdict": verdict})
            audits[verdict] += value or 0.0
    return audits


def spoil(made: Contribution, position: int) -> None:
    """From now on the others' records in the sets that a contribution passes on cannot be decoded.

    Its node would end if it took such a set itself, so it finishes sets with its own record in the
    place of theirs.

    Args:
        position: of its node in the ring.
    """

    def spoilt(_chunk: int, payload: Buffer, _num_members: int) -> Buffer:
        return others_changed(payload, position, lambda block: b"\xff" * len(block))

    def usable(_chunk: int, payload: Buffer, _num_members: int) -> Buffer:
        records = split(payload, None, BLOCK_BYTES_MAX)
        mine = [record.block for record in records if record.position == position]
        return others_replaced(payload, position, mine[0]) if mine else payload

    forge(made, spoilt, "sums")
    forge(made, usable, "averages")


@contextmanager
def spoiler(me: PeerId, _where: str) -> Iterator[None]:
    """In this context the node with that id passes on records of others that cannot be decoded."""

    def lie(_own: Contributions, made: Contribution, _plan: ChunkPlan, ring: Ring) -> None:
        spoil(made, ring.members.index(me))

    def lie_in_steps(_own: SharedStepRunner, made: RingSteps) -> None:
        spoil(made, made._position)

    with lying(me, lie), lying_steps(me, lie_in_steps):
        yield


@pytest.mark.parametrize("mode", [mode for mode in MODES if "sums" not in mode])
def test_a_member_that_spoils_the_records_of_others_is_blamed_by_its_receivers(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that adds its own record to a set finds the fault. Once nobody looked before the
    average: its honest finisher was blamed, and the node of a shared step's finisher ended."""
    offences = noted_offences(monkeypatch)

    def is_over(world: World) -> bool:
        """In a ring of two a member passes on its own record alone, and the auditor of a set that
        it finished there may be first."""
        is_found = any(error.reason == "malformed" for _, error in offences)
        return is_found and is_banned_by_an_auditor(world)

    world = lived(tmp_path, is_over, lies=spoiler, **MODES[mode])
    assert {peer for peer, _ in offences} == {world.identity(LIAR).peer_id}
