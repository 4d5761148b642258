"""The files of an export: shards and their index, what is replaced, and its memory."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.export import hugging_face as export_module
from gossamer.trainer.export import weight_files
from gossamer.trainer.export.gguf_export import export_gguf
from gossamer.trainer.export.hugging_face import (
    CARD_MARK,
    ExportError,
    byte_tokenizer_json,
    export_model,
)
from gossamer.trainer.model import Decoder
from gossamer.trainer.pretrained.weights import find_weights
from tests.support.model_folders import random_weights

SHARD_BYTES = 16_384


@pytest.fixture
def flat(model_config: ModelConfig) -> np.ndarray:
    return random_weights(model_config)


def names_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if "model" in path.name}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_model_in_shards_is_the_same(
    model_config: ModelConfig, flat: np.ndarray, tmp_path: Path, dtype: weight_files.ExportType
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    export_model(flat, model_config, None, one, dtype=dtype)
    export_model(flat, model_config, None, many, dtype=dtype, shard_bytes=SHARD_BYTES)
    shards = sorted(many.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert names_of(many) == {*(path.name for path in shards), "model.safetensors.index.json"}
    for path in shards:
        header = int.from_bytes(path.read_bytes()[:8], "little")
        assert path.stat().st_size - 8 - header <= SHARD_BYTES
    index = json.loads((many / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == flat.size * (4 if dtype == "fp32" else 2)
    read = [find_weights(folder, model_config).read() for folder in (one, many)]
    np.testing.assert_array_equal(read[0], read[1])

    transformers = pytest.importorskip("transformers")
    theirs, loading = transformers.AutoModelForCausalLM.from_pretrained(
        many, output_loading_info=True, dtype=torch.float32
    )
    assert not any(loading.values()), loading
    decoder = Decoder(model_config)
    decoder.flat.copy_(torch.from_numpy(read[0]))
    tokens = torch.randint(0, model_config.vocabulary, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(decoder(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


def test_weights_of_an_earlier_export_do_not_stay(
    model_config: ModelConfig, flat: np.ndarray, tmp_path: Path
) -> None:
    for shard_bytes in (SHARD_BYTES, 2 * SHARD_BYTES, 10**9, SHARD_BYTES):
        flat = flat + np.float32(1)
        export_model(flat, model_config, None, tmp_path, shard_bytes=shard_bytes)
        np.testing.assert_array_equal(find_weights(tmp_path, model_config).read(), flat)
        assert not list(tmp_path.glob("*.new"))
        totals = {name.partition("-of-")[2] for name in names_of(tmp_path) if "-of-" in name}
        single = (tmp_path / "model.safetensors").exists()
        assert len(totals) + single == 1
        assert single != (tmp_path / "model.safetensors.index.json").exists()


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (OSError(28, "No space left on device"), pytest.raises(ExportError, match="No space left")),
        (KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
    ],
)
def test_an_export_that_does_not_end_leaves_the_earlier_model(
    model_config: ModelConfig,
    flat: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    told: AbstractContextManager[object],
) -> None:
    export_model(flat, model_config, None, tmp_path, shard_bytes=SHARD_BYTES)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    written: list[Path] = []
    write = weight_files.write_weights

    def write_some(path: Path, *rest: object) -> None:
        write(path, *rest)  # type: ignore[arg-type]
        written.append(path)
        if len(written) == 2:
            raise failure

    monkeypatch.setattr(export_module, "write_weights", write_some)
    with told:
        export_model(flat + np.float32(1), model_config, None, tmp_path, shard_bytes=SHARD_BYTES)
    assert len(written) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_takes_one_export_at_a_time(
    model_config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them wrote the same files, and the model had parts of two states."""
    model_config = msgspec.structs.replace(model_config, vocabulary=256)  # that of plain bytes
    flat = random_weights(model_config)
    write = weight_files.write_weights
    refused: list[str] = []

    def while_another_begins(path: Path, *rest: object) -> None:
        write(path, *rest)  # type: ignore[arg-type]
        monkeypatch.setattr(export_module, "write_weights", write)
        other = flat + np.float32(1)
        for export in (
            lambda: export_model(other, model_config, None, tmp_path, shard_bytes=SHARD_BYTES),
            lambda: export_gguf(
                other, model_config, byte_tokenizer_json(), tmp_path, name="", end_token=0
            ),
        ):
            with pytest.raises(ExportError, match="another export writes there") as error:
                export()
            refused.append(str(error.value))

    monkeypatch.setattr(export_module, "write_weights", while_another_begins)
    export_model(flat, model_config, None, tmp_path, shard_bytes=SHARD_BYTES)
    assert len(refused) == 2
    np.testing.assert_array_equal(find_weights(tmp_path, model_config).read(), flat)
    export_model(flat + np.float32(1), model_config, None, tmp_path)


def test_a_card_that_somebody_made_their_own_stays(
    model_config: ModelConfig, flat: np.ndarray, tmp_path: Path
) -> None:
    for text in (f"{CARD_MARK} first", f"{CARD_MARK} second"):
        export_model(flat, model_config, None, tmp_path, card=text.encode())
        assert (tmp_path / "README.md").read_text() == text
    (tmp_path / "README.md").write_text("licence: mine")
    export_model(flat, model_config, None, tmp_path, card=f"{CARD_MARK} third".encode())
    assert (tmp_path / "README.md").read_text() == "licence: mine"


def test_too_many_shards_are_refused(model_config: ModelConfig, tmp_path: Path) -> None:
    config = msgspec.structs.replace(model_config, num_layers=200)
    flat = np.zeros(config.num_parameters, np.float32)
    with pytest.raises(ExportError, match="allow larger"):
        export_model(flat, config, None, tmp_path / "model", shard_bytes=1)
    assert not (tmp_path / "model").exists()


def test_rounding_takes_no_second_copy_of_the_model(
    model_config: ModelConfig, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(model_config, vocabulary=500_000)
    flat = np.ones(config.num_parameters, np.float32)
    assert flat.nbytes > 60_000_000
    tracemalloc.start()
    try:
        export_model(flat, config, None, tmp_path, dtype="bf16")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A piece has 4 MB; some of its copies are alive at once.
    assert peak < 24_000_000
