"""Results of `losses.py` as a table and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from _losses_arms import Arm, arm_of
from _results import Results
from rich.table import Table


def plain_of(arm: Arm) -> str:
    """The arm to compare with: fp32, dense, without overlap, the same peers and H."""
    return f"diloco-{arm.num_peers}-h{arm.inner_steps}-fp32"


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
        table.add_column(heading, justify="left" if heading == "arm" else "right")
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
    """Left the arms' curves, means over the seeds; right their ends with the seeds' range."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    found = {name: of_arm for name in arms if (of_arm := results.of(name, seeds))}
    figure, (curves, ends) = plt.subplots(
        1, 2, figsize=(14, max(5.0, 0.3 * len(found) + 1.5)), constrained_layout=True
    )
    for row, (name, of_arm) in enumerate(found.items()):
        finals = [result.loss for result in of_arm]
        mean = statistics.fmean(finals)
        (line,) = curves.plot(
            of_arm[0].steps[:-1],
            np.mean([result.losses[:-1] for result in of_arm], axis=0),
            "--" if name.startswith(("sync", "alone")) else "-",
            label=name,
        )
        ends.errorbar(
            mean,
            row,
            xerr=[[mean - min(finals)], [max(finals) - mean]],
            fmt="o",
            capsize=3,
            color=line.get_color(),
        )
    curves.set_xlabel("inner steps of each peer")
    curves.set_ylabel("held-out loss on a part of the text, nats per token")
    curves.grid(alpha=0.3)
    if len(found) <= 16:
        curves.legend(fontsize="small")
    ends.set_yticks(range(len(found)), list(found))
    ends.invert_yaxis()
    ends.set_xlabel("held-out loss at the end, all of the text (mean and range of the seeds)")
    ends.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
