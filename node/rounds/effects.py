"""What a `RoundDispatcher` calls: its effects, and the node that hears of its peers. A node and the
simulator implement both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import (
    Contested,
    Contribute,
    FinishAverage,
    LeftOut,
    Removed,
    Send,
)
from gossamer.protocol.rounds.inventory import Average
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import Member
from gossamer.protocol.wire.statements import Equivocation, Signed, Statement

SENDS_PER_CHUNK_MAX = 4
"""A chunk is sent to one member at most as partial sum, as average, and once more of each when the
ring changes or votes differ. A link holds no more than that of each chunk."""


class LinkFullError(Exception):
    """A link has more queued than one ring can ever need."""


class OutgoingLink(Protocol):
    """The stream to one member of one ring."""

    def send(self, frame: Send) -> None:
        """Queues a chunk. Raises LinkFullError."""

    def finish(self) -> None:
        """Nothing more will be queued; what is queued is still delivered."""

    def close(self) -> None:
        """Ends the stream now."""


@dataclass(frozen=True)
class LinkTarget:
    """The member and the ring for which a link is opened. Its stream begins with the roster."""

    peer: PeerId
    ring: Ring
    waits_for_inventory: bool
    """Whether the member may hold chunks already. In a ring without removed members a member holds
    nothing that its predecessor did not send."""


@dataclass(frozen=True)
class OuterStepOrder:
    """One outer step to take."""

    ring_id: Digest
    generation: int
    parent: Digest
    averages: list[Average]
    members: tuple[Member, ...]


class Observer(Protocol):
    """The node, as a dispatcher asks and tells it of the peers of a round."""

    def awake_since(self, seconds: float) -> float:
        """Seconds for which this process has run since a local time. A stop of this process is no
        silence of others."""

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """A peer broke the protocol."""

    def removed(self, removed: Removed) -> None:
        """A member is out of the ring."""

    def contested(self, contested: Contested) -> None:
        """A member that one other alone put out of the ring is at work."""

    def left_out(self, left_out: LeftOut) -> None:
        """A roster leaves out peers that are ready."""

    def unsettled(self, organiser: PeerId) -> None:
        """An organiser replaces its own rings again and again."""

    def contradicted(self, proof: Equivocation) -> None:
        """A member has signed two averages of one chunk, or two parts of one step."""


class Effects(Protocol):
    """The effects of a dispatcher. No method waits."""

    def publish(self, signed: Signed, statement: Statement) -> None:
        """Gossips a statement of this peer."""

    def begin_ring(self, ring: Ring) -> None:
        """This ring is followed from now on. Links of an earlier ring are closed already."""

    def open_link(self, target: LinkTarget) -> OutgoingLink:
        """Starts a stream to a member. A failure is told by `RoundDispatcher.link_failed`."""

    def contribute(self, ring_id: Digest, action: Contribute) -> None:
        """Starts to add this peer's part. The answer is `contributed` or `rejected`."""

    def finish_average(self, ring_id: Digest, action: FinishAverage) -> None:
        """Starts to finish an average. The answer is `average_finished` or `cannot_finish`."""

    def take_outer_step(self, order: OuterStepOrder) -> None:
        """Starts an outer step. The answer is `computed`, unless `is_wanted` became false."""

    def heard_seconds(self, peer: PeerId) -> float | None:
        """Local time at which something last came from a peer; None without a connection."""

    def notify_changed(self) -> None:
        """The machine may have changed: the round may be committed here, or delivered to all."""
