"""The decisions of a node between and during its rounds: pure functions of its knowledge.

A function gets facts and returns a `Decision`, which is the answer and the reason for it, or a time
to wait. No function here reads a clock or changes anything. `DecisionLog` writes a line whenever a
reason changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from gossamer.node.heads.heads import BetterHead
from gossamer.protocol.ids import Digest
from gossamer.protocol.policy.heads.head_choice import HeadWeight
from gossamer.protocol.wire.statements import AT_WORK, Phase

MISSED_MAX = 1
"""Rounds that a node's work may miss before the node offers it without more training. The others
nearly always wait for it in the second one (`STRANGER_WAITS_MAX`). A node for which they did not
wait is never ready in time where it trains as long as they do."""

OVERTAKEN_SECONDS = 5.0
"""Time without a new average for which this node may still finish its own ring after others have
committed that ring. After that it fetches the round from them."""

LINGER_SECONDS = 10.0
"""Time after the commit for which a member serves those that have not voted for it yet, and as long
as the ring took where that is longer. A member that has not voted by then fetches the round instead
(`RingProgress`)."""

LINGER_SECONDS_MAX = 600.0
"""The same where members train in their ring, which may take an hour. Averages of 300 MB come in
this time over a line of 4 Mbit/s, and are kept in memory meanwhile."""

log = structlog.get_logger("node")


@dataclass(frozen=True)
class Decision:
    """An answer and its reason."""

    holds: bool
    reason: str


def is_too_early(round_number: int, phases: Sequence[Phase], wait_for_peers: int) -> Decision:
    """Returns whether the run's first round waits for more peers.

    Args:
        round_number: of the committed head.
        phases: what the other living peers announce.
        wait_for_peers: others that the operator wants to be ready before the first round.
    """
    if round_number > 0:
        return Decision(False, "the run has begun")
    num_ready = sum(phase in AT_WORK for phase in phases)
    if num_ready >= wait_for_peers:
        return Decision(False, f"{num_ready} other peers are ready")
    return Decision(True, f"{num_ready} of {wait_for_peers} other peers are ready")


def goes_straight_on(
    *, wants_device: bool, is_trainer_up: bool, better: BetterHead | None
) -> Decision:
    """Returns whether the next round can begin on what the last one led to.

    Args:
        wants_device: whether the operator asked for a pause or a leave.
        better: a head that wins over the committed one.
    """
    if wants_device:
        return Decision(False, "the operator asked for a pause or a leave")
    if not is_trainer_up:
        return Decision(False, "the trainer is not up")
    if better is not None:
        return Decision(False, "a better head is known")
    return Decision(True, "this node is at the best head")


def offers_without_training(rounds_missed: int) -> Decision:
    """Returns whether a round begins with the carried work alone.

    Its early `Ready` does not end the training of the others (`protocol.rounds.ready_times`).

    Args:
        rounds_missed: rounds that this node's oldest carried work has missed.
    """
    if not rounds_missed:
        return Decision(False, "no work has missed a round")
    if rounds_missed <= MISSED_MAX:
        return Decision(False, "the others may wait for this node once more")
    return Decision(True, "the others did not wait for this node")


def stops_training(
    *,
    wants_device: bool,
    better: BetterHead | None,
    deadline_seconds: float | None,
    now: float,
) -> Decision:
    """Returns whether a round's training ends before its last step.

    Args:
        wants_device: whether the operator asked for a pause or a leave.
        better: a head that wins over the committed one.
        deadline_seconds: local time until which the others wait; None: they do not wait yet.
        now: local time.
    """
    if wants_device:
        return Decision(True, "the operator asked for a pause or a leave")
    if better is not None:
        return Decision(True, "a better head is known")
    if deadline_seconds is not None and now >= deadline_seconds:
        return Decision(True, "the others are ready")
    return Decision(False, "no peer waits")


def linger_seconds(ring_seconds: float) -> float:
    """Time after the commit of a ring for which a member serves those that have not voted yet.

    Args:
        ring_seconds: time that the ring took.
    """
    return max(LINGER_SECONDS, min(ring_seconds, LINGER_SECONDS_MAX))


@dataclass
class RingProgress:
    """How far the ring of a round has come at this node, in local times."""

    ring_id: Digest | None = None
    num_averages: int = 0
    began_seconds: float = 0.0
    newest_seconds: float = 0.0
    """Time at which the newest average was first seen; of the ring's begin before that."""

    def look(self, now: float, ring_id: Digest | None, num_averages: int) -> None:
        """Notes what is here now."""
        if ring_id != self.ring_id:
            self.ring_id, self.began_seconds = ring_id, now
        elif num_averages == self.num_averages:
            return
        self.num_averages, self.newest_seconds = num_averages, now

    def finishing_until(self, committed_seconds: float) -> float:
        """Local time until which this node may still finish the ring.

        All averages of a round that is fetched come anew, which takes about as long as the ring. So
        a ring that still brings averages gets the time for which its members serve this node, and
        no more: a member that sends them slowly on purpose holds this node up for one ring.

        Args:
            committed_seconds: when this node heard that others have committed the ring.
        """
        spent_seconds = committed_seconds - self.began_seconds
        latest = committed_seconds + linger_seconds(spent_seconds)
        return min(latest, max(committed_seconds, self.newest_seconds) + OVERTAKEN_SECONDS)


def is_overtaken(
    better: BetterHead,
    attainable: HeadWeight,
    now: float,
    *,
    is_on_mine: bool,
    finishing_until: float | None,
) -> Decision:
    """Returns whether a better head makes this node's present round not worth waiting for.

    Args:
        attainable: weight of the present ring's commit if all its members sign it.
        now: local time.
        is_on_mine: whether the better head descends from this node's committed head.
        finishing_until: local time until which this node may finish its own ring, where the better
            head includes the commit of that ring; None where it does not.
    """
    # A lone commit on this node's head does not stop a ring of many. Two branches that go on side
    # by side are different: the one that is behind now yields. If each went by what its own ring
    # may yet commit, the branches would overtake each other in turn and never meet.
    if is_on_mine and better.weight < attainable:
        return Decision(False, "the present ring can outweigh the better head")
    # A peer that stayed for the commit of another ring, in order to make one of the same weight,
    # would split the swarm into two halves that overtake each other in turn.
    if finishing_until is not None and now < finishing_until:
        return Decision(False, "the others committed this ring, which is nearly finished here")
    return Decision(True, "a better head is committed elsewhere")


def gives_up_round(
    overtaken: Decision,
    now: float,
    leave_seconds: float,
    *,
    is_ready: bool,
    better: BetterHead | None,
) -> Decision:
    """Returns whether a node stops waiting for the commit of its round.

    Args:
        now: local time.
        leave_seconds: local time until which a node that leaves waits; inf for one that stays.
        is_ready: whether the node has handed work to the round.
    """
    if overtaken.holds:
        return overtaken
    if now > leave_seconds:
        return Decision(True, "this node leaves and its last round takes too long")
    if not is_ready and better is None:
        return Decision(True, "nothing was trained: the next round tries again")
    return Decision(False, overtaken.reason)


def stays_for_newest_round(
    *, is_best: bool, lacks_averages: bool, others_have_it: Sequence[bool]
) -> Decision:
    """Returns whether a node that leaves would take its newest round with it.

    Args:
        is_best: whether no better head is known than the node's.
        lacks_averages: whether a member of that round's ring has not voted for it yet.
        others_have_it: whether each living other is at that head, or at one that follows it.
    """
    if not is_best:
        return Decision(False, "the others have a better head")
    if lacks_averages:
        return Decision(True, "a member of the newest ring may lack averages")
    if not others_have_it:
        return Decision(False, "there is no other peer")
    if any(others_have_it):
        return Decision(False, "another peer has the newest round")
    return Decision(True, "no other peer has the newest round")


class DecisionLog:
    """Writes a line when the answer to a question, or the reason for it, changes."""

    def __init__(self) -> None:
        self._newest: dict[str, Decision] = {}
        """The newest answer to each question. The questions are a fixed few."""

    def note(self, question: str, decision: Decision) -> bool:
        """Notes an answer and returns it as a bool."""
        if self._newest.get(question) != decision:
            self._newest[question] = decision
            log.debug(question, answer=decision.holds, reason=decision.reason)
        return decision.holds
