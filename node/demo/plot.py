"""Loss curves as PNG files, without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_INK = "#333333"
_TRAINING = "#9db4c8"
_HELDOUT = "#1f5f99"
_MARK = "#b5442e"


class Mark(msgspec.Struct, frozen=True):
    """Something that happened, as a vertical line through the curve."""

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
        training: Mean training loss of each round's inner steps, by round, in nats per token.
        heldout: Loss of the committed state on held-out text, by round.

    Raises:
        OSError: the file cannot be written.
    """
    # Only whoever draws waits for matplotlib. Without pyplot nothing looks for a display.
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
            # Points alone: a line would claim to know the rounds between them.
            linestyle="none",
            marker="o",
            label="held-out text",
        )
    for index, mark in enumerate(sorted(marks, key=lambda mark: mark.round)):
        axes.axvline(mark.round, color=_MARK, linewidth=1.0, linestyle="--")
        axes.annotate(
            mark.text,
            # Marks may be close together: each text is one line lower than the one before.
            xy=(mark.round, 0.98 - 0.06 * index),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            color=_MARK,
            fontsize=9,
            verticalalignment="top",
        )
    axes.set_title(title, color=_INK, loc="left")
    axes.set_xlabel("round")
    axes.set_ylabel("loss (nats per token)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(path, format="png")
