"""The environment of processes that compute with torch. Without torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from gossamer.trainer.ipc.control_groups import ROOT, group_cores

WAIT_POLICY = "OMP_WAIT_POLICY"
"""OpenMP's variable, which its libraries read when they are loaded."""

CARD_ORDER = "CUDA_DEVICE_ORDER"
"""CUDA's variable: how it counts NVIDIA's cards."""

THREADS = "OMP_NUM_THREADS"
"""OpenMP's variable: its threads, which are torch's."""

NICENESS = 10
"""On a CPU below everything else there: the daemon and its owner's programs come first. (With a GPU
a trainer only feeds it, and must not wait.)"""


def computing_environment(root: Path = ROOT) -> dict[str, str]:
    """Returns this process's environment for a process that computes beside the owner's programs.

    Threads that wait for each other sleep. By default they spin, which takes what other programs
    leave: beside two busy processes on two cores a pass took twice as long (decision 124).

    NVIDIA's cards are counted by their slots, as the driver counts them (NVML). By default CUDA
    counts the fastest first, and limits of heat, power and memory would be those of another card.

    In a container or a job with a limit of processor time there are no more threads than it has
    cores. torch has one for each core of the machine: they use up the limit, and stand still
    together.

    The owner's own choices stay.
    """
    cores = group_cores(root)
    threads = {} if cores is None or cores >= (os.cpu_count() or 1) else {THREADS: str(cores)}
    return {WAIT_POLICY: "PASSIVE", CARD_ORDER: "PCI_BUS_ID", **threads, **os.environ}


def end(code: int) -> NoReturn:
    """Ends this process, and not through the interpreter's end, which can hang or crash in a
    device's driver."""
    sys.stderr.flush()
    os._exit(code)
