"""The actions of a round, which the machines of `ring.ring`, `ring.followed_ring` and `round` want
done, and the events of a ring, which answer them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.conduct.ring_conduct import NO_VOTES, VotesSeen
from gossamer.protocol.rounds.commit import Proposal
from gossamer.protocol.rounds.inventory import (
    NO_DIGEST,
    ArrivedSum,
    Average,
    Payload,
    SignedDigest,
)
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import Commit, Member
from gossamer.protocol.wire.envelopes import Sign, seal
from gossamer.protocol.wire.statements import Signed, Statement


@dataclass(frozen=True)
class Contribute:
    """Add this member's part to a payload. The answer is `Contributed` or `Rejected`.

    A payload of None means that the sum begins with this part.
    """

    chunk: int
    payload: Payload | None
    sender: PeerId | None = None
    """The member that sent the payload; None: this member starts the chunk."""
    mask: int = 0
    """The members that are in the payload; 0 without one."""


@dataclass(frozen=True)
class FinishAverage:
    """Divide the sum by the weights of its contributors. The answer is `AverageFinished`."""

    chunk: int
    payload: Payload
    mask: int


@dataclass(frozen=True)
class Send:
    """Send a chunk to a member, unless its inventory says that it has no use for it."""

    peer: PeerId
    chunk: int
    mask: int
    finisher: int | None
    """Ring position of the member that made the average; None: a partial sum."""
    payload: Payload = field(repr=False)
    digest: Digest | None = None
    """Digest of the average's bytes; None: a partial sum."""
    signature: bytes = field(default=b"", repr=False)
    """The finisher's under the average, or this member's under a partial sum. Empty where records
    are signed, and under the partial sums of sets."""


@dataclass(frozen=True)
class Contradicted:
    """A member has signed two averages of one chunk."""

    chunk: int
    finisher: int
    one: SignedDigest
    other: SignedDigest


RingAction: TypeAlias = Contribute | FinishAverage | Send | Contradicted
"""The actions that the ring wants (`ring.RingReduce`)."""


@dataclass(frozen=True)
class Signer:
    """This peer in the run, which signs its statements."""

    me: PeerId
    run_id: Digest
    sign: Sign

    def seal(self, statement: Statement) -> Publish:
        return Publish(seal(statement, self.me, self.run_id, self.sign), statement)


@dataclass(frozen=True)
class Publish:
    """Gossip this statement."""

    signed: Signed
    statement: Statement


@dataclass(frozen=True)
class BeginRing:
    """This peer follows a ring from now on. Work for an earlier ring is void."""

    ring: Ring


@dataclass(frozen=True)
class Compute:
    """Take the outer step with these averages. The answer is `Computed`."""

    ring_id: Digest
    generation: int
    parent: Digest
    averages: list[Average] = field(repr=False)
    members: tuple[Member, ...] = field(repr=False)


@dataclass(frozen=True)
class Committed:
    """The round is committed."""

    commit: Commit
    proposal: Proposal
    averages: list[Average] = field(repr=False)


@dataclass(frozen=True)
class Removed:
    """A member is out of the ring (for logs, metrics and `policy.conduct.ring_conduct`)."""

    peer: PeerId
    reason: str
    detail: str
    """Why this peer believes it: the accuser, or what this peer measured."""
    accuser: PeerId
    order: tuple[PeerId, ...] = field(repr=False)
    """The members that were in until then, in ring order."""
    votes: VotesSeen = NO_VOTES
    answers: str | None = None
    """The reason for which this member had accused its accuser; None: it had not."""
    alone_of: int = 0
    """The number of members of the ring, if its accuser alone has put out all others by now; else
    0."""
    still_seconds: float = 0.0
    """The longest time in which nothing had happened in the ring since the last removal."""
    num_members: int = 0
    """Members of the whole ring."""


@dataclass(frozen=True)
class Contested:
    """A member that one other alone put out is at work all the same (for
    `policy.conduct.ring_conduct`)."""

    accuser: PeerId
    peer: PeerId
    num_members: int
    """Members that were in until it was put out."""


@dataclass(frozen=True)
class LeftOut:
    """A roster of a ring with this peer leaves out others that are ready (for
    `policy.conduct.ring_conduct`)."""

    organiser: PeerId
    peers: tuple[PeerId, ...]
    is_mended: bool
    """Whether this peer publishes a roster with them."""


@dataclass(frozen=True)
class Unsettled:
    """An organiser replaces its own rings again and again (for `policy.conduct.ring_conduct`)."""

    organiser: PeerId


Observation: TypeAlias = Removed | Contested | LeftOut | Unsettled
"""What a round shows of other peers. Nothing has to be done for the round itself."""

Action: TypeAlias = Publish | BeginRing | RingAction | Compute | Committed | Observation


class SumArrived(NamedTuple):
    """A partial sum came. `SignedAverages` has checked its sender's signature."""

    chunk: int
    arrived: ArrivedSum


class AverageArrived(NamedTuple):
    """An average came. `SignedAverages` has checked its finisher's signature."""

    sender: PeerId
    chunk: int
    average: Average


class Contributed(NamedTuple):
    """This peer's part is in a partial sum. `digest`: the sum's, where sums are audited."""

    chunk: int
    payload: Payload
    digest: Digest = NO_DIGEST


class Rejected(NamedTuple):
    """The payload to add to was malformed: its sender is accused."""

    chunk: int
    sender: PeerId


class AverageFinished(NamedTuple):
    """An average was computed here."""

    chunk: int
    payload: Payload
    digest: Digest


class Computed(NamedTuple):
    """The outer step was taken."""

    generation: int
    state_digest: Digest


class LinkBroken(NamedTuple):
    """The link to a ring member failed: this peer accuses it."""

    peer: PeerId
    reason: str


class LinkMeasured(NamedTuple):
    """The totals of the link to a member."""

    peer: PeerId
    measure: LinkMeasure


RingEvent: TypeAlias = (
    SumArrived
    | AverageArrived
    | Contributed
    | Rejected
    | AverageFinished
    | Computed
    | LinkBroken
    | LinkMeasured
)
"""What happens in a ring, beside the statements about it and the time."""
