"""A member that takes part in each ring and replaces the sums that it passes on.

Its averages are signed by honest finishers, and without audits it sets the model for good. The
auditors find it, whether it opens its chunks or not, and blame nobody else.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import trio

from gossamer.node.modes.pending_work import Contributions, FinishedSum
from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.network.frames import asked, receive_frame
from gossamer.node.network.transport import Stream
from gossamer.node.rounds.opened_chunks import OPENING_SECONDS, KeptRound
from gossamer.node.rounds.sum_auditing import SumAuditing
from gossamer.node.storage.work import kept_parts
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.auditing.sum_audits import is_auditor
from gossamer.protocol.rounds.actions import RingAction, Send
from gossamer.protocol.rounds.inventory import Average, worth
from gossamer.protocol.rounds.ring.ring import RingReduce
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.opening_messages import (
    OPENING_PROTOCOL,
    STEPS_MAX,
    Closed,
    Open,
    Opened,
    decode_answer,
)
from tests.rogue.test_catalogue import count
from tests.support.measured import measured
from tests.support.node_world import (
    SlowTrainer,
    World,
    newest_header,
    simulate,
    start,
)
from tests.support.sum_verdicts import (
    auditors_after,
    num_audits_due,
    secrets_after,
    verdicts_of,
)

pytestmark = pytest.mark.usefixtures("quiet")

HONEST, LIAR = "abc", "d"
FIRST_LIE = 4
"""Round from which on the liar lies."""

FORGED_VALUE = 1000.0
"""Honest parameters stay below 10."""

FLOODED_ROUNDS = 30
"""Rounds in which honest members are named if they forget what they have signed."""

KEPT_WAITING_ROUNDS = 60
"""Rounds in which honest members are named if they are asked for what they have forgotten."""

SLOW_STEPS = 60
"""Inner steps of a round that takes about half a minute with a `SlowTrainer`."""

AUDITS_WAIT = 40
"""Rounds in which the honest members have found the liar: each audits one in four."""

_contribution = Contributions.contribution


def forge(made: Contribution, forged: Callable[[int, Buffer, int], Buffer], where: str) -> None:
    """From now on a contribution gives (chunk, what an honest member would give, members in it) to
    `forged`, and what comes of that to the ring.

    Args:
        where: it does so with what it passes on, or with what it finishes.
    """
    name = "add" if where == "sums" else "finish_average"
    own = getattr(made, name)

    def lied(chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        honest = own(chunk, payload, mask)
        return forged(chunk, honest, mask.bit_count() + (where == "sums"))

    setattr(made, name, lied)


@contextmanager
def lying(
    me: PeerId, lie: Callable[[Contributions, Contribution, ChunkPlan, Ring], None]
) -> Iterator[None]:
    """In this context `lie` changes each contribution of the node with that id, from the round
    `FIRST_LIE` on."""

    def contribution(
        self: Contributions, pending: FloatVector, plan: ChunkPlan, ring: Ring, node: PeerId
    ) -> Contribution:
        made = _contribution(self, pending, plan, ring, node)
        if node == me and ring.roster.round >= FIRST_LIE:
            lie(self, made, plan, ring)
        return made

    with patch.object(Contributions, "contribution", contribution):
        yield


@contextmanager
def liar(me: PeerId, where: str) -> Iterator[None]:
    """In this context the node with that id replaces what it passes on, or what it finishes."""

    def lie(own: Contributions, made: Contribution, plan: ChunkPlan, _ring: Ring) -> None:
        payloads = own._payloads
        assert isinstance(made, FinishedSum)
        assert isinstance(payloads, SumPayloads)

        def forged(chunk: int, _honest: Buffer, num_members: int) -> Buffer:
            coder = payloads.coder.of_sum(num_members) if where == "sums" else payloads.coder
            encoded: Buffer = coder.encode(
                np.full(plan.elements_of(chunk), FORGED_VALUE, np.float32)
            )
            return encoded

        forge(made, forged, where)

    with lying(me, lie):
        yield


def lived(
    root: Path,
    is_over: Callable[[World], bool],
    *,
    codec: str = "fp32",
    opens: bool = True,
    where: str = "sums",
    lies: Callable[[PeerId, str], AbstractContextManager[None]] = liar,
    **others: Any,
) -> World:
    """A swarm of three honest members and a liar, until something has come about.

    Args:
        opens: whether the liar opens its chunks.
        where: it replaces what it passes on, or what it finishes.
        lies: the context in which the node with that id is the liar.
        others: of the world.
    """
    world = World(root, seed=23, codec=codec, **others)
    names = HONEST + LIAR

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.reach(2, *HONEST)
        if not opens:
            open_nothing(world)
        await world.reach(FIRST_LIE, *HONEST)
        last = FIRST_LIE + AUDITS_WAIT
        await world.until(
            lambda: is_over(world) or world.round("a") >= last, seconds=300.0, look_seconds=0.05
        )
        assert is_over(world), f"not found within {AUDITS_WAIT} rounds"
        assert_only_the_liar_is_blamed(world)
        kind = ", ".join([codec, *(f"{name} {value}" for name, value in others.items()), where])
        measured(f"{kind}, opens {opens}: {world.round('a') - FIRST_LIE} rounds")

    with lies(world.identity(LIAR).peer_id, where):
        simulate(world, story)
    return world


def open_nothing(world: World) -> None:
    """From now on the liar has no chunk for any auditor."""

    async def kept_for(head: Digest) -> None:
        return None

    sums = world.participant(LIAR).audits
    assert isinstance(sums, SumAuditing)
    sums.opened_chunks._kept_for = kept_for  # type: ignore[method-assign]


async def liar_among_slow(world: World, nursery: trio.Nursery) -> SumAuditing:
    """Starts four nodes that train slowly, and returns the audits of the liar once rounds go on."""
    await nursery.start(world.run, "a", [], SlowTrainer)
    for name in "bcd":
        await nursery.start(world.run, name, ["a"], SlowTrainer)
    await world.reach(2, *HONEST)
    sums = world.participant(LIAR).audits
    assert isinstance(sums, SumAuditing)
    return sums


@pytest.mark.long
@pytest.mark.parametrize("answer_seconds", [math.inf, OPENING_SECONDS - 5.0])
def test_a_member_that_keeps_its_auditors_waiting_makes_no_honest_member_look_guilty(
    tmp_path: Path, answer_seconds: float
) -> None:
    """Two questions that it leaves without an answer, or one that it answers as late as it may,
    take as long as 25 rounds, and the others have long forgotten the audited one then."""
    world = World(tmp_path, seed=23, codec="fp32")
    found = set[str]()

    async def story(nursery: trio.Nursery) -> None:
        opened_chunks = (await liar_among_slow(world, nursery)).opened_chunks

        async def kept_for(head: Digest) -> Any:
            kept = opened_chunks._kept.get(head)
            await trio.sleep(answer_seconds)
            return kept

        opened_chunks._kept_for = kept_for  # type: ignore[method-assign]

        def is_over() -> bool:
            found.update(each.member for name in HONEST for each in verdicts_of(world, name))
            return world.round("a") >= KEPT_WAITING_ROUNDS

        await world.until(is_over, seconds=600.0, look_seconds=0.2)

    simulate(world, story)
    assert found == {world.identity(LIAR).peer_id}


@pytest.mark.long
def test_a_liar_that_ends_its_connection_to_each_auditor_sits_out(tmp_path: Path) -> None:
    """It opens nothing, and is back some seconds later. Once nothing could be told of it. Rounds
    take longer than some questions."""
    world = World(tmp_path, seed=23, codec="fp32", inner_steps=SLOW_STEPS)

    async def story(nursery: trio.Nursery) -> None:
        sums = await liar_among_slow(world, nursery)

        async def answer(stream: Stream, kept: KeptRound | None, question: Open) -> None:
            await world.participant(LIAR).context.transport.disconnect(stream.peer_id)

        sums.opened_chunks._answer = answer  # type: ignore[method-assign]
        last = FIRST_LIE + AUDITS_WAIT

        def is_found() -> bool:
            return any(sits_out(world, name, LIAR) for name in HONEST)

        await world.until(
            lambda: is_found() or world.round("a") >= last, seconds=900.0, look_seconds=0.2
        )
        assert is_found(), f"not found in {AUDITS_WAIT} rounds"
        assert_only_the_liar_is_blamed(world)

    with liar(world.identity(LIAR).peer_id, "sums"):
        simulate(world, story)


def sits_out(world: World, name: str, other: str) -> bool:
    admission = world.participant(name).context.swarm.admission
    return admission.partners.poor_work.sits_out(
        world.round(name) + 1, world.identity(other).peer_id
    )


def assert_only_the_liar_is_blamed(world: World) -> None:
    guilty = world.identity(LIAR).peer_id
    for name in HONEST:
        assert all(verdict.member == guilty for verdict in verdicts_of(world, name))
        assert not any(sits_out(world, name, other) for other in HONEST)
        others = [world.identity(other).peer_id for other in HONEST]
        offences = world.participant(name).context.swarm.admission.offences
        assert not any(map(offences.is_banned, others))


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_a_liar_that_opens_its_chunks_is_banned_by_the_auditor(tmp_path: Path, codec: str) -> None:
    def is_over(world: World) -> bool:
        return any(count(world, name, "bans", "replaced") for name in HONEST)

    lived(tmp_path, is_over, codec=codec)


def test_a_finisher_that_replaces_an_average_is_banned_by_the_auditor(tmp_path: Path) -> None:
    def is_over(world: World) -> bool:
        return any(count(world, name, "bans", "replaced") for name in HONEST)

    lived(tmp_path, is_over, where="averages")


def test_a_liar_that_opens_nothing_sits_out(tmp_path: Path) -> None:
    def is_over(world: World) -> bool:
        return any(sits_out(world, name, LIAR) for name in HONEST)

    world = lived(tmp_path, is_over, opens=False)
    assert all(not verdict.is_replaced for verdict in verdicts_of(world, "a"))


def test_a_chunk_is_opened_for_its_auditors_alone(tmp_path: Path) -> None:
    """They show their own secret. Nobody else's fits their `Ready`, and an invented one neither."""
    world = World(tmp_path, seed=29)
    answers: dict[bool, set[type]] = {True: set(), False: set()}
    with_others_secrets = set[type]()

    async def ask(asker: str, member: str, head: Digest, secret: bytes) -> Opened | Closed:
        transport = world.participant(asker).context.transport
        peer = world.identity(member).peer_id
        question = to_msgpack(Open(head, secret, with_part=True))
        async with asked(transport, peer, OPENING_PROTOCOL, question) as stream:
            message, part = await receive_frame(stream)
        answer = decode_answer(message)
        assert bool(part) == isinstance(answer, Opened)
        return answer

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, HONEST)
        for number in range(8, 12):
            await world.reach(number, *HONEST)
            newest = newest_header(world, "a")
            await world.reach(newest.round, *HONEST)
            auditors = auditors_after(world, HONEST, newest)
            secrets = secrets_after(world, HONEST, newest)
            invented = next(
                secret
                for secret in map(digest_of, (bytes([each]) for each in range(256)))
                if is_auditor(newest.digest, secret, len(HONEST))
            )
            for asker, member in permutations(HONEST, 2):
                said = await ask(asker, member, newest.digest, secrets[asker])
                answers[asker in auditors].add(type(said))
                for secret in {invented, *(secrets[name] for name in auditors if name != asker)}:
                    said = await ask(asker, member, newest.digest, secret)
                    with_others_secrets.add(type(said))

    simulate(world, story)
    assert answers == {True: {Opened}, False: {Closed}}
    assert with_others_secrets == {Closed}


def test_honest_members_add_up_and_blame_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, seed=29, codec="int8")

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, HONEST)
        await world.reach(16, *HONEST)
        world.assert_one_chain(*HONEST)

    simulate(world, story)
    audits = {"good": 0.0, "poor": 0.0, "undecided": 0.0}
    for name in HONEST:
        registry = world.nodes[name].first.metrics.registry
        for verdict in audits:
            value = registry.get_sample_value("gossamer_audits_total", {"verdict": verdict})
            audits[verdict] += value or 0.0
    assert audits["good"] >= num_audits_due(world, HONEST) > 8
    assert audits["poor"] == audits["undecided"] == 0


def test_nodes_whose_disks_take_nothing_open_their_newest_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep their parts in memory, and of one round alone: the parts are as large as the
    model. Otherwise a full disk would make honest members sit out."""

    def full(_file: object, _parts: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_parts.KeptParts, "_write", full)
    world = World(tmp_path, seed=29)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, HONEST)
        await world.reach(12, *HONEST)

    simulate(world, story)
    for name in HONEST:
        sums = world.participant(name).audits
        assert isinstance(sums, SumAuditing)
        assert len(sums.opened_chunks._kept) == 1
        assert not verdicts_of(world, name)
    registries = [world.nodes[name].first.metrics.registry for name in HONEST]
    good = [
        each.get_sample_value("gossamer_audits_total", {"verdict": "good"}) for each in registries
    ]
    assert sum(filter(None, good)) > 4


@contextmanager
def flooding(me: PeerId) -> Iterator[None]:
    """In this context the node with that id sends its successor sums of ever more members of one
    chunk before it passes the chunk's average on."""
    pass_on, chunks = RingReduce._pass_on, WeakKeyDictionary[RingReduce, int]()

    def flood(self: RingReduce, peer: PeerId, chunk: int, average: Average) -> list[RingAction]:
        actions, members = pass_on(self, peer, chunk, average), self._members.members
        if members[self._members.position] != me or peer != self.successor or not actions:
            return actions
        successor = members.index(peer)
        on_the_way = (successor - average.finisher - 1) % len(members) + 1
        real = sum(1 << (successor - step) % len(members) for step in range(on_the_way))
        better = [
            mask
            for mask in range(1, 1 << len(members))
            if mask >> successor & 1 and worth(mask) > worth(real)
        ]
        if len(better) < STEPS_MAX or chunks.setdefault(self, chunk) != chunk:
            return actions
        digest, payload = average.digest, average.payload
        sums = [
            Send(peer, chunk, mask, None, payload, signature=self._sign_sum(chunk, mask, digest))
            for mask in sorted(better, key=worth)[: STEPS_MAX + 6]
        ]
        return [*sums, *actions]

    with patch.object(RingReduce, "_pass_on", flood):
        yield


@pytest.mark.long
def test_a_flood_of_sums_makes_no_honest_member_look_guilty(tmp_path: Path) -> None:
    world = World(tmp_path, seed=23, codec="fp32")
    honest, found = "abcefgh", list[str]()

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, honest + LIAR)
        await world.reach(2, *honest)

        def is_over() -> bool:
            found.extend(each.member for name in honest for each in verdicts_of(world, name))
            return world.round("a") >= FLOODED_ROUNDS

        await world.until(is_over, seconds=600.0, look_seconds=0.2)

    liar_id = world.identity(LIAR).peer_id
    with flooding(liar_id):
        simulate(world, story)
    assert {*found} <= {liar_id}
