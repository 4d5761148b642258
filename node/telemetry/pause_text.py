"""A pause, in words for people."""

from __future__ import annotations

from datetime import datetime

from gossamer.node.base.pausing import Hold
from gossamer.node.telemetry.status import PauseStatus, Status

_DAY_SECONDS = 24 * 3600
_WEEK_SECONDS = 6 * _DAY_SECONDS  # after that the name of a day is not clear


def pause_text(pause: Hold | PauseStatus, resumes_at: datetime | None, now: float) -> str:
    """Returns text such as `schedule, resumes at 22:00` or `process (blender runs)`.

    Args:
        resumes_at: when the node goes on, in the zone that is shown; None: nobody knows.
        now: the present Unix time.
    """
    parts = [f"{pause.reason} ({pause.text})" if pause.text else pause.reason]
    if pause.after_round:
        parts.append("from the end of this round")
    if resumes_at is not None:
        parts.append(f"resumes at {moment(resumes_at, now)}")
    return ", ".join(parts)


def pauses_text(status: Status, now: float) -> str:
    """Returns all that keeps a node from training, as its status shows it; empty if nothing does.

    Args:
        now: the present Unix time.
    """
    return "; ".join(pause_text(pause, moment_in(pause.resumes_at), now) for pause in status.pauses)


def moment_in(text: str | None) -> datetime | None:
    """Returns a moment of a status, in the zone of its node, which may be another one than here;
    None for none, and for one that cannot be read."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None


def moment(when: datetime, now: float) -> str:
    """Returns a moment as a clock on the wall shows it: `22:00` within a day, else `Sat 22:00`, and
    the date where that is a week away."""
    left = when.timestamp() - now
    if left < _DAY_SECONDS:
        return f"{when:%H:%M}"
    return f"{when:%a %H:%M}" if left < _WEEK_SECONDS else f"{when:%Y-%m-%d %H:%M}"
