"""`gossamer pause`, `resume`, `finish` and `leave`: one order each to a running node."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.app.http.client import (
    ClientError,
    Order,
    fetch_status,
    give_order,
    until_end,
    until_written,
)
from gossamer.node.base.durations import parse_duration
from gossamer.node.base.pausing import PAUSE_SECONDS_MAX
from gossamer.node.commands.options import NO_OPTIONS, State, StateOptions, state_dir_of, value_of
from gossamer.node.telemetry.pause_text import moment, moment_in, pauses_text
from gossamer.node.telemetry.status import Status

FREE_SECONDS_MAX = 180.0
"""Limit of the wait for the device: a step, the end of a ring, and two vectors to a slow disk."""

POLL_SECONDS = 0.2
"""Time between two looks at the node: a person does not notice less."""


def pause(
    *,
    for_: Annotated[str | None, Parameter(name="--for", show_default="until resume")] = None,
    after_round: bool = False,
    options: State = NO_OPTIONS,
) -> int:
    """Stop training and free the device; the node serves what it has.

    It returns when the device is free. A restart of the node does not end the pause.

    Parameters
    ----------
    for_
        How long to pause, such as 30min or 2h: after that the node goes on by itself.
    after_round
        Finish the present round first. The command returns at once, and --for counts from now.
    """
    order = _order_options(for_, after_round)
    state_dir = state_dir_of(options)
    problem = give_order(state_dir, "pause", order)
    if problem:  # first: to wait for the device may take minutes
        print(until_end(problem))
    started = time.monotonic()
    status = fetch_status(state_dir)
    if after_round and not _is_device_free(status):
        print("The node pauses when its present round ends; gossamer status shows it.")
        return 0
    has_told = was_ordered = False
    while not _is_device_free(status):
        if was_ordered and not _is_ordered(status):
            raise ClientError(
                "the pause has ended before the device was free: by its time, or because somebody "
                "gave another order"
            )
        was_ordered = _is_ordered(status)
        waited = time.monotonic() - started
        if waited > FREE_SECONDS_MAX:
            raise ClientError(
                f"the node pauses, but its device is not free after {FREE_SECONDS_MAX:.0f} s; "
                "`gossamer status` shows `paused (user)` when it is, and the node's log says what "
                "it does"
            )
        if not has_told:
            has_told = True
            print("The node ends its step and hands over its round; then the device is free.")
        time.sleep(POLL_SECONDS)
        status = fetch_status(state_dir)
    if status.phase == "finished":
        print("The device is free: the run is finished, and the node only serves its model.")
        return 0
    seconds = f" after {time.monotonic() - started:.0f} s" if has_told else ""
    print(f"The device is free{seconds}. {_how_it_goes_on(status)}")
    return 0


def _how_it_goes_on(status: Status) -> str:
    """Returns what ends the pause of a node whose device is free, in a sentence."""
    ordered = [pause for pause in status.pauses if pause.reason == "user"]
    if len(status.pauses) > len(ordered):  # resume would not be enough
        return f"The node is paused: {pauses_text(status, time.time())}"
    end = moment_in(ordered[0].resumes_at if ordered else status.resumes_at)
    text = moment(end, time.time()) if end else ""
    return f"{f'The node goes on at {text}, or with' if text else 'Go on with'}: gossamer resume"


def _order_options(duration: str | None, after_round: bool) -> dict[str, int]:
    """Returns the options of the order to pause. Raises ConfigError."""
    order = {"after_round": 1} if after_round else {}
    if duration is not None:
        with value_of("--for"):
            order["seconds"] = parse_duration(duration, 1, PAUSE_SECONDS_MAX)
    return order


def _is_device_free(status: Status) -> bool:
    return status.phase == "finished" or (
        status.phase == "paused" and status.paused_reason == "user"
    )


def resume(*, options: State = NO_OPTIONS) -> int:
    """Go on after a pause, or after the trainer failed.

    It ends only the pause that you ordered. The work hours, and what else you set, still hold.
    """
    state_dir = state_dir_of(options)
    problem = give_order(state_dir, "resume")
    if problem:
        print(until_end(problem))
    status = fetch_status(state_dir)
    if left := pauses_text(status, time.time()):
        print(f"Your pause has ended. The node still does not train: {left}")
    elif status.phase == "finished":
        print("The run is finished: the node only serves its model, and trains no more.")
    else:
        print("The node goes on.")
    return 0


def _is_ordered(status: Status) -> bool:
    return any(pause.reason == "user" for pause in status.pauses)


def finish(*, options: State = NO_OPTIONS) -> int:
    """Finish the present round, then leave and exit.

    Outside of a round the node leaves at once. gossamer resume takes the order back, as long as the
    round goes on, and so does gossamer pause.
    """
    done = (
        "The node leaves and exits when its present round ends, and at once if it is in none. Take "
        "it back: gossamer resume"
    )
    return _give(options, "finish", done)


def leave(*, options: State = NO_OPTIONS) -> int:
    """Stop the node in order: hand over its work if the others take it now, save all, exit."""
    kept = " Its state stays for the next start."
    return _give(options, "leave", "The node leaves and exits.", kept)


def _give(options: StateOptions, order: Order, done: str, kept: str = "") -> int:
    """Gives an order after which the node ends. `kept`: what is true if its disk takes all."""
    problem = give_order(state_dir_of(options), order)
    print(f"{done} {until_written(problem)}" if problem else f"{done}{kept}")
    return 0
