"""The place of a round in the schedule of its run, from the committed chain."""

from __future__ import annotations

from gossamer.node.storage.committed import CommittedState
from gossamer.protocol.ids import PeerId
from gossamer.protocol.state.chain import credits_of
from gossamer.protocol.state.run_end import SchedulePlace


class RoundPlaces:
    """Says where a round lies in the schedule of its run.

    Rounds that are not committed yet may lie between the chain and a round that this node trains
    ahead. Each of these is supposed to have as many tokens as the newest committed one.
    """

    def __init__(self, committed: CommittedState) -> None:
        self._committed = committed

    def of_round(self, number: int) -> SchedulePlace | None:
        """Returns the place of a round; None in a run that counts planned steps."""
        committed = self._committed
        if committed.end.schedule is None:
            return None
        entry, newest = committed.entry, self._newest_tokens()
        rounds_ahead = max(0, number - 1 - entry.round)
        return committed.end.place_of(
            entry.tokens_total, len(newest), rounds_ahead * sum(newest.values())
        )

    def is_last(self, number: int) -> bool:
        """Returns whether no round is supposed to follow a round."""
        committed = self._committed
        entry, tokens = committed.entry, committed.entry.tokens_total
        if committed.end.final_tokens is not None and number > entry.round:
            tokens += (number - entry.round) * sum(self._newest_tokens().values())
        return committed.end.is_over_after(number, tokens)

    def _newest_tokens(self) -> dict[PeerId, int]:
        """Returns the tokens of each contributor of the newest committed round."""
        entry = self._committed.entry
        return credits_of(self._committed.chain.header(entry.head)) if entry.round else {}
