"""The whole algorithm in one process: what a swarm computes, without the swarm.

    python -m gossamer.trainer.train --peers 4 --codec int8

This is DiLoCo (arXiv 2311.08105, algorithm 1), built of the parts that the daemons use:

1. Text becomes tokens, and tokens become shards. Each of k workers reads shards of its own.
2. Inner steps: every worker copies the shared parameters theta, and takes H steps alone: of Muon
   for the matrices of the layers and of AdamW for all else, or of AdamW for all (`--optimizer
   adamw`, the default with `sparse`).
3. Pseudo-gradient: theta - local_parameters, what the worker has learnt, is used like a gradient.
4. The ring averages the pseudo-gradients, weighted with the workers' tokens, each worker's capped
   at twice the lower median. Each chunk goes from worker to worker; each adds its part and encodes
   the sum again. A coarse codec rounds:
   a worker adds its rounding errors to its next pseudo-gradient (error feedback, arXiv 1901.09847).
   With `--codec sparse` only the largest values are sent (SparseLoCo, arXiv 2508.15706). With
   `--trust open` each worker's chunk stays by itself, and the average of all is a robust one.
5. Outer step: Nesterov momentum m on the average g, m' = mu * m + g, theta' = theta - rate * (g +
   mu * m'). Rounds of the warm-up take the plain average; some presets choose mu in every round.

Daemons add nothing to this arithmetic: real swarms reach the same bits
(tests/e2e/rounds/test_replay.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from msgspec.structs import replace

from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.payloads import SPARSE, payloads_of
from gossamer.protocol.codecs.tensor_codecs import codec_names
from gossamer.protocol.manifest import InnerOptimizer, Manifest, Trust
from gossamer.protocol.rounds.ring.set_parts import ring_average
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, index_of
from gossamer.protocol.state.outer_momentum import rates_of_round
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.state.run_end import RunEnd, SchedulePlace
from gossamer.protocol.sync_modes import SyncMode
from gossamer.trainer.evaluate import batches_of, evaluate
from gossamer.trainer.inner_step.muon import optimizer_for
from gossamer.trainer.inner_step.optimizer import clip, gradient_norm
from gossamer.trainer.inner_step.schedule import learning_rate_of
from gossamer.trainer.ipc.choices import MomentFormat
from gossamer.trainer.model import Decoder, decoder_on
from gossamer.trainer.presets.modes import adapted, default_optimizer
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import DEFAULT_PRESET, PRESETS
from gossamer.trainer.resources.device import take_device
from gossamer.trainer.text.data import DataError, DataQueue, Tokens
from gossamer.trainer.text.shard_folder import cut_text


class Worker:
    """One peer: replica of the model, optimiser, text, and work that no average has taken."""

    def __init__(
        self,
        run: Preset | Manifest,
        token_bytes: int,
        device: str = "auto",
        moment_format: MomentFormat = "fp32",
    ) -> None:
        self._inner, self._context = run.inner, run.model.context
        self._device = take_device(device, run.model.width)
        if self._device.needs_loss_scale:  # a daemon's trainer scales the loss of an old card
            self._device = dataclasses.replace(self._device, precision="fp32")
        self._decoder = decoder_on(run.model, self._device)
        self._optimizer = optimizer_for(
            self._decoder, run.inner, self._device.coarse_dtype, moment_format
        )
        self.queue = DataQueue(run.model.context, token_bytes, run.model.vocabulary)
        self.pending = np.zeros(run.model.num_parameters, np.float32)

    def train(
        self,
        parameters: FloatVector,
        first_step: int,
        num_steps: int,
        place: SchedulePlace | None = None,
    ) -> int:
        """Adds the work of inner steps from `parameters` to `pending`; returns their tokens. The
        learning rate follows the planned `first_step`, or `place` in a run that counts tokens."""
        self._decoder.flat.copy_(torch.from_numpy(parameters))
        for step in range(num_steps):
            self._inner_step(learning_rate_of(first_step, step, self._inner, place))
        self.pending += parameters - self._decoder.flat.cpu().numpy()  # the pseudo-gradient
        return num_steps * self._inner.sequences_per_step * self._context

    def _inner_step(self, learning_rate: float) -> None:
        batch = self.queue.take(self._inner.sequences_per_step)
        if batch is None:
            raise DataError("the text is too short for so many steps: name more, or train less")
        tokens = torch.from_numpy(batch.sequences).to(self._device.torch_device)  # (B, T + 1)
        for part in torch.split(tokens, self._device.micro_batch_of(len(tokens), self._context)):
            with self._device.autocast():
                loss = self._decoder.loss_sum(part) / (len(tokens) * self._context)
            loss.backward()  # type: ignore[no-untyped-call]
        norm = gradient_norm(self._decoder.parameters()).item()
        clip(self._decoder.parameters(), norm, self._inner.clip_norm)
        self._optimizer.step(learning_rate)
        self._decoder.zero_grad()

    def loss(self, parameters: FloatVector, shards: Sequence[Tokens]) -> float:
        """The loss of `parameters` in nats per token, on the first 32,768 tokens of some shards."""
        self._decoder.flat.copy_(torch.from_numpy(parameters))
        batches = batches_of(shards, self._context, 8, 32_768)
        return evaluate(self._decoder, self._device, batches)[0]


class Swarm:
    """The state that all peers hold: parameters and outer momentum, each (num_parameters,)."""

    def __init__(
        self, run: Preset | Manifest, sync: SyncMode, seed: int, trust: Trust = "members"
    ) -> None:
        assert run.outer.fragments == 1, "every round averages all parameters here"
        self._run, self._payloads = run, payloads_of(sync, run.outer, trust)
        self.plan = ChunkPlan(run.model.num_parameters, run.outer.chunk_elements)
        decoder = Decoder(run.model)
        decoder.initialise(seed)
        self.parameters = decoder.flat.numpy().copy()
        self.momentum = np.zeros_like(self.parameters)
        self._end = RunEnd(run.model, run.inner, run.outer)
        self._tokens = self._num_contributors = 0

    def round(self, number: int, members: Sequence[Worker], num_steps: int = 0) -> list[int]:
        """One round, members in ring order; returns their tokens. `num_steps` 0: the run's own."""
        outer, parameters, momentum = self._run.outer, self.parameters, self.momentum
        # Steps 2 and 3 of the docstring above.
        steps = (outer.first_inner_step_of(number), num_steps or outer.inner_steps_of(number))
        place = self._end.place_of(self._tokens, self._num_contributors)
        tokens = [worker.train(parameters, *steps, place) for worker in members]
        self._tokens, self._num_contributors = self._tokens + sum(tokens), len(members)
        # Step 4. It leaves in each worker's `pending` what that carries on: its rounding errors.
        work = [worker.pending for worker in members]
        norms = [norm_of(each) for each in work]
        average = ring_average(work, tokens, self.plan, self._payloads, outer.error_decay)
        # Step 5. How far the workers agree, by norms and average, may choose the momentum.
        chunks = [self.plan.range_of(chunk) for chunk in range(self.plan.num_chunks)]
        pieces = ((average[chunk], momentum[chunk]) for chunk in chunks)
        rates = rates_of_round(outer, self._run.inner.total_steps, number, pieces, norms)
        rate, mu, average = rates.learning_rate, rates.momentum, rates.of_average(average)
        nesterov(parameters, momentum, average, rate, mu, parameters, momentum)
        return tokens


def main() -> None:
    """Trains as the command line says, and prints the held-out loss of every round."""
    parser = argparse.ArgumentParser("gossamer.trainer.train", description=__doc__.split("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default=DEFAULT_PRESET)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--inner-steps", type=int, help="of a round after the warm-up")
    parser.add_argument("--codec", choices=(*codec_names(), SPARSE), default="fp16")
    parser.add_argument("--trust", choices=get_args(Trust), default="members")
    parser.add_argument("--optimizer", choices=get_args(InnerOptimizer), help="not the default")
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="files and folders")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sync: SyncMode = "sparse" if options.codec == SPARSE else "diloco"
    optimizer = options.optimizer or default_optimizer(sync, trust=options.trust)
    run = adapted(PRESETS[options.preset], sync, optimizer)
    steps = options.inner_steps or run.outer.inner_steps
    outer = replace(run.outer, codec=options.codec, inner_steps=steps)
    run = replace(run, outer=outer)
    with tempfile.TemporaryDirectory() as folder:
        text = cut_text(options.text, Path(folder), run.tokenizer, run.model, options.seed)
        swarm = Swarm(run, sync, options.seed, options.trust)
        workers = [Worker(run, text.token_bytes) for _ in range(options.peers)]
        for number, worker in enumerate(workers):
            text.push_shards(worker.queue.push, range(number, len(text.index.shards), len(workers)))
        heldout = list(text.heldout(run.model.vocabulary))
        for number in range(1, options.rounds + 1):
            tokens, loss = swarm.round(number, workers), workers[0].loss(swarm.parameters, heldout)
            state = index_of(swarm.parameters, swarm.momentum, swarm.plan).digest.hex()
            said = f"round {number}: {sum(tokens):,} tokens, loss {loss:.4f}, state {state}"
            print(said, flush=True)  # into a pipe, too


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:  # of the text or its length: a sentence for people
        sys.exit(str(error))
