"""`gossamer extend`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.units import format_count
from gossamer.node.commands.options import NO_OPTIONS, State, reading_settings_of
from gossamer.node.commands.questions import require_yes
from gossamer.node.runs.governance.extending import FoundersSchedule
from gossamer.node.runs.governance.signed_orders import SignersRun


def extend(
    total_tokens: Annotated[int | None, Parameter(show_default="none: say --cool-down")] = None,
    *,
    cooldown_tokens: Annotated[int | None, Parameter(show_default="as many as until now")] = None,
    cool_down: bool = False,
    yes: bool = False,
    options: State = NO_OPTIONS,
) -> int:
    """Set another end of the run, or begin its cool-down.

    Only the founder can, and only in a run with `schedule.kind = "wsd"`. A run that is finished
    goes on if its new end is later. Every node obeys, also one that comes later.

    Parameters
    ----------
    total_tokens
        Tokens of all peers with which the run is to end.
    cooldown_tokens
        Of these the last ones, in which the learning rate falls.
    cool_down
        Begin the cool-down now, and end the run with it.
    yes
        Do not ask.
    """
    if (total_tokens is None) != cool_down:
        raise ConfigError(["name the tokens with which the run is to end, or give --cool-down"])
    run = FoundersSchedule(SignersRun.here(reading_settings_of(options)))
    outlook = run.plan(total_tokens, cooldown_tokens)
    new = outlook.statement
    print(
        f"{outlook.name} has {format_count(outlook.tokens)} tokens. It ends with "
        f"{format_count(new.total_tokens)} instead of {format_count(run.schedule.total_tokens)}, "
        f"and the learning rate falls over the last {format_count(new.cooldown_tokens)}."
    )
    if not require_yes("Tell all nodes?", yes=yes):
        print("Nothing was changed.")
        return 1
    run.extend(outlook)
    print("The node tells the others within a second, or when it starts.")
    return 0
