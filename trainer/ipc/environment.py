"""The environment of processes that compute with torch. Without torch."""

from __future__ import annotations

import os

WAIT_POLICY = "OMP_WAIT_POLICY"
"""OpenMP's variable, which its libraries read when they are loaded."""

CARD_ORDER = "CUDA_DEVICE_ORDER"
"""CUDA's variable: how it counts NVIDIA's cards."""


def computing_environment() -> dict[str, str]:
    """Returns this process's environment for a process that computes beside the owner's programs.

    Threads that wait for each other sleep. By default they spin, which makes small models some 5 %
    faster on free cores, and takes what other programs leave: beside two busy processes on two
    cores a training pass took twice as long (decision 124).

    NVIDIA's cards are counted by their slots, as the driver counts them (NVML). By default CUDA
    counts the fastest first, and limits of heat, power and memory would be those of another card.

    The owner's own choices stay.
    """
    return {WAIT_POLICY: "PASSIVE", CARD_ORDER: "PCI_BUS_ID", **os.environ}
