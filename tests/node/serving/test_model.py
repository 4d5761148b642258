"""The queue and the process behind `gossamer serve`, where something takes too long."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing
from starlette.types import Message

from gossamer.node.base.settings.settings import Settings
from gossamer.node.runs.results.reading import read_state
from gossamer.node.serving import model as model_module
from gossamer.node.serving.app import build_app
from gossamer.node.serving.model import BusyError, RefusedError, ServedModel
from gossamer.trainer.ipc.generation import Done, GenerateText
from tests.support.imported_run import found_imported_run

CONTEXT = 16_384

COMPLETION = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/completions",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
}

SHORT = GenerateText(prompt="A text", tokens=4, temperature=0.0, seed=0, beyond_context=False)
LONG = GenerateText(prompt="A text", tokens=CONTEXT, temperature=0.0, seed=0, beyond_context=False)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    root = tmp_path_factory.mktemp("run")
    return found_imported_run(root, "llama", max_position_embeddings=CONTEXT)


def with_model(settings: Settings, use: Callable[[ServedModel], Awaitable[None]]) -> None:
    model = ServedModel(settings, read_state(settings), "cpu")

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    lambda task_status: model.run(follow=False, task_status=task_status)
                )
                await use(model)
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert not [each for each in psutil.Process().children() if is_worker(each)]


def is_worker(process: psutil.Process) -> bool:
    return "gossamer.trainer.generation.generate" in process.cmdline()


def worker() -> psutil.Process:
    (found,) = (each for each in psutil.Process().children() if is_worker(each))
    return found


async def nowhere(_text: str) -> None:
    pass


async def text_of(model: ServedModel) -> str:
    pieces: list[str] = []

    async def add(text: str) -> None:
        pieces.append(text)

    done = await model.generate(SHORT, add)
    assert done == Done(reason="length", prompt_tokens=6, tokens=4)
    return "".join(pieces)


def test_a_turn_that_does_not_come_is_given_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "WAIT_SECONDS_MAX", 0.2)

    async def use(model: ServedModel) -> None:
        begun = trio.Event()

        async def add(_text: str) -> None:
            begun.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.generate, LONG, add)
            await begun.wait()
            with pytest.raises(BusyError, match="turn did not come") as told:
                await model.generate(SHORT, nowhere)
            assert not told.value.is_full
            nursery.cancel_scope.cancel()
        assert await text_of(model)

    with_model(settings, use)


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_names_the_round_that_made_it(settings: Settings, is_stream: bool) -> None:
    """Another round may be taken while a request waits for its turn."""
    body = {"prompt": "A text", "max_tokens": 2, "stream": is_stream}
    answered: list[Message] = []

    async def use(model: ServedModel) -> None:
        coming = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive() -> Message:
            if not coming:
                await trio.sleep_forever()
            return coming.pop()

        async def send(message: Message) -> None:
            answered.append(message)

        async with trio.open_nursery() as nursery, model._turn:
            nursery.start_soon(build_app(model), COMPLETION, receive, send)
            while not model._num_waiting:
                await trio.lowlevel.checkpoint()
            model.entry = replace(model.entry, round=7)

    with_model(settings, use)
    data = b"".join(message.get("body", b"") for message in answered).decode()
    events = [line.removeprefix("data: ") for line in data.splitlines()] if is_stream else [data]
    rounds = {json.loads(event)["system_fingerprint"][:8] for event in events if event[:1] == "{"}
    assert rounds == {"round-7-"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_http_server_is_let_finish_an_answer(settings: Settings, is_stream: bool) -> None:
    """It says that the client has gone when it has the end, and then sees to the connection: it
    closes it, or begins to measure how long it is idle."""
    body = json.dumps({"prompt": "A text", "max_tokens": 2, "stream": is_stream}).encode()
    finished = []

    async def use(model: ServedModel) -> None:
        to_app, from_server = trio.open_memory_channel[Message](2)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await to_app.send({"type": "http.disconnect"})
                await trio.testing.wait_all_tasks_blocked()
                finished.append(message)

        await to_app.send({"type": "http.request", "body": body})
        await build_app(model)(COMPLETION, from_server.receive, send)

    with_model(settings, use)
    assert len(finished) == 1


def test_a_client_that_does_not_read_its_answer_keeps_nobody_waiting(settings: Settings) -> None:
    body = json.dumps({"prompt": "A text", "max_tokens": 4, "temperature": 0, "stream": True})
    answered: list[Message] = []

    async def use(model: ServedModel) -> None:
        coming = [{"type": "http.request", "body": body.encode()}]
        begun, reads = trio.Event(), trio.Event()

        async def receive() -> Message:
            if not coming:
                await trio.sleep_forever()
            return coming.pop()

        async def send(message: Message) -> None:
            begun.set()
            await reads.wait()
            answered.append(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(build_app(model), COMPLETION, receive, send)
            await begun.wait()
            with trio.fail_after(30):
                assert await text_of(model)
            reads.set()  # the answer is whole for the client that reads it late

    with_model(settings, use)
    assert b"".join(each.get("body", b"") for each in answered).endswith(b"data: [DONE]\n\n")


def test_a_silent_process_is_ended_and_another_one_answers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(model: ServedModel) -> None:
        before = await text_of(model)
        silent = worker()
        silent.suspend()
        with monkeypatch.context() as patch:
            patch.setattr(model_module, "ANSWER_SECONDS_MAX", 0.5)
            with pytest.raises(RefusedError, match=r"said nothing for 0\.5 s") as told:
                await model.generate(SHORT, nowhere)
        assert "memory" not in str(told.value)
        assert not told.value.is_request
        assert not silent.is_running()
        assert await text_of(model) == before

    with_model(settings, use)


def test_a_process_that_does_not_hear_a_stop_is_ended(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "STOP_SECONDS_MAX", 0.5)

    async def use(model: ServedModel) -> None:
        deaf = worker()
        with trio.CancelScope() as scope:

            async def leave(_text: str) -> None:
                deaf.suspend()
                scope.cancel()
                await trio.lowlevel.checkpoint()

            await model.generate(LONG, leave)
        assert scope.cancelled_caught
        assert not deaf.is_running()
        assert await text_of(model)

    with_model(settings, use)


def test_a_device_that_is_not_there_is_told(settings: Settings, tmp_path: Path) -> None:
    model = ServedModel(settings, read_state(settings), "cuda:77")

    async def main() -> None:
        with pytest.raises(RefusedError, match="cuda:77"):
            await model.run(follow=False)

    trio.run(main)
