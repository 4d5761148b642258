"""How many sequences go through a model at once on cards of 8 to 141 GB? On a simulated allocator.

    python -m tests.benchmarks.card_memory
    python -m tests.benchmarks.card_memory --presets 1.1b --gigabytes 24 32 --optimizer muon
    python -m tests.benchmarks.card_memory --presets 1.1b --moments 8bit

No card is used: tensors have no memory, and every byte of them is counted from the operation that
makes it until torch frees it (`tests/trainer/simulated_card.py`). A trainer starts, chooses the
size of a pass, takes the gradient of two passes, and updates the weights. Products are in bf16; a
GB is 10^9 bytes.

    moments    what the optimiser keeps its moments in; without --moments what the trainer chooses
    sequences  of a pass, each of 1,024 tokens (512 with `40m`); "twice" if activations are computed
               twice
    peak       most bytes at any time: all vectors, gradient, activations, logits
    failed     attempts that ran out of memory before that
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

import torch
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from gossamer.protocol.manifest import InnerOptimizer
from gossamer.trainer.inner_step.gradients import Gradients, TrainerError
from gossamer.trainer.inner_step.muon import optimizer_for
from gossamer.trainer.ipc.choices import MomentChoice
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources.passes import Passes, moment_format_on
from tests.trainer.simulated_card import card, decoder_on, device_of, sequences_of

GB = 1000**3
CARDS_GB = (8, 12, 16, 24, 32, 48, 80, 141)


def measure(
    preset: Preset, gigabytes: int, choice: MomentChoice = "auto"
) -> tuple[str, str, str, str]:
    """(moments, sequences, peak, failed) of a trainer on a card of that size."""
    model, num_sequences = preset.model, preset.inner.sequences_per_step
    with card(gigabytes * GB) as memory:
        device = device_of(memory)
        passes = Passes(device, model, num_sequences)
        try:
            decoder = decoder_on(memory, model)
            moments = moment_format_on(device, model, preset.inner, choice)
            optimizer = optimizer_for(decoder, preset.inner, device.coarse_dtype, moments)
            gradients = Gradients(decoder, device, passes, lambda: None)
            first = min(num_sequences, 2 * passes.present.sequences)
            gradients.take(sequences_of(model, first))
            optimizer.step(1e-3)
        except (TrainerError, torch.OutOfMemoryError):
            return "", "does not fit", "", ""
        twice = ", twice" if passes.present.checkpointing else ""
        sequences = f"{passes.present.sequences}{twice}"
        return moments, sequences, f"{memory.peak_bytes / GB:.1f} GB", str(memory.num_failures)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=("40m", "150m", "1.1b"))
    parser.add_argument("--gigabytes", nargs="+", type=int, default=CARDS_GB)
    parser.add_argument("--moments", choices=get_args(MomentChoice), default="auto")
    parser.add_argument("--optimizer", choices=get_args(InnerOptimizer), default="adamw")
    options = parser.parse_args(arguments)
    table = Table("preset", "card", "moments", "sequences", "peak", "failed")
    for name in options.presets:
        preset = PRESETS[name]
        preset = replace(preset, inner=replace(preset.inner, optimizer=options.optimizer))
        for gigabytes in options.gigabytes:
            table.add_row(name, f"{gigabytes} GB", *measure(preset, gigabytes, options.moments))
    Console().print(table)


if __name__ == "__main__":
    main()
