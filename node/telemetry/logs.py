"""Log lines: clear text for people, JSON for machines, the same events in both.

Our own lines come through structlog, other libraries' through `logging`; both end in one format on
one stream. What a peer said may stand in a line, so control characters are always escaped: a peer
can neither forge a line nor move somebody's cursor.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import traceback
from typing import Any, TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gossamer.node.base.settings import LogFormat, LogLevel

_COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "31;1"}
# Libraries that tell a daily story at INFO, and, for libp2p, print stack traces of what other
# peers do wrong at WARNING. Gossamer logs what matters of these itself.
_LIBRARY_LEVELS = {
    "": logging.WARNING,
    "libp2p": logging.CRITICAL,
    "hypercorn": logging.ERROR,
    "multiaddr": logging.ERROR,
    "matplotlib": logging.ERROR,
}


def configure_logs(
    log_format: LogFormat = "text", log_level: LogLevel = "info", stream: TextIO | None = None
) -> None:
    """Sets up logging of the whole process; a later call replaces an earlier one.

    With `log_level="debug"` libraries' warnings are shown too.
    """
    target = cast(TextIO, _Lossy(sys.stderr if stream is None else stream))
    colours = log_format == "text" and target.isatty()
    renderer: Processor = _render_json if log_format == "json" else _TextRenderer(colours)
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
    # Warnings are for developers; the tests turn them into errors.
    logging.captureWarnings(log_level == "debug")


class _Lossy:
    """A stream to which nothing is written when it takes nothing: a full disk, a closed pipe.

    The node goes on without a log rather than die of a line.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Says that all was written, in any case."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """What cannot be written now is tried again with the next line."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def printable(value: object) -> str:
    """Text on one line with control characters escaped, whoever wrote it."""
    text = value if isinstance(value, str) else str(value)
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


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
    seconds = event.pop("time")
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    ordered = {
        "time": f"{moment}.{int(seconds % 1 * 1000):03d}Z",
        "level": event.pop("level", "info"),
        "event": event.pop("event", ""),
        **{key: _to_json(value) if _is_bytes(value) else value for key, value in event.items()},
    }
    try:
        return msgspec.json.encode(ordered, enc_hook=_to_json).decode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return json.dumps(ordered, default=_to_json)


def _to_json(value: Any) -> str:
    return str(value.hex()) if _is_bytes(value) else str(value)


def _is_bytes(value: object) -> bool:
    """Digests, mostly: people and tools know them in hex."""
    return isinstance(value, (bytes, bytearray))


class _TextRenderer:
    """`12:00:05 info    round committed  round=3 members=4`, errors in red on a terminal."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(event.pop("time")))
        level = str(event.pop("level", "info"))
        message = printable(event.pop("event", ""))
        trace = event.pop("traceback", None)
        values = " ".join(f"{key}={_show(value)}" for key, value in event.items())
        line = f"{moment} {level:<7} {message}" + (f"  {values}" if values else "")
        if trace is not None:
            lines = str(trace).rstrip().splitlines()
            line += "".join(f"\n    {printable(part)}" for part in lines)
        if self._colours and level in _COLOURS:
            return f"\x1b[{_COLOURS[level]}m{line}\x1b[0m"
        return line


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    text = printable(value)
    if isinstance(value, str) and (not text or " " in text or '"' in text):
        return '"' + text.replace('"', '\\"') + '"'
    return text
