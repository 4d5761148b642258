"""Requests in the form of OpenAI's interface, and what the model is asked for.

A field that would change the answer and is not supported is refused, and not ignored: a client
would take the answer for what it asked for. Other fields, which clients send for their own sake,
are ignored. https://platform.openai.com/docs/api-reference has the form.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec

from gossamer.trainer.ipc.generation import (
    PROMPT_BYTES_MAX,
    STOPS_MAX,
    TOKENS_MAX,
    ChatMessage,
    GenerateText,
)

BODY_BYTES_MAX = 8 * PROMPT_BYTES_MAX
"""Of a request: JSON may write a byte of the prompt as six, and a chat has more around it."""

MESSAGES_MAX = 4096
"""Of a chat, with the bytes of a prompt together."""

STOP_CHARACTERS_MAX = 256
"""Of a text that ends an answer."""

TEMPERATURE_MAX = 2.0
"""As OpenAI's interface has it."""

COMPLETION_TOKENS = 16
"""Of a completion whose client says no number, as OpenAI's interface has it. A chat's answer may be
as long as the model's context."""


class QuestionError(ValueError):
    """A request that is not answered. The message says why; `field` is the one that is wrong."""

    def __init__(self, problem: str, field: str | None = None) -> None:
        super().__init__(problem)
        self.field = field


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that both kinds of requests have.

    It has more than 12 attributes: each is a field of OpenAI's interface.
    """

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: bool | int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class _Completion(_Sampling, frozen=True, kw_only=True):
    prompt: str | list[Any]
    echo: bool | None = None
    suffix: str | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _Chat(_Sampling, frozen=True, kw_only=True):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: int | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can be answered."""

    text: GenerateText
    model: str | None
    is_chat: bool
    is_stream: bool
    wants_usage: bool
    """Whether a stream ends with the numbers of tokens."""


def read_completion(body: bytes) -> Question:
    """Returns a request for a completion. Raises QuestionError."""
    given = _decode(body, _Completion)
    prompt = given.prompt
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], str):
            raise QuestionError("a list is not supported here; give one text", "prompt")
        prompt = prompt[0]
    _require_unset("echo", given.echo, False)
    _require_unset("suffix", given.suffix, "")
    _require_short(len(prompt.encode(errors="replace")), "prompt")
    tokens = COMPLETION_TOKENS if given.max_tokens is None else given.max_tokens
    return _question(given, tokens, is_chat=False, prompt=_sound(prompt))


def read_chat(body: bytes) -> Question:
    """Returns a request for the answer of a chat. Raises QuestionError."""
    given = _decode(body, _Chat)
    for name in ("tools", "functions", "top_logprobs"):
        _require_unset(name, getattr(given, name) or None, None)
    form = (given.response_format or {}).get("type", "text")
    _require_unset("response_format", form, "text")
    messages = tuple(
        ChatMessage(_sound(each.role), _sound(_content(each))) for each in given.messages
    )
    _require_short(sum(len(each.content.encode()) for each in messages), "messages")
    tokens = given.max_completion_tokens
    if tokens is None:
        tokens = TOKENS_MAX if given.max_tokens is None else given.max_tokens
    return _question(given, tokens, is_chat=True, messages=messages)


def _decode(body: bytes, kind: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise QuestionError(f"the request cannot be read: {error}") from error


def _question(given: _Sampling, tokens: int, *, is_chat: bool, **asked: Any) -> Question:
    _require_unset("n", given.n, 1)
    _require_unset("best_of", given.best_of, 1)
    if given.logprobs is not False:  # 0 asks a completion for that of the chosen tokens
        _require_unset("logprobs", given.logprobs, None)
    _require_unset("logit_bias", given.logit_bias or None, None)
    _require_unset("presence_penalty", given.presence_penalty, 0)
    _require_unset("frequency_penalty", given.frequency_penalty, 0)
    temperature = 1.0 if given.temperature is None else given.temperature
    top_p = 1.0 if given.top_p is None else given.top_p
    if not 0 <= temperature <= TEMPERATURE_MAX:
        raise QuestionError(
            f"temperature is {temperature:g}; allowed: 0 to {TEMPERATURE_MAX:g}", "temperature"
        )
    if not 0 <= top_p <= 1:
        raise QuestionError(f"top_p is {top_p:g}; allowed: 0 to 1", "top_p")
    if not 1 <= tokens <= TOKENS_MAX:
        raise QuestionError(f"max_tokens is {tokens}; allowed: 1 to {TOKENS_MAX}", "max_tokens")
    seed = secrets.randbits(63) if given.seed is None else given.seed % 2**63
    text = GenerateText(
        tokens=tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stops=_stops(given.stop),
        beyond_context=False,
        **asked,
    )
    options = given.stream_options
    return Question(
        text=text,
        model=given.model,
        is_chat=is_chat,
        is_stream=bool(given.stream),
        wants_usage=options is not None and bool(options.include_usage),
    )


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > STOPS_MAX:
        raise QuestionError(f"stop has {len(stops)} texts; allowed: up to {STOPS_MAX}", "stop")
    if any(not 0 < len(stop) <= STOP_CHARACTERS_MAX for stop in stops):
        raise QuestionError(f"a text of stop has 1 to {STOP_CHARACTERS_MAX} characters", "stop")
    return tuple(_sound(stop) for stop in stops)


def _content(message: _Message) -> str:
    for name in ("tool_calls", "function_call"):
        if getattr(message, name):
            raise QuestionError(f"{name} of a message is not supported here", "messages")
    if isinstance(message.content, str):
        return message.content
    texts = [part.text for part in message.content or () if part.type == "text"]
    if len(texts) != len(message.content or ()):
        raise QuestionError("a message may have parts of the type text only", "messages")
    return "".join(text or "" for text in texts)


def _require_unset(name: str, value: object, harmless: object) -> None:
    if value is not None and value != harmless:
        raise QuestionError(f"{name} is not supported here; leave it out", name)


def _require_short(num_bytes: int, field: str) -> None:
    if num_bytes > PROMPT_BYTES_MAX:
        raise QuestionError(
            f"the prompt has {num_bytes:,} bytes; allowed: up to {PROMPT_BYTES_MAX:,}", field
        )


def _sound(text: str) -> str:
    """A text without halves of surrogate pairs, which JSON can write and no tokenizer takes."""
    return text.encode(errors="replace").decode()
