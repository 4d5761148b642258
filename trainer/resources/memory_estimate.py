"""The memory that training takes on a device, by arithmetic. Without torch, which a daemon lacks.

    vectors     parameters, fp32, and AdamW's two moments (or one momentum: of shared steps, or of
                the matrices that Muon has), fp32 or less
    gradient    fp32; it exists while a pass adds to it
    frozen      with adapters (`model.lora`), the model's weights, without gradient and moments:
                bf16 where they came so and products are in half precision, else fp32
    weights     under autocast each matrix has a copy in half precision until its gradient is taken
    layers      what the backward pass needs of the forward pass, for each token and layer. With
                checkpointing it is the layer's input, and the rest for one layer at a time
    loss        logits of one chunk of tokens, gradients of the head and of its input, and what a
                chunk adds to that of the head
    embedding   where it is the head as well, its gradient is added to the head's in a third vector,
                when the layers are done

The estimate is a little less than the truth: it has neither the short-lived tensors within a layer
nor the workspaces of libraries. So the largest pass that fits by it is rarely too small, and at
most a few times too large, which halving finds out (`passes`).

Letters: W width, Q width of all query heads, K of all key (or value) heads, F hidden width, V
vocabulary. An element has c bytes: 2 under autocast, else 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc.choices import MomentFormat

FLOAT_BYTES = 4

MOMENT_BLOCK = 256
"""Elements of a block of 8-bit moments, which has one fp32 scale. The paper has 2,048; bitsandbytes
has 256, for less error."""

# Logits that exist at once: 128 MiB of fp32 on a GPU, whose memory is short, and 512 MiB on a CPU,
# where a pass of at most 4,096 tokens has no more with a vocabulary of up to 32 K.
GPU_LOGITS_MAX = 2**25
CPU_LOGITS_MAX = 2**27

# Tokens of one pass on a GPU at most. It is busy with far fewer, and must show that it gets on
# after every pass.
GPU_TOKENS_MAX = 256 * 1024

# With fewer tokens in a pass on a GPU the layers compute their activations twice (checkpointing),
# so that more fit. That costs a third of the speed; so small a pass costs as much, because each
# pass reads and writes all weights and gradients. (On a CPU small passes cost little.)
GPU_FEW_TOKENS = 2 * 1024
HALF_BYTES = 2

_FIT_SHARE = 0.95
"""Part of the free memory that the choice of moments counts on: the estimate is a little less than
the truth, and moments cannot be made smaller when memory has run out."""

_PASS_SHARE = 0.98
"""Part of the free memory that a pass may need by the estimate, for the same reason. Simulated
steps of `150m` and `1.1b` in bf16 take 1 to 4 % more memory in all than it says."""


@dataclass(frozen=True)
class Training:
    """How a model is trained, as far as the memory depends on it."""

    model: ModelConfig
    half: bool
    """Whether matrix products are in half precision (autocast)."""
    logits_max: int = GPU_LOGITS_MAX
    """Logits that exist at once."""
    residual_bytes: int = FLOAT_BYTES
    """Bytes of an element of the sums between the layers, see `Device.residual_dtype`."""
    moment_elements: int | None = None
    """Elements of the vectors besides the parameters that are held all the time; see
    `moment_elements`. None: those of AdamW."""
    moment_format: MomentFormat = "fp32"

    @property
    def vectors_bytes(self) -> int:
        """Bytes that are held all the time."""
        num_parameters, elements = self.model.num_parameters, self.moment_elements
        if elements is None:
            elements = 2 * num_parameters
        kept = moment_bytes(elements, self.moment_format)
        return FLOAT_BYTES * num_parameters + kept + self.frozen_bytes

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the weights that adapters leave as they are."""
        model = self.model
        if not model.lora:
            return 0
        return model.frozen_bytes if self.half else FLOAT_BYTES * model.whole.num_parameters

    @property
    def gradient_bytes(self) -> int:
        return FLOAT_BYTES * self.model.num_parameters

    @property
    def weight_copies_bytes(self) -> int:
        if not self.half:
            return 0
        model, whole = self.model, self.model.whole.num_parameters
        if not model.tied_embeddings:  # then the embedding is in no product
            whole -= model.vocabulary * model.width
        if not model.lora:
            return HALF_BYTES * whole
        frozen = 0 if model.lora.item_bytes == HALF_BYTES else whole
        return HALF_BYTES * (model.num_parameters + frozen)

    @property
    def layer_token_bytes(self) -> int:
        """Bytes that one layer keeps of one token for its backward pass.

        Both norms keep their input in fp32. The products keep their inputs: those behind one norm
        share it, but where they are in half precision and the sums between the layers are not, the
        five of attention and MLP have copies of their own. Attention keeps queries, keys, values
        and its output; the MLP both halves of the hidden vector, the activation and the product.
        """
        model = self.model
        queries, keys = model.query_width, model.key_width
        element = HALF_BYTES if self.half else FLOAT_BYTES
        copies = 2 if self.residual_bytes == element else 5
        elements = copies * model.width + 2 * queries + 2 * keys + 4 * model.hidden_width
        return 2 * FLOAT_BYTES * model.width + element * elements

    def loss_bytes(self, num_tokens: int) -> int:
        """Bytes that the loss of so many tokens takes at its peak, without its input."""
        model, element = self.model, HALF_BYTES if self.half else FLOAT_BYTES
        logits = model.vocabulary * min(num_tokens, max(1, self.logits_max // model.vocabulary))
        head, rows = self._head_elements, model.width * num_tokens
        # The logits in fp32 are gone when what a chunk adds to the head's gradient comes.
        chunk = element * logits + max(FLOAT_BYTES * logits, element * head)
        return chunk + FLOAT_BYTES * head + self.residual_bytes * rows

    @property
    def _head_elements(self) -> int:
        """Elements of the head that have a gradient."""
        return 0 if self.model.lora else self.model.vocabulary * self.model.width

    def pass_bytes(
        self, num_sequences: int, *, checkpointing: bool = False, is_whole_step: bool = False
    ) -> int:
        """Bytes that a pass of so many sequences needs besides the vectors.

        Args:
            checkpointing: whether a layer keeps its input alone.
            is_whole_step: whether it is the only one of its step. Then the gradient comes into
                being while the rest goes, else it is there already.
        """
        num_tokens, num_layers = num_sequences * self.model.context, self.model.num_layers
        layer = num_tokens * self.layer_token_bytes
        loss = self.loss_bytes(num_tokens)
        if checkpointing:
            loss += HALF_BYTES * self._head_elements if self.half else 0  # its copy
            kept = num_tokens * num_layers * self.residual_bytes * self.model.width
            work = kept + max(layer, loss)
        else:
            work = self.weight_copies_bytes + num_layers * layer + loss
        # The gradient of a tied embedding comes last, and is added to the head's in a third vector.
        tied = FLOAT_BYTES * self._head_elements if self.model.tied_embeddings else 0
        if is_whole_step:
            return max(work, self.gradient_bytes + 2 * tied)
        return self.gradient_bytes + max(work, 3 * tied)

    def largest_pass(
        self, free_bytes: int, sequences_max: int, num_sequences: int, *, checkpointing: bool
    ) -> int:
        """The largest of `sizes_from(sequences_max)` whose pass fits; 0 if none does.

        Args:
            free_bytes: memory beside the vectors.
            sequences_max: most sequences of a pass.
            num_sequences: sequences of a step.
        """
        for size in sizes_from(sequences_max):
            is_whole_step = size >= num_sequences
            need = self.pass_bytes(size, checkpointing=checkpointing, is_whole_step=is_whole_step)
            if need <= _PASS_SHARE * free_bytes:
                return size
        return 0


def moment_bytes(num_elements: int, moment_format: MomentFormat) -> int:
    """Bytes of so many elements of moments."""
    if moment_format == "8bit":
        return num_elements + FLOAT_BYTES * -(-num_elements // MOMENT_BLOCK)
    return num_elements * (FLOAT_BYTES if moment_format == "fp32" else HALF_BYTES)


def fitting_moments(
    training: Training, free_bytes: int, num_sequences: int, few_sequences: int
) -> MomentFormat:
    """The first of `MomentFormat` with which a small pass fits; the last one if none does.

    Args:
        training: the format in it does not matter.
        free_bytes: memory for everything, the vectors included.
        num_sequences: sequences of a step.
        few_sequences: sequences of a pass that is too small without checkpointing.
    """
    formats: tuple[MomentFormat, ...] = get_args(MomentFormat)
    for each in formats:
        vectors = replace(training, moment_format=each).vectors_bytes
        need = training.pass_bytes(
            few_sequences, checkpointing=True, is_whole_step=few_sequences >= num_sequences
        )
        if vectors + need <= _FIT_SHARE * free_bytes:
            return each
    return formats[-1]


def moment_elements(model: ModelConfig, inner: InnerConfig, *, shares_steps: bool = False) -> int:
    """Elements that the optimiser keeps: two for a parameter of AdamW, one for one of Muon.

    Args:
        shares_steps: whether peers share every step (`distro`). A trainer then keeps one momentum.
    """
    if shares_steps:
        return model.num_parameters
    return 2 * model.num_parameters - (model.hidden_matrices if inner.uses_muon else 0)


def sizes_from(largest: int) -> list[int]:
    """`largest`, and below it all powers of two, down to 1."""
    powers = [1 << power for power in reversed(range(max(0, largest - 1).bit_length()))]
    return [largest, *powers] if largest > 0 else []


def logits_max_of(device_type: str) -> int:
    """The most logits that exist at once on a device of that type (torch's word for it)."""
    return CPU_LOGITS_MAX if device_type == "cpu" else GPU_LOGITS_MAX
