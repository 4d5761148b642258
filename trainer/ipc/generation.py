"""The messages of a command that generates text and its process (`trainer.generation.generate`).

The process reads frames (`pipe`) from stdin, until its end, each with one `ToGenerator` as
msgpack. It writes lines of JSON to stdout. The parameters are in a file descriptor
that it inherits, as with the trainer (`memory`).

Order of a life: LoadModel -> Loaded, then any number of `GenerateText -> Text, Text, ... Done` and
`ReloadModel -> Loaded`. Where it cannot do what was asked, it answers with `Refused` instead of the
last of these. The parameters are read between LoadModel or ReloadModel and Loaded; at any other
time they may be written. `StopText` is allowed at any time, and ignored once its text has ended.
Everything else that comes while a text is made waits for its end.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gossamer.protocol.limits import KIB, MIB
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc import pipe
from gossamer.trainer.text.tokenizers.tokens import TokenizerKind

PROMPT_BYTES_MAX = 256 * KIB
"""Of UTF-8: some 64 thousand tokens, more than most models take."""

TOKENS_MAX = 100_000
"""Of one answer; hours on a CPU."""

TEMPERATURE_MAX = 100.0
"""Beyond that every token is as likely as any other."""

STOPS_MAX = 4
"""Texts at which an answer ends, as OpenAI's interface has it."""

MESSAGE_BYTES_MAX = 128 * MIB
"""Of a frame: the block of a tokenizer travels in one, which peers take up to 64 MiB of."""

LINE_BYTES_MAX = 16 * MIB
"""Of a line: the first one has the prompt once more, with every byte escaped at worst."""


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """The model; the first message of a life."""

    model: ModelConfig
    base_fd: int
    tokenizer: TokenizerKind
    tokenizer_block: bytes
    """The block that the manifest names; empty for plain bytes."""
    device: str


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a chat."""

    role: str
    content: str


class GenerateText(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """A text to continue, or a chat to answer."""

    number: int = 0
    """By which `StopText` names it."""
    prompt: str = ""
    messages: tuple[ChatMessage, ...] = ()
    """Made a text by the model's chat template, in the place of `prompt`."""
    tokens: int
    """Tokens to generate at most."""
    temperature: float
    """0: always the likeliest token."""
    top_p: float = 1.0
    """Only the likeliest tokens that have this probability together are drawn (nucleus sampling,
    arXiv 1904.09751)."""
    seed: int
    stops: tuple[str, ...] = ()
    """Texts at which the answer ends; they are not part of it."""
    beyond_context: bool = True
    """Whether a text goes on beyond the model's context, without its beginning. Without that a
    prompt that is too long is refused, and an answer ends where the context does."""


class StopText(msgspec.Struct, frozen=True, tag="stop"):
    """Nobody wants the rest of a text."""

    number: int


class ReloadModel(msgspec.Struct, frozen=True, tag="reload"):
    """Other parameters are in the memory."""


ToGenerator = LoadModel | GenerateText | StopText | ReloadModel


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The parameters are read."""


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A piece of the continuation, behind those before it."""

    text: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The text has ended."""

    reason: Literal["stop", "length"]
    """`stop`: the model, a text of `stops` or a `StopText` ended it; `length`: `tokens` or the
    context."""
    prompt_tokens: int
    tokens: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The text cannot be generated; `problem` says why, for people."""

    problem: str
    is_request: bool = False
    """Whether it is the request that cannot be answered, and another one may be."""


FromGenerator = Loaded | Text | Done | Refused

lines: msgspec.json.Decoder[FromGenerator] = msgspec.json.Decoder(FromGenerator)

frames: msgspec.msgpack.Decoder[ToGenerator] = msgspec.msgpack.Decoder(ToGenerator)


def frame(message: msgspec.Struct) -> bytes:
    """The frame of one of `ToGenerator`."""
    return pipe.frame(msgspec.msgpack.encode(message), MESSAGE_BYTES_MAX)
