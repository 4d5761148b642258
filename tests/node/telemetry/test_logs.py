import ast
import contextlib
import io
import json
import logging
import re
from pathlib import Path
from typing import Literal

import pytest
import structlog

from gossamer import node
from gossamer.node.base.terminal.printable import printable
from gossamer.node.telemetry.logs import (
    KEPT_CHARACTERS_MAX,
    KEPT_LINES_MAX,
    configure_logs,
    newest_lines,
)

pytestmark = pytest.mark.usefixtures("restored_logging")


def test_text_lines() -> None:
    stream = io.StringIO()
    configure_logs("text", "info", stream)
    structlog.get_logger().info(
        "round committed", round=3, loss=2.34567, name="a b", digest=b"\xab\xcd"
    )
    line = stream.getvalue()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d info ", line), "a date and a time"
    assert line.endswith('info    round committed  round=3 loss=2.346 name="a b" digest=abcd\n')
    assert line.count("\n") == 1


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_newest_lines_are_kept_as_text(log_format: Literal["text", "json"]) -> None:
    configure_logs(log_format, "info", io.StringIO())
    for number in range(KEPT_LINES_MAX + 50):
        structlog.get_logger().info("line \x1b[2J", number=number)
    structlog.get_logger().debug("not logged, and so not kept")
    logging.getLogger("library").warning("y" * 10 * KEPT_CHARACTERS_MAX)
    lines = newest_lines()
    assert len(lines) == KEPT_LINES_MAX
    assert lines[0].endswith("info    line \\x1b[2J  number=51")
    assert "warning yyy" in lines[-1]
    assert len(lines[-1]) == KEPT_CHARACTERS_MAX


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_color_leaves_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for no_color, is_coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        stream = Terminal()
        configure_logs("text", "info", stream)
        structlog.get_logger().error("failed")
        assert ("\x1b" in stream.getvalue()) == is_coloured


def test_json_lines() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    structlog.get_logger().warning("peer gone", peer="x\ny", loss=float("nan"), digest=b"\xab")
    entry = json.loads(stream.getvalue())
    assert list(entry)[:3] == ["time", "level", "event"]
    assert entry["time"].endswith("Z")
    assert (entry["level"], entry["event"]) == ("warning", "peer gone")
    assert (entry["peer"], entry["loss"], entry["digest"]) == ("x\ny", None, "ab")


def test_a_sentence_is_for_people_and_its_values_are_fields_for_machines() -> None:
    for log_format in ("text", "json"):
        stream = io.StringIO()
        configure_logs(log_format, "info", stream)
        structlog.get_logger().info(
            "round 3 committed", peers=2, fields={"event": "round ended", "round": 3}
        )
        line = stream.getvalue()
        if log_format == "text":
            assert line.endswith("round 3 committed  peers=2\n")
        else:
            entry = json.loads(line)
            del entry["time"]
            assert entry == {"level": "info", "event": "round ended", "peers": 2, "round": 3}


def test_no_sentence_hides_a_value_from_machines() -> None:
    """A value in an f-string of a log call stands in `fields`, too."""
    hidden = []
    for path in sorted(Path(node.__path__[0]).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("debug", "info", "warning", "error")
                and call.args
                and isinstance(call.args[0], ast.JoinedStr)
                and "fields" not in [keyword.arg for keyword in call.keywords]
            ):
                hidden.append(f"{path.name}:{call.lineno}")
    assert hidden == []


def test_json_of_a_name_that_is_not_utf8() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    structlog.get_logger().info("found", path="caf\udce9")
    assert json.loads(stream.getvalue())["path"] == "caf\udce9"


def test_a_peer_cannot_forge_a_line_or_move_the_cursor() -> None:
    stream = io.StringIO()
    configure_logs("text", "info", stream)
    structlog.get_logger().info("hello", device="GPU\n12:00:00 error forged\x1b[2J")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert printable("ok\r\x07é") == "ok\\r\\x07é"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_peer_cannot_turn_the_order_of_characters_around(log_format: str) -> None:
    stream = io.StringIO()
    configure_logs("json" if log_format == "json" else "text", "info", stream)
    device = "GPU\x9b2J\u202eUPG\u2066\u2028\U000e0001\x7f"
    structlog.get_logger().info("hello", device=device)
    line = stream.getvalue()
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    if log_format == "json":
        assert json.loads(line)["device"] == device


def test_levels() -> None:
    stream = io.StringIO()
    configure_logs("text", "warning", stream)
    log = structlog.get_logger()
    log.info("quiet")
    log.error("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_libraries_speak_the_same_format_and_only_when_it_matters(log_format: str) -> None:
    stream = io.StringIO()
    configure_logs("json" if log_format == "json" else "text", "info", stream)
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("libp2p.pubsub").error("a peer sent rubbish")
    assert stream.getvalue() == ""
    logging.getLogger("some.library").warning("worth %s", "reading")
    if log_format == "json":
        assert json.loads(stream.getvalue())["event"] == "worth reading"
    else:
        assert stream.getvalue().endswith("warning worth reading\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_exceptions_keep_their_traceback(log_format: str) -> None:
    stream = io.StringIO()
    configure_logs("json" if log_format == "json" else "text", "info", stream)
    try:
        raise KeyError("lost")
    except KeyError:
        structlog.get_logger().exception("trainer failed", attempt=2)
    text = stream.getvalue()
    assert "trainer failed" in text
    assert "KeyError: 'lost'" in text
    if log_format == "json":
        assert "Traceback" in json.loads(text)["traceback"]


def test_configuring_again_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logs("text", "info", first)
    configure_logs("text", "info", second)
    structlog.get_logger().info("once")
    logging.getLogger("library").warning("twice")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_log_on_a_full_disk_costs_its_lines_only(log_format: Literal["text", "json"]) -> None:
    # Unbuffered by the line, as stderr is.
    stream = open("/dev/full", "w", buffering=1)  # noqa: SIM115 - closing it fails
    configure_logs(log_format, "info", stream)
    try:
        structlog.get_logger("node").info("not shown")
        logging.getLogger("another").warning("neither")
    finally:
        with contextlib.suppress(OSError):
            stream.close()
