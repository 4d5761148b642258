"""`sparse` in one process: SparseLoCo's error feedback, top-k of each block, two bits a value."""

from __future__ import annotations

from collections.abc import Sequence

from _losses_arms import Arm
from _losses_diloco import Progress, Setting, Swarm, delay_of, outer_of
from _losses_workers import Worker
from _parity_training import Curve, rounds_of

from gossamer.protocol.chunks import ChunkPlan
from gossamer.protocol.contributions import add_record, reduce, split
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.sparse_codec import DEFAULT_K, SparseCodec
from gossamer.trainer.outer import descend
from gossamer.trainer.sparse import OUTER_RATE, settle


def train_sparse(setting: Setting, arm: Arm) -> Curve:
    """Rounds as in `train_diloco`; the warm-up, whose rounds are short, is sparse as well."""
    outer, total = outer_of(setting, arm), setting.inner.total_steps
    swarm, progress = Swarm(setting, arm.num_peers), Progress(setting)
    coder = SparseCodec(arm.top_k or DEFAULT_K)
    rate = arm.rates[0] if arm.rates is not None else OUTER_RATE
    num_rounds = rounds_of(outer, total)
    for number in range(1, num_rounds + 1):
        first = outer.first_inner_step_of(number)
        steps = min(outer.inner_steps_of(number), total - first)
        active = swarm.workers[: arm.num_peers_at(first / total)]
        tokens = swarm.train_round(number, first, steps, delay_of(arm, steps), active)
        take_round(swarm, active, tokens, outer, coder, rate)
        if not arm.overlap:
            swarm.publish()
        progress.curve.tokens += sum(tokens)
        progress.note(first + steps, swarm.theta)
    return progress.end(swarm.theta, num_rounds)


def take_round(
    swarm: Swarm,
    members: Sequence[Worker],
    tokens: Sequence[int],
    outer: OuterConfig,
    coder: SparseCodec,
    rate: float,
) -> None:
    """Every member's block of each chunk, reduced as all peers do, and the outer step.

    What was not sent is carried on, decayed; what the clipping left out is not.
    """
    plan = ChunkPlan(swarm.theta.size, outer.chunk_elements)
    weights = dict(enumerate(tokens))
    everybody = (1 << len(members)) - 1
    for chunk in range(plan.num_chunks):
        part = plan.range_of(chunk)
        size = part.stop - part.start
        payload = None
        for offset in range(len(members)):
            position = (chunk + offset) % len(members)
            block = coder.encode(members[position].pending[part])
            payload = add_record(payload, position, block)
        assert payload is not None
        records = split(payload, everybody, coder.encoded_bytes(size))
        reduced = reduce(records, weights, size, coder.decode)
        for record in records:
            sent = coder.decode(record.block, size).dense(size)
            settle(members[record.position].pending[part], sent)
        descend(swarm.theta[part], reduced.average, rate, swarm.theta[part])
