"""The status of a node, as `/api/status`, `gossamer status --json` and the page show it.

The names are fixed, because tools depend on them. None (JSON's null) means "not known (yet)".
Digests and run ids are hex, losses are in nats per token, counts of tokens are target tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Literal, get_args

import msgspec

from gossamer.node.base.pausing import Hold
from gossamer.node.base.terminal.printable import printable_json
from gossamer.protocol.wire.statements import AT_WORK, Capacity, Phase
from gossamer.trainer.ipc.measures import StepTimes

PHASES: tuple[Phase, ...] = get_args(Phase)
Outcome = Literal["committed", "missed", "abandoned"]
"""The end of a round for this node: `committed` with its work, `missed` (committed without it; its
work is carried), or `abandoned` (not committed)."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class CapacityStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A peer's capacity; speeds are None until they are measured."""

    device: str
    device_kind: str
    device_memory_bytes: int
    host_memory_bytes: int
    cores: int
    tokens_per_second: float | None = None
    bandwidth_bytes_per_second: float | None = None

    @classmethod
    def of(cls, capacity: Capacity) -> CapacityStatus:
        measured = {
            "tokens_per_second": capacity.tokens_per_second or None,
            "bandwidth_bytes_per_second": capacity.bandwidth_bytes_per_second or None,
        }
        return cls(**{**msgspec.structs.asdict(capacity), **measured})


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another peer, as it describes itself in its announcements.

    It has more than 12 attributes: each is a value of the status.
    """

    peer_id: str
    name: str = ""
    """The name that its owner wants to be shown; nobody checks that it is the only one."""
    team: str = ""
    """The team that its owner wants to be shown."""
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
    reach: str = "unknown"
    """The class of its router: `open`, `crossable`, `strict` or `unknown`."""
    path: str | None = None
    """The way to it: `direct`, `crossed` or `relayed`; None: not connected."""
    relay: str | None = None
    """Peer id of the relay, if the connection is relayed."""
    audits_good: int = 0
    """Verdicts of auditors on its work since this node's start."""
    audits_poor: int = 0


class LastRound(msgspec.Struct, frozen=True, kw_only=True):
    """The newest round that ended on this node."""

    round: int
    members: tuple[str, ...]
    """Peer ids of the ring, in its order."""
    contributors: tuple[str, ...]
    """Peer ids of the members whose work is in the result."""
    duration_seconds: float
    bytes_sent: int
    """By rings, since the round before ended on this node. Averages that it passes on after its own
    commit count in its next round."""
    bytes_received: int
    outcome: Outcome


class OuterStep(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a round chose for its outer step (`outer.displacement`)."""

    learning_rate: float
    momentum: float
    average_scale: float = 1.0
    """Factor of the average; below 1 if it was far longer than the members' own work."""


class LossPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One round of the curve."""

    round: int
    loss: float | None = None
    """Training loss of this node's steps for the round; None if it did none."""
    heldout_loss: float | None = None
    """Of the state after the round; None if it was not evaluated here."""
    bits_per_byte: float | None = None
    """The training loss in bits for each byte of text; None if that is not known."""
    heldout_bits_per_byte: float | None = None


class WorkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that this node trained in this run, over all its lives, by their fate.

    `trained` is the sum of the others. Each of the others can fall: committed tokens are carried
    again if the swarm continues on another branch of the chain.
    """

    trained: int = 0
    committed_on_time: int = 0
    """Committed in the round that they were trained for."""
    committed_late: int = 0
    """Committed in a later round, as carried work."""
    dropped: int = 0
    """Dropped, because they missed too many rounds or were not finite."""
    lost: int = 0
    """Lost when the node's or the trainer's process ended."""
    carried: int = 0
    """Tokens that are carried and not committed yet."""


class DataStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the run's data that the committed chain has consumed; where every peer trains on
    data of its own, the part of its own that this node has trained on."""

    epoch: int
    """Number of complete epochs; also the number of the present epoch, from 0."""
    tokens_consumed: int
    """Tokens consumed in the present epoch, without those that a shard has of the next epoch."""
    num_tokens: int
    shards_consumed: int
    """Shards that the present epoch has consumed to their end."""
    num_shards: int
    expected_tokens: int = 0
    """Tokens of an epoch when the founder has added all of its corpus, as it estimates."""
    cutting: str = ""
    """How far this node is with cutting the rest of its corpus; empty if nothing is left."""
    own: bool = False
    """Whether the data are this node's own."""


class PauseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that keeps the node from training."""

    reason: str
    text: str = ""
    """What is the matter, for people; empty where the reason says all."""
    resumes_at: str | None = None
    """When this cause ends (ISO 8601, local time with its offset); None: nobody knows."""
    after_round: bool = False
    """Whether it begins when the present round ends."""

    @classmethod
    def of(cls, hold: Hold, zone: tzinfo | None = None) -> PauseStatus:
        return cls(
            reason=hold.reason,
            text=hold.text,
            resumes_at=iso_moment(hold.resumes_at, zone),
            after_round=hold.after_round,
        )


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the owner, beside what the node uses of it."""

    name: str
    setting: str
    unit: str
    """`Mbit/s`, `threads`, `bytes`, `W` or `degrees C`."""
    limit: float | None = None
    """None: no limit holds now, or the card does not say how large it is."""
    text: str = ""
    """The limit as it was written; empty for none."""
    used: float | None = None
    """None: not known."""
    source: str = "settings"
    """`limits set` for a limit that the owner set on the running node, else `settings`."""
    note: str = ""
    """What keeps the limit from holding here, for people."""


class RuleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of the owner that says when the node trains."""

    name: str
    text: str
    """As `gossamer schedule set` takes it; `off` for none."""
    source: str = "settings"
    """`schedule set` for what the owner set on the running node, else `settings`."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one node, and its view of the swarm, at one moment.

    It has more than 12 attributes: each is a value that the status page or a command shows.
    """

    peer_id: str
    run_id: str | None
    """None while a joining node does not know the run of its seed."""
    run_name: str | None = None
    admission: str | None = None
    """The manifest's rule of who comes in: `open`, `allow` or `invite`."""
    name: str = ""
    """The name by which others see this node; empty for none."""
    team: str = ""
    """The team that others see beside it; empty for none."""
    version: str
    addresses: tuple[str, ...] = ()
    """Addresses that other peers can dial, with `/p2p/`."""
    reach: str = "unknown"
    """The class of this node's router: `open`, `crossable`, `strict` or `unknown`."""
    reach_text: str = ""
    """This node's reach, in words for people."""
    phase: Phase
    problem: str | None = None
    """What is the matter with this node, for people: why the phase is `failed`, for example."""
    put_out: str | None = None
    """The reason why the members of an invite-only run do not take this node for one; null if they
    do. `problem` has it too."""
    waits_for: str | None = None
    """The reason why the run's first round does not begin yet, for people: see the option
    `wait_for_peers`."""
    paused_reason: str | None = None
    """`user`, `schedule`, `battery`, `metered`, `process`, `idle`, `temperature` or `disk`, while
    the phase is `paused`. Of several the first one here."""
    resumes_at: str | None = None
    """When the node goes on by itself, as far as it knows: ISO 8601, local time with its offset."""
    pauses: tuple[PauseStatus, ...] = ()
    """Everything that keeps this node from training, or will when the present round ends."""
    leaves_after_round: bool = False
    """Whether this node leaves when its present round ends."""
    round: int = 0
    """The newest committed round; 0 is the genesis state."""
    final_round: int | None = None
    """The round after which the run is finished; null for a run that does not end, or that ends by
    its tokens."""
    final_tokens: int | None = None
    """The tokens of all peers with which the run is finished; null unless it ends by them."""
    head: str | None = None
    settled_head: str | None = None
    """The head some rounds before `head`, which links name; None while the run has fewer rounds."""
    state_digest: str | None = None
    rolled_back_to: int | None = None
    """Round after which all rounds were taken back, the last time; None: never."""
    rollback_proposal: str | None = None
    """What a keeper wants to take back, for people, until enough keepers agree; null: nothing."""
    rollback_withdrawn: str | None = None
    """The order of this node's owner to go back that it could not follow and gave up, for people,
    until another rollback comes or the node ends; null: nothing."""
    rounds_behind: int = 0
    inner_step: int = 0
    """Inner steps that are done in the present round."""
    inner_steps: int = 0
    """Inner steps of the whole present round."""
    tokens_total: int = 0
    """This node's tokens in committed rounds."""
    work: WorkStatus | None = None
    """None while a joining node is in no run."""
    data: DataStatus | None = None
    swarm_tokens_total: int = 0
    """Tokens of all peers in the chain up to the head."""
    tokens_per_second: float | None = None
    """Of this node's newest steps, while it trained."""
    loss: float | None = None
    """Mean training loss of this node's newest steps."""
    heldout_loss: float | None = None
    """Loss of the newest evaluated state of this node's chain on held-out text."""
    heldout_round: int | None = None
    """Round after which the state is that `heldout_loss` is of: `round`, or an earlier one."""
    bits_per_byte: float | None = None
    """`loss` in bits for each byte of text, which runs with other tokenizers can be compared by;
    None where the tokenizer's tokens have no certain length."""
    heldout_bits_per_byte: float | None = None
    """`heldout_loss` likewise."""
    mfu: float | None = None
    """Part of the card's operations that training uses, while it trains; None if its maker's figure
    is not known here."""
    step_times: StepTimes | None = None
    """Where the seconds of this node's newest steps went; None if that is not known."""
    sampled_round: int | None = None
    """Round after which the state is that wrote the newest samples; None: there are none."""
    num_parameters: int | None = None
    capacity: CapacityStatus | None = None
    limits: tuple[LimitStatus, ...] = ()
    """The owner's limits beside the use."""
    schedule: tuple[RuleStatus, ...] = ()
    """When the owner lets this node train."""
    confinement: str | None = None
    """What the trainer's process can and cannot do on this machine, for people; None before it has
    started."""
    uptime_seconds: float = 0.0
    bytes_sent_total: int = 0
    bytes_received_total: int = 0
    relayed_bytes_total: int = 0
    """Payload bytes that this node has carried between other peers."""
    disk_used_bytes: int = 0
    """Bytes of the whole state directory."""
    peers: tuple[PeerStatus, ...] = ()
    peers_banned: int = 0
    """Number of peers that are banned for a while, because they broke the protocol."""
    ring: tuple[str, ...] = ()
    """Peer ids of the ring of the present round, as far as this node knows, in ring order. Empty
    while no ring is at work on this node."""
    last_round: LastRound | None = None
    outer_step: OuterStep | None = None
    """Choice of the newest committed round; None if it chose nothing or an earlier life saw it."""
    loss_history: tuple[LossPoint, ...] = ()
    """The curve so far, oldest point first, at most `loss_history.LOSS_POINTS_MAX`
    points."""


def iso_moment(unix_seconds: float | None, zone: tzinfo | None = None) -> str | None:
    """Returns a moment in ISO 8601. `zone`: None means that of this machine."""
    if unix_seconds is None:
        return None
    local = datetime.fromtimestamp(unix_seconds, zone)
    return (local if zone else local.astimezone()).isoformat(timespec="seconds")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Status)


def encode_status(status: Status) -> bytes:
    """Encodes a status as JSON. Numbers that are not finite become null. Characters of peers' texts
    that a terminal would obey are escaped."""
    return printable_json(_encoder.encode(status).decode()).encode()


def decode_status(data: bytes) -> Status:
    """Decodes a status. Raises msgspec.DecodeError (ValidationError is one) for anything else."""
    return _decoder.decode(data)


def farthest(addresses: Sequence[str]) -> str | None:
    """Returns the address of a node that reaches farthest, if there is one."""
    outside = [a for a in addresses if "/127." not in a and "/::1/" not in a]
    return next(iter(outside or addresses), None)


def link_of(status: Status) -> str | None:
    """Returns the link for `gossamer join`, with the address that reaches farthest; None before the
    run is known."""
    address = farthest(status.addresses)
    if address is None or status.run_id is None:
        return None
    head = f"@{status.settled_head}" if status.settled_head else ""
    return f"{address}#{status.run_id}{head}"


def is_ready(status: Status) -> bool:
    """Returns whether the node takes part in rounds that count."""
    return status.phase in AT_WORK and status.put_out is None
