"""Bounds the commit records that peers bring and that are not on this node's own chain.

A record is a round that its members signed. A stranger may invent all of them, and sign a chain of
any length by itself. This node keeps such records, because they may be the way to a heavier head,
as far as a quota goes. The quota is small for branches of strangers, and large for branches whose
first round was signed by peers that had signed this node's own chain before the branch left it: the
others after a split, or those who went on while this machine slept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gossamer.node.peers.chain.chain_records import ChainRecords
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.limits import MIB
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.state.commit_records import encode_commit


@dataclass(frozen=True)
class RecordLimits:
    """Bounds in bytes: of one peer that brings records, and of all, for a peer may have any number
    of identities."""

    peer: int
    total: int


class RecordQuota:
    """The records of one kind that are kept."""

    def __init__(self, limits: RecordLimits) -> None:
        self._limits = limits
        self._brought: dict[Digest, Counter[PeerId]] = {}
        """Bytes of each record, by who brought them."""
        self._bytes_of: Counter[PeerId] = Counter()
        self._num_bytes = 0

    def admits(self, bringer: PeerId, num_bytes: int) -> bool:
        """Returns whether a peer may bring a record of so many bytes."""
        return self._bytes_of[bringer] + num_bytes <= self._limits.peer and self.has_room(num_bytes)

    def has_room(self, num_bytes: int) -> bool:
        """Returns whether some peer may bring a record of so many bytes."""
        return self._num_bytes + num_bytes <= self._limits.total

    def note(self, head: Digest, bringer: PeerId, num_bytes: int) -> None:
        """A peer has brought a record, or something that was not in it."""
        self._brought.setdefault(head, Counter())[bringer] += num_bytes
        self._bytes_of[bringer] += num_bytes
        self._num_bytes += num_bytes

    def keep(self, wanted: Callable[[Digest], bool]) -> None:
        """Gives back the room of records that are not wanted: they were forgotten, or are on the
        own chain by now."""
        self._brought = {head: each for head, each in self._brought.items() if wanted(head)}
        self._bytes_of = Counter()
        for brought in self._brought.values():
            self._bytes_of.update(brought)
        self._num_bytes = self._bytes_of.total()

    def __contains__(self, head: object) -> bool:
        return head in self._brought


STRANGERS = RecordLimits(2 * MIB, 16 * MIB)
"""Of branches that strangers began: some 500 rounds of eight members from each peer."""

KNOWN = RecordLimits(64 * MIB, 256 * MIB)
"""Of branches that peers with standing began: some 15,000 rounds of eight members."""

NEWCOMER = RecordLimits(256 * MIB, 1024 * MIB)
"""While this node's own chain has fewer than `NEWCOMER_ROUNDS` rounds, or was left for one that
begins at a signed checkpoint: it has to learn the run's chain, and knows nobody there."""

NEWCOMER_ROUNDS = STANDING_ROUNDS
"""Rounds of the own chain from which on its signers say who is known."""

SIDE_ROUNDS_MAX = 4096
"""Upper bound on committed rounds that are kept although no known head descends from them. A split
swarm makes a few hundred, and each costs some 2 KiB of disk and memory."""

SIDE_BYTES_MAX = 8 * MIB
"""Bytes of such rounds: a record of the largest ring has more than ten times as many as usual."""


class SideRecords:
    """Decides which records of others are kept, and forgets those that are of no use."""

    def __init__(
        self,
        committed: CommittedState,
        members_at: Callable[[Digest], Collection[PeerId]],
        records: ChainRecords,
        swarm: Swarm,
    ) -> None:
        """`members_at`: the peers with stake at a known head."""
        self._committed = committed
        self._members_at = members_at
        self._records = records
        self._swarm = swarm
        self._strangers = RecordQuota(STRANGERS)
        self._known = RecordQuota(KNOWN)
        self._newcomer = RecordQuota(NEWCOMER)
        self._settled: Digest | None = None
        """The committed head at which room was last given back: records go with a new one."""
        self._needs_room = False

    def admits(self, bringer: PeerId, commit: Commit, header: Header) -> bool:
        """Returns whether a checked record is kept, whose parent is known. If it is, it counts as
        the bringer's, and of a known round the votes that are new in it."""
        head, chain = digest_of(commit.header), self._committed.chain
        is_known = head in chain
        num_bytes = chain.bytes_of_votes(head, commit) if is_known else len(encode_commit(commit))
        if not num_bytes:
            return True
        quota = self._quota_of(commit, Digest(header.parent))
        if not quota.admits(bringer, num_bytes):
            self._settle()
            if not quota.has_room(num_bytes):
                self.make_room()
            if not quota.admits(bringer, num_bytes):
                return False
        quota.note(head, bringer, num_bytes)
        return True

    def _quota_of(self, commit: Commit, parent: Digest) -> RecordQuota:
        chain, mine = self._committed.chain, self._committed.entry
        if mine.round < NEWCOMER_ROUNDS or not chain.is_linked(mine.head):
            return self._newcomer
        if parent in self._known:
            return self._known
        if parent in self._strangers:
            return self._strangers
        depth = mine.round - chain.entry(parent).round
        if depth < 0 or chain.ancestors(mine.head, depth)[-1] != parent:
            return self._strangers  # a branch of an earlier life of this process
        standing = self._members_at(parent)
        is_known = any(vote.author in standing for vote in commit.votes)
        return self._known if is_known else self._strangers

    def _settle(self) -> None:
        """Gives back the room of records that were forgotten or are on the own chain by now."""
        chain, mine = self._committed.chain, self._committed.head
        if mine == self._settled:
            return
        self._settled = mine
        way = chain.path_between(chain.root, mine)
        own = {each for piece in chain.pieces_to(mine) for each in piece} if way is None else {*way}
        for quota in (self._strangers, self._known, self._newcomer):
            quota.keep(lambda head: head in chain and head not in own)

    def make_room(self) -> None:
        """At the next new head, forgets the committed rounds that are on the way to no head of a
        living peer, or to avoided ones only. Not at once: a thread may be committing a round."""
        self._needs_room = True

    def forget(self, is_avoided: Callable[[Digest], bool]) -> None:
        """Forgets rounds, if there are many of them or room is needed. Call it at a new head."""
        chain, entry = self._committed.chain, self._committed.entry
        num_beside, num_bytes = chain.rounds_beside(entry.head), chain.bytes_beside(entry.head)
        own = [entry.head]
        if chain.gap_before(entry.head) is not None:
            # The rounds before the missing record are this node's own ones, too.
            pieces = chain.pieces_to(entry.head)
            own = [piece[-1] for piece in pieces]
            num_bytes -= sum(chain.entry(each).num_bytes for piece in pieces for each in piece)
        is_much = num_beside > SIDE_ROUNDS_MAX or num_bytes > SIDE_BYTES_MAX
        if not is_much and not self._needs_room:
            return
        announced = {Digest(each.head) for each in self._swarm.living().values()}
        # A chain that is being learned is announced by a head that is not here yet.
        kept = announced | self._records.unfinished
        if self._needs_room:
            kept = {head for head in announced if head in chain and not is_avoided(head)}
            self._records.unfinished.clear()
        self._needs_room = False
        chain.forget_all_but([*own, *sorted(kept)])
