"""Vectors that move between the host and a device in pieces. On a card: `on_card`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gossamer.trainer.inner_step.step_clock import clock_of
from gossamer.trainer.resources.transfer import Transfer

PIECE = 10


@pytest.fixture
def transfer() -> Transfer:
    return Transfer(torch.device("cpu"), PIECE)


@pytest.mark.parametrize("length", [0, 1, PIECE, 2 * PIECE, 35])
def test_a_vector_arrives_whole(transfer: Transfer, length: int) -> None:
    vector = np.arange(length, dtype=np.float32)
    flat = torch.full((length,), -1.0)
    transfer.load(flat, vector)
    assert flat.tolist() == vector.tolist()
    back = torch.full((length,), -1.0)
    transfer.receive(flat, lambda place, values: back[place].copy_(values))
    assert back.tolist() == vector.tolist()


def test_what_is_sent_is_computed_on_the_host_and_used_on_the_device(transfer: Transfer) -> None:
    one, other = torch.arange(35.0), torch.full((35,), 2.0)
    flat = torch.ones(35)
    transfer.send(
        flat,
        lambda place, buffer: torch.sub(one[place], other[place], out=buffer),
        lambda part, values: part.add_(values, alpha=0.5),
    )
    torch.testing.assert_close(flat, 1 + 0.5 * (one - other))


def test_the_vector_that_was_loaded_may_change_at_once(transfer: Transfer) -> None:
    vector = np.ones(35, np.float32)
    flat = torch.empty(35)
    transfer.load(flat, vector)
    vector[:] = 7
    assert flat.eq(1).all()


class Streams:
    """The streams of two cards. What a card was told is done when somebody waits for its stream,
    which is as late as CUDA may be. The current device is the first one."""

    def __init__(self) -> None:
        self.told: dict[int, list[Callable[[], object]]] = {0: [], 1: []}

    def current(self, device: torch.device | None = None) -> int:
        return 0 if device is None else device.index

    def wait(self, index: int) -> None:
        while self.told[index]:
            self.told[index].pop(0)()


class Pinned(Tensor):
    """A buffer of the host to which the second card copies."""

    streams: Streams

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Tensor:
        assert non_blocking
        mine, values = self.as_subclass(Tensor), source.as_subclass(Tensor)
        self.streams.told[1].append(lambda: mine.copy_(values))
        return self


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()

    class Event:
        def __init__(self, **_: object) -> None:
            self.stream = -1

        def record(self, stream: int | None = None) -> None:
            self.stream = made.current() if stream is None else stream

        def synchronize(self) -> None:
            made.wait(self.stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", made.current)
    monkeypatch.setattr(Pinned, "streams", made, raising=False)
    return made


def test_what_comes_from_another_card_than_the_first_is_waited_for(streams: Streams) -> None:
    """An event that is recorded without a stream is one of the current device."""
    transfer = Transfer(torch.device("cuda:1"), PIECE)
    transfer._buffers = [torch.full((PIECE,), 7.0).as_subclass(Pinned) for _ in range(2)]
    back = torch.full((35,), -1.0)

    def keep(place: slice, values: Tensor) -> None:
        back[place] = values.as_subclass(Tensor)

    transfer.receive(torch.arange(35.0), keep)
    assert back.tolist() == list(range(35))


def test_the_clock_of_another_card_than_the_first_has_its_moments(streams: Streams) -> None:
    clock: Any = clock_of(torch.device("cuda:1"))
    clock.begins("forward")
    assert clock._event.stream == 1
