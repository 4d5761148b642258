"""What saves memory gives the same loss and the same gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec
import pytest
import torch
import torch.nn.functional as F

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.chunked_loss import NO_TARGET, chunked_loss_sum
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources.memory_estimate import CPU_LOGITS_MAX, logits_max_of

Gradients = tuple[torch.Tensor, list[torch.Tensor]]
"""(loss, gradients of the parameters)"""


def precision(low: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if low is None else torch.autocast("cpu", dtype=low, cache_enabled=False)


def gradients_of(decoder: Decoder, sequences: torch.Tensor, low: torch.dtype | None) -> Gradients:
    decoder.zero_grad()
    with precision(low):
        loss = decoder.loss_sum(sequences)
    (loss / 7).backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in decoder.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return loss.detach(), [gradient.clone() for gradient in gradients if gradient is not None]


def sequences_of(config: ModelConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, config.vocabulary, (4, config.context + 1), generator=generator)


@pytest.fixture
def decoder(model_config: ModelConfig) -> Decoder:
    decoder = Decoder(msgspec.structs.replace(model_config, tied_embeddings=False))
    decoder.initialise(5)
    decoder.lm_head.weight.data.mul_(40)  # far from a uniform guess
    return decoder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 16, 63])
def test_chunks_of_logits_give_the_same_gradient(
    model_config: ModelConfig, tied: bool, rows: int
) -> None:
    config = msgspec.structs.replace(model_config, tied_embeddings=tied)
    decoder, sequences = Decoder(config), sequences_of(config)
    decoder.initialise(5)
    loss, gradients = gradients_of(decoder, sequences, None)
    decoder.loss_rows = rows
    chunked_loss, chunked = gradients_of(decoder, sequences, None)
    torch.testing.assert_close(chunked_loss, loss, rtol=1e-6, atol=0)
    for one, other in zip(gradients, chunked, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_chunks_are_as_exact_in_half_precision(decoder: Decoder, low: torch.dtype) -> None:
    """As near to fp32 as the whole loss in the same precision."""
    rows = torch.randn(96, 32, generator=torch.Generator().manual_seed(1))
    targets = torch.randint(0, 64, (96,), generator=torch.Generator().manual_seed(2))

    def result(low: torch.dtype | None, chunk_rows: int) -> tuple[torch.Tensor, ...]:
        x = rows.clone().requires_grad_()
        weight = decoder.lm_head.weight.detach().clone().requires_grad_()
        with precision(low):
            if chunk_rows:
                loss = chunked_loss_sum(x, weight, targets, chunk_rows)
            else:
                loss = F.cross_entropy(F.linear(x, weight).float(), targets, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert weight.grad is not None
        assert {loss.dtype, x.grad.dtype, weight.grad.dtype} == {torch.float32}
        return loss.detach(), x.grad, weight.grad

    exact = result(None, 0)
    for of_exact, of_whole, of_chunks in zip(exact, result(low, 0), result(low, 7), strict=True):
        error = (of_whole - of_exact).norm()
        assert 0 < (of_chunks - of_exact).norm() <= 1.5 * error


def test_words_that_are_no_target_are_as_exact_in_fp16() -> None:
    """Their probabilities in a large vocabulary are near the smallest numbers of fp16."""
    rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    weight = 0.02 * torch.randn(50_000, 8, generator=torch.Generator().manual_seed(2))
    targets = torch.arange(16)

    def gradient(low: torch.dtype | None, chunk_rows: int) -> torch.Tensor:
        matrix = weight.clone().requires_grad_()
        with precision(low):
            if chunk_rows:
                loss = chunked_loss_sum(rows, matrix, targets, chunk_rows)
            else:
                loss = F.cross_entropy(F.linear(rows, matrix).float(), targets, reduction="sum")
        (found,) = torch.autograd.grad(loss, [matrix])
        return found[16:]

    exact = gradient(None, 0)
    error = (gradient(torch.float16, 0) - exact).norm()
    assert 0 < (gradient(torch.float16, 8) - exact).norm() <= 1.5 * error


@pytest.mark.parametrize("num_rows", [1, 2048, 6000])
def test_rows_that_all_pull_one_way_stay_in_the_range_of_fp16(num_rows: int) -> None:
    """As a frequent word, and a dimension that is large in every row, have it."""
    rows = torch.full((num_rows, 4), 30.0).requires_grad_()
    weight = torch.zeros(64, 4).requires_grad_()
    targets = torch.zeros(num_rows, dtype=torch.int64)
    with precision(torch.float16):
        chunked_loss_sum(rows, weight, targets, num_rows).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    wanted = -30.0 * num_rows * 63 / 64
    torch.testing.assert_close(weight.grad[0], torch.full((4,), wanted), rtol=2e-3, atol=0)


def test_a_loss_without_a_gradient_keeps_none(decoder: Decoder) -> None:
    rows = torch.randn(6, 32)
    targets = torch.zeros(6, dtype=torch.int64)
    with torch.no_grad():
        loss = chunked_loss_sum(rows, decoder.lm_head.weight, targets, 4)
        whole = F.cross_entropy(decoder.lm_head(rows), targets, reduction="sum")
    assert not loss.requires_grad
    torch.testing.assert_close(loss, whole)


@pytest.mark.parametrize("low", [None, torch.bfloat16])
def test_checkpointing_gives_the_same_bits(
    decoder: Decoder, model_config: ModelConfig, low: torch.dtype | None
) -> None:
    sequences = sequences_of(model_config)
    loss, gradients = gradients_of(decoder, sequences, low)
    calls = []
    for layer in decoder.layers:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    decoder.checkpointing = True
    again_loss, again = gradients_of(decoder, sequences, low)
    assert len(calls) == 2 * len(decoder.layers), "each layer is computed twice"
    assert torch.equal(loss, again_loss)
    assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))


def test_passes_of_a_cpu_have_their_logits_at_once() -> None:
    """Their sums keep their order, so that nothing that was trained changes a bit."""
    most = max(preset.model.vocabulary for preset in PRESETS.values())
    assert 4096 * most <= CPU_LOGITS_MAX
    assert logits_max_of("cpu") == CPU_LOGITS_MAX


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_rows_without_a_target_count_for_nothing(rows: int) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(12, 8, generator=generator)
    matrix = torch.randn(20, 8, generator=generator)
    targets = torch.randint(0, 20, (12,), generator=generator)
    targets[[0, 3, 4, 11]] = NO_TARGET

    def gradients(
        loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> list[torch.Tensor]:
        inputs = [values.clone().requires_grad_(), matrix.clone().requires_grad_()]
        loss = loss_of(*inputs)
        return [loss.detach(), *torch.autograd.grad(loss, inputs)]

    plain = gradients(
        lambda x, w: F.cross_entropy(x @ w.T, targets, ignore_index=NO_TARGET, reduction="sum")
    )
    chunked = gradients(lambda x, w: chunked_loss_sum(x, w, targets, rows))
    for ours, theirs in zip(chunked, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert not chunked[1][[0, 3, 4, 11]].any()
