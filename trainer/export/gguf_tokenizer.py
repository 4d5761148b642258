"""The tokenizer of a GGUF file, from a `tokenizer.json` of the `tokenizers` library.

llama.cpp has its own tokenizers, which the file chooses by name. Two kinds can be chosen here:

- `gpt2`: byte-level BPE. llama.cpp knows by a second name into which words a text is cut first.
- `llama`: what SentencePiece makes of BPE (Llama 2, Mistral), with a score for each token. Its
  merges become scores: the earlier a token is merged, the higher it is. That is the same tokenizer
  only if any two tokens whose texts together are a token are merged, which is checked.

Any other tokenizer is refused: with a file that cuts texts in another way than the one that the
model was trained with, the model would answer, and badly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from gossamer.trainer.export.gguf_file import Value
from gossamer.trainer.pretrained.model_files import ModelFiles

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 3, 4, 5, 6
"""Types of tokens, as llama.cpp numbers them."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
_NAMES_OF_PATTERNS = {
    _WORDS + r"\p{N}" + _REST: "qwen2",
    _WORDS + r"\p{N}{1,3}" + _REST: "dbrx",
    _CASED + r"\p{N}" + _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1): "tekken",
}
"""Names that llama.cpp has for the expressions that cut a text. `dbrx` is the expression of Llama
3, of GPT-4 and of OLMo 2, and `tekken` that of Mistral Nemo and later models of Mistral's."""

_WITHOUT_MERGES = {"dbrx": "llama-bpe", "tekken": "tekken"}
"""Names of these expressions where a word that is a token is not merged (`ignore_merges`)."""

_BYTE_TEXT = re.compile(r"<0x[0-9A-F]{2}>")

_SPACE = "\u2581"
"""The letter by which SentencePiece marks a space."""


class UnsupportedError(ValueError):
    """A tokenizer that llama.cpp does not have. The message says what is unsupported."""


def tokenizer_pairs(
    tokenizer_json: bytes, num_rows: int, files: ModelFiles | None, end_token: int | None
) -> dict[str, Value]:
    """The pairs of a GGUF file that describe a tokenizer.

    Args:
        num_rows: of the model's embedding; rows without a token get an unused one.
        files: those of an imported model, which name its special tokens and its chat template.
        end_token: the token that ends a text where there are no such files.

    Raises:
        UnsupportedError: a tokenizer that llama.cpp does not have.
    """
    try:
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    except Exception as error:  # the library raises nothing more precise
        raise UnsupportedError(f"one that is damaged ({error})") from error
    if max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0) >= num_rows:
        raise UnsupportedError("one with tokens that the model does not have")
    parsed = json.loads(tokenizer_json)
    model = parsed.get("model") or {}
    if model.get("type") != "BPE":
        raise UnsupportedError(f"a tokenizer of the type {model.get('type')}; supported: BPE")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedError(f"a BPE tokenizer with a {key}")
    texts, types = _tokens(parsed, num_rows)
    merges = [_pair(merge) for merge in model.get("merges") or ()]
    pairs: dict[str, Value] = {}
    if model.get("byte_fallback"):
        pairs["tokenizer.ggml.model"] = "llama"
        pairs["tokenizer.ggml.pre"] = "default"
        pairs["tokenizer.ggml.scores"] = _scores(texts, types, merges)
        pairs["tokenizer.ggml.add_space_prefix"] = _adds_space(parsed)
    else:
        pairs["tokenizer.ggml.model"] = "gpt2"
        pairs["tokenizer.ggml.pre"] = _pre_tokenizer(parsed)
        pairs["tokenizer.ggml.merges"] = [f"{first} {second}" for first, second in merges]
    pairs["tokenizer.ggml.tokens"] = texts
    pairs["tokenizer.ggml.token_type"] = types
    return pairs | _special_pairs(tokenizer, files, end_token)


def _tokens(parsed: Mapping[str, Any], num_rows: int) -> tuple[list[str], list[int]]:
    """Text and type of each row of the embedding."""
    texts = [f"[PAD{number}]" for number in range(num_rows)]
    types = [_UNUSED] * num_rows
    for text, number in parsed["model"]["vocab"].items():
        texts[number] = text
        is_byte = parsed["model"].get("byte_fallback") and _BYTE_TEXT.fullmatch(text)
        types[number] = _BYTE if is_byte else _NORMAL
    for token in parsed.get("added_tokens") or ():
        texts[token["id"]] = token["content"]
        types[token["id"]] = _CONTROL if token.get("special") else _USER_DEFINED
    return texts, types


def _pair(merge: str | list[str]) -> tuple[str, str]:
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first, second


def _steps(part: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """The parts of a sequence, or the only part."""
    if part is None:
        return []
    return list(part[key]) if part["type"] == "Sequence" else [part]


def _pre_tokenizer(parsed: Mapping[str, Any]) -> str:
    """llama.cpp's name for the way in which byte-level BPE cuts a text into words."""
    normalizers = _steps(parsed.get("normalizer"), "normalizers")
    # llama.cpp leaves out NFC, which changes no text that is composed already, as most is.
    if others := [each["type"] for each in normalizers if each["type"] != "NFC"]:
        raise UnsupportedError(f"a byte-level tokenizer with the normalizer {others[0]}")
    steps = _steps(parsed.get("pre_tokenizer"), "pretokenizers")
    last = steps[-1] if steps else {"type": "none"}
    if last["type"] != "ByteLevel":
        raise UnsupportedError(
            f"a BPE tokenizer with the pre-tokenizer {last['type']}; supported: ByteLevel, and "
            "byte fallback as SentencePiece has it"
        )
    if last.get("add_prefix_space"):
        raise UnsupportedError("a byte-level tokenizer with add_prefix_space")
    has_regex = last.get("use_regex", True)
    before = steps[:-1]
    if not parsed["model"].get("merges"):
        return "gpt-2"  # every byte is a token, however a text is cut
    if parsed["model"].get("ignore_merges"):
        without_merges = None if has_regex else _WITHOUT_MERGES.get(_pattern_name(before) or "")
        if without_merges is None:
            raise UnsupportedError(
                "a tokenizer with ignore_merges that is neither Llama 3's nor Mistral Nemo's"
            )
        return without_merges
    if has_regex and not before:
        return "gpt-2"
    if has_regex and [each["type"] for each in before] == ["Digits"]:
        if before[0].get("individual_digits"):
            return "smollm"
    elif not has_regex and (name := _pattern_name(before)):
        if name == "tekken":  # llama.cpp has it with ignore_merges only
            raise UnsupportedError("a tokenizer like Mistral Nemo's without ignore_merges")
        return name
    kinds = ", ".join(each["type"] for each in steps)
    raise UnsupportedError(f"a byte-level tokenizer that cuts texts in its own way ({kinds})")


def _pattern_name(steps: list[Mapping[str, Any]]) -> str | None:
    """llama.cpp's name for a single expression that cuts a text; None if it has none."""
    if [each["type"] for each in steps] != ["Split"]:
        return None
    (split,) = steps
    if split.get("behavior") != "Isolated" or split.get("invert"):
        return None
    return _NAMES_OF_PATTERNS.get(split["pattern"].get("Regex", ""))


def _scores(texts: list[str], types: list[int], merges: list[tuple[str, str]]) -> list[float]:
    """The score of each token: minus the number of tokens that are merged before it."""
    known = set(texts)
    if missing := [byte for byte in range(256) if f"<0x{byte:02X}>" not in known]:
        raise UnsupportedError(f"byte fallback without a token for the byte {missing[0]}")
    ranks: dict[str, int] = {}
    previous = ""
    for first, second in merges:
        merged = first + second
        if merged != previous and merged in ranks:
            raise UnsupportedError("byte fallback with merges in another order than SentencePiece")
        ranks.setdefault(merged, len(ranks))
        previous = merged
    given = set(merges)
    plain = {text for text, kind in zip(texts, types, strict=True) if kind == _NORMAL}
    for text in plain:
        for cut in range(1, len(text)):
            pair = text[:cut], text[cut:]
            if pair not in given and pair[0] in plain and pair[1] in plain:
                raise UnsupportedError("byte fallback without all merges that SentencePiece has")
    return [-float(ranks.get(text, len(ranks))) for text in texts]


def _adds_space(parsed: Mapping[str, Any]) -> bool:
    """Returns whether a space is put before a text, for the two ways in which `tokenizer.json`
    writes down SentencePiece's handling of spaces."""
    normalizers = _steps(parsed.get("normalizer"), "normalizers")
    steps = _steps(parsed.get("pre_tokenizer"), "pretokenizers")
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = {"type": "Prepend", "prepend": _SPACE}
    if not steps and normalizers in ([prepend, replace], [replace]):
        return len(normalizers) == 2
    if not normalizers and len(steps) == 1 and steps[0]["type"] == "Metaspace":
        given = steps[0]
        if given.get("replacement") == _SPACE and not given.get("split", True):
            return bool(given.get("prepend_scheme", "always") != "never")
    raise UnsupportedError("byte fallback with other rules for spaces than SentencePiece's")


def _special_pairs(
    tokenizer: Tokenizer, files: ModelFiles | None, end_token: int | None
) -> dict[str, Value]:
    """Numbers of special tokens, what is put around a text, and the chat template."""
    ids: dict[str, int] = {} if end_token is None else {"eos": end_token}
    pairs: dict[str, Value] = {}
    if files is not None:
        ids = _named_tokens(tokenizer, files)
        if (template := files.chat_template) is not None:
            pairs["tokenizer.chat_template"] = template
    keys = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown", "eot": "eot"}
    pairs |= {f"tokenizer.ggml.{keys[kind]}_token_id": number for kind, number in ids.items()}
    before, behind = _around(tokenizer)
    begin, end = ([ids[kind]] if kind in ids else None for kind in ("bos", "eos"))
    if before not in ([], begin) or behind not in ([], end):
        raise UnsupportedError("a tokenizer that puts more than its begin and end around a text")
    pairs["tokenizer.ggml.add_bos_token"] = bool(before)
    pairs["tokenizer.ggml.add_eos_token"] = bool(behind)
    return pairs


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before a text and behind it."""
    plain = list(tokenizer.encode("a", add_special_tokens=False).ids)
    whole = list(tokenizer.encode("a").ids)
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    raise UnsupportedError("a tokenizer that changes a text when it puts something around it")


def _named_tokens(tokenizer: Tokenizer, files: ModelFiles) -> dict[str, int]:
    ids: dict[str, int] = {}
    for kind in ("bos", "eos", "pad", "unk"):
        named = files.named_token(f"{kind}_token")
        number = None if named is None else tokenizer.token_to_id(named)
        if number is None and kind != "unk":
            number = next(iter(files.token_ids(f"{kind}_token_id")), None)
        if number is not None:
            ids[kind] = number
    # Instruction models end a turn with a token besides the one that ends a text.
    others = [each for each in files.token_ids("eos_token_id") if each != ids.get("eos")]
    if others:
        ids["eot"] = others[0]
    return ids
