"""The rules by which this node takes statements, rosters and commit records from peers.

The run may admit only some peers (`entrance`). Banned peers, peers that have not
announced themselves, and peers without a connection to this node have less of a say.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from gossamer.node.network.identity import verify
from gossamer.node.network.transport import Transport
from gossamer.node.peers.members.entrance import Entrance
from gossamer.node.peers.offences import Offences
from gossamer.node.peers.ring_partners import RingPartners
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol.errors import ForgedError, ImplausibleError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from gossamer.protocol.policy.membership import Membership
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.rounds.commit_proof import open_commit
from gossamer.protocol.rounds.roster import RingRules
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.state.run_end import check_extension
from gossamer.protocol.wire.audit_messages import AnyVerdict
from gossamer.protocol.wire.statements import (
    Announce,
    Equivocation,
    Extension,
    MoreData,
    RingStatement,
    Rollback,
    Roster,
    Statement,
)

FAR_MAX = 8
"""Strangers without a connection to this node that may be in a ring with it, in a small swarm."""

FAR_HEADS_MAX = 4
"""Heads for which ready peers without a connection are counted; the oldest is forgotten first. A
round and the rounds that compete with it have fewer."""


class Admission:
    """The rules of one node in one run: which statements, headers and records it takes.

    It has more than 12 attributes: each kind of statement is judged by another part of the node.
    """

    def __init__(
        self,
        manifest: Manifest,
        transport: Transport,
        membership: Membership,
        chain: ChainStore,
        offences: Offences,
        entrance: Entrance,
        ring_rules: RingRules,
    ) -> None:
        """
        Args:
            chain: a commit record of a head in it is not opened again.
            ring_rules: what the rosters of this run must say.
        """
        self.run_id = manifest.run_id
        self._manifest = manifest
        self._rollback_signers = RollbackSigners.of(manifest)
        self.offences = offences
        self._transport = transport
        self._membership = membership
        self._chain = chain
        self.entrance = entrance
        self._bounds = WorkBounds(manifest)
        self._ring_rules = ring_rules
        self.partners = RingPartners(transport.peer_id)
        self._far_ready: dict[bytes, set[PeerId]] = {}
        """By head, the strangers that are ready for it and had no connection when that was
        heard."""
        self.has_standing: Callable[[PeerId], bool] = lambda _peer: False
        """Whether a peer has taken part in the newest rounds."""
        self.is_stored: Callable[[Digest], bool] = lambda _digest: False
        """Whether the statement of a digest is in the store, and so was admitted when it came."""

    # Statements of peers

    def admits(self, author: PeerId, statement: Statement) -> bool:
        """Returns whether this node takes a statement of a welcome author now. The author may
        repeat a statement that is not taken.

        - Only the founder and keepers sign that rounds are taken back, and only the founder extends
          the run or adds data to it. They are heard although they are banned, or not connected.
        - A banned peer is heard only about rings that it is in. The other members hear it too, and
          a ring needs one view of its removed members.
        - A peer that has not announced itself is heard about nothing else. So the number of authors
          is bounded.
        - A peer that sits out because of its conduct or its work is not ready for any round.
        - Of the strangers without a connection only a few count as ready (`_far_max`), and a ring
          with more of them is refused. A few are enough for newcomers that are still connecting to
          the others. With more, a rogue could fill each ring with identities that it invented. They
          take no place of members, which may have no connection to this node for long.

        Raises:
            RemoteProtocolError: no peer may make this statement.
        """
        if isinstance(statement, RingStatement):
            return author in self._transport.peers() or self._membership.is_known(author)
        if isinstance(statement, Rollback):
            if author not in self._rollback_signers:
                raise ForgedError("rounds are taken back by a peer that may not sign it")
            return True
        if isinstance(statement, Extension):
            if author != self._manifest.founder:
                raise ForgedError("rounds are added by a peer that is not the founder")
            check_extension(statement, self._manifest)
            return True
        if isinstance(statement, MoreData):
            if author != self._manifest.founder:
                raise ForgedError("data are added by a peer that is not the founder")
            if not self._manifest.data.grows:
                raise ImplausibleError("added data in a run whose data do not grow")
            return True
        if self.offences.is_banned(author):
            return False
        if isinstance(statement, Announce):
            return True
        if isinstance(statement, Equivocation | AnyVerdict):
            return False  # the proof, or the audit, decides (`Swarm.admits`), and not the author
        if isinstance(statement, Roster):
            return self.admits_ring(author, statement)
        self._bounds.check_statement(statement, self.run_id)
        if self.partners.sits_out(author):
            return False
        is_near = author in self._transport.peers() or self.has_standing(author)
        return is_near or self._is_among_few(author, statement.head)

    def admits_ring(
        self, organiser: PeerId, roster: Roster, follower: PeerId | None = None
    ) -> bool:
        """Returns whether this node takes part in a ring. It is enough that a ring member follows
        the roster.

        Only the organiser decides who sits out of its ring. What members remember of others
        differs, and a ring that some of its members refuse stands still for the others. An
        organiser that sits out because of its conduct has no say, unless another member that has
        standing follows it already. One that sits out because of its work has: only the few that
        measured it know.

        Args:
            follower: a member that sends to this node in the ring; None: no member is known to.

        Raises:
            ImplausibleError: a member claims work that it cannot have done.
        """
        unchecked = tuple(each for each in roster.members if not self.is_stored(each.digest))
        self._bounds.check_statement(replace(roster, members=unchecked), self.run_id)
        members = {PeerId(member.author) for member in roster.members}
        far = members - {*self._transport.peers(), self._transport.peer_id}
        strangers = {peer for peer in far if not self.has_standing(peer)}
        if any(map(self.partners.is_accuser, members)) or len(strangers) > self._far_max:
            return False
        if self.partners.is_of_bad_conduct(organiser) and not (
            follower is not None
            and follower != organiser
            and self.has_standing(follower)
            and not self.partners.sits_out(follower)
        ):
            return False
        return all(map(self.entrance.admits, members))

    @property
    def _far_max(self) -> int:
        return max(FAR_MAX, len(self._transport.peers()))

    def _is_among_few(self, author: PeerId, head: bytes) -> bool:
        """Returns whether a stranger without a connection is one of the few that may be ready for a
        head."""
        if head not in self._far_ready and len(self._far_ready) >= FAR_HEADS_MAX:
            del self._far_ready[next(iter(self._far_ready))]
        far = self._far_ready.setdefault(head, set())
        if author not in far and len(far) < self._far_max:
            far.add(author)
        return author in far

    # Commit records

    def is_known(self, commit: Commit) -> bool:
        """Returns whether the chain has a commit record."""
        return digest_of(commit.header) in self._chain

    def open_commit(self, commit: Commit) -> Header:
        """Returns the header of a commit record that counts in this run.

        Raises:
            RemoteProtocolError: its roster and votes do not prove it, its members claim work that
                they cannot have done, or the run does not admit one of them.
        """
        header = open_commit(commit, self.run_id, verify, self._ring_rules)
        self._bounds.check_header(header)
        self.entrance.require_known([PeerId(member.peer_id) for member in header.members])
        return header
