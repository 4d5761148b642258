"""What `/api/status`, `gossamer status --json` and the page show, as structs.

The names are fixed: tools depend on them. None (JSON's null) is "not known (yet)".
Digests and run ids are hex, losses are in nats per token, counts of tokens are target tokens.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from gossamer.protocol.wire.statements import Capacity, Phase

PHASES: tuple[Phase, ...] = get_args(Phase)
Outcome = Literal["committed", "missed", "abandoned"]
"""How a round ended for this node: in it, without it (its work is carried), or for nobody."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

# Points of the curve that one answer carries; a longer run is thinned out by `LossHistory`.
LOSS_POINTS_MAX = 240


class CapacityStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`Capacity` with named fields; speeds are None until they are measured."""

    device: str
    device_kind: str
    device_memory_bytes: int
    host_memory_bytes: int
    cores: int
    tokens_per_second: float | None = None
    bandwidth_bytes_per_second: float | None = None

    @classmethod
    def of(cls, capacity: Capacity) -> CapacityStatus:
        return cls(
            device=capacity.device,
            device_kind=capacity.device_kind,
            device_memory_bytes=capacity.device_memory_bytes,
            host_memory_bytes=capacity.host_memory_bytes,
            cores=capacity.cores,
            tokens_per_second=capacity.tokens_per_second or None,
            bandwidth_bytes_per_second=capacity.bandwidth_bytes_per_second or None,
        )


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another peer, by its own word."""

    peer_id: str
    phase: str
    round: int
    head: str | None = None
    tokens_per_second: float | None = None
    device: str = ""
    device_kind: str = ""
    device_memory_bytes: int = 0
    host_memory_bytes: int = 0
    cores: int = 0
    bandwidth_bytes_per_second: float | None = None
    addresses: tuple[str, ...] = ()
    connected: bool = False


class LastRound(msgspec.Struct, frozen=True, kw_only=True):
    """The newest round that ended here."""

    round: int
    members: tuple[str, ...]
    """Peer ids of the ring, in its order."""
    contributors: tuple[str, ...]
    """Peer ids whose work is in the result."""
    duration_seconds: float
    bytes_sent: int
    bytes_received: int
    outcome: Outcome


class OuterStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a round chose its outer step with (`outer.displacement`)."""

    learning_rate: float
    momentum: float


class LossPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One round of the curve."""

    round: int
    loss: float | None = None
    heldout_loss: float | None = None


class WorkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that this node trained in this run, over all its lives, by what became of them.

    `trained` is the sum of the others. None of the others can be relied on never to fall: what a
    round took is carried again if the swarm turns out to have gone another way.
    """

    trained: int = 0
    committed_on_time: int = 0
    """In the round that they were trained for."""
    committed_late: int = 0
    """In a later one, as residual."""
    dropped: int = 0
    """Missed too many rounds, or were no numbers."""
    lost: int = 0
    """Went down with the process, or the trainer's."""
    carried: int = 0
    """In no round yet."""


class DataStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the committed chain has consumed of the run's data."""

    epoch: int
    """Epochs that are complete, which is also the number of the present one, from 0."""
    tokens_consumed: int
    """Of the present epoch; those of a shard that is ahead of it are not among them."""
    num_tokens: int
    shards_consumed: int
    """Of the present epoch, to their end."""
    num_shards: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One node and what it knows of its swarm, at one moment."""

    peer_id: str
    run_id: str | None
    """None while a joiner has not yet heard which run its seed is in."""
    run_name: str | None = None
    version: str
    addresses: tuple[str, ...] = ()
    """Dialable, with `/p2p/`."""
    phase: Phase
    problem: str | None = None
    """Why the phase is `failed`, for people."""
    paused_reason: str | None = None
    round: int = 0
    """The newest committed round; 0 is the genesis state."""
    head: str | None = None
    state_digest: str | None = None
    rounds_behind: int = 0
    inner_step: int = 0
    """Inner steps done in the present round."""
    inner_steps: int = 0
    """Inner steps that the present round has."""
    tokens_total: int = 0
    """This node's tokens in committed rounds."""
    work: WorkStatus | None = None
    """None while a joiner is in no run yet."""
    data: DataStatus | None = None
    swarm_tokens_total: int = 0
    """All peers' tokens in the chain up to the head."""
    tokens_per_second: float | None = None
    loss: float | None = None
    """Mean training loss of this node's newest steps."""
    heldout_loss: float | None = None
    """Loss of the newest evaluated state on text that is never trained on."""
    num_parameters: int | None = None
    capacity: CapacityStatus | None = None
    uptime_seconds: float = 0.0
    bytes_sent_total: int = 0
    bytes_received_total: int = 0
    disk_used_bytes: int = 0
    peers: tuple[PeerStatus, ...] = ()
    peers_banned: int = 0
    """Peers that broke the protocol and are refused for a while."""
    ring: tuple[str, ...] = ()
    """Peers that are in the ring of the present round, as far as this node knows, in ring order;
    empty while none is at work here."""
    last_round: LastRound | None = None
    outer_step: OuterStep | None = None
    """Of the newest committed round; None where it chose nothing, or is of an earlier life."""
    loss_history: tuple[LossPoint, ...] = ()
    """The curve so far, oldest first, at most `LOSS_POINTS_MAX` points."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Status)


def encode_status(status: Status) -> bytes:
    """JSON; numbers that are not finite become null."""
    return _encoder.encode(status)


def decode_status(data: bytes) -> Status:
    """Raises msgspec.DecodeError (ValidationError is one) if this is no status."""
    return _decoder.decode(data)


def is_ready(status: Status) -> bool:
    """Whether the node takes part in rounds."""
    return status.phase in ("training", "averaging")


class LossHistory:
    """The curve of a run of any length in at most `LOSS_POINTS_MAX` points.

    When full, every second point goes and from then on only every second round is kept: the curve
    stays evenly spaced from its beginning, and the newest point is always there.
    """

    def __init__(self) -> None:
        self._points: list[LossPoint] = []
        self._newest: LossPoint | None = None
        self._stride = 1

    def add(self, point: LossPoint) -> None:
        """Appends a round; a round that is not newer than the newest replaces what stands there."""
        if self._newest is not None and point.round < self._newest.round:
            self._points = [kept for kept in self._points if kept.round < point.round]
        self._newest = point
        if self._points and self._points[-1].round == point.round:
            self._points[-1] = point
        elif not self._points or point.round - self._points[-1].round >= self._stride:
            self._points.append(point)
        # One place is kept free for the newest point.
        if len(self._points) >= LOSS_POINTS_MAX:
            self._points = self._points[::2]
            self._stride *= 2

    def points(self) -> tuple[LossPoint, ...]:
        if self._newest is None or (self._points and self._points[-1].round == self._newest.round):
            return tuple(self._points)
        return (*self._points, self._newest)
