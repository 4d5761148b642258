"""One ring that a peer follows, from its first chunk to its commit.

    reducing --averages--> computing --state--> voting --quorum--> committed
                               ^                  |
                               +------------------+ a better average: compute again

It is made of `ring` (which member adds what to which chunk), `ring_members` (who is out),
`link_rates` (which member is too slow), `patience` (how long a ring may stand still) and `commit`
(votes), and holds what connects them. Its states are those of `states.RING`.

Rules
-----
- A member whose link fails is accused. So is a member that delays the votes, and one that is far
  slower than the rest.
- At every removal the ring checks all its chunks again, and a member that has voted votes again.
- A member may keep sums or averages. `patience` says when a neighbour accuses it.
- A member that sees nothing happen for `STALL_SECONDS` accuses itself. So does a member that finds
  no contribution in any average: a head without work wins over no other.
- A member that is alone in its ring because others follow another one accuses itself, and gathers
  again. Their roster is on its way to it, and a commit of it alone would part from theirs.
- Where a commit needs two accusers of each member that is out, the last one of a ring of three or
  more accuses itself after `LONE_SECONDS` without a quorum, and begins its round again.
- A member that is out only listens: it takes averages, and learns the commit from the others.
- A commit needs the votes of most members, so a member may still wait for averages then. If the
  member that should pass them on dies, its predecessor passes them on although it has committed
  long ago. A ring is over when all its living members have voted for the committed header.

`round.Round` decides which ring is followed, and what happens to a peer whose ring is void.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import (
    Action,
    AverageArrived,
    AverageFinished,
    Committed,
    Compute,
    Computed,
    Contributed,
    LinkBroken,
    LinkMeasured,
    Publish,
    Rejected,
    RingEvent,
    Signer,
    SumArrived,
)
from gossamer.protocol.rounds.commit import Commitment, Parent, Proposal, members_of, propose
from gossamer.protocol.rounds.inventory import Average
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.rounds.ring.link_rates import RingLinkRates
from gossamer.protocol.rounds.ring.patience import Patience
from gossamer.protocol.rounds.ring.ring import RingReduce
from gossamer.protocol.rounds.ring.ring_members import (
    ACCUSED_BY,
    BASELESS,
    REPEATED,
    Accusations,
    Doubts,
    Heard,
)
from gossamer.protocol.rounds.roster import Ring, RoundHints, RoundRules
from gossamer.protocol.rounds.states import RING, RingState, RingTransition
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import Accusation, LinkRate, RingStatement, Signed, Vote

LONE_SECONDS = 2.0
"""Time in which votes of members that died may still come, as gossip takes."""

SLOW = "slow"
"""The reason of an accusation that follows from `RingLinkRates`."""

STALLED = "stalled"
"""The reason of an accusation of a member that keeps sums, or of one that sees nothing happen."""


class FollowedRing:
    """A member's view of one ring. Events carry the local clock in seconds and return actions.

    It has more than 12 attributes: the five parts that it connects, and what they work on.

    It has more than 7 parameters: the round makes the parts that depend on what it knows itself.
    """

    def __init__(
        self,
        signer: Signer,
        parent: Parent,
        ring: Ring,
        rules: RoundRules,
        reduce: RingReduce,
        link_rate: RingLinkRates,
        hints: RoundHints,
        now: float,
        *,
        waits_if_left: bool,
    ) -> None:
        """
        Args:
            hints: from the round before.
            waits_if_left: whether this peer gathers again if the others follow another ring.
        """
        self._signer = signer
        self._me = signer.me
        self._parent = parent
        self.ring = ring
        self.state: RingState = RING.initial
        self._payloads = rules.payloads
        self.reduce = reduce
        self.link_rate = link_rate
        self.accusations = Accusations(ring.members, self._me)
        self._words: dict[tuple[PeerId, PeerId], Publish] = {}
        """The accusations of members that this peer has heard, by author and accused."""
        self._hints = hints
        self._doubts = Doubts(hints.doubted)
        self._waits_if_left = waits_if_left
        self.commitment = Commitment(ring, self._me, rules.accusers)
        self._generation = 0
        self._computed_averages: list[Average] = []
        self._proposal: Proposal | None = None
        self._began_seconds = now
        self.reduced_seconds = 0.0
        """Time until this peer had all averages, in seconds; 0 before."""
        self.patience = Patience(rules, len(ring.members), now)

    def _go(self, event: RingTransition) -> None:
        self.state = RING.after(self.state, event)

    # Questions

    @property
    def removed(self) -> frozenset[PeerId]:
        return self.accusations.out

    @property
    def is_out(self) -> bool:
        return self._me in self.accusations.out

    @property
    def successor(self) -> PeerId | None:
        """The member that gets this peer's chunks; None: alone in the ring, or out of it."""
        return None if self.is_out else self.reduce.successor

    @property
    def is_over(self) -> bool:
        """Returns whether the ring is committed here and no member needs this peer any more."""
        if self.state != "committed":
            return False
        return self.is_out or all(map(self.commitment.has_my_header, self.reduce.living))

    # Events

    def event(self, now: float, event: RingEvent) -> list[Action]:
        """Something happened in the ring."""
        match event:
            case SumArrived(chunk, arrived):
                self.link_rate.received(now)
                return self._progress(now, self.reduce.partial_sum_received(chunk, arrived))
            case AverageArrived(sender, chunk, average):
                self.link_rate.received(now)
                return self._progress(now, self.reduce.average_received(sender, chunk, average))
            case Contributed(chunk, payload, digest):
                return self._progress(now, self.reduce.contributed(chunk, payload, digest))
            case AverageFinished(chunk, payload, digest):
                return self._progress(now, self.reduce.average_finished(chunk, payload, digest))
            case Rejected(chunk, sender):
                return [*self.reduce.rejected(chunk), *self.accuse(now, sender, "malformed chunk")]
            case Computed(generation, state_digest):
                return self._computed(now, generation, state_digest)
            case LinkBroken(peer, reason):
                return self.accuse(now, peer, reason)
            case LinkMeasured(peer, measure):
                return self._link_measured(now, peer, measure)

    def _progress(self, now: float, actions: Sequence[Action]) -> list[Action]:
        """The actions of the ring, with what follows from them for the round."""
        done = [*actions, *self._after_averages(now)]
        if done and not self.is_out:
            self.patience.progressed(now)
        return done

    def accuse(
        self, now: float, accused: PeerId, reason: str, detail: str = "found here"
    ) -> list[Action]:
        """This peer accuses a member, or leaves by accusing itself; nothing once it is out."""
        if self.is_out or accused not in self.ring.members or accused in self.removed:
            return []
        found = self._accused(now, Heard(self._me, accused, reason), detail)
        return [self._accuse(accused, reason), *found]

    def _link_measured(self, now: float, peer: PeerId, measure: LinkMeasure) -> list[Action]:
        """The totals of the link to a member."""
        self.link_rate.measured(now, peer, measure)
        # The rest of the ring may wait for this peer although it has all averages.
        if peer != self.successor or self.state == "committed":
            return []
        actions: list[Action] = []
        to_say = self.link_rate.to_say(now, peer)
        if to_say is not None:
            actions.append(self._signer.seal(LinkRate(self.ring.ring_id, *to_say)))
        verdict = self.link_rate.too_slow(now, self.reduce.living, peer)
        if verdict.member is None:
            return actions
        return [*actions, *self.accuse(now, verdict.member, SLOW, verdict.reason)]

    def statement(self, now: float, signed: Signed, statement: RingStatement) -> list[Action]:
        """A checked statement about this ring."""
        author = PeerId(signed.author)
        if author not in self.ring.members:
            return []
        match statement:
            case Accusation():
                heard = Heard(author, PeerId(statement.accused), statement.reason)
                if heard.accused in self.ring.members:
                    self._words[author, heard.accused] = Publish(signed, statement)
                return self._heard(now, heard)
            case LinkRate():
                self.link_rate.said(author, statement)
                return []
            case Vote():
                if not self.commitment.vote_received(now, author, statement, signed):
                    return []
                self.patience.voted(author, statement.header_digest)
                return self._progress(now, self._check_quorum())

    def _computed(self, now: float, generation: int, state_digest: Digest) -> list[Action]:
        """The outer step was taken: vote for the header that follows."""
        if generation != self._generation or self.is_out:
            return []
        averages, contributors = self._computed_averages, self._contributors()
        if not any(contributors):
            return self.accuse(now, self._me, "nothing was done in it")
        self._proposal = propose(
            self._signer.run_id, self._parent, self.ring, averages, contributors, state_digest
        )
        self._go("step taken")
        return self._progress(now, self._vote(now, to_msgpack(self._proposal.header)))

    def commit_received(self, commit: Commit) -> list[Action]:
        """A checked commit record arrived: it ends the ring if it commits this peer's header."""
        joined = self.commitment.joined(commit) if self.state == "voting" else None
        return self._commit("commit received", joined)

    def tick(self, now: float) -> list[Action]:
        """Time passed: accuse members that delay the votes, or leave."""
        self.patience.ticked(now)
        actions = self._count(now, self._doubts.due(now))
        if self.state == "voting" and not self.is_out:
            actions += self._urge(now)
        if (keeper := self._keeper()) is not None:
            actions += self.accuse(now, keeper, STALLED)
        if self.state != "committed" and now >= self.patience.stall_seconds:
            actions += self.accuse(now, self._me, STALLED)
        return actions

    # The rules: who is out

    def _keeper(self) -> PeerId | None:
        """The neighbour that it is time to accuse of keeping a sum or an average."""
        successor, living, commitment = self.successor, self.reduce.living, self.commitment
        if successor is None or self.state != "reducing":
            return None
        predecessor = living[living.index(self._me) - 1]
        if predecessor != successor and commitment.has_voted(predecessor):
            return predecessor if self.patience.is_over_beside_votes(predecessor) else None
        # Where members disagree on who is out, or others have all averages, nobody keeps a sum. Of
        # two members that follow different rings, each sees the other one keep what it sends.
        has_votes = commitment.has_votes_beside(successor)
        is_well_beside = len(self.ring.members) > 2 and not self.removed and not has_votes
        missing = self.reduce.fewest_missing() if self.patience.may_be_over else None
        if missing is not None and commitment.has_voted(successor):
            missing = len(living)
        is_over = missing is not None and self.patience.is_over(
            missing, is_well_beside=is_well_beside, is_suspect=successor in self._hints.suspected
        )
        return successor if is_over else None

    def _accuse(self, accused: PeerId, reason: str) -> Publish:
        reason = reason[: limits.TEXT_CHARACTERS_MAX]
        return self._signer.seal(Accusation(self.ring.ring_id, accused, reason))

    def _heard(self, now: float, heard: Heard) -> list[Action]:
        """A member accuses a member: this peer answers, or takes what counts now."""
        are_both_in = not {heard.author, heard.accused} & self.removed
        if heard.accused == self._me and heard.author in self._doubts and are_both_in:
            answer = Heard(self._me, heard.author, BASELESS, heard.reason)
            return [self._accuse(heard.author, BASELESS), *self._accused(now, answer, "answers")]
        is_held = self.state != "committed"
        return self._count(now, self._doubts.heard(now, heard) if is_held else [heard])

    def _count(self, now: float, accusations: Sequence[Heard]) -> list[Action]:
        """Accusations that count from now on."""
        actions: list[Action] = []
        for heard in accusations:
            actions += self._accused(now, heard, f"says {heard.author}")
        return actions

    def _accused(self, now: float, heard: Heard, detail: str) -> list[Action]:
        """A member of the ring, perhaps this peer, accused a member."""
        author, accused, accusations = heard.author, heard.accused, self.accusations
        if not accusations.accuse(author, accused, is_repeated=heard.reason == REPEATED):
            return [*accusations.contested(heard), *self._repeat()]
        word, has_averages = accusations.word_of(heard), self.state != "reducing"
        votes = self.commitment.seen(
            now, word.author, accused, self.reduce.living, has_averages=has_averages
        )
        still_seconds = self.patience.member_removed(now)
        removed = accusations.note_removed(word, detail, votes=votes, still_seconds=still_seconds)
        actions: list[Action] = [removed, *self.reduce.member_removed(accused)]
        if heard.reason == SLOW:
            self.link_rate.put_out(author, accused)
        if self.is_out:
            if accused == self._me != author:
                leaves = Heard(self._me, self._me, f"{ACCUSED_BY} {author}")
                actions.append(self._accuse(self._me, leaves.reason))
                actions += accusations.contested(leaves)
            return actions
        is_alone = self._waits_if_left and self.reduce.living == (self._me,)
        if is_alone and self.state != "committed" and accusations.follow_another_ring:
            return [*actions, *self.accuse(now, self._me, "left alone")]
        actions += self._repeat()
        if self.state == "voting":
            assert self.commitment.header is not None
            actions += self._vote(now, self.commitment.header)
        return [*actions, *self._after_averages(now)]

    def _repeat(self) -> list[Action]:
        """Accusations that this peer has to repeat in its own name, each behind one that it
        repeats. Its author may have said it to this peer alone, and then the others would take this
        peer's word for made up."""
        actions: list[Action] = []
        for peer in self.accusations.to_repeat():
            accusers = sorted(self.accusations.accusers_of(peer))
            words = (self._words.get((accuser, peer)) for accuser in accusers)
            actions += [word for word in words if word is not None][:1]
            self.accusations.accuse(self._me, peer, is_repeated=True)
            actions.append(self._accuse(peer, REPEATED))
        return actions

    # The rules: averages and votes

    def _after_averages(self, now: float) -> list[Action]:
        """Starts the outer step when all averages are here and differ from the last ones used."""
        if self.state == "committed" or not self.reduce.is_complete or self.is_out:
            return []
        averages = self.reduce.averages
        if averages == self._computed_averages:
            return []
        self._go("averages complete")
        self.reduced_seconds = self.reduced_seconds or now - self._began_seconds
        self._computed_averages, self._generation = averages, self._generation + 1
        ring, members = self.ring, members_of(self.ring, self._contributors())
        return [Compute(ring.ring_id, self._generation, self._parent.head, averages, members)]

    def _contributors(self) -> list[int]:
        contributors, averages = self._payloads.contributors, self._computed_averages
        return [contributors(average.payload, average.mask) for average in averages]

    def _vote(self, now: float, header: bytes) -> list[Action]:
        vote = self.commitment.propose(now, header, self.removed, self.patience.vote_seconds)
        publish = self._signer.seal(vote)
        self.commitment.vote_received(now, self._me, vote, publish.signed)
        return [publish, *self._check_quorum()]

    def _check_quorum(self) -> list[Action]:
        commit = self.commitment.result() if self.state == "voting" else None
        return self._commit("quorum", commit)

    def _commit(self, event: RingTransition, commit: Commit | None) -> list[Action]:
        """Ends the ring, if there is a record of this peer's header."""
        if commit is None:
            return []
        self._go(event)
        assert self._proposal is not None, "this peer has voted"
        # Nobody waits for an answer any more, but for the votes of those that are dead.
        held = self._count(self.patience.progress_seconds, self._doubts.due(float("inf")))
        return [Committed(commit, self._proposal, self._computed_averages), *held]

    def _urge(self, now: float) -> list[Action]:
        """Sends averages to a successor with a different vote, and accuses members that delay."""
        is_hopeless = not self.commitment.can_succeed(self.reduce.living)
        if is_hopeless and now >= self.patience.progress_seconds + LONE_SECONDS:
            return self.accuse(now, self._me, "too few are left to commit")
        actions: list[Action] = []
        successor = self.successor
        if successor is not None and self.commitment.to_reconcile(now, successor):
            actions += self.reduce.averages_for(successor)
        for peer, reason in self.commitment.to_accuse(now, self.reduce.living, successor):
            if self.state == "voting":
                actions += self.accuse(now, peer, reason)
                self.commitment.wait_anew(now)
        return actions
