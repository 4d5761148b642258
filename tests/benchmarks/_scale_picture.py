"""Draws what `scale.py --save` has written.

    python -m tests.benchmarks._scale_picture

The picture is `results/scale.png`, and its figures are those of `results/scale.json`.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes

RESULTS = Path(__file__).parent / "results"


class Series(msgspec.Struct):
    """One commit's figures of nodes in memory: bytes that a peer receives, by number of peers."""

    name: str
    commit: str
    peers: list[int]
    presence: list[float]
    """A second, while it waits."""
    round: list[float]
    """Statements, records and comparisons of one round."""
    announced: list[float]
    """Announcements of one round."""


def load(path: Path) -> list[Series]:
    """The series of a file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Series])


def save(path: Path, series: Series) -> None:
    """Puts a series into a file, in the place of one with its name."""
    others = [each for each in load(path) if each.name != series.name] if path.exists() else []
    encoded = msgspec.json.encode([*others, series])
    path.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")


def draw(series: list[Series], path: Path) -> None:
    """Writes the picture."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), constrained_layout=True)
    for each in series:
        left.plot(each.peers, each.presence, "o-", label=each.name)
        num = len(each.round)
        total = [a + b for a, b in zip(each.round, each.announced, strict=True)]
        right.plot(each.peers[:num], total, "o-", label=each.name)
    for axes, title in ((left, "waiting: bytes a second"), (right, "one round: bytes")):
        _finish(axes, title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _finish(axes: Axes, title: str) -> None:
    ticks = sorted({num for line in axes.get_lines() for num in map(int, line.get_xdata())})  # type: ignore[arg-type]
    axes.set(xscale="log", yscale="log", title=title, xlabel="peers", xticks=ticks)
    axes.set_xticklabels([str(num) for num in ticks])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def main() -> None:
    draw(load(RESULTS / "scale.json"), RESULTS / "scale.png")


if __name__ == "__main__":
    main()
