"""The owner's limits and schedule, as a status shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gossamer.node.base.settings.owner_limits import (
    SCHEDULE,
    SETTING_OF,
    UNITS,
    rule_text,
    source_of,
)
from gossamer.node.base.settings.setting_values import SettingValue
from gossamer.node.base.settings.settings import Settings
from gossamer.node.telemetry.status import LimitStatus, RuleStatus


def limit_statuses(
    settings: Settings,
    kept: Mapping[str, str],
    number_of: Callable[[str], float | None],
    *,
    used: Mapping[str, float] | None = None,
    notes: Mapping[str, str] | None = None,
) -> tuple[LimitStatus, ...]:
    """Returns each limit beside its use.

    Args:
        kept: what the owner has set, as `read_limits` returns it.
        number_of: returns the present number of a limit; None for no limit, or an unknown one.
        used: what the node uses now, as far as it is known.
        notes: what keeps a limit from holding here.
    """
    return tuple(
        LimitStatus(
            name=name,
            setting=setting,
            unit=UNITS[name],
            limit=number_of(name),
            text=_text_of(getattr(settings, setting)),
            used=(used or {}).get(name),
            source=source_of(name, kept),
            note=(notes or {}).get(name, ""),
        )
        for name, setting in SETTING_OF.items()
    )


def rule_statuses(settings: Settings, kept: Mapping[str, str]) -> tuple[RuleStatus, ...]:
    """Returns what says when the node trains. `kept`: as for `limit_statuses`."""
    return tuple(
        RuleStatus(name=name, text=rule_text(settings, name), source=source_of(name, kept))
        for name in SCHEDULE
    )


def _text_of(value: SettingValue) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value or "")
