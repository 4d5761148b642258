"""How long an auditor of sums asks a member, and whom it blames for silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport, TransportError
from gossamer.node.rounds.decisions import LINGER_SECONDS
from gossamer.node.rounds.opened_chunks import (
    KEPT_ROUNDS,
    LATE_SECONDS,
    OPENING_SECONDS,
    OpenedChunks,
    Opening,
    _Kept,
    opening_seconds,
)
from gossamer.node.rounds.sum_auditing import (
    ASKED_ROUNDS,
    RETRY_SECONDS,
    SumAuditing,
    _CannotTell,
    _Job,
    _NotOpened,
)
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.record_tree import PATH_BYTES
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.rounds.inventory import NO_DIGEST, Average
from gossamer.protocol.rounds.ring_signatures import SignedAverages
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.node_world import in_no_thread

IDENTITIES = [
    Identity.from_seed(digest_of(name)) for name in (b"auditor", b"member", b"third", b"fourth")
]
ME, MEMBER, *OTHERS = (each.peer_id for each in IDENTITIES)
HEAD = Digest(bytes(32))
ROUND, INCARNATION = 100, 7
OPENING = Opening((), b"part", b"path")


class Asking:
    """An auditor that asks one member of a round, which is connected all the time."""

    def __init__(
        self,
        *,
        own_round: int = ROUND,
        said_round: int = ROUND,
        said_head: bytes = b"unknown",
        others_round: int | None = None,
        transport: Transport | None = None,
    ) -> None:
        """
        Args:
            own_round: the newest round of the auditor.
            said_round: the newest round that the member says it has.
            said_head: its head; the auditor knows `HEAD`.
            others_round: what two others of the ring say, with a head that the auditor does not
                know; None: there are no others.
            transport: None in a test without one.
        """
        self.entry = SimpleNamespace(round=own_round)
        said = SimpleNamespace(incarnation=INCARNATION, round=said_round, head=said_head)
        other = SimpleNamespace(incarnation=INCARNATION, round=others_round, head=b"another")
        self.others = [] if others_round is None else OTHERS
        known = {MEMBER: said, **dict.fromkeys(self.others, other)}
        swarm = SimpleNamespace(
            me=ME,
            offence=None,
            membership=SimpleNamespace(known=lambda: known),
            is_connected=lambda _peer: True,
        )
        payloads, chain = SumPayloads(codec("fp32")), {HEAD}
        committed = SimpleNamespace(payloads=payloads, entry=self.entry, chain=chain)
        line = transport or SimpleNamespace(handle=lambda *_args, **_kinds: None)
        parts: list[Any] = [committed, None, swarm, line, None, in_no_thread]
        self.auditing = SumAuditing(*parts)
        self.asked_seconds: list[float] = []

    def opened(
        self,
        answer: Callable[[], Awaitable[Opening]],
        late_until: float,
        positions: Sequence[int] = (1,),
        slow_seconds: float = LATE_SECONDS,
    ) -> Opening:
        """What a member shows, in virtual time from 0 on.

        Args:
            answer: what the member makes of one question.
            late_until: until then a member may be late with the round.
            positions: members that are asked one after the other; the last one's answer counts.
            slow_seconds: a member whose answers take longer has kept its auditor waiting.
        """
        began_seconds = 0.0

        async def ask(*_args: object, **_kinds: object) -> Opening:
            self.asked_seconds.append(trio.current_time() - began_seconds)
            with trio.fail_after(OPENING_SECONDS):
                return await answer()

        async def opened() -> Opening:
            nonlocal began_seconds
            began_seconds = trio.current_time()
            job = job_until(
                began_seconds + late_until, others=self.others, slow_seconds=slow_seconds
            )
            *earlier, last = positions
            for position in earlier:
                await self.auditing._opened(job, position, with_part=False)
            return await self.auditing._opened(job, last, with_part=False)

        self.auditing._ask = ask  # type: ignore[method-assign]
        return trio.run(opened, clock=MockClock(autojump_threshold=0))


def job_until(
    late_until: float,
    answer_seconds: float = OPENING_SECONDS,
    num_elements: int = 1,
    others: Sequence[PeerId] = (),
    slow_seconds: float = LATE_SECONDS,
) -> _Job:
    ready, members = SimpleNamespace(incarnation=INCARNATION), (ME, MEMBER, *others)
    ring = SimpleNamespace(members=members, ready=(ready,) * len(members))
    signed = SimpleNamespace(ring=ring)
    average = Average(3, NO_DIGEST, 0, b"", b"")
    return _Job(
        HEAD, ROUND, 0, num_elements, average, cast(SignedAverages, signed), frozenset(),
        late_until, answer_seconds, slow_seconds,
    )  # fmt: skip


async def closed() -> Opening:
    """The member has not committed the round, and has waited for it."""
    await trio.sleep(LATE_SECONDS)
    raise TransportError("it has nothing to open")


async def silence() -> Opening:
    await trio.sleep_forever()
    raise AssertionError


def test_a_member_is_asked_as_long_as_others_bring_it_a_long_ring() -> None:
    """Its line is slow: it commits the round a minute and a half after the auditor."""
    asking = Asking()

    async def late() -> Opening:
        return OPENING if asking.asked_seconds[-1] > 90.0 else await closed()

    assert asking.opened(late, late_until=120.0) == OPENING


def test_a_member_that_opens_nothing_is_named_when_that_time_has_passed() -> None:
    asking = Asking()
    with pytest.raises(_NotOpened):
        asking.opened(closed, late_until=LINGER_SECONDS)
    assert asking.asked_seconds == [0.0, LATE_SECONDS + RETRY_SECONDS]
    asking = Asking()
    with pytest.raises(_NotOpened):
        asking.opened(closed, late_until=120.0)
    assert asking.asked_seconds[-1] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("own_round", "said_round"), [(ROUND + ASKED_ROUNDS, ROUND), (ROUND, ROUND + KEPT_ROUNDS)]
)
def test_a_member_is_not_blamed_for_a_round_that_it_may_have_forgotten(
    own_round: int, said_round: int
) -> None:
    """The auditor was busy with another member; or it was cut off, and the member is ahead."""
    asking = Asking(own_round=own_round, said_round=said_round)
    with pytest.raises(_CannotTell, match="so long ago"):
        asking.opened(closed, late_until=120.0)
    assert asking.asked_seconds == [0.0], "it may have kept the round"


def test_a_member_cannot_say_that_it_is_ahead_with_a_head_that_is_known() -> None:
    asking = Asking(said_round=ROUND + KEPT_ROUNDS, said_head=HEAD)
    with pytest.raises(_NotOpened):
        asking.opened(closed, late_until=LINGER_SECONDS)


def test_a_member_cannot_say_alone_that_it_is_ahead() -> None:
    """It could tell every auditor so, with any head, and would never be named."""
    long_ago = ROUND + ASKED_ROUNDS
    for others_round in (ROUND, long_ago - 1):
        with pytest.raises(_NotOpened):
            Asking(said_round=long_ago, others_round=others_round).opened(closed, late_until=0.0)
    with pytest.raises(_CannotTell):
        Asking(said_round=ROUND, others_round=long_ago).opened(closed, late_until=0.0)


def test_silence_counts_where_the_question_came_in_time() -> None:
    """Otherwise a member of quick rounds would keep silent until it need not answer any more."""
    asking = Asking()

    async def while_others_go_on() -> Opening:
        asking.entry.round += ASKED_ROUNDS
        return await silence()

    with pytest.raises(_NotOpened):
        asking.opened(while_others_go_on, late_until=LINGER_SECONDS)
    assert asking.asked_seconds == [0.0, OPENING_SECONDS + RETRY_SECONDS]


def test_nobody_is_asked_for_a_round_that_all_have_forgotten() -> None:
    """Each of them would wait whether that round is still to come. The auditor would miss audits in
    that time, and a member that opens nothing would be found later or never."""
    asking = Asking(own_round=ROUND + KEPT_ROUNDS)
    with pytest.raises(_CannotTell, match="so long ago"):
        asking.opened(closed, late_until=120.0)
    assert asking.asked_seconds == []


@pytest.mark.parametrize(
    ("seconds", "ring_seconds"),
    [
        (LATE_SECONDS, LINGER_SECONDS),
        (OPENING_SECONDS - 1.0, LINGER_SECONDS),
        (OPENING_SECONDS - 1.0, OPENING_SECONDS),
    ],
)
def test_a_member_that_answers_until_others_have_forgotten_is_named(
    seconds: float, ring_seconds: float
) -> None:
    """Its answers are good, and take as long as an auditor waits. A member that has yet to commit
    the round is not slower than `LATE_SECONDS`, and one with a slow line not slower than its
    ring."""
    asking = Asking(others_round=ROUND)

    async def slow() -> Opening:
        if asking.entry.round > ROUND:
            return await closed()  # the next member has forgotten the round
        await trio.sleep(seconds)
        asking.entry.round += KEPT_ROUNDS
        return OPENING

    with pytest.raises((_CannotTell, _NotOpened)) as ended:
        asking.opened(
            slow,
            late_until=LINGER_SECONDS,
            positions=(1, 2),
            slow_seconds=max(LATE_SECONDS, ring_seconds),
        )
    named = ended.value.position if isinstance(ended.value, _NotOpened) else None
    assert named == (1 if seconds > max(LATE_SECONDS, ring_seconds) else None)


PART_ELEMENTS = 2**20
"""A part of 4 MiB, the longest one."""


def shown_over_a_slow_line(served_seconds: float) -> Opening:
    """What an auditor sees of a member whose line has 0.4 Mbit/s for it.

    Args:
        served_seconds: time for which their ring served its members.
    """
    shown: list[Opening] = []
    seconds, network = opening_seconds(served_seconds), MemoryNetwork()
    opening = Opening((), bytes(4 * PART_ELEMENTS), bytes(PATH_BYTES))

    async def story() -> None:
        mine, its = map(network.transport, IDENTITIES[:2])
        async with mine as auditor, its as member:
            await auditor.connect(network.addresses_of(MEMBER)[0])
            network.link(MEMBER, ME).bytes_per_second = 50_000.0
            opened = OpenedChunks(member, lambda *_args: None, in_no_thread)
            opened._kept[HEAD] = _Kept(ME, (ME, MEMBER), opening, seconds)
            auditing = Asking(transport=auditor).auditing
            job = job_until(0.0, seconds, PART_ELEMENTS)
            shown.append(await auditing._ask(job, MEMBER, with_part=True))

    run_simulated(story)
    return shown[0]


def test_a_member_with_a_slow_line_has_as_long_for_a_part_as_its_ring_took() -> None:
    """The ring's chunks are shorter than a part in fp32, so it comes over such a line."""
    assert len(shown_over_a_slow_line(served_seconds=200.0).part) == 4 * PART_ELEMENTS
    with pytest.raises(trio.TooSlowError):
        shown_over_a_slow_line(served_seconds=10.0)
