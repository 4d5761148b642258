import json
from typing import Any, cast

import trio
import trio.testing
from starlette.types import Message

from gossamer.node.serving.app import BODY_SECONDS_MAX, build_app
from gossamer.node.serving.model import ServedModel

SCOPE: dict[str, Any] = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/completions",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
}


def ask(*messages: Message) -> tuple[list[Message], float]:
    """Returns the answer to a request whose client sends these messages and then nothing more, and
    the seconds that the answer took."""

    async def main() -> tuple[list[Message], float]:
        coming, answer = list(messages), list[Message]()

        async def receive() -> Message:
            if not coming:
                await trio.sleep_forever()
            return coming.pop(0)

        async def send(message: Message) -> None:
            answer.append(message)

        app = build_app(cast("ServedModel", None))  # no request here comes as far as the model
        await app(SCOPE, receive, send)
        return answer, trio.current_time()

    return trio.run(main, clock=trio.testing.MockClock(rate=0, autojump_threshold=0))


def test_a_body_that_is_too_slow_is_told_and_ends_the_connection() -> None:
    answer, seconds = ask({"type": "http.request", "body": b'{"prom', "more_body": True})
    assert answer[0]["status"] == 408
    assert (b"connection", b"close") in answer[0]["headers"]
    assert "30 s" in json.loads(answer[1]["body"])["error"]["message"]
    assert BODY_SECONDS_MAX <= seconds < BODY_SECONDS_MAX + 5


def test_a_client_that_has_gone_gets_no_answer() -> None:
    part = {"type": "http.request", "body": b"{", "more_body": True}
    assert ask(part, {"type": "http.disconnect"})[0] == []
