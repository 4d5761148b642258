"""The messages of a command that generates text and its process (`gossamer.trainer.generate`).

The process reads one `GenerateText` from stdin (msgpack), until its end, and writes lines of JSON
to stdout: any number of `Text`, and `Refused` where it cannot go on. The parameters are in a file
descriptor that it inherits, as with the trainer (`memory`).
"""

from __future__ import annotations

import msgspec

from gossamer.protocol.limits import KIB, MIB
from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.text.tokens import TokenizerKind

PROMPT_BYTES_MAX = 256 * KIB
"""Of UTF-8: some 64 thousand tokens, more than most models take."""

TOKENS_MAX = 100_000
"""Of one answer; hours on a CPU."""

TEMPERATURE_MAX = 100.0
"""Beyond that every token is as likely as any other."""

LINE_BYTES_MAX = 16 * MIB
"""Of a line: the first one has the prompt once more, with every byte escaped at worst."""


class GenerateText(msgspec.Struct, frozen=True, kw_only=True):
    """The whole task."""

    model: ModelConfig
    base_fd: int
    tokenizer: TokenizerKind
    tokenizer_block: bytes
    """The block that the manifest names; empty for plain bytes."""
    prompt: str
    tokens: int
    """Tokens to generate at most."""
    temperature: float
    """0: always the likeliest token."""
    seed: int
    device: str


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A piece of the continuation, behind those before it."""

    text: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The text cannot be generated; `problem` says why, for people."""

    problem: str


lines: msgspec.json.Decoder[Text | Refused] = msgspec.json.Decoder(Text | Refused)
