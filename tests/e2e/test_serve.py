"""`gossamer serve` with its real command, asked by a real HTTP client."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gossamer.node.app.http.http_server import IDLE_SECONDS_MAX
from gossamer.node.base.settings.settings import Settings
from gossamer.node.runs.results.generating import for_terminal
from gossamer.node.serving.model import WAITING_MAX
from gossamer.node.serving.questions import BODY_BYTES_MAX
from tests.support.daemons import PATIENCE_SECONDS, gossamer, poll
from tests.support.imported_run import found_imported_run

pytestmark = pytest.mark.e2e

CONTEXT = 16_384
"""So long that an answer takes some 10 s (measured) unless something ends it."""

ENDS_SECONDS_MAX = 3.0
"""Time in which a text that nobody waits for ends, and the next one is here: 0.1 s without load."""

GREEDY = {"temperature": 0, "max_tokens": 8}


class Server:
    """The command, and its address."""

    def __init__(
        self, settings: Settings, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "gossamer.node.cli", "serve", "--bind", "127.0.0.1:0"]
        command += ["--state-dir", str(settings.state_dir), *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+/v1) serves .*, round 0, state", line)
        assert found, (line, self.process.poll())
        self.client = httpx.Client(base_url=found[1], timeout=PATIENCE_SECONDS)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def text(self, prompt: str = "A text", **body: Any) -> str:
        answer = self.post("/completions", prompt=prompt, **(GREEDY | body))
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    def worker(self) -> psutil.Process:
        """The process with the model."""
        (child,) = (
            each
            for each in psutil.Process(self.process.pid).children()
            if "gossamer.trainer.generation.generate" in each.cmdline()
        )
        return child

    def stop(self) -> str:
        """Ends the command in order and returns what it wrote to stderr."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors
        return errors


def events_of(answer: httpx.Response) -> list[Any]:
    """The events of a stream that ended as it should."""
    lines = [line for line in answer.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    root = tmp_path_factory.mktemp("run")
    return found_imported_run(root, "llama", max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def server(settings: Settings) -> Iterator[Server]:
    server = Server(settings, environment={"GOSSAMER_API_HOSTS": "models.example"})
    yield server
    server.stop()


def test_completions_are_those_of_generate(server: Server, settings: Settings) -> None:
    options = ("--temperature", "0", "--tokens", "8", "--state-dir", settings.state_dir)
    command = gossamer("generate", "A text", *options)
    assert command.out == for_terminal(f"A text{server.text()}") + "\n"
    answer = server.post("/completions", prompt=["A text"], model=None, **GREEDY).json()
    assert answer["object"] == "text_completion"
    assert answer["system_fingerprint"].startswith("round-0-")
    assert answer["choices"][0]["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage == {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14}


def test_the_model_is_listed(server: Server) -> None:
    (model,) = server.client.get("/models").json()["data"]
    assert model["round"] == 0
    assert server.client.get(f"/models/{model['id']}").json() == model
    assert server.client.get("/models/other").status_code == 404
    assert server.post("/completions", prompt="x", model=model["id"]).status_code == 200
    other = server.post("/completions", prompt="x", model="gpt-4")
    assert other.status_code == 404
    assert model["id"] in other.json()["error"]["message"]


def test_a_stream_has_the_same_text_in_pieces(server: Server) -> None:
    asked = GREEDY | {"stream": True, "stream_options": {"include_usage": True}}
    with server.client.stream("POST", "/completions", json={"prompt": "A text", **asked}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, last = events_of(answer)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    pieces = [event["choices"][0]["text"] for event in events]
    assert len([piece for piece in pieces if piece]) > 2
    assert "".join(pieces) == server.text()
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_a_chat_follows_the_models_template(server: Server) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "you"}]},
    ]
    whole = server.post("/chat/completions", messages=messages, **GREEDY).json()
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    # The template writes special tokens, and so does the prompt of a completion.
    prompt = "<|im_start|>hi<|im_end|><|im_start|>you<|im_end|>"
    assert message["content"] == server.text(prompt)
    asked = {"messages": messages, "stream": True, **GREEDY}
    with server.client.stream("POST", "/chat/completions", json=asked) as answer:
        events = events_of(answer)
    assert events[0]["object"] == "chat.completion.chunk"
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_sampling_follows_seed_top_p_and_stop(server: Server) -> None:
    hot: dict[str, Any] = {"temperature": 2, "max_tokens": 12}
    texts = [server.text(seed=seed, **hot) for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    assert len({server.text(**hot) for _ in range(4)}) > 1  # without a seed each is another
    assert server.text(seed=-1, top_p=0, **hot) == server.text(max_tokens=12)
    whole = server.text()
    stop = whole[3:5]
    answer = server.post("/completions", prompt="A text", stop=["never", stop], **GREEDY).json()
    assert answer["choices"][0]["text"] == whole[: whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/completions", {}, "prompt"),
        ("/completions", {"prompt": [1, 2]}, "a list is not supported here"),
        ("/completions", {"prompt": "x", "temperature": 3}, "allowed: 0 to 2"),
        ("/completions", {"prompt": "x", "top_p": -1}, "top_p is -1"),
        ("/completions", {"prompt": "x", "max_tokens": 0}, "max_tokens is 0"),
        ("/completions", {"prompt": "x", "n": 2}, "n is not supported"),
        ("/completions", {"prompt": "x", "logprobs": 3}, "logprobs is not supported"),
        ("/completions", {"prompt": "x", "stop": ["a"] * 5}, "up to 4"),
        ("/completions", {"prompt": "x", "stop": ""}, "1 to 256 characters"),
        ("/completions", {"prompt": "x" * 20_000}, "the prompt has 20,000 tokens"),
        ("/completions", {"prompt": "x" * 300_000}, "300,000 bytes"),
        ("/chat/completions", {"messages": []}, "messages"),
        ("/chat/completions", {"messages": [{"role": "user"}], "tools": [{}]}, "tools"),
        (
            "/chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            "tool_calls",
        ),
        (
            "/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "the type text only",
        ),
    ],
)
def test_what_is_not_supported_is_told(
    server: Server, path: str, body: dict[str, Any], said: str
) -> None:
    answer = server.post(path, **body)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


def test_bounds_of_the_request(server: Server) -> None:
    url = "/completions"
    plain = server.client.post(url, content=b'{"prompt": "x"}')
    assert plain.status_code == 415
    headers = {"content-type": "application/json"}
    large = server.client.post(url, content=b" " * (BODY_BYTES_MAX + 1), headers=headers)
    assert large.status_code == 413
    chunked = server.client.post(url, content=iter([b"{}"]), headers=headers)
    assert chunked.status_code == 413
    foreign = server.client.post(url, json={"prompt": "x"}, headers={"host": "evil.example"})
    assert foreign.status_code == 421
    assert "GOSSAMER_API_HOSTS" in foreign.text
    named = server.client.get("/models", headers={"host": "models.example:4680"})
    assert named.status_code == 200
    assert server.client.get(url).status_code == 405
    assert server.client.post(url, content=b"{", headers=headers).status_code == 400


ENDLESS = {"prompt": "A text", "temperature": 0, "max_tokens": CONTEXT, "stream": True}
"""A request whose answer goes on for as long as a context lets it."""


@contextmanager
def endless(server: Server) -> Iterator[Iterator[str]]:
    """An answer that has begun, as lines. The connection ends with the context."""
    with (
        httpx.Client(base_url=server.client.base_url, timeout=PATIENCE_SECONDS) as client,
        client.stream("POST", "/completions", json=ENDLESS) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def give_up(server: Server) -> None:
    """Asks for a whole answer in one piece, and goes before it is there."""
    url = f"{server.client.base_url}completions"
    timeout = httpx.Timeout(PATIENCE_SECONDS, read=0.5)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=ENDLESS | {"stream": False}, timeout=timeout)


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_ends_its_text(server: Server, *, streams: bool) -> None:
    worker = server.worker()
    for _ in range(3):
        if streams:
            with endless(server):
                pass
        else:
            give_up(server)
        gone = time.monotonic()
        assert server.text()  # its turn comes when the other text has ended
        assert time.monotonic() - gone < ENDS_SECONDS_MAX
    assert server.worker() == worker


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("streams", [True, False])
def test_a_connection_ends_where_its_client_said_so(
    server: Server, *, streams: bool, version: str
) -> None:
    """A client of HTTP/1.0, such as a proxy, knows the end of a stream by that."""
    url = server.client.base_url
    body = json.dumps({"prompt": "A text", "stream": streams, **GREEDY})
    lines = [f"POST {url.path}completions HTTP/{version}", f"host: {url.host}"]
    lines += ["connection: close", "content-type: application/json", f"content-length: {len(body)}"]
    with socket.create_connection((url.host, url.port or 80)) as client:
        client.settimeout(IDLE_SECONDS_MAX - 3)  # what is idle is closed after some time anyway
        client.sendall("\r\n".join([*lines, "", body]).encode())
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    assert answer.split()[1] == b"200"
    assert b'"finish_reason":' in answer


def test_too_many_requests_are_told_to_wait(server: Server) -> None:
    url = f"{server.client.base_url}completions"
    body = {"prompt": "A text", **GREEDY}
    with ThreadPoolExecutor(WAITING_MAX + 4) as pool:
        with endless(server):
            asked = [
                pool.submit(httpx.post, url, json=body, timeout=PATIENCE_SECONDS)
                for _ in range(WAITING_MAX + 4)
            ]
            poll(lambda: sum(each.done() for each in asked) == 4, "four refusals")
            for refused in (each.result() for each in asked if each.done()):
                assert refused.status_code == 429
                assert refused.headers["retry-after"]
                assert "try again later" in refused.json()["error"]["message"]
        statuses = sorted(each.result().status_code for each in asked)
    assert statuses == [200] * WAITING_MAX + [429] * 4


def test_a_process_that_died_is_started_again(server: Server) -> None:
    before = server.text()
    with endless(server) as lines:
        server.worker().kill()
        rest = [line for line in lines if line]
    assert "the process with the model ended" in json.loads(rest[-1][6:])["error"]["message"]
    assert server.text() == before


def test_a_model_without_a_chat_template_says_so(tmp_path: Path) -> None:
    settings = found_imported_run(tmp_path, "llama", has_template=False)
    server = Server(settings)
    answer = server.post("/chat/completions", messages=[{"role": "user", "content": "hi"}])
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]
    assert server.text()
    assert server.stop() == ""


def test_what_cannot_be_served_is_told(settings: Settings, tmp_path: Path) -> None:
    at = ("--bind", "127.0.0.1:0", "--state-dir")
    for options, status, said in (
        ((*at, tmp_path), 2, "there is no run"),
        ((*at, settings.state_dir, "--device", "cuda:77"), 1, "cuda:77"),
        ((*at, settings.state_dir, "--follow", "--round", "0"), 2, "give one"),
        ((*at, settings.state_dir, "--device", "abacus"), 2, "--device: 'abacus' is not a device"),
        (("--bind", "192.0.2.1:1", "--state-dir", settings.state_dir), 1, "--bind 192.0.2.1:1"),
        (("--bind", "4680", "--state-dir", settings.state_dir), 2, "--bind: '4680' is not"),
        (("--bind", "::1:4680", "--state-dir", settings.state_dir), 2, "--bind: '::1:4680': put"),
        (("--bind", "a..b:4680", "--state-dir", settings.state_dir), 2, "--bind: 'a..b:4680': "),
    ):
        answer = gossamer("serve", *options)
        assert answer.status == status, answer
        assert said in answer.err
