"""The newest signed statement of every author and kind, for gossip and anti-entropy.

Gossip loses messages, so nothing may depend on one of them. Every peer stores the statements that
still matter. From time to time two peers compare their stores over a stream and send each other the
missing statements. Merging stores is idempotent and does not depend on order: of two statements
with one key and one version (only a dishonest author signs such) the one with the lower digest
stays.

The statements that matter are every living author's announcement, and all that belong to the
current head.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest
from gossamer.protocol.wire.statements import (
    TAG_BYTES,
    Announce,
    Extension,
    MoreData,
    RingStatement,
    Rollback,
    Signed,
    Statement,
    key_of,
    version_of,
)

STATEMENTS_MAX = 8 * limits.MEMBERS_MAX
"""Announcement, Ready, Vote and a few rosters and accusations for every possible member."""

REPLY_BYTES_MAX = limits.FRAME_MESSAGE_BYTES_MAX // 2
"""Statements in one anti-entropy reply; the next reply brings the rest."""

STRANGERS_REPLY_BYTES_MAX = REPLY_BYTES_MAX // 2
"""Of these by authors without standing. The asker may refuse all of it, because other peers are
connected to it: then it pays for no more than this. What a thousand newcomers say of one round
takes some thirty replies, where gossip lost all of it. A stranger's roster of more bytes, of some
200 members behind routers, comes by gossip or from its author, which has standing to itself."""

STATEMENT_BYTES_MAX = REPLY_BYTES_MAX
"""A statement that does not fit a reply could never be handed on."""

AUTHOR_STATEMENTS_MAX = limits.RING_MEMBERS_MAX + 64
"""Statements of one author: an accusation of every member of a ring, and a few of every other kind.
So one bad peer cannot fill the store."""

AUTHOR_BYTES_MAX = 1 * limits.MIB
"""Bytes of one author: some rosters of the largest ring."""

STATEMENT_STORE_BYTES_MAX = 64 * limits.MIB
"""Bytes of all authors, so that many bad peers cannot take the node's memory."""

STRANGER_BYTES_MAX = 256 * limits.KIB
"""Bytes of one author without standing: the largest roster, or a few of a usual ring."""

STRANGERS_BYTES_MAX = 16 * limits.MIB
"""Bytes of all authors without standing. A thousand newcomers need some 4 MiB for what they say of
one round."""

_OVERHEAD_BYTES = 200
"""Author, signature and the reply's msgpack, for every statement."""


class _Entry(NamedTuple):
    statement: Statement
    signed: Signed
    num_bytes: int


class StatementStore:
    """Newest statement by key. Insertion order is kept, so that replies are deterministic."""

    def __init__(
        self,
        near: Callable[[], Collection[str]] = tuple,
        has_standing: Callable[[str], bool] = lambda _author: True,
    ) -> None:
        """
        Args:
            near: authors that are connected here. Other authors make room for them.
            has_standing: whether an author has taken part in the newest rounds. Others have less
                room, each and together.
        """
        self._near = near
        self.has_standing = has_standing
        self._digests: set[Digest] = set()
        self._entries: dict[tuple[str, ...], _Entry] = {}
        self._old: set[tuple[str, ...]] = set()
        self._count_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._num_bytes = 0
        self._dropped: deque[bytes] = deque(maxlen=STATEMENTS_MAX)
        """Tags of statements that were not wanted any more, the newest last."""

    def post(self, signed: Signed, statement: Statement) -> bool:
        """Takes a checked statement. Returns whether it was new."""
        key = key_of(signed.author, statement)
        known = self._entries.get(key)
        if known is not None:
            old, new = version_of(known.statement), version_of(statement)
            if old > new or (old == new and known.signed.digest <= signed.digest):
                return False
        entry = _Entry(statement, signed, len(signed.payload) + _OVERHEAD_BYTES)
        if not self._may_say_more(entry, known):
            return False
        if known is not None:
            self._forget(key)
        while not self._has_room(entry):
            victim = self._victim_of(entry)
            if victim is None:
                return False
            self._forget(victim)
        self._entries[key] = entry
        self._remember(entry)
        return True

    def get(self, key: tuple[str, ...]) -> tuple[Signed, Statement] | None:
        """Returns the statement with a key (`key_of`) and its envelope, if there is one."""
        entry = self._entries.get(key)
        return None if entry is None else (entry.signed, entry.statement)

    def find(self, kind: type[Statement]) -> dict[bytes, Signed]:
        """Returns the statements of one kind, by the first `TAG_BYTES` bytes of their digests."""
        return {
            entry.signed.digest[:TAG_BYTES]: entry.signed
            for entry in self._entries.values()
            if isinstance(entry.statement, kind)
        }

    def has(self, digest: Digest) -> bool:
        """Returns whether the store has this very statement."""
        return digest in self._digests

    def age(self) -> None:
        """Drops statements about rings that arrived before the previous call.

        The caller does so at every new head: statements about a ring of two heads ago have no use.
        """
        self._drop(
            [
                key
                for key, entry in self._entries.items()
                if key in self._old and isinstance(entry.statement, RingStatement)
            ]
        )
        self._old = set(self._entries)

    def keep(self, wanted: Callable[[Signed, Statement], bool]) -> None:
        """Drops every statement that is not wanted any more."""
        self._drop(
            [
                key
                for key, entry in self._entries.items()
                if not wanted(entry.signed, entry.statement)
            ]
        )

    def take_dropped(self) -> list[bytes]:
        """Returns the tags of what `age` and `keep` have dropped since the last call, the newest
        `STATEMENTS_MAX`. Another peer may hold it still, and would send it again."""
        tags = list(self._dropped)
        self._dropped.clear()
        return tags

    def tags(self) -> list[bytes]:
        """Returns the first `TAG_BYTES` bytes of each statement's digest."""
        return [entry.signed.digest[:TAG_BYTES] for entry in self._entries.values()]

    def missing_from(self, held: Collection[bytes]) -> list[Signed]:
        """Statements whose tag is not among `held`, up to `REPLY_BYTES_MAX`.

        The asker may refuse what this node took, and lack it the next time as well. So `_in_turns`
        says what comes first, and strangers fill a part of the reply.
        """
        known = set(held)
        missing = [
            entry
            for entry in self._entries.values()
            if entry.signed.digest[:TAG_BYTES] not in known
        ]
        if not missing:
            return []
        standing = {*filter(self.has_standing, self._bytes_of)}
        chosen: set[int] = set()
        num_bytes = of_strangers = 0
        for index, is_strangers in _in_turns(missing, standing):
            size = missing[index].num_bytes
            if num_bytes + size > REPLY_BYTES_MAX:
                continue
            if is_strangers:
                if of_strangers + size > STRANGERS_REPLY_BYTES_MAX:
                    continue
                of_strangers += size
            num_bytes += size
            chosen.add(index)
        return [entry.signed for index, entry in enumerate(missing) if index in chosen]

    def statements(self) -> list[tuple[Signed, Statement]]:
        return [(entry.signed, entry.statement) for entry in self._entries.values()]

    def _may_say_more(self, entry: _Entry, replaced: _Entry | None) -> bool:
        author = entry.signed.author
        num_more = 0 if replaced is not None else 1
        more_bytes = entry.num_bytes - (replaced.num_bytes if replaced is not None else 0)
        bytes_max = AUTHOR_BYTES_MAX if self.has_standing(author) else STRANGER_BYTES_MAX
        return (
            entry.num_bytes <= STATEMENT_BYTES_MAX
            and self._count_of[author] + num_more <= AUTHOR_STATEMENTS_MAX
            and self._bytes_of[author] + more_bytes <= bytes_max
        )

    def _has_room(self, entry: _Entry) -> bool:
        return (
            len(self._entries) < STATEMENTS_MAX
            and self._num_bytes + entry.num_bytes <= STATEMENT_STORE_BYTES_MAX
            and not self._is_beyond_strangers_share(entry)
        )

    def _is_beyond_strangers_share(self, entry: _Entry) -> bool:
        """Returns whether a statement is a stranger's and strangers have no room for it."""
        if self._num_bytes + entry.num_bytes <= STRANGERS_BYTES_MAX:
            return False
        if self.has_standing(entry.signed.author):
            return False
        strangers = (author for author in self._bytes_of if not self.has_standing(author))
        of_strangers = sum(self._bytes_of[author] for author in strangers)
        return of_strangers + entry.num_bytes > STRANGERS_BYTES_MAX

    def _victim_of(self, entry: _Entry) -> tuple[str, ...] | None:
        """Key of the statement that makes room in a full store; None: the new one has to wait.

        Far authors make room for near ones. Otherwise the author with the most statements does, if
        it has more than the author of the new one would have. So no number of authors can keep a
        few from being heard. A stranger makes no other author give way than strangers, while it is
        the strangers' room that is full.
        """
        near = self._near()

        def weight(author: str, more: int = 0, more_bytes: int = 0) -> tuple[bool, float]:
            count, size = self._count_of[author] + more, self._bytes_of[author] + more_bytes
            return (
                author not in near,
                max(count / STATEMENTS_MAX, size / STATEMENT_STORE_BYTES_MAX),
            )

        authors = sorted({old.signed.author for old in self._entries.values()})
        if self._is_beyond_strangers_share(entry):
            authors = [author for author in authors if not self.has_standing(author)]
        heaviest = max(authors, key=weight)
        if weight(heaviest) <= weight(entry.signed.author, 1, entry.num_bytes):
            return None
        return next(key for key, old in self._entries.items() if old.signed.author == heaviest)

    def _remember(self, entry: _Entry) -> None:
        self._digests.add(entry.signed.digest)
        self._count_of[entry.signed.author] += 1
        self._bytes_of[entry.signed.author] += entry.num_bytes
        self._num_bytes += entry.num_bytes

    def _forget(self, key: tuple[str, ...]) -> None:
        entry = self._entries.pop(key)
        author = entry.signed.author
        self._digests.discard(entry.signed.digest)
        self._count_of[author] -= 1
        self._bytes_of[author] -= entry.num_bytes
        self._num_bytes -= entry.num_bytes
        if not self._count_of[author]:  # authors come and go
            del self._count_of[author], self._bytes_of[author]

    def _drop(self, keys: Iterable[tuple[str, ...]]) -> None:
        """Statements are not wanted any more."""
        for key in keys:
            self._dropped.append(self._entries[key].signed.digest[:TAG_BYTES])
            self._forget(key)


def _in_turns(missing: Sequence[_Entry], standing: Collection[str]) -> list[tuple[int, bool]]:
    """Returns the places of these entries, in the order in which they may fill a reply, and whether
    each counts as a stranger's.

    - First what authors with standing say, and orders to all, which few may sign. Then what makes
      a newcomer known: the announcements of others. Then the rest.
    - In each class the author that has said least has its turn. So nobody keeps others out, however
      much it says.
    """
    said = Counter[tuple[int, str]]()
    turns: list[tuple[int, int, int]] = []
    for index, (statement, signed, num_bytes) in enumerate(missing):
        if signed.author in standing or isinstance(statement, Rollback | Extension | MoreData):
            rank = 0
        else:
            rank = 1 if isinstance(statement, Announce) else 2
        said[rank, signed.author] += num_bytes
        turns.append((rank, said[rank, signed.author], index))
    return [(index, rank > 0) for rank, _, index in sorted(turns)]
