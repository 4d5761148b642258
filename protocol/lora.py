"""Adapters that a run trains in the place of its model's weights (LoRA, arXiv 2106.09685).

A matrix W of the model stays as it is, and the layer computes `W x + alpha / rank * B A x`
(section 4.1). A, (rank, inputs), begins at random and B, (outputs, rank), with zeros, so the first
state is the model itself. A and B are all that the run trains, averages and sends.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Target = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

TARGETS: tuple[Target, ...] = get_args(Target)
"""The matrices of a layer, in flat order."""

RANK_MAX = 1024
"""Published runs have ranks from 1 to 512."""


class LoraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest's `model.lora`."""

    rank: int
    alpha: float
    """The product of both matrices counts `alpha / rank` times."""
    targets: tuple[Target, ...]
    """Matrices of each layer that have adapters, in the order of `TARGETS`."""
    weights: Literal["bf16", "fp32"] | msgspec.UnsetType = msgspec.UNSET
    """Type of the weights that stay as they are, on their way and where matrix products are in half
    precision. Left out in a draft: that of the folder, see `node.runs.founding.importing`."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def item_bytes(self) -> int:
        """Bytes of one of the weights that stay as they are."""
        return 2 if self.weights == "bf16" else 4


def problems_of_lora(lora: LoraConfig) -> list[str]:
    """One sentence for each value that is not allowed."""
    problems = []
    if not 1 <= lora.rank <= RANK_MAX:
        problems.append(f"model.lora.rank is {lora.rank}; allowed: 1 to {RANK_MAX}")
    if not 1e-3 <= lora.alpha <= 1e5:  # nan is not, either
        problems.append(f"model.lora.alpha is {lora.alpha}; allowed: 0.001 to 100000")
    in_order = tuple(target for target in TARGETS if target in lora.targets)
    if not lora.targets or lora.targets != in_order:
        problems.append(
            f"model.lora.targets is {', '.join(lora.targets) or 'empty'}; allowed: one or more of "
            f"{', '.join(TARGETS)}, each once and in this order"
        )
    return problems
