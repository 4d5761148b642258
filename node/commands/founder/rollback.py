"""`gossamer rollback`."""

from __future__ import annotations

from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.terminal import ask
from gossamer.node.commands.options import NO_OPTIONS, State, reading_settings_of
from gossamer.node.commands.questions import require_terminal
from gossamer.node.runs.governance.rolling_back import RollbackDesk
from gossamer.node.runs.governance.signed_orders import SignersRun


def rollback(
    to_round: int,
    *,
    yes: bool = False,
    options: State = NO_OPTIONS,
) -> int:
    """Take back all rounds after one, as founder or keeper.

    Every node of the run goes on from there: at once by the founder's word, and when more than half
    of the keepers have given this order. The state after that round has to be on this disk. It
    cannot be undone.

    Parameters
    ----------
    to_round
        Round whose state the run goes on from; 0: the initial weights.
    yes
        Do not ask.
    """
    settings = reading_settings_of(options)
    run = RollbackDesk(SignersRun.here(settings), settings.cache_bytes)
    plan = run.plan(to_round)
    first = to_round + 1
    rounds = f"round {first}" if plan.newest_round == first else f"rounds {first} to"
    rounds += "" if plan.newest_round == first else f" {plan.newest_round}"
    name = printable(run.manifest.name)
    print(f"Takes back {rounds} of {name}, with {plan.tokens:,} tokens of work.")
    if plan.warning:
        print(plan.warning)
    if not yes:
        require_terminal()
        if ask("All nodes go on from there, for good. Type the round to confirm: ") != (
            str(to_round)
        ):
            print("Nothing was changed.")
            return 1
    run.roll_back(plan)
    print("The node tells the others within a second, or when it starts.")
    if plan.missing:
        print(
            f"It holds when {plan.missing} more of the run's keepers have given the same order: "
            f"gossamer rollback {to_round}"
        )
    return 0
