"""The choice of a head: by the members that worked together where two chains part.

Tokens are claims, keys cost nothing, and a chain of rounds that nobody trained is made in a second.
So the weight of a chain is neither its tokens nor its length. It is the standing of the members
that signed it.

Rules
-----
- The *stake* of a peer at a head is the sum of the tokens that the newest `STANDING_ROUNDS` rounds
  up to that head took of it. In each round no member counts for more than the lower median member,
  and at the end no peer for more than the lower median peer. So a minority of the members has a
  minority of the stake, whatever it claims. At the run's beginning the founder has the only stake.
  Headers alone say it, so all peers count alike.
- In an invite-only run the peers that came in through one member together count for at most a
  quarter of the stake at a fork (`branch_caps`): so one person gains nothing by inviting many
  identities of their own. Nodes whose rolls differ may count differently until they agree, within
  some seconds; a peer that a node does not know is a branch of its own there.
- The *support* of a chain, where it parts from another one, is the stake there of all peers that
  signed a round of it since. A peer counts once, however many rounds it signed. So no peer gains by
  making rounds quickly, and invented members weigh nothing.
- Of two chains the one with more support wins, then the one with more tokens, then the lower
  digest. Of several chains the choice goes from fork to fork, and at each fork to the branch with
  the most support, to which all its known heads contribute (GHOST, Sompolinsky and Zohar 2015).
- A peer undoes at most `UNDO_ROUNDS_MAX` rounds of its own chain. It undoes more only for a chain
  that at least half of the stake at the fork signed: that is the swarm, and this peer was cut off.
- A chain that goes on from this peer's own head undoes nothing (`counts`). It is followed at once
  when its signers have no less stake than the members that are at work on this head. One of a
  minority is followed when the time to be ready for this round has passed, for it may be that the
  others were late. One that begins with the commit of a ring that this peer followed, signed by
  most of its other members, is followed at once: so newcomers become members although the only
  member with stake was too slow for their ring. For the commit of such a ring the members that
  this peer doubts (`policy.conduct.ring_conduct`) do not count as at work: one that puts half of
  the others out would keep these from it. One without support is followed only while no peer
  with stake is at work on this head, this peer included. So newcomers go on where all members have
  left, and members that come back follow them.

A peer that goes on alone, because all others are gone, has its own stake behind its rounds and no
more. The others, when they are back, follow it if they are not at work on the head that they left,
and else they outweigh it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.members.branch_caps import BranchOf, branch_cap, capped_total
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.token_caps import capped_tokens

UNDO_ROUNDS_MAX = 16
"""Rounds of its own chain that a peer undoes without half of the stake. With rounds of a
minute it is a quarter of an hour; in partitions that last longer each side has a history that
people may have used."""

MEMORY = 4 * STANDING_ROUNDS
"""Stakes, signers, forks and anchors that are remembered: of the newest rounds and some heads."""


class Rounds(Protocol):
    """The committed rounds that a peer knows."""

    @property
    def num_reshaped(self) -> int:
        """How often known heads got another way to the beginning: a missing round between has
        come, or the rounds before a start have gone."""

    def parent_of(self, head: Digest, /) -> Digest:
        """Returns the head before a known head; the run's beginning is its own parent."""

    def round_of(self, head: Digest, /) -> int:
        """Returns the number of the round that led to a known head; 0: the run's beginning."""

    def tokens_total_of(self, head: Digest, /) -> int:
        """Returns the tokens in the chain of a known head."""

    def credits_of(self, head: Digest, /) -> Mapping[PeerId, int]:
        """Returns the members of which the round took tokens, each with these."""

    def signers_of(self, head: Digest, /) -> frozenset[PeerId]:
        """Returns the members that signed the round and of which it took tokens."""


class HeadWeight(NamedTuple):
    """The weight of a chain where it parts from another one. The greater one wins."""

    support: int
    """Stake at the fork of the peers that signed the chain since, in tokens."""
    tokens_total: int
    """Tokens in the whole chain."""


class HeadChoice:
    """The rules above, for the rounds that one peer knows."""

    def __init__(self, rounds: Rounds, founder: PeerId, branch_of: BranchOf | None = None) -> None:
        """`branch_of`: of each member of an invite-only run; None in other runs."""
        self.branch_of = branch_of
        self._rounds = rounds
        self._founder = founder
        self._stakes: OrderedDict[Digest, Mapping[PeerId, int]] = OrderedDict()
        self._signers: OrderedDict[tuple[Digest, Digest], frozenset[PeerId]] = OrderedDict()
        self._forks: OrderedDict[tuple[Digest, Digest], Digest] = OrderedDict()
        self._anchors: OrderedDict[tuple[Digest, Digest], Digest] = OrderedDict()
        self._best: OrderedDict[tuple[Digest, ...], Digest] = OrderedDict()
        """The head that wins among some, by these in order; not in invite-only runs, whose branches
        change."""
        self._num_reshaped = rounds.num_reshaped
        """The shape of the rounds that all of this is remembered of."""

    def _forget_other_shape(self) -> None:
        """Ways to the beginning have changed: two forks of before and after do not fit together,
        and a search from fork to fork would have no end."""
        if self._num_reshaped == self._rounds.num_reshaped:
            return
        self._num_reshaped = self._rounds.num_reshaped
        self._stakes.clear()
        self._signers.clear()
        self._forks.clear()
        self._anchors.clear()
        self._best.clear()

    def forget_signers(self, rounds: Iterable[Digest]) -> None:
        """Some rounds have got further signers: what follows from them is found anew.

        The rest stays: to read the records of a long chain again takes seconds.
        """
        for each in rounds:
            follows = _Followers(self._rounds, each)
            for fork, head in [*self._signers]:
                if follows.is_between(fork, head):
                    del self._signers[fork, head]
            for head, mine in [*self._anchors]:
                if follows.is_between(mine, head):
                    del self._anchors[head, mine]
        self._best.clear()

    # Stake and support

    def stakes_at(self, head: Digest) -> Mapping[PeerId, int]:
        """Returns the stake of each peer that has one at a known head."""
        self._forget_other_shape()
        found = self._stakes.get(head)
        if found is None:
            found = self._stakes[head] = self._count_stakes(head)
            _forget_old(self._stakes)
        return found

    def tokens_at(self, head: Digest) -> Mapping[PeerId, int]:
        """Returns the tokens, capped in each round alone, of which the stakes at a known head are
        made. Stakes are capped once more, so most peers may have the same."""
        sums: dict[PeerId, int] = {}
        for _ in range(STANDING_ROUNDS):
            if not self._rounds.round_of(head):
                break
            credits = self._rounds.credits_of(head)
            peers = sorted(credits)
            counted = capped_tokens([credits[peer] for peer in peers], factor=1)
            for peer, tokens in zip(peers, counted, strict=True):
                sums[peer] = sums.get(peer, 0) + tokens
            head = self._rounds.parent_of(head)
        return {peer: sums[peer] for peer in sorted(sums) if sums[peer]}

    def _count_stakes(self, head: Digest) -> Mapping[PeerId, int]:
        sums = self.tokens_at(head)
        peers = list(sums)
        if not peers:
            return {self._founder: 1}
        return dict(
            zip(peers, capped_tokens([sums[peer] for peer in peers], factor=1), strict=True)
        )

    def stake_of(self, head: Digest, peers: Iterable[PeerId]) -> int:
        """The stake of some peers together at a known head."""
        stakes = self.stakes_at(head)
        chosen = frozenset(peers)
        if self.branch_of is None:
            return sum([stakes[peer] for peer in chosen & stakes.keys()])
        counted = {peer: stake for peer, stake in stakes.items() if peer in chosen}
        return capped_total(counted, self.branch_of, branch_cap(stakes, self.branch_of))

    def weight(self, fork: Digest, head: Digest) -> HeadWeight:
        """The weight of a known head that descends from `fork`, as seen there."""
        support = self.stake_of(fork, self.signers_since(fork, head))
        return HeadWeight(support, self._rounds.tokens_total_of(head))

    def signers_since(self, fork: Digest, head: Digest) -> frozenset[PeerId]:
        """The peers that signed a round after `fork` on the way to `head`."""
        self._forget_other_shape()
        way: list[Digest] = []
        signers: frozenset[PeerId] = frozenset()
        while head != fork:
            known = self._signers.get((fork, head))
            if known is not None:
                signers = known
                break
            way.append(head)
            head = self._rounds.parent_of(head)
        for each in reversed(way):
            signers |= self._rounds.signers_of(each)
            self._signers[fork, each] = signers
        _forget_old(self._signers)
        return signers

    # Forks

    def fork_of(self, one: Digest, other: Digest) -> Digest:
        """The newest round that two known heads have in common."""
        self._forget_other_shape()
        key = (one, other)
        found = self._forks.get(key)
        if found is not None:
            return found
        rounds = self._rounds
        # A head that grew has the fork of its parent, unless the parent itself is the fork.
        parent = rounds.parent_of(other)
        before = self._forks.get((one, parent))
        if before is not None and before != parent:
            one = other = before
        while one != other:
            if rounds.round_of(one) >= rounds.round_of(other):
                one = rounds.parent_of(one)
            else:
                other = rounds.parent_of(other)
        self._forks[key] = one
        _forget_old(self._forks)
        return one

    def anchor_of(self, head: Digest, mine: Digest) -> Digest:
        """The newest round on the way from `mine` to a head that a peer with stake at `mine` has
        signed; the head itself, if there is none or if it is on another branch.

        What follows the anchor are rounds of strangers. They are another question, for a peer that
        has reached the anchor: nobody gets there the sooner for being told of them.
        """
        self._forget_other_shape()
        key = (head, mine)
        if key not in self._anchors:
            self._anchors[key] = self._find_anchor(head, mine)
            _forget_old(self._anchors)
        return self._anchors[key]

    def _find_anchor(self, head: Digest, mine: Digest) -> Digest:
        if self.fork_of(head, mine) != mine:
            return head  # of two branches all rounds are compared
        stakes, each = self.stakes_at(mine), head
        while each != mine:
            if stakes.keys() & self._rounds.signers_of(each):
                return each
            each = self._rounds.parent_of(each)
        return head

    def may_undo(self, mine: Digest, head: Digest) -> bool:
        """Returns whether a peer at `mine` may leave it for another known head.

        What it undoes is of few rounds, or at least half of the stake at the fork signed the other
        chain.
        """
        fork = self.fork_of(head, mine)
        if self._rounds.round_of(mine) - self._rounds.round_of(fork) <= UNDO_ROUNDS_MAX:
            return True
        return 2 * self.weight(fork, head).support >= self.stake_of(fork, self.stakes_at(fork))

    def best(self, heads: Iterable[Digest]) -> Digest:
        """The head that wins among one or more known heads.

        Every peer that knows these heads chooses alike, whatever its own head is. Comparisons of
        pairs would not do: the stake differs from fork to fork, and three heads could each win over
        the next one.
        """
        self._forget_other_shape()
        left = tuple(sorted(set(heads)))
        if len(left) == 1:
            return left[0]
        if self.branch_of is not None:
            return self._find_best(left)
        found = self._best.get(left)
        if found is None:
            found = self._best[left] = self._find_best(left)
            _forget_old(self._best)
        return found

    def _find_best(self, left: Sequence[Digest]) -> Digest:
        fork = left[0]
        for head in left[1:]:
            fork = self.fork_of(fork, head)
        branches: dict[Digest, list[Digest]] = {}
        for head in left:
            if head != fork:
                branches.setdefault(self._child_towards(fork, head), []).append(head)
        resolved = sorted((self.best(branch), branch) for branch in branches.values())
        # Of equal branches the first one wins: that with the lower digest.
        return max(resolved, key=lambda each: self._weight_of_branch(fork, *each))[0]

    def _child_towards(self, fork: Digest, head: Digest) -> Digest:
        while (parent := self._rounds.parent_of(head)) != fork:
            head = parent
        return head

    def _weight_of_branch(self, fork: Digest, best: Digest, heads: Sequence[Digest]) -> HeadWeight:
        """All signers of a branch support it; its tokens are those of its best head."""
        signers = frozenset().union(*(self.signers_since(fork, head) for head in heads))
        return HeadWeight(self.stake_of(fork, signers), self._rounds.tokens_total_of(best))

    # A chain that goes on from this peer's head

    def attainable(self, mine: Digest, better: Digest, weights: Mapping[PeerId, int]) -> HeadWeight:
        """The weight of a round on `mine` if these members commit it.

        Those that have signed a better head since do not count: they have committed another round
        in its place, or the same one without this peer. Otherwise a member of a ring that the
        others ended without it would wait for them for as long as a ring may stand still.

        Args:
            better: another known head.
            weights: the members, each with the tokens of its work.
        """
        gone = frozenset[PeerId]()
        if self.fork_of(better, mine) == mine:
            gone = self.signers_since(mine, better)
        left = {peer: tokens for peer, tokens in weights.items() if peer not in gone}
        tokens_total = self._rounds.tokens_total_of(mine) + sum(left.values())
        return HeadWeight(self.stake_of(mine, left), tokens_total)

    def counts(
        self,
        head: Digest,
        mine: Digest,
        at_work: Collection[PeerId],
        *,
        was_time: bool,
        is_of_my_ring: bool = False,
        doubted: Collection[PeerId] = (),
    ) -> bool:
        """Returns whether this peer may follow a head that wins over its own.

        Args:
            at_work: living peers that work on the round after `mine`, this peer among them if it
                does.
            was_time: whether this peer had the time that the manifest gives to be ready, since it
                heard that a peer is ready for this round.
            is_of_my_ring: whether it begins with a round of a ring that this peer followed, signed
                by most of the ring's other members (`is_most_of`).
            doubted: members that this peer doubts, where the head begins with a round of a ring
                that it followed.
        """
        if is_of_my_ring or self.fork_of(head, mine) != mine:
            return True  # of two branches `best` has compared the stake
        signers = self.signers_since(mine, head)
        support = self.stake_of(mine, signers)
        if not support:
            return not self.stakes_at(mine).keys() & frozenset(at_work)
        against = frozenset(at_work) - signers - frozenset(doubted)
        return was_time or support >= self.stake_of(mine, against)


class _Followers:
    """The known heads that follow one round, or are it. A head that was forgotten counts as one."""

    def __init__(self, rounds: Rounds, first: Digest) -> None:
        self._rounds = rounds
        self._first = first
        self._found: dict[Digest, bool] = {first: True}

    def is_between(self, before: Digest, head: Digest) -> bool:
        """Returns whether the round is on the way from another round to a head."""
        try:
            number = self._rounds.round_of(self._first)
            return self._rounds.round_of(before) < number and self._follows(head, number)
        except KeyError:
            return True

    def _follows(self, head: Digest, number: int) -> bool:
        way: list[Digest] = []
        while head not in self._found and self._rounds.round_of(head) > number:
            way.append(head)
            head = self._rounds.parent_of(head)
        found = self._found.get(head, False)
        self._found.update(dict.fromkeys(way, found))
        return found


def is_most_of(num_signers: int, num_members: int) -> bool:
    """Returns whether the signers of a ring's round are most members of its roster but this peer.

    One other member alone is not enough.
    """
    return num_signers > 1 and 2 * num_signers > num_members - 1


def _forget_old(memory: OrderedDict) -> None:  # type: ignore[type-arg]
    while len(memory) > MEMORY:
        memory.popitem(last=False)
