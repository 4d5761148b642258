"""What a round's driver asks of the node that the round belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gossamer.node.modes.contribution import Contribution
from gossamer.node.rounds.context import NodeContext
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.membership import Awaited
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

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """A peer broke the protocol."""

    def removed(self, peer: PeerId, reason: str) -> None:
        """A member is out of the ring."""

    def transferred(self, num_bytes: int, seconds: float) -> None:
        """A link was busy for that time and transferred so many bytes."""

    def changed(self) -> None:
        """The machine of the round may have changed."""


class NodeHost:
    """The host of one turn of a node's loop."""

    def __init__(
        self,
        context: NodeContext,
        recent_heads: Sequence[Digest],
        contribution_to: Callable[[Ring], Contribution],
        on_changed: Callable[[], None],
    ) -> None:
        """
        Args:
            recent_heads: heads from which other peers are expected to come to this round's.
            contribution_to: makes this peer's part of a ring.
            on_changed: is called when the machine of the round may have changed.
        """
        self._context = context
        self._recent_heads = recent_heads
        self._parent = context.committed.entry
        self.contribution_to = contribution_to
        self.outer_step = context.committed.compute
        self.reach = context.swarm.reach
        self.offence = context.swarm.offence
        self.transferred = context.speed.transfer
        self.changed = on_changed

    def awaited(self) -> Awaited:
        """See `RoundHost`."""
        parent = self._parent
        return self._context.swarm.awaited(self._recent_heads, parent.round, parent.tokens_total)

    def removed(self, _peer: PeerId, reason: str) -> None:
        """See `RoundHost`."""
        self._context.metrics.ring_skips.add(first_word(reason))


def first_word(reason: str) -> str:
    """What the metrics count a reason under."""
    return reason.replace(":", " ").split()[0] if reason.strip() else ""
