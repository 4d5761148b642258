"""One round as one peer sees it, from its first `Ready` to the commit.

    gathering --roster--> reducing --finals--> computing --state--> voting --quorum--> committed
                          |  ^  ^                                     |
                          |  |  +--- better finals: compute again ----+
                          +--+ a preferred roster for the same head replaces the ring

Rules
-----
- Gathering, the ring and the votes follow `roster`, `ring` and `commit`; this machine composes
  them and holds what is only true for one head.
- A roster that does not name me: I wait for its commit as long as one of its members is living.
- Statements about a ring that I do not follow (yet) are kept, up to `EARLY_STATEMENTS_MAX`, and
  taken when I follow it.
- A member whose link fails, or that is accused by a member of the ring, is removed from the ring.
- A living member that has not voted `VOTE_SECONDS` after me is accused of being silent.

Events are methods with the local clock in seconds; actions come back. The arithmetic (`Contribute`,
`Finalise`, `Compute`) is done outside and answered with the ring's id, so that an answer for a
ring that was replaced is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gossamer.protocol import limits
from gossamer.protocol.chain import (
    ChunkFinal,
    Commit,
    Header,
    Member,
    UpdateIndex,
    encode_header,
    mask_bytes,
    spans_taken,
    tokens_taken,
)
from gossamer.protocol.commit import Commitment
from gossamer.protocol.errors import LocalProtocolError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.ledger import Ledger, apply_spans
from gossamer.protocol.messages import (
    Ready,
    Roster,
    Sign,
    Signed,
    Span,
    Statement,
    Suspect,
    Verify,
    Vote,
    seal,
)
from gossamer.protocol.ring import Contribute, Final, Finalise, Payload, RingReduce, Send
from gossamer.protocol.roster import (
    Decision,
    Gathering,
    Ring,
    decide,
    is_complete,
    make_roster,
    open_roster,
    preference,
)

RoundState = Literal["gathering", "reducing", "computing", "voting", "committed"]

VOTE_SECONDS = 30.0
"""Time a member has to vote after I did: the outer step of a 1 B model on a slow CPU."""

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
class Parent:
    """The committed state that a round starts from."""

    head: Digest
    round: int
    tokens_total: int
    ledger: Ledger


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
class Proposal:
    """A header with what its digests stand for."""

    header: Header
    update: UpdateIndex
    ledger: Ledger


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
        on_offence: Callable[[PeerId, RemoteProtocolError], None] = lambda _peer, _error: None,
    ) -> None:
        self._me = me
        self._run_id = run_id
        self._parent = parent
        self._rules = rules
        self._sign = sign
        self._verify = verify
        self._on_offence = on_offence
        self.number = parent.round + 1
        self.state: RoundState = "gathering"
        self._ready: dict[PeerId, Signed] = {}
        self._first_ready_seconds: float | None = None
        self._complete_seconds: float | None = None
        self._expected: list[PeerId] = []
        self._foreign_members: set[PeerId] = set()
        self.ring: Ring | None = None
        self._reduce: RingReduce | None = None
        self._commitment: Commitment | None = None
        self._generation = 0
        self._computed_finals: list[Final] = []
        self._proposal: Proposal | None = None
        self._reconciled: set[tuple[PeerId, bytes, int]] = set()
        self._early: list[tuple[Signed, Suspect | Vote]] = []

    # What the driver asks

    @property
    def head(self) -> Digest:
        return self._parent.head

    @property
    def is_ready(self) -> bool:
        """Whether my own `Ready` was published."""
        return self._me in self._ready

    @property
    def successor(self) -> PeerId | None:
        """Whom I pass tokens to; None without a ring, alone in it, or out of it."""
        if self._reduce is None or self._me in self._reduce.removed:
            return None
        return self._reduce.successor

    @property
    def removed(self) -> frozenset[PeerId]:
        return self._reduce.removed if self._reduce is not None else frozenset()

    @property
    def stop_training_seconds(self) -> float | None:
        """Local time at which a peer that still trains should stop; None: no hurry yet."""
        if self._first_ready_seconds is None:
            return None
        return self._first_ready_seconds + STRAGGLER_FRACTION * self._rules.gather_seconds

    # Events: gathering

    def ready(self, now: float, ready: Ready) -> list[Action]:
        """My own work is done."""
        if ready.head != self.head or ready.round != self.number:
            raise LocalProtocolError("ready for another round")
        signed = seal(ready, self._me, self._run_id, self._sign)
        self._note_ready(now, signed)
        return [Publish(signed, ready), *self.tick(now)]

    def expect(self, now: float, peers: Collection[PeerId]) -> list[Action]:
        """The living other peers that work on this head."""
        self._expected = sorted(peers)
        self._note_complete(now)
        return self.tick(now)

    def statement(self, now: float, signed: Signed, statement: Statement) -> list[Action]:
        """A checked statement of another peer arrived."""
        if self.state == "committed":
            return []
        match statement:
            case Ready() if statement.head == self.head and statement.round == self.number:
                self._note_ready(now, signed)
                return self.tick(now)
            case Roster() if statement.head == self.head and statement.round == self.number:
                return self._roster(now, signed, statement)
            case Suspect() | Vote():
                return self._ring_statement(now, signed, statement)
        return []

    def tick(self, now: float) -> list[Action]:
        """Time passed: organise, or accuse the silent."""
        if self.state == "gathering":
            return self._organise(now)
        if self.state == "voting":
            return self._accuse_silent(now)
        return []

    def wake_seconds(self, now: float) -> float | None:
        """Local time at which `tick` has something to do; None: only on news."""
        if self.state == "gathering":
            return self._decision(now).ask_again_seconds
        if self.state == "voting":
            assert self._commitment is not None
            assert self._commitment.voted_seconds is not None
            deadline = self._commitment.voted_seconds + VOTE_SECONDS
            return deadline if deadline > now else None
        return None

    # Events: the ring

    def token_received(
        self, now: float, ring_id: Digest, sender: PeerId, chunk: int, mask: int, payload: Payload
    ) -> list[Action]:
        reduce = self._reduce_of(ring_id)
        if reduce is None:
            return []
        return list(reduce.token_received(sender, chunk, mask, payload))

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
        return [*actions, *self._after_finals()]

    def contributed(
        self, now: float, ring_id: Digest, chunk: int, payload: Payload
    ) -> list[Action]:
        reduce = self._reduce_of(ring_id)
        return [] if reduce is None else list(reduce.contributed(chunk, payload))

    def finalised(
        self, now: float, ring_id: Digest, chunk: int, payload: Payload, digest: Digest
    ) -> list[Action]:
        reduce = self._reduce_of(ring_id)
        if reduce is None:
            return []
        actions = reduce.finalised(chunk, payload, digest)
        return [*actions, *self._after_finals()]

    def link_failed(self, now: float, ring_id: Digest, peer: PeerId, reason: str) -> list[Action]:
        """My link to a ring member failed: I accuse it, and it is out."""
        reduce = self._reduce_of(ring_id)
        if reduce is None or peer in reduce.removed or self._me in reduce.removed:
            return []
        suspect = Suspect(ring_id, peer, reason[: limits.TEXT_CHARACTERS_MAX])
        signed = seal(suspect, self._me, self._run_id, self._sign)
        return [Publish(signed, suspect), *self._remove(now, peer, reason)]

    def computed(
        self, now: float, ring_id: Digest, generation: int, state_digest: Digest
    ) -> list[Action]:
        """The outer step was taken: vote for the header that follows."""
        if self._reduce_of(ring_id) is None or generation != self._generation:
            return []
        assert self._reduce is not None
        assert self._commitment is not None
        if self._me in self._reduce.removed:
            return []
        self._proposal = self._propose(state_digest)
        self.state = "voting"
        return self._vote(now, encode_header(self._proposal.header))

    # The rules: gathering

    def _note_ready(self, now: float, signed: Signed) -> None:
        self._ready[PeerId(signed.author)] = signed
        if self._first_ready_seconds is None:
            self._first_ready_seconds = now
        self._note_complete(now)

    def _note_complete(self, now: float) -> None:
        if not is_complete(self._gathering()):
            self._complete_seconds = None
        elif self._complete_seconds is None:
            self._complete_seconds = now

    def _gathering(self) -> Gathering:
        return Gathering(
            self._me,
            self.head,
            self._ready,
            self._expected,
            self._first_ready_seconds,
            self._complete_seconds,
        )

    def _decision(self, now: float) -> Decision:
        return decide(
            now, self._gathering(), self._rules.gather_seconds, self._rules.attempt_seconds
        )

    def _organise(self, now: float) -> list[Action]:
        if self._foreign_members & set(self._expected):
            return []  # a ring without me is at work on this head
        attempt = self._decision(now).attempt
        if attempt is None:
            return []
        roster = make_roster(
            self.head,
            self.number,
            attempt,
            self._ready,
            self._rules.codec,
            self._rules.chunk_elements,
        )
        signed = seal(roster, self._me, self._run_id, self._sign)
        if self._me not in {member.author for member in roster.members}:
            return [Publish(signed, roster)]
        return [Publish(signed, roster), *self._roster(now, signed, roster)]

    def _roster(self, now: float, signed: Signed, roster: Roster) -> list[Action]:
        ring = open_roster(
            signed,
            roster,
            self._run_id,
            self._verify,
            self._rules.codec,
            self._rules.chunk_elements,
        )
        if self._me not in ring.members:
            self._foreign_members.update(ring.members)
            return []
        if self.ring is not None and preference(ring) >= preference(self.ring):
            return []
        return self._follow(now, ring, signed)

    def _follow(self, now: float, ring: Ring, envelope: Signed) -> list[Action]:
        self.ring = ring
        self.state = "reducing"
        self._reduce = RingReduce(ring.members, self._me, self._rules.num_chunks)
        self._commitment = Commitment(ring.ring_id, ring.members, self._me)
        self._generation += 1
        self._computed_finals = []
        actions: list[Action] = [BeginRing(ring, envelope), *self._reduce.start()]
        early, self._early = self._early, []
        for signed, statement in early:
            actions += self._ring_statement(now, signed, statement)
        return actions

    # The rules: ring and votes

    def _reduce_of(self, ring_id: bytes) -> RingReduce | None:
        if self.ring is None or self.ring.ring_id != ring_id or self.state == "committed":
            return None
        return self._reduce

    def _ring_statement(
        self, now: float, signed: Signed, statement: Suspect | Vote
    ) -> list[Action]:
        if self._reduce_of(statement.ring_id) is None:
            if len(self._early) < EARLY_STATEMENTS_MAX:
                self._early.append((signed, statement))
            return []
        assert self.ring is not None
        assert self._commitment is not None
        author = PeerId(signed.author)
        if author not in self.ring.members:
            return []
        if isinstance(statement, Suspect):
            return self._remove(now, PeerId(statement.accused), statement.reason)
        if not self._commitment.vote_received(author, statement, signed):
            return []
        return [*self._reconcile(), *self._check_quorum()]

    def _remove(self, now: float, peer: PeerId, reason: str) -> list[Action]:
        assert self.ring is not None
        assert self._reduce is not None
        if peer not in self.ring.members or peer in self._reduce.removed:
            return []
        actions: list[Action] = [Removed(peer, reason), *self._reduce.member_removed(peer)]
        if self.state == "voting" and self._me not in self._reduce.removed:
            assert self._commitment is not None
            assert self._commitment.header is not None
            actions += self._vote(now, self._commitment.header)
        return [*actions, *self._after_finals()]

    def _after_finals(self) -> list[Action]:
        """Computes (again) once all finals are there and differ from what was computed."""
        assert self._reduce is not None
        if not self._reduce.is_complete or self._me in self._reduce.removed:
            return []
        finals = self._reduce.finals
        if finals == self._computed_finals:
            return []
        self._computed_finals = finals
        self._generation += 1
        self.state = "computing"
        return [Compute(self._generation, finals)]

    def _vote(self, now: float, header: bytes) -> list[Action]:
        assert self._reduce is not None
        assert self._commitment is not None
        vote = self._commitment.propose(now, header, self._reduce.removed)
        signed = seal(vote, self._me, self._run_id, self._sign)
        self._commitment.vote_received(self._me, vote, signed)
        return [Publish(signed, vote), *self._reconcile(), *self._check_quorum()]

    def _reconcile(self) -> list[Action]:
        """Hands my finals to members whose vote differs, once for every pair of votes."""
        assert self._reduce is not None
        assert self._commitment is not None
        actions: list[Action] = []
        for peer, digest in self._commitment.disagreeing():
            key = (peer, digest, self._generation)
            if key not in self._reconciled and self.state == "voting":
                self._reconciled.add(key)
                actions += self._reduce.finals_for(peer)
        return actions

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

    def _accuse_silent(self, now: float) -> list[Action]:
        assert self.ring is not None
        assert self._reduce is not None
        assert self._commitment is not None
        voted = self._commitment.voted_seconds
        if voted is None or now < voted + VOTE_SECONDS:
            return []
        actions: list[Action] = []
        for peer in self._commitment.silent(self._reduce.living):
            if self.state == "voting":
                actions += self.link_failed(now, self.ring.ring_id, peer, "silent")
        return actions

    def _propose(self, state_digest: Digest) -> Proposal:
        """The header that follows from the ring, its finals and the state that they lead to."""
        assert self.ring is not None
        finals = self._computed_finals
        ring = self.ring
        num_members, num_chunks = len(ring.members), len(finals)
        counts = [sum(f.mask >> i & 1 for f in finals) for i in range(num_members)]
        members = tuple(
            Member(peer, tokens_taken(ready.tokens, count, num_chunks))
            for peer, ready, count in zip(ring.members, ring.ready, counts, strict=True)
        )
        spans: set[Span] = set()
        for ready, count in zip(ring.ready, counts, strict=True):
            if spans_taken(count, num_chunks):
                spans.update(ready.spans)
        ordered = tuple(sorted(spans, key=lambda span: (span.shard, span.start, span.stop)))
        ledger = apply_spans(self._parent.ledger, ordered)
        update = UpdateIndex(
            self._rules.codec,
            tuple(ChunkFinal(f.digest, mask_bytes(f.mask, num_members)) for f in finals),
        )
        header = Header(
            limits.PROTOCOL_VERSION,
            self._run_id,
            self.number,
            self.head,
            ring.ring_id,
            members,
            self._parent.tokens_total + sum(member.tokens for member in members),
            update.digest,
            state_digest,
            ledger.digest,
            ordered,
        )
        return Proposal(header, update, ledger)
