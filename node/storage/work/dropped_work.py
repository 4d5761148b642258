"""What the log says of work that is given up, or carried again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import structlog

from gossamer.protocol.accounting.work_records import (
    EXCESS,
    LATE,
    OUT_OF_RANGE,
    ROLLED_BACK,
    STALE,
)

log = structlog.get_logger("work")

_WHY: Mapping[str, str] = {
    STALE: "it missed too many rounds, because this node was away or is slower than the others",
    EXCESS: "rounds did not take this node's work for so long that it is more than one may take",
    OUT_OF_RANGE: "a value of it is out of range",
    ROLLED_BACK: "the rounds that it builds on were taken back",
}


def say_dropped(tokens: int, reason: str) -> None:
    """Writes a line of the log on tokens that no round will take."""
    level = logging.DEBUG if reason == LATE else logging.WARNING
    why = _WHY.get(reason, "")
    text = f"work is dropped: {why}" if why else "work is dropped"
    log.log(level, text, tokens=tokens, reason=reason, fields={"event": "work is dropped"})


class LostRounds(NamedTuple):
    """Rounds that took work of this node and left its chain together, as after a split: one line
    tells of all of them."""

    num_rounds: int = 0
    dropped: int = 0
    """Tokens that are too old for another round."""
    carried: int = 0
    """Tokens that the next round is offered again."""

    def and_one(self, dropped: int, carried: int) -> LostRounds:
        """Returns these rounds and one more."""
        return LostRounds(self.num_rounds + 1, self.dropped + dropped, self.carried + carried)

    def say(self) -> None:
        """Writes what becomes of their work."""
        if self.dropped:
            log.warning(
                "work of lost rounds is dropped", tokens=self.dropped, num_rounds=self.num_rounds
            )
        if self.carried:
            log.info(
                "work of lost rounds is carried again",
                tokens=self.carried,
                num_rounds=self.num_rounds,
            )
