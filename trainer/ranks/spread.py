"""The gradient of an inner step over several devices.

    shares    each process gets its sequences, and the parameters of rank 0
    passes    each takes the gradient of its sequences, in passes that its own device has the memory
              for (`Gradients`); losses are divided by the targets of the whole step
    sum       the gradients are added up at rank 0

What follows has one device's arithmetic and one device's memory: clipping, the optimiser and its
moments, the momentum of shared steps, a checkpoint. So all that a peer does with its parameters
between two steps is the same with one device and with several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossamer.trainer.inner_step.gradients import Gradients, TrainerError
from gossamer.trainer.inner_step.optimizer import gradient_norm
from gossamer.trainer.model import Decoder
from gossamer.trainer.ranks import messages
from gossamer.trainer.ranks.followers import Followers
from gossamer.trainer.ranks.group import Group
from gossamer.trainer.ranks.shares import Shares
from gossamer.trainer.text.data import num_targets


@dataclass
class Spread:
    """The devices beside the first one, connected."""

    followers: Followers
    group: Group
    shares: Shares
    close_store: Callable[[], None]
    """Removes the file by which the processes found each other."""
    network_problems: tuple[str, ...]
    """Reasons why other processes keep the network that they were to give up, for people."""

    def close(self) -> None:
        """Ends the other processes. May be called from any thread, and twice."""
        self.followers.close()
        self.close_store()


class SpreadGradients:
    """Takes gradients on several devices."""

    def __init__(self, own: Gradients, decoder: Decoder, spread: Spread) -> None:
        """`own`: takes those of the first device."""
        self._own, self._decoder, self._spread = own, decoder, spread
        self._parameters = list(decoder.parameters())

    def take(self, sequences: NDArray[np.int64]) -> tuple[float, float]:
        """(mean loss in nats, norm of the gradient, which is left in `.grad`).

        Args:
            sequences: (num_sequences, context + 1)

        Raises:
            TrainerError: a device has too little memory for a single sequence, or a process is
                gone.
        """
        followers, group, shares = self._spread.followers, self._spread.group, self._spread.shares
        targets = max(1, num_targets(sequences))
        mine, *others = np.split(sequences, np.cumsum(shares.counts)[:-1])
        followers.tell(*(_take(part, targets) for part in others))
        try:
            group.share(self._decoder.flat)
            started = time.monotonic()
            loss, _ = self._own.take_part(mine, targets)
            seconds = time.monotonic() - started
            taken = followers.hear(messages.Taken)
            followers.tell(messages.Add())
            group.add_up(self._parameters)
        except TrainerError:
            followers.require_alive()  # its end says more than the connection that it cut
            raise
        shares.measured([seconds, *(each.seconds for each in taken)])
        norm = float(gradient_norm(self._parameters).item())
        return loss + sum(each.loss for each in taken), norm

    def drop(self) -> None:
        """Forgets the gradient in `.grad`."""
        self._own.drop()


def _take(sequences: NDArray[np.int64], targets: int) -> messages.Take:
    tokens = sequences.astype("<u4").tobytes()
    return messages.Take(targets=targets, num_sequences=len(sequences), tokens=tokens)
