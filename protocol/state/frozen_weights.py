"""The weights that a run of adapters leaves as they are (`model.lora`), as blocks.

The flat vector of the whole model (`parameter_layout.layout_of(model.whole)`) is written in the
type that `model.lora.weights` names, little-endian, and cut into blocks of `BLOCK_BYTES_MAX`. A
block of its own lists their digests in order. The manifest names it (`data.frozen_digest`), so the
weights are as fixed as everything else of the run, and are fetched once.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from gossamer.protocol import limits
from gossamer.protocol.codecs.bfloat16 import from_bfloat16, to_bfloat16
from gossamer.protocol.decoding import decoded
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.digest import FloatVector, float_bytes

_decoder = msgspec.msgpack.Decoder(tuple[bytes, ...])


def decode_list(data: bytes, model: ModelConfig) -> tuple[Digest, ...]:
    """Digests of the blocks of the weights, in order. Raises MalformedError if the bytes are not
    the list of the weights of this model."""
    digests = decoded(_decoder, data, "a list of weights")
    num_blocks = -(-model.frozen_bytes // limits.BLOCK_BYTES_MAX)
    if len(digests) != num_blocks or any(len(digest) != DIGEST_BYTES for digest in digests):
        raise MalformedError(f"a list of weights that does not name {num_blocks} blocks")
    return tuple(map(Digest, digests))


def blocks_of(weights: FloatVector, lora: LoraConfig) -> Iterator[bytes]:
    """The blocks of the weights, (num_parameters,) of the whole model, which are finite."""
    num_elements = limits.BLOCK_BYTES_MAX // lora.item_bytes
    for start in range(0, len(weights), num_elements):
        part = weights[start : start + num_elements]
        if lora.weights == "bf16":
            yield to_bfloat16(part).astype("<u2").tobytes()
        else:
            yield bytes(float_bytes(part))


def values_of(block: bytes, lora: LoraConfig) -> FloatVector:
    """A copy of the values of a block in fp32, exact.

    Raises:
        ValueError: they are not finite, or end in the middle of one.
    """
    if lora.weights == "bf16":
        values = from_bfloat16(np.frombuffer(block, dtype="<u2"))
    else:
        values = np.frombuffer(block, dtype="<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("weights that are not finite")
    return values
