"""Training on cards of every size, with an allocator that counts bytes (`simulated_card`)."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
from msgspec.structs import replace

from gossamer.protocol.manifest import InnerOptimizer
from gossamer.trainer import evaluate
from gossamer.trainer.chunked_loss import chunked_loss_sum
from gossamer.trainer.inner_step.gradients import Gradients, TrainerError
from gossamer.trainer.inner_step.muon import optimizer_for
from gossamer.trainer.ipc.choices import MomentChoice, MomentFormat
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources.memory_estimate import Training, moment_bytes, moment_elements
from gossamer.trainer.resources.passes import FILE_NAME, Pass, Passes, moment_format_on
from tests.trainer.simulated_card import Memory, card, decoder_on, device_of, sequences_of

GB = 1000**3
BOUNDLESS = 10**15
CARDS_GB = (8, 10, 11, 12, 16, 24, 32, 40, 48, 80, 141)

FAILURES_AT_FIRST = 1
"""Attempts that may fail on a card that the trainer sees for the first time."""


class Life(NamedTuple):
    """What became of one life of a trainer."""

    size: Pass | None
    """The pass at the end; None if none fits."""
    failures: int
    """Attempts that ran out of memory."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


def live(
    preset: Preset, capacity_bytes: int, folder: Path | None = None, *, only: Pass | None = None
) -> Life:
    """A trainer starts on a card and does a step, cut to what takes two passes.

    Args:
        only: the size that is tried, instead of those that the trainer would try.
    """
    with card(capacity_bytes) as memory:
        try:
            passes = _train(preset, memory, folder, only)
        except (TrainerError, torch.OutOfMemoryError):
            return Life(None, memory.num_failures)
        if not memory.num_failures:
            _peaks.setdefault((preset, passes.present), memory.peak_bytes)
        return Life(passes.present, memory.num_failures)


def _train(
    preset: Preset, memory: Memory, folder: Path | None = None, only: Pass | None = None
) -> Passes:
    device, model, num_sequences = device_of(memory), preset.model, preset.inner.sequences_per_step
    capacity_bytes = memory.capacity_bytes
    decoder = decoder_on(memory, model)
    optimizer = optimizer_for(decoder, preset.inner, torch.bfloat16)
    path = None if folder is None else folder / FILE_NAME
    passes = Passes(device, model, num_sequences, path=path)
    if only is not None:
        passes._sizes = [only]
    gradients = Gradients(decoder, device, passes, lambda: None)
    taken = 0
    # A pass without checkpointing may fail, and then larger ones with it are next.
    while taken < (wanted := min(num_sequences, 2 * passes.present.sequences)):
        if only is None and _peaks.get((preset, passes.present), BOUNDLESS) <= capacity_bytes:
            passes.begins()  # what this step would do was seen on a card of another size
            passes.worked()
        else:
            gradients.take(sequences_of(model, wanted))
        taken = wanted
    assert optimizer.num_steps == 1  # the card's answer to every question: both vectors are alive
    return passes


_peaks: dict[tuple[Preset, Pass], int] = {}
"""The most that a step had in use which did not fail: the same on all cards that it fits on."""


def preset_with(name: str, optimizer: InnerOptimizer) -> Preset:
    return replace(PRESETS[name], inner=replace(PRESETS[name].inner, optimizer=optimizer))


def _peak_bytes(preset: Preset, size: Pass) -> int:
    """The most that a step with such passes has in use, on a card on which everything fits."""
    if (preset, size) not in _peaks:
        with card(BOUNDLESS) as memory:
            assert _train(preset, memory, only=size).present == size
            _peaks[preset, size] = memory.peak_bytes
    return _peaks[preset, size]


def _fits(preset: Preset, capacity_bytes: int, size: Pass) -> bool:
    return _peak_bytes(preset, size) <= capacity_bytes


@pytest.mark.long
@pytest.mark.parametrize("size", [Pass(4), Pass(8, checkpointing=True)])
def test_a_card_has_what_a_pass_needs_or_fails(size: Pass) -> None:
    """So the trials of `largest_that_fits` need no card of each size."""
    preset = PRESETS["40m"]
    peak_bytes = _peak_bytes(preset, size)
    assert live(preset, peak_bytes, only=size) == Life(size, 0)
    assert live(preset, peak_bytes - 1, only=size).size is None


@functools.cache
def largest_that_fits(preset: Preset, capacity_bytes: int) -> Pass | None:
    """The truth: every power of two is tried."""
    for checkpointing in (False, True):
        best, size, most = None, 1, preset.inner.sequences_per_step
        while size <= most and _fits(preset, capacity_bytes, Pass(size, checkpointing)):
            best, size = Pass(size, checkpointing), 2 * size
        if best is not None and (checkpointing or best.sequences >= _few(preset)):
            return best
    return None


@contextmanager
def too_hopeful() -> Iterator[None]:
    """The estimate is a quarter of what it is otherwise: several attempts fail."""
    real = Training.pass_bytes
    with patch.object(
        Training, "pass_bytes", lambda self, size, **how: real(self, size, **how) // 4
    ):
        yield


def _few(preset: Preset) -> int:
    return min(preset.inner.sequences_per_step, -(-2048 // preset.model.context))


def _is_largest(preset: Preset, capacity_bytes: int, size: Pass | None) -> bool:
    """Whether no better size fits; the same as `largest_that_fits`, with fewer trials.

    More sequences never need less memory.
    """
    if size is not None and not _fits(preset, capacity_bytes, size):
        return False
    few = Pass(_few(preset))
    if (size is None or size.checkpointing) and _fits(preset, capacity_bytes, few):
        return False
    larger = Pass(1, checkpointing=True) if size is None else size._replace(sequences=2 * size[0])
    most = preset.inner.sequences_per_step
    return larger.sequences > most or not _fits(preset, capacity_bytes, larger)


@pytest.mark.parametrize("name", PRESETS)
def test_the_largest_pass_that_fits_is_found_and_remembered(name: str, tmp_path: Path) -> None:
    preset = PRESETS[name]
    for gigabytes in CARDS_GB:
        capacity = gigabytes * GB
        folder = tmp_path / str(gigabytes)
        folder.mkdir()
        first = live(preset, capacity, folder)
        if first.size is not None:
            assert first.failures <= FAILURES_AT_FIRST, f"{gigabytes} GB"
            assert live(preset, capacity, folder) == Life(first.size, 0), f"{gigabytes} GB"
        assert _is_largest(preset, capacity, first.size), f"{gigabytes} GB: {first}"


def test_a_model_that_does_not_fit_is_told_with_numbers() -> None:
    with (
        card(15 * GB) as memory,
        pytest.raises(TrainerError, match=r"\(at least 5.1 GB are needed for it, and 1.8 GB of"),
    ):
        _train(preset_with("1.1b", "adamw"), memory)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_of_a_failed_pass_is_alive_at_the_next(
    monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    """Also not where the garbage collector does not run by itself."""
    preset = PRESETS["150m"]
    left: list[int] = []
    real = Decoder.loss_sum
    with card(4 * GB) as memory:
        decoder = decoder_on(memory, preset.model)
        optimizer_for(decoder, preset.inner, torch.bfloat16)
        empty = memory.live_bytes
        device = device_of(memory)
        passes = Passes(device, preset.model, preset.inner.sequences_per_step)
        passes._sizes = [Pass(size, checkpointing) for size in (64, 32, 16, 8, 4, 2)]
        gradients = Gradients(decoder, device, passes, lambda: None)

        def loss_sum(self: Decoder, sequences: torch.Tensor) -> torch.Tensor:
            if memory.num_failures > len(left):
                left.append(memory.live_bytes - empty)
            return real(self, sequences)

        monkeypatch.setattr(Decoder, "loss_sum", loss_sum)
        gc.disable()
        try:
            gradients.take(sequences_of(preset.model, 64))
        finally:
            gc.enable()
    tokens_bytes = 64 * (preset.model.context + 1) * 8
    assert len(left) >= 2
    assert left == [tokens_bytes + 4] * len(left), "the batch, and the sum of the losses"


@pytest.mark.parametrize(
    "message",
    [
        # The texts of torch, its backends and the libraries below, without the advice behind them.
        "CUDA error: out of memory",
        "CUDA driver error: out of memory",
        "HIP error: out of memory",
        "MPS backend out of memory (MPS allocated: 8.55 GB, other allocations: 64.00 MB, max "
        "allowed: 9.07 GB). Tried to allocate 512.00 MB on private pool.",
        "Invalid buffer size: 24.00 GB",
        "Command buffer exited with error status: Insufficient Memory "
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory",
        "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory: you "
        "tried to allocate 51539607552 bytes.",
    ],
)
def test_every_way_to_say_out_of_memory_makes_the_pass_smaller(message: str) -> None:
    preset, capacity = PRESETS["40m"], 5 * GB // 2
    best = largest_that_fits(preset, capacity)
    with card(capacity) as memory, too_hopeful():
        memory.error = lambda: RuntimeError(message)
        passes = _train(preset, memory)
        assert memory.num_failures >= 2
        assert passes.present == best


def test_other_errors_are_not_taken_for_want_of_memory() -> None:
    for message in (
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
        "CUDA error: device-side assert triggered",
    ):
        with card(12 * GB) as memory, too_hopeful():
            memory.error = lambda message=message: RuntimeError(message)  # type: ignore[misc]
            with pytest.raises(RuntimeError, match="CUDA error"):
                _train(PRESETS["150m"], memory)
            assert memory.num_failures == 1


def test_a_process_that_is_killed_over_an_attempt_goes_on_with_less(tmp_path: Path) -> None:
    """The system kills it, or the driver breaks: no error comes that could be caught."""
    preset, capacity = PRESETS["150m"], 13 * GB
    best = Life(largest_that_fits(preset, capacity), 0)

    def killed() -> None:
        with card(capacity) as memory:
            memory.error = lambda: KeyboardInterrupt()  # type: ignore[assignment, return-value]
            with pytest.raises(KeyboardInterrupt):
                _train(preset, memory, tmp_path)

    with too_hopeful():
        killed()
        killed()
        assert live(preset, capacity, tmp_path) == best
        # The end of a process may have had another reason: the larger size is tried once more.
        killed()
        for _ in range(2):
            assert live(preset, capacity, tmp_path) == best


@pytest.mark.long
def test_more_free_memory_is_used_after_a_restart(tmp_path: Path) -> None:
    preset = PRESETS["150m"]
    small, large = (largest_that_fits(preset, size * GB) for size in (12, 40))
    with too_hopeful():
        assert live(preset, 12 * GB, tmp_path).size == small
        assert live(preset, 12 * GB, tmp_path) == Life(small, 0)
        lives = [live(preset, 40 * GB, tmp_path) for _ in range(5)]
        assert all(life.failures <= 1 for life in lives)
        assert lives[-1] == Life(large, 0)
        assert live(preset, 12 * GB, tmp_path).size == small, "the memory is short again"
        assert live(preset, 12 * GB, tmp_path) == Life(small, 0)


def test_a_wanted_size_is_the_first_that_is_tried() -> None:
    preset = PRESETS["150m"]
    with card(24 * GB) as memory:
        device, model = device_of(memory), preset.model
        decoder = decoder_on(memory, model)
        assert decoder.flat.numel() == model.num_parameters
        sizes = {wanted: Passes(device, model, 512, wanted).present for wanted in (3, 8, 512)}
    assert sizes == {3: Pass(3), 8: Pass(8), 512: Pass(512, checkpointing=True)}


def test_a_process_that_is_ended_in_order_leaves_no_attempt_behind(tmp_path: Path) -> None:
    preset, path = PRESETS["150m"], tmp_path / FILE_NAME
    with card(24 * GB) as memory:
        decoder = decoder_on(memory, preset.model)
        device, model = device_of(memory), preset.model
        passes = Passes(device, model, preset.inner.sequences_per_step, path=path)
        passes.withdraw()
        passes.begins()
        assert path.exists()
        passes.withdraw()
        assert not path.exists()
        passes.begins()
        passes.worked()
        passes.withdraw()
        assert path.exists(), "what worked is worth keeping"
        noted = path.read_bytes()
        with too_hopeful():  # the next process finds reason for a larger size
            larger = Passes(device, model, preset.inner.sequences_per_step, path=path)
            larger.begins()
        assert larger.present.sequences > passes.present.sequences
        assert path.read_bytes() != noted
        larger.withdraw()
        assert path.read_bytes() == noted
        assert decoder.flat.device.type == "meta"


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff" * 5000, b'{"k\xe5y":""}'])
def test_a_damaged_note_is_found_anew(tmp_path: Path, damage: bytes) -> None:
    preset = PRESETS["150m"]
    first = live(preset, 24 * GB, tmp_path)
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert live(preset, 24 * GB, tmp_path) == first


def test_an_evaluation_goes_in_parts_where_memory_is_short() -> None:
    preset = PRESETS["150m"]
    model = preset.model
    batches = [sequences_of(model, size) for size in (64, 1, 64)]
    with card(1_450_000_000) as memory:
        decoder = decoder_on(memory, model)
        loss, tokens = evaluate.evaluate(decoder, device_of(memory), batches)
        assert memory.num_failures == 3, "64, 32 and 16 at once; the last batch begins with 8"
    assert tokens == 129 * model.context
    assert loss == pytest.approx((8 + 1 + 8) / tokens)
    with card(4 * model.num_parameters + GB // 100) as memory:
        decoder = decoder_on(memory, model)
        with pytest.raises(TrainerError, match="too little memory to evaluate one sequence"):
            evaluate.evaluate(decoder, device_of(memory), batches)


def _with_many_words(*, tied: bool) -> Preset:
    """A preset with the vocabulary of Qwen 2.5, whose embedding has most of the parameters."""
    few = replace(PRESETS["150m"].model, num_layers=4, vocabulary=150_000, tied_embeddings=tied)
    return replace(PRESETS["150m"], model=few)


@pytest.mark.parametrize(
    ("preset", "least"),
    [
        *((PRESETS[name], 0.8) for name in ("40m", "150m", "1.1b")),
        (_with_many_words(tied=True), 0.97),
        (_with_many_words(tied=False), 0.97),
    ],
    ids=["40m", "150m", "1.1b", "tied", "untied"],
)
@pytest.mark.parametrize("low", [torch.bfloat16, None])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_is_a_little_below_the_peak(
    preset: Preset, least: float, low: torch.dtype | None, checkpointing: bool
) -> None:
    size = Pass(4, checkpointing)
    residual_bytes = (low or torch.float32).itemsize
    training = Training(
        preset.model,
        half=low is not None,
        residual_bytes=residual_bytes,
        moment_elements=moment_elements(preset.model, preset.inner),
    )
    with card(10**13, low) as memory:
        _train(preset, memory, only=size)
        peak = memory.peak_bytes
    estimate = training.vectors_bytes + training.pass_bytes(4, checkpointing=checkpointing)
    assert least * peak < estimate <= peak


@pytest.mark.parametrize("name", ["40m", "150m", "1.1b"])
@pytest.mark.parametrize(
    ("optimizer_name", "moments"),
    [("muon", "fp32"), ("muon", "8bit"), ("adamw", "bf16"), ("adamw", "8bit")],
)
def test_an_update_takes_what_is_estimated_and_less_than_a_pass_before_it(
    name: str, optimizer_name: InnerOptimizer, moments: MomentFormat
) -> None:
    preset = preset_with(name, optimizer_name)
    inner = preset.inner
    elements = moment_elements(preset.model, inner)
    training = Training(preset.model, half=True, moment_elements=elements, moment_format=moments)
    smallest = training.pass_bytes(1, checkpointing=True)
    with card(10**13) as memory:
        decoder = decoder_on(memory, preset.model)
        before = memory.live_bytes
        optimizer = optimizer_for(decoder, inner, torch.bfloat16, moments)
        estimate = moment_bytes(elements, moments)
        assert memory.live_bytes - before == pytest.approx(estimate, rel=1e-3)
        for parameter in decoder.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step(1e-3)
        assert memory.peak_bytes < training.vectors_bytes + smallest


@pytest.mark.parametrize(
    ("optimizer_name", "gigabytes", "choice", "moments", "sequences_min"),
    [
        ("adamw", 24, "auto", "fp32", 8),
        ("adamw", 16, "auto", "bf16", 1),
        ("adamw", 16, "8bit", "8bit", 1),
        ("adamw", 12, "auto", "8bit", 1),
        ("muon", 16, "auto", "fp32", 1),
        ("muon", 12, "auto", "8bit", 1),
    ],
)
def test_moments_in_less_let_a_large_model_train_on_a_small_card(
    optimizer_name: InnerOptimizer,
    gigabytes: int,
    choice: MomentChoice,
    moments: MomentFormat,
    sequences_min: int,
) -> None:
    preset = preset_with("1.1b", optimizer_name)
    model, num_sequences = preset.model, preset.inner.sequences_per_step
    with card(gigabytes * GB) as memory:
        device = device_of(memory)
        decoder = decoder_on(memory, model)
        found = moment_format_on(device, model, preset.inner, choice)
        assert found == moments
        optimizer = optimizer_for(decoder, preset.inner, torch.bfloat16, found)
        passes = Passes(device, model, num_sequences)
        gradients = Gradients(decoder, device, passes, lambda: None)
        gradients.take(sequences_of(model, min(num_sequences, 2 * passes.present.sequences)))
        optimizer.step(1e-3)
        assert memory.num_failures <= FAILURES_AT_FIRST
        assert passes.present.sequences >= sequences_min


def test_checkpointing_and_chunks_of_logits_take_less_memory() -> None:
    preset = PRESETS["1.1b"]
    elements = 2 * preset.model.num_parameters + moment_elements(preset.model, preset.inner)
    peaks = []
    for checkpointing in (False, True):
        with card(10**13) as memory:
            _train(preset, memory, only=Pass(8, checkpointing))
            peaks.append(memory.peak_bytes - 4 * elements)
    assert peaks[1] < peaks[0] / 4
    with card(10**13) as memory:
        decoder = decoder_on(memory, preset.model)
        empty = memory.live_bytes
        hidden = decoder._hidden(torch.zeros((8, 1024), dtype=torch.int64, device="meta")).detach()
        targets = torch.zeros(8 * 1024, dtype=torch.int64, device="meta")
        kept = memory.live_bytes
        memory.peak_bytes = kept
        rows = hidden.flatten(0, 1).requires_grad_()
        loss = chunked_loss_sum(rows, decoder.lm_head.weight, targets, decoder.loss_rows)
        loss.backward()  # type: ignore[no-untyped-call]
        chunked = memory.peak_bytes - kept
    whole = 8 * 1024 * preset.model.vocabulary * 4
    assert empty < kept
    assert chunked < 0.8 * whole, "less than the logits alone would take"
