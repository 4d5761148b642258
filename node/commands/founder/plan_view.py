"""The output of `gossamer plan`: a table for people, or JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Column, Table

from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.units import format_bytes, format_count
from gossamer.node.runs.founding.data_plan import DataPlan
from gossamer.node.runs.planning.planning import RoundPlan

GOALS = (0.90, 0.95, 0.98)
"""Fractions of the time in which a trainer is busy, as published runs reached and aim at."""

_ASK_FOR_SPEED = "? (give --tokens-per-second)"

_UNITS = (("days", 86_400.0, 2.0), ("hours", 3600.0, 2.0), ("min", 60.0, 2.0))
"""Units of time with their seconds, and how many of them are the least that is said in this one."""


def print_plan(
    plan: RoundPlan,
    data: DataPlan | None,
    console: Console,
    *,
    json: bool = False,
    notes: Sequence[str] = (),
) -> None:
    """Prints a table and sentences, or one JSON object.

    Args:
        data: None if they are not planned.
        notes: sentences besides those on the plan.
    """
    if json:
        fields = _fields(plan) | {"data": None if data is None else _fields_of_data(data)}
        console.print_json(msgspec.json.encode(fields).decode())
        return
    # A narrow terminal gets more lines: a name of an option that is cut off helps nobody.
    table = Table(Column(overflow="fold"), Column(overflow="fold"), show_header=False)
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
    if data is not None:
        rows |= _rows_of_data(data)
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
    if data is not None and data.late_part is not None:
        console.print(_advice_on_data(data, data.late_part), highlight=False)
    for note in notes:
        console.print(printable(note), markup=False, highlight=False)


def _rows_of_data(data: DataPlan) -> dict[str, str]:
    first, num_parts = data.part_tokens[0], len(data.part_tokens)
    cores = "1 core cuts" if data.cores == 1 else f"{data.cores} cores cut"
    rows = {"the run begins": f"after about {_time(data.begin_seconds)} ({cores})"}
    if num_parts == 1:
        return rows | {"tokens": f"about {format_count(first)}, all of them from the beginning"}
    trained, needed = data.trained_per_second, data.needed_seconds
    used = _ASK_FOR_SPEED if trained is None else f"{format_count(round(trained))} a second"
    due = _ASK_FOR_SPEED if needed is None else f"after {_time(needed[1])}"
    return rows | {
        "tokens at its beginning": f"about {format_count(first)} of {format_count(data.num_tokens)}"
        f", in the first of {num_parts} parts",
        "tokens cut, trained on": f"{format_count(round(data.cut_per_second))} a second, {used}",
        "the second part": f"there {_time(data.ready_seconds[1])} later, needed {due}",
        "the last part": f"there {_time(data.ready_seconds[-1])} later",
    }


def _advice_on_data(data: DataPlan, late: int) -> str:
    needed = data.needed_seconds
    assert needed is not None
    ready, due = data.ready_seconds[late], needed[late]
    return (
        f"The peers are through with all tokens before part {late + 1} after {_time(due)}, and it "
        f"is there after {_time(ready)}: until then they train on the same text again. A larger "
        "--start-after begins later with more text, and a founder with more free cores cuts faster."
    )


def _time(seconds: float) -> str:
    """Returns a time in the unit that people would choose for it."""
    for unit, length, least in _UNITS:
        if seconds >= least * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"


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
    if plan.mixing_advised:
        advice += f"; in one piece, mixing = {plan.mixing_advised:g} would lessen it"
    return f"{advice}."


def _sent(plan: RoundPlan) -> str:
    if plan.fragments == 1:
        return format_bytes(plan.sent_bytes)
    most = format_bytes(plan.sent_bytes_max)
    return f"{format_bytes(plan.sent_bytes)}, {most} at most ({plan.fragments} fragments)"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _ASK_FOR_SPEED
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


def _fields_of_data(data: DataPlan) -> dict[str, int | float | tuple[int | float, ...] | None]:
    return {
        "part_tokens": data.part_tokens,
        "begin_seconds": data.begin_seconds,
        "cut_tokens_per_second": data.cut_per_second,
        "trained_tokens_per_second": data.trained_per_second,
        "ready_seconds": data.ready_seconds,
        "needed_seconds": data.needed_seconds,
    }
