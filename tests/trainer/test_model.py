"""The decoder against Hugging Face's, its flat layout and its initial weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.model_config import Family, ImportedShape, ModelConfig
from gossamer.protocol.state.parameter_layout import layout_of
from gossamer.trainer.export.hugging_face import ExportError, byte_tokenizer_json, export_model
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.accelerator import Precision
from gossamer.trainer.resources.device import Device

ONE_STEP = """
import sys, torch
from gossamer.trainer.model import Decoder
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.presets.table import PRESETS
preset = PRESETS["tiny"]
decoder = Decoder(preset.model)
decoder.initialise(1)
optimizer = AdamW(decoder.parameters(), preset.inner)
decoder.loss_sum(torch.zeros(1, 9, dtype=torch.long)).backward()
optimizer.step(1e-3)
sys.exit("torch._dynamo" in sys.modules)
"""

ALL_TIES = pytest.mark.parametrize("tied", [True, False])


def decoder_of(config: ModelConfig, seed: int = 5) -> Decoder:
    decoder = Decoder(config)
    decoder.initialise(seed)
    # Gains of 1 would hide a norm that forgets them.
    for parameter in decoder.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5, torch.Generator().manual_seed(1))
    return decoder


@ALL_TIES
def test_flat_order_is_the_parameters_order(model_config: ModelConfig, tied: bool) -> None:
    config = msgspec.structs.replace(model_config, tied_embeddings=tied)
    decoder = Decoder(config)
    named = list(decoder.named_parameters())
    layout = layout_of(config)
    assert [(t.name, t.shape) for t in layout] == [(n, tuple(p.shape)) for n, p in named]
    decoder.flat.copy_(torch.arange(float(config.num_parameters)))
    for tensor, (_, parameter) in zip(layout, named, strict=True):
        assert parameter.flatten()[0] == tensor.start
        assert parameter.flatten()[-1] == tensor.start + tensor.num_elements - 1
    assert (decoder.lm_head.weight is decoder.embed_tokens.weight) is tied


def test_initial_weights_follow_from_the_seed(model_config: ModelConfig) -> None:
    first, again, other = (Decoder(model_config) for _ in range(3))
    torch.manual_seed(99)  # the global generator has no say
    first.initialise(5)
    again.initialise(5)
    other.initialise(6)
    assert torch.equal(first.flat, again.flat)
    assert not torch.equal(first.flat, other.flat)
    for tensor in layout_of(model_config):
        values = first.flat[tensor.range]
        if not tensor.is_matrix:
            assert bool((values == 1).all())
            continue
        std = 0.01 if tensor.name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
        assert float(values.std()) == pytest.approx(std, rel=0.15)


@ALL_TIES
# F @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transformers_loads_the_export_and_computes_the_same(
    model_config: ModelConfig, tied: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config = msgspec.structs.replace(
        model_config, tied_embeddings=tied, rope_theta=500.0, norm_epsilon=1e-4
    )
    decoder = decoder_of(config)
    export_model(decoder.flat.numpy(), config, None, tmp_path / "model")
    theirs, loading = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(loading.values()), loading
    tokens = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(decoder(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-6)


# F @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transformers_loads_the_tokenizer(model_config: ModelConfig, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = msgspec.structs.replace(model_config, vocabulary=256)
    flat = np.zeros(config.num_parameters, np.float32)
    export_model(flat, config, byte_tokenizer_json(), tmp_path, end_token=0)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "The ring commits.\n\tÉ ü 漢 \x7f \xad  end"
    assert theirs.encode(text) == list(text.encode())
    assert theirs.decode(list(text.encode())) == text
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 0


def test_export_says_what_is_wrong(model_config: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="3 parameters"):
        export_model(np.zeros(3, np.float32), model_config, None, tmp_path)
    (tmp_path / "file").write_text("")
    flat = np.zeros(model_config.num_parameters, np.float32)
    with pytest.raises(ExportError, match="cannot write the model"):
        export_model(flat, model_config, None, tmp_path / "file")


def test_bf16_autocast_stays_close(model_config: ModelConfig) -> None:
    decoder = decoder_of(model_config)
    sequences = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(0))
    full = decoder.loss_sum(sequences)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = decoder.loss_sum(sequences)
    half.backward()  # type: ignore[no-untyped-call]
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(full.item(), rel=1e-2)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in decoder.parameters())


@pytest.mark.parametrize("family", [None, "qwen3", "olmo2"])
def test_sums_between_layers_in_bf16_cost_rounding_alone(
    model_config: ModelConfig, family: Family | None
) -> None:
    if family is not None:
        head_width = model_config.width // model_config.num_heads
        shape = ImportedShape(family=family, head_width=head_width, rope_scaling=None)
        model_config = msgspec.structs.replace(model_config, imported=shape)
    decoder = decoder_of(model_config)
    sequences = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(0))
    stream: list[torch.dtype] = []
    for layer in decoder.layers:
        layer.register_forward_hook(lambda _layer, _inputs, output: stream.append(output.dtype))

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        stream.clear()
        decoder.residual_dtype = dtype
        decoder.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = decoder.loss_sum(sequences)
        loss.backward()  # type: ignore[no-untyped-call]
        assert set(stream) == {dtype}
        return torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None])

    fine, coarse = gradient(torch.float32), gradient(torch.bfloat16)
    assert coarse.dtype == torch.float32
    assert (coarse - fine).norm() < 0.02 * fine.norm()


@pytest.mark.parametrize(
    ("device", "precision", "dtype"),
    [
        ("cuda", "bf16", torch.bfloat16),
        ("cuda", "fp16", torch.float32),  # its range is too small for sums
        ("cuda", "fp32", torch.float32),
        ("cpu", "bf16", torch.float32),
    ],
)
def test_sums_between_layers_are_in_bf16_on_cards_that_have_it(
    device: str, precision: Precision, dtype: torch.dtype
) -> None:
    assert Device(torch.device(device), "a device", precision).residual_dtype == dtype


def test_a_start_does_not_load_torchs_compiler() -> None:
    assert subprocess.run([sys.executable, "-c", ONE_STEP], timeout=120).returncode == 0
