"""The tree that committed headers form, in memory: ways from one head to another."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.node.storage.chain.chain_start import ChainStart
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.chain import Header, check_follows


@dataclass(frozen=True)
class Entry:
    """The record of one committed round that is kept in memory."""

    head: Digest
    round: int
    parent: Digest
    tokens_total: int
    state_digest: Digest
    num_bytes: int = 0
    """Length of the commit record."""

    def is_parent_of(self, header: Header) -> bool:
        """Returns whether a header follows this round and counts its tokens right."""
        try:
            check_follows(header, self.head, self.round, self.tokens_total)
        except MalformedError:
            return False
        return True


class ChainTree:
    """The entries of all known rounds. `genesis` is the run id, round 0.

    It has more than 15 public methods: each is a question about the tree, which only this class can
    answer without walking through all rounds.
    """

    def __init__(self, genesis: Digest, genesis_state: Digest) -> None:
        self.genesis = genesis
        self.root = genesis
        """The head that the oldest round of the kept chain follows."""
        self.start: ChainStart | None = None
        """The start of the kept chain; None while it begins with the run."""
        self.pinned_head: Digest | None = None
        """The head that the link named by which this node joined. It is remembered when the rounds
        up to it go."""
        self._entries = {genesis: Entry(genesis, 0, genesis, 0, genesis_state)}
        # These follow the entries, so that no question takes longer the older the run is.
        self._children: dict[Digest, list[Digest]] = {}
        self._tips: dict[Digest, None] = {genesis: None}
        """Heads without a known child, in the order in which they became that."""
        self._path_bytes: dict[Digest, int] = {genesis: 0}
        """Bytes of the records on the way to a head, of those that have all of them."""
        self._num_bytes = 0
        """Bytes of all records."""
        self.num_reshaped = 0
        """How often known heads got another way to the root: a missing record between has come, or
        the root is another one."""

    def __contains__(self, head: bytes) -> bool:
        return head in self._entries

    def entry(self, head: Digest) -> Entry:
        """Returns the entry of a head; KeyError for an unknown head."""
        return self._entries[head]

    def may_follow(self, parent: Digest) -> bool:
        """Returns whether a new round of this parent is taken: it is known, and no round before the
        start, of which the chain has one way only."""
        entry = self._entries.get(parent)
        if entry is None or self.start is None:
            return entry is not None
        return self.is_whole(parent) and entry.round >= self.start.round

    def is_linked(self, head: Digest) -> bool:
        """Returns whether the way from a known head to the newer ones can be told."""
        return head in self._entries and (self.start is None or self.is_whole(head))

    def gap_before(self, head: Digest) -> int | None:
        """Returns the newest round on the way to a known head whose record is missing, as when the
        disk damaged it; None if the way is whole, or is none from the start."""
        oldest = self.oldest_behind_gap(head)
        return None if oldest is None else oldest.round - 1

    def oldest_behind_gap(self, head: Digest) -> Entry | None:
        """Returns the round after the missing one of `gap_before`; None if no record is missing."""
        oldest = entry = None if self.is_whole(head) else self._entries.get(head)
        first = 0 if self.start is None else self.start.round
        while entry is not None and entry.round > first:
            oldest, entry = entry, self._entries.get(entry.parent)
        return oldest if entry is None else None

    def follows_start(self, head: Digest) -> bool:
        """Returns whether a known head is one of the kept chain, also where a record on the way to
        it is missing. The state of such a head is as good as any, and a peer may have the
        record."""
        return self.is_linked(head) or self.gap_before(head) is not None

    def is_before_gap(self, earlier: Digest, head: Digest) -> bool:
        """Returns whether a whole head is older than the record that is missing on the way to a
        known head. The rounds on both sides of a record that the disk lost were proven before it
        did."""
        gap = self.gap_before(head)
        is_older = gap is not None and earlier in self and self.entry(earlier).round < gap
        return is_older and self.is_whole(earlier)

    def passed_on_way(self, head: Digest) -> tuple[bytes, ...]:
        """Returns what a start at a known head says of the head of the link (`ChainStart.passed`).
        Without it no head would be allowed any more where the summary does not name that one."""
        pin = self.pinned_head
        if pin is not None and (
            self.is_before_gap(pin, head) or pin in self.ancestors(head, len(self))
        ):
            return (pin,)
        return () if self.start is None else self.start.passed

    def pieces_to(self, head: Digest) -> list[list[Digest]]:
        """Returns the rounds after the start on the way to a known head, oldest first, in pieces:
        the records between them are missing.

        Before a missing record the newest known round counts as the way that has no more tokens.
        """
        first = 0 if self.start is None else self.start.round
        pieces: list[list[Digest]] = []
        newest: Entry | None = self._entries.get(head)
        while newest is not None and newest.round > first:
            piece: list[Digest] = []
            oldest = newest
            entry: Entry | None = newest
            while entry is not None and entry.round > first:
                piece.append(entry.head)
                oldest, entry = entry, self._entries.get(entry.parent)
            pieces.append(piece[::-1])
            newest = None if entry is not None else self._newest_before(oldest)
        return pieces[::-1]

    def _newest_before(self, later: Entry) -> Entry | None:
        """Returns the newest round that may be on the way to a round whose parent is missing."""
        possible = [
            entry
            for entry in list(self._entries.values())  # at once, while another thread adds
            if entry.round < later.round - 1 and entry.tokens_total <= later.tokens_total
        ]
        return max(
            possible, key=lambda each: (each.round, each.tokens_total, each.head), default=None
        )

    def _way_before(self, start: ChainStart) -> list[Digest]:
        """Returns the heads after that before a start and up to its checkpoint, the newest first;
        nothing if one of them is not here."""
        way: list[Digest] = []
        entry = self._entries.get(Digest(start.head))
        while entry is not None and entry.head != start.before:
            if entry.round <= start.before_round:
                return []
            way.append(entry.head)
            if entry.parent == start.before:
                return way
            entry = self._entries.get(entry.parent)
        return []

    def _behind_gaps(self, start: ChainStart) -> list[Digest]:
        """Returns the newest heads of rounds that do not follow a start because a record between is
        damaged. The node's state may be of one of them, and a peer may have that record."""
        heads: list[Digest] = []
        for head in self._tips:
            entry: Entry | None = self._entries[head]
            while entry is not None and entry.round > start.round:
                entry = self._entries.get(entry.parent)
            if entry is None:
                heads.append(head)
        return heads

    @property
    def has_unlinked(self) -> bool:
        """Whether rounds are here that do not follow the start, as after a long absence."""
        return self.start is not None and len(self._entries) > len(self._path_bytes) + 1

    def path_between(self, ancestor: Digest, head: Digest) -> list[Digest] | None:
        """Heads after `ancestor` up to `head`, oldest first; None if it is no known ancestor."""
        path: list[Digest] = []
        first = self._entries.get(ancestor)
        entry = self._entries.get(head)
        while first is not None and entry is not None and entry.round > first.round:
            if entry.head == self.root:
                return None
            path.append(entry.head)
            entry = self._entries.get(entry.parent)
        return path[::-1] if entry is not None and entry is first else None

    def is_whole(self, head: Digest) -> bool:
        """Returns whether every round on the way to a head is known."""
        return head in self._path_bytes

    def only_in(self, head: Digest, other: Digest) -> list[Digest]:
        """Heads on the way to a known `head` that are not on the way to a known `other`."""
        mine, beginning = self._entries.get(head), self._entries[self.genesis]
        theirs = self._entries.get(other, beginning)
        found: list[Digest] = []
        while mine is not None and mine.head != theirs.head:
            if theirs.round >= mine.round:
                # Where a record is missing, the rounds before it are not known to be in common.
                theirs = self._entries.get(theirs.parent, beginning)
            elif mine.head == self.root:
                break  # the two have no known round in common
            else:
                found.append(mine.head)
                mine = self._entries.get(mine.parent)
        return found

    def ancestors(self, head: Digest, num_rounds: int) -> list[Digest]:
        """A known head and up to `num_rounds` before it, newest first."""
        found = [head]
        while len(found) <= num_rounds:
            entry = self._entries.get(found[-1])
            if entry is None or entry.head in (self.genesis, self.root):
                break
            found.append(entry.parent)
        return found

    def tips(self) -> list[Digest]:
        """Known heads without a known child."""
        return list(self._tips)  # at once, while another thread adds

    def rounds_beside(self, head: Digest) -> int:
        """Number of the rounds that are not on the way to a known head."""
        num_on_way = self._entries[head].round - self._entries[self.root].round
        return len(self._entries) - len({self.genesis, self.root}) - num_on_way

    def bytes_beside(self, head: Digest) -> int:
        """Bytes of the records that are not on the way to a known head."""
        return self._num_bytes - self._path_bytes.get(head, 0)

    def __len__(self) -> int:
        return len(self._entries)

    def heads_by_weight(self) -> list[Digest]:
        """Known heads whose chain is complete, the one with the most tokens first."""
        leaves = [self._entries[head] for head in self.tips() if self.is_whole(head)]
        leaves.sort(key=lambda entry: (-entry.tokens_total, entry.head))
        return [entry.head for entry in leaves] or [self.root]

    def _link(self, entry: Entry) -> None:
        """Brings what follows the entries up to date with a new one."""
        head, parent = entry.head, entry.parent
        self._children.setdefault(parent, []).append(head)
        self._tips.pop(parent, None)
        if head in self._children:
            self.num_reshaped += 1
        else:
            self._tips[head] = None
        self._num_bytes += entry.num_bytes
        new = [head] if parent in self._path_bytes else []
        while new:
            entry = self._entries[new.pop()]
            self._path_bytes[entry.head] = self._path_bytes[entry.parent] + entry.num_bytes
            new += self._children.get(entry.head, ())

    def _unlink(self, head: Digest) -> Entry:
        """Takes an entry out."""
        entry = self._entries.pop(head)
        self._tips.pop(head, None)
        self._path_bytes.pop(head, None)
        self._num_bytes -= entry.num_bytes
        siblings = self._children[entry.parent]
        siblings.remove(head)
        if not siblings:
            del self._children[entry.parent]
            if entry.parent in self._entries:
                self._tips[entry.parent] = None
        return entry
