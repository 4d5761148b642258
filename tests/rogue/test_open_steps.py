"""Members of a run of shared steps with `trust = "open"`: some replace the parts of others, and one
sends updates that oppose all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from gossamer.node.base.settings.settings import Settings
from gossamer.node.modes.ring_steps import RingSteps
from gossamer.node.modes.shared_steps import SharedStepRunner
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.manifest import Manifest, Trust
from tests.rogue.test_catalogue import count
from tests.rogue.test_set_audits import lying_steps, others_changed
from tests.rogue.test_sum_audits import HONEST, LIAR, forge, lived
from tests.support.measured import measured
from tests.support.node_world import NumbersTrainer, World, simulate, target_of
from tests.support.noted_offences import noted_offences

ROUNDS = 6


@contextmanager
def replacing(me: PeerId, where: str) -> Iterator[None]:
    """In this context the node with that id turns the signs of all others, which it passes on or
    finishes with. Their signatures stay beside what it sends."""

    def lie(own: SharedStepRunner, made: RingSteps) -> None:
        coder, position = own._payloads.coder, made._position

        def forged(chunk: int, payload: Buffer, _num_members: int) -> Buffer:
            size, signs = coder.chunk_bytes(chunk), coder.coders[chunk % coder.num_chunks]

            def turned(block: memoryview) -> Buffer:
                part, tail = block[:size], block[size:]
                if not len(tail):  # one that abstains has less
                    return block
                update = signs.decode(part)
                return signs.encode(replace(update, is_positive=~update.is_positive)) + bytes(tail)

            return others_changed(payload, position, turned)

        forge(made, forged, where)

    with lying_steps(me, lie):
        yield


@contextmanager
def silencing(me: PeerId, where: str) -> Iterator[None]:
    """In this context the node with that id makes all others abstain."""

    def lie(own: SharedStepRunner, made: RingSteps) -> None:
        coder, position = own._payloads.coder, made._position

        def forged(chunk: int, payload: Buffer, _num_members: int) -> Buffer:
            size = coder.chunk_bytes(chunk)
            return others_changed(payload, position, lambda block: block[size:])

        forge(made, forged, where)

    with lying_steps(me, lie):
        yield


def is_banned(world: World) -> bool:
    return any(count(world, name, "bans", "forged") for name in HONEST)


@pytest.mark.parametrize("step_chunks", [1, 3])
@pytest.mark.parametrize("where", ["sums", "averages"])
@pytest.mark.parametrize("lies", [replacing, silencing])
def test_what_a_member_did_not_sign_is_the_offence_of_who_sends_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lies: Callable[[PeerId, str], AbstractContextManager[None]],
    where: str,
    step_chunks: int,
) -> None:
    """Among members that trust each other it is found rounds later, and the model keeps the harm
    (`test_set_audits`)."""
    offences = noted_offences(monkeypatch)
    world = lived(
        tmp_path,
        is_banned,
        codec="distro",
        trust="open",
        step_chunks=step_chunks,
        where=where,
        lies=lies,
    )
    assert is_banned(world)
    assert {peer for peer, _ in offences} == {world.identity(LIAR).peer_id}
    assert {error.reason for _, error in offences} == {"forged"}


class Common(NumbersTrainer):
    """All nodes go to one target, so their signs agree."""

    def __init__(self, manifest: Manifest, settings: Settings, optimizer_path: str) -> None:
        super().__init__(manifest, settings, optimizer_path)
        self._target = target_of(Path("one/trainer/for_all"), self.base.size)


class Against(Common):
    """It sends the opposite of what it should."""

    async def _share(self, round_number: int, deadline: float) -> None:
        true, self._target = self._target, 2 * self.base - self._target
        await super()._share(round_number, deadline)
        self._target = true


def left_out(root: Path, trust: Trust, step_chunks: int) -> tuple[World, dict[str, int]]:
    """A swarm of three honest members and one that signs against them, and how many warnings the
    honest ones logged about each peer."""
    world = World(root, seed=37, codec="distro", trust=trust, step_chunks=step_chunks)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), Common)
        for name in HONEST[1:]:
            await nursery.start(world.run, name, ["a"], Common)
        await nursery.start(world.run, LIAR, ["a"], Against)
        await world.reach(1, *HONEST, LIAR)
        await world.reach(world.round("a") + ROUNDS, *HONEST)
        world.assert_one_chain(*HONEST)
        # It is no offence: the rule finds honest members now and then.
        for name in HONEST:
            offences = world.participant(name).context.swarm.admission.offences
            assert not offences.is_banned(world.identity(LIAR).peer_id)

    with capture_logs() as lines:
        simulate(world, story)
    warned: dict[str, int] = {}
    for line in lines:
        if line["event"].startswith("a member's updates oppose most others"):
            warned[line["peer"]] = warned.get(line["peer"], 0) + 1
    return world, warned


@pytest.mark.long
@pytest.mark.parametrize("step_chunks", [1, 3])
def test_who_signs_against_the_others_has_no_part_in_the_steps(
    tmp_path: Path, step_chunks: int
) -> None:
    world, warned = left_out(tmp_path, "open", step_chunks)
    measured(f"warnings of {len(HONEST)} nodes in {ROUNDS} rounds: {warned}")
    liar = short(world.identity(LIAR).peer_id)
    assert [*warned] == [liar]
    assert warned[liar] >= (ROUNDS - 2) * (len(HONEST) - 1)


def test_among_members_that_trust_each_other_every_part_counts(tmp_path: Path) -> None:
    _, warned = left_out(tmp_path, "members", 1)
    assert warned == {}
