"""The bytes of text that each token stands for.

A token of plain bytes, or of a byte-level vocabulary (all those that Gossamer learns, and those of
Llama 3, SmolLM2, Qwen and OLMo 2), stands for the same bytes wherever it occurs. So the length of a
text is the sum over its tokens. Tokens that are no text, such as the one that ends a document, have
no bytes. Other vocabularies (SentencePiece's) put spaces in and take some out, so theirs have no
such lengths.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import pre_tokenizers

from gossamer.protocol.errors import MalformedError
from gossamer.trainer.text.tokenizers.tokens import BYTES_VOCABULARY, END_OF_DOCUMENT

TokenLengths = npt.NDArray[np.int32]

_BYTE_LEVEL = "ByteLevel"


class _Decoder(msgspec.Struct):
    type: str = ""
    decoders: list[_Decoder] = []


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    """The parts of a ``tokenizer.json`` that say what its tokens stand for."""

    model: msgspec.Raw
    decoder: _Decoder | None = None
    added_tokens: list[_AddedToken] = []


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int]


def lengths_of_bytes(num_rows: int) -> TokenLengths:
    """Returns the lengths of plain bytes: one, and none of the end of a document. Shape:
    (num_rows,)."""
    lengths = np.zeros(num_rows, np.int32)
    lengths[:BYTES_VOCABULARY] = 1
    lengths[END_OF_DOCUMENT] = 0
    return lengths


def lengths_of_file(tokenizer_json: bytes, num_rows: int) -> TokenLengths | None:
    """Returns the bytes of each token of a byte-level vocabulary; None for another one.

    Args:
        num_rows: tokens that the model knows; those that the file lacks have no bytes.

    Shape: (num_rows,).

    Raises:
        MalformedError: it is no file of the `tokenizers` library.
    """
    try:
        file = msgspec.json.decode(tokenizer_json, type=_TokenizerFile)
        if not _is_byte_level(file.decoder):
            return None
        vocabulary = msgspec.json.decode(file.model, type=_Vocabulary).vocab
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a tokenizer file: {error}") from error
    lengths = np.zeros(num_rows, np.int32)
    added = {token.id: token for token in file.added_tokens}
    alphabet = frozenset(pre_tokenizers.ByteLevel.alphabet())
    for text, number in vocabulary.items():
        if number in added or not 0 <= number < num_rows:
            continue
        if not alphabet.issuperset(text):
            return None  # it says byte level, and has a token that is none
        lengths[number] = len(text)
    for number, token in added.items():
        if 0 <= number < num_rows and not token.special:
            lengths[number] = len(token.content.encode("utf-8", "replace"))
    return lengths


def _is_byte_level(decoder: _Decoder | None) -> bool:
    """Returns whether a decoder only turns byte-level characters into bytes."""
    if decoder is None:
        return False
    names = [decoder.type] if decoder.type != "Sequence" else [d.type for d in decoder.decoders]
    return names == [_BYTE_LEVEL]
