"""Moves vectors between the host's memory and the device's, piece by piece.

A card reads and writes the host's memory at its line's speed only where it is *pinned*: where the
system cannot move it. The vectors that the trainer shares with the daemon are not. So a piece goes
through one of two pinned buffers: while the card copies one, the processor works at the other. What
the processor does with a piece (a copy, a subtraction) is torch's, which takes all of its threads.
No second copy of the vector exists on either side.

A CPU's own vectors need no buffer to be read, and one of a piece's size to be written.

All vectors are (n,) fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PIECE_ELEMENTS = 8 * 1024 * 1024
"""Elements of a piece, 32 MiB. Its copy takes a card a millisecond, a hundred times what the start
of a copy costs; two of them are little beside a model that is worth a card."""

OfPiece = Callable[[slice, Tensor], object]
"""(place in the vector, the piece's values)"""


class Transfer:
    """Moves vectors to and from one device. Not for use from several threads."""

    def __init__(self, device: torch.device, piece_elements: int = PIECE_ELEMENTS) -> None:
        self._device = device
        self._piece_elements = piece_elements
        self._buffers: list[Tensor] = []

    def load(self, flat: Tensor, vector: NDArray[np.float32]) -> None:
        """`flat`, on the device, becomes `vector`."""
        source = torch.from_numpy(vector)
        self.send(flat, lambda place, buffer: buffer.copy_(source[place]), Tensor.copy_)

    @torch.no_grad()
    def send(self, flat: Tensor, fill: OfPiece, use: Callable[[Tensor, Tensor], object]) -> None:
        """Computes pieces on the host, and takes each over on the device.

        Args:
            flat: on the device.
            fill: writes a piece's values into a tensor on the host.
            use: takes the place of `flat` and the piece's values, both on the device.
        """
        is_card = self._device.type == "cuda"
        events: list[torch.cuda.Event | None] = [None, None]
        for number, place in enumerate(self._pieces(len(flat))):
            turn = number % 2
            if (event := events[turn]) is not None:
                event.synchronize()
            buffer = self._buffer(turn)[: place.stop - place.start]
            fill(place, buffer)
            use(flat[place], buffer.to(self._device, non_blocking=is_card))
            events[turn] = self._recorded() if is_card else None
        if is_card:  # until it has taken over what it was sent
            torch.cuda.current_stream(self._device).synchronize()

    @torch.no_grad()
    def receive(self, flat: Tensor, use: OfPiece) -> None:
        """Gives the pieces of `flat`, which is on the device, to the host.

        Args:
            use: takes a piece's place and its values on the host, which hold for the call.
        """
        if self._device.type != "cuda":
            for place in self._pieces(len(flat)):
                use(place, flat[place].cpu())
            return
        under_way: list[tuple[slice, Tensor, torch.cuda.Event]] = []
        for number, place in enumerate(self._pieces(len(flat))):
            if len(under_way) == len(self._buffers) > 0:
                _use_oldest(under_way, use)
            buffer = self._buffer(number % 2)[: place.stop - place.start]
            buffer.copy_(flat[place], non_blocking=True)
            under_way.append((place, buffer, self._recorded()))
        while under_way:
            _use_oldest(under_way, use)

    def _pieces(self, length: int) -> Iterator[slice]:
        for start in range(0, length, self._piece_elements):
            yield slice(start, min(length, start + self._piece_elements))

    def _buffer(self, turn: int) -> Tensor:
        if not self._buffers:
            is_card = self._device.type == "cuda"
            self._buffers = [
                torch.empty(self._piece_elements, pin_memory=is_card) for _ in range(2)
            ]
        return self._buffers[turn]

    def _recorded(self) -> torch.cuda.Event:
        """Returns an event behind all that the device was told. Without a stream it would be one of
        the current device, which may be another card."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def _use_oldest(under_way: list[tuple[slice, Tensor, torch.cuda.Event]], use: OfPiece) -> None:
    place, buffer, event = under_way.pop(0)
    event.synchronize()
    use(place, buffer)
