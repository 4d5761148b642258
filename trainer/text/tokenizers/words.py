"""Tokens of text by its words: each different word goes through the byte-pair merges once.

Byte-level BPE first cuts text into words, and merges nothing across them. The library does that
anew for each, with an expression of Unicode classes, in some 0.4 seconds of a core for a megabyte.
Here a word that was met before costs a look into a table, and text is cut by an expression of ASCII
classes (`word_cuts`): a fifth of the time or less, for the same tokens.

Other characters than ASCII are first replaced by an ASCII one of their class. The class is asked
of the library, so that both cut alike whatever Unicode version each knows. A text in which one has
no class, or which holds an added token, is left to the library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import normalizers, pre_tokenizers

from gossamer.protocol.limits import MIB
from gossamer.trainer.text.tokenizers.word_cuts import WordCut, cut_of

WORDS_KEPT_MAX = 200_000
"""Words in the table, some 200 bytes each. It is emptied when it is full: the frequent words are
soon there again, and filling it takes some two seconds."""

WORD_CHARACTERS_MAX = 48
"""Longer words are hardly met twice."""

CLASSES_KEPT_MAX = 150_000
"""Characters whose class is kept: about as many as Unicode names."""

# An encoding takes some 100 bytes a token until it is copied out.
_ENCODE_CHARACTERS = MIB

_LETTER, _NUMBER, _SPACE, _OTHER = "a", "0", "\t", "!"
"""A character of each class. The letter is in none of the endings that an apostrophe begins, and
the space is not the blank that belongs to the word behind it."""

_ENDING = "s"
"""A letter that is an ending behind an apostrophe, as U+017F is where case does not count."""

_UNKNOWN = "\0"
"""The class of a character about which the library's parts do not agree."""

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")

Tokens = npt.NDArray[np.uint32]


class EncoderFile(msgspec.Struct, frozen=True):
    """The file that a process needs to turn text into tokens."""

    tokenizer_json: bytes
    specials_are_text: bool
    """Whether text that spells a special token is text, and not the token."""
    begin_tokens: tuple[int, ...] = ()
    """Tokens before each text."""

    def open(self) -> HuggingFaceTokenizer:
        """Returns the library's tokenizer. Raises an Exception of the library: the file is bad."""
        tokenizer = HuggingFaceTokenizer.from_str(self.tokenizer_json.decode())
        # Settings of a caller that some files have: they would cut texts, or fill them up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # The file format does not keep this setting.
        tokenizer.encode_special_tokens = self.specials_are_text
        return tokenizer


class TextEncoder:
    """Turns texts into tokens, by their words where it is known how they are cut."""

    def __init__(self, tokenizer: HuggingFaceTokenizer, file: EncoderFile) -> None:
        """`tokenizer`: what `file` opened."""
        self._tokenizer = tokenizer
        self._begin = np.array(file.begin_tokens, dtype=np.uint32)
        cut = cut_of(file.tokenizer_json, specials_are_text=file.specials_are_text)
        self.words = None if cut is None else WordTokens(tokenizer, cut)
        """The table of words; None: the library does all, with all cores."""

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """Returns the tokens of UTF-8 texts. Shapes: (num_tokens,) each."""
        words = self.words
        if words is None:
            encoded = encode_pieces(self._tokenizer, texts)
            return [np.concatenate([self._begin, tokens]) for tokens in encoded]
        return [
            np.concatenate(
                [self._begin]
                + [words.encode(piece) for piece in pieces_of(text.decode(), _ENCODE_CHARACTERS)]
            )
            for text in texts
        ]


def encode_pieces(tokenizer: HuggingFaceTokenizer, texts: Sequence[bytes]) -> list[Tokens]:
    """Tokens of UTF-8 texts by the library, without anything before or behind them. Shapes:
    (num_tokens,) each."""
    pieces = [pieces_of(text.decode(), _ENCODE_CHARACTERS) for text in texts]
    flat = [piece for of_text in pieces for piece in of_text]
    encodings = iter(tokenizer.encode_batch_fast(flat, add_special_tokens=False))
    return [
        np.concatenate(
            [np.zeros(0, np.uint32)]
            + [np.array(next(encodings).ids, dtype=np.uint32) for _ in of_text]
        )
        for of_text in pieces
    ]


def pieces_of(text: str, characters: int) -> list[str]:
    """Pieces of a text of at most so many characters, at ends of lines where there are any."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > characters:
        end = text.rfind("\n", start, start + characters) + 1 or start + characters
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return pieces


class WordTokens(dict[str, bytes]):
    """The tokens of words, little-endian uint32. A word that is not there is merged when it is
    asked for."""

    def __init__(self, tokenizer: HuggingFaceTokenizer, cut: WordCut) -> None:
        """`cut`: of the tokenizer's file."""
        super().__init__()
        self._tokenizer = tokenizer
        self._cut = cut
        self._normalize: Any = normalizers.NFC().normalize_str
        self._classes = _Classes(tokenizer, cut)

    def __missing__(self, word: str) -> bytes:
        tokens = self._by_library(word).astype("<u4", copy=False).tobytes()
        if len(word) <= WORD_CHARACTERS_MAX:
            if len(self) >= WORDS_KEPT_MAX:
                self.clear()
            self[word] = tokens
        return tokens

    def encode(self, text: str) -> Tokens:
        """Returns the tokens of a text. Shape: (num_tokens,)."""
        words = self._words(text)
        if words is None:
            return self._by_library(text)
        tokens = b"".join(map(self.__getitem__, words))
        return np.frombuffer(tokens, dtype="<u4").astype(np.uint32, copy=False)

    def _by_library(self, text: str) -> Tokens:
        encoding: Any = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.uint32)

    def _words(self, text: str) -> Iterator[str] | list[str] | None:
        """Cuts a text; None: only the library can."""
        cut = self._cut
        if cut.added is not None and cut.added.search(text):
            return None
        if text.isascii():
            return cut.words(text)
        if cut.normalizes:
            normal: str = self._normalize(text)
            if normal != text and cut.added is not None and cut.added.search(normal):
                return None
            text = normal
        shape = _NOT_ASCII.sub(lambda found: found[0].translate(self._classes), text)
        if _UNKNOWN in shape:
            return None
        ends = accumulate(map(len, cut.words(shape)), initial=0)
        return (text[start:end] for start, end in pairwise(ends))


class _Classes(dict[int, str]):
    """An ASCII character of the class of each character that was met."""

    def __init__(self, tokenizer: HuggingFaceTokenizer, cut: WordCut) -> None:
        super().__init__()
        self._cut: Any = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
        self._digits: Any = None
        self._whole: Any = None
        if cut.has_digits:
            self._digits = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str
        if cut.ignores_case:
            self._whole = tokenizer.pre_tokenizer.pre_tokenize_str

    def __missing__(self, code_point: int) -> str:
        if len(self) >= CLASSES_KEPT_MAX:
            self.clear()
        self[code_point] = found = self._class_of(chr(code_point))
        return found

    def _class_of(self, character: str) -> str:
        for sample in (_LETTER, _NUMBER, _OTHER):
            if len(self._cut(sample + character)) == 1:
                break
        else:
            sample = _SPACE
        if self._digits is not None:
            if len(self._digits(_LETTER + character)) == 2:
                return _NUMBER
            return _UNKNOWN if sample == _NUMBER else sample
        if self._whole is not None and sample == _LETTER:
            return _ENDING if len(self._whole("'" + character + _LETTER)) == 2 else sample
        return sample
