"""What cannot be imported is told to people, before anything large is allocated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard

from gossamer.protocol.errors import MalformedError
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.pretrained.model_files import (
    FILES_BYTES_MAX,
    read_model_files,
    unpack_model_files,
)
from gossamer.trainer.pretrained.tokenizer import tokenizer_of
from gossamer.trainer.pretrained.weights import HEADER_BYTES_MAX
from tests.support.model_folders import (
    config_of_family,
    make_folder,
    random_weights,
    tensors_of,
    write_safetensors,
)

YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gpt2"}, 'model_type is "gpt2"; supported: llama, mistral, olmo2'),
        ({}, "model_type is null"),
        (
            config_of_family("llama", architectures=["LlamaForSequenceClassification"]),
            'architectures is ["LlamaForSequenceClassification"]; supported for llama: Llama',
        ),
        (config_of_family("llama", hidden_act="gelu"), 'hidden_act is "gelu"; supported: "silu"'),
        (config_of_family("llama", attention_bias=True), "attention_bias is true"),
        (config_of_family("llama", mlp_bias=True), "mlp_bias is true; supported: false"),
        (config_of_family("llama", quantization_config={"bits": 4}), "weights are quantised"),
        (config_of_family("llama", rope_scaling=YARN), 'rope_type is "yarn"; supported: default'),
        (config_of_family("llama", partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
        (config_of_family("mistral", sliding_window=4096), "sliding_window is 4096"),
        (config_of_family("mistral", sliding_window=...), "sliding_window is 4096"),
        (
            config_of_family("qwen2", use_sliding_window=True, sliding_window=32),
            "sliding_window is 32",
        ),
        (
            config_of_family("qwen3", layer_types=["full_attention", "sliding_attention"]),
            "layer_types has others",
        ),
        (config_of_family("llama", hidden_size=...), "hidden_size is missing"),
        (config_of_family("llama", hidden_size="32"), 'hidden_size is "32"; allowed: a whole'),
        (config_of_family("llama", hidden_size=30), "hidden_size is 30, no multiple"),
        (config_of_family("llama", num_hidden_layers=10**9), "model.num_layers is 1000000000"),
        (config_of_family("llama", vocab_size=2**30), "model.vocabulary is 1073741824"),
        (config_of_family("llama", num_hidden_layers=10**400), "num_hidden_layers is 1000"),
        (config_of_family("llama", rms_norm_eps=float("nan")), "rms_norm_eps is NaN"),
        (config_of_family("llama", rope_theta=10**400), "rope_theta is 1000"),
        (config_of_family("llama", head_dim=15), "head_width is 15; it must be even"),
        (config_of_family("llama", num_key_value_heads=3), "num_kv_heads is 3; it must divide"),
        (config_of_family("llama", rope_scaling={"rope_type": "llama3"}), "factor is missing"),
        (config_of_family("llama", rope_scaling="long"), 'rope_scaling is "long"'),
    ],
)
def test_a_shape_that_is_not_supported_is_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(FolderError) as told:
        model_of_config(config)
    assert said in str(told.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(FolderError) as told:
        model_of_config(config_of_family("llama", hidden_act="relu", mlp_bias=True))
    assert len(told.value.problems) == 2


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _with(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def _with_tensors(change: Callable[[dict[str, Any]], object], **types: str) -> Any:
    def rewrite(folder: Path) -> None:
        model = model_of_config(json.loads((folder / "config.json").read_text()))
        tensors: dict[str, Any] = dict(tensors_of(model, random_weights(model)))
        change(tensors)
        write_safetensors(folder / "model.safetensors", tensors, **types)

    return rewrite


def _header(entry: object) -> bytes:
    encoded = json.dumps({"model.norm.weight": entry}).encode()
    return len(encoded).to_bytes(8, "little") + encoded + bytes(64)


def _places(*places: tuple[int, int]) -> Callable[[Path], None]:
    """Gives the tensors of four values other places among 64 bytes."""
    entries = {str(n): ENTRY | {"data_offsets": place} for n, place in enumerate(places)}
    encoded = json.dumps(entries).encode()
    return _with(WEIGHTS, len(encoded).to_bytes(8, "little") + encoded + bytes(64))


def _not_finite(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"] = np.full(32, np.inf, np.float32)


ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
NORM = "model.norm.weight"
WEIGHTS = "model.safetensors"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without("config.json"), "config.json is missing"),
        (_without("tokenizer.json"), "tokenizer.json is missing"),
        (_without(WEIGHTS), "has neither model.safetensors nor model.safetensors.index.json"),
        (_with("config.json", b'{"model_type": '), "config.json is damaged"),
        (_with("config.json", b"[" * 100_000), "config.json is damaged"),
        (_with("config.json", b"\xff\xfe"), "config.json is damaged"),
        (_with("config.json", b"[]"), "config.json is no JSON object"),
        (_with("config.json", b" " * (2**20 + 1)), "the limit of such a file"),
        (_with("generation_config.json", b"{"), "generation_config.json is damaged"),
        (_with("tokenizer.json", b"{}"), "tokenizer.json is damaged"),
        (_with("tokenizer_config.json", b'{"eos_token": "</s>"}'), None),  # config.json says it
        (_with(WEIGHTS, b""), "is damaged"),
        (_with(WEIGHTS, bytes(8)), "is damaged"),
        (_with(WEIGHTS, (2**60).to_bytes(8, "little") + b"{}"), "ends before its header"),
        (_with(WEIGHTS, (2).to_bytes(8, "little") + b"{!"), "is damaged"),
        (_with(WEIGHTS, _header(ENTRY | {"shape": [5]})), "makes no sense"),
        (_with(WEIGHTS, _header(ENTRY | {"shape": [-4]})), "makes no sense"),
        (_with(WEIGHTS, _header(ENTRY | {"data_offsets": [0, 2**40]})), "makes no sense"),
        (_with(WEIGHTS, _header(ENTRY | {"data_offsets": [16, 0]})), "makes no sense"),
        (_with(WEIGHTS, _header(7)), "makes no sense"),
        (_places((0, 16), (0, 16), (16, 32), (32, 48), (48, 64)), "each byte once"),
        (_places((0, 16), (8, 24), (24, 40), (40, 56)), "each byte once"),
        (_places((0, 16), (32, 48), (48, 64)), "each byte once"),
        (_places((16, 32), (0, 16)), "each byte once"),
        (_with_tensors(lambda all_: all_.pop(NORM)), f"has no tensor {NORM}"),
        (
            _with_tensors(lambda all_: all_.update({NORM: np.ones(31, np.float32)})),
            f"{NORM} has the shape 31; by config.json it is 32",
        ),
        (
            _with_tensors(lambda all_: all_.update({NORM: np.ones(32, np.int8)})),
            f"{NORM} has the type I8; supported: BF16, F16, F32, F64",
        ),
        (
            _with_tensors(lambda all_: all_.update({"model.gate": np.ones(3, np.float32)})),
            "model.gate is no tensor of this model",
        ),
        (_with_tensors(dict.clear), "and 13 more"),
    ],
)
def test_a_damaged_folder_is_told(
    tmp_path: Path, change: Callable[[Path], None], said: str | None
) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama"))
    change(folder)
    if said is None:
        tokenizer_of(folder, open_pretrained(folder).model)
        return
    with pytest.raises(FolderError) as told:
        tokenizer_of(folder, open_pretrained(folder).model)
    assert said in str(told.value)
    assert str(folder) in told.value.problems[0]


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama"), num_files=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FolderError, match=r"00002-of-00002\.safetensors is missing"):
        open_pretrained(folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "model.bin"])
def test_an_index_names_only_files_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama"), num_files=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(FolderError, match="no safetensors file of the folder"):
        open_pretrained(folder)


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama"))
    length = HEADER_BYTES_MAX + 1
    with (folder / WEIGHTS).open("wb") as file:
        file.write(length.to_bytes(8, "little"))
        file.truncate(8 + length)  # a sparse file
    with pytest.raises(FolderError, match="has a header of"):
        open_pretrained(folder)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama"))
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(FolderError, match="save the model as safetensors"):
        open_pretrained(folder)


def test_values_that_are_not_finite_are_told_when_they_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama", tie_word_embeddings=True))  # so it comes last
    _with_tensors(_not_finite)(folder)
    weights = open_pretrained(folder).weights
    with pytest.raises(FolderError, match=r"norm.weight has values that are not finite"):
        weights.read()
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])
    with pytest.raises(FolderError, match="ends early"):
        weights.read()


def test_a_signalling_nan_is_told_and_numpy_does_not_warn(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama"))
    values = np.full(32, 0x7FF4 << 48, np.uint64).view(np.float64)
    _with_tensors(lambda all_: all_.update({NORM: values}))(folder)
    with pytest.raises(FolderError, match=r"norm.weight has values that are not finite"):
        open_pretrained(folder).weights.read()


def test_superfluous_tensors_are_left_out_as_transformers_does(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama", tie_word_embeddings=True))
    extra = {
        "lm_head.weight": np.ones((320, 32), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32),
    }
    _with_tensors(lambda all_: all_.update(extra))(folder)
    assert len(open_pretrained(folder).weights.read())


def test_a_tokenizer_of_another_model_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama", vocab_size=100))
    with pytest.raises(FolderError, match="do not belong together"):
        tokenizer_of(folder, open_pretrained(folder).model)


def test_a_tokenizer_without_an_end_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    make_folder(folder, config_of_family("llama", eos_token_id=None))
    for name in ("tokenizer_config.json", "generation_config.json"):
        (folder / name).write_text("{}")
    with pytest.raises(FolderError, match="no token ends a text"):
        tokenizer_of(folder, open_pretrained(folder).model)


def test_a_block_of_files_is_checked(tmp_path: Path) -> None:
    make_folder(tmp_path / "given", config_of_family("llama"))
    files = read_model_files(tmp_path / "given")
    assert unpack_model_files(files.pack()).files == files.files

    def packed(content: dict[str, bytes]) -> bytes:
        return zstandard.compress(msgspec.msgpack.encode(content))

    for block in (
        b"",
        b"no zstandard",
        zstandard.compress(b"no msgpack"),
        packed({"config.json": b"{}"}),
        packed(files.files | {"../evil": b""}),
        packed(files.files | {"config.json": b"{"}),
        zstandard.compress(bytes(FILES_BYTES_MAX + 1)),
        files.pack()[:-10],
    ):
        with pytest.raises(MalformedError):
            unpack_model_files(block)
