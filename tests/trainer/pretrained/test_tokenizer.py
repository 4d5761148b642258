"""The tokenizer of a folder: the tokens of `transformers`, and where documents begin and end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.pretrained.tokenizer import ImportedTokenizer, tokenizer_of
from tests.support.model_folders import BEGIN, END, config_of_family, make_folder

TEXTS = ["A text.\nWith \u00fc and \u6f22.", "", f"one{END}two <|im_end|> three"]


def made(folder: Path, *, begins: bool) -> ImportedTokenizer:
    make_folder(folder, config_of_family("llama"), begins=begins)
    return tokenizer_of(folder, open_pretrained(folder).model)


@pytest.mark.parametrize("begins", [False, True])
def test_tokens_are_those_of_transformers(tmp_path: Path, begins: bool) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = made(tmp_path / "model", begins=begins)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.end_token == theirs.eos_token_id
    assert tokenizer.vocabulary == len(theirs)
    for text, tokens in zip(
        TEXTS, tokenizer.encode([text.encode() for text in TEXTS]), strict=True
    ):
        assert tokens.tolist() == theirs(text).input_ids
        decoded = theirs.decode(tokens, skip_special_tokens=True)
        assert tokenizer.decode(tokens) == decoded


def test_a_long_text_has_one_beginning(tmp_path: Path) -> None:
    tokenizer = made(tmp_path / "model", begins=True)
    text = "line\n" * 300_000  # cut into pieces
    (tokens,) = tokenizer.encode([text.encode()])
    assert len(tokens) == 1 + len(text)
    assert np.flatnonzero(tokens == tokenizer.begin_tokens[0]).tolist() == [0]


def test_settings_of_a_caller_in_the_file_cut_and_fill_nothing(tmp_path: Path) -> None:
    tokenizer = made(tmp_path / "model", begins=False)
    path = tmp_path / "model" / "tokenizer.json"
    document = json.loads(path.read_text())
    document["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    document["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|pad|>",
    }  # fmt: skip
    path.write_text(json.dumps(document))
    again = tokenizer_of(tmp_path / "model", open_pretrained(tmp_path / "model").model)
    texts = [b"ab", b"a longer text"]
    for one, other in zip(tokenizer.encode(texts), again.encode(texts), strict=True):
        assert one.tolist() == other.tolist()


def test_generation_stops_at_every_end_that_the_files_name(tmp_path: Path) -> None:
    assert made(tmp_path / "model", begins=False).stop_tokens == {1, 2}


def test_the_end_of_a_text_comes_from_the_file_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = make_folder(folder, config_of_family("llama", eos_token_id=[2, 1]))
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    assert tokenizer_of(folder, model).end_token == 2
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": BEGIN}}))
    assert tokenizer_of(folder, model).end_token == 3


def test_keys_that_are_missing_have_the_defaults_of_the_class() -> None:
    kept = dict.fromkeys(
        ("num_key_value_heads", "rms_norm_eps", "rope_theta", "max_position_embeddings"), ...
    )
    widths = {"hidden_size": 4096, "num_attention_heads": 32}
    transformers = pytest.importorskip("transformers")
    for family, extra in (
        ("llama", {}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": ...}),
        ("olmo2", {}),
    ):
        config = config_of_family(family, **widths, **kept, **extra)  # type: ignore[arg-type]
        model = model_of_config(config)
        theirs = transformers.AutoConfig.for_model(**config)
        assert model.num_kv_heads == theirs.num_key_value_heads, family
        assert model.norm_epsilon == theirs.rms_norm_eps, family
        assert model.rope_theta == theirs.rope_parameters["rope_theta"], family
        assert model.context == theirs.max_position_embeddings, family
        assert model.head_width == (getattr(theirs, "head_dim", None) or 128), family


def test_an_explicit_null_means_a_key_head_for_each_head() -> None:
    config = config_of_family("mistral", num_key_value_heads=None)
    assert model_of_config(config).num_kv_heads == 4
