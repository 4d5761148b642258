"""Results of arms that were trained with several seeds, as JSON: `parity.py`, `losses.py`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gossamer.protocol.manifest import InnerConfig, OuterConfig
from gossamer.protocol.model_config import ModelConfig


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that results depend on beside the name of their arm.

    A field that a config got later, and an old file lacks, has its default: so a new field's
    default has to mean what was done before.
    """

    model: ModelConfig
    inner: InnerConfig
    outer: OuterConfig
    options: dict[str, float | bool | None]
    """Options of the command line."""


def of_all_arms(inner: InnerConfig) -> InnerConfig:
    """The settings of inner steps without what each arm has of its own: the number of steps after
    which it ends, and its optimiser."""
    return msgspec.structs.replace(inner, ends=msgspec.UNSET, optimizer=msgspec.UNSET)


def without_widening(outer: OuterConfig) -> OuterConfig:
    """The settings of outer steps without the words on sums of large rings and on packing: no arm
    has them."""
    return msgspec.structs.replace(
        outer, widening=msgspec.UNSET, sparse_sums=msgspec.UNSET, packing=msgspec.UNSET
    )


class Result(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One arm with one seed."""

    arm: str
    seed: int
    loss: float
    """Nats per token, all held-out text."""
    bits_per_byte: float
    tokens: int
    rounds: int
    seconds: float
    steps: list[int]
    losses: list[float]
    momenta: list[float] = []
    """See `_parity_training.Curve`."""


class Results(msgspec.Struct, kw_only=True):
    """The content of an output file: the settings, and the arms that were run with them."""

    settings: Settings
    results: list[Result] = []

    def get(self, arm: str, seed: int) -> Result | None:
        return next((r for r in self.results if (r.arm, r.seed) == (arm, seed)), None)

    def of(self, arm: str, seeds: Sequence[int]) -> list[Result]:
        """Results of these seeds, as far as they are there."""
        return [found for seed in seeds if (found := self.get(arm, seed)) is not None]

    def mean_of(self, arm: str, seeds: Sequence[int]) -> float | None:
        """Mean loss over the seeds; None if one of them is missing."""
        found = self.of(arm, seeds)
        return statistics.fmean(r.loss for r in found) if 0 < len(found) == len(seeds) else None

    def save(self, path: Path) -> None:
        """One line a result, so that what is new shows in a comparison of two versions."""
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = msgspec.json.format(msgspec.json.encode(self.settings))
        lines = b",\n".join(map(msgspec.json.encode, self.results))
        path.write_bytes(b'{"settings": %b,\n"results": [\n%b\n]}\n' % (settings, lines))


def load_results(path: Path, settings: Settings, *, fresh: bool) -> Results:
    """Returns the results in the file; no results if there is no file, or if it is to be forgotten.

    Ends the program if the file's results are of other settings.
    """
    if fresh or not path.exists():
        return Results(settings=settings)
    results = msgspec.json.decode(path.read_bytes(), type=Results)
    if results.settings != settings:
        sys.exit(f"{path} holds results of other settings; use --fresh or --output")
    return results
