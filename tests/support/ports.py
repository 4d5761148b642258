"""TCP ports for programs that must know their port before they bind it, or keep it over a restart.

The system hands out ephemeral ports to whoever asks for any, so one of these may be taken as soon
as it is free. Ports below that range are taken only by programs that name them.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST_PORT = 10_000
"""Below it are the ports of services that a machine may run."""

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

TRIES_MAX = 1000
"""Ports that are tried: more than any machine has in use."""


def first_ephemeral_port() -> int:
    """Returns the lowest port that the system hands out by itself."""
    if EPHEMERAL.exists():  # Linux
        return int(EPHEMERAL.read_text().split()[0])
    return 49_152  # RFC 6335, section 6


def free_ports(number: int) -> list[int]:
    """Returns TCP ports of loopback that are free now and that the system hands out to nobody."""
    found: list[int] = []
    draw = random.SystemRandom()  # tests that run beside each other draw different ones
    for _ in range(TRIES_MAX):
        port = draw.randrange(FIRST_PORT, first_ephemeral_port())
        if port in found:
            continue
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == number:
            return found
    raise RuntimeError(f"no free ports from {FIRST_PORT} on; {number} are needed")
