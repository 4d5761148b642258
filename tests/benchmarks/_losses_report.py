"""Results of `losses.py` as a table and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from tests.benchmarks._losses_arms import GROUPS, Arm, arm_of
from tests.benchmarks._results import Results

CURVES = (
    *("sync-4", "alone", "diloco-4-h20-fp32", "diloco-4-h20-int4", "diloco-4-h20-int4-o50"),
    *("sparse-4-h20", "distro-4"),
)
"""Arms that are drawn as curves, if there are results of them; curves of all are not legible."""

CURVES_MAX = 8
"""Number of curves that are drawn instead if none of `CURVES` is there."""

ROW_INCHES = 0.24
PANEL_HEAD_ROWS = 2.5
"""Height of a panel's title and margins, in rows."""


def plain_of(arm: Arm) -> str:
    """The arm to compare with: fp32, dense, without overlap, the same peers, H and optimiser. For
    such an arm with Muon: the same with AdamW, at the same inner rate."""
    plain = f"diloco-{arm.num_peers}-h{arm.inner_steps}-fp32"
    if not arm.muon:
        return plain
    rate = f"-lr{arm.learning_rate:g}" if arm.learning_rate else ""
    with_muon = f"{plain}-muon{rate}"
    return with_muon if arm.name != with_muon else plain + rate


def against(results: Results, arm: str, reference: str, seeds: Sequence[int]) -> str:
    """Mean of the seeds' differences in per cent, with their range; of seeds that have both."""
    changes = [
        100 * (a.loss / b.loss - 1)
        for seed in seeds
        if (a := results.get(arm, seed)) is not None
        and (b := results.get(reference, seed)) is not None
    ]
    if not changes or arm == reference:
        return ""
    mean = f"{statistics.fmean(changes):+.2f} %"
    return mean if len(changes) == 1 else f"{mean} ({min(changes):+.2f} to {max(changes):+.2f})"


def table_of(results: Results, seeds: Sequence[int], arms: Sequence[str]) -> Table:
    """Means over the seeds that are there, with their range."""
    table = Table(title=f"Held-out loss, seeds {', '.join(map(str, seeds))}")
    headings = "arm|seeds|nats|range|bits/byte|against fp32|against sync|rounds|tokens|seconds"
    for heading in headings.split("|"):
        is_name = heading == "arm"
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=is_name)
    for name in arms:
        found = results.of(name, seeds)
        if not found:
            continue
        losses = [result.loss for result in found]
        arm = arm_of(name)
        table.add_row(
            name,
            str(len(found)),
            f"{statistics.fmean(losses):.4f}",
            f"{min(losses):.3f} to {max(losses):.3f}",
            f"{statistics.fmean(r.bits_per_byte for r in found):.4f}",
            against(results, name, plain_of(arm), seeds)
            if arm.kind not in ("sync", "alone")
            else "",
            against(results, name, f"sync-{arm.num_peers}", seeds),
            str(found[0].rounds or ""),
            f"{statistics.fmean(r.tokens for r in found):,.0f}",
            f"{statistics.fmean(r.seconds for r in found):.0f}",
        )
    return table


def draw(results: Results, seeds: Sequence[int], arms: Sequence[str], path: Path) -> None:
    """Draws the curves of a few arms on the left, means over the seeds; and the ends of all on the
    right, by question."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    found = [name for name in arms if results.of(name, seeds)]
    panels = panels_of(found)
    heights = [len(names) + PANEL_HEAD_ROWS for names in panels.values()]
    figure = plt.figure(figsize=(15, max(6.0, ROW_INCHES * sum(heights))), constrained_layout=True)
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(2, 3))[0]
    draw_curves(results, seeds, found, left.subplots())
    ends = right.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)
    for axes, (title, names) in zip(ends[:, 0], panels.items(), strict=True):
        axes.set_title(title, fontsize="medium", loc="left")
        draw_ends(results, seeds, names, axes)
    right.supxlabel(
        "held-out loss at the end, nats per token: seeds, their mean, and the mean difference\n"
        "from as many peers with fp32, the same H, and nothing else of it"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def panels_of(arms: Sequence[str]) -> dict[str, list[str]]:
    """The arms by question; each under the first that asks for it."""
    panels: dict[str, list[str]] = {}
    for name in arms:
        group = next((group for group, names in GROUPS.items() if name in names), "others")
        panels.setdefault(group, []).append(name)
    return {group: panels[group] for group in (*GROUPS, "others") if group in panels}


def draw_curves(results: Results, seeds: Sequence[int], arms: Sequence[str], axes: Axes) -> None:
    chosen = [name for name in CURVES if name in arms] or arms[:CURVES_MAX]
    for name in chosen:
        of_arm = results.of(name, seeds)
        axes.plot(
            of_arm[0].steps[:-1],
            np.mean([result.losses[:-1] for result in of_arm], axis=0),
            "--" if name.startswith(("sync", "alone")) else "-",
            label=name,
        )
    axes.set_xlabel("inner steps of each peer")
    axes.set_ylabel("held-out loss on a part of the text, nats per token")
    axes.grid(alpha=0.3)
    axes.set_title("Means of the seeds", fontsize="medium", loc="left")
    axes.legend()


def draw_ends(results: Results, seeds: Sequence[int], arms: Sequence[str], axes: Axes) -> None:
    """A row for each arm."""
    for row, name in enumerate(arms):
        losses = [result.loss for result in results.of(name, seeds)]
        mean = statistics.fmean(losses)
        axes.plot(losses, [row] * len(losses), "o", color="tab:gray", markersize=4)
        axes.plot(mean, row, "|", color="tab:blue", markersize=14, markeredgewidth=2.5)
        change = against(results, name, plain_of(arm_of(name)), seeds)
        axes.annotate(
            f" {change.split(' (')[0]}",
            (max(losses), row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
    axes.set_yticks(range(len(arms)), list(arms), fontsize="small")
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.margins(x=0.15)
    axes.grid(alpha=0.3)
