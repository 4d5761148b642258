"""How much must work gain from where it began, so that poor work is found and honest work is not?

    python -m tests.benchmarks.audits --words --keep words.npy
    python -m tests.benchmarks.audits_carried --words --keep carried.npz
    python -m tests.benchmarks.audits_start words.npy carried.npz

This script reads gains that the other two have kept, and trains nothing. The columns are values of
`START_SHARE`: the part of what an audit asks for at the state before the round that it asks for
where the work began. With 0 any clear gain is enough there, as it was by decision 99.

Before each table stand the smallest gains of honest work from where it began, in the same measure,
of the verdicts that have to look there and find it good with 0. A share below the smallest one
blames no more honest work than 0 does.

`--no-overlap` is for files of such runs: an auditor looks at the state before the missed rounds
alone there. `--heldout` is for files where held-out text decides.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from gossamer.protocol.policy.auditing.audits import (
    CARRIED_SHARE,
    HELDOUT_SHARE,
    SHARE,
    START_MARGIN,
    can_judge,
    falls_short,
    gain_of,
)
from tests.benchmarks import audits, audits_carried
from tests.benchmarks.audits import Losses

SHARES = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
NUM_SMALLEST = 6


class Look(NamedTuple):
    """A verdict on one work."""

    work: str
    falls_short: bool
    start: float
    """The largest clear gain from where it may have begun, by what is asked for at the state before
    the round; minus infinity if none is clear."""

    def is_poor(self, share: float) -> bool:
        """Returns whether the work is poor if this share is enough where it began."""
        return self.falls_short and not self.start >= share


def look(work: str, gains: Losses, starts: Sequence[int], share: float) -> Look | None:
    """None if nothing can be told.

    Args:
        gains: of a quarter of the work, of a quarter of the average, and from where it may have
            begun; (of which, sequences).
        starts: numbers of the last ones.
        share: see `share_of`.
    """
    nothing = [0.0] * gains.shape[-1]
    own, average, *_ = losses = (-gains).tolist()
    control = gain_of(nothing, average)
    if not can_judge(control):
        return None
    found = [gain_of(nothing, losses[start]) for start in starts]
    clear = [gain.mean / (share * control.mean) for gain in found if gain.is_above(START_MARGIN)]
    short = falls_short(nothing, average, own, share)
    return Look(work, short, max(clear, default=-math.inf))


def looks_of(path: Path, options: argparse.Namespace) -> Iterator[Look]:
    """All verdicts of a file."""
    found: Iterator[Look | None]
    if path.suffix == ".npy":
        share = HELDOUT_SHARE if options.heldout else SHARE
        found = (
            look(work, gains, (audits.START,), share)
            for audit in np.load(path)
            for auditor in audit
            for work, gains in zip(audits.WORK, auditor, strict=True)
        )
    else:
        starts = (audits_carried.BEFORE, audits_carried.START)[: 1 if options.no_overlap else 2]
        found = (
            look(work, gains, starts, CARRIED_SHARE if audit.missed > 1 else SHARE)
            for audit in audits_carried.read_audits(path)
            for auditor in audit.gains
            for work, gains in zip(audits_carried.WORK, auditor, strict=True)
        )
    return (each for each in found if each is not None)


def table_of(looks: Sequence[Look]) -> Table:
    """Poor works among verdicts with each of the shares."""
    table = Table("work", "verdicts", "fall short", *(f"{share:g}" for share in SHARES))
    for work in dict.fromkeys(each.work for each in looks):
        of_it = [each for each in looks if each.work == work]
        poor = [sum(each.is_poor(share) for each in of_it) for share in SHARES]
        short = sum(each.falls_short for each in of_it)
        table.add_row(work, str(len(of_it)), str(short), *map(str, poor))
    return table


def main() -> None:
    """Prints a table of all files together."""
    parser = argparse.ArgumentParser(
        "tests.benchmarks.audits_start", description=__doc__.split("\n")[0]
    )
    parser.add_argument("files", type=Path, nargs="+", help="what --keep wrote")
    parser.add_argument("--no-overlap", action="store_true")
    parser.add_argument("--heldout", action="store_true")
    options = parser.parse_args()
    looks = [each for path in options.files for each in looks_of(path, options)]
    gains = sorted(
        each.start
        for each in looks
        if each.work == "honest" and each.falls_short and not each.is_poor(0.0)
    )
    console = Console(width=140)
    console.print("honest:", *(f"{gain:.2f}" for gain in gains[:NUM_SMALLEST]), f"of {len(gains)}")
    console.print(table_of(looks))


if __name__ == "__main__":
    main()
