"""The table of words gives the tokens of the library, for every character and in every process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.ids import digest_of
from gossamer.trainer.text import shards as shards_module
from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.sources.corpus_errors import CorpusError
from gossamer.trainer.text.sources.corpus_files import default_files
from gossamer.trainer.text.tokenizers import encoders as encoders_module
from gossamer.trainer.text.tokenizers import words as words_module
from gossamer.trainer.text.tokenizers.encoders import Encoders, num_processes
from gossamer.trainer.text.tokenizers.tokens import BpeTokenizer, learn_bpe
from gossamer.trainer.text.tokenizers.word_cuts import cut_of
from gossamer.trainer.text.tokenizers.words import encode_pieces

ALPHABET = "abst'01 .!-\n\t\r\x0b\x1c\x85\xa0\u3000\u200b²½é\u03c3中\u0345\U0001f600"
PIECES = (*ALPHABET, "'re", "'ll", "'d", "<|endoftext|>", " word", "x" * 60)


@pytest.fixture(scope="module")
def tokenizer() -> BpeTokenizer:
    corpus = scan_corpus(default_files()[:40], seed=1)
    return learn_bpe(corpus, np.arange(len(corpus.keys)), 2_000)


def by_library(tokenizer: BpeTokenizer, text: str) -> list[int]:
    [tokens] = encode_pieces(tokenizer._tokenizer, [text.encode()])
    found: list[int] = tokens.tolist()
    return found


def by_words(tokenizer: BpeTokenizer, text: str) -> list[int]:
    assert tokenizer._encoder.words is not None
    [tokens] = tokenizer.encode([text.encode()])
    assert tokens.dtype == np.uint32
    found: list[int] = tokens.tolist()
    return found


@given(text=st.lists(st.one_of(st.sampled_from(PIECES), st.characters(codec="utf-8"))).map("".join))
def test_words_have_the_tokens_of_the_library(tokenizer: BpeTokenizer, text: str) -> None:
    assert by_words(tokenizer, text) == by_library(tokenizer, text)


def test_each_character_is_of_the_librarys_class(tokenizer: BpeTokenizer) -> None:
    characters = [chr(n) for n in range(1, 0x3100)]
    text = "".join(f"a{c}0{c} {c}{c}!{c}'s{c}\n{c}  x" for c in characters)
    assert by_words(tokenizer, text) == by_library(tokenizer, text)


def test_a_full_table_is_emptied_and_long_words_are_not_kept(
    tokenizer: BpeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "WORDS_KEPT_MAX", 50)
    monkeypatch.setattr(words_module, "CLASSES_KEPT_MAX", 3)
    small = BpeTokenizer(tokenizer.file)
    text = " ".join(f"{n} w{n}é{chr(0x3B1 + n % 9)} {'long' * 20}{n}" for n in range(400))
    assert by_words(small, text) == by_library(small, text)
    words = small._encoder.words
    assert words is not None
    assert 0 < len(words) <= 50
    assert max(map(len, words)) <= words_module.WORD_CHARACTERS_MAX


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
        {"pre_tokenizer": None},
        {"added_tokens": [{"content": "\u732b", "special": False}]},
        {"model": {"type": "BPE", "dropout": 0.5}},
        {"model": {"type": "WordPiece"}},
    ],
)
def test_a_tokenizer_that_does_more_is_left_to_the_library(
    tokenizer: BpeTokenizer, change: dict[str, object]
) -> None:
    assert cut_of(tokenizer.file, specials_are_text=True) is not None
    file = msgspec.json.decode(tokenizer.file) | change
    assert cut_of(msgspec.json.encode(file), specials_are_text=True) is None
    assert cut_of(b"{}", specials_are_text=True) is None


def batches_of(number: int, seed: int = 1) -> Iterator[list[bytes]]:
    draw = random.Random(seed)
    for n in range(number):
        yield [f"batch {n} é {draw.random()}\n".encode() * draw.randrange(50) for _ in range(5)]


def test_processes_give_each_batch_its_tokens_in_order(tokenizer: BpeTokenizer) -> None:
    assert tokenizer.elsewhere is not None
    with closing(Encoders(tokenizer.elsewhere, 3)) as encoders:
        there = list(encoders.encode(batches_of(20)))
    assert [batch for batch, _ in there] == list(batches_of(20))
    for batch, tokens in there:
        expected = tokenizer.encode(batch)
        assert [each.tolist() for each in tokens] == [each.tolist() for each in expected]
    assert all(process._process.poll() is not None for process in encoders._processes)


def test_a_process_that_dies_is_named_and_none_is_left(tokenizer: BpeTokenizer) -> None:
    assert tokenizer.elsewhere is not None
    with closing(Encoders(tokenizer.elsewhere, 2)) as encoders:
        answers = encoders.encode(batches_of(40))
        next(answers)
        for process in encoders._processes:
            process.kill()
        with pytest.raises(CorpusError, match="exit status -9"):
            list(answers)
    assert all(process._process.poll() is not None for process in encoders._processes)


@pytest.mark.long
def test_shards_do_not_depend_on_the_number_of_processes(
    tokenizer: BpeTokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(6):
        lines = (f"{number} {n} {'word ' * (n % 30)}ü" for n in range(2_000))
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
    corpus = scan_corpus(sorted(tmp_path.iterdir()), seed=1)

    def index_of(number: int) -> object:
        monkeypatch.setattr(shards_module, "num_processes", lambda _num_bytes: number)
        monkeypatch.setattr(shards_module, "_BATCH_BYTES_A_CORE", 10_000)
        return shards_module.cut_corpus(
            corpus, "bpe", 2_000, 32, put=digest_of, tokenizer=tokenizer
        ).index

    assert index_of(1) == index_of(2) == index_of(3)


def test_little_text_is_not_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_processes(10_000_000) == 0
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert num_processes(10**12) == encoders_module.PROCESSES_MAX
