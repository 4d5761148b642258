"""The three standard streams of a command, made safe for what it writes and asks."""

from __future__ import annotations

import codecs
import io
import os
import sys

_ESCAPES = "gossamer.escapes"


def mend_standard_streams() -> None:
    """Prepares the streams, before anything is written or asked.

    A closed stream is as one that is empty, and takes everything. Python has None in its place, and
    the system would give its number to the next file or connection. A letter that the encoding of a
    stream lacks is written as its escape: others may choose the names of peers and runs.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the system takes the lowest number that is free
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    codecs.register_error(_ESCAPES, _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Handles letters that cannot be encoded: it writes JSON's escapes, so that JSON stays JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    escapes = (f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))
    return "".join(escapes), error.end
