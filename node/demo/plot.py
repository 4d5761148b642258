"""Loss curves as PNG files, without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#333333"
_TRAINING = "#9db4c8"
_HELDOUT = "#1f5f99"
_MARK = "#b5442e"


class Mark(msgspec.Struct, frozen=True):
    """An event, drawn as a vertical line through the curve."""

    round: int
    text: str


def draw_loss_curve(
    path: Path,
    *,
    title: str,
    training: Mapping[int, float],
    heldout: Mapping[int, float],
    marks: Sequence[Mark] = (),
) -> None:
    """Writes the curve as PNG; an existing file is replaced.

    Args:
        training: mean training loss of each round's inner steps, by round, in nats per token.
        heldout: loss of the committed state on held-out text, by round.

    Raises:
        OSError: the file cannot be written.
    """
    # Imported here, because matplotlib takes long. Without pyplot nothing looks for a display.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    rounds = sorted(training)
    axes.plot(
        rounds,
        [training[number] for number in rounds],
        color=_TRAINING,
        linewidth=2.0,
        marker=".",
        label="training, mean of the peers",
    )
    if heldout:
        rounds = sorted(heldout)
        axes.plot(
            rounds,
            [heldout[number] for number in rounds],
            color=_HELDOUT,
            # Points only: the loss of the rounds between them is not known.
            linestyle="none",
            marker="o",
            label="held-out text",
        )
    _draw_marks(axes, marks)
    axes.set_title(title, color=_INK, loc="left")
    axes.set_xlabel("round")
    axes.set_ylabel("loss (nats per token)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(path, format="png")


def _draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    for index, mark in enumerate(sorted(marks, key=lambda mark: mark.round)):
        axes.axvline(mark.round, color=_MARK, linewidth=1.0, linestyle="--")
        axes.annotate(
            mark.text,
            # Marks can be close together, so each text is one line lower than the one before.
            xy=(mark.round, 0.98 - 0.06 * index),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            color=_MARK,
            fontsize=9,
            verticalalignment="top",
        )
