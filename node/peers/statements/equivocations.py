"""Peers that sign two statements which contradict each other: found, told to all, and banned.

`protocol/policy/conduct/equivocation.py` says what a proof is. The statement store keeps one proof
about a peer, and comparisons of stores bring it to nodes that gossip has not reached.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

import structlog

from gossamer.node.network.identity import verify
from gossamer.node.peers.offences import Offences
from gossamer.protocol import limits
from gossamer.protocol.errors import EquivocationError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.conduct.equivocation import (
    ReadyWitness,
    number_of,
    open_equivocation,
    subject_of,
)
from gossamer.protocol.policy.statement_store import StatementStore
from gossamer.protocol.wire.statements import (
    Equivocation,
    Ready,
    Roster,
    Signed,
    Statement,
    proof_key,
)

JUDGED_MAX = limits.MEMBERS_MAX
"""Peers of which this node remembers that it has banned them for a proof."""

NUMBERS_MAX = 16
"""Numbers of one peer that are remembered, the newest ones. An honest peer never has one. A proof
about a forgotten one bans its author anew, which costs nobody else anything."""

log = structlog.get_logger("peers")


class Equivocations:
    """The proofs that one node knows."""

    def __init__(
        self,
        me: PeerId,
        run_id: Digest,
        offences: Offences,
        is_known: Callable[[PeerId], bool],
        say: Callable[[Equivocation], Signed],
        statement_store: StatementStore,
    ) -> None:
        """
        Args:
            is_known: whether a peer is connected, or has announced itself. Others are not banned:
                keys that nobody has seen would fill the table of bans.
            say: signs a statement and sends it to all peers.
        """
        self._me = me
        self._run_id = run_id
        self._offences = offences
        self._is_known = is_known
        self._say = say
        self._store = statement_store
        self._witness = ReadyWitness(run_id, verify)
        self._judged: OrderedDict[PeerId, deque[tuple[int, ...]]] = OrderedDict()
        """The numbers for which each peer was banned. The highest one would not do: a peer chooses
        its numbers, and after a proof with a huge one it could contradict itself as it likes."""

    def admits(self, proof: Equivocation) -> bool:
        """Returns whether this node takes a proof: it does so once for each number of a peer.

        Raises:
            RemoteProtocolError: it is no proof.
        """
        open_equivocation(proof, self._run_id, verify)
        return self._is_new(proof) or self._offences.is_banned(PeerId(proof.first.author))

    def is_kept(self, proof: Equivocation) -> bool:
        """Returns whether a proof is kept for others: as long as this node bans for it."""
        return self._offences.is_banned(PeerId(proof.first.author))

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A statement of another peer whose signature is good, news or not."""
        if isinstance(statement, Equivocation):
            self._judge(statement)
        elif isinstance(statement, Ready):
            self.found(self._witness.heard(signed, statement))
        elif isinstance(statement, Roster):
            for member in statement.members:
                self.found(self._witness.quoted(member))

    def met(self, peer: PeerId) -> None:
        """A peer has announced itself. A proof about it may have come before."""
        proof = self._store.get(proof_key(peer))
        if isinstance(proof, Equivocation):
            self._judge(proof)

    def found(self, proof: Equivocation | None) -> None:
        """Tells of a proof that was found here, if it is one."""
        if proof is None:
            return
        accused = PeerId(proof.first.author)
        if self._store.get(proof_key(accused)) is None and self._is_new(proof):
            self._say(proof)
        self._judge(proof)

    def _is_new(self, proof: Equivocation) -> bool:
        return number_of(proof) not in self._judged.get(PeerId(proof.first.author), ())

    def _judge(self, proof: Equivocation) -> None:
        """Bans a peer for a proof that was checked."""
        accused = PeerId(proof.first.author)
        if not self._is_new(proof):
            return
        if accused == self._me:
            log.error(
                "another program uses this node's key: both have signed for one round, and others "
                "ban this node. Let only one of them run"
            )
        elif not self._is_known(accused):
            return
        judged = self._judged.setdefault(accused, deque(maxlen=NUMBERS_MAX))
        judged.append(number_of(proof))
        self._judged.move_to_end(accused)
        if len(self._judged) > JUDGED_MAX:
            self._judged.popitem(last=False)
        what = subject_of(proof)
        self._offences.note(accused, EquivocationError(f"it has signed two {what}"))
