"""Decisions of a round's driver, without I/O: two members, whose effects are noted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from gossamer.node.rounds.decisions import LINGER_SECONDS, LINGER_SECONDS_MAX, linger_seconds
from gossamer.node.rounds.dispatcher import (
    SENDS_PER_CHUNK_MAX,
    SILENT_SECONDS,
    TICK_SECONDS,
    LinkFullError,
    LinkTarget,
    RoundDispatcher,
)
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import SumPayloads, payloads_named
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.conduct.equivocation import open_equivocation
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import (
    AverageArrived,
    AverageFinished,
    Compute,
    Computed,
    Contribute,
    Contributed,
    FinishAverage,
    LinkBroken,
    Observation,
    Send,
    Signer,
)
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.inventory import Average
from gossamer.protocol.rounds.ring.ring_signatures import FoundStep
from gossamer.protocol.rounds.roster import Ring, RoundRules
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.wire.average_signatures import SignedStep
from gossamer.protocol.wire.statements import (
    Accusation,
    Equivocation,
    Ready,
    Roster,
    Signed,
    Statement,
)
from tests.sim.simulator.signatures import peer_id_of, sign_as, verify

RUN_ID, HEAD = digest_of(b"dispatcher"), digest_of(b"head")
PAYLOADS = SumPayloads(codec("fp32"))
NUM_CHUNKS = 2


class Link:
    """Notes what is sent, up to a bound."""

    def __init__(self, sends_max: int) -> None:
        self.sent: list[Send] = []
        self.is_finished = self.is_closed = False
        self._sends_max = sends_max

    def send(self, frame: Send) -> None:
        """See `OutgoingLink`."""
        if len(self.sent) >= self._sends_max:
            raise LinkFullError
        self.sent.append(frame)

    def finish(self) -> None:
        """See `OutgoingLink`."""
        self.is_finished = True

    def close(self) -> None:
        """See `OutgoingLink`."""
        self.is_closed = True


@dataclass
class Member:
    """A dispatcher, and everything that it made happen."""

    me: PeerId
    sends_max: int = SENDS_PER_CHUNK_MAX * NUM_CHUNKS
    said: list[tuple[Signed, Statement]] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    contributions: list[tuple[Digest, Contribute]] = field(default_factory=list)
    finishes: list[tuple[Digest, FinishAverage]] = field(default_factory=list)
    orders: list[Compute] = field(default_factory=list)
    proofs: list[Equivocation] = field(default_factory=list)
    heard: float | None = 0.0
    now: float = 0.0
    stopped_seconds: float = 0.0
    """Time for which its process did not run."""

    def __post_init__(self) -> None:
        machine = Round(
            signer=Signer(self.me, RUN_ID, sign_as(self.me)),
            parent=Parent(HEAD, 0, 0, Ledger()),
            rules=RoundRules(PAYLOADS, 4096, NUM_CHUNKS, 10.0, 1000.0, 2.5),
            verify=verify,
            now=0.0,
        )
        self.dispatcher = RoundDispatcher(machine, self, self)

    def publish(self, signed: Signed, statement: Statement) -> None:
        """See `Effects`."""
        self.said.append((signed, statement))

    def begin_ring(self, ring: Ring) -> None:
        """See `Effects`."""

    def open_link(self, target: LinkTarget) -> Link:
        """See `Effects`."""
        self.links.append(Link(self.sends_max))
        return self.links[-1]

    def contribute(self, ring_id: Digest, action: Contribute) -> None:
        """See `Effects`."""
        self.contributions.append((ring_id, action))

    def finish_average(self, ring_id: Digest, action: FinishAverage) -> None:
        """See `Effects`."""
        self.finishes.append((ring_id, action))

    def take_outer_step(self, order: Compute) -> None:
        """See `Effects`."""
        self.orders.append(order)

    def heard_seconds(self, peer: PeerId) -> float | None:
        """See `Effects`."""
        return self.heard

    def awake_since(self, seconds: float) -> float:
        """See `Observer`."""
        return self.now - seconds - self.stopped_seconds

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """See `Observer`."""
        raise error

    def observed(self, observation: Observation) -> None:
        """See `Observer`."""

    def contradicted(self, proof: Equivocation) -> None:
        """See `Observer`."""
        self.proofs.append(proof)

    def notify_changed(self) -> None:
        """See `Effects`."""

    def tick(self, now: float, *others: PeerId) -> None:
        self.now = now
        self.dispatcher.tick(now, Awaited(list(others), []))

    @property
    def accusations(self) -> list[str]:
        return [each.reason for _, each in self.said if isinstance(each, Accusation)]


def ready() -> Ready:
    return Ready(1, 1, 1, HEAD, 100, 1, 0.0, 1.0, ())


def ring_of_two(sends_max: int = SENDS_PER_CHUNK_MAX * NUM_CHUNKS) -> tuple[Member, Member]:
    """A member whose ring began at 0 s, and the other one."""
    members = Member(peer_id_of(0), sends_max), Member(peer_id_of(1), sends_max)
    for member in members:
        member.dispatcher.begin(0.0, ())
        member.tick(0.0, *(other.me for other in members if other is not member))
        member.dispatcher.ready(0.0, ready())
    for member, other in (members, members[::-1]):
        for signed, statement in list(other.said):
            member.dispatcher.heard(0.0, signed, statement)
    for member, other in (members, members[::-1]):
        for signed, statement in list(other.said):
            if isinstance(statement, Roster):
                member.dispatcher.heard(0.0, signed, statement)
    assert members[0].dispatcher.ring_id == members[1].dispatcher.ring_id is not None
    return members


def alone() -> Member:
    """A member that is alone in its ring, with its parts asked for."""
    member = Member(peer_id_of(0))
    member.dispatcher.begin(0.0, ())
    member.tick(0.0)
    member.dispatcher.ready(0.0, ready())
    return member


def committed() -> Member:
    """A member that was alone in its ring and committed at 1 s."""
    member = alone()
    dispatcher, payload = member.dispatcher, b"part"
    for ring_id, action in list(member.contributions):
        dispatcher.ring_event(1.0, ring_id, Contributed(action.chunk, payload))
    for ring_id, finish in list(member.finishes):
        dispatcher.ring_event(
            1.0, ring_id, AverageFinished(finish.chunk, payload, digest_of(payload))
        )
    order = member.orders[-1]
    computed = Computed(order.generation, digest_of(b"state"))
    dispatcher.ring_event(1.0, order.ring_id, computed)
    assert dispatcher.committed is not None
    return member


def test_the_link_to_the_successor_exists_before_there_is_something_to_send() -> None:
    member, _ = ring_of_two()
    assert len(member.links) == 1
    assert not member.links[0].sent


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_silent_successor_is_given_up_and_one_without_connection_by_its_link(
    is_connected: bool,
) -> None:
    member, other = ring_of_two()
    member.heard = 0.0 if is_connected else None
    for tick in range(round(SILENT_SECONDS / TICK_SECONDS)):
        member.tick(tick * TICK_SECONDS, other.me)
    assert not member.accusations
    member.tick(SILENT_SECONDS + TICK_SECONDS, other.me)
    assert member.accusations == (["timeout: silent"] if is_connected else [])


def test_time_in_which_this_process_was_stopped_is_no_silence_of_others() -> None:
    member, other = ring_of_two()
    member.heard = 0.0
    member.stopped_seconds = 5.0
    member.tick(5.0 + SILENT_SECONDS - 0.1, other.me)
    assert not member.accusations
    member.tick(5.0 + SILENT_SECONDS, other.me)
    assert member.accusations == ["timeout: silent"]


def test_silence_before_the_ring_counts_for_no_member() -> None:
    member, other = ring_of_two()
    member.heard = -100.0
    member.tick(SILENT_SECONDS - 0.1, other.me)
    assert not member.accusations
    member.tick(SILENT_SECONDS, other.me)
    assert member.accusations == ["timeout: silent"]


def test_a_chunk_is_wanted_then_late_or_refused() -> None:
    member = alone()
    dispatcher, ring_id = member.dispatcher, member.contributions[0][0]
    assert dispatcher.use_of(ring_id) == "wanted"
    assert dispatcher.use_of(digest_of(b"another ring")) == "refused"
    assert committed().dispatcher.use_of(ring_id) == "late"
    dispatcher.close()
    assert dispatcher.use_of(ring_id) == "refused"


def test_two_averages_of_one_chunk_by_one_member_become_a_proof() -> None:
    member, other = ring_of_two()
    dispatcher, ring_id = member.dispatcher, member.contributions[0][0]
    theirs = other.dispatcher.machine.signed_averages
    place = theirs.ring.members.index(other.me)
    for payload in (b"one", b"one", b"other"):
        assert not member.proofs
        digest = digest_of(payload)
        signature = theirs.sign(0, 0b11, digest)
        average = Average(0b11, digest, place, payload, signature)
        dispatcher.ring_event(1.0, ring_id, AverageArrived(other.me, 0, average))
    (proof,) = member.proofs
    assert proof.first.author == other.me
    assert open_equivocation(proof, RUN_ID, verify) == (1, 1)


def test_averages_and_sums_that_hold_my_part_are_checked() -> None:
    machine = ring_of_two()[0].dispatcher.machine
    ring = machine.ring
    assert ring is not None
    mine = 1 << ring.members.index(peer_id_of(0))
    assert machine.has_to_check(0b11, finisher=0)
    assert machine.has_to_check(mine, None)
    assert not machine.has_to_check(0b11 ^ mine, None)


def test_signed_records_are_checked_whenever_they_come() -> None:
    """An addition to a set does not look at the others' records."""
    machine = alone().dispatcher.machine
    machine._rules = replace(machine._rules, payloads=payloads_named("fp32", trust="open"))
    assert machine.has_to_check(0b01, None)
    assert machine.has_to_check(0b10, None)


def test_an_older_outer_step_is_not_wanted_and_none_after_the_end() -> None:
    member = alone()
    dispatcher = member.dispatcher
    for ring_id, action in list(member.contributions):
        dispatcher.ring_event(1.0, ring_id, Contributed(action.chunk, b"part"))
    for ring_id, finish in list(member.finishes):
        dispatcher.ring_event(
            1.0, ring_id, AverageFinished(finish.chunk, b"part", digest_of(b"part"))
        )
    (order,) = member.orders
    older = Compute(
        order.ring_id, order.generation - 1, order.parent, order.averages, order.members
    )
    assert dispatcher.is_wanted(order)
    assert not dispatcher.is_wanted(older)
    dispatcher.close()
    assert not dispatcher.is_wanted(order)


def test_a_commit_that_all_have_is_delivered_and_one_has_a_time_to_be() -> None:
    member = committed()
    assert member.dispatcher.phase == "delivered"
    assert not member.dispatcher.is_open
    assert member.dispatcher.ends_seconds == 1.0 + LINGER_SECONDS


@pytest.mark.parametrize(
    ("ring_seconds", "seconds"),
    [(1.0, LINGER_SECONDS), (60.0, 60.0), (7200.0, LINGER_SECONDS_MAX)],
)
def test_a_member_is_served_as_long_as_the_ring_took(ring_seconds: float, seconds: float) -> None:
    assert linger_seconds(ring_seconds) == seconds


def test_a_link_that_is_full_has_failed() -> None:
    members = ring_of_two(sends_max=0)
    for member in members:
        for ring_id, action in list(member.contributions):
            member.dispatcher.ring_event(1.0, ring_id, Contributed(action.chunk, b"part"))
    assert [member.accusations for member in members] == [["slow: too much is queued"]] * 2


def test_nothing_happens_after_the_end() -> None:
    member, other = ring_of_two()
    dispatcher = member.dispatcher
    num_said = len(member.said)
    ring_id = dispatcher.ring_id
    assert ring_id is not None
    dispatcher.close()
    assert member.links[0].is_closed
    dispatcher.ring_event(1.0, ring_id, LinkBroken(other.me, "reset"))
    dispatcher.ring_event(1.0, ring_id, Contributed(0, b"part"))
    dispatcher.disconnected(1.0, other.me)
    member.tick(2.0, other.me)
    assert dispatcher.greeting(ring_id) == "refused"
    assert len(member.said) == num_said


def test_parts_that_were_checked_while_the_round_ended_are_no_error() -> None:
    """Signatures are checked in threads, which may outlive the round."""
    member, author = alone(), peer_id_of(1)
    steps = [SignedStep(1, 1, HEAD, 0, digest_of(root)) for root in (b"one", b"another")]
    found = [FoundStep(author, step, b"") for step in steps]
    member.dispatcher.steps_signed(found[:1])
    member.dispatcher.close()
    member.dispatcher.steps_signed(found[1:])
    assert member.proofs == []
