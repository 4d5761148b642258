"""A pause, in words for people."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Protocol

from gossamer.node.telemetry.status import Status

_DAY_SECONDS = 24 * 3600
_WEEK_SECONDS = 6 * _DAY_SECONDS  # after that the name of a day is not clear


class Pause(Protocol):
    """A cause of a pause, of this node or as its status shows it."""

    @property
    def reason(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def after_round(self) -> bool: ...


def pause_text(
    pause: Pause, resumes_at: float | None, now: float, zone: tzinfo | None = None
) -> str:
    """Returns text such as `schedule, resumes at 22:00` or `process (blender runs)`.

    Args:
        resumes_at: when the node goes on (Unix time); None: nobody knows.
        now: the present Unix time.
        zone: of the times that are shown; None: that of this machine.
    """
    parts = [f"{pause.reason} ({pause.text})" if pause.text else pause.reason]
    if pause.after_round:
        parts.append("from the end of this round")
    if resumes_at is not None:
        parts.append(f"resumes at {moment(resumes_at, now, zone)}")
    return ", ".join(parts)


def pauses_text(status: Status, now: float) -> str:
    """Returns all that keeps a node from training, as its status shows it; empty if nothing does.

    Args:
        now: the present Unix time.
    """
    return "; ".join(
        pause_text(pause, unix_moment(pause.resumes_at), now, zone_of(pause.resumes_at))
        for pause in status.pauses
    )


def unix_moment(text: str | None) -> float | None:
    """Returns a moment of a status in Unix time; None for none, and for one that cannot be read."""
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def zone_of(text: str | None) -> tzinfo | None:
    """Returns the offset from UTC of a moment of a status: the node may live in another zone."""
    try:
        return None if text is None else datetime.fromisoformat(text).tzinfo
    except ValueError:
        return None


def moment(unix_seconds: float, now: float, zone: tzinfo | None = None) -> str:
    """Returns a moment as a clock on the wall shows it: `22:00` within a day, else `Sat 22:00`, and
    the date where that is a week away."""
    local = datetime.fromtimestamp(unix_seconds, zone)
    if unix_seconds - now < _DAY_SECONDS:
        return f"{local:%H:%M}"
    return f"{local:%a %H:%M}" if unix_seconds - now < _WEEK_SECONDS else f"{local:%Y-%m-%d %H:%M}"
