"""`distro` in one process: every step is shared (`trainer.demo`)."""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from _losses_arms import Arm
from _losses_diloco import Progress, Setting
from _parity_training import Curve

from gossamer.trainer.data import DataQueue
from gossamer.trainer.dct import ModelDct
from gossamer.trainer.demo import Momentum
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets import SMALL_DISTRO
from gossamer.trainer.shared_step import shared_rate_at, shared_step


def train_distro(setting: Setting, arm: Arm) -> Curve:
    """One batch of each peer a step, as `synchronous` with as many peers."""
    model, inner = setting.model, setting.inner
    inner = msgspec.structs.replace(
        inner, learning_rate=arm.learning_rate or SMALL_DISTRO.learning_rate
    )
    decoder, progress = Decoder(model), Progress(setting)
    decoder.initialise(setting.seed)
    theta = decoder.flat.numpy().copy()
    parameters = list(decoder.parameters())
    dct = ModelDct(model)
    top_k = arm.top_k or SMALL_DISTRO.top_k
    decay = SMALL_DISTRO.decay if arm.decay is None else arm.decay
    peers = [Momentum(dct, top_k=top_k, decay=decay) for _ in range(arm.num_peers)]
    queues = [_queue(setting, worker) for worker in range(arm.num_peers)]
    num_targets = inner.sequences_per_step * model.context
    last_rate = 0.0
    for step in range(inner.total_steps):
        rate = shared_rate_at(step, inner)
        updates = []
        for peer, queue in zip(peers, queues, strict=True):
            start = torch.from_numpy(theta)
            decoder.flat.copy_(peer.lookahead(start, last_rate) if arm.lookahead else start)
            batch = queue.take(inner.sequences_per_step)
            assert batch is not None, "the corpus is too small for so many steps"
            loss = decoder.loss_sum(torch.from_numpy(batch.sequences)) / num_targets
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, inner.clip_norm)
            peer.add(torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None]))
            for parameter in parameters:
                parameter.grad = None
            updates.append(peer.offer())
            peer.taken()
        shared_step(dct.grids, theta, updates, rate, inner.weight_decay, theta)
        assert np.isfinite(theta).all()
        last_rate = rate
        progress.curve.tokens += num_targets * arm.num_peers
        progress.note(step + 1, theta)
    return progress.end(theta, 0)


def _queue(setting: Setting, worker: int) -> DataQueue:
    text, model = setting.text, setting.model
    queue = DataQueue(model.context, text.token_bytes, model.vocabulary)
    for number in setting.deal(worker):
        shard = text.index.shards[number]
        queue.push(number, text.path_of(shard.digest), 0, shard.num_tokens)
    return queue
