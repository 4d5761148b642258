"""Machines with a slow line each, on this machine: network namespaces behind `tc tbf` on a bridge.

Needs root and iproute2. Every namespace has one interface, `LINE`, with its own address. What it
sends is shaped where it leaves the namespace, and what it receives where it leaves the bridge, so
both directions have the line's rate and nothing else. TCP's congestion control is cubic, the usual
one: this machine may have another default, and BBR pauses for 0.2 s in every 10 s.
"""

from __future__ import annotations

import os
import signal
import subprocess
from types import TracebackType

LINE = "line0"
"""The interface inside every namespace."""

_SUBNET = "10.77.0.0/16"

_BURST = "128kb"
"""More than the 64 KiB that the kernel hands over at once, or shaping would cut it up."""

_QUEUE = "50ms"
"""What the line may hold back before it drops, as a home router does."""


class ShapedLines:
    """`num_machines` namespaces with a line of `mbit` Mbit/s in each direction. Use as a context.

    Raises:
        SystemExit: no root, or no ``ip`` and ``tc``; the text says what to do.
    """

    def __init__(self, num_machines: int, mbit: float) -> None:
        self._num_machines = num_machines
        self._rate = f"{mbit:g}mbit"
        self._tag = f"gr{os.getpid() % 100_000}"
        self._bridge = f"{self._tag}b"

    def prefix(self, machine: int) -> list[str]:
        """What to put before a command to run it on a machine."""
        return ["ip", "netns", "exec", self._name(machine)]

    def host(self, machine: int) -> str:
        """The address of a machine."""
        return f"10.77.{machine // 200}.{machine % 200 + 1}"

    def __enter__(self) -> ShapedLines:
        if os.geteuid() != 0:
            raise SystemExit("shaped lines need root: run this as root, or leave out --mbit")
        try:
            self._run("ip", "link", "add", self._bridge, "type", "bridge")
            self._run("ip", "link", "set", self._bridge, "up")
            for machine in range(self._num_machines):
                self._add(machine)
        except (OSError, subprocess.CalledProcessError) as error:
            self._remove()
            detail = getattr(error, "stderr", "") or error
            raise SystemExit(
                f"cannot build shaped lines: {detail}\ninstall iproute2, or leave out --mbit"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def _name(self, machine: int) -> str:
        return f"{self._tag}n{machine}"

    def _add(self, machine: int) -> None:
        name, port = self._name(machine), f"{self._tag}p{machine}"
        self._run("ip", "netns", "add", name)
        self._run(
            *("ip", "link", "add", port, "type", "veth"), *("peer", "name", LINE, "netns", name)
        )
        self._run("ip", "link", "set", port, "master", self._bridge, "up")
        inside = self.prefix(machine)
        self._run(*inside, "ip", "link", "set", "lo", "up")
        self._run(*inside, "ip", "addr", "add", f"{self.host(machine)}/16", "dev", LINE)
        self._run(*inside, "ip", "link", "set", LINE, "up")
        self._run(*inside, "ip", "route", "change", _SUBNET, "dev", LINE, "congctl", "cubic")
        shape = ("root", "tbf", "rate", self._rate, "burst", _BURST, "latency", _QUEUE)
        self._run(*inside, "tc", "qdisc", "add", "dev", LINE, *shape)
        self._run("tc", "qdisc", "add", "dev", port, *shape)

    def _remove(self) -> None:
        for machine in range(self._num_machines):
            name = self._name(machine)
            pids = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            )
            for pid in pids.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            # Takes both ends of the veth pair with it.
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            subprocess.run(
                ["ip", "link", "del", f"{self._tag}p{machine}"], capture_output=True, check=False
            )
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True)
