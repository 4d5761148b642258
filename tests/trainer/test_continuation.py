"""Continuing a text: the same logits with and without kept keys and values, and what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.continuation import GenerationError, generate
from gossamer.trainer.ipc import memory
from gossamer.trainer.ipc.generation import GenerateText
from gossamer.trainer.model import Decoder, KeyValues
from gossamer.trainer.pretrained.folder import open_pretrained
from tests.support.model_folders import LLAMA3_ROPE, config_of_family, make_folder

CONFIGS = [
    config_of_family("llama", rope_scaling=LLAMA3_ROPE),
    config_of_family("qwen2"),
    config_of_family("qwen3"),
    config_of_family("olmo2"),
]


def task_of(model: ModelConfig, flat: np.ndarray, **changes: Any) -> GenerateText:
    """A task on plain bytes, at temperature 0."""
    descriptor = memory.create("test", model.num_parameters)
    memory.open_vector(descriptor, model.num_parameters)[:] = flat
    given: dict[str, Any] = {
        "tokenizer": "bytes",
        "tokenizer_block": b"",
        "prompt": "a text",
        "tokens": 20,
        "temperature": 0.0,
        "seed": 0,
        "device": "cpu",
    }
    return GenerateText(model=model, base_fd=descriptor, **(given | changes))


@pytest.fixture
def bytes_model(model_config: ModelConfig) -> ModelConfig:
    return msgspec.structs.replace(model_config, vocabulary=256)


def drawn(model: ModelConfig, scale: float = 1.0) -> np.ndarray:
    decoder = Decoder(model)
    decoder.initialise(5)
    return decoder.flat.numpy() * np.float32(scale)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_kept_keys_and_values_change_nothing(config: dict[str, Any], tmp_path: Path) -> None:
    make_folder(tmp_path / "model", config)
    pretrained = open_pretrained(tmp_path / "model")
    decoder = Decoder(pretrained.model)
    decoder.flat.copy_(torch.from_numpy(pretrained.weights.read()))
    tokens = torch.randint(0, 320, (1, 30), generator=torch.Generator().manual_seed(0))
    past = [KeyValues(64) for _ in decoder.layers]
    with torch.no_grad():
        whole = decoder(tokens)[0]
        steps = [decoder.next_logits(tokens[:, :10], past)]
        steps += [decoder.next_logits(tokens[:, at : at + 1], past) for at in range(10, 30)]
    torch.testing.assert_close(torch.cat(steps), whole[9:], rtol=1e-5, atol=1e-5)


def test_the_likeliest_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    make_folder(tmp_path / "model", config_of_family("llama"))
    pretrained = open_pretrained(tmp_path / "model")
    task = task_of(
        pretrained.model,
        pretrained.weights.read(),
        tokenizer="files",
        tokenizer_block=pretrained.files.pack(),
    )
    ours = "".join(generate(task))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    # Rows of the embedding that no token has are not drawn here.
    unused = list(range(len(tokenizer), 320))
    given = tokenizer("a text", return_tensors="pt")
    settings = {"do_sample": False, "suppress_tokens": unused, "max_new_tokens": 20}
    answer = theirs.generate(**given, **settings)[0, given.input_ids.shape[1] :]
    assert ours
    assert ours == tokenizer.decode(answer, skip_special_tokens=True)


def test_a_seed_says_what_is_drawn(bytes_model: ModelConfig) -> None:
    flat = drawn(bytes_model)
    texts = [
        "".join(generate(task_of(bytes_model, flat, temperature=1.0, seed=seed)))
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_text_may_be_longer_than_the_context(bytes_model: ModelConfig) -> None:
    flat = drawn(bytes_model)
    assert bytes_model.context == 16
    task = task_of(bytes_model, flat, prompt="x" * 40, tokens=50, temperature=1.0)
    pieces = list(generate(task))
    assert len("".join(pieces)) > 25


def test_the_end_of_a_text_ends_it(bytes_model: ModelConfig) -> None:
    decoder = Decoder(bytes_model)
    decoder.flat.zero_()  # all tokens are equally likely, so the first one: the end of a document
    assert list(generate(task_of(bytes_model, decoder.flat.numpy()))) == []


def test_half_a_character_waits_for_the_rest(bytes_model: ModelConfig) -> None:
    # A model that repeats the last byte that it sees: the embedding is the head, and nothing lies
    # between.
    decoder = Decoder(bytes_model)
    decoder.flat.zero_()
    torch.nn.init.orthogonal_(decoder.embed_tokens.weight, generator=torch.Generator())
    decoder.norm.weight.data.fill_(1.0)
    task = task_of(bytes_model, decoder.flat.numpy(), prompt="\u00fc", tokens=4)
    assert "".join(generate(task)) == "\N{REPLACEMENT CHARACTER}" * 4
    assert len(list(generate(task))) == 1


def test_a_model_that_diverged_says_so(bytes_model: ModelConfig) -> None:
    flat = drawn(bytes_model)
    flat[:] = np.inf
    with pytest.raises(GenerationError, match="diverged"):
        list(generate(task_of(bytes_model, flat)))
