"""Continuing a text: the same logits with and without kept keys and values, and what is drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import tokenizers
import torch

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.generation.continuation import (
    Continuation,
    GenerationError,
    RequestError,
    _choose,
    _texts,
)
from gossamer.trainer.ipc import memory
from gossamer.trainer.ipc.generation import Done, GenerateText, LoadModel, Text
from gossamer.trainer.layers import KeyValues
from gossamer.trainer.model import Decoder
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.text.tokenizers.tokens import ByteTokenizer
from tests.support.model_folders import LLAMA3_ROPE, config_of_family, make_folder

CONFIGS = [
    config_of_family("llama", rope_scaling=LLAMA3_ROPE),
    config_of_family("qwen2"),
    config_of_family("qwen3"),
    config_of_family("olmo2"),
]


def continuation_of(model: ModelConfig, flat: np.ndarray, **changes: Any) -> Continuation:
    """A model on plain bytes."""
    descriptor = memory.create("test", model.num_parameters)
    memory.open_vector(descriptor, model.num_parameters)[:] = flat
    given: dict[str, Any] = {"tokenizer": "bytes", "tokenizer_block": b"", "device": "cpu"}
    return Continuation(LoadModel(model=model, base_fd=descriptor, **(given | changes)))


def request(**changes: Any) -> GenerateText:
    """A request at temperature 0."""
    given: dict[str, Any] = {"prompt": "a text", "tokens": 20, "temperature": 0.0, "seed": 0}
    return GenerateText(**(given | changes))


def answer_of(continuation: Continuation, **changes: Any) -> tuple[list[str], Done]:
    """The pieces of an answer, and its end."""
    *pieces, done = continuation.answer(request(**changes))
    assert isinstance(done, Done)
    return [piece.text for piece in pieces if isinstance(piece, Text)], done


def generate(continuation: Continuation, **changes: Any) -> list[str]:
    return answer_of(continuation, **changes)[0]


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
    continuation = continuation_of(
        pretrained.model,
        pretrained.weights.read(),
        tokenizer="files",
        tokenizer_block=pretrained.files.pack(),
    )
    ours = "".join(generate(continuation))
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
        "".join(generate(continuation_of(bytes_model, flat), temperature=1.0, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_text_may_be_longer_than_the_context(bytes_model: ModelConfig) -> None:
    flat = drawn(bytes_model)
    assert bytes_model.context == 16
    continuation = continuation_of(bytes_model, flat)
    pieces = generate(continuation, prompt="x" * 40, tokens=50, temperature=1.0)
    assert len("".join(pieces)) > 25


def test_the_end_of_a_text_ends_it(bytes_model: ModelConfig) -> None:
    decoder = Decoder(bytes_model)
    decoder.flat.zero_()  # all tokens are equally likely, so the first one: the end of a document
    pieces, done = answer_of(continuation_of(bytes_model, decoder.flat.numpy()))
    assert pieces == []
    assert done == Done(reason="stop", prompt_tokens=6, tokens=1)


def test_half_a_character_waits_for_the_rest(bytes_model: ModelConfig) -> None:
    # A model that repeats the last byte that it sees: the embedding is the head, and nothing lies
    # between.
    decoder = Decoder(bytes_model)
    decoder.flat.zero_()
    torch.nn.init.orthogonal_(decoder.embed_tokens.weight, generator=torch.Generator())
    decoder.norm.weight.data.fill_(1.0)
    continuation = continuation_of(bytes_model, decoder.flat.numpy())
    pieces = generate(continuation, prompt="\u00fc", tokens=3)
    assert pieces == ["\N{REPLACEMENT CHARACTER}" * 3]


class ByteFallback:
    """A tokenizer of the kind of Llama 2, TinyLlama and Mistral 7B: a character that it does not
    know has a token for each byte. Its decoder takes a run of such tokens as a whole."""

    def __init__(self) -> None:
        known = ["\u2581", *"abcdefghijklmnopqrstuvwxyz."]
        words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *known]
        replaced = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
        fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        model = {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [],
        }
        normalizers = [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ]
        spec = {
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "decoder": {"type": "Sequence", "decoders": [replaced, fallback, fuse, strip]},
            "model": model,
        }
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))

    def numbers(self, text: str) -> list[int]:
        numbers: list[int] = self._tokenizer.encode(text).ids
        return numbers

    def decode(self, tokens: np.ndarray) -> str:
        text: str = self._tokenizer.decode(tokens.tolist())
        return text


@pytest.mark.parametrize(
    "prompt", ["say it", "\u9b31\u8594\u8587\u9f4b", "a\u9b31\u8594\u8587\u9f4bb"]
)
@pytest.mark.parametrize(
    "text",
    [
        "family \U0001f468\u200d\U0001f469\u200d\U0001f467 ok.",
        "kanji \u9b31\u8594\u8587\u9f4b\u9b31\u8594 end.",
        "\u9b31\u8594\u8587\u9f4b\u9b31\u8594\u9b31\u8594\u8587\u9f4b\u9b31\u8594",
        "caf\u00e9 \u2764\ufe0f\U0001f525\u2764\ufe0f ok.",
    ],
)
def test_pieces_join_to_the_text_where_characters_have_many_tokens(prompt: str, text: str) -> None:
    tokenizer = ByteFallback()
    before, numbers = tokenizer.numbers(prompt), tokenizer.numbers(text)
    whole = tokenizer.decode(np.array([*before, *numbers]))
    pieces = list(_texts(cast(Any, tokenizer), before, iter(numbers)))
    assert prompt + "".join(pieces) == whole
    assert len(pieces) >= len(text), "a character is said when its last byte is there"


@pytest.mark.parametrize(("end", "said"), [("", "\ufffd\ufffd"), (".", "\ufffd\ufffd.")])
def test_half_a_character_does_not_spoil_those_before_it(end: str, said: str) -> None:
    """Not even where it is the last, or where the model never writes its rest."""
    tokenizer = ByteFallback()
    half = tokenizer.numbers("\U0001f525")[1:3]
    numbers = [*tokenizer.numbers("\u9b31\u8594"), *half, *tokenizer.numbers(end)[1:]]
    before = tokenizer.numbers("say it")
    pieces = list(_texts(cast(Any, tokenizer), before, iter(numbers)))
    assert "".join(pieces) == " \u9b31\u8594" + said


def test_bytes_that_are_no_character_do_not_wait_for_the_end() -> None:
    """A model that is young, or trained on something else, may never write a whole character."""
    drawn = 0

    def numbers() -> Iterator[int]:
        nonlocal drawn
        for _ in range(20):
            drawn += 1
            yield 0xFF

    said, waiting = "", 0
    for piece in _texts(ByteTokenizer(), [ord("a")], numbers()):
        waiting = max(waiting, drawn - len(said))
        said += piece
    assert said == "\ufffd" * 20
    assert waiting <= 4


def test_characters_between_bytes_that_are_none_stay_whole() -> None:
    text = b"\xff" * 5 + "\u9b31".encode() + b"\xc3" * 6 + "\U0001f525.".encode() + b"\xff" * 4
    assert "".join(_texts(ByteTokenizer(), [ord("a")], iter(text))) == text.decode(errors="replace")


def test_a_long_text_is_not_decoded_from_its_beginning() -> None:
    lengths: list[int] = []

    class Counting(ByteFallback):
        def decode(self, tokens: np.ndarray) -> str:
            lengths.append(len(tokens))
            return super().decode(tokens)

    tokenizer = Counting()
    numbers = tokenizer.numbers("caf\u00e9 \U0001f525 " * 100)
    list(_texts(cast(Any, tokenizer), tokenizer.numbers("a" * 50), iter(numbers)))
    assert max(lengths) <= 32


def test_a_model_that_diverged_says_so(bytes_model: ModelConfig) -> None:
    flat = drawn(bytes_model)
    flat[:] = np.inf
    with pytest.raises(GenerationError, match="diverged"):
        generate(continuation_of(bytes_model, flat))


def test_an_answer_ends_with_the_context_if_it_may_not_go_beyond(bytes_model: ModelConfig) -> None:
    continuation = continuation_of(bytes_model, drawn(bytes_model))
    given = {"tokens": 50, "temperature": 1.0, "seed": 4, "beyond_context": False}
    _, done = answer_of(continuation, prompt="x" * 10, **given)
    assert done == Done(reason="length", prompt_tokens=10, tokens=7)  # the last one is not read
    with pytest.raises(RequestError, match="the prompt has 16 tokens; the model takes 16"):
        generate(continuation, prompt="x" * 16, **given)
    _, done = answer_of(continuation, **(given | {"tokens": 3}))
    assert (done.reason, done.tokens) == ("length", 3)


def repeating(model: ModelConfig) -> Continuation:
    """A model that says the letters after a letter, one after the other, and begins anew after z:
    between the embedding and the head lies nothing, and the head has its rows moved by one."""
    untied = msgspec.structs.replace(model, tied_embeddings=False, width=64)
    decoder = Decoder(untied)
    decoder.flat.zero_()
    torch.nn.init.orthogonal_(decoder.embed_tokens.weight, generator=torch.Generator())
    decoder.norm.weight.data.fill_(1.0)
    following = torch.arange(256) - 1
    following[ord("a")] = ord("z")
    decoder.lm_head.weight.data.copy_(decoder.embed_tokens.weight[following])
    return continuation_of(untied, decoder.flat.numpy())


@pytest.mark.parametrize(
    ("stops", "text", "reason"),
    [
        ((), "bcdefghi", "length"),
        (("ef",), "bcd", "stop"),
        (("zz", "e"), "bcd", "stop"),
        (("efz",), "bcdefghi", "length"),
        (("hij",), "bcdefghi", "length"),
        (("b",), "", "stop"),
    ],
)
def test_a_stop_ends_the_text_before_it(
    bytes_model: ModelConfig, stops: tuple[str, ...], text: str, reason: str
) -> None:
    pieces, done = answer_of(repeating(bytes_model), prompt="a", tokens=8, stops=stops)
    assert "".join(pieces) == text
    assert "" not in pieces
    assert done.reason == reason


def test_a_text_that_nobody_wants_ends_at_once(bytes_model: ModelConfig) -> None:
    said: list[object] = []
    asked = request(prompt="a", tokens=10_000)
    for answer in repeating(bytes_model).answer(asked, lambda: len(said) >= 3):
        said.append(answer)
    assert said == [Text("b"), Text("c"), Text("d"), Done(reason="stop", prompt_tokens=1, tokens=3)]


def test_only_the_likeliest_tokens_are_drawn_with_top_p(bytes_model: ModelConfig) -> None:
    flat = drawn(bytes_model)
    continuation = continuation_of(bytes_model, flat)
    likeliest = generate(continuation)
    hot = {"temperature": 5.0, "seed": 1}
    for top_p in (0.0, 1e-6):
        assert "".join(generate(continuation, top_p=top_p, **hot)) == "".join(likeliest)
    assert "".join(generate(continuation, top_p=1.0, **hot)) != "".join(likeliest)
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    share = torch.softmax(logits, 0)
    random = torch.Generator().manual_seed(0)
    asked = request(temperature=1.0, top_p=float(share[0] + share[1]) - 1e-6)
    drawn_numbers = [_choose(logits, asked, random) for _ in range(400)]
    assert set(drawn_numbers) == {0, 1}
    assert drawn_numbers.count(0) / 400 == pytest.approx(
        float(share[0] / (share[0] + share[1])), abs=0.1
    )


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-3])
def test_a_tiny_temperature_takes_the_likeliest(temperature: float) -> None:
    logits = torch.tensor([12.0, -30.0, 12.5, 3.0])
    random = torch.Generator().manual_seed(0)
    assert _choose(logits, request(temperature=temperature), random) == 2
    assert _choose(-logits, request(temperature=temperature), random) == 1


def test_other_parameters_are_taken_when_told(bytes_model: ModelConfig) -> None:
    flat = drawn(bytes_model)
    descriptor = memory.create("test", bytes_model.num_parameters)
    shared = memory.open_vector(descriptor, bytes_model.num_parameters)
    shared[:] = flat
    task = LoadModel(
        model=bytes_model,
        base_fd=descriptor,
        tokenizer="bytes",
        tokenizer_block=b"",
        device="cpu",
    )
    continuation = Continuation(task)
    before = generate(continuation)
    shared[:] = -flat
    assert generate(continuation) == before
    continuation.reload()
    assert generate(continuation) != before
