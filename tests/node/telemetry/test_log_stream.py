"""A log that nobody reads stops no node."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Literal, TextIO

import pytest
import structlog

from gossamer.node.telemetry.log_stream import WAITING_BYTES_MAX
from gossamer.node.telemetry.logs import configure_logs

pytestmark = pytest.mark.usefixtures("restored_logging")

SECONDS_MAX = 20.0
"""A writer that waits for its reader waits for ever."""

PIPE_BYTES = 4096


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    """The two ends of a small pipe."""
    reader, writer = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with open(reader) as read_from, open(writer, "w", buffering=1) as written_to:
        yield read_from, written_to


def ends(log: Callable[[], None]) -> bool:
    """Returns whether something that logs comes to its end although nobody reads."""
    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    thread.join(SECONDS_MAX)
    return not thread.is_alive()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_wait_for_a_pipe_that_nobody_reads(
    pipe: tuple[TextIO, TextIO], log_format: Literal["text", "json"]
) -> None:
    reader, writer = pipe
    configure_logs(log_format, "info", writer)

    def log() -> None:
        for number in range(1000):
            structlog.get_logger().info("a line", number=number)
        logging.getLogger("library").warning("the last one")

    assert ends(log)
    lines = [reader.readline() for _ in range(1001)]
    numbers = [int(match[1]) for line in lines if (match := re.search(r'number"?[=:](\d+)', line))]
    assert numbers == list(range(1000)), "each line is whole and at its place"
    assert "the last one" in lines[-1]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_beyond_the_bound_lines_are_left_out_and_counted(
    pipe: tuple[TextIO, TextIO], log_format: Literal["text", "json"]
) -> None:
    reader, writer = pipe
    configure_logs(log_format, "info", writer)
    num_lines, length = 40, WAITING_BYTES_MAX // 20

    def log() -> None:
        for number in range(num_lines):
            structlog.get_logger().info("x" * length, number=number)

    assert ends(log)
    lines: list[str] = []
    while not lines or "left out" not in lines[-1]:
        lines.append(reader.readline())
    *whole, gap = lines
    assert 10 < len(whole) < num_lines
    left_out = num_lines - len(whole)
    if log_format == "json":
        entry = json.loads(gap)
        assert (entry["event"], entry["lines"]) == ("log lines left out", left_out)
    else:
        assert f"warning {left_out} lines of the log are left out here" in gap
    structlog.get_logger().info("afterwards")
    assert "afterwards" in reader.readline(), "the log goes on"


def test_a_terminal_that_is_stopped_stops_nothing() -> None:
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0) as screen, open(slave, "w", buffering=1) as terminal:
        termios.tcflow(terminal.fileno(), termios.TCOOFF)  # what Ctrl-S does
        configure_logs("text", "info", terminal)
        assert ends(lambda: structlog.get_logger().info("while it is stopped"))
        termios.tcflow(terminal.fileno(), termios.TCOON)
        assert b"while it is stopped" in screen.read(PIPE_BYTES)


_LOGS_AND_ENDS = """
import structlog
from gossamer.node.telemetry.logs import configure_logs

configure_logs()
for number in range(300):
    structlog.get_logger().info("x" * 100, number=number)
"""


def test_a_process_ends_although_nobody_reads_its_last_lines(
    pipe: tuple[TextIO, TextIO],
) -> None:
    _, writer = pipe
    done = subprocess.run(
        [sys.executable, "-c", _LOGS_AND_ENDS], stderr=writer, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0


def test_all_lines_are_there_when_a_process_has_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOGS_AND_ENDS],
        stderr=subprocess.PIPE,
        timeout=SECONDS_MAX,
        check=True,
    )
    assert done.stderr.count(b"number=") == 300


def test_a_reader_that_has_gone_costs_its_lines_only(pipe: tuple[TextIO, TextIO]) -> None:
    reader, writer = pipe
    configure_logs("text", "info", writer)
    reader.close()
    assert ends(lambda: structlog.get_logger().info("to nobody"))
