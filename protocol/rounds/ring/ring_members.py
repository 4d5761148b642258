"""The members that are out of a ring, derived from what its members say of each other, and the
order of those that are living.

This is the only place that derives from accusations who is out. Others decide when a member is
accused: `followed_ring` if nothing moves, `link_rates` if a link is slow, and the node if a stream
fails or is silent (`node.rounds.dispatcher`).

Rules of accusations
--------------------
- A member is out for good once a member that is not out accuses it, or once it accuses itself.
- An accusation by a member that is out does not count. So a machine that lost its network, and
  accuses all members when it is back, does no harm.
- A member that hears that it is out accuses itself.
- All accusers of a member may come to be out themselves. Then this peer repeats the accusation in
  its own name: other members may have heard first that the accusers are out, and would wait for a
  member that this peer passes over.
- A member that is out and accuses another does not know that it is out, because it believes its
  accusers to be out. This peer accuses it in its own name, so that it does not wait for this peer.
- A member that repeats an accusation knows nothing of its own. Where the first accuser was heard
  too, be it out by then or not, that one is the accuser in all that follows. Otherwise one that
  lets some members hear that it is out before the rest would make these repeat what looks made up.
  So one that repeats an accusation sends the first one on as well: where there are many peers
  nobody else does, and its author may have said it to one alone.

So two members that believe each other living come to exclude the same members. For a proof take the
first removal on which they differ. The accuser is living for one of them, and this one repeats or
relays the accusation, which the other has to accept.

Rules of doubts
---------------
A ring believes every accusation, because it cannot go on with two members that do not reach each
other. So one member could keep the same other one out of every ring. This peer doubts some members:
those that lately put out a member which was at work all the same (`policy.conduct.ring_conduct`).

- An accusation by a doubted member is held for `ANSWER_SECONDS`. Then it counts as any other does.
- A member that a doubted one accuses answers: it accuses the accuser in turn, with the reason
  `BASELESS`. A member that has died or is frozen cannot answer.
- An answer counts before the accusation that it answers, so its author stays in and the accuser is
  out. An answer that comes before its accusation is held for `ANSWER_SECONDS` as well.

To hold an accusation is the same as to hear it later, and an answer is an accusation like any
other. So members that doubt different peers still come to exclude the same members. If they do not
agree, both members may be out in the end.

Rules of living members
-----------------------
- The first member of a chunk is the one that starts it while nobody is out. If that member is out,
  the next living one starts the chunk.
- The chunk is finished by the last living member of the walk that begins at the first one: by the
  member before the first one, or by the next one before that if it is out, and so on.
- Members hear at different times of those that are out. So an average is taken also from a member
  that finished before it went out: each member that is out, with no living one between it and the
  first member, may have done so.

The members that finish a chunk, or may have done so, only become more while members go out. So an
average that was taken stays one that others take.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.ring_conduct import VotesSeen
from gossamer.protocol.rounds.actions import Contested, Removed

REPEATED = "is out"
"""The reason of an accusation that a member repeats (`Accusations.to_repeat`)."""

ACCUSED_BY = "accused by"
"""The reason of a member that leaves because another one accuses it begins so."""

FOLLOWS_ANOTHER = "follows another ring"
"""The reason of a member that leaves a ring, or does not follow it, because it is in another."""


class Accusations:
    """One member's view of which members are out of one ring, and how they came to be."""

    def __init__(self, members: Sequence[PeerId], me: PeerId) -> None:
        """`members`: in ring order."""
        self._members = tuple(members)
        self._me = me
        self._accusers: dict[PeerId, set[PeerId]] = {}
        self.out: frozenset[PeerId] = frozenset()
        self._unaware: dict[PeerId, set[PeerId]] = {}
        """Members that are out and accuse others, each with these."""
        self._repeated: set[tuple[PeerId, PeerId]] = set()
        """Members and those that they accuse because others do."""
        self._removed: dict[PeerId, Removed] = {}

    def accuse(self, author: PeerId, accused: PeerId, *, is_repeated: bool = False) -> bool:
        """Takes an accusation in the order of arrival. Returns whether the accused is newly out.

        Args:
            is_repeated: whether its author only repeats what another member says.
        """
        if author not in self._members or accused not in self._members:
            return False
        if author in self.out and author != accused:
            self._unaware.setdefault(author, set()).add(accused)
            return False
        self._accusers.setdefault(accused, set()).add(author)
        if is_repeated:
            self._repeated.add((author, accused))
        if accused in self.out:
            return False
        self.out |= {accused}
        return True

    def accusers_of(self, peer: PeerId) -> frozenset[PeerId]:
        """The others that accuse a member, and do not only repeat what another one says."""
        accusers = self._accusers.get(peer, set()) - {peer}
        return frozenset(each for each in accusers if (each, peer) not in self._repeated)

    def accusers_outside(self, peer: PeerId) -> frozenset[PeerId]:
        """The members that accuse a member and do not count, because they were out by then."""
        return frozenset(author for author, said in self._unaware.items() if peer in said)

    def word_of(self, heard: Heard) -> Heard:
        """Returns an accusation with the member as its author that said so first, where `heard`
        repeats what this peer did not believe."""
        outside = self.accusers_outside(heard.accused) if heard.reason == REPEATED else ()
        return replace(heard, author=min(outside)) if outside else heard

    def to_repeat(self) -> list[PeerId]:
        """Members that are out and that this peer has to accuse once in its own name."""
        if self._me in self.out:
            return []
        return [
            accused
            for accused, accusers in sorted(self._accusers.items())
            if accused not in accusers
            and self._me not in accusers
            and (accusers <= self.out or accused in self._unaware)
        ]

    def note_removed(
        self, heard: Heard, detail: str, *, votes: VotesSeen, still_seconds: float
    ) -> Removed:
        """Notes how a member came to be out, which it is newly.

        Args:
            heard: the accusation that put it out.
            detail: why this peer believes it.
            votes: what this peer sees of the votes.
            still_seconds: the longest time in which nothing had happened in the ring.
        """
        out_before = self.out - {heard.accused, heard.author}
        order = tuple(peer for peer in self._members if peer not in out_before)
        accusers = {heard.author, *(each.accuser for each in self._removed.values())}
        num_members = len(self._members)
        alone_of = num_members if len(order) == 2 and len(accusers) == 1 else 0
        removed = self._removed[heard.accused] = Removed(
            heard.accused, heard.reason, detail, heard.author, order, votes, heard.answers,
            alone_of, still_seconds, num_members,
        )  # fmt: skip
        return removed

    @property
    def follow_another_ring(self) -> bool:
        """Returns whether members are out because they are in another ring, as they said."""
        return any(
            removed.accuser == peer and removed.reason == FOLLOWS_ANOTHER
            for peer, removed in self._removed.items()
        )

    def contested(self, heard: Heard) -> list[Contested]:
        """What a member that is out says of itself: that it is at work, and who accused it.

        It does not count where its accuser may have waited long enough for its vote, nor where
        several members put it out while chunks went round, beside those that repeat what others
        say. In the vote hardly anybody else has a reason to accuse it, so several that do lie
        together.
        """
        removed = self._removed.get(heard.accused)
        if (
            heard.author != heard.accused
            or not heard.reason.startswith(ACCUSED_BY)
            or removed is None
            or removed.votes.is_late
            or removed.votes.may_be_late
        ):
            return []
        accusers = self.accusers_of(heard.accused)
        if removed.reason == REPEATED:
            accusers |= self.accusers_outside(heard.accused)
        if accusers - {removed.accuser} and not removed.votes.have_begun:
            return []
        return [Contested(removed.accuser, heard.accused, len(removed.order))]


ANSWER_SECONDS = 2.0
"""Time for the accused to hear the accusation and to be heard itself. Gossip takes a second at
most. An accusation of a dead member comes into effect so much later, if its author is doubted."""

BASELESS = "accuses without a cause"
"""The reason of an answer."""


@dataclass(frozen=True)
class Heard:
    """An accusation of one member by another one."""

    author: PeerId
    accused: PeerId
    reason: str
    answers: str | None = None
    """The reason of the accusation that this one answers; None: it answers none."""


class Doubts:
    """The accusations that one member holds in one ring, at most one of each pair of members."""

    def __init__(self, doubted: Collection[PeerId] = ()) -> None:
        self._doubted = frozenset(doubted)
        self._held: dict[tuple[PeerId, PeerId], tuple[float, Heard]] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._doubted

    def heard(self, now: float, heard: Heard) -> list[Heard]:
        """Takes an accusation. Returns those that count now, in this order."""
        if heard.author == heard.accused:
            return [heard]
        _, other = self._held.get((heard.accused, heard.author), (0.0, None))
        if other is not None and heard.accused in self and heard.reason == BASELESS:
            return self._answered(heard, other)
        if other is not None and heard.author in self and other.reason == BASELESS:
            return self._answered(other, heard)
        if heard.author in self or (heard.accused in self and heard.reason == BASELESS):
            self._held.setdefault((heard.author, heard.accused), (now + ANSWER_SECONDS, heard))
            return []
        return [heard]

    def due(self, now: float) -> list[Heard]:
        """Returns the accusations that nobody answered in time."""
        due = [key for key, (due_seconds, _) in self._held.items() if now >= due_seconds]
        return [self._held.pop(key)[1] for key in due]

    def _answered(self, answer: Heard, accusation: Heard) -> list[Heard]:
        for each in (answer, accusation):
            self._held.pop((each.author, each.accused), None)
        return [replace(answer, answers=accusation.reason), accusation]


class LivingMembers:
    """The order of one ring, with the members that one of them believes living."""

    def __init__(self, members: Sequence[PeerId], me: PeerId, starters: Sequence[int]) -> None:
        """
        Args:
            members: in ring order.
            starters: positions of the members that start chunks, in turn.
        """
        if me not in members:
            raise LocalProtocolError("not a member of this ring")
        self.members = tuple(members)
        self.position = self.members.index(me)
        """This member's."""
        self._starters = starters
        self.living = self.members
        """Members that are not out, in ring order."""
        self._mask = (1 << len(self.members)) - 1
        self.successor = self._next_living()
        """The next living member; None: no other member is living."""

    @property
    def is_out(self) -> bool:
        """Returns whether this member itself is out."""
        return not self._mask >> self.position & 1

    def num_missing(self, mask: int) -> int:
        """The number of living members that a sum of the members of `mask` lacks."""
        return (self._mask & ~mask).bit_count()

    def remove(self, member: PeerId) -> None:
        """A member is out of this ring for good."""
        self.living = tuple(each for each in self.living if each != member)
        self._mask &= ~(1 << self.members.index(member))
        self.successor = self._next_living()

    def starts(self, chunk: int) -> bool:
        """Returns whether this member is the one that starts a chunk."""
        num_members, first = len(self.members), self.first(chunk)
        walk = (self.members[(first + offset) % num_members] for offset in range(num_members))
        starter = next((member for member in walk if member in self.living), None)
        return starter == self.members[self.position]

    def first(self, chunk: int) -> int:
        """The position of the member that starts a chunk while nobody is out."""
        return self._starters[chunk % len(self._starters)]

    def finishes(self, chunk: int, position: int) -> bool:
        """Returns whether the member at a position is the one that finishes a chunk."""
        return self.may_finish(chunk, position) and self.members[position] in self.living

    def may_finish(self, chunk: int, position: int) -> bool:
        """Returns whether the member at a position finishes a chunk, or could have done so before
        it went out."""
        num_members = len(self.members)
        after = (self.first(chunk) - position - 1) % num_members
        between = (self.members[(position + step) % num_members] for step in range(1, after + 1))
        return not any(member in self.living for member in between)

    def hops_left(self, chunk: int) -> int:
        """The living members behind this one up to the finisher of a chunk, 1 at least."""
        num_members, hops = len(self.members), 0
        for offset in range(1, num_members):
            position = (self.position + offset) % num_members
            hops += self.members[position] in self.living
            if self.finishes(chunk, position):
                break
        return max(hops, 1)

    def _next_living(self) -> PeerId | None:
        after_me = (*self.members[self.position + 1 :], *self.members[: self.position])
        return next((member for member in after_me if member in self.living), None)
