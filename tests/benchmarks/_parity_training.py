"""Training arms that need no network: the baselines of `parity.py`, and DiLoCo to tune settings.

All arms read the same text in the same pieces: worker w of k has shards w, w + k, w + 2k ... of the
corpus, and every step takes `sequences_per_step` sequences of each worker. So k workers that train
by themselves and synchronous training with k times the batch do each step on the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from gossamer.node.runs.founding.founding import prepare_data
from gossamer.node.runs.planning.draft import Draft
from gossamer.protocol.manifest import InnerConfig, OuterConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.evaluate import batches_of, evaluate
from gossamer.trainer.inner_step.muon import optimizer_for
from gossamer.trainer.inner_step.schedule import learning_rate_at
from gossamer.trainer.model import decoder_on
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.resources.device import choose_device
from gossamer.trainer.text.data import DataQueue
from gossamer.trainer.text.shard_folder import Push, ShardFolder, put_into
from gossamer.trainer.text.tokenizers.tokens import load_tokenizer
from gossamer.trainer.train import Swarm, Worker

CURVE_TOKENS = 32_768
"""Held-out tokens of a point of the curve; the last point has all of them."""

CURVE_POINTS = 12


@dataclass
class Curve:
    """Held-out loss in nats per token over the inner steps of one worker."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    """Tokens trained by all workers together."""
    rounds: int = 0
    """Outer rounds; 0 where there are none."""
    momenta: list[float] = field(default_factory=list)
    """Momentum of each round's outer step, in arms that note it."""

    def add(self, step: int, loss: float) -> None:
        self.steps.append(step)
        self.losses.append(loss)

    @property
    def final(self) -> float:
        """Loss at the end, on all held-out text."""
        return self.losses[-1]


@dataclass(frozen=True)
class Text(ShardFolder):
    """A corpus as shards on disk."""

    bytes_per_token: float
    """Mean bytes in a token of held-out text: losses are also given in bits per byte."""

    def queue(self, model: ModelConfig, worker: int, num_workers: int) -> DataQueue:
        """The sequences of one worker, in order."""
        queue = DataQueue(model.context, self.token_bytes, model.vocabulary)
        self.push_shards(queue.push, range(worker, len(self.index.shards), num_workers))
        return queue

    def push_spans(self, push: Push, spans: Iterable[Span]) -> None:
        """Queues what a swarm consumed, as the headers of its chain list it.

        A position counts on over the epochs of its partition. The run's partitions hold one shard
        each, as they do wherever a round needs few shards.
        """
        for span in spans:
            shard = self.index.shards[span.partition]
            start = span.start % shard.num_tokens
            path = self.path_of(shard.digest)
            push(span.partition, path, start, start + span.stop - span.start)

    def queue_of(self, model: ModelConfig, spans: Sequence[Span]) -> DataQueue:
        """The sequences in these spans, in their order."""
        queue = DataQueue(model.context, self.token_bytes, model.vocabulary)
        self.push_spans(queue.push, spans)
        return queue


def prepare_text(draft: Draft, folder: Path) -> Text:
    """Cuts the draft's corpus (by default the standard library's sources) into shards on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    data = prepare_data(draft, (), put=put_into(folder))
    text = Text(folder, data.index, data.config.token_bytes, 1.0)
    file = (
        (folder / data.config.tokenizer_digest.hex()).read_bytes()
        if (data.config.tokenizer_digest)
        else b""
    )
    tokenizer = load_tokenizer(data.config.tokenizer, file)
    tokens = np.concatenate(list(text.heldout(draft.model.vocabulary)))
    num_bytes = len(tokenizer.decode(tokens).encode())
    return replace(text, bytes_per_token=num_bytes / len(tokens))


class Heldout:
    """Evaluates flat parameters on held-out text."""

    def __init__(self, text: Text, model: ModelConfig, device: str = "cpu") -> None:
        self._model = model
        self._device = choose_device(device)
        self._decoder = decoder_on(model, self._device)
        self._shards = list(text.heldout(model.vocabulary))

    @torch.no_grad()
    def loss(self, parameters: FloatVector, tokens_max: int = 2**62) -> float:
        """Nats per token. parameters: (num_parameters,)"""
        self._decoder.flat.copy_(torch.from_numpy(parameters))
        batches = batches_of(self._shards, self._model.context, 64, tokens_max)
        loss, _ = evaluate(self._decoder, self._device, batches)
        return loss


def synchronous(
    text: Text,
    model: ModelConfig,
    inner: InnerConfig,
    num_workers: int,
    seed: int,
    *,
    queues: Sequence[DataQueue] = (),
    points: int = CURVE_POINTS,
    device: str = "cpu",
) -> Curve:
    """Plain AdamW, or Muon, with the batches of `num_workers` workers in every step. With one: a
    worker alone.

    Written without `LocalTrainer`, so that "one peer alone equals plain AdamW" says something.

    Args:
        queues: each worker's text; by default the text is dealt out among them.
        points: of the curve; 1 for the end alone.
    """
    heldout, curve = Heldout(text, model, device), Curve()
    chosen = choose_device(device)
    decoder = decoder_on(model, chosen)
    decoder.initialise(seed)
    parameters = list(decoder.parameters())
    optimizer = optimizer_for(decoder, inner, chosen.coarse_dtype)
    queues = queues or [text.queue(model, w, num_workers) for w in range(num_workers)]
    num_targets = num_workers * inner.sequences_per_step * model.context
    every = max(1, inner.total_steps // points)
    for step in range(inner.total_steps):
        for queue in queues:
            batch = queue.take(inner.sequences_per_step)
            assert batch is not None, "the corpus is too small for so many steps"
            sequences = torch.from_numpy(batch.sequences).to(chosen.torch_device)
            with chosen.autocast():
                loss = decoder.loss_sum(sequences) / num_targets
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, inner.clip_norm)
        optimizer.step(learning_rate_at(step, inner))
        for parameter in parameters:
            parameter.grad = None
        if (step + 1) % every == 0 and step + 1 < inner.total_steps:
            curve.add(step + 1, heldout.loss(decoder.flat.cpu().numpy(), CURVE_TOKENS))
    curve.add(inner.total_steps, heldout.loss(decoder.flat.detach().cpu().numpy()))
    curve.tokens = num_targets * inner.total_steps
    return curve


def rounds_of(outer: OuterConfig, total_steps: int) -> int:
    """Rounds that together have at least `total_steps` inner steps."""
    number = 1
    while outer.first_inner_step_of(number + 1) < total_steps:
        number += 1
    return number


def local_rounds(
    text: Text, run: Preset, num_workers: int, seed: int, *, points: int = CURVE_POINTS
) -> Curve:
    """Workers that train rounds by themselves and take outer steps together, in one process, with
    codec fp32. The last round has the steps that are left of the run."""
    run = msgspec.structs.replace(run, outer=msgspec.structs.replace(run.outer, codec="fp32"))
    heldout, curve = Heldout(text, run.model), Curve()
    swarm = Swarm(run, "diloco", seed)
    workers = [Worker(run, text.token_bytes, "cpu") for _ in range(num_workers)]
    for worker, each in enumerate(workers):
        text.push_shards(each.queue.push, range(worker, len(text.index.shards), num_workers))
    total_steps = run.inner.total_steps
    num_rounds = rounds_of(run.outer, total_steps)
    every, next_point = max(1, total_steps // points), 0
    for number in range(1, num_rounds + 1):
        first = run.outer.first_inner_step_of(number)
        steps = min(run.outer.inner_steps_of(number), total_steps - first)
        curve.tokens += sum(swarm.round(number, workers, steps))
        if number < num_rounds and first + steps >= next_point + every:
            next_point = first + steps
            curve.add(first + steps, heldout.loss(swarm.parameters, CURVE_TOKENS))
    curve.rounds = num_rounds
    curve.add(total_steps, heldout.loss(swarm.parameters))
    return curve
