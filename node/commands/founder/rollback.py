"""`gossamer rollback`."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.commands.options import State, reading_settings_of
from gossamer.node.runs.rolling_back import FoundersRun, RollbackError


def rollback(
    to_round: int,
    *,
    yes: Annotated[bool, Parameter(negative="")] = False,
    options: State = None,
) -> int:
    """Take back all rounds after one, as the run's founder.

    Every node of the run goes on from there. The state after that round has to be on this disk. It
    cannot be undone.

    Parameters
    ----------
    to_round
        Round whose state the run goes on from; 0: the initial weights.
    yes
        Do not ask.
    """
    run = FoundersRun.here(reading_settings_of(options))
    plan = run.plan(to_round)
    first = to_round + 1
    rounds = f"round {first}" if plan.newest_round == first else f"rounds {first} to"
    rounds += "" if plan.newest_round == first else f" {plan.newest_round}"
    print(f"Takes back {rounds} of {run.manifest.name}, with {plan.tokens:,} tokens of work.")
    if not yes:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise RollbackError("nobody can be asked here: give --yes")
        if input("All nodes go on from there, for good. Type the round to confirm: ").strip() != (
            str(to_round)
        ):
            print("Nothing was changed.")
            return 1
    run.roll_back(plan)
    print("The node tells the others within a second, or when it starts.")
    return 0
