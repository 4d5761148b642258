"""Tests that are left out unless they are asked for, so that a first answer comes in minutes.

`--long` asks for all of them, and the name of a file for those in it.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def is_asked_for(config: pytest.Config, file: Path) -> bool:
    """Returns whether the command line asks for the long tests of a file."""
    here = config.invocation_params.dir
    return bool(config.getoption("--long")) or file in {
        here / argument.split("::")[0] for argument in config.args
    }
