"""The interface of a sync mode to a node: one strategy object, and one more for each round.

    SyncMode    lives as long as the node: what it keeps from one round to the next
    RoundWork   lives as long as a round: trains, hands work to the ring, and settles what is left

`rounds.turn` runs every round the same way and calls these hooks where modes differ.
`rounds.opening.mode_of` chooses the mode.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.rounds.ring.ring_parts import RingPart
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.sync_sets import SyncSet
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import Place, Shared


class Contribution(RingPart, Protocol):
    """The arithmetic of one peer in one ring, and when its part of each chunk is there."""

    async def due(self, chunk: int, partial_sum: Buffer | None) -> None:
        """Returns when this peer's part of a chunk is there.

        Args:
            partial_sum: what came for the chunk; None where this peer begins it.
        """


class OpenedParts(NamedTuple):
    """A member's parts of all chunks, as it opens them for auditors."""

    parts: Callable[[], Iterable[Buffer]]
    """Gives them in order, each time anew. To be read before the round's commit changes the
    work."""
    path_to: Callable[[int], bytes]
    """The path of a chunk's part to the root in the member's `Ready`; empty where none was signed
    before the ring. It holds no work."""


@runtime_checkable
class OpensChunks(Protocol):
    """A contribution that this peer can open for auditors (`policy.auditing.sum_audits`)."""

    def opened(self) -> OpenedParts | None:
        """This peer's parts; None: they are not what this peer has signed."""


Spawn: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]
"""Runs a task that may outlive the round; the node's nursery owns it."""


@dataclass(frozen=True)
class RingDuration:
    """Time for which members train inside a ring, in seconds. Both are 0 where they train before
    it."""

    by_manifest: float = 0.0
    as_measured: float = 0.0
    """Time that this node saw in the rounds before."""


@dataclass(frozen=True)
class Promise:
    """The work that a node offers to a round, for its `Ready`."""

    tokens: int
    steps: int
    norm: float
    """L2 norm of the work; 0 where the mode does not send it."""
    spans: tuple[Span, ...]
    """Data behind the work."""
    root: bytes = b""
    """Root over the work or its records; empty where members train inside the ring."""


class RoundOutcome(Protocol):
    """The end of a round at this node."""

    @property
    def committed(self) -> Committed | None:
        """The commit of the round; None while the round has no commit at this node."""


class StopSignal(Protocol):
    """Tells a training when to end early."""

    async def wait(self, *, heeds_others: bool) -> bool:
        """Returns at the next news, and says whether the training should stop.

        Args:
            heeds_others: whether it should also stop when the others have waited long enough.
        """


class RoundWork(Protocol):
    """One node's work in one round.

    It has more than 15 public methods, and a flag, because a round has as many points at which
    modes differ. The order below is about the order of the calls. A hook that a mode does not
    define does nothing.
    """

    trains_in_ring: bool
    """Whether training goes on inside the ring. Otherwise the ring reads `pending`, which does not
    change before the ring has ended."""

    async def train(self, stop: StopSignal) -> None:
        """Trains until there is work for the ring, or until `stop` says so."""

    async def skip_training(self) -> None:
        """The round has the carried work only: what trains already ends. Only modes that carry work
        (`rounds_missed`) get this."""
        return

    @property
    def has_work(self) -> bool:
        """Returns whether there is work to hand to a ring."""

    @property
    def rounds_missed(self) -> int:
        """Returns the number of rounds that the oldest carried work has missed."""
        return 0

    async def promise(self) -> Promise:
        """Returns the work that this node offers to the round. It is called once, if there is
        work."""

    @property
    def may_train_ahead(self) -> bool:
        """Returns whether the next round's training may begin while this round's ring is at
        work."""
        return False

    def train_ahead(self) -> None:
        """Begins the next round's training."""
        return

    def contribution(self, ring: Ring) -> Contribution:
        """This node's part in a ring that begins."""

    def machine_changed(self) -> None:
        """The round's machine may have changed."""
        return

    def offered(self, shared: Shared) -> None:
        """The trainer has a part for a shared step. Only modes that train in the ring get this."""
        return

    async def make_way(self) -> None:
        """The operator wants the device: training stops, the ring goes on."""

    async def end(self, outcome: RoundOutcome) -> None:
        """The round is over at this node, with or without a commit."""

    async def missed(self) -> None:
        """The round was left without a commit at this node. `end` came before."""

    async def rebase(self) -> None:
        """The round's result is in `base`. `end` came before."""
        return

    @property
    def is_ahead(self) -> bool:
        """Returns whether the next round's training is under way."""
        return False

    def settled(self) -> None:
        """The account of work knows what the committed round took."""
        return

    def go_on(self) -> None:
        """The committed round is settled, and the next one's training may begin."""
        return


class SyncMode(Protocol):
    """One sync mode at one node."""

    @property
    def ring_duration(self) -> RingDuration:
        """The time for which members train inside the next ring."""
        return RingDuration()

    @property
    def training_since_seconds(self) -> float | None:
        """Local time since which the next round's training is under way; None if it is not."""
        return None

    def new_round(self, machine: Round, sync_set: SyncSet, spawn: Spawn) -> RoundWork:
        """The strategy of the round that `machine` decides.

        Args:
            sync_set: what the round averages.
        """

    async def end_training_ahead(self, head: Digest, number: int) -> None:
        """The next round does not go straight on from the last one: a training that is under way
        ends, and its work is carried on `head`, for round `number`."""
        return

    async def place(self) -> Place:
        """The place in the chain of the trainer's own state. It has one between rounds only."""
