"""Where the time of an inner step goes: data, forward and backward passes, optimiser, hand-over.

A CPU does what it is told before the call returns, so its parts are measured with the host's clock.
A CUDA or ROCm card works behind the host. There the card itself notes the time of *events*, which
are read when they have come to pass: nobody waits for one. So the optimiser's part, whose end no
step waits for, is told with the step after it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import torch

from gossamer.trainer.ipc.measures import StepTimes

if TYPE_CHECKING:
    from collections.abc import Iterator

Part = Literal["data", "forward", "backward", "optimizer", "handover"]

OF_HOST: frozenset[Part] = frozenset({"data", "handover"})
"""Parts that end with the host's own work, whatever the device: their copies are waited for."""

PENDING_MAX = 4096
"""Events that have not come to pass. A step has two for each micro-batch, and all but the last have
when its loss is read. More are those of a broken driver, and are dropped."""


class Event(Protocol):
    """A moment in the work of a card; torch's event with its time."""

    def query(self) -> bool:
        """Returns whether the card has come to it."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Returns the milliseconds from this event to another."""


class StepClock:
    """Adds up the seconds of each part. Not for use from several threads."""

    def __init__(
        self,
        make_event: Callable[[], Event] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        is_read: bool = True,
    ) -> None:
        """
        Args:
            make_event: makes an event of the card, at what it was told last; None: the device has
                none, and the host's clock holds for it.
            clock: seconds of the host.
            is_read: False if these seconds say nothing of the device.
        """
        self._make_event = make_event
        self._clock = clock
        self.is_read = is_read
        self._part: Part | None = None
        self._since = 0.0
        self._seconds: dict[Part, float] = {}
        self._event: Event | None = None
        """At the beginning of the present part, if the card's time counts for it."""
        self._pending: deque[tuple[Part, Event, Event]] = deque(maxlen=PENDING_MAX)

    def begins(self, part: Part | None) -> None:
        """A part begins, and the one before it ends. None: nothing of interest begins."""
        now = self._clock()
        event: Event | None = None
        if self._make_event is not None and not {part, self._part} <= {*OF_HOST, None}:
            event = self._make_event()
        if self._part is not None:
            if event is not None and self._event is not None and self._part not in OF_HOST:
                self._pending.append((self._part, self._event, event))
            else:
                self._add(self._part, now - self._since)
        self._part, self._since, self._event = part, now, event

    @contextmanager
    def of(self, part: Part) -> Iterator[None]:
        """Counts a piece of work by itself."""
        self.begins(part)
        try:
            yield
        finally:
            self.begins(None)

    def take(self) -> StepTimes:
        """Returns the seconds since the last call, of all that the device has come to."""
        while self._pending and self._pending[0][2].query():
            part, start, end = self._pending.popleft()
            self._add(part, start.elapsed_time(end) / 1000)
        seconds, self._seconds = self._seconds, {}
        return StepTimes(**seconds)

    def _add(self, part: Part, seconds: float) -> None:
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds


def clock_of(device: torch.device) -> StepClock:
    """Returns the clock of a device. It is not read on one that works behind the host and has no
    events that this module knows (Apple's and Intel's GPUs)."""
    if device.type == "cuda":  # ROCm too
        return StepClock(partial(_card_event, device))
    return StepClock(is_read=device.type == "cpu")


def _card_event(device: torch.device) -> Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    # Without a stream it would be one of the current device, which may be another card.
    event.record(torch.cuda.current_stream(device))
    return cast("Event", event)
