"""`gossamer demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.demo.story import run_demo


def demo(
    *,
    directory: Annotated[Path | None, Parameter(show_default="a new temporary folder")] = None,
) -> int:
    """Run a swarm of four peers here, kill one, and let a fifth join.

    Parameters
    ----------
    directory
        New or empty folder for states, logs and the picture of the loss.
    """
    return run_demo(directory)
