"""The interfaces through which gossip and the swarm ask, and tell, the parts of the node."""

from __future__ import annotations

from typing import Protocol

from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.wire.audit_messages import AnyVerdict
from gossamer.protocol.wire.statements import Announce, Signed, Statement


class GossipListener(Protocol):
    """The node, as gossip sees it."""

    def is_welcome(self, author: PeerId) -> bool:
        """Returns whether any statement of an author is looked at."""

    def admits(self, author: PeerId, statement: Statement) -> bool:
        """Returns whether a statement is taken now. A statement that is not taken is not stored
        either, so a peer that holds it offers it again, though not at once if many are not taken
        (`store_comparison.Unwanted`). RemoteProtocolError for one that no peer may make."""

    def heard_statement(self, signed: Signed, statement: Statement) -> bool:
        """A statement of another peer is new here, and its signature is good. Returns whether it
        says something new: an announcement may repeat the one before."""

    def verified(self, signed: Signed, statement: Statement) -> None:
        """The signature of another peer's statement is good. It may be no news."""

    def heard_commit(self, commit: Commit) -> bool:
        """A commit record came. False: it is not news and is not passed on. RemoteProtocolError
        for one that is not valid."""

    def heard_own(self, announce: Announce) -> None:
        """An announcement came back that this node signed in another life and that is newer than
        its announcements of this life."""

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """A peer broke the protocol."""

    def is_apart(self) -> bool:
        """Returns whether a living member is not connected to this node."""

    def is_member(self, peer: PeerId) -> bool:
        """Returns whether a peer has announced itself in this run, and lives."""


class SwarmListener(Protocol):
    """The part of the node that takes part in rounds, as the swarm sees it."""

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A peer made a statement about some round."""

    def heard_commit(self, commit: Commit, header: Header) -> None:
        """A commit record came whose votes are checked, of a head that is not known here."""

    def disconnected(self, peer: PeerId) -> None:
        """The connection to a peer broke."""

    def members_changed(self) -> None:
        """An announcement changed what is known of the members."""


class VerdictListener(Protocol):
    """The audits, as the swarm tells them of verdicts whose signatures are good."""

    def admits(self, author: PeerId, verdict: AnyVerdict) -> bool:
        """Returns whether the author was picked for this audit."""

    def is_kept(self, verdict: AnyVerdict) -> bool:
        """Returns whether a verdict is kept for others."""

    def heard(self, author: PeerId, verdict: AnyVerdict) -> None:
        """A verdict, news or not."""

    def leave_outs(self) -> frozenset[tuple[PeerId, PeerId]]:
        """Returns pairs of an organiser and a member that it may leave out of its rings: it found
        that its work is poor, or that it does not open its sums, as others have."""
