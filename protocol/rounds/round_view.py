"""The questions of a driver to the machine of a round (`round.Round`).

No method here changes anything. The events that change the round are in `round`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import Signer
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.gathering import Gatherer
from gossamer.protocol.rounds.inventory import Inventory, Payload, SumStep
from gossamer.protocol.rounds.ring.followed_ring import FollowedRing
from gossamer.protocol.rounds.ring.ring_signatures import SignedAverages
from gossamer.protocol.rounds.ring_choice import RingChoice
from gossamer.protocol.rounds.roster import NO_HINTS, Ring, RoundHints, RoundRules
from gossamer.protocol.rounds.states import ROUND, RingState, RoundPhase
from gossamer.protocol.wire.envelopes import Verify
from gossamer.protocol.wire.statements import RingStatement, Signed

RoundState: TypeAlias = Literal["gathering"] | RingState
"""The phase of the round, with the state of the followed ring in its place."""

STRAGGLER_FRACTION = 0.7
"""Part of the gathering time after which a peer that still trains stops, to be ready in time."""

LATER_FACTOR = 1.25
"""Bound on how much later a peer may be than in the last round of shared steps. Such a peer fetched
that round and replayed it. This takes a similar time again, or the peer misses this round as
well."""

EARLY_STATEMENTS_MAX = 4 * limits.RING_MEMBERS_MAX
"""Kept statements about rings that are not followed: one of each kind for each member, and those of
one more ring."""


class RoundView:
    """The state of one round, with the questions about it.

    Together with the events of `Round` it has more than 15 public methods: a driver needs one
    object for all that concerns a round. It has more than 12 attributes: the rules and the peer
    that it is made for, and how far the round has come.
    """

    def __init__(
        self,
        *,
        signer: Signer,
        parent: Parent,
        rules: RoundRules,
        verify: Verify,
        now: float,
        hints: RoundHints = NO_HINTS,
    ) -> None:
        """
        Args:
            now: local time at which the training of this round began.
            hints: from the round before.
        """
        self._signer = signer
        self._me = me = signer.me
        self._parent = parent
        self._rules = rules
        self._verify = verify
        self._began_seconds = now
        self._hints = hints
        self.number = parent.round + 1
        self._gatherer = Gatherer(me, parent.head, now, rules, hints)
        self.gathering_reason = "not ready"
        """Why this peer does, or does not, publish a roster: the newest decision's reason."""
        self._followed: FollowedRing | None = None
        """The ring that this peer follows, or followed last."""
        self._phase: RoundPhase = ROUND.initial
        self._void_rings: set[Digest] = set()
        self._choice = RingChoice(me, self.number, rules, self._gatherer, hints)
        self._early: dict[tuple[str, ...], tuple[Signed, RingStatement]] = {}

    @property
    def state(self) -> RoundState:
        """The phase of the round, or the state of the followed ring."""
        if self._phase == "gathering":
            return "gathering"
        assert self._followed is not None
        return self._followed.state

    @property
    def is_over(self) -> bool:
        """Returns whether the round is committed here and no member needs anything from this
        peer."""
        return self._followed is not None and self._followed.is_over

    @property
    def head(self) -> Digest:
        """The head that the round starts from."""
        return self._parent.head

    @property
    def ring(self) -> Ring | None:
        """The ring that this peer follows, or followed last."""
        return None if self._followed is None else self._followed.ring

    @property
    def signed_averages(self) -> SignedAverages:
        """Signs and checks the averages of the ring that this peer follows, or followed last."""
        assert self.ring is not None, "there is no ring yet"
        return self.signed_averages_of(self.ring)

    def signed_averages_of(self, ring: Ring) -> SignedAverages:
        """Signs and checks the averages and the shared steps of a ring."""
        return SignedAverages(self._signer, ring, self._verify, self._rules.payloads)

    @property
    def members_at_work(self) -> tuple[PeerId, ...]:
        """Members of the followed ring that are believed living, in ring order.

        Empty without a ring, and once the ring is committed here.
        """
        followed = self._followed
        if followed is None or self.state in ("gathering", "committed"):
            return ()
        return followed.reduce.living

    @property
    def is_ready(self) -> bool:
        """Returns whether this peer's own `Ready` was published."""
        return self._gatherer.mine is not None

    @property
    def successor(self) -> PeerId | None:
        """The member that gets this peer's chunks; None without a ring, alone in it, or out of it.

        The driver keeps a link to it as long as it is the successor, also when there is nothing to
        send. Otherwise the successor's death would not show.
        """
        return None if self._followed is None else self._followed.successor

    @property
    def proposed_head(self) -> Digest | None:
        """The head that this peer voted for last in the followed ring; None: it has not voted."""
        return None if self._followed is None else self._followed.commitment.head

    @property
    def num_averages(self) -> int:
        """Chunks of the followed ring whose average is here; 0 without a ring."""
        return 0 if self._followed is None else self._followed.reduce.num_averages

    @property
    def lost_seconds(self) -> float:
        """Time in which the ring that this peer follows stood still before members were put out."""
        return 0.0 if self._followed is None else self._followed.patience.lost_seconds

    @property
    def removed(self) -> frozenset[PeerId]:
        """Members that are out of the ring that this peer follows, or followed last."""
        return frozenset() if self._followed is None else self._followed.removed

    @property
    def hints(self) -> RoundHints:
        """Returns the hints of this round for the next one."""
        followed = self._followed
        replay_seconds = self._hints.replay_seconds
        if self._rules.payloads.are_steps:  # their averages come while the members train
            replay_seconds = LATER_FACTOR * self._gatherer.times.late_seconds
        elif followed is not None and not followed.removed:  # it would be the time of the fault
            replay_seconds = followed.reduced_seconds or replay_seconds
        return RoundHints(
            frozenset() if followed is None else followed.link_rate.found_slow,
            came_late=self.state != "committed",
            replay_seconds=replay_seconds,
            in_vain=self._choice.in_vain(() if followed is None else followed.ring.members),
            strangers_wait=self._gatherer.strangers_wait,
            missed=self._gatherer.missed,
        )

    @property
    def stop_training_seconds(self) -> float | None:
        """Local time at which a peer that still trains should stop; None: no peer is ready yet.

        A peer that came late to the last ring stops as soon as the wait for the others begins. It
        needs more time than the others between its last step and the ring, or it begins later
        because it fetches each round from them. Otherwise it would miss each ring by the same time.
        """
        began_seconds = self._gatherer.times.wait_began_seconds
        if began_seconds is None:
            return None
        fraction = 0.0 if self._hints.came_late else STRAGGLER_FRACTION
        return began_seconds + fraction * self._gatherer.gather_seconds

    @property
    def attainable(self) -> dict[PeerId, int]:
        """Members that will sign the round if the followed ring commits with all its living ones,
        each with the tokens of its work. Empty without a ring.

        Another ring may commit a head on the same parent. This peer leaves its own ring for that
        head only if the head weighs more than these members. Otherwise the commit of a single peer
        would stop a ring of many members.
        """
        followed = self._followed
        if followed is None or followed.is_out or self.state == "gathering":
            return {}
        weights, removed = followed.ring.weights, followed.removed
        return {peer: tokens for peer, tokens in weights.items() if peer not in removed}

    def has_to_check(self, mask: int, finisher: int | None) -> bool:
        """Returns whether the content of a payload must be checked before it is taken. An average's
        must be, and so must that of a partial sum that travels on without an addition here that
        would find its faults. Sets always are: an addition does not look at the others' records,
        and what is in an average is taken for good by the member that finishes it."""
        if finisher is not None or not isinstance(self._rules.payloads, SumPayloads):
            return True
        assert self.ring is not None, "there is no ring yet"
        return bool(mask >> self.ring.members.index(self._me) & 1)

    def average_of(self, ring_id: Digest, chunk: int) -> Payload | None:
        """The best average of a chunk so far; None: there is none, or the ring is not followed."""
        followed = self._followed
        if followed is None or followed.ring.ring_id != ring_id:
            return None
        return followed.reduce.average_of(chunk)

    def steps_of(self, chunk: int) -> tuple[SumStep, ...]:
        """What this peer did to the partial sums of a chunk of the ring that it follows, or
        followed last; see `RingReduce.steps_of`."""
        return () if self._followed is None else self._followed.reduce.steps_of(chunk)

    def inventory(self, ring_id: Digest) -> Inventory | None:
        """Returns what this peer holds of the ring's chunks; None if the ring is not followed."""
        followed = self._working(ring_id)
        return None if followed is None else followed.reduce.inventory()

    @property
    def _companions(self) -> tuple[PeerId, ...]:
        """The living members of the ring that this peer follows and is not out of."""
        followed = self._followed
        return () if followed is None or followed.is_out else self.members_at_work

    # Which ring an event belongs to

    def _open(self, ring_id: bytes) -> FollowedRing | None:
        """The followed or committed ring if it has this id, else None."""
        followed = self._followed
        if followed is None or followed.ring.ring_id != ring_id:
            return None
        return None if self.state == "gathering" else followed

    def _working(self, ring_id: bytes) -> FollowedRing | None:
        """The followed ring if it has this id and is not committed, else None."""
        return None if self.state == "committed" else self._open(ring_id)
