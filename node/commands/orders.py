"""`gossamer pause`, `gossamer resume` and `gossamer leave`: one order each to a running node."""

from __future__ import annotations

from gossamer.node.app.client import Order, give_order
from gossamer.node.commands.options import State, StateOptions, settings_of
from gossamer.node.storage.state_dir import StateDir


def pause(*, options: State = None) -> int:
    """Stop training and free the device; the node serves what it has."""
    return _give(options, "pause", "The node pauses. Go on with: gossamer resume")


def resume(*, options: State = None) -> int:
    """Go on after a pause, or after the trainer failed."""
    return _give(options, "resume", "The node goes on.")


def leave(*, options: State = None) -> int:
    """Stop the node in order: commit its work, save its state, exit."""
    done = "The node leaves and exits; its state stays for the next start."
    return _give(options, "leave", done)


def _give(options: StateOptions | None, order: Order, done: str) -> int:
    give_order(StateDir(settings_of(options).state_dir), order)
    print(done)
    return 0
