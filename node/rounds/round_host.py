"""What the driver of a round asks of the node around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gossamer.node.modes.contribution import Contribution
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import Contested, Removed
from gossamer.protocol.rounds.ring import Payload
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import Member


class RoundHost(Protocol):
    """The node around one round."""

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

    def awake_since(self, seconds: float) -> float:
        """Seconds for which this process has run since a local time."""

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """A peer broke the protocol."""

    def removed(self, removed: Removed) -> None:
        """A member is out of the ring."""

    def contested(self, contested: Contested) -> None:
        """A member that one other alone put out of the ring is at work."""

    def transferred(self, num_bytes: int, seconds: float) -> None:
        """A link was busy for that time and transferred so many bytes."""

    def upload_limit(self) -> float:
        """The owner's present limit of all that this node sends, in bytes per second; inf for
        none."""

    def changed(self) -> None:
        """The machine of the round may have changed."""
