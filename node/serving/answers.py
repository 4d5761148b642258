"""Answers in the form of OpenAI's interface, whole or as a stream of server-sent events."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gossamer.node.serving.model import BusyError, RefusedError
from gossamer.node.serving.questions import Question, QuestionError
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.protocol.ids import short
from gossamer.trainer.ipc.generation import Done

RETRY_SECONDS = 5
"""What a client that finds too many others before it is told to wait: about the time of a short
answer on a CPU."""

Error = BusyError | RefusedError | QuestionError


def error_of(error: Error) -> tuple[int, dict[str, Any]]:
    """Returns status and body for an error."""
    if isinstance(error, BusyError):
        status, kind = (429, "rate_limit_error") if error.is_full else (503, "server_error")
    elif isinstance(error, QuestionError) or error.is_request:
        status, kind = 400, "invalid_request_error"
    else:
        status, kind = 503, "server_error"
    field = error.field if isinstance(error, QuestionError) else None
    return status, error_body(str(error), kind, field)


def error_body(message: str, kind: str, field: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": field, "code": None}}


class Answer:
    """The answer to one request, sent when it is whole or piece by piece."""

    def __init__(self, question: Question, name: str, send: Send) -> None:
        """`name`: of the model."""
        self._question = question
        self._send = send
        self._texts: list[str] = []
        self._is_begun = False
        kind = "chat.completion" if question.is_chat else "text_completion"
        if question.is_chat and question.is_stream:
            kind += ".chunk"
        prefix = "chatcmpl" if question.is_chat else "cmpl"
        self._common: dict[str, Any] = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": name,
        }

    def comes_from(self, entry: Entry) -> None:
        """Notes the round whose state makes the text. It is called before `add` and `end`."""
        fingerprint = f"round-{entry.round}-{short(entry.state_digest)}"
        self._common["system_fingerprint"] = fingerprint

    async def add(self, text: str) -> None:
        """Adds a piece of the text."""
        if not self._question.is_stream:
            self._texts.append(text)
            return
        await self._begin()
        await self._event(self._choice(text, None))

    async def end(self, done: Done, scope: Scope, receive: Receive) -> None:
        """Sends the end, or all of an answer that is no stream."""
        usage = {
            "prompt_tokens": done.prompt_tokens,
            "completion_tokens": done.tokens,
            "total_tokens": done.prompt_tokens + done.tokens,
        }
        if not self._question.is_stream:
            body = self._choice("".join(self._texts), done.reason) | {"usage": usage}
            await JSONResponse(body)(scope, receive, self._send)
            return
        await self._begin()
        await self._event(self._choice("", done.reason))
        if self._question.wants_usage:
            await self._event(self._common | {"choices": [], "usage": usage})
        await self._send_body(b"data: [DONE]\n\n", more=False)

    async def fail(self, error: Error, scope: Scope, receive: Receive) -> None:
        """Sends an error: as the answer, or as the last event of a stream that has begun."""
        status, body = error_of(error)
        if self._is_begun:
            await self._event(body)
            await self._send_body(b"", more=False)
            return
        headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else None
        await JSONResponse(body, status, headers)(scope, receive, self._send)

    def _choice(self, text: str, reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if not self._question.is_chat:
            choice["text"] = text
        elif self._question.is_stream:
            choice["delta"] = {"content": text} if text else {}
        else:
            choice["message"] = {"role": "assistant", "content": text}
        return self._common | {"choices": [choice]}

    async def _begin(self) -> None:
        if self._is_begun:
            return
        self._is_begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if self._question.is_chat:
            first = self._choice("", None)
            first["choices"][0]["delta"] = {"role": "assistant", "content": ""}
            await self._event(first)

    async def _event(self, body: dict[str, Any]) -> None:
        await self._send_body(b"data: " + json.dumps(body).encode() + b"\n\n", more=True)

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
