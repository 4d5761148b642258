"""The bytes of text that tokens stand for: exact, or not told."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from gossamer.protocol.errors import MalformedError
from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.tokenizers.token_lengths import lengths_of_bytes, lengths_of_file
from gossamer.trainer.text.tokenizers.tokens import BpeTokenizer, ByteTokenizer, learn_bpe
from tests.support.model_folders import SPECIALS, tokenizer_json

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("Grüße an die Bäume. The trees answer with 木 and 🌳. " * 200)
    corpus = scan_corpus([path], seed=1)
    return learn_bpe(corpus, np.arange(len(corpus.keys)), 400)


@given(TEXT)
def test_of_a_vocabulary_that_was_learnt(learnt: BpeTokenizer, text: str) -> None:
    lengths = lengths_of_file(learnt.file, 512)
    assert lengths is not None
    (tokens,) = learnt.encode([text.encode()])
    assert lengths[tokens].sum() == len(text.encode())
    assert lengths[learnt.end_token] == 0
    assert lengths.shape == (512,)
    assert (lengths[learnt.vocabulary :] == 0).all(), "rows without a token"


@given(TEXT)
def test_of_an_imported_vocabulary(text: str) -> None:
    file = tokenizer_json()
    lengths = lengths_of_file(file.encode(), 320)
    assert lengths is not None
    tokens = HuggingFaceTokenizer.from_str(file).encode(text, add_special_tokens=False).ids
    assert lengths[tokens].sum() == len(text.encode())
    numbers = [HuggingFaceTokenizer.from_str(file).token_to_id(each) for each in SPECIALS]
    assert None not in numbers
    assert (lengths[[n for n in numbers if n is not None]] == 0).all(), "they are no text"


@given(TEXT)
def test_of_plain_bytes(text: str) -> None:
    (tokens,) = ByteTokenizer().encode([text.encode()])
    assert lengths_of_bytes(300)[tokens].sum() == len(text.encode())
    assert lengths_of_bytes(300)[0] == 0


def test_words_that_were_added_have_the_length_of_their_text() -> None:
    file = json.loads(tokenizer_json())
    number = 1 + max(file["model"]["vocab"].values())
    word = {"id": number, "content": "für immer", "special": False}
    file["added_tokens"].append(
        word | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    )
    lengths = lengths_of_file(json.dumps(file).encode(), 320)
    assert lengths is not None
    assert lengths[number] == len("für immer".encode())


@pytest.mark.parametrize("decoder", ["Metaspace", None, "Sequence"])
def test_a_vocabulary_of_another_kind_has_no_lengths(decoder: str | None) -> None:
    file = json.loads(tokenizer_json())
    file["decoder"] = None if decoder is None else {"type": decoder, "decoders": [{"type": "Fuse"}]}
    assert lengths_of_file(json.dumps(file).encode(), 320) is None


def test_a_token_that_is_no_byte_level_word_leaves_no_lengths() -> None:
    file = json.loads(tokenizer_json())
    file["model"]["vocab"]["▁the"] = 300
    assert lengths_of_file(json.dumps(file).encode(), 320) is None


def test_a_damaged_file_is_refused() -> None:
    with pytest.raises(MalformedError, match="not a tokenizer file"):
        lengths_of_file(b'{"model": ', 320)
    with pytest.raises(MalformedError, match="not a tokenizer file"):
        lengths_of_file(b'{"model": {"vocab": 3}, "decoder": {"type": "ByteLevel"}}', 320)
