"""The small files of an imported model: configuration, tokenizer, chat template, licence.

They travel as one block, which the manifest names, so that every peer can export the model with
them. Nothing in them is executed here, and a key that would make `transformers` run code of the
folder is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.limits import MIB
from gossamer.trainer.pretrained.config import INTEGER_MAX, parse_object
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.weights import read_bounded

CONFIG_NAME = "config.json"
GENERATION_NAME = "generation_config.json"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
SPECIAL_TOKENS_NAME = "special_tokens_map.json"

TEMPLATE_NAME = "chat_template.jinja"
TEMPLATE_JSON_NAME = "chat_template.json"

NAMES = (
    CONFIG_NAME,
    GENERATION_NAME,
    TOKENIZER_NAME,
    TOKENIZER_CONFIG_NAME,
    SPECIAL_TOKENS_NAME,
    "added_tokens.json",
    TEMPLATE_NAME,
    TEMPLATE_JSON_NAME,
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
)
"""The files that are kept. No other name is written by an export."""

_JSON_NAMES = tuple(name for name in NAMES if name.endswith(".json") and name != TOKENIZER_NAME)

CONFIG_BYTES_MAX = MIB
"""Of a small file; published ones have up to 100 KB."""

TOKENIZER_BYTES_MAX = 64 * MIB
"""Of `tokenizer.json`: those of 256 thousand tokens have some 35 MB."""

FILES_BYTES_MAX = TOKENIZER_BYTES_MAX + len(NAMES) * CONFIG_BYTES_MAX
"""Of all files of a block together, when it is unpacked."""

_ZSTD_LEVEL = 19
"""The block is made once, and a tokenizer of 150 thousand tokens has to fit into it."""

_CODE_KEYS = ("auto_map", "custom_pipelines")
"""Keys that name code of the folder, which `transformers` would load."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")

_decoder = msgspec.msgpack.Decoder(dict[str, bytes])


class ModelFiles:
    """The kept files of a model, by name; `config.json` and `tokenizer.json` are always there."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """
        Raises:
            FolderError: a file is missing or damaged.
        """
        missing = [name for name in (CONFIG_NAME, TOKENIZER_NAME) if name not in files]
        if missing:
            raise FolderError(*(f"{name} is missing" for name in missing))
        self.files = dict(files)
        self._parsed = {
            name: parse_object(files[name], name) for name in _JSON_NAMES if name in files
        }

    @property
    def config(self) -> dict[str, Any]:
        """`config.json` without keys that name code."""
        parsed = self._parsed[CONFIG_NAME]
        return {key: value for key, value in parsed.items() if key not in _CODE_KEYS}

    @property
    def tokenizer_json(self) -> bytes:
        return self.files[TOKENIZER_NAME]

    def parsed(self, name: str) -> dict[str, Any]:
        """One of the JSON files; empty if the model has no such file."""
        return self._parsed.get(name, {})

    def named_token(self, kind: str) -> str | None:
        """The text of a special token such as `eos_token`; None if no file names it."""
        for name in (TOKENIZER_CONFIG_NAME, SPECIAL_TOKENS_NAME):
            token = self.parsed(name).get(kind)
            if isinstance(token, dict):
                token = token.get("content")
            if isinstance(token, str) and token:
                return token
        return None

    @property
    def special_tokens(self) -> dict[str, str]:
        """The texts of special tokens by their names, for chat templates."""
        named = ((name, self.named_token(name)) for name in _SPECIAL_TOKENS)
        return {name: text for name, text in named if text is not None}

    @property
    def chat_template(self) -> str | None:
        """The Jinja program that writes conversations; None if the model has none. Of several with
        names it is the one named `default`."""
        if TEMPLATE_NAME in self.files:
            return self.files[TEMPLATE_NAME].decode("utf-8", "replace")
        for name in (TEMPLATE_JSON_NAME, TOKENIZER_CONFIG_NAME):
            template = self.parsed(name).get("chat_template")
            if isinstance(template, list):
                named = (each for each in template if isinstance(each, dict))
                default = (each for each in named if each.get("name") == "default")
                template = next(default, {}).get("template")
            if isinstance(template, str) and template:
                return template
        return None

    def token_ids(self, kind: str) -> list[int]:
        """Numbers such as `eos_token_id`, where generation ends, or the configuration's. -1, as old
        configurations have it, stands for none."""
        for name in (GENERATION_NAME, CONFIG_NAME):
            value = self.parsed(name).get(kind)
            values = value if isinstance(value, list) else [value]
            ids = [one for one in values if type(one) is int and 0 <= one < INTEGER_MAX]
            if ids:
                return ids
        return []

    def exported(self, dtype: str) -> dict[str, bytes]:
        """The files of an export whose weights have this type (`float32`, `bfloat16`)."""
        config = self.config
        # transformers 5 reads the first, 4 the second.
        config["dtype"] = config["torch_dtype"] = dtype
        files = self.files | {CONFIG_NAME: _json(config)}
        parsed = self.parsed(TOKENIZER_CONFIG_NAME)
        if any(key in parsed for key in _CODE_KEYS):
            kept = {key: value for key, value in parsed.items() if key not in _CODE_KEYS}
            files[TOKENIZER_CONFIG_NAME] = _json(kept)
        return files

    def pack(self) -> bytes:
        """One block. Raises FolderError: the files are larger than a block may be."""
        data = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(
            msgspec.msgpack.encode(dict(sorted(self.files.items())))
        )
        if len(data) > limits.BLOCK_BYTES_MAX:
            raise FolderError(
                f"tokenizer and configuration have {len(data):,} bytes when compressed; peers "
                f"take at most {limits.BLOCK_BYTES_MAX:,}"
            )
        return data


def read_model_files(folder: Path) -> ModelFiles:
    """Reads the files of a folder.

    Raises:
        FolderError: a file is missing, too large or damaged, and which.
    """
    if not folder.is_dir():
        raise FolderError(f"{folder} is no folder; name the one that has {CONFIG_NAME}")
    files = {}
    for name in NAMES:
        if (folder / name).is_file():
            bytes_max = TOKENIZER_BYTES_MAX if name == TOKENIZER_NAME else CONFIG_BYTES_MAX
            files[name] = read_bounded(folder / name, bytes_max)
    try:
        return ModelFiles(files)
    except FolderError as error:
        raise error.of(folder) from error


def unpack_model_files(block: bytes) -> ModelFiles:
    """The files of a block.

    Raises:
        MalformedError: it is none: it has other names, or is damaged or too large.
    """
    try:
        with zstandard.ZstdDecompressor().stream_reader(block) as reader:
            data = reader.read(FILES_BYTES_MAX + 1)
        if len(data) > FILES_BYTES_MAX:
            raise MalformedError(f"files of a model with over {FILES_BYTES_MAX:,} bytes")
        files = _decoder.decode(data)
        if unknown := sorted(set(files) - set(NAMES)):
            raise MalformedError(f"files of a model with the name {unknown[0]!r}")
        return ModelFiles(files)
    except (zstandard.ZstdError, msgspec.DecodeError, UnicodeDecodeError, FolderError) as error:
        raise MalformedError(f"not the files of a model: {error}") from error


def _json(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
