"""The result of a finished run, for the person at the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from gossamer.node.base.settings.default_places import NoHomeError, default_state_dir
from gossamer.node.base.terminal.printable import printable
from gossamer.node.rounds.participant import Participant


def reached(participant: Participant | None, state_dir: Path) -> Sequence[str]:
    """Returns lines on what a run has reached, and how to get the model; none for a run that is not
    finished at this node."""
    if participant is None or not participant.is_finished:
        return ()
    export = "gossamer export FOLDER"
    if not _is_default(state_dir):
        export += f" --state-dir {shlex.quote(str(state_dir))}"
    return (finish_line(participant), f"Write the model with: {export}")


def _is_default(state_dir: Path) -> bool:
    try:
        return state_dir == default_state_dir()
    except NoHomeError:
        return False


def finish_line(participant: Participant) -> str:
    """Returns a line on what a finished run has reached."""
    context, progress = participant.context, participant.progress
    entry, work = context.committed.entry, context.work.status
    mine = work.committed_on_time + work.committed_late
    heldout_loss = progress.heldout_loss_of(entry.round)
    loss = "" if heldout_loss is None else f" Held-out loss: {heldout_loss:.4f}."
    return (
        f"The run {printable(context.manifest.name)} is finished: {entry.round:,} rounds, "
        f"{entry.tokens_total:,} tokens of all peers, {mine:,} of them by this node.{loss}"
    )
