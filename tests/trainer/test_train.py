"""The algorithm in one process, against DiLoCo written down once more with torch's own parts."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from gossamer.protocol.state import outer_momentum
from gossamer.protocol.sync_modes import SyncMode
from gossamer.trainer import local_trainer, train
from gossamer.trainer.inner_step.schedule import learning_rate_at
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.modes import adapted
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources.device import Device
from gossamer.trainer.text.data import DataError
from gossamer.trainer.text.shard_folder import ShardFolder, cut_text
from gossamer.trainer.train import Swarm, Worker
from tests.support.local_rounds import begin

NUM_WORKERS = 3
FILES = sorted(Path(sysconfig.get_path("stdlib"), "json").glob("*.py"))


def small(sync: SyncMode = "diloco", **outer: object) -> Preset:
    """Rounds of 2 and then of 6 steps, of a model with some ten thousand parameters."""
    tiny = adapted(PRESETS["tiny"], sync)
    defaults = {
        "inner_steps": 6,
        "warmup_rounds": 2,
        "warmup_inner_steps": 2,
        "chunk_elements": 1024,
        "codec": "fp32",
    }
    return replace(
        tiny,
        model=replace(
            tiny.model, num_layers=1, width=32, num_heads=2, num_kv_heads=2, hidden_width=64
        ),
        inner=replace(tiny.inner, warmup_steps=4, total_steps=40, sequences_per_step=4),
        outer=replace(tiny.outer, **{**defaults, **outer}),
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ShardFolder:
    """Some modules of the standard library, as bytes."""
    return cut_text(FILES, tmp_path_factory.mktemp("shards"), "bytes", small().model, 1)


def workers_of(run: Preset, text: ShardFolder, num_workers: int = NUM_WORKERS) -> list[Worker]:
    workers = [Worker(run, text.token_bytes, "cpu") for _ in range(num_workers)]
    for number, worker in enumerate(workers):
        text.push_shards(worker.queue.push, range(number, len(text.index.shards), num_workers))
    return workers


def trained(
    run: Preset, text: ShardFolder, *, rounds: int, sync: SyncMode = "diloco", seed: int = 1
) -> Swarm:
    swarm, workers = Swarm(run, sync, seed), workers_of(run, text)
    for number in range(1, rounds + 1):
        swarm.round(number, workers)
    return swarm


def loss_of(run: Preset, parameters: np.ndarray, text: ShardFolder) -> float:
    return Worker(run, text.token_bytes, "cpu").loss(parameters, list(text.heldout(256)))


@pytest.mark.parametrize("codec", ["fp32", "int8", "sparse"])
def test_the_loss_falls_and_a_seed_has_one_result(text: ShardFolder, codec: str) -> None:
    sync: SyncMode = "sparse" if codec == "sparse" else "diloco"
    run = small(sync, codec="int8" if codec == "int8" else "fp32")
    swarm = trained(run, text, rounds=5, sync=sync)
    start = Swarm(run, sync, 1).parameters
    assert loss_of(run, start, text) == pytest.approx(np.log(256), rel=0.05)
    assert loss_of(run, swarm.parameters, text) < 0.8 * loss_of(run, start, text)
    again, other = (trained(run, text, rounds=5, sync=sync, seed=seed) for seed in (1, 2))
    assert again.parameters.tobytes() == swarm.parameters.tobytes()
    assert again.momentum.tobytes() == swarm.momentum.tobytes()
    assert (other.parameters != swarm.parameters).any()


def reference(run: Preset, text: ShardFolder, rounds: int) -> np.ndarray:
    """DiLoCo's algorithm 1 with torch.optim.AdamW and torch.optim.SGD; weights as they are equal
    for workers with equally many tokens. Shares nothing of `train` but model and text."""
    initial = Decoder(run.model)
    initial.initialise(1)
    parameters = initial.flat.clone().requires_grad_()
    last_average = torch.zeros_like(parameters)
    outer = torch.optim.SGD([parameters], lr=1.0)
    queues = [worker.queue for worker in workers_of(run, text)]
    replicas = [Decoder(run.model) for _ in queues]
    optimizers = []
    for replica in replicas:
        matrices = [p for p in replica.parameters() if p.ndim > 1]
        gains = [p for p in replica.parameters() if p.ndim == 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices},
            {"params": gains, "weight_decay": 0.0},
        ]
        betas = (run.inner.beta1, run.inner.beta2)
        decay = run.inner.weight_decay
        optimizers.append(
            torch.optim.AdamW(groups, betas=betas, eps=run.inner.epsilon, weight_decay=decay)
        )
    step = 0
    for number in range(1, rounds + 1):
        is_warmup = number <= run.outer.warmup_rounds
        num_steps = run.outer.warmup_inner_steps if is_warmup else run.outer.inner_steps
        for queue, replica, optimizer in zip(queues, replicas, optimizers, strict=True):
            with torch.no_grad():
                replica.flat.copy_(parameters)
            for inner_step in range(step, step + num_steps):
                batch = queue.take(run.inner.sequences_per_step)
                assert batch is not None
                sequences = torch.from_numpy(batch.sequences)
                optimizer.zero_grad()
                logits = replica(sequences[:, :-1]).flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, sequences[:, 1:].flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(replica.parameters(), run.inner.clip_norm)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate_at(inner_step, run.inner)
                optimizer.step()
        step += num_steps
        mean = torch.stack([replica.flat for replica in replicas]).mean(0)
        parameters.grad = parameters.detach() - mean
        if not is_warmup:
            group = outer.param_groups[0]
            group.update(lr=run.outer.learning_rate, momentum=run.outer.momentum, nesterov=True)
            state = outer.state[parameters]
            # The last average of the warm-up is in the momentum when it is first used.
            state.setdefault("momentum_buffer", last_average.clone())
        last_average = parameters.grad.clone()
        outer.step()
    return parameters.detach().numpy()


def adamw(run: Preset) -> Preset:
    return replace(run, inner=replace(run.inner, optimizer="adamw"))


def test_it_is_diloco(text: ShardFolder) -> None:
    run = adamw(small(learning_rate=0.7, momentum=0.9))
    found, expected = trained(run, text, rounds=5).parameters, reference(run, text, 5)
    start = Swarm(run, "diloco", 1).parameters
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected - start)
    assert error < 1e-3
    others = (
        small(learning_rate=0.7, momentum=0.8),
        small(learning_rate=0.7, momentum=0.9, inner_steps=5),
    )
    for other in map(adamw, others):
        wrong = trained(other, text, rounds=5).parameters
        assert np.linalg.norm(wrong - expected) / np.linalg.norm(expected - start) > 1e-2


class _AsACard(Device):
    """A CPU with the types of a card: also the sums between the layers are bf16."""

    @property
    def residual_dtype(self) -> torch.dtype:
        return torch.bfloat16


@pytest.mark.parametrize("as_a_card", [False, True])
def test_a_worker_is_a_trainer_of_a_daemon(
    text: ShardFolder, monkeypatch: pytest.MonkeyPatch, as_a_card: bool
) -> None:
    """The same bits: `LocalTrainer` may go on while the ring averages, which this does not do."""
    if as_a_card:
        card = _AsACard(torch.device("cpu"), "as a card", "bf16")
        for module in (train, local_trainer):
            monkeypatch.setattr(module, "take_device", lambda *_: card)
    run = small()
    swarm, (worker,) = Swarm(run, "diloco", 3), workers_of(run, text, 1)
    base, work = swarm.parameters.copy(), np.zeros_like(swarm.parameters)
    config = TrainerConfig(
        model=run.model, inner=run.inner, seed=3, token_bytes=text.token_bytes, device="cpu"
    )
    trainer = LocalTrainer(config, base, work)
    trainer.genesis()
    assert base.tobytes() == swarm.parameters.tobytes()
    text.push_shards(trainer.push, range(len(text.index.shards)))
    for first in (0, 5):
        worker.pending[:] = 0.0
        tokens = worker.train(base, first, 5)
        begin(trainer, 1, first, 5, 600.0)
        while not trainer.round.is_over:
            assert trainer.step() is not None
        assert trainer.finish().tokens == tokens
        assert work.tobytes() == worker.pending.tobytes()
        base -= work


def test_rounding_errors_are_carried(text: ShardFolder) -> None:
    run = small(codec="int4")
    swarm, workers = Swarm(run, "diloco", 1), workers_of(run, text)
    before = swarm.parameters.copy()
    swarm.round(1, workers)
    carried = sum(worker.pending for worker in workers) / len(workers)
    assert np.abs(carried).max() > 0
    exact, others = (
        Swarm(replace(run, outer=replace(run.outer, codec="fp32")), "diloco", 1),
        workers_of(run, text),
    )
    exact.round(1, others)
    # The first round takes the plain average: what was rounded off is with the workers.
    np.testing.assert_allclose(swarm.parameters - carried, exact.parameters, atol=1e-6)
    assert np.abs(swarm.parameters - exact.parameters).max() > 1e-5
    assert not any(worker.pending.any() for worker in others)
    assert (before != swarm.parameters).any()
    # The next pseudo-gradient is added to it.
    kept = [worker.pending.copy() for worker in workers]
    for worker, other, errors in zip(workers, others, kept, strict=True):
        worker.train(exact.parameters, 2, 2)
        other.train(exact.parameters, 2, 2)
        assert worker.pending.tobytes() == (errors + other.pending).tobytes()


def test_a_round_may_choose_its_momentum(text: ShardFolder) -> None:
    """The manifest's `displacement` chooses it, once a quarter of the steps is done."""
    plain, tuned = (small(displacement=d, momentum=0.9, learning_rate=1.0) for d in (0.0, 1.4))
    plain_steps = outer_momentum.PLAIN_SHARE * tuned.inner.total_steps
    assert plain_steps == tuned.outer.first_inner_step_of(4)
    assert (
        trained(tuned, text, rounds=3).parameters.tobytes()
        != trained(plain, text, rounds=3).parameters.tobytes()
    )
    averaged = small(momentum=0.0, learning_rate=1.0)
    assert (
        trained(tuned, text, rounds=3).parameters.tobytes()
        == trained(averaged, text, rounds=3).parameters.tobytes()
    )
    assert (
        trained(tuned, text, rounds=4).parameters.tobytes()
        != trained(averaged, text, rounds=4).parameters.tobytes()
    )


def test_text_that_ends_is_said(text: ShardFolder) -> None:
    run = small()
    with pytest.raises(DataError, match="too short"):
        Swarm(run, "diloco", 1).round(1, [Worker(run, text.token_bytes, "cpu")])


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gossamer.trainer.train", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_trains_and_says_how_it_goes() -> None:
    done = run_command("--rounds", "2", "--peers", "2", "--text", *map(str, FILES))
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"round (\d): ([\d,]+) tokens, loss ([\d.]+), state [0-9a-f]{64}\n", done.stdout
    )
    assert [(number, tokens) for number, tokens, _ in found] == [("1", "4,096"), ("2", "4,096")]
    assert float(found[1][2]) < float(found[0][2]) < np.log(256)


def test_the_command_says_what_is_wrong_with_the_text(tmp_path: Path) -> None:
    done = run_command("--text", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "no such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_has_the_optimizer_of_the_preset_unless_told() -> None:
    def state(*arguments: str) -> str:
        done = run_command("--rounds", "1", "--peers", "1", *arguments, "--text", *map(str, FILES))
        assert done.returncode == 0, done.stderr
        return done.stdout.rsplit(" ", 1)[1]

    assert state() == state("--optimizer", "muon") != state("--optimizer", "adamw")
    sparse = ("--codec", "sparse")
    assert state(*sparse) == state(*sparse, "--optimizer", "muon")
