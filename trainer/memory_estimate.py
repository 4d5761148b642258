"""The memory that training takes on a device, by arithmetic. Without torch, which a daemon lacks.

    vectors     parameters and AdamW's two moments (or the momentum of shared steps), all fp32
    gradient    fp32; it exists while a pass adds to it
    weights     under autocast each matrix has a copy in half precision until its gradient is taken
    layers      what the backward pass needs of the forward pass, for each token and layer
    logits      of the loss: three vectors of the vocabulary for each token

The estimate of a pass is a little less than the truth: it has neither the short-lived tensors
within a layer nor the workspaces of libraries. So the largest pass that fits by it is rarely too
small, and at most a few times too large, which halving finds out (`trainer.micro_batch`).

Letters: W width, Q width of all query heads, K of all key (or value) heads, F hidden width, V
vocabulary. An element has c bytes: 2 under autocast, else 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.protocol.manifest import ModelConfig

FLOAT_BYTES = 4
HALF_BYTES = 2


@dataclass(frozen=True)
class Training:
    """How a model is trained, as far as the memory depends on it."""

    model: ModelConfig
    half: bool
    """Whether matrix products are in half precision (autocast)."""

    @property
    def vectors_bytes(self) -> int:
        """Bytes that are held all the time: parameters and AdamW's moments."""
        return 3 * FLOAT_BYTES * self.model.num_parameters

    @property
    def gradient_bytes(self) -> int:
        return FLOAT_BYTES * self.model.num_parameters

    @property
    def weight_copies_bytes(self) -> int:
        return HALF_BYTES * self.model.num_parameters if self.half else 0

    @property
    def layer_token_bytes(self) -> int:
        """Bytes that one layer keeps of one token for its backward pass.

        Both norms keep their input, which is fp32. The products keep their inputs: three of
        attention and two of the MLP have each a copy of their own under autocast, and share one
        without it. Attention keeps queries, keys, values and its output; the MLP keeps both halves
        of the hidden vector, the activation and the product.
        """
        model = self.model
        head_width = model.width // model.num_heads
        queries, keys = model.num_heads * head_width, model.num_kv_heads * head_width
        copies = 5 if self.half else 2
        element = HALF_BYTES if self.half else FLOAT_BYTES
        elements = copies * model.width + 2 * queries + 2 * keys + 4 * model.hidden_width
        return 2 * FLOAT_BYTES * model.width + element * elements

    def logits_bytes(self, num_tokens: int) -> int:
        """Bytes of the loss of so many tokens: logits, their softmax in fp32, and its gradient."""
        element = HALF_BYTES if self.half else 0
        return num_tokens * self.model.vocabulary * (2 * FLOAT_BYTES + element)

    def pass_bytes(self, num_sequences: int, *, is_whole_step: bool) -> int:
        """Bytes that a pass of so many sequences needs besides the vectors.

        Args:
            is_whole_step: whether it is the only one of its step. Then the gradient comes into
                being while the rest goes, else it is there already.
        """
        num_tokens = num_sequences * self.model.context
        kept = num_tokens * self.model.num_layers * self.layer_token_bytes
        work = self.weight_copies_bytes + kept + self.logits_bytes(num_tokens)
        return max(work, self.gradient_bytes) if is_whole_step else work + self.gradient_bytes

    def largest_pass(self, free_bytes: int, sequences_max: int, num_sequences: int) -> int:
        """The largest of `sizes_from(sequences_max)` whose pass fits; 0 if none does.

        Args:
            free_bytes: memory beside the vectors.
            sequences_max: most sequences of a pass.
            num_sequences: sequences of a step.
        """
        for size in sizes_from(sequences_max):
            if self.pass_bytes(size, is_whole_step=size >= num_sequences) <= free_bytes:
                return size
        return 0


def sizes_from(largest: int) -> list[int]:
    """`largest`, and below it all powers of two, down to 1."""
    powers = [1 << power for power in reversed(range(max(0, largest - 1).bit_length()))]
    return [largest, *powers] if largest > 0 else []
