"""`sparse` in one process: SparseLoCo's error feedback, top-k of each block, two bits a value."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from gossamer.protocol.codecs.payloads import SetPayloads, payloads_named
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.manifest import OuterConfig
from tests.benchmarks._losses_arms import Arm
from tests.benchmarks._losses_diloco import Setting, outer_of, train_rounds
from tests.benchmarks._parity_training import Curve


def train_sparse(setting: Setting, arm: Arm) -> Curve:
    """Rounds as in `train_diloco`, the short ones of the warm-up as well."""
    outer = sparse_outer_of(setting, arm)
    sparse = SetPayloads(SparseCodec(outer.top_k))
    if arm.set_members is not None:
        sums = codec("int4", is_widening=True)
        sparse = SetPayloads(sparse.coder, sums, arm.set_members)
    warmup = payloads_named(outer.codec) if arm.dense_warmup else sparse
    return train_rounds(
        replace(setting, outer=outer),
        arm,
        lambda number: warmup if outer.is_warmup(number) else sparse,
    )


def sparse_outer_of(setting: Setting, arm: Arm) -> OuterConfig:
    """The preset's for this mode, with what the arm changes."""
    outer = outer_of(setting, arm)
    rates = arm.rates or setting.sparse_rates
    return msgspec.structs.replace(
        outer,
        learning_rate=rates[0],
        momentum=rates[1],
        top_k=arm.top_k or outer.top_k,
        error_decay=outer.error_decay if arm.error_decay is None else arm.error_decay,
    )
