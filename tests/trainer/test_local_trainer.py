"""Rounds of local training, in one process."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol import limits
from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer import local_round
from gossamer.trainer.evaluate import in_time
from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.ipc import framing, messages
from gossamer.trainer.ipc.messages import Finished, Step, TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources.device import DeviceError, choose_device, free_host_bytes
from gossamer.trainer.text.data import DataError
from tests.support.local_rounds import begin, steps_of
from tests.trainer.conftest import STEP_SPAN, MakeTrainer

STEP_TOKENS = 4 * 16
"""Targets of a step."""


def run_round(trainer: LocalTrainer, steps: int, first: int = 0) -> tuple[list[Step], Finished]:
    begin(trainer, 1, first, steps, 60.0)
    done = []
    while not trainer.round.is_over:
        step = trainer.step()
        assert step is not None
        done.append(step)
    return done, trainer.finish()


def optimizer_of(trainer: LocalTrainer) -> AdamW:
    """The optimiser of a trainer whose steps are its own."""
    assert isinstance(trainer._optimizer, AdamW)
    return trainer._optimizer


@pytest.fixture
def vectors(model_config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """(base, pseudo_gradient)"""
    num = model_config.num_parameters
    decoder = Decoder(model_config)
    decoder.initialise(7)
    return decoder.flat.numpy().copy(), np.zeros(num, np.float32)


def test_a_round_learns_and_leaves_its_work_behind(
    make_trainer: MakeTrainer, vectors: tuple[np.ndarray, np.ndarray], shard: str
) -> None:
    base, pseudo_gradient = vectors
    pseudo_gradient += 0.5  # of an earlier round, which is not wanted any more
    start = base.copy()
    trainer = make_trainer(base, pseudo_gradient)
    before = trainer.evaluate((shard,), 1000).loss
    assert before == pytest.approx(math.log(64), rel=0.05)
    trainer.push(0, shard, 0, 60 * STEP_SPAN)
    steps, finished = run_round(trainer, 60)

    assert [step.step for step in steps] == list(range(60))
    assert finished.tokens == 60 * STEP_TOKENS
    assert finished.steps == 60
    assert finished.spans == ((0, 0, 60 * STEP_SPAN),)
    assert finished.loss == pytest.approx(np.mean([step.loss for step in steps]))
    assert (base == start).all(), "base is the daemon's"
    base -= pseudo_gradient
    after = trainer.evaluate((shard,), 1000).loss
    assert after < 0.5 * before
    assert after == pytest.approx(steps[-1].loss, abs=0.1)


def test_base_may_move_during_the_round(
    make_trainer: MakeTrainer, vectors: tuple[np.ndarray, np.ndarray], shard: str
) -> None:
    base, disturbed = vectors
    undisturbed = np.zeros_like(disturbed)
    for target, disturb in ((undisturbed, False), (disturbed, True)):
        trainer = make_trainer(base.copy() if not disturb else base, target)
        trainer.push(0, shard, 0, 1000)
        begin(trainer, 1, 0, 5, 60.0)
        trainer.step()
        if disturb:
            base += 1.0
        while not trainer.round.is_over:
            trainer.step()
        trainer.finish()
    assert (disturbed == undisturbed).all()
    assert disturbed.any()


def test_data_is_asked_for_once_a_shortage(make_trainer: MakeTrainer, shard: str) -> None:
    trainer = make_trainer()
    trainer.push(0, shard, 0, 5 * STEP_SPAN)
    begin(trainer, 1, 0, 100, 60.0)
    assert trainer.need_data() is None
    trainer.step()
    assert trainer.need_data() is None, "four steps are left"
    trainer.step()
    need = trainer.need_data()
    assert need is not None
    assert need.tokens_queued == 3 * STEP_SPAN
    assert trainer.need_data() is None
    trainer.push(0, shard, 340, 341)
    assert trainer.need_data() is not None, "that was not enough"


def test_leftover_data_goes_to_the_next_round(make_trainer: MakeTrainer, shard: str) -> None:
    trainer = make_trainer()
    trainer.push(0, shard, 0, 5 * STEP_SPAN)
    assert run_round(trainer, 2)[1].spans == ((0, 0, 2 * STEP_SPAN),)
    assert run_round(trainer, 3, 2)[1].spans == ((0, 2 * STEP_SPAN, 5 * STEP_SPAN),)
    begin(trainer, 3, 5, 1, 60.0)
    assert trainer.step() is None


def test_a_round_in_many_pieces_ends_early(
    make_trainer: MakeTrainer, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_round, "SPANS_MAX", 128)
    trainer = make_trainer()
    for number in range(200):
        trainer.push(number, shard, 0, 17)
    _, finished = run_round(trainer, 50)
    assert len(finished.spans) == 128


def test_time_ends_a_round(make_trainer: MakeTrainer, shard: str) -> None:
    trainer = make_trainer()
    trainer.push(0, shard, 0, 4000)
    begin(trainer, 1, 0, 100, 0.0)
    assert trainer.round.is_over
    finished = trainer.finish()
    assert (finished.steps, finished.tokens, finished.spans) == (0, 0, ())
    assert math.isnan(finished.loss)


def test_nonfinite_steps_are_skipped_and_their_data_is_consumed(
    make_trainer: MakeTrainer, vectors: tuple[np.ndarray, np.ndarray], shard: str
) -> None:
    base, pseudo_gradient = vectors
    good = base.copy()
    base[0] = math.nan
    trainer = make_trainer(base, pseudo_gradient)
    trainer.push(0, shard, 0, 4000)
    steps, finished = run_round(trainer, 2)
    assert all(step.skipped and step.tokens == 0 for step in steps)
    assert (finished.steps, finished.tokens) == (2, 0)
    assert finished.spans == ((0, 0, 2 * STEP_SPAN),)
    assert math.isnan(finished.loss)
    assert not pseudo_gradient.any()
    assert steps_of(trainer) == 0
    base[:] = good
    steps, _ = run_round(trainer, 1)
    assert not steps[0].skipped, "it recovers with the next base"


def test_micro_batches_give_the_same_step(
    make_trainer: MakeTrainer, vectors: tuple[np.ndarray, np.ndarray], shard: str
) -> None:
    base, _ = vectors
    results = []
    for micro_batch in (4, 3, 1):
        gradient = np.zeros_like(base)
        trainer = make_trainer(base, gradient, micro_batch=micro_batch)
        trainer.push(0, shard, 0, 1000)
        results.append((run_round(trainer, 3)[0][-1].loss, gradient))
    for loss, gradient in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-4)
        np.testing.assert_allclose(gradient, results[0][1], atol=2e-4)


@pytest.mark.long
def test_out_of_memory_halves_the_micro_batch(
    make_trainer: MakeTrainer, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    trainer.push(0, shard, 0, 4000)
    real, sizes, fits = Decoder.loss_sum, [], 2

    def loss_sum(self: Decoder, sequences: torch.Tensor) -> torch.Tensor:
        sizes.append(len(sequences))
        if len(sequences) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, sequences)

    monkeypatch.setattr(Decoder, "loss_sum", loss_sum)
    steps, _ = run_round(trainer, 2)
    assert sizes == [4, 2, 2, 2, 2]
    assert all(step.tokens == STEP_TOKENS for step in steps)
    assert trainer.micro_batch == 2

    fits = 0
    begin(trainer, 2, 2, 1, 60.0)
    with pytest.raises(TrainerError, match="too little memory for one sequence of 16 tokens") as no:
        trainer.step()
    assert "this machine's memory" in str(no.value)


def test_the_size_of_a_pass_is_kept_beside_the_moments(
    make_trainer: MakeTrainer, shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Decoder.loss_sum

    def loss_sum(self: Decoder, sequences: torch.Tensor) -> torch.Tensor:
        if len(sequences) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, sequences)

    monkeypatch.setattr(Decoder, "loss_sum", loss_sum)
    for attempts in (4, 2):
        trainer = make_trainer(optimizer_path=str(tmp_path / "optimizer"))
        assert trainer.micro_batch == attempts
        trainer.push(0, shard, 0, 4000)
        run_round(trainer, 1)
        assert trainer.micro_batch == 2


def test_free_memory_of_the_host_is_that_of_the_container(tmp_path: Path) -> None:
    assert free_host_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    5000 kB\n")
    assert free_host_bytes(tmp_path) == 5000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("700000\n")
    assert free_host_bytes(tmp_path) == 5000 * 1024
    (group / "memory.max").write_text("1000000\n")
    assert free_host_bytes(tmp_path) == 300_000
    (group / "memory.stat").write_text("anon 1\ninactive_file 200000\n")
    assert free_host_bytes(tmp_path) == 500_000


def test_the_step_is_torchs_adamw_with_clipping(
    model_config: ModelConfig, inner_config: InnerConfig
) -> None:
    def gradients(decoder: Decoder, step: int) -> None:
        generator = torch.Generator().manual_seed(step)
        for parameter in decoder.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)

    ours, theirs = Decoder(model_config), Decoder(model_config)
    for decoder in (ours, theirs):
        decoder.initialise(1)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    gains = [p for p in theirs.parameters() if p.ndim == 1]
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    optimizer = AdamW(ours.parameters(), inner_config)
    for step in range(3):
        rate = 1e-3 * (step + 1)
        gradients(ours, step)
        gradients(theirs, step)
        for group in reference.param_groups:
            group["lr"] = rate
        optimizer.step(rate)
        reference.step()
        assert torch.equal(ours.flat, theirs.flat)
    assert optimizer.num_steps == 3


def test_gradients_are_clipped(
    make_trainer: MakeTrainer, inner_config: InnerConfig, shard: str
) -> None:
    # AdamW does not see the scale of the gradient, but its second moment does.
    moments = []
    for clip_norm in (1e-3, 1e3):
        trainer = make_trainer(inner=msgspec.structs.replace(inner_config, clip_norm=clip_norm))
        trainer.push(0, shard, 0, 100)
        steps, _ = run_round(trainer, 1)
        moments.append(optimizer_of(trainer).first_moment.tensors[""].norm().item() / 0.1)
    assert moments[0] == pytest.approx(1e-3, rel=1e-3)
    assert moments[1] == pytest.approx(steps[0].gradient_norm, rel=1e-3)


def test_what_is_only_for_between_rounds(make_trainer: MakeTrainer, shard: str) -> None:
    trainer = make_trainer()
    begin(trainer, 1, 0, 1, 60.0)
    with pytest.raises(TrainerError, match="round 1 is running"):
        trainer.evaluate((shard,), 10)
    with pytest.raises(TrainerError, match="round 1 is running"):
        begin(trainer, 2, 0, 1, 60.0)
    trainer.finish()
    with pytest.raises(TrainerError, match="no round is running"):
        trainer.finish()


def test_audit_measures_single_sequences_of_other_parameters(
    make_trainer: MakeTrainer, vectors: tuple[np.ndarray, np.ndarray], shard: str
) -> None:
    base, pseudo_gradient = vectors
    trainer = make_trainer(base, pseudo_gradient)
    trainer.push(0, shard, 0, 60 * STEP_SPAN)
    trainer.audited = base.copy()
    sequences = [(shard, 17 * number) for number in range(8)]
    before = trainer.audit(sequences).losses
    whole = trainer.evaluate((shard,), 8 * 16).loss
    run_round(trainer, 60)
    trainer.audited -= pseudo_gradient
    local = trainer._decoder.flat.clone()
    after = trainer.audit(sequences).losses
    assert np.mean(before) == pytest.approx(whole, rel=0.05)
    assert all(late < 0.7 * early for early, late in zip(before, after, strict=True))
    assert (trainer._decoder.flat == local).all(), "the local parameters stay"
    assert trainer.audit(sequences[3:4]).losses == pytest.approx(after[3:4], rel=1e-5)


def test_audits_that_cannot_be_made(make_trainer: MakeTrainer, shard: str) -> None:
    trainer = make_trainer()
    with pytest.raises(TrainerError, match="does not have"):
        trainer.audit([(shard, 0)])
    trainer.audited = np.zeros_like(trainer._base)
    with pytest.raises(TrainerError, match="does not have"):
        trainer.audit([(shard, 0)] * (messages.AUDIT_SEQUENCES_MAX + 1))
    with pytest.raises(DataError, match="no sequence at token 4390"):
        trainer.audit([(shard, 4390)])
    begin(trainer, 1, 0, 1, 60.0)
    with pytest.raises(TrainerError, match="round 1 is running"):
        trainer.audit([(shard, 0)])


def test_evaluate_takes_each_token_once(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    from_conftest = np.arange(50) % 64
    path = tmp_path / "heldout"
    import zstandard

    path.write_bytes(zstandard.compress(from_conftest.astype("<u2").tobytes()))
    trainer = make_trainer()
    whole = trainer.evaluate((str(path),), 10**6)
    assert whole.tokens == 49
    assert trainer.evaluate((str(path), str(path)), 60).tokens == 60
    begin(trainer, 1, 0, 1, 60.0)  # at `base`
    trainer.finish()
    # By hand: three sequences of 16 targets and a last one of 1.
    sequence = torch.from_numpy(from_conftest)
    with torch.no_grad():
        by_hand = sum(
            trainer._decoder.loss_sum(sequence[None, start : start + 17]).item()
            for start in range(0, 49, 16)
        )
    assert whole.loss == pytest.approx(by_hand / 49, rel=1e-5)
    assert math.isnan(trainer.evaluate((), 10).loss), "there is nothing to predict"


def test_an_evaluation_ends_in_time_with_what_it_has() -> None:
    times = iter((0.0, 0.9, 1.8, 2.7))
    assert list(in_time(range(10), 2.0, lambda: next(times))) == [0, 1, 2]
    assert list(in_time(range(10), 0.0)) == [0], "one is always taken"
    assert list(in_time(range(3), math.inf)) == [0, 1, 2]


def test_moments_survive_a_restart(make_trainer: MakeTrainer, shard: str, tmp_path: Path) -> None:
    path = tmp_path / "optimizer"
    trainer = make_trainer(optimizer_path=str(path))
    assert (trainer.optimizer_problem, steps_of(trainer)) == ("", 0)
    trainer.push(0, shard, 0, 1000)
    run_round(trainer, 3)
    assert trainer.save() == ""
    again = make_trainer(optimizer_path=str(path))
    assert (again.optimizer_problem, steps_of(again)) == ("", 3)
    for name, (vector, _) in optimizer_of(trainer).vectors.items():
        assert torch.equal(optimizer_of(again).vectors[name][0].tensors[""], vector.tensors[""])
    assert [p.name for p in tmp_path.iterdir() if "optimizer" in p.name] == ["optimizer"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "empty"])
def test_damaged_moments_are_reported_and_ignored(
    make_trainer: MakeTrainer, shard: str, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "optimizer"
    trainer = make_trainer(optimizer_path=str(path))
    trainer.push(0, shard, 0, 1000)
    run_round(trainer, 1)
    trainer.save()
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[:-100]
    elif damage == "flipped":
        data[-4:] = b"\xff\xff\xff\xff"  # a NaN
    elif damage == "text":
        data = bytearray(b"not moments")
    else:
        data = bytearray()
    path.write_bytes(data)
    again = make_trainer(optimizer_path=str(path))
    assert str(path) in again.optimizer_problem
    assert "fresh moments" in again.optimizer_problem
    assert steps_of(again) == 0
    assert not optimizer_of(again).first_moment.tensors[""].any()


def test_moments_of_another_model_are_ignored(
    make_trainer: MakeTrainer, model_config: ModelConfig, inner_config: InnerConfig, tmp_path: Path
) -> None:
    path = tmp_path / "optimizer"
    make_trainer(optimizer_path=str(path)).save()
    # The same number of parameters, another model.
    other = msgspec.structs.replace(model_config, rope_theta=5.0)
    zeros = np.zeros(other.num_parameters, np.float32)
    config = TrainerConfig(
        model=other,
        inner=inner_config,
        seed=0,
        token_bytes=2,
        device="cpu",
        optimizer_path=str(path),
    )
    trainer = LocalTrainer(config, zeros, zeros.copy())
    assert "another model" in trainer.optimizer_problem


def test_a_full_disk_keeps_the_old_moments(
    make_trainer: MakeTrainer, shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "optimizer"
    trainer = make_trainer(optimizer_path=str(path))
    trainer.save()
    old = path.read_bytes()
    trainer.push(0, shard, 0, 1000)
    run_round(trainer, 1)

    def no_space(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gossamer.trainer.checkpoint.os.fsync", no_space)
    assert "No space left on device" in trainer.save()
    assert path.read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir() if "optimizer" in p.name) == ["optimizer"]


def test_devices() -> None:
    device = choose_device("cpu")
    assert (device.precision, str(device.torch_device)) == ("fp32", "cpu")
    assert device.name
    assert device.micro_batch_of(8, 64) == 8
    assert device.micro_batch_of(8, 2**20) == 1
    with pytest.raises(DeviceError, match="unknown"):
        choose_device("abacus")
    with pytest.raises(DeviceError, match=r"sees .* cuda devices"):
        choose_device(f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(DeviceError, match="not supported"):
        choose_device("meta")


def test_spans_of_a_round_fit_their_message() -> None:
    """The spans fit also with those of the last step, a shard for each of its sequences."""
    largest = (limits.SHARDS_MAX, limits.SHARD_TOKENS_MAX - 1, limits.SHARD_TOKENS_MAX)
    finished = messages.Finished(
        round=limits.ROUNDS_MAX,
        steps=2**31,
        tokens=limits.TOKENS_MAX,
        spans=(largest,) * messages.SPANS_PER_ROUND_MAX,
        loss=1.0,
    )
    assert len(framing.encode(finished)) < framing.MESSAGE_BYTES_MAX
    steps_max = max(preset.inner.sequences_per_step for preset in PRESETS.values())
    assert local_round.SPANS_MAX + 2 * steps_max <= messages.SPANS_PER_ROUND_MAX
