"""How a `tokenizer.json` cuts text into words, where that is known.

Byte-level tokenizers cut text with an expression of Unicode classes. Here each known one is written
for text of ASCII, with a character for each class (`words` has the others take part in it):

    GPT-2       `ByteLevel` alone: letters, numbers and others in runs, each with a blank before
    SmolLM2     `Digits` before it: each digit is a word, and what is between them is cut by itself
    Llama 3     `Split`, then `ByteLevel` without its expression: numbers of at most three digits,
                letters with any one character before; SmolLM3 and OLMo 2 have it, too
    Qwen 2      the same with single digits, after NFC; Qwen 2.5 and 3 have it, too

Everything else in a file that decides which tokens a text becomes is looked at as well. What is not
known is left to the library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

ADDED_TOKENS_MAX = 4096
"""Added tokens that a text is searched for. Published tokenizers have some 300 at most."""

_LETTERS, _DIGITS, _SPACES = "A-Za-z", "0-9", r"\t-\r "
_OTHERS = rf"[^{_SPACES}{_LETTERS}{_DIGITS}]"
_SPACES_AT_END = rf"[{_SPACES}]+(?![^{_SPACES}])|[{_SPACES}]+"

_GPT2 = rf"'(?:[sdmt]|ll|ve|re)| ?[{_LETTERS}]+| ?[{_DIGITS}]+| ?{_OTHERS}+|{_SPACES_AT_END}"
# A digit is where the text before it ends.
_SMOLLM2 = (
    rf"'(?:[sdmt]|ll|ve|re)| ?[{_LETTERS}]+|[{_DIGITS}]| ?{_OTHERS}+"
    rf"|[{_SPACES}]+(?![^{_SPACES}{_DIGITS}])|[{_SPACES}]+"
)


def _cased(digits: str) -> str:
    return (
        rf"'(?:[sdmtSDMT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n{_LETTERS}{_DIGITS}]?[{_LETTERS}]+"
        rf"|[{_DIGITS}]{digits}| ?{_OTHERS}+[\r\n]*|[{_SPACES}]*[\r\n]+|{_SPACES_AT_END}"
    )


def _split(digits: str) -> str:
    """The expression of a `Split` in Oniguruma's language."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_SPLITS = {_split(digits): _cased(digits) for digits in ("{1,3}", "")}


class WordCut(NamedTuple):
    """The steps of one tokenizer before its merges."""

    words: Callable[[str], list[str]]
    """Cuts a text of ASCII into words, which together are the text."""
    normalizes: bool = False
    """Whether text is brought into the form NFC before."""
    ignores_case: bool = False
    """Whether an ending behind an apostrophe may have any case."""
    has_digits: bool = False
    """Whether `Digits` says which characters are digits."""
    added: re.Pattern[str] | None = None
    """Texts of added tokens. A text that holds one is cut there first."""


class _ByteLevel(msgspec.Struct, tag_field="type", tag="ByteLevel"):
    add_prefix_space: bool = True
    use_regex: bool = True


class _Digits(msgspec.Struct, tag_field="type", tag="Digits"):
    individual_digits: bool


class _Pattern(msgspec.Struct):
    regex: str | None = msgspec.field(name="Regex", default=None)


class _Split(msgspec.Struct, tag_field="type", tag="Split"):
    pattern: _Pattern
    behavior: str
    invert: bool


class _Sequence(msgspec.Struct, tag_field="type", tag="Sequence"):
    pretokenizers: list[_ByteLevel | _Digits | _Split]


class _Normalizer(msgspec.Struct):
    type: str


class _AddedToken(msgspec.Struct):
    content: str
    special: bool


class _Model(msgspec.Struct):
    type: str
    dropout: float | None = None


class _File(msgspec.Struct):
    """What decides in a `tokenizer.json` how text is cut into words."""

    model: _Model
    pre_tokenizer: _ByteLevel | _Digits | _Split | _Sequence | None = None
    normalizer: _Normalizer | None = None
    added_tokens: list[_AddedToken] = []


def cut_of(file: bytes, *, specials_are_text: bool) -> WordCut | None:
    """Returns how a `tokenizer.json` cuts text, if it is byte-level BPE of a known kind.

    Args:
        specials_are_text: whether text that spells a special token is text, and not the token.
    """
    try:
        read = msgspec.json.decode(file, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if read.model.type != "BPE" or read.model.dropout is not None:
        return None
    if read.normalizer is not None and read.normalizer.type != "NFC":
        return None
    cut = _known(read.pre_tokenizer)
    if cut is None:
        return None
    normalizes = read.normalizer is not None
    texts = [
        token.content for token in read.added_tokens if not (token.special and specials_are_text)
    ]
    # The library may look for a token's normal form, which is the same for ASCII.
    if "" in texts or len(texts) > ADDED_TOKENS_MAX or not (all(map(str.isascii, texts))):
        return None
    added = re.compile("|".join(map(re.escape, texts))) if texts else None
    return cut._replace(normalizes=normalizes, added=added)


def _known(given: _ByteLevel | _Digits | _Split | _Sequence | None) -> WordCut | None:
    steps = given.pretokenizers if isinstance(given, _Sequence) else [given]
    match steps:
        case [_ByteLevel(add_prefix_space=False, use_regex=True)]:
            return WordCut(re.compile(_GPT2).findall)
        case [
            _Digits(individual_digits=True),
            _ByteLevel(add_prefix_space=False, use_regex=True),
        ]:
            return WordCut(re.compile(_SMOLLM2).findall, has_digits=True)
        case [
            _Split(pattern=_Pattern(regex=str(expression))) as split,
            _ByteLevel(add_prefix_space=False, use_regex=False),
        ] if expression in _SPLITS and _keeps_all(split):
            return WordCut(re.compile(_SPLITS[expression]).findall, ignores_case=True)
    return None


def _keeps_all(split: _Split) -> bool:
    """Returns whether what the expression finds are the words. It finds every character."""
    return (split.behavior, split.invert) in (("Isolated", False), ("Removed", True))
