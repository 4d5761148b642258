"""The output of `gossamer status` in a terminal. Text that comes from peers is escaped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Literal

from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.text_table import Look, Style, Styled, named_lines, table_lines
from gossamer.node.base.terminal.units import format_bytes, format_cores
from gossamer.node.telemetry.pause_text import moment_in, pause_text, pauses_text
from gossamer.node.telemetry.status import (
    DataStatus,
    PauseStatus,
    PeerStatus,
    Status,
    WorkStatus,
)
from gossamer.protocol.wire.statements import AT_WORK
from gossamer.trainer.ipc.measures import StepTimes

_PHASE_STYLES: Mapping[str, Style] = {
    "training": "green",
    "averaging": "green",
    "finished": "green",
    "joining": "yellow",
    "syncing": "yellow",
    "failed": "bold red",
}
DASH = "-"
_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("peer", "left"),
    ("phase", "left"),
    ("round", "right"),
    ("tokens/s", "right"),
    ("device", "left"),
    ("memory", "right"),
    ("path", "left"),
)


Row = tuple[str, list[Styled]]
"""A name, and the parts of one line."""


def status_lines(status: Status, look: Look) -> list[str]:
    """Returns the lines of the whole status: the node, and its peers."""
    lines = [*named_lines(list(_node_rows(status)), look), ""]
    if not status.peers:
        return [*lines, *named_lines([("No other peers at present.", ())], look)]
    peers = sorted(status.peers, key=lambda peer: peer.peer_id)
    return [*lines, *table_lines(_COLUMNS, [_peer_cells(peer) for peer in peers], look)]


def _row(name: str, *parts: str | Styled) -> Row:
    pieces = [part if isinstance(part, Styled) else Styled(printable(part)) for part in parts]
    return name, pieces


def _node_rows(status: Status) -> Iterator[Row]:
    doing = ""
    if status.phase == "training" and status.inner_steps:
        doing = f"  step {status.inner_step} of {status.inner_steps}"
    elif status.paused_reason:
        doing = f"  ({_pause(status)})"
    elif status.waits_for:
        doing = f"  ({status.waits_for})"
    if status.leaves_after_round:
        doing += "  (leaves when this round ends)"
    yield _row("phase", _own_phase(status), doing)
    if status.pauses and (status.phase != "paused" or len(status.pauses) > 1):
        yield _row("pauses", pauses_text(status, time.time()))
    if status.problem:
        yield _row("problem", Styled(printable(status.problem), "red"))
    name = f" ({status.run_name})" if status.run_name else ""
    yield _row("run", f"{status.run_id or DASH}{name}")
    yield _row("peer", f"{status.peer_id}{f' ({status.name})' if status.name else ''}")
    for index, address in enumerate(status.addresses):
        yield _row("" if index else "addresses", address)
    if status.reach_text:
        yield _row("reach", status.reach_text)
    behind = f", {status.rounds_behind} behind the swarm" if status.rounds_behind else ""
    final = f" of {status.final_round}" if status.final_round else ""
    yield _row("round", f"{status.round}{final}{behind}")
    yield from _rollback_rows(status)
    yield _row("head", _digest(status.head), "   state ", _digest(status.state_digest))
    held_out = f"{loss_text(status.heldout_loss)} held-out{_of_round(status)}"
    yield _row("loss", f"{loss_text(status.loss)} training, {held_out}")
    if status.bits_per_byte is not None or status.heldout_bits_per_byte is not None:
        held_out = f"{loss_text(status.heldout_bits_per_byte)} held-out{_of_round(status)}"
        yield _row("bits a byte", f"{loss_text(status.bits_per_byte)} training, {held_out}")
    yield _row(
        "tokens",
        f"{status.tokens_total:,} by this node, {status.swarm_tokens_total:,}"
        f"{f' of {status.final_tokens:,}' if status.final_tokens else ''} by the swarm",
    )
    if status.work is not None:
        yield _row("work", _work(status.work))
    if status.data is not None:
        yield _row("data", _data(status.data))
    yield from _machine_rows(status)
    yield from _network_rows(status)


def _of_round(status: Status) -> str:
    """Returns the round of the held-out loss, where that is not the round of the state."""
    number = status.heldout_round
    return "" if number in (None, status.round) else f" (of round {number})"


def _machine_rows(status: Status) -> Iterator[Row]:
    if status.tokens_per_second is not None:
        mfu = "" if status.mfu is None else f", {status.mfu:.1%} of the card's operations (MFU)"
        when = "" if status.phase in AT_WORK else " while it trained"
        yield _row("speed", f"{status.tokens_per_second:,.0f} tokens/s{mfu}{when}")
    if status.step_times is not None:
        yield _row("step", _step_times(status.step_times))
    capacity = status.capacity
    if capacity is not None:
        memory = format_bytes(capacity.device_memory_bytes)
        yield _row(
            "device",
            f"{capacity.device} ({capacity.device_kind}, {memory}, {format_cores(capacity.cores)})",
        )
    if status.confinement:
        yield _row("trainer", status.confinement)


def _rollback_rows(status: Status) -> Iterator[Row]:
    if status.rolled_back_to is not None:
        yield _row(
            "rolled back",
            f"by the founder or the keepers: the run went on after round {status.rolled_back_to}",
        )
    if status.rollback_proposal is not None:
        yield _row("proposal", status.rollback_proposal)
    if status.rollback_withdrawn is not None:
        yield _row("rollback", Styled(printable(status.rollback_withdrawn), "red"))


def _network_rows(status: Status) -> Iterator[Row]:
    sent, received = status.bytes_sent_total, status.bytes_received_total
    yield _row("network", f"{format_bytes(sent)} sent, {format_bytes(received)} received")
    if status.ring:
        yield _row("ring", ", ".join(printable(peer[-6:]) for peer in status.ring))
    last = status.last_round
    if last is not None:
        yield _row(
            "last round",
            f"{last.round} {last.outcome}: {len(last.contributors)} of {len(last.members)} "
            f"contributed, {last.duration_seconds:.1f} s, {format_bytes(last.bytes_sent)} sent, "
            f"{format_bytes(last.bytes_received)} received",
        )
    outer = status.outer_step
    if outer is not None:
        yield _row(
            "outer step", f"momentum {outer.momentum:.2f}, learning rate {outer.learning_rate:.2f}"
        )


def shown_peer(peer_id: str, name: str) -> str:
    """Returns the end of a peer id, and before it the name that the peer's owner chose. A name
    alone tells nothing: any peer may have it."""
    end = printable(peer_id[-6:])
    return f"{printable(name)} {end}" if name else end


def _peer_cells(peer: PeerStatus) -> list[Styled]:
    speed = DASH if peer.tokens_per_second is None else f"{peer.tokens_per_second:,.0f}"
    memory = format_bytes(peer.device_memory_bytes) if peer.device_memory_bytes else DASH
    return [
        Styled(shown_peer(peer.peer_id, peer.name)),
        _phase(peer.phase),
        Styled(str(peer.round)),
        Styled(speed),
        Styled(printable(peer.device or DASH)),
        Styled(memory),
        Styled(_path(peer)),
    ]


def _pause(status: Status) -> str:
    """Returns why a node is paused, and when it goes on."""
    shown = [pause for pause in status.pauses if pause.reason == status.paused_reason]
    pause = shown[0] if shown else PauseStatus(reason=status.paused_reason or "")
    return pause_text(pause, moment_in(status.resumes_at), time.time())


def _path(peer: PeerStatus) -> str:
    """The way to a peer, for people."""
    if peer.path == "relayed":
        return f"through {printable((peer.relay or DASH)[-6:])}"
    return printable(peer.path or "none")


def _work(work: WorkStatus) -> str:
    """Returns a line with the fates of the tokens that this node trained."""
    late = f", {work.committed_late:,} late" if work.committed_late else ""
    gone = [
        f"{tokens:,} {fate}"
        for tokens, fate in ((work.dropped, "dropped"), (work.lost, "lost"))
        if tokens
    ]
    fates = [f"{work.committed_on_time:,} on time{late}", f"{work.carried:,} carried", *gone]
    return f"{work.trained:,} tokens trained: {', '.join(fates)}"


def _data(data: DataStatus) -> str:
    """Returns a line with the swarm's place in the data, or with this node's in its own."""
    share = data.tokens_consumed / data.num_tokens
    if data.own:
        return (
            f"this machine's own text, epoch {data.epoch + 1}, {share:.1%} of it: "
            f"{data.num_tokens:,} tokens, which stay here"
        )
    return (
        f"epoch {data.epoch + 1}, {share:.1%} of it: {data.shards_consumed:,} of "
        f"{data.num_shards:,} shards consumed{_growth(data)}"
    )


def _growth(data: DataStatus) -> str:
    """Returns how much of its corpus the founder has added; nothing if that is all."""
    if data.cutting:
        return f"; {data.cutting}"
    if data.expected_tokens <= data.num_tokens:
        return ""
    there = data.num_tokens / data.expected_tokens
    return f"; {there:.0%} of the corpus is there, and its founder adds the rest"


def _step_times(times: StepTimes) -> str:
    """Returns a line with the share of each part of a step's time."""
    parts = {
        "forward": times.forward,
        "backward": times.backward,
        "optimiser": times.optimizer,
        "data": times.data,
        "hand-over": times.handover,
    }
    total = sum(parts.values())
    if not total:
        return DASH
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts.items())


def _own_phase(status: Status) -> Styled:
    """A node that the members put out goes on with its rounds, but nothing that it does counts."""
    if status.put_out is not None and status.phase != "failed":
        return Styled(printable(f"{status.phase}, put out of the run"), "bold red")
    return _phase(status.phase)


def _phase(phase: str) -> Styled:
    return Styled(printable(phase), _PHASE_STYLES.get(phase, ""))


def _digest(digest: str | None) -> str:
    return digest[:16] if digest else DASH


def loss_text(loss: float | None) -> str:
    return DASH if loss is None else f"{loss:.4f}"
