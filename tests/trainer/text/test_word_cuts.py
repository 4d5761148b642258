"""Tokenizers of published models: their tokens by words are the library's.

Nothing is fetched: the tokenizers are learnt here, with the steps before the merges as the files of
the models have them.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from gossamer.trainer.text.sources.corpus_files import default_files
from gossamer.trainer.text.tokenizers.encoders import Encoders
from gossamer.trainer.text.tokenizers.word_cuts import cut_of
from gossamer.trainer.text.tokenizers.words import EncoderFile, TextEncoder, encode_pieces

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<tool_call>")
KINDS = ("llama3", "olmo2", "qwen2", "smollm2", "pythia")

BATCH_CHARACTERS = 4096
"""Characters whose texts are encoded in one call, which costs more than a text."""

ALPHABET = (
    "abstvremdlSTVREMDL'019 .!-;\n\t\r\x0b\x0c\x00\x1c\x85\xa0\u2028\u3000\u200b\u0345\u0301\u0323"
    "²½éÅß\u017f\u1e9b\u212a\u212b\u037e\u0663\u2167中한\u1100\u1161\u0e33ﬆ\U0001f600\U0001d7d8"
)
PIECES = (*ALPHABET, *SPECIALS, "'re", "'LL", "'\u017f", "\r\n", "  ", " word", "1234", "x" * 60)


def split(expression: str, behavior: str, *, invert: bool = False) -> Any:
    made: Any = pre_tokenizers.Split
    return made(Regex(expression), behavior, invert)


def steps_of(kind: str) -> Any:
    whole: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    match kind:
        case "llama3":
            steps = [split(LLAMA3, "isolated"), plain]
        case "olmo2":
            steps = [split(LLAMA3, "removed", invert=True), plain]
        case "qwen2":
            steps = [split(QWEN2, "isolated"), plain]
        case "smollm2":
            steps = [pre_tokenizers.Digits(individual_digits=True), whole]
        case _:
            return whole
    return pre_tokenizers.Sequence(steps)


@functools.cache
def texts() -> Sequence[str]:
    """Read once: to list all files of the library takes longer than a tokenizer."""
    return [path.read_text() for path in default_files()[:40]]


@functools.cache
def learnt(kind: str) -> EncoderFile:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = steps_of(kind)
    if kind in ("qwen2", "pythia"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer
    tokenizer.train_from_iterator(
        texts(),
        trainer(
            vocab_size=2_000,
            special_tokens=list(SPECIALS[:2]),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens(list(SPECIALS[2:]))
    file = msgspec.json.decode(tokenizer.to_str())
    file["model"]["ignore_merges"] = kind == "llama3"
    return EncoderFile(msgspec.json.encode(file), specials_are_text=False, begin_tokens=(7,))


def encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


class Both:
    """A tokenizer twice: by words, and by the library alone."""

    def __init__(self, kind: str) -> None:
        self.file = learnt(kind)
        self.library = self.file.open()
        self.encoder = TextEncoder(self.file.open(), self.file)

    def by_words(self, text: str) -> list[int]:
        [tokens] = self.all_by_words([text])
        return tokens

    def by_library(self, text: str) -> list[int]:
        [tokens] = self.all_by_library([text])
        return tokens

    def all_by_words(self, texts: Sequence[str]) -> list[list[int]]:
        return [tokens.tolist()[1:] for tokens in self.encoder.encode(encoded(texts))]

    def all_by_library(self, texts: Sequence[str]) -> list[list[int]]:
        return [tokens.tolist() for tokens in encode_pieces(self.library, encoded(texts))]

    def is_cut(self, text: str) -> bool:
        """Whether the library is not asked for the whole text."""
        assert self.encoder.words is not None
        return self.encoder.words._words(text) is not None


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


@given(text=st.lists(st.one_of(st.sampled_from(PIECES), st.characters(codec="utf-8"))).map("".join))
def test_words_have_the_tokens_of_the_library(both: Both, text: str) -> None:
    assert both.by_words(text) == both.by_library(text)


@given(text=st.lists(st.sampled_from([*ALPHABET[:40], "'re", "'LL", "\r\n", " word"])).map("".join))
def test_ascii_has_the_tokens_of_the_library(both: Both, text: str) -> None:
    assert both.by_words(text) == both.by_library(text)


def contexts_of(character: str) -> str:
    c = character
    return f"a{c}0{c} {c}{c}!{c}'{c}\n{c}  x'{c}e'{c}l'r{c}'v{c}'l{c}x 12{c}3\r\n{c} \t{c}a '{c}"


def differing(both: Both, code_points: Sequence[int]) -> tuple[list[str], int]:
    """Returns the characters for which the tokens differ, and how many are left to the library."""
    found: list[str] = []
    num_left = 0
    for first in range(0, len(code_points), BATCH_CHARACTERS):
        characters = list(map(chr, code_points[first : first + BATCH_CHARACTERS]))
        contexts = list(map(contexts_of, characters))
        num_left += sum(not both.is_cut(text) for text in contexts)
        pairs = zip(both.all_by_words(contexts), both.all_by_library(contexts), strict=True)
        found += [
            each for each, (one, other) in zip(characters, pairs, strict=True) if one != other
        ]
    return found, num_left


def test_each_character_is_of_the_librarys_class(both: Both) -> None:
    """Of the first characters every third, and of all others some. `python -m` this module has
    all that Unicode names."""
    code_points = [*range(1, 0x3100, 3), *range(0x3100, 0xD800, 97), *range(0xE000, 0x110000, 1013)]
    wrong, num_left = differing(both, code_points)
    assert not wrong
    assert num_left < len(code_points) / 100


def test_a_text_with_an_added_token_is_the_librarys(both: Both) -> None:
    text = "one <|im_start|> two<tool_call>3"
    assert not both.is_cut(text)
    tokens = both.by_words(text)
    assert tokens == both.by_library(text)
    assert both.library.token_to_id("<|im_start|>") in tokens
    assert both.is_cut("one < two")


def test_a_token_that_only_the_normal_form_spells_is_found() -> None:
    both = Both("qwen2")
    both.library.add_tokens(["K;"])
    file = EncoderFile(both.library.to_str().encode(), specials_are_text=False)
    encoder = TextEncoder(file.open(), file)
    for text in ("a \u212a\u037e b", "a K; b", "a \u212a b"):
        [tokens] = encoder.encode([text.encode()])
        assert tokens.tolist() == both.by_library(text)


def test_processes_have_the_tokens_of_this_one(both: Both) -> None:
    batch = [b"one text 123", "zw\u00f6lf <tool_call> don\u017ft".encode()]
    with closing(Encoders(both.file, 2)) as encoders:
        [(_, tokens)] = encoders.encode([batch])
    assert [each.tolist() for each in tokens] == [
        each.tolist() for each in both.encoder.encode(batch)
    ]
    assert tokens[0][0] == 7


@pytest.mark.parametrize(
    "change",
    [
        {"Regex": QWEN2 + "|x"},
        {"String": " "},
    ],
)
def test_an_expression_that_is_not_known_is_left_to_the_library(change: dict[str, str]) -> None:
    file = msgspec.json.decode(learnt("qwen2").tokenizer_json)
    assert cut_of(msgspec.json.encode(file), specials_are_text=False) is not None
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"] = change
    assert cut_of(msgspec.json.encode(file), specials_are_text=False) is None


def test_a_split_that_removes_what_it_finds_is_left_to_the_library() -> None:
    file = msgspec.json.decode(learnt("llama3").tokenizer_json)
    file["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"
    assert cut_of(msgspec.json.encode(file), specials_are_text=False) is None


def main() -> None:
    """Compares all characters that Unicode names, and some that it does not."""
    code_points = [
        code_point
        for code_point in (*range(1, 0xD800), *range(0xE000, sys.maxunicode + 1))
        if unicodedata.category(chr(code_point)) not in ("Cn", "Co") or code_point % 101 == 0
    ]
    for kind in KINDS:
        wrong, num_left = differing(Both(kind), code_points)
        print(
            f"{kind}: {len(code_points):,} characters, {len(wrong)} differ, "
            f"{num_left} are left to the library",
            flush=True,
        )


if __name__ == "__main__":
    main()
