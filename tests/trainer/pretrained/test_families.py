"""Folders of every family, in and out, against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from gossamer.trainer.export.hugging_face import ExportError, export_model
from gossamer.trainer.model import Decoder
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.pretrained.model_files import unpack_model_files
from tests.support.model_folders import (
    LLAMA3_ROPE,
    VOCABULARY,
    config_of_family,
    make_folder,
    tensors_of,
    write_safetensors,
)

CONFIGS = {
    "smollm2": config_of_family("llama", tie_word_embeddings=True, rope_theta=100_000),
    "llama3.1": config_of_family("llama", rope_theta=500_000.0, rope_scaling=LLAMA3_ROPE),
    "llama-transformers5": config_of_family(
        "llama", rope_theta=..., rope_parameters=LLAMA3_ROPE | {"rope_theta": 500_000.0}
    ),
    "llama-head-width": config_of_family("llama", head_dim=16),
    "mistral": config_of_family("mistral", rope_theta=1e6),
    "qwen2.5": config_of_family(
        "qwen2", rms_norm_eps=1e-6, use_sliding_window=False, sliding_window=64
    ),
    "qwen3": config_of_family("qwen3", tie_word_embeddings=True, rope_theta=1e6),
    "olmo2": config_of_family("olmo2", rope_theta=500_000.0),
}

LOGITS_WITHIN = 1e-5
"""Of logits up to 5: some fifteen units in the last place of fp32."""

ALL = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def theirs_of(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of `transformers`, in fp32."""
    transformers = pytest.importorskip("transformers")
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    assert not any(loading.values()), loading
    with torch.no_grad():
        logits: torch.Tensor = model(tokens).logits
    return logits


def some_tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (3, 40), generator=torch.Generator().manual_seed(0))


@ALL
def test_import_and_export_compute_what_transformers_does(
    config: dict[str, Any], tmp_path: Path
) -> None:
    make_folder(tmp_path / "given", config)
    pretrained = open_pretrained(tmp_path / "given")
    decoder = Decoder(pretrained.model)
    flat = pretrained.weights.read()
    decoder.flat.copy_(torch.from_numpy(flat))
    tokens = some_tokens()
    with torch.no_grad():
        ours = decoder(tokens)
    assert ours.abs().max() > 2
    assert (ours - theirs_of(tmp_path / "given", tokens)).abs().max() < LOGITS_WITHIN

    files = unpack_model_files(pretrained.files.pack())
    export_model(flat, pretrained.model, files, tmp_path / "out")
    assert (ours - theirs_of(tmp_path / "out", tokens)).abs().max() < LOGITS_WITHIN
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported == config | {"dtype": "float32", "torch_dtype": "float32"}


@ALL
def test_flat_order_is_the_parameters_order(config: dict[str, Any], tmp_path: Path) -> None:
    from gossamer.protocol.state.parameter_layout import layout_of

    model = make_folder(tmp_path / "given", config)
    decoder = Decoder(model)
    named = [(name, tuple(one.shape)) for name, one in decoder.named_parameters()]
    assert [(tensor.name, tensor.shape) for tensor in layout_of(model)] == named
    decoder.initialise(1)
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 1:
            assert bool((parameter == (0.0 if name.endswith("bias") else 1.0)).all())


@ALL
def test_bf16_autocast_stays_close(config: dict[str, Any], tmp_path: Path) -> None:
    model = make_folder(tmp_path / "given", config)
    decoder = Decoder(model)
    decoder.initialise(1)
    sequences = some_tokens()
    full = decoder.loss_sum(sequences)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = decoder.loss_sum(sequences)
    half.backward()  # type: ignore[no-untyped-call]
    assert half.item() == pytest.approx(full.item(), rel=1e-2)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in decoder.parameters())


def test_an_export_in_bf16_is_rounded_to_the_nearest(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "given", CONFIGS["qwen2.5"])
    pretrained = open_pretrained(tmp_path / "given")
    flat = pretrained.weights.read()
    export_model(flat, model, pretrained.files, tmp_path / "out", dtype="bf16")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    again = open_pretrained(tmp_path / "out").weights.read()
    expected = torch.from_numpy(flat).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(again, expected)
    half = tmp_path / "given" / "model.safetensors"
    assert (tmp_path / "out" / "model.safetensors").stat().st_size < 0.6 * half.stat().st_size
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_weights_of_other_types_are_read(tmp_path: Path, dtype: Any) -> None:
    model = make_folder(tmp_path / "given", CONFIGS["mistral"])
    flat = open_pretrained(tmp_path / "given").weights.read()
    tensors = {name: one.astype(dtype) for name, one in tensors_of(model, flat).items()}
    write_safetensors(tmp_path / "given" / "model.safetensors", tensors)
    again = open_pretrained(tmp_path / "given").weights.read()
    np.testing.assert_array_equal(again, flat.astype(dtype).astype(np.float32))


def test_a_model_in_several_files_is_the_same(tmp_path: Path) -> None:
    make_folder(tmp_path / "one", CONFIGS["qwen3"])
    make_folder(tmp_path / "three", CONFIGS["qwen3"], num_files=3)
    one, three = (open_pretrained(tmp_path / name).weights.read() for name in ("one", "three"))
    np.testing.assert_array_equal(one, three)


def test_the_export_has_the_tokenizer_and_its_settings(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "given", CONFIGS["smollm2"])
    (tmp_path / "given" / "LICENSE").write_text("yours")
    (tmp_path / "given" / "train.py").write_text("")
    pretrained = open_pretrained(tmp_path / "given")
    export_model(pretrained.weights.read(), model, pretrained.files, tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "LICENSE"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "given" / name).read_bytes()
    assert not (tmp_path / "out" / "train.py").exists()
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 0)
    assert (
        tokenizer.chat_template == pretrained.files.parsed("tokenizer_config.json")["chat_template"]
    )


def test_an_export_of_another_model_is_refused(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "given", CONFIGS["smollm2"])
    pretrained = open_pretrained(tmp_path / "given")
    other = msgspec.structs.replace(model, rope_theta=77.0)
    with pytest.raises(ExportError, match="of another model"):
        export_model(pretrained.weights.read(), other, pretrained.files, tmp_path / "out")


def test_keys_that_name_code_are_left_out(tmp_path: Path) -> None:
    config = CONFIGS["smollm2"] | {"auto_map": {"AutoModel": "evil.Model"}}
    model = make_folder(tmp_path / "given", config)
    path = tmp_path / "given" / "tokenizer_config.json"
    path.write_text(json.dumps({"eos_token": "<|endoftext|>", "auto_map": {"AutoTokenizer": "x"}}))
    pretrained = open_pretrained(tmp_path / "given")
    export_model(pretrained.weights.read(), model, pretrained.files, tmp_path / "out")
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in (tmp_path / "out" / name).read_text()
