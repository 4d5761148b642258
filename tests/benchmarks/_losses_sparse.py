"""`sparse` in one process: SparseLoCo's error feedback, top-k of each block, two bits a value."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from _losses_arms import Arm
from _losses_diloco import Progress, Setting, Swarm, delay_of, outer_of
from _losses_ring import ring_average
from _losses_workers import Worker
from _parity_training import Curve, rounds_of

from gossamer.protocol.chunks import ChunkPlan
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.payloads import SetPayloads, SumPayloads, payloads_named
from gossamer.protocol.sparse_codec import SparseCodec
from gossamer.trainer.outer import nesterov


def train_sparse(setting: Setting, arm: Arm) -> Curve:
    """Rounds as in `train_diloco`, the short ones of the warm-up as well."""
    outer, total = sparse_outer_of(setting, arm), setting.inner.total_steps
    swarm, progress = Swarm(setting, arm.num_peers), Progress(setting)
    sparse = SetPayloads(SparseCodec(outer.top_k))
    warmup = payloads_named(outer.codec) if arm.dense_warmup else sparse
    num_rounds = rounds_of(outer, total)
    for number in range(1, num_rounds + 1):
        first = outer.first_inner_step_of(number)
        steps = min(outer.inner_steps_of(number), total - first)
        active = swarm.workers[: arm.num_peers_at(first / total)]
        delay = delay_of(arm, outer, number, steps)
        tokens = swarm.train_round(number, first, steps, delay, active)
        payloads = warmup if outer.is_warmup(number) else sparse
        take_round(swarm, number, active, tokens, outer, payloads)
        progress.curve.tokens += sum(tokens)
        progress.note(first + steps, swarm.theta)
    return progress.end(swarm.theta, num_rounds)


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


def take_round(
    swarm: Swarm,
    number: int,
    members: Sequence[Worker],
    tokens: Sequence[int],
    outer: OuterConfig,
    payloads: SetPayloads | SumPayloads,
) -> None:
    """The ring, and the outer step."""
    plan = ChunkPlan(swarm.theta.size, outer.chunk_elements)
    pendings = [member.pending for member in members]
    average = ring_average(pendings, tokens, plan, payloads, outer.error_decay)
    rate, mu = outer.rates_of(number, len(members))
    theta, momentum = swarm.theta, swarm.momentum
    nesterov(theta, momentum, average.values, rate, mu, theta, momentum)
