"""The decisions of a node between and during its rounds: pure functions of its knowledge.

Each function gets facts and returns a `Decision`: the answer and the reason for it. No function
here reads a clock or changes anything. `DecisionLog` writes a line whenever a reason changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from gossamer.node.heads.heads import BetterHead
from gossamer.protocol.policy.head_choice import HeadWeight
from gossamer.protocol.wire.statements import Phase

OVERTAKEN_SECONDS = 5.0
"""Time for which this node may still finish its own ring after others have committed that ring.
After that it fetches the round from them."""

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
    num_ready = sum(phase in ("training", "averaging") for phase in phases)
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


def is_overtaken(
    better: BetterHead,
    attainable: HeadWeight,
    now: float,
    *,
    is_on_mine: bool,
    is_finishing: bool,
) -> Decision:
    """Returns whether a better head makes this node's present round not worth waiting for.

    Args:
        attainable: weight of the present ring's commit if all its members sign it.
        now: local time.
        is_on_mine: whether the better head descends from this node's committed head.
        is_finishing: whether the better head includes the commit of the ring that this node still
            passes chunks on for.
    """
    # A lone commit on this node's head does not stop a ring of many. Two branches that go on side
    # by side are different: the one that is behind now yields. If each went by what its own ring
    # may yet commit, the branches would overtake each other in turn and never meet.
    if is_on_mine and better.weight < attainable:
        return Decision(False, "the present ring can outweigh the better head")
    # A peer that stayed for the commit of another ring, in order to make one of the same weight,
    # would split the swarm into two halves that overtake each other in turn.
    patience_seconds = OVERTAKEN_SECONDS if is_finishing else 0.0
    if now < better.since_seconds + patience_seconds:
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
