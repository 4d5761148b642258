"""What does an audit find of work that was carried over rounds, and how often does it blame it?

    python -m tests.benchmarks.audits_carried --words --seeds 1 2
    python -m tests.benchmarks.audits_carried --small --epochs --uneven
    python -m tests.benchmarks.audits_carried --small --topics --uneven --no-overlap
    python -m tests.benchmarks.audits_carried --words --fresh

As in `tests.benchmarks.audits`, but with six peers. Three are in each round. One is in every other
round and two in every third one, and hand their work of all rounds in with the next that they are
in. They go on from their local parameters, or with `--fresh` from the newest state as soon as there
is one. All audits are of members that missed rounds.

By `protocol/policy/auditing/audits.py` half of the average's gain is enough of members that missed
one round, and a tenth of those that missed two. "Once" leaves out the look at where the work began.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.robust_average import robust_weights
from gossamer.protocol.policy.auditing.audits import (
    AUDITORS,
    CARRIED_SHARE,
    MISSED_MAX,
    SCALE,
    SHARE,
    can_judge,
    falls_short,
    gain_of,
    helps_from_start,
    least_from_start,
)
from gossamer.protocol.rounds.ring.set_parts import ring_average
from gossamer.protocol.wire.audit_messages import SEQUENCES
from gossamer.trainer.presets.preset import Preset
from tests.benchmarks.audits import (
    Losses,
    Trial,
    add_trial_options,
    preset_of,
    write_words,
)

PERIODS = (1, 1, 1, 2, 3, 3)
"""Each peer is in one of so many rounds."""
AUDITED_ROUNDS = tuple(number for number in range(30, 111) if number % 5 < 2)
ROUNDS = 110
WORK = ("honest", "zero", "noise", "flipped")
APPLIED = QUARTER, AVERAGE, BEFORE, START = range(4)
"""What is applied: a quarter of the update, a quarter of the round's average, and the update from
the state before the missed rounds, and from there with the member's own work in place of the
average."""


class Audited(NamedTuple):
    """An audit: what `_gains` measured, of a member that missed so many rounds."""

    missed: int
    gains: Losses
    """(auditors, kinds of work, `APPLIED`, sequences)."""


class Carrying(Trial):
    """One training of a swarm whose members miss rounds."""

    uneven = (8, 20, 40, 20, 10, 20)
    rounds = AUDITED_ROUNDS

    def __init__(self, options: argparse.Namespace, run: Preset, folder: Path, seed: int) -> None:
        super().__init__(options, run, folder, seed)
        self._is_fresh = options.fresh
        peers = len(PERIODS)
        nothing = np.zeros_like(self._parameters)
        self._missed = [0] * peers
        self._tokens = [0] * peers
        self._starts = [self._parameters] * peers
        self._last_sent = [nothing] * peers
        self._averages: list[Float32Array] = []
        """Of the newest rounds, the newest last."""

    def audits(self) -> list[Audited]:
        """Trains, and audits all members that come back in the rounds with audits."""
        found: list[Audited] = []
        due: list[tuple[Float32Array, Float32Array]] = []
        first_step = 0
        for number in range(1, ROUNDS + 1):
            outer = self._run.outer
            goes_on = self._overlap and not outer.is_warmup(number)
            self._train_all(number, first_step, due if goes_on else [])
            first_step += outer.inner_steps_of(number)
            here = [peer for peer, each in enumerate(PERIODS) if not (number + peer) % each]
            sent = self._sent()
            if number in self._rounds:
                found += [self._audit_of(peer, here, sent) for peer in here if self._missed[peer]]
            pending = [self._workers[peer].pending for peer in here]
            norms = np.array([norm_of(each) for each in pending], np.float32)
            tokens = [self._tokens[peer] for peer in here]
            average = ring_average(pending, tokens, self._plan, self._payloads, outer.error_decay)
            self._averages = [*self._averages, average.copy()][-MISSED_MAX - 1 :]
            if goes_on:
                due.append((average, norms))
            else:
                self._outer_step(number, average, norms)
            self._go_on(here, sent, goes_on=goes_on)
        return found

    def _train_all(
        self, number: int, first_step: int, due: list[tuple[Float32Array, Float32Array]]
    ) -> None:
        """Trains a round, after which the state of the round before comes, if it is due."""
        steps = [
            max(1, self._run.outer.inner_steps_of(number) * each // 20) for each in self._steps
        ]
        waits = [self._is_fresh and missed > 0 for missed in self._missed]
        for is_later in (False, True):
            for peer, worker in enumerate(self._workers):
                if waits[peer] is is_later:
                    start = self._parameters if is_later else self._starts[peer]
                    self._tokens[peer] += worker.train(start, first_step, steps[peer])
            if due:
                self._outer_step(number - 1, *due.pop())

    def _go_on(self, here: Sequence[int], sent: Sequence[Float32Array], *, goes_on: bool) -> None:
        for peer, worker in enumerate(self._workers):
            if peer in here:
                self._starts[peer] = self._parameters - sent[peer] if goes_on else self._parameters
                self._last_sent[peer] = sent[peer]
                self._missed[peer] = self._tokens[peer] = 0
                self._queues[peer].taken.clear()
            else:
                self._starts[peer] = (
                    self._parameters - worker.pending if goes_on else self._parameters
                )
                self._missed[peer] += 1

    def _audit_of(self, peer: int, here: Sequence[int], sent: Sequence[Float32Array]) -> Audited:
        judged = np.stack([*np.concatenate(self._queues[peer].taken)])
        works, place, own = [sent[each] for each in here], here.index(peer), sent[peer]
        noise = self._draw.standard_normal(own.size).astype(np.float32)
        noise *= np.float32(norm_of(own) / norm_of(noise))
        kinds = [own, np.zeros_like(own), noise, -own]
        weights = robust_weights([self._tokens[each] for each in here])
        averages = [
            self._average([*works[:place], kind, *works[place + 1 :]], weights) for kind in kinds
        ]
        missed = self._missed[peer]
        before = self._parameters.copy()
        for average in self._averages[-missed:]:
            before += average
        start = before + self._averages[-missed - 1] - self._last_sent[peer]
        found = []
        for _ in range(AUDITORS):
            drawn = self._draw.choice(len(judged), SEQUENCES, replace=len(judged) < SEQUENCES)
            found.append(self._gains_of(judged[drawn], kinds, averages, before, start))
        return Audited(missed, np.stack(found))

    def _gains_of(
        self,
        sequences: np.ndarray,
        kinds: Sequence[Float32Array],
        averages: Sequence[Float32Array],
        before: Float32Array,
        start: Float32Array,
    ) -> Losses:
        def losses(parameters: Float32Array) -> Losses:
            return self._auditor.losses(parameters, sequences)

        state, scale = self._parameters, np.float32(SCALE)
        now, then, there = losses(state), losses(before), losses(start)
        return np.stack(
            [
                np.stack(
                    [
                        now - losses(state - kind * scale),
                        now - losses(state - average * scale),
                        then - losses(before - kind),
                        there - losses(start - kind),
                    ]
                )
                for kind, average in zip(kinds, averages, strict=True)
            ]
        )


def poor(gains: Losses, share: float, starts: Sequence[int]) -> bool | None:
    """What an auditor says of gains (`APPLIED`, sequences); None if nothing can be told."""
    nothing = [0.0] * gains.shape[-1]
    losses = [(-each).tolist() for each in gains]
    control = gain_of(nothing, losses[AVERAGE])
    if not can_judge(control):
        return None
    if not falls_short(nothing, losses[AVERAGE], losses[QUARTER], share):
        return False
    least = least_from_start(control, share)
    return not any(helps_from_start(nothing, losses[start], least) for start in starts)


def table_of(audits: Sequence[Audited], starts: Sequence[int], title: str) -> Table:
    """The table of audits. `starts`: where an auditor looks besides."""
    table = Table(
        "missed", "work", "undecided", "tenth", "two of three", "half", "two of three",
        "tenth, once", title=title,
    )  # fmt: skip
    rules = ((CARRIED_SHARE, starts), (SHARE, starts), (CARRIED_SHARE, ()))
    for missed in range(1, MISSED_MAX + 1):
        of_these = [each.gains for each in audits if each.missed == missed]
        for place, work in enumerate(WORK):
            words = [
                [[poor(each, share, where) for each in gains[:, place]] for gains in of_these]
                for share, where in rules
            ]
            flat = [[word for audit in each for word in audit] for each in words]
            blamed = [f"{each.count(True)} of {len(each) - each.count(None)}" for each in flat]
            found = [
                f"{sum(audit.count(True) > AUDITORS // 2 for audit in each)} of {len(each)}"
                for each in words
            ]
            undecided = f"{flat[0].count(None) / max(1, len(flat[0])):.0%}"
            table.add_row(
                str(missed), work, undecided, blamed[0], found[0], blamed[1], found[1], blamed[2]
            )
    return table


def write_audits(path: Path, audits: Sequence[Audited]) -> None:
    """Writes what `read_audits` reads."""
    missed, gains = zip(*audits, strict=True)
    np.savez(path, missed=missed, gains=np.stack(gains))


def read_audits(path: Path) -> list[Audited]:
    """Reads audits that `--keep` wrote."""
    with np.load(path) as kept:
        return [
            Audited(int(missed), gains)
            for missed, gains in zip(kept["missed"], kept["gains"], strict=True)
        ]


def main() -> None:
    """Trains all seeds and prints a table."""
    parser = argparse.ArgumentParser(
        "tests.benchmarks.audits_carried", description=__doc__.split("\n")[0]
    )
    add_trial_options(parser)
    parser.add_argument("--fresh", action="store_true", help="go on from the newest state")
    parser.add_argument("--keep", type=Path, help="a file for all gains, as npz")
    parser.add_argument("--kept", type=Path, nargs="+", default=(), help="show the gains of files")
    parser.set_defaults(early=False, heldout=False)
    options = parser.parse_args()
    starts = (BEFORE,) if options.no_overlap else (BEFORE, START)
    if options.kept:
        kept = [audit for path in options.kept for audit in read_audits(path)]
        Console(width=140).print(table_of(kept, starts, f"{len(kept)} audits"))
        return
    if not (options.words or options.small):
        parser.error("name --words or --small: audits of larger models take hours")
    torch.set_num_threads(1)
    preset = preset_of(options)
    found: list[Audited] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            if options.words:
                options.text = [write_words(Path(folder) / "text", seed)]
            found += Carrying(options, preset, Path(folder), seed).audits()
        if options.keep:
            write_audits(options.keep, found)
    Console(width=140).print(table_of(found, starts, f"{len(found)} audits"))


if __name__ == "__main__":
    main()
