"""The HTTP interface of `gossamer serve`, in the form of OpenAI's.

It has no accounts and listens on loopback by default. A web page that is open in a browser on this
machine could send it plain forms, and make it compute: so a request must be JSON by its header,
which a page may send to another origin only after a CORS preflight, and nothing here answers those.
`http_server` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gossamer.node.app.http.http_server import Guard
from gossamer.node.serving.answers import Answer, error_body, error_of
from gossamer.node.serving.model import BusyError, RefusedError, ServedModel
from gossamer.node.serving.questions import (
    BODY_BYTES_MAX,
    Question,
    QuestionError,
    read_chat,
    read_completion,
)
from gossamer.trainer.ipc.generation import TOKENS_MAX, Done

BODY_SECONDS_MAX = 30.0
"""Time in which the body of a request has to be here."""

PIECES_MAX = TOKENS_MAX
"""Pieces of one answer that wait for a client that reads slowly: one a token. Those of the longest
context are some megabytes."""

_End = Done | BusyError | RefusedError


def build_app(model: ServedModel, hosts: Sequence[str] = ()) -> ASGIApp:
    """Returns the interface to a model as an ASGI application.

    Args:
        hosts: host names that requests may use besides loopback names and addresses.
    """

    async def show_models(_request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model_of(model)]})

    async def show_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != model.manifest.name:
            return _no_such_model(name, model)
        return JSONResponse(_model_of(model))

    app = Starlette(
        routes=[
            Route("/v1/models", show_models),
            Route("/v1/models/{name:path}", show_model),
            Route("/v1/completions", _Endpoint(model, read_completion), methods=["POST"]),
            Route("/v1/chat/completions", _Endpoint(model, read_chat), methods=["POST"]),
        ]
    )
    return Guard(app, hosts, BODY_BYTES_MAX)


def _model_of(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.manifest.name,
        "object": "model",
        "created": model.manifest.created_unix_seconds,
        "owned_by": model.manifest.founder,
        "round": model.entry.round,
        "state": model.entry.state_digest.hex(),
    }


def _no_such_model(name: str, model: ServedModel) -> Response:
    problem = f"there is no model {name!r} here; this one is {model.manifest.name!r}"
    return _refusal(404, problem, "model")


def _refusal(status: int, problem: str, field: str | None = None) -> Response:
    return JSONResponse(error_body(problem, "invalid_request_error", field), status)


class _Endpoint:
    """One kind of requests."""

    def __init__(self, model: ServedModel, read: Callable[[bytes], Question]) -> None:
        self._model, self._read = model, read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            question = await self._question(Request(scope, receive))
        except ClientDisconnect:
            return
        if isinstance(question, Response):
            await question(scope, receive, send)
            return
        answer = Answer(question, self._model.manifest.name, send)
        end: _End | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
            end = await self._add_text(question, answer)
            nursery.cancel_scope.cancel()
        # Behind the nursery: the HTTP server says that the client has gone when the end is on its
        # way, and it still has to close the connection then, or to wait for the next request.
        if isinstance(end, Done):
            await answer.end(end, scope, receive)
        elif end is not None:
            await answer.fail(end, scope, receive)

    async def _question(self, request: Request) -> Question | Response:
        """Returns what is asked, or the refusal. Raises ClientDisconnect where nobody asks any
        more."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return _refusal(415, "the header content-type must be application/json")
        try:
            with trio.fail_after(BODY_SECONDS_MAX):
                body = await request.body()  # `Guard` has checked its length
            question = self._read(body)
        except trio.TooSlowError:
            problem = f"the body of the request did not come within {BODY_SECONDS_MAX:.0f} s"
            return _refusal(408, problem)
        except QuestionError as error:
            status, answer = error_of(error)
            return JSONResponse(answer, status)
        if question.model not in (None, "", self._model.manifest.name):
            return _no_such_model(str(question.model), self._model)
        return question

    async def _add_text(self, question: Question, answer: Answer) -> _End:
        """Makes the text of an answer, and returns how it ended."""
        made, waiting = trio.open_memory_channel[str](PIECES_MAX)
        async with trio.open_nursery() as nursery:
            # Others wait for the model, which does not wait for a client that reads slowly.
            nursery.start_soon(_pass_on, waiting, answer)
            async with made:
                try:
                    return await self._model.generate(question.text, made.send, answer.comes_from)
                except (BusyError, RefusedError) as error:
                    return error


async def _pass_on(pieces: trio.MemoryReceiveChannel[str], answer: Answer) -> None:
    """Adds the pieces of a text to its answer, as fast as the client takes them."""
    async with pieces:
        async for piece in pieces:
            await answer.add(piece)


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancels the answer when its client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
