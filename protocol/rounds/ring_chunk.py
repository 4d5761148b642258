"""The state of one chunk at one member of a ring: its partial sum and its average.

The partial sum has the states of `states.CHUNK`. `ring.RingReduce` holds the rules that decide when
a state changes; the methods here keep the fields in step with the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.inventory import is_better
from gossamer.protocol.rounds.states import CHUNK, SumEvent, SumState

Payload: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Average:
    """An averaged chunk: its contributors and the digest of its encoded bytes."""

    mask: int
    """Contributors, one bit for each ring position."""
    digest: Digest
    finisher: int
    """Ring position of the member that divided the sum."""
    payload: Payload = field(repr=False)

    def is_better_than(self, other: Average | None) -> bool:
        """The lattice rule: most contributors, then the lowest digest."""
        if other is None:
            return True
        return is_better(self.mask, self.digest, other.mask, other.digest)


@dataclass
class Chunk:
    """One member's copy of one chunk."""

    sum_state: SumState = CHUNK.initial
    contributing_mask: int | None = None
    """Mask of the sum to which this member's part is being added; None: no addition is under
    way."""
    waiting: tuple[PeerId, int, Payload] | None = None
    """The best other partial sum that arrived during an addition: sender, mask and payload."""
    copy_mask: int = 0
    """Contributors of the newest sum that holds this member's part; 0: there was none."""
    copy: Payload | None = None
    """The newest sum itself, kept until the average is here."""
    copy_receiver: PeerId | None = None
    """The member to which the copy was sent; None: it was not sent yet."""
    average: Average | None = None
    early: dict[PeerId, Average] = field(default_factory=dict)
    """The last early average of each sender: a member's later average is always better."""

    def add(self, mask: int) -> None:
        """The addition of this member's part to a sum of `mask` begins."""
        self._go("add")
        self.contributing_mask = mask

    def pass_on(self, receiver: PeerId) -> None:
        """The copy is sent to a member."""
        self._go("pass on")
        self.copy_receiver = receiver

    def finish(self) -> None:
        """The division of the copy begins."""
        self._go("finish")

    def reject(self) -> None:
        """The sum of the addition was malformed: an earlier copy stays what it was."""
        if not self.copy_mask:
            self._go("reject")
        else:
            self._go("return" if self.copy is not None else "release")
        self.contributing_mask = None

    def release(self) -> None:
        """The sum has no further use here."""
        self._go("release")
        self.copy = None

    def drop_copy(self) -> None:
        """The copy has no further use. A running addition or division still has to end."""
        if self.sum_state == "passed on":
            self.release()
        elif self.sum_state != "finishing":
            self.copy = None

    def _go(self, event: SumEvent) -> None:
        self.sum_state = CHUNK.after(self.sum_state, event)


def worth(mask: int) -> tuple[int, int]:
    """The order of partial sums of one chunk: the sum with the higher worth is kept."""
    return mask.bit_count(), mask
