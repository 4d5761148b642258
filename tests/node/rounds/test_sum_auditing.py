"""How long an auditor of sums asks a member, and whom it blames for silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
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
    KeptRound,
    OpenedChunks,
    Opening,
    opening_seconds,
)
from gossamer.node.rounds.sum_audit import (
    ASKED_ROUNDS,
    AWAY_SECONDS_MAX,
    ENDED_TIMES,
    RETRY_SECONDS,
    AuditJob,
    CannotTell,
    NotOpened,
    SumAudit,
)
from gossamer.node.storage.work.kept_parts import KeptParts
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.record_tree import PATH_BYTES
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.auditing.sum_audits import commitment_to, is_auditor
from gossamer.protocol.rounds.inventory import NO_DIGEST, Average
from gossamer.protocol.rounds.ring.ring_signatures import SignedAverages
from gossamer.protocol.rounds.roster import Ring
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.node_world import in_no_thread

IDENTITIES = [
    Identity.from_seed(digest_of(name)) for name in (b"auditor", b"member", b"third", b"fourth")
]
ME, MEMBER, *OTHERS = (each.peer_id for each in IDENTITIES)
HEAD = Digest(bytes(32))
ROUND, INCARNATION = 100, 7
OPENING = Opening((), b"part", b"path")
SECRET = next(
    secret
    for secret in map(digest_of, (bytes([number]) for number in range(256)))
    if is_auditor(HEAD, secret, 2)
)
"""Of an auditor in a ring of two."""


class Asking:
    """An auditor that asks one member of a round. Nobody is away before a test says so."""

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
        self.away_until = dict[PeerId, float]()
        """Members that are not connected to the auditor, each with the time when it comes back."""
        said = SimpleNamespace(incarnation=INCARNATION, round=said_round, head=said_head)
        other = SimpleNamespace(incarnation=INCARNATION, round=others_round, head=b"another")
        self.others = [] if others_round is None else OTHERS
        self.known = known = {MEMBER: said, **dict.fromkeys(self.others, other)}
        self.swarm: Any = SimpleNamespace(
            me=ME,
            offence=None,
            membership=SimpleNamespace(known=lambda: known),
            is_connected=lambda peer: trio.current_time() >= self.away_until.get(peer, 0.0),
        )
        payloads, chain = SumPayloads(codec("fp32")), {HEAD}
        self.committed: Any = SimpleNamespace(payloads=payloads, entry=self.entry, chain=chain)
        self.silent_until = 0.0
        """Time until which nothing comes from the member, although it is connected."""
        self.transport: Any = transport or SimpleNamespace(heard_seconds=self._heard_seconds)
        self.asked_seconds: list[float] = []

    def _heard_seconds(self, _peer: PeerId) -> float:
        now = trio.current_time()
        return now if now >= self.silent_until else -1.0

    def audit(self, job: AuditJob) -> SumAudit:
        own: Any = None
        return SumAudit(job, self.committed, self.swarm, self.transport, own, in_no_thread, {})

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
            audit = self.audit(job)
            audit._ask = ask  # type: ignore[method-assign]
            *earlier, last = positions
            for position in earlier:
                await audit._opened(position, with_part=False)
            return await audit._opened(last, with_part=False)

        return trio.run(opened, clock=MockClock(autojump_threshold=0))


def ring_with(others: Sequence[PeerId]) -> Ring:
    ready = SimpleNamespace(incarnation=INCARNATION, commitment=commitment_to(SECRET))
    members = (ME, MEMBER, *others)
    readies = (ready,) * len(members)
    ring = SimpleNamespace(members=members, ready=readies, ready_of=lambda _member: ready)
    return cast(Ring, ring)


def job_until(
    late_until: float,
    answer_seconds: float = OPENING_SECONDS,
    num_elements: int = 1,
    others: Sequence[PeerId] = (),
    slow_seconds: float = LATE_SECONDS,
) -> AuditJob:
    signed = SimpleNamespace(ring=ring_with(others))
    average = Average(3, NO_DIGEST, 0, b"", b"")
    return AuditJob(
        HEAD, ROUND, SECRET, 0, num_elements, average, cast(SignedAverages, signed), frozenset(),
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
    with pytest.raises(NotOpened):
        asking.opened(closed, late_until=LINGER_SECONDS)
    assert asking.asked_seconds == [0.0, LATE_SECONDS + RETRY_SECONDS]
    asking = Asking()
    with pytest.raises(NotOpened):
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
    with pytest.raises(CannotTell, match="so long ago"):
        asking.opened(closed, late_until=120.0)
    assert asking.asked_seconds == [0.0], "it may have kept the round"


def test_a_member_cannot_say_that_it_is_ahead_with_a_head_that_is_known() -> None:
    asking = Asking(said_round=ROUND + KEPT_ROUNDS, said_head=HEAD)
    with pytest.raises(NotOpened):
        asking.opened(closed, late_until=LINGER_SECONDS)


def test_a_member_cannot_say_alone_that_it_is_ahead() -> None:
    """It could tell every auditor so, with any head, and would never be named."""
    long_ago = ROUND + ASKED_ROUNDS
    for others_round in (ROUND, long_ago - 1):
        with pytest.raises(NotOpened):
            Asking(said_round=long_ago, others_round=others_round).opened(closed, late_until=0.0)
    with pytest.raises(CannotTell):
        Asking(said_round=ROUND, others_round=long_ago).opened(closed, late_until=0.0)


def test_silence_counts_where_the_question_came_in_time() -> None:
    """Otherwise a member of quick rounds would keep silent until it need not answer any more."""
    asking = Asking()

    async def while_others_go_on() -> Opening:
        asking.entry.round += ASKED_ROUNDS
        return await silence()

    with pytest.raises(NotOpened):
        asking.opened(while_others_go_on, late_until=LINGER_SECONDS)
    assert asking.asked_seconds == [0.0, OPENING_SECONDS + RETRY_SECONDS]


def test_nobody_is_asked_for_a_round_that_all_have_forgotten() -> None:
    """Each of them would wait whether that round is still to come. The auditor would miss audits in
    that time, and a member that opens nothing would be found later or never."""
    asking = Asking(own_round=ROUND + KEPT_ROUNDS)
    with pytest.raises(CannotTell, match="so long ago"):
        asking.opened(closed, late_until=120.0)
    assert asking.asked_seconds == []


AWAY_SECONDS = 12.0


def after_being_away(
    asking: Asking, answer: Callable[[], Awaitable[Opening]], times: int = 1
) -> Opening:
    """What an auditor sees of a member that ends their connection during its first questions, each
    time for `AWAY_SECONDS`, and then answers."""

    async def ends_the_connection() -> Opening:
        if len(asking.asked_seconds) > times:
            return await answer()
        asking.away_until[MEMBER] = trio.current_time() + AWAY_SECONDS
        raise TransportError("the connection has ended")

    return asking.opened(ends_the_connection, late_until=LINGER_SECONDS)


async def opens() -> Opening:
    return OPENING


@pytest.mark.parametrize("times", [1, ENDED_TIMES - 1])
def test_a_member_that_was_away_is_asked_again(times: int) -> None:
    """Once nothing could be told of it from then on."""
    assert after_being_away(Asking(others_round=ROUND), opens, times) == OPENING


def test_a_member_that_opens_nothing_when_it_is_back_is_named() -> None:
    """It had to end its connection for some seconds, once, to escape."""
    asking = Asking()
    with pytest.raises(NotOpened):
        after_being_away(asking, closed)
    back_seconds = asking.asked_seconds[1]
    assert back_seconds >= AWAY_SECONDS
    assert asking.asked_seconds[-1] >= back_seconds + LATE_SECONDS, "it may bring the round late"


def test_a_member_that_ends_its_connection_at_each_question_is_named() -> None:
    asking = Asking(others_round=ROUND)
    with pytest.raises(NotOpened):
        after_being_away(asking, opens, ENDED_TIMES)
    assert len(asking.asked_seconds) == ENDED_TIMES


@pytest.mark.parametrize("own_round", [ROUND, ROUND + ASKED_ROUNDS])
def test_a_member_that_froze_is_not_named_while_its_connection_stands(own_round: int) -> None:
    """Among many peers it stands for half a minute, in which the others may make many rounds."""
    asking = Asking()
    asking.silent_until = 35.0

    async def freezes() -> Opening:
        asking.entry.round = own_round
        if trio.current_time() < asking.silent_until:
            await trio.sleep(10.0)
            raise TransportError("no answer")
        return OPENING

    if own_round == ROUND:
        assert asking.opened(freezes, late_until=0.0) == OPENING
        assert len(asking.asked_seconds) == 2
    else:
        with pytest.raises(CannotTell, match="a member has gone"):
            asking.opened(freezes, late_until=0.0)


def test_an_auditor_whose_own_line_fails_names_nobody() -> None:
    asking = Asking(others_round=ROUND)

    async def fails() -> Opening:
        back = trio.current_time() + AWAY_SECONDS
        asking.away_until.update(dict.fromkeys((MEMBER, *OTHERS), back))
        if len(asking.asked_seconds) > 2 * ENDED_TIMES:
            return OPENING
        raise TransportError("the connection has ended")

    assert asking.opened(fails, late_until=LINGER_SECONDS) == OPENING


def test_a_member_that_was_started_again_while_it_was_away_is_not_named() -> None:
    """What it had to show is gone."""
    asking = Asking()

    async def lives_anew() -> Opening:
        asking.known[MEMBER].incarnation = INCARNATION + 1
        return await closed()

    with pytest.raises(CannotTell, match="has gone"):
        after_being_away(asking, lives_anew)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_member_that_is_away_until_others_have_forgotten_the_round_is_not_named(
    comes_back: bool,
) -> None:
    asking = Asking()

    async def is_away() -> Opening:
        asking.away_until[MEMBER] = trio.current_time() + (1.0 if comes_back else 3600.0)
        asking.entry.round = ROUND + ASKED_ROUNDS
        raise TransportError("the connection has ended")

    with pytest.raises(CannotTell):
        asking.opened(is_away, late_until=0.0)


def test_an_auditor_waits_for_a_member_that_is_away_for_some_minutes() -> None:
    """No round may follow."""
    asking = Asking()

    async def is_away() -> Opening:
        asking.away_until[MEMBER] = trio.current_time() + AWAY_SECONDS_MAX + 2 * RETRY_SECONDS
        raise TransportError("the connection has ended")

    with pytest.raises(CannotTell, match="has gone"):
        asking.opened(is_away, late_until=0.0)
    assert len(asking.asked_seconds) == 1


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

    with pytest.raises((CannotTell, NotOpened)) as ended:
        asking.opened(
            slow,
            late_until=LINGER_SECONDS,
            positions=(1, 2),
            slow_seconds=max(LATE_SECONDS, ring_seconds),
        )
    named = ended.value.position if isinstance(ended.value, NotOpened) else None
    assert named == (1 if seconds > max(LATE_SECONDS, ring_seconds) else None)


PART_ELEMENTS = 2**20
"""A part of 4 MiB, the longest one."""


def shown_over_a_slow_line(tmp_path: Path, served_seconds: float) -> Opening:
    """What an auditor sees of a member whose line has 0.4 Mbit/s for it.

    Args:
        tmp_path: where the member keeps its part.
        served_seconds: time for which their ring served its members.
    """
    shown: list[Opening] = []
    seconds, network = opening_seconds(served_seconds), MemoryNetwork()

    async def story() -> None:
        mine, its = map(network.transport, IDENTITIES[:2])
        async with mine as auditor, its as member:
            await auditor.connect(network.addresses_of(MEMBER)[0])
            network.link(MEMBER, ME).bytes_per_second = 50_000.0
            opened = OpenedChunks(member, lambda *_args: None, in_no_thread, tmp_path)
            parts = KeptParts(tmp_path, lambda: [bytes(4 * PART_ELEMENTS)])
            opened._kept[HEAD] = KeptRound(
                HEAD, ring_with(()), frozenset((ME, MEMBER)), ((),), parts,
                lambda _chunk: bytes(PATH_BYTES), seconds,
            )  # fmt: skip
            audit = Asking(transport=auditor).audit(job_until(0.0, seconds, PART_ELEMENTS))
            shown.append(await audit._ask(MEMBER, with_part=True))

    run_simulated(story)
    return shown[0]


def test_a_member_with_a_slow_line_has_as_long_for_a_part_as_its_ring_took(
    tmp_path: Path,
) -> None:
    """The ring's chunks are shorter than a part in fp32, so it comes over such a line."""
    assert len(shown_over_a_slow_line(tmp_path, served_seconds=200.0).part) == 4 * PART_ELEMENTS
    with pytest.raises(trio.TooSlowError):
        shown_over_a_slow_line(tmp_path, served_seconds=10.0)
