"""Training of adapters beside weights that stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.ids import digest_of
from gossamer.protocol.lora import TARGETS, LoraConfig
from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.frozen_weights import blocks_of
from gossamer.protocol.state.parameter_layout import layout_of
from gossamer.trainer.adapters import merged, read_frozen
from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.layers import KeyValues
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.memory_estimate import Training
from gossamer.trainer.text.data import DataError
from tests.trainer.conftest import train

LORA = LoraConfig(rank=4, alpha=8.0, targets=TARGETS, weights="fp32")


@pytest.fixture
def model(model_config: ModelConfig) -> ModelConfig:
    return replace(model_config, lora=LORA)


@pytest.fixture
def weights(model: ModelConfig) -> np.ndarray:
    decoder = Decoder(model.whole)
    decoder.initialise(3)
    return decoder.flat.numpy().copy()


@pytest.fixture
def paths(
    model: ModelConfig, weights: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...]:
    """Files of blocks so small that tensors lie across their ends."""
    monkeypatch.setattr(limits, "BLOCK_BYTES_MAX", 4000)
    return write_blocks(tmp_path, weights, LORA)


def write_blocks(folder: Path, weights: np.ndarray, lora: LoraConfig) -> tuple[str, ...]:
    paths = []
    for block in blocks_of(weights, lora):
        path = folder / digest_of(block).hex()
        path.write_bytes(block)
        paths.append(str(path))
    return tuple(paths)


def trainer_of(model: ModelConfig, inner: InnerConfig, paths: tuple[str, ...]) -> LocalTrainer:
    config = TrainerConfig(
        model=model, inner=inner, seed=7, token_bytes=2, device="cpu", frozen_paths=paths
    )
    base = np.zeros(model.num_parameters, np.float32)
    trainer = LocalTrainer(config, base, base.copy())
    trainer.genesis()
    return trainer


def some_tokens(model: ModelConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, model.vocabulary, (3, model.context), generator=generator)


@pytest.mark.parametrize("tied", [True, False])
def test_adapters_compute_what_merged_weights_do(model: ModelConfig, tied: bool) -> None:
    model = replace(model, tied_embeddings=tied)
    whole, adapted = Decoder(model.whole), Decoder(model)
    whole.initialise(3)
    weights = whole.flat.numpy().copy()
    names = [name for name, _ in adapted.named_parameters()]
    assert names == [tensor.name for tensor in layout_of(model)]
    adapted.load_frozen(iter(np.array_split(weights, 7)))
    adapted.initialise(5)
    tokens = some_tokens(model)
    with torch.no_grad():
        # B is zero: a run begins with the model itself.
        torch.testing.assert_close(adapted(tokens), whole(tokens), rtol=0, atol=0)
        adapted.flat.add_(torch.randn(adapted.flat.shape) * 0.05)
        whole.flat.copy_(
            torch.from_numpy(merged(adapted.flat.numpy(), model, np.array_split(weights, 3)))
        )
        assert (adapted(tokens) - whole(tokens)).abs().max() < 1e-5
        whole.flat.copy_(torch.from_numpy(weights))
        assert (adapted(tokens) - whole(tokens)).abs().max() > 1e-2
    with pytest.raises(ValueError, match="frozen weights; the model has"):
        merged(adapted.flat.numpy(), model, [weights[1:]])
    with pytest.raises(ValueError, match="the frozen weights end in"):
        adapted.load_frozen(iter([weights[:-1]]))


def test_first_adapters_follow_from_the_seed_alone(
    model: ModelConfig, inner_config: InnerConfig, paths: tuple[str, ...]
) -> None:
    # The founder draws them before it has blocks of the weights.
    drawn, again = (trainer_of(model, inner_config, given)._base for given in (paths, ()))
    np.testing.assert_array_equal(drawn, again)
    for tensor in layout_of(model):
        values = drawn[tensor.range]
        if "lora_B" in tensor.name:
            assert not values.any()
        else:
            assert values.std() == pytest.approx(tensor.shape[1] ** -0.5, rel=0.4)


def test_only_the_adapters_learn(
    model: ModelConfig, inner_config: InnerConfig, paths: tuple[str, ...], shard: str
) -> None:
    trainer = trainer_of(model, inner_config, paths)
    before = [buffer.clone() for buffer in trainer._decoder.buffers()]
    steps = train(trainer, shard, 60)
    assert steps[-1].loss < steps[0].loss - 0.3
    for old, new in zip(before, trainer._decoder.buffers(), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0)
    assert trainer._pseudo_gradient.shape == (model.num_parameters,)
    for tensor in layout_of(model):
        assert trainer._pseudo_gradient[tensor.range].any(), tensor.name


def test_a_frozen_head_gives_the_same_gradient_in_chunks(
    model: ModelConfig, weights: np.ndarray
) -> None:
    decoder = Decoder(model)
    decoder.load_frozen(iter([weights]))
    decoder.initialise(5)
    decoder.flat.add_(torch.randn(decoder.flat.shape) * 0.05)
    found = []
    for rows in (1000, 7):
        decoder.zero_grad()
        decoder.loss_rows = rows
        decoder.loss_sum(some_tokens(model)).backward()  # type: ignore[no-untyped-call]
        found.append([parameter.grad.clone() for parameter in decoder.parameters()])  # type: ignore[union-attr]
    for plain, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, plain, rtol=1e-4, atol=1e-5)


def test_weights_in_bf16_take_half_the_memory_where_products_are_in_it(
    model: ModelConfig, weights: np.ndarray
) -> None:
    half, full = (Decoder(model, frozen_dtype=kind) for kind in (torch.bfloat16, torch.float32))
    rounded = torch.from_numpy(weights).bfloat16().float().numpy()
    losses = []
    for decoder in (half, full):
        decoder.load_frozen(iter([rounded]))
        decoder.initialise(5)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            loss = decoder.loss_sum(some_tokens(model))
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(parameter.grad is not None for parameter in decoder.parameters())
        assert all(parameter.dtype == torch.float32 for parameter in decoder.parameters())
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    num_bytes = {
        name: sum(buffer.nbytes for key, buffer in each.named_buffers() if "rotary" not in key)
        for name, each in (("half", half), ("full", full))
    }
    assert num_bytes["half"] < 0.52 * num_bytes["full"]


def test_texts_are_written_by_the_arithmetic_of_the_training(
    model: ModelConfig, weights: np.ndarray
) -> None:
    """The sums between the layers are fp32, also behind an embedding in bf16."""
    decoder = Decoder(model, frozen_dtype=torch.bfloat16)
    decoder.load_frozen(iter([weights]))
    decoder.initialise(5)
    past = [KeyValues(model.context) for _ in decoder.layers]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        tokens = some_tokens(model)
        assert torch.equal(decoder.next_logits(tokens, past), decoder(tokens)[:, -1])


def test_the_estimate_counts_frozen_weights_without_moments(model: ModelConfig) -> None:
    whole, adapters = model.whole.num_parameters, model.num_parameters
    for kind, half, item in (("bf16", True, 2), ("fp32", True, 4), ("bf16", False, 4)):
        kept = replace(model, lora=replace(LORA, weights=kind))
        training = Training(kept, half=half)
        assert training.frozen_bytes == item * whole
        assert training.vectors_bytes == 12 * adapters + item * whole
        assert training.gradient_bytes == 4 * adapters
    assert Training(model.whole, half=True).frozen_bytes == 0


def test_weights_that_are_damaged_or_missing_train_nothing(
    model: ModelConfig,
    inner_config: InnerConfig,
    paths: tuple[str, ...],
    shard: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(TrainerError, match="are not here: start the node again"):
        train(trainer_of(model, inner_config, ()), shard, 1)
    with pytest.raises(TrainerError, match="are not here"):
        trainer_of(model, inner_config, ()).evaluate((shard,), 100)
    damaged = Path(paths[1])
    damaged.write_bytes(bytes(1) + damaged.read_bytes()[1:])
    with pytest.raises(DataError, match="are damaged on the disk"):
        trainer_of(model, inner_config, paths)
    infinite = tmp_path / "infinite"
    infinite.mkdir()
    with pytest.raises(DataError, match="not finite"):
        list(read_frozen(write_blocks(infinite, np.full(10, np.inf, np.float32), LORA), LORA))
    damaged.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(read_frozen(paths, LORA))
