"""The environment of processes that compute with torch. Without torch."""

from __future__ import annotations

import os

WAIT_POLICY = "OMP_WAIT_POLICY"
"""OpenMP's variable, which its libraries read when they are loaded."""


def computing_environment() -> dict[str, str]:
    """Returns this process's environment for a process that computes beside the owner's programs.

    Threads that wait for each other sleep. By default they spin, which makes small models some 5 %
    faster on free cores, and takes what other programs leave: beside two busy processes on two
    cores a training pass took twice as long (decision 124). The owner's own choice stays.
    """
    return {WAIT_POLICY: "PASSIVE", **os.environ}
