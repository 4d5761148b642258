"""Where the time of a step goes, on a host and on a card of which the host runs ahead."""

from __future__ import annotations

import pytest
import torch

from gossamer.trainer.inner_step import step_clock
from gossamer.trainer.inner_step.step_clock import StepClock, clock_of


class Card:
    """A card with a queue of events."""

    def __init__(self) -> None:
        self.events: list[CardEvent] = []
        self.now_ms = 0.0
        self.num_done = 0
        """Events that it has come to."""

    def event(self) -> CardEvent:
        self.now_ms += 10.0  # each part takes the card 10 ms
        event = CardEvent(self, self.now_ms)
        self.events.append(event)
        return event


class CardEvent:
    def __init__(self, card: Card, at_ms: float) -> None:
        self._card, self.at_ms = card, at_ms

    def query(self) -> bool:
        return self in self._card.events[: self._card.num_done]

    def elapsed_time(self, end: CardEvent) -> float:
        return end.at_ms - self.at_ms


@pytest.fixture
def seconds() -> list[float]:
    """The host's clock."""
    return [0.0]


def test_on_a_host_each_part_ends_where_the_next_begins(seconds: list[float]) -> None:
    clock = StepClock(None, lambda: seconds[0])
    for part, lasts in (("forward", 1.0), ("backward", 2.0), ("forward", 1.5), ("optimizer", 0.5)):
        clock.begins(part)  # type: ignore[arg-type]
        seconds[0] += lasts
    clock.begins(None)
    seconds[0] += 100.0  # of nobody
    with clock.of("handover"):
        seconds[0] += 0.25
    times = clock.take()
    assert (times.forward, times.backward, times.optimizer) == (2.5, 2.0, 0.5)
    assert (times.data, times.handover) == (0.0, 0.25)
    assert clock.take().forward == 0.0, "each second is told once"


def test_on_a_card_nobody_waits_for_an_event(seconds: list[float]) -> None:
    card = Card()
    clock = StepClock(card.event, lambda: seconds[0])
    with clock.of("data"):
        seconds[0] += 3.0
    clock.begins("forward")
    seconds[0] += 0.001  # the host only says what is to be done
    clock.begins("backward")
    clock.begins("optimizer")
    clock.begins(None)
    assert len(card.events) == 4, "the data is the host's, and needs no event"
    card.num_done = 3
    times = clock.take()
    assert (times.data, times.forward, times.backward) == (3.0, 0.01, 0.01)
    assert times.optimizer == 0.0, "the card has not come to its end"
    card.num_done = 4
    assert clock.take().optimizer == pytest.approx(0.01)


def test_events_of_a_card_that_hangs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_clock, "PENDING_MAX", 8)
    clock = StepClock(Card().event)
    for _ in range(100):
        clock.begins("forward")
        clock.begins("backward")
    assert len(clock._pending) == 8


def test_only_devices_whose_clock_is_known_are_measured() -> None:
    assert clock_of(torch.device("cpu")).is_read
    assert not clock_of(torch.device("mps")).is_read
