"""Log lines: clear text for people or JSON for machines, with the same events in both.

Gossamer's own lines come through structlog, and those of other libraries through `logging`. Both
have one format and go to one stream. Where a sentence for people has values in it, `fields` has
them for machines, with a fixed `event`; text leaves them out.

A line may contain text that a peer sent, so control characters are always escaped: a peer can
neither forge a line nor move the cursor of a terminal.

The newest lines are kept in memory too, as text, for the page.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor, ProcessorReturnValue, WrappedLogger

from gossamer.node.base.settings.setting_values import LogFormat, LogLevel
from gossamer.node.base.terminal.printable import printable, printable_json
from gossamer.node.telemetry.log_stream import open_log_stream

_COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "31;1"}
KEPT_LINES_MAX = 200
"""Lines that are kept: what a person reads to see what has just happened."""

KEPT_CHARACTERS_MAX = 2_000
"""Characters of one kept line, so that all of them take 2 MB at most. Tracebacks are cut."""

# These libraries log much at INFO. libp2p also logs stack traces at WARNING for mistakes of other
# peers, and zeroconf for interfaces without multicast. Gossamer itself logs what matters of this.
_LIBRARY_LEVELS = {
    "": logging.WARNING,
    "libp2p": logging.CRITICAL,
    "hypercorn": logging.ERROR,
    "multiaddr": logging.ERROR,
    "matplotlib": logging.ERROR,
    "zeroconf": logging.ERROR,
}


_Renderer = Callable[[WrappedLogger, str, EventDict], str]


def configure_logs(
    log_format: LogFormat = "text", log_level: LogLevel = "info", stream: TextIO | None = None
) -> None:
    """Sets up logging of the whole process. A later call replaces an earlier one.

    With `log_level="debug"` the warnings of libraries are logged as well.
    """
    stream = sys.stderr if stream is None else stream
    colours = log_format == "text" and stream.isatty() and not os.environ.get("NO_COLOR")
    written: _Renderer = _render_json if log_format == "json" else _TextRenderer(colours)
    target = cast(TextIO, open_log_stream(stream, functools.partial(_gap_line, written)))
    renderer: Processor = _Kept(written)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _format_exception,
        _add_time,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(log_level),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    for name, level in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(logging.WARNING if log_level == "debug" else level)
    # Python's warnings are for developers. The tests turn them into errors.
    logging.captureWarnings(log_level == "debug")


def newest_lines() -> list[str]:
    """Returns the newest lines of this process, oldest first, at most `KEPT_LINES_MAX`."""
    with _keeping:
        return list(_kept)


_kept: deque[str] = deque(maxlen=KEPT_LINES_MAX)
_keeping = threading.Lock()  # threads log, too
# The log is the process's, and so are its newest lines.


def _gap_line(written: _Renderer, num_lines: int) -> str:
    """Returns the line in the place of lines that nobody read."""
    event = {
        "time": time.time(),
        "level": "warning",
        "event": (
            f"{num_lines:,} lines of the log are left out here: the terminal or program that it "
            "goes to took none. The page of the node shows the newest lines (`gossamer page`)"
        ),
        "fields": {"event": "log lines left out", "lines": num_lines},
    }
    return f"{written(None, 'warning', event)}\n"


def _add_time(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["time"] = time.time()
    return event


def _format_exception(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    elif isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["traceback"] = "".join(traceback.format_exception(error))
    return event


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    fields = event.pop("fields", {})
    seconds = event.pop("time")
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    ordered = {
        "time": f"{moment}.{int(seconds % 1 * 1000):03d}Z",
        "level": event.pop("level", "info"),
        "event": event.pop("event", ""),
        **_with_hex({**event, **fields}),
    }
    try:
        return printable_json(msgspec.json.encode(ordered, enc_hook=str).decode())
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return json.dumps(ordered, default=str)


def _with_hex(event: EventDict) -> EventDict:
    """Returns the event with bytes as hex: they are digests, which people and tools know as hex."""
    return {
        key: value.hex() if isinstance(value, (bytes, bytearray)) else value
        for key, value in event.items()
    }


class _Kept:
    """Keeps each line as text, and renders it as another renderer does."""

    def __init__(self, renderer: Processor) -> None:
        self._renderer = renderer
        self._as_text = _TextRenderer(colours=False)

    def __call__(
        self, logger: WrappedLogger, method: str, event: EventDict
    ) -> ProcessorReturnValue:
        line = self._as_text(logger, method, dict(event))
        with _keeping:
            _kept.append(line[:KEPT_CHARACTERS_MAX])
        return self._renderer(logger, method, event)


class _TextRenderer:
    """Renders `2026-01-31 12:00:05 info    round committed  round=3`, in colour on a terminal."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.pop("time")))
        event.pop("fields", None)
        level = str(event.pop("level", "info"))
        message = printable(str(event.pop("event", "")))
        trace = event.pop("traceback", None)
        values = _render_values(_with_hex(event))
        line = f"{moment} {level:<7} {message}" + (f"  {values}" if values else "")
        if trace is not None:
            lines = str(trace).rstrip().splitlines()
            line += "".join(f"\n    {printable(part)}" for part in lines)
        if self._colours and level in _COLOURS:
            return f"\x1b[{_COLOURS[level]}m{line}\x1b[0m"
        return line


def _render_values(event: EventDict) -> str:
    """Returns `key=value` for each value: floats are shortened, and texts with spaces quoted."""
    shown = []
    for key, value in event.items():
        if isinstance(value, float):
            text = f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
        else:
            text = printable(str(value))
            if isinstance(value, str) and (not text or " " in text or '"' in text):
                text = '"' + text.replace('"', '\\"') + '"'
        shown.append(f"{key}={text}")
    return " ".join(shown)
