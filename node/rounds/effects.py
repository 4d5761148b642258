"""The interfaces of a round: the effects of a `RoundDispatcher`, which a node and the simulator
implement, and the node around a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gossamer.node.modes.sync_mode import Contribution
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import (
    Contested,
    Contribute,
    FinishAverage,
    LeftOut,
    Removed,
    Send,
)
from gossamer.protocol.rounds.inventory import Average, Payload
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
    """The member and the ring for which a link is opened."""

    peer: PeerId
    ring: Ring
    envelope: Signed
    """The signed roster, with which the stream begins."""
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
    """The node, as both a dispatcher and its driver ask and tell it of the peers of a round."""

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


class Effects(Observer, Protocol):
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


class RoundHost(Observer, Protocol):
    """The node around one round, which its driver asks."""

    def contribution_to(self, ring: Ring) -> Contribution:
        """A ring begins: this peer's part in it."""

    def outer_step(
        self,
        parent: Digest,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
        is_wanted: Callable[[], bool],
    ) -> Digest | None:
        """The state that follows a parent; None for a step that was dropped. Runs in a thread. The
        state takes one step at a time.

        Args:
            averages: of all chunks.
            masks: of each average, by ring position.
            is_wanted: whether the step is still the newest one.
        """

    def awaited(self) -> Awaited:
        """Living peers for which the round waits."""

    async def reach(self, peer: PeerId) -> None:
        """Returns when there is a connection to a peer. Raises TransportError."""

    def transferred(self, num_bytes: int, seconds: float) -> None:
        """A link was busy for that time and transferred so many bytes."""

    def upload_limit(self) -> float:
        """The owner's present limit of all that this node sends, in bytes per second; inf for
        none."""

    def changed(self) -> None:
        """The machine of the round may have changed."""
