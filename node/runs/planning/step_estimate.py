"""The time of an inner step on a card that people have at home, by arithmetic.

    operations  6 for each token and parameter of a matrix (2 forward, 4 backward), and for
                attention 6 times context and query width a layer: half of all pairs, since it is
                causal. Weights that adapters leave as they are have no gradient: 4 instead of 6.
                Where activations are computed twice, the layers' forward pass counts twice
    update      with Muon the products of its iterations, once a step: a tenth of a step of `1.1b`.
                AdamW reads and writes its vectors, which counts as nothing
    rate        `CARD_OPERATIONS` a second, of which training reaches `CARD_SHARE`

No card has shown these figures yet. `docs/benchmarks` says what was measured.
"""

from __future__ import annotations

from gossamer.node.machine.capacity import DeviceMemory
from gossamer.node.runs.planning.device_fit import device_fit
from gossamer.node.runs.planning.draft import Draft
from gossamer.protocol.lora import TARGETS
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.model_config import ModelConfig

CARD_BYTES = 24 * 2**30
"""Memory of the card: that of a GeForce RTX 4090 or 3090."""

DESKTOP_BYTES = 2 * 10**9
"""Memory of it that its owner's desktop and browser take, supposed."""

CARD_OPERATIONS = 165e12
"""bf16 operations a second of a GeForce RTX 4090, dense, with sums in fp32, by its maker. A 3090
has 71e12."""

CARD_SHARE = 0.4
"""Part of these that a training step reaches, supposed: large matrices reach half and more, and
optimiser, norms and logits take time without counting here."""

MUON_ITERATIONS = 5
"""Part of what `muon` means in a manifest (SPEC.md)."""


def step_seconds(run: Manifest | Draft) -> float:
    """Returns the seconds of one inner step of a run on such a card."""
    card = DeviceMemory("a card of 24 GB", CARD_BYTES, CARD_BYTES - DESKTOP_BYTES)
    twice = device_fit(run, card).checkpointing
    num_tokens = run.inner.sequences_per_step * run.model.context
    operations = num_tokens * operations_of_token(run.model, twice=twice)
    if run.inner.uses_muon:
        operations += operations_of_muon(run.model)
    return operations / (CARD_OPERATIONS * CARD_SHARE)


def operations_of_token(model: ModelConfig, *, twice: bool) -> float:
    """Returns the operations of a step for each of its tokens.

    Args:
        twice: whether the layers' activations are computed twice.
    """
    attention = model.num_layers * model.context * model.query_width
    layers = 2.0 * (model.hidden_matrices + attention)
    head = 2.0 * model.vocabulary * model.width
    # The products of adapters are less than a hundredth of those of their matrices.
    passes = 2 if model.lora else 3
    return passes * (layers + head) + (layers if twice else 0.0)


def operations_of_muon(model: ModelConfig) -> float:
    """Returns the operations of one update of Muon, which do not grow with the tokens of a step."""
    operations = 0.0
    for target in TARGETS:
        shorter, longer = sorted(model.matrix_shape(target))
        # X X' of a matrix X, the square of that, and both times X.
        products = 2 * shorter**2 * longer + 2 * shorter**3 + 2 * shorter**2 * longer
        operations += model.num_layers * MUON_ITERATIONS * products
    return operations
