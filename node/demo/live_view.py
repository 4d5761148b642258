"""The demo's output: a live picture in a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gossamer.node.base.terminal.terminal import plain_table
from gossamer.node.base.terminal.text_table import BARS, sparkline
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.demo.record import Digests, Losses, PeerRecord, Record
from gossamer.node.storage.disk_use import bytes_beside

FRAMES_PER_SECOND = 4
LINE_SECONDS = 5.0
"""Time between two lines of progress where there is no terminal."""
EVENTS_SHOWN = 9
CURVE_WIDTH = 60

_ASCII_BARS = "_.-=+*%#"
_STYLES = {
    "training": "green",
    "averaging": "cyan",
    "finished": "cyan",
    "founding": "yellow",
    "joining": "yellow",
    "syncing": "yellow",
    "failed": "bold red",
    "killed": "bold red",
    "ended": "bold red",
}


class View:
    """Shows a record while it grows. In a terminal, a thread redraws the picture."""

    def __init__(self, record: Record, console: Console, elapsed: Callable[[], float]) -> None:
        self._record = record
        self._console = console
        self._elapsed = elapsed
        self._num_printed = 0
        self._next_line_seconds = LINE_SECONDS
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                get_renderable=self._picture, console=console, refresh_per_second=FRAMES_PER_SECOND
            )

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._print_events()

    def update(self) -> None:
        """Prints new events where there is no picture. The demo calls this after every change."""
        if self._live is not None:
            return
        self._print_events()
        if self._elapsed() >= self._next_line_seconds:
            self._next_line_seconds = self._elapsed() + LINE_SECONDS
            ring = " ".join(self._record.newest_ring) or "none yet"
            self._print(f"{self._elapsed():5.0f} s  {_progress(self._record)}, ring: {ring}")

    def _print_events(self) -> None:
        for event in self._record.events[self._num_printed :]:
            self._print(f"{event.seconds:5.0f} s  * {event.text}")
        self._num_printed = len(self._record.events)

    def _print(self, text: str) -> None:
        # The reader of a pipe gets whole lines at once.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()

    def _picture(self) -> RenderableType:
        """Draws the present record."""
        record, options = self._record, self._console.options
        head = Text(f"gossamer demo  {self._elapsed():.0f} s  ", style="bold")
        head.append(_progress(record), style="not bold")
        parts: list[RenderableType] = [head, Text(), _peer_table(record), Text()]
        curve = list(record.training_losses().values())
        if len(curve) >= 2:
            bars = _ASCII_BARS if options.ascii_only else BARS
            line = Text("loss ", style="dim")
            line.append(f"{curve[0]:.2f} ", style="not dim")
            line.append(sparkline(curve, min(CURVE_WIDTH, options.max_width - 20), bars), "green")
            line.append(f" {curve[-1]:.2f}", style="not dim")
            parts += [line, Text()]
        for event in record.events[-EVENTS_SHOWN:]:
            line = Text(f"{event.seconds:4.0f} s  ", style="dim")
            line.append(event.text, style="not dim")
            parts.append(line)
        return Group(*parts)


def _progress(record: Record) -> str:
    parts = [f"round {record.round}"]
    if training := list(record.training_losses().values()):
        parts.append(f"loss {training[-1]:.2f}")
    if heldout := list(record.heldout_losses().values()):
        parts.append(f"held-out {heldout[-1]:.2f}")
    if (rate := record.tokens_per_second) is not None:
        parts.append(f"{rate:,.0f} tokens/s")
    return ", ".join(parts)


def _peer_table(record: Record) -> Table:
    texts = ("peer", "id", "phase")
    table = plain_table((*texts, "step", "round", "loss", "tokens/s", "in the ring"), texts)
    ring = record.newest_ring
    for peer in record.peers.values():
        table.add_row(*_peer_cells(peer, ring))
    return table


def _peer_cells(peer: PeerRecord, ring: Sequence[str]) -> list[Text]:
    status = peer.status
    if status is None:
        return [Text(peer.name), Text("-"), _phase(peer.doing)]
    if not peer.is_alive:
        name, tail = Text(peer.name, "dim"), Text(status.peer_id[-6:], "dim")
        return [name, tail, _phase(peer.doing), Text(), Text(str(status.round), "dim")]
    step = f"{status.inner_step}/{status.inner_steps}" if status.inner_steps else "-"
    loss = "-" if status.loss is None else f"{status.loss:.2f}"
    speed = "-" if status.tokens_per_second is None else f"{status.tokens_per_second:,.0f}"
    place = f"{ring.index(peer.name) + 1} of {len(ring)}" if peer.name in ring else "-"
    cells = [step, str(status.round), loss, speed, place]
    return [
        Text(peer.name),
        Text(status.peer_id[-6:]),
        _phase(status.phase),
        *(Text(cell) for cell in cells),
    ]


def _phase(phase: str) -> Text:
    return Text(phase, style=_STYLES.get(phase, ""))


def print_summary(
    record: Record, console: Console, *, seconds: float, picture: Path | None, folder: Path
) -> None:
    """Prints the results. A result counts as good only if it was seen."""
    console.print()
    console.rule("results", style="dim")
    rows = [*_summary_rows(record), ("took", Text(f"{seconds:.0f} s"))]
    if picture is not None:
        rows.append(("picture", Text(str(picture))))
    rows.append(("logs", Text(str(folder))))
    rows.append(("disk", Text(what_stays(folder))))
    for name, value in rows:
        line = Text.assemble((f"{name:<9}", "dim"), value)
        # Not wrapped: a path or a digest that is cut in two cannot be copied.
        console.print(line, soft_wrap=True, highlight=False)


def what_stays(folder: Path) -> str:
    """Returns how much the demo leaves on the disk, and how to delete it."""
    stays = format_bytes(bytes_beside(folder))
    return f"{stays} stay; to delete them: rm -r {shlex.quote(str(folder))}"


def _summary_rows(record: Record) -> list[tuple[str, Text]]:
    measured = [record.losses(), record.losses_in_training()]
    losses = [_loss_text(one) for one in dict.fromkeys(measured) if one is not None]
    rounds = [Text(f"{record.round} committed")]
    sent = []
    for peer in record.peers.values():
        mean = record.bytes_per_round(peer.name)
        amount = "nothing in a ring"
        if mean is not None:
            amount = f"{format_bytes(mean[0])} a round, {mean[1]} rounds seen"
        end = "" if peer.is_alive else f", {peer.doing}"
        sent.append(Text(f"{peer.name}  {amount}{end}"))
    unknown = Text("not known: fewer than two rounds were committed", "red")
    return [
        *_labelled("loss", losses or [unknown]),
        *_labelled("rounds", rounds),
        *_labelled("sent", sent),
        *_labelled("states", _state_lines(record.digests())),
    ]


def _labelled(name: str, lines: list[Text]) -> list[tuple[str, Text]]:
    return [("" if index else name, line) for index, line in enumerate(lines)]


def _state_lines(digests: Digests | None) -> list[Text]:
    if digests is None:
        return [Text("the living peers were never seen at the same round", "red")]
    lines = [Text(f"{name}  {digest}") for name, digest in digests.by_name.items()]
    if digests.equal:
        verdict = Text.assemble((f"equal at round {digests.round}", "green"))
        verdict.append(
            f"; equal at {digests.num_alike} of the {digests.num_compared} rounds compared"
        )
        return [*lines, verdict]
    if len(set(digests.by_name.values())) > 1:
        lines.append(Text(f"NOT EQUAL at round {digests.round}", "bold red"))
    lines += [Text(f"head {head} has two states", "bold red") for head in digests.contradictions]
    return lines


def _loss_text(losses: Losses) -> Text:
    return Text(
        f"{losses.first:.3f} ({losses.first_rounds}) to "
        f"{losses.last:.3f} ({losses.last_rounds}) {losses.kind}",
        "" if losses.fell else "bold red",
    )
