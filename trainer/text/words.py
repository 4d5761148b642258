"""Tokens of text by its words: each different word goes through the byte-pair merges once.

Byte-level BPE first cuts text into words, and merges nothing across them. The library does that
anew for each of them, with a regular expression of Unicode classes, and takes some 0.4 seconds of
a core for a megabyte. Here a word that was met before costs a look into a table, and text is cut by
an expression of ASCII classes: a fifth of the time or less, for the same tokens.

Other characters than ASCII are first replaced by an ASCII one of their class. The class is asked
of the library, so that both cut alike whatever Unicode version each knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import pre_tokenizers

WORDS_KEPT_MAX = 200_000
"""Words in the table, some 200 bytes each. It is emptied when it is full: the frequent words are
soon there again, and filling it takes some two seconds."""

WORD_CHARACTERS_MAX = 48
"""Longer words are hardly met twice."""

CLASSES_KEPT_MAX = 150_000
"""Characters whose class is kept: about as many as Unicode names."""

_LETTER, _NUMBER, _SPACE, _OTHER = "a", "0", "\t", "!"
"""A character of each class. The letter is in none of the endings that an apostrophe begins, and
the space is not the blank that belongs to the word behind it."""

# The expression of GPT-2, for text of ASCII.
_WORDS: Callable[[str], list[str]] = re.compile(
    r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\t-\r A-Za-z0-9]+"
    r"|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
).findall
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class _AddedToken(msgspec.Struct):
    content: str
    special: bool


class _PreTokenizer(msgspec.Struct):
    type: str
    add_prefix_space: bool = True
    use_regex: bool = True


class _Model(msgspec.Struct):
    type: str
    dropout: float | None = None


class _File(msgspec.Struct):
    """What decides in a `tokenizer.json` how text is cut into words."""

    model: _Model
    pre_tokenizer: _PreTokenizer | None = None
    normalizer: msgspec.Raw | None = None
    truncation: msgspec.Raw | None = None
    padding: msgspec.Raw | None = None
    added_tokens: list[_AddedToken] = []


def cuts_at_words(file: bytes) -> bool:
    """Returns whether a `tokenizer.json` is byte-level BPE that does nothing else to a text.

    Every added token has to be special: those are text for a tokenizer that encodes them as such.
    """
    try:
        read = msgspec.json.decode(file, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    nothing_else = read.normalizer, read.truncation, read.padding, read.model.dropout
    return (
        read.model.type == "BPE"
        and read.pre_tokenizer == _PreTokenizer("ByteLevel", add_prefix_space=False)
        and all(each is None or each == msgspec.Raw(b"null") for each in nothing_else)
        and all(token.special for token in read.added_tokens)
    )


class WordTokens(dict[str, bytes]):
    """The tokens of words, little-endian uint32. A word that is not there is merged when it is
    asked for."""

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        """`tokenizer`: one whose file `cuts_at_words`, and which encodes special tokens as text."""
        super().__init__()
        self._tokenizer = tokenizer
        self._classes = _Classes()

    def __missing__(self, word: str) -> bytes:
        encoding: Any = self._tokenizer.encode(word, add_special_tokens=False)
        tokens = np.array(encoding.ids, dtype="<u4").tobytes()
        if len(word) <= WORD_CHARACTERS_MAX:
            if len(self) >= WORDS_KEPT_MAX:
                self.clear()
            self[word] = tokens
        return tokens

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """Returns the tokens of a text. Shape: (num_tokens,)."""
        words = _WORDS(text) if text.isascii() else self._words(text)
        tokens = b"".join(map(self.__getitem__, words))
        return np.frombuffer(tokens, dtype="<u4").astype(np.uint32, copy=False)

    def _words(self, text: str) -> Iterator[str]:
        """Cuts a text that has other characters than ASCII."""
        shape = _NOT_ASCII.sub(lambda found: found[0].translate(self._classes), text)
        ends = accumulate(map(len, _WORDS(shape)), initial=0)
        return (text[start:end] for start, end in pairwise(ends))


class _Classes(dict[int, str]):
    """An ASCII character of the class of each character that was met."""

    def __init__(self) -> None:
        super().__init__()
        self._cut: Any = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str

    def __missing__(self, code_point: int) -> str:
        if len(self) >= CLASSES_KEPT_MAX:
            self.clear()
        character = chr(code_point)
        for sample in (_LETTER, _NUMBER, _OTHER):
            if len(self._cut(sample + character)) == 1:
                break
        else:
            sample = _SPACE
        self[code_point] = sample
        return sample
