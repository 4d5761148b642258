"""One round as one peer sees it, from its first `Ready` to the commit.

    gathering --roster--> reducing --finals--> computing --state--> voting --quorum--> committed
                          |  ^  ^                                     |
                          |  |  +--- better finals: compute again ----+
                          +--+ a preferred roster for the same head replaces the ring
                          out of the ring, and nobody left in it --> gathering

Rules
-----
- Gathering, the ring, who is out of it, and the votes follow `roster`, `ring`, `accusations` and
  `commit`; this machine composes them and holds what is only true for one head.
- A roster that does not name me: I wait for its commit as long as it is at work (`gathering`). The
  same holds for one that names me with a `Ready` that is not mine: of my life before a restart,
  whose work is gone. I say that I am out of it.
- Who leaves a ring for a preferred one says that it is out of the first.
- Statements about a ring that I do not follow (yet) are kept, up to `EARLY_STATEMENTS_MAX`, and
  taken when I follow it.
- A member whose link fails is accused. A member that holds up the votes is accused too.
- A member that sees nothing happen in its ring for `STALL_SECONDS` leaves it.
- A member that is out listens, and learns the commit from the others. When none of the others is
  both in the ring and living, or nothing came for `STALL_SECONDS` more, the ring is void for it: it
  gathers again with a later attempt. So no order of deaths and accusations leaves a peer waiting.

Events are methods with the local clock in seconds; actions come back. The arithmetic (`Contribute`,
`Finalise`, `Compute`) is done outside and answered with the ring's id, so that an answer for a
ring that was replaced is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gossamer.protocol import limits
from gossamer.protocol.accusations import Accusations
from gossamer.protocol.chain import Commit, encode_header
from gossamer.protocol.commit import Commitment
from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.gathering import Gatherer
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.messages import (
    Ready,
    Roster,
    Sign,
    Signed,
    Statement,
    Suspect,
    Verify,
    Vote,
    key_of,
    seal,
)
from gossamer.protocol.proposal import Parent as Parent
from gossamer.protocol.proposal import Proposal as Proposal
from gossamer.protocol.proposal import propose
from gossamer.protocol.ring import Contribute, Final, Finalise, Payload, RingReduce, Send
from gossamer.protocol.roster import Ring, make_roster, open_roster, preference

RoundState = Literal["gathering", "reducing", "computing", "voting", "committed"]

STALL_SECONDS = 120.0
"""Nothing came and nothing was done for this long: longer than a chunk of 4 MiB takes on a line of
1 Mbit/s (34 s), an outer step on a slow CPU, and `commit.DISAGREE_SECONDS`."""

STRAGGLER_FRACTION = 0.7
"""Part of `gather_seconds` after which a peer that still trains stops, to be ready in time."""

EARLY_STATEMENTS_MAX = 4 * limits.RING_MEMBERS_MAX
"""Suspects and votes kept for rings that I do not follow: one of each a member, and two rings."""


@dataclass(frozen=True)
class RoundRules:
    """What the manifest says about a round."""

    codec: str
    chunk_elements: int
    num_chunks: int
    gather_seconds: float
    attempt_seconds: float


@dataclass(frozen=True)
class Publish:
    """Gossip this statement."""

    signed: Signed
    statement: Statement


@dataclass(frozen=True)
class BeginRing:
    """I follow this ring from now on; whatever was done for an earlier one is void."""

    ring: Ring
    envelope: Signed


@dataclass(frozen=True)
class Compute:
    """Take the outer step with these finals, then call `computed`."""

    generation: int
    finals: list[Final] = field(repr=False)


@dataclass(frozen=True)
class Committed:
    """The round is committed."""

    commit: Commit
    proposal: Proposal
    finals: list[Final] = field(repr=False)


@dataclass(frozen=True)
class Removed:
    """A member is out of the ring (for logs and metrics)."""

    peer: PeerId
    reason: str


Action: TypeAlias = (
    Publish | BeginRing | Contribute | Finalise | Send | Compute | Committed | Removed
)


class Round:
    """The machine of one round. Raises RemoteProtocolError for what a peer did wrong."""

    def __init__(
        self,
        *,
        me: PeerId,
        run_id: Digest,
        parent: Parent,
        rules: RoundRules,
        sign: Sign,
        verify: Verify,
    ) -> None:
        self._me = me
        self._run_id = run_id
        self._parent = parent
        self._rules = rules
        self._sign = sign
        self._verify = verify
        self.number = parent.round + 1
        self.state: RoundState = "gathering"
        self._gatherer = Gatherer(me, parent.head, rules.gather_seconds, rules.attempt_seconds)
        self.ring: Ring | None = None
        """The ring that I follow, or followed last."""
        self._void_rings: set[Digest] = set()
        self._accusations = Accusations((), me)
        self._reduce: RingReduce | None = None
        self._commitment: Commitment | None = None
        self._generation = 0
        self._computed_finals: list[Final] = []
        self._proposal: Proposal | None = None
        self._progress_seconds = 0.0
        """When something last came of the ring, or when I was put out of it."""
        self._early: dict[tuple[str, ...], tuple[Signed, Suspect | Vote]] = {}

    # What the driver asks

    @property
    def head(self) -> Digest:
        return self._parent.head

    @property
    def is_ready(self) -> bool:
        """Whether my own `Ready` was published."""
        return self._gatherer.mine is not None

    @property
    def successor(self) -> PeerId | None:
        """Whom I pass tokens to; None without a ring, alone in it, or out of it.

        Keep a link to it as long as it is the successor, whether or not there is something to
        send: only so its death shows.
        """
        if self._reduce is None or self._is_out:
            return None
        return self._reduce.successor

    @property
    def removed(self) -> frozenset[PeerId]:
        return self._accusations.out

    @property
    def stop_training_seconds(self) -> float | None:
        """Local time at which a peer that still trains should stop; None: no hurry yet."""
        if self._gatherer.first_ready_seconds is None:
            return None
        return self._gatherer.first_ready_seconds + STRAGGLER_FRACTION * self._rules.gather_seconds

    @property
    def attainable_tokens(self) -> int:
        """Tokens of the chain if my ring commits with all that are still in it.

        A head that another ring committed on the same parent is worth leaving mine for only if it
        wins over this; else one lonely peer's commit would stop a ring of many at work. The
        parent's tokens if I am in no ring.
        """
        if self.ring is None or self._is_out or self.state == "gathering":
            return self._parent.tokens_total
        return self._parent.tokens_total + sum(
            tokens for peer, tokens in self.ring.weights.items() if peer not in self.removed
        )

    # Events: gathering

    def ready(self, now: float, ready: Ready) -> list[Action]:
        """My own work is done."""
        if ready.head != self.head or ready.round != self.number:
            raise LocalProtocolError("ready for another round")
        signed = seal(ready, self._me, self._run_id, self._sign)
        self._gatherer.note_ready(now, signed)
        return [Publish(signed, ready), *self.tick(now)]

    def expect(self, now: float, peers: Collection[PeerId]) -> list[Action]:
        """The living other peers that work on this head."""
        self._gatherer.expect(now, peers)
        return self.tick(now)

    def statement(self, now: float, signed: Signed, statement: Statement) -> list[Action]:
        """A checked statement arrived.

        What came before this machine began may belong to its round: give it the whole board once
        at the beginning. Repetitions do no harm. My own statements of an earlier life come back by
        gossip and do not count.
        """
        if self.state == "committed":
            return []
        match statement:
            case Roster() if statement.head == self.head and statement.round == self.number:
                return self._roster(now, signed, statement)
            case _ if signed.author == self._me:
                return []
            case Ready() if statement.head == self.head and statement.round == self.number:
                self._gatherer.note_ready(now, signed)
                return self.tick(now)
            case Suspect() | Vote():
                return self._ring_statement(now, signed, statement)
        return []

    def tick(self, now: float) -> list[Action]:
        """Time passed, or who lives has changed: organise, accuse who holds up, leave, return."""
        if self.state == "committed":
            return []
        if self.state == "gathering":
            return self._organise(now)
        actions = self._urge(now) if self.state == "voting" and not self._is_out else []
        return [*actions, *self._leave_if_stalled(now), *self._return_if_lost(now)]

    def wake_seconds(self, now: float) -> float | None:
        """Local time at which `tick` has something to do; None: only on news."""
        if self.state == "committed":
            return None
        if self.state == "gathering":
            return self._gatherer.decision(now).ask_again_seconds
        wake = self._stall_seconds
        if self.state == "voting" and not self._is_out:
            assert self._commitment is not None
            assert self._reduce is not None
            urge = self._commitment.wake_seconds(self._reduce.living, self.successor)
            wake = wake if urge is None else min(wake, urge)
        return wake

    # Events: the ring

    def token_received(
        self, now: float, ring_id: Digest, sender: PeerId, chunk: int, mask: int, payload: Payload
    ) -> list[Action]:
        reduce = self._reduce_of(ring_id)
        if reduce is None:
            return []
        return self._progress(now, reduce.token_received(sender, chunk, mask, payload))

    def final_received(
        self,
        now: float,
        ring_id: Digest,
        sender: PeerId,
        chunk: int,
        mask: int,
        finisher: int,
        payload: Payload,
        digest: Digest,
    ) -> list[Action]:
        reduce = self._reduce_of(ring_id)
        if reduce is None:
            return []
        actions = reduce.final_received(sender, chunk, mask, finisher, payload, digest)
        return self._progress(now, [*actions, *self._after_finals()])

    def contributed(
        self, now: float, ring_id: Digest, chunk: int, payload: Payload
    ) -> list[Action]:
        reduce = self._reduce_of(ring_id)
        return [] if reduce is None else self._progress(now, reduce.contributed(chunk, payload))

    def rejected(self, now: float, ring_id: Digest, chunk: int, sender: PeerId) -> list[Action]:
        """The token that I was to add to is no good: its sender is out."""
        reduce = self._reduce_of(ring_id)
        if reduce is None:
            return []
        actions = list(reduce.rejected(chunk))
        return [*actions, *self.link_failed(now, ring_id, sender, "malformed chunk")]

    def finalised(
        self, now: float, ring_id: Digest, chunk: int, payload: Payload, digest: Digest
    ) -> list[Action]:
        reduce = self._reduce_of(ring_id)
        if reduce is None:
            return []
        actions = reduce.finalised(chunk, payload, digest)
        return self._progress(now, [*actions, *self._after_finals()])

    def link_failed(self, now: float, ring_id: Digest, peer: PeerId, reason: str) -> list[Action]:
        """My link to a ring member failed: I accuse it, and it is out."""
        if self._reduce_of(ring_id) is None or self._is_out:
            return []
        return self._accuse(now, peer, reason)

    def computed(
        self, now: float, ring_id: Digest, generation: int, state_digest: Digest
    ) -> list[Action]:
        """The outer step was taken: vote for the header that follows."""
        if self._reduce_of(ring_id) is None or generation != self._generation or self._is_out:
            return []
        assert self.ring is not None
        self._proposal = propose(
            self._run_id, self._parent, self.ring, self._computed_finals, state_digest
        )
        self.state = "voting"
        return self._progress(now, self._vote(now, encode_header(self._proposal.header)))

    def commit_received(self, commit: Commit) -> list[Action]:
        """A checked commit record arrived: if it is of the header that I computed, I am done."""
        if self.state != "voting" or self._proposal is None:
            return []
        if commit.header != encode_header(self._proposal.header):
            return []
        self.state = "committed"
        return [Committed(commit, self._proposal, self._computed_finals)]

    def leave(self, now: float) -> list[Action]:
        """I go to a head that another ring committed: mine has to do without me.

        Call it before the machine is given up for such a head; else the others wait for my part.
        """
        if self.ring is None or self._is_out or self._reduce_of(self.ring.ring_id) is None:
            return []
        return self._accuse(now, self._me, "follows another head")

    # The rules: gathering

    def _organise(self, now: float) -> list[Action]:
        attempt = self._gatherer.decision(now).attempt
        if attempt is None:
            return []
        roster = make_roster(
            self.head,
            self.number,
            attempt,
            self._gatherer.ready,
            self._rules.codec,
            self._rules.chunk_elements,
        )
        signed = seal(roster, self._me, self._run_id, self._sign)
        return [Publish(signed, roster), *self._roster(now, signed, roster)]

    def _roster(self, now: float, signed: Signed, roster: Roster) -> list[Action]:
        rules = self._rules
        ring = open_roster(
            signed, roster, self._run_id, self._verify, rules.codec, rules.chunk_elements
        )
        if ring.ring_id in self._void_rings:
            return []
        mine = self._gatherer.mine
        if mine is None or mine.payload not in {member.payload for member in roster.members}:
            return self._note_foreign(now, ring)
        if (
            self.ring is not None
            and self.ring.ring_id not in self._void_rings
            and not (self._is_out and ring.ring_id != self.ring.ring_id)
            and preference(ring) >= preference(self.ring)
        ):
            return []
        return self._follow(now, ring, signed)

    def _note_foreign(self, now: float, ring: Ring) -> list[Action]:
        """A ring that I am not in; if it names me, it waits for what I lost when I restarted."""
        if not self._gatherer.note_foreign(ring):
            return []
        for signed, statement in self._early.values():
            if isinstance(statement, Suspect):
                self._gatherer.note_accusation(
                    statement.ring_id, PeerId(signed.author), PeerId(statement.accused)
                )
        if self._me not in ring.members:
            return []
        return [self._suspect(ring.ring_id, self._me, "restarted")]

    def _follow(self, now: float, ring: Ring, envelope: Signed) -> list[Action]:
        actions: list[Action] = []
        if self.ring is not None and self.ring.ring_id not in self._void_rings:
            self._void_rings.add(self.ring.ring_id)
            if not self._is_out:
                actions.append(self._suspect(self.ring.ring_id, self._me, "follows another ring"))
        self.ring = ring
        self.state = "reducing"
        self._accusations = Accusations(ring.members, self._me)
        self._reduce = RingReduce(ring.members, self._me, self._rules.num_chunks)
        self._commitment = Commitment(ring.ring_id, ring.members, self._me)
        self._generation += 1
        self._computed_finals = []
        self._progress_seconds = now
        actions += [BeginRing(ring, envelope), *self._reduce.start()]
        early, self._early = self._early, {}
        for signed, statement in early.values():
            actions += self._ring_statement(now, signed, statement)
        return actions

    # The rules: who is out

    @property
    def _is_out(self) -> bool:
        return self._me in self._accusations.out

    @property
    def _stall_seconds(self) -> float:
        return self._progress_seconds + STALL_SECONDS

    def _progress(self, now: float, actions: Sequence[Action]) -> list[Action]:
        if actions and not self._is_out:
            self._progress_seconds = now
        return list(actions)

    def _accuse(self, now: float, accused: PeerId, reason: str) -> list[Action]:
        """In my own name."""
        assert self.ring is not None
        is_news = accused in self.ring.members and accused not in self._accusations.out
        if not is_news and accused != self._me:
            return []
        suspect = self._suspect(self.ring.ring_id, accused, reason)
        return [suspect, *self._accused(now, self._me, accused, reason)]

    def _suspect(self, ring_id: Digest, accused: PeerId, reason: str) -> Publish:
        suspect = Suspect(ring_id, accused, reason[: limits.TEXT_CHARACTERS_MAX])
        return Publish(seal(suspect, self._me, self._run_id, self._sign), suspect)

    def _accused(self, now: float, author: PeerId, accused: PeerId, reason: str) -> list[Action]:
        """A member of my ring, or I, accused a member."""
        assert self._reduce is not None
        if not self._accusations.accuse(author, accused):
            return self._repeat(now)
        actions: list[Action] = [Removed(accused, reason), *self._reduce.member_removed(accused)]
        if self._is_out:
            self._progress_seconds = now
            if accused == self._me != author:
                actions += self._accuse(now, self._me, f"accused by {author}")
            return actions + self._return_if_lost(now)
        self._progress_seconds = now
        actions += self._repeat(now)
        if self.state == "voting":
            assert self._commitment is not None
            assert self._commitment.header is not None
            actions += self._vote(now, self._commitment.header)
        return [*actions, *self._after_finals()]

    def _repeat(self, now: float) -> list[Action]:
        """In my own name what others said of members that are out."""
        assert self.ring is not None
        actions: list[Action] = []
        for peer in self._accusations.to_repeat():
            self._accusations.accuse(self._me, peer)
            actions.append(self._suspect(self.ring.ring_id, peer, "is out"))
        return actions

    def _leave_if_stalled(self, now: float) -> list[Action]:
        assert self.ring is not None
        if now < self._stall_seconds or self._is_out or self._reduce_of(self.ring.ring_id) is None:
            return []
        return self._accuse(now, self._me, "stalled")

    def _return_if_lost(self, now: float) -> list[Action]:
        """Gathers again if I am out of the ring and it will not commit without me."""
        if self.state in ("gathering", "committed") or not self._is_out:
            return []
        assert self.ring is not None
        others = set(self.ring.members) - self._accusations.out
        if others & self._gatherer.expected and now < self._stall_seconds:
            return []
        self._void_rings.add(self.ring.ring_id)
        self.state = "gathering"
        self._gatherer.begin_again(now, self.ring.roster.attempt)
        return self._organise(now)

    # The rules: ring and votes

    def _reduce_of(self, ring_id: bytes) -> RingReduce | None:
        if self.ring is None or self.ring.ring_id != ring_id:
            return None
        return None if self.state in ("gathering", "committed") else self._reduce

    def _ring_statement(
        self, now: float, signed: Signed, statement: Suspect | Vote
    ) -> list[Action]:
        author = PeerId(signed.author)
        if self._reduce_of(statement.ring_id) is None:
            if isinstance(statement, Suspect):
                self._gatherer.note_accusation(statement.ring_id, author, PeerId(statement.accused))
            if statement.ring_id not in self._void_rings:
                self._keep_early(signed, statement)
            return self.tick(now) if self.state == "gathering" else []
        assert self.ring is not None
        assert self._commitment is not None
        if author not in self.ring.members:
            return []
        if isinstance(statement, Suspect):
            return self._accused(now, author, PeerId(statement.accused), statement.reason)
        if not self._commitment.vote_received(now, author, statement, signed):
            return []
        return self._progress(now, self._check_quorum())

    def _keep_early(self, signed: Signed, statement: Suspect | Vote) -> None:
        key = key_of(signed.author, statement)
        self._early.pop(key, None)
        self._early[key] = (signed, statement)
        if len(self._early) > EARLY_STATEMENTS_MAX:
            del self._early[next(iter(self._early))]

    def _after_finals(self) -> list[Action]:
        """Computes (again) once all finals are there and differ from what was computed."""
        assert self._reduce is not None
        if not self._reduce.is_complete or self._is_out:
            return []
        finals = self._reduce.finals
        if finals == self._computed_finals:
            return []
        self._computed_finals = finals
        self._generation += 1
        self.state = "computing"
        return [Compute(self._generation, finals)]

    def _vote(self, now: float, header: bytes) -> list[Action]:
        assert self._commitment is not None
        vote = self._commitment.propose(now, header, self.removed)
        signed = seal(vote, self._me, self._run_id, self._sign)
        self._commitment.vote_received(now, self._me, vote, signed)
        return [Publish(signed, vote), *self._check_quorum()]

    def _check_quorum(self) -> list[Action]:
        assert self._commitment is not None
        if self.state != "voting":
            return []
        commit = self._commitment.result()
        if commit is None:
            return []
        assert self._proposal is not None
        self.state = "committed"
        return [Committed(commit, self._proposal, self._computed_finals)]

    def _urge(self, now: float) -> list[Action]:
        """Hands over finals where votes differ, and accuses who holds up the round."""
        assert self._reduce is not None
        assert self._commitment is not None
        actions: list[Action] = []
        successor = self.successor
        if self._commitment.to_reconcile(now, successor):
            assert successor is not None
            actions += self._reduce.finals_for(successor)
        for peer, reason in self._commitment.to_accuse(now, self._reduce.living):
            if self.state == "voting":
                actions += self._accuse(now, peer, reason)
        return actions
