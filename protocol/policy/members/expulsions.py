"""Votes of members that put a branch of an invite-only run out: who counts, and when it holds.

Rules
-----
- A vote names a committed head. It counts on the chain of a peer if that chain has this head and
  is `UNDO_ROUNDS_MAX` rounds beyond it, so that the choice of a head undoes it for nobody alone.
- At a head H those votes on one target count together that name H or a head before it, of each
  voter the newest one. They *hold* if their voters have at least two thirds of the stake at H
  (`head_choice`), where each branch is cut to a quarter of it, or to a third if there are three
  (`branch_caps`). With fewer branches they never hold. Every head is tried
  that a voter with stake there names, the newest first. So the answer follows from votes and
  headers alone, and one more vote never makes it a no.
- The target and those below it keep their place in the whole. Were they left out, half of the rest
  of a run would put out one branch after the other. The limits of branches leave all
  others together two thirds at least, against a single one.
- Votes of peers without an entry are forgotten, and so are votes on roots and on what nobody came
  in by. A member without stake at H adds nothing there. A voter that is out itself counts as long
  as the headers say so: else the answer would follow from the order in which news comes.
- A voter has `VOTES_MAX` votes, those with the newest heads. A vote ends `VOTE_ROUNDS` after its
  head: headers of older rounds are gone, so newcomers could not count it.
- What held once holds for good, also where a voter signs other votes later: the votes that put a
  target out first, and the newest ones that do, are kept and shown to members that do not know it.
  It ends only on a chain that has other heads in the places of both, or where a roll that has
  become more complete shows, while the headers are here, that neither holds: the roll may have
  lacked the branches of others.
- Headers go, so each member that saw it hold *confirms* it with a vote of its own at a newer head,
  whenever the newest votes that it has are `CONFIRM_ROUNDS` old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members.expulsion_count import (
    VOTE_ROUNDS,
    StakeCount,
    Standings,
    Tally,
)
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.policy.members.roll_order import peer_of
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.wire.envelopes import Sign, Verify
from gossamer.protocol.wire.expulsion_messages import (
    EXPELLED_MAX,
    EXPULSION_PAGE_BYTES_MAX,
    VOTE_BYTES_MAX,
    VOTES_MAX,
    ExpulsionPage,
    ExpulsionVote,
    SavedExpulsions,
    expulsion_digest,
)

CONFIRM_ROUNDS = STANDING_ROUNDS
"""Rounds between two confirmations. A newcomer that begins at a signed checkpoint has the headers
of more rounds than that, so it finds votes that it can count."""

AHEAD_ROUNDS = 4 * STANDING_ROUNDS
"""Rounds by which a vote may name a newer head than this peer has settled. One of a later head is
left to the next exchange: else one voter could sign ever later ones and have each passed on."""


Proof: TypeAlias = tuple[ExpulsionVote, ...]
"""Votes that hold together at the newest head among them."""


class Expulsions:
    """The votes that one node knows, and the targets that they have put out.

    It has more than 15 public methods: votes are taken, counted, compared with those of other
    members, and kept.
    """

    def __init__(self, roll: Roll, verify: Verify) -> None:
        self._roll = roll
        self._verify = verify
        self._votes: dict[bytes, dict[bytes, ExpulsionVote]] = {}
        """By target, then by voter."""
        self._num_votes: Counter[bytes] = Counter()
        """By voter."""
        self._proofs: dict[bytes, tuple[Proof, ...]] = {}
        """Of each target that is out, the first votes that held, and the newest if there are."""
        self._digests: list[Digest] | None = None
        self._count = StakeCount(roll)

    @property
    def expelled(self) -> frozenset[bytes]:
        """Keys of the members and invitations that votes have put out."""
        return frozenset(self._proofs)

    def proof_of(self, target: bytes) -> Proof:
        """Returns the newest votes that put a target out; none if it is not out by votes."""
        return self._proofs[target][-1] if target in self._proofs else ()

    def targets(self) -> frozenset[bytes]:
        """Returns the targets on which votes are open."""
        return frozenset(self._votes) - self.expelled

    def vote_of(self, voter: PeerId, target: bytes) -> ExpulsionVote | None:
        """Returns the newest vote of a voter on a target."""
        return self._votes.get(target, {}).get(public_key_of(voter))

    # Taking votes

    def fresh(self, votes: Iterable[ExpulsionVote], settled_round: int) -> list[ExpulsionVote]:
        """Returns the votes that may change something. Their signatures are to be checked
        (`check`), and no others: signatures take time, and anybody can make many."""
        found = []
        for vote in votes:
            held = self._votes.get(vote.target, {}).get(vote.voter)
            is_in_time = 0 < vote.round + VOTE_ROUNDS - settled_round <= VOTE_ROUNDS + AHEAD_ROUNDS
            is_newer = held is None or _age_key(held) < _age_key(vote)
            counts = is_newer or vote.target not in self._proofs
            if vote != held and is_in_time and counts and self._is_known(vote):
                found.append(vote)
        return found

    def _is_known(self, vote: ExpulsionVote) -> bool:
        roll = self._roll
        voter, target = peer_of(vote.voter), peer_of(vote.target)
        if not roll.was_member(voter) or vote.target in roll.roots:
            return False
        return roll.was_member(target) or roll.is_used(vote.target)

    def check(self, votes: Iterable[ExpulsionVote]) -> None:
        """Raises ForgedError for a vote that its voter did not sign."""
        for vote in votes:
            signed = vote.signing_bytes(self._roll.run_id)
            if not self._verify(peer_of(vote.voter), signed, vote.signature):
                raise ForgedError("a vote that its voter did not sign")

    def take(self, votes: Sequence[ExpulsionVote], standings: Standings) -> list[ExpulsionVote]:
        """Takes checked votes of `fresh`, and returns those that are kept. Ask `expelled` after
        it."""
        by_target: dict[bytes, list[ExpulsionVote]] = {}
        for vote in votes:
            by_target.setdefault(vote.target, []).append(vote)
        # All of them count at once, before any gives way to newer ones of its voter.
        for target, brought in sorted(by_target.items()):
            self._decide(target, brought, standings)
        return [vote for vote in votes if self._keep(vote)]

    def advance(self, standings: Standings) -> None:
        """There are new rounds, or another roll: forgets votes that have ended, and counts anew.
        Ask `expelled` after it."""
        oldest = standings.settled_round - VOTE_ROUNDS
        for vote in list(self._all()):
            if vote.round <= oldest or not self._is_known(vote):
                self._forget(vote)
        for target, proofs in sorted(self._proofs.items()):
            left = tuple(each for each in proofs if self._still_holds(each, standings))
            if left != proofs:
                self._digests = None
                for vote in sorted({vote for proof in proofs for vote in proof}, key=_age_key):
                    if vote.round > oldest and self._is_known(vote):
                        self._keep(vote)  # they count again with others, or with another roll
                self._proofs[target] = left
                if not left:
                    del self._proofs[target]
        for target in sorted(self._votes):
            self._decide(target, (), standings)

    def _still_holds(self, proof: Proof, standings: Standings) -> bool:
        """Returns whether votes that held hold now, as far as can be told. The roll may have lacked
        the branches of others when they were counted. A roll that lacks their voters lacks too much
        to say so, and headers that are gone say nothing."""
        newest = _newest(proof)
        head = standings.head_at(newest.round)
        if head is None:
            return True
        if head != newest.head:
            return False
        voters = [peer_of(vote.voter) for vote in proof]
        if not all(map(self._roll.was_member, voters)):
            return True
        return self._count.tally(voters, head, standings).holds

    def _decide(
        self, target: bytes, brought: Collection[ExpulsionVote], standings: Standings
    ) -> None:
        """Finds out whether votes put a target out. The proof of one that is out becomes newer if
        there are votes for it."""
        proofs = self._proofs.get(target, ())
        if not proofs and len(self._proofs) >= EXPELLED_MAX:
            return
        counted = [
            vote
            for vote in (*self._votes.get(target, {}).values(), *brought)
            if standings.head_at(vote.round) == vote.head
        ]
        proven_round = _newest(proofs[-1]).round if proofs else 0
        for round_number in sorted({vote.round for vote in counted}, reverse=True):
            head = standings.head_at(round_number)
            if round_number <= proven_round or head is None:
                return
            there = _at(counted, round_number)
            tally = self._count.tally(map(peer_of, there), head, standings)
            proof = _of(tally.voters, there)
            # Without a vote that names it, others would not know at which head to count these.
            if tally.holds and _newest(proof).round == round_number:
                self._proofs[target] = (*proofs[:1], proof)
                self._digests = None
                return

    def _keep(self, vote: ExpulsionVote) -> bool:
        """Keeps a vote among the newest of its voter; says whether it is kept."""
        held = self._votes.get(vote.target, {}).get(vote.voter)
        if held is not None:
            if _age_key(held) >= _age_key(vote):
                return False
            self._forget(held)
        self._digests = None
        self._votes.setdefault(vote.target, {})[vote.voter] = vote
        self._num_votes[vote.voter] += 1
        if self._num_votes[vote.voter] > VOTES_MAX:
            voter = vote.voter
            own = [by_voter[voter] for by_voter in self._votes.values() if voter in by_voter]
            oldest = min(own, key=_age_key)
            self._forget(oldest)
            return oldest != vote
        return True

    def _forget(self, vote: ExpulsionVote) -> None:
        self._digests = None
        by_voter = self._votes[vote.target]
        del by_voter[vote.voter]
        if not by_voter:
            del self._votes[vote.target]
        self._num_votes[vote.voter] -= 1

    # Voting

    def vote(
        self, voter: PeerId, target: bytes, standings: Standings, sign: Sign
    ) -> ExpulsionVote | None:
        """Returns a vote at the newest settled head, signed; None if there is none yet."""
        round_number = standings.settled_round
        head = standings.head_at(round_number)
        if head is None:
            return None
        blank = ExpulsionVote(public_key_of(voter), target, round_number, head, b"")
        signature = sign(blank.signing_bytes(self._roll.run_id))
        return ExpulsionVote(blank.voter, target, round_number, head, signature)

    def is_due(self, voter: PeerId, target: bytes, standings: Standings) -> bool:
        """Returns whether a member that wants a target out, or knows that it is, votes now: it has
        stake, and no vote that counts on this chain, or an old one."""
        head = standings.head_at(standings.settled_round)
        if head is None or not standings.stakes_at(head).get(voter, 0):
            return False
        held = self.vote_of(voter, target)
        return (
            held is None
            or held.round + CONFIRM_ROUNDS <= standings.settled_round
            or standings.head_at(held.round) != held.head
        )

    def tally(
        self, target: bytes, standings: Standings, also: Collection[PeerId] = ()
    ) -> Tally | None:
        """Returns the votes on a target at the newest settled head, for people; None without one.

        Args:
            also: members that are counted as if they had voted.
        """
        head = standings.head_at(standings.settled_round)
        if head is None:
            return None
        counted = [
            vote
            for vote in self._votes.get(target, {}).values()
            if standings.head_at(vote.round) == vote.head
        ]
        there = {peer_of(each) for each in _at(counted, standings.settled_round)} | {*also}
        return self._count.looking_ahead(target, there, head, standings)

    # Exchanges

    def _all(self) -> Iterable[ExpulsionVote]:
        for _, by_voter in sorted(self._votes.items()):
            for _, vote in sorted(by_voter.items()):
                yield vote

    def digests(self) -> list[Digest]:
        """Returns what names all votes and all targets that are out."""
        if self._digests is None:
            out = [expulsion_digest(self._roll.run_id, target) for target in sorted(self._proofs)]
            self._digests = [*out, *(vote.digest for vote in self._all())]
        return self._digests

    def digest(self) -> Digest:
        """Returns the digest of all: two nodes that hold the same have the same."""
        return digest_of(b"".join(self.digests()))

    def pieces(self, digests: Collection[Digest]) -> ExpulsionPage:
        """Returns the votes behind these digests, up to `EXPULSION_PAGE_BYTES_MAX`; those that put
        one target out together."""
        found: dict[ExpulsionVote, None] = {}
        left = EXPULSION_PAGE_BYTES_MAX // VOTE_BYTES_MAX
        for target, proofs in sorted(self._proofs.items()):
            if expulsion_digest(self._roll.run_id, target) in digests:
                for proof in reversed(proofs):
                    if len(proof) <= left:
                        found.update(dict.fromkeys(proof))
                        left -= len(proof)
        for vote in self._all():
            if left > 0 and vote.digest in digests and vote not in found:
                found[vote] = None
                left -= 1
        return ExpulsionPage(tuple(found))

    def saved(self) -> SavedExpulsions:
        """Returns all that this node holds, for its disk."""
        return SavedExpulsions(
            tuple(self._all()),
            tuple(proof for _, proofs in sorted(self._proofs.items()) for proof in proofs),
        )

    def restore(self, saved: SavedExpulsions) -> None:
        """Takes what this node held in an earlier life. What was out is out: the headers that said
        so may be gone.

        Raises:
            ForgedError: a signature is false.
        """
        for votes in (saved.votes, *saved.expelled):
            self.check(votes)
        for proof in saved.expelled:
            target = proof[0].target
            self._proofs[target] = (*self._proofs.get(target, ())[:1], proof)
        for vote in saved.votes:
            self._keep(vote)


def _at(votes: Iterable[ExpulsionVote], round_number: int) -> dict[bytes, ExpulsionVote]:
    """Returns the votes that count together at a round, by voter."""
    found: dict[bytes, ExpulsionVote] = {}
    for vote in votes:
        held = found.get(vote.voter)
        if vote.round <= round_number and (held is None or held.round < vote.round):
            found[vote.voter] = vote
    return found


def _newest(proof: Proof) -> ExpulsionVote:
    return max(proof, key=lambda vote: vote.round)


def _of(voters: Collection[PeerId], votes: Mapping[bytes, ExpulsionVote]) -> Proof:
    return tuple(vote for voter, vote in sorted(votes.items()) if peer_of(voter) in voters)


def _age_key(vote: ExpulsionVote) -> tuple[int, bytes, bytes]:
    """Returns a key by which the votes of one voter are ordered alike everywhere."""
    return (vote.round, vote.target, vote.digest)
