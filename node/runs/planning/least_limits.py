"""The least that a run needs of what an owner limits: the words for a limit that is too low."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.node.base.limit_periods import parse_limit
from gossamer.node.base.rate_limit import BITS, MBIT
from gossamer.node.base.settings.setting_values import gpu_memory_bytes
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.machine.capacity import DeviceMemory
from gossamer.node.runs.planning.device_fit import device_fits
from gossamer.node.runs.planning.needs import PEERS_SUPPOSED, needs_of
from gossamer.node.runs.planning.planning import LINE_SHARE, Line, plan_round
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.rounds.ring.link_rates import LIMIT_PATIENCE_FRACTION
from gossamer.trainer.resources.device_names import parts_of


def least_line_mbit(manifest: Manifest, tokens_per_second: float | None) -> float:
    """Returns the rate, in Mbit/s, at which a ring lasts as long as the others wait for a member
    with a limit: as long as the training before it. 0 while the speed of the trainer is not known.
    """
    plan = plan_round(manifest, PEERS_SUPPOSED, Line(1.0, 1.0), tokens_per_second)
    if plan.training_seconds is None:
        return 0.0
    seconds = LIMIT_PATIENCE_FRACTION * plan.training_seconds
    return plan.sent_bytes_max * BITS / MBIT / LINE_SHARE / seconds


def least_problems(
    manifest: Manifest,
    settings: Settings,
    *,
    trains_on_host: bool,
    disk_bytes: int,
    cards: Sequence[DeviceMemory],
    tokens_per_second: float | None,
) -> list[str]:
    """Returns a sentence for each limit that is too low for the run, which begins with its name.

    Args:
        disk_bytes: what the run needs of the disk here.
        cards: those that train; none for a CPU, or where nothing is known of them.
        tokens_per_second: speed of this trainer; None if it is not known.
    """
    found = []
    least_mbit = least_line_mbit(manifest, tokens_per_second)
    for name, periods in (("upload", settings.up_limit), ("download", settings.down_limit)):
        lowest = min((parse_limit(text).mbit for text in periods), default=least_mbit)
        if lowest < least_mbit:
            found.append(
                f"{name}: {lowest:g} Mbit/s are too few: this run needs {_up(least_mbit)} Mbit/s "
                "or more here, or its rounds would last more than twice as long"
            )
    needs = needs_of(
        manifest,
        trains_on_host=trains_on_host,
        cache_bytes=0,
        moments=settings.moments,
        num_devices=max(len(cards), len(parts_of(settings.device))),
    )
    if 0 < settings.memory_max < needs.memory:
        found.append(
            f"memory: {format_bytes(settings.memory_max)} are too few: this run needs "
            f"{format_bytes(needs.memory)} or more here"
        )
    if 0 < settings.disk_max < disk_bytes:
        found.append(
            f"disk: {format_bytes(settings.disk_max)} are too few: this run needs "
            f"{format_bytes(disk_bytes)} or more here"
        )
    fits = device_fits(manifest, cards, settings.moments) if settings.gpu_memory else []
    for card, fit in zip(cards, fits, strict=False):
        most, least = gpu_memory_bytes(settings.gpu_memory, card.total_bytes), fit.least_bytes
        if most < least:
            found.append(
                f"gpu_memory: {format_bytes(most)} are too few: this run needs "
                f"{format_bytes(least)} or more of {card.name}"
            )
    return found


def _up(mbit: float) -> str:
    """A rate that is not below the given one, for people."""
    return f"{int(mbit * 10 + 1) / 10:g}"
