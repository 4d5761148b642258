"""The output of `gossamer plan`: a table for people, or JSON for programs."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table

from gossamer.node.base.units import format_bytes
from gossamer.node.runs.planning import RoundPlan

GOALS = (0.90, 0.95, 0.98)
"""Fractions of the time in which a trainer is busy, as published runs reached and aim at."""


def print_plan(plan: RoundPlan, console: Console, *, json: bool = False) -> None:
    """Prints a table, or one JSON object."""
    if json:
        console.print_json(msgspec.json.encode(_fields(plan)).decode())
        return
    table = Table(show_header=False)
    rows = {
        "peers": str(plan.peers),
        "parameters": f"{plan.parameters:,}",
        "own payload of a round": format_bytes(plan.payload_bytes),
        "... per inner step": f"{format_bytes(plan.payload_per_step)}, {plan.reduction:,.0f} times "
        "less than an fp32 gradient",
        "sent, and received, a round": _sent(plan),
        "sent with trust open": format_bytes(plan.sent_bytes_open or 0),
        "averaging": _seconds(plan.averaging_seconds),
        "training": _seconds(plan.training_seconds),
        "a round": _seconds(plan.round_seconds),
        "trainer busy": "?" if plan.utilisation is None else f"{plan.utilisation:.1%}",
        "a newcomer fetches": f"{format_bytes(plan.state_bytes)} in {_seconds(plan.join_seconds)}",
    }
    if plan.sent_bytes_open is None:
        del rows["sent with trust open"]
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    how = "with overlap" if plan.overlap else "without overlap"
    goals = ", ".join(
        f"{goal:.0%} if a round's steps take {plan.training_seconds_for(goal):,.1f} s"
        for goal in GOALS
    )
    console.print(f"Trainer busy ({how}): {goals}.", highlight=False)
    if plan.is_late:
        console.print(_advice(plan), highlight=False)


def _advice(plan: RoundPlan) -> str:
    unit = "turn" if plan.fragments > 1 else "round"
    advice = (
        f"A new state arrives when {plan.lateness:.0%} of the next {unit}'s steps are done. A "
        "later state costs the model more, and much more in one piece than in fragments "
        "(docs/benchmarks/losses.md). "
        "It arrives sooner with more inner_steps, or with a codec of fewer bits"
    )
    if plan.fragments_advised:
        advice += f"; fragments = {plan.fragments_advised} would lessen the cost"
    return f"{advice}."


def _sent(plan: RoundPlan) -> str:
    if plan.fragments == 1:
        return format_bytes(plan.sent_bytes)
    most = format_bytes(plan.sent_bytes_max)
    return f"{format_bytes(plan.sent_bytes)}, {most} at most ({plan.fragments} fragments)"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "? (give --tokens-per-second)"
    return f"{seconds:,.1f} s"


def _fields(plan: RoundPlan) -> dict[str, int | float | bool | None]:
    return {
        "peers": plan.peers,
        "parameters": plan.parameters,
        "fragments": plan.fragments,
        "inner_steps": plan.inner_steps,
        "payload_bytes": plan.payload_bytes,
        "payload_bytes_per_inner_step": plan.payload_per_step,
        "reduction": plan.reduction,
        "sent_bytes": plan.sent_bytes,
        "sent_bytes_open": plan.sent_bytes_open,
        "sent_bytes_max": plan.sent_bytes_max,
        "averaging_seconds": plan.averaging_seconds,
        "training_seconds": plan.training_seconds,
        "round_seconds": plan.round_seconds,
        "utilisation": plan.utilisation,
        "overlap": plan.overlap,
        "lateness": plan.lateness,
        "state_bytes": plan.state_bytes,
        "join_seconds": plan.join_seconds,
    }
