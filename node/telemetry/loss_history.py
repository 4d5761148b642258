"""The curve of losses over a run of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gossamer.node.telemetry.status import LossPoint

LOSS_POINTS_MAX = 240
"""Points of the curve in one answer: a page shows no more, and a status stays small."""


class Heldout(NamedTuple):
    """What an evaluation of one state on held-out text has measured."""

    round: int
    """The state is the one after this round."""
    loss: float
    """In nats a token."""
    bits_per_byte: float | None = None
    """`loss` in bits for each byte of text; None if that is not known."""

    def put_into(self, point: LossPoint) -> LossPoint:
        """Returns the point of its round with these values."""
        return msgspec.structs.replace(
            point, heldout_loss=self.loss, heldout_bits_per_byte=self.bits_per_byte
        )


class LossHistory:
    """Keeps the curve of a run of any length in at most `LOSS_POINTS_MAX` points.

    A full history drops every second point, and from then on keeps half as many rounds. So the
    points stay evenly spaced from the beginning. The newest point is always there.
    """

    def __init__(self) -> None:
        self._points: list[LossPoint] = []
        self._newest: LossPoint | None = None
        self._stride = 1

    @classmethod
    def restored(cls, points: Sequence[LossPoint], stride: int) -> LossHistory:
        """Returns the history that had these `points` and this `stride`."""
        history = cls()
        history._stride = max(1, stride)
        for point in points[:LOSS_POINTS_MAX]:
            history.add(point)
        return history

    @property
    def stride(self) -> int:
        """The least number of rounds between two points that are kept."""
        return self._stride

    def add(self, point: LossPoint) -> None:
        """Adds a round. A round that is not newer than the newest one replaces all from it on."""
        if self._newest is not None and point.round < self._newest.round:
            self._points = [kept for kept in self._points if kept.round < point.round]
        self._newest = point
        if self._points and self._points[-1].round == point.round:
            self._points[-1] = point
        elif not self._points or point.round - self._points[-1].round >= self._stride:
            self._points.append(point)
        # One place stays free for the newest point.
        if len(self._points) >= LOSS_POINTS_MAX:
            self._points = self._points[::2]
            self._stride *= 2

    def measured(self, heldout: Heldout) -> None:
        """Adds a held-out loss to the point of its round. A round that is newer than all points, as
        one that this node has followed, gets a point; of an older one without a point nothing is
        kept."""
        number, newest = heldout.round, self._newest
        if newest is None or newest.round < number:
            self.add(heldout.put_into(LossPoint(round=number)))
            return
        self._points = [
            heldout.put_into(kept) if kept.round == number else kept for kept in self._points
        ]
        if newest.round == number:
            self._newest = heldout.put_into(newest)

    def forget_after(self, round_number: int) -> None:
        """Drops the points of newer rounds: they are not in the chain any more."""
        kept = [point for point in self.points() if point.round <= round_number]
        self._points = [point for point in self._points if point.round <= round_number]
        self._newest = kept[-1] if kept else None

    def points(self) -> tuple[LossPoint, ...]:
        """Returns the points that are kept, oldest first, and the newest one."""
        if self._newest is None or (self._points and self._points[-1].round == self._newest.round):
            return tuple(self._points)
        return (*self._points, self._newest)
