"""Machines with a line each, on this machine: network namespaces behind `tc tbf` on a bridge.

Needs root and iproute2. Every namespace has one interface, `LINE`, with its own address. What it
sends is shaped where it leaves the namespace, and what it receives where it leaves the bridge, so
both directions have the line's rate and nothing else. TCP's congestion control is cubic, the usual
one: this machine may have another default, and BBR pauses for 0.2 s in every 10 s.

A line that is cut, or that another half of a split swarm is behind, drops what it gets without a
word: no reset, no ICMP, and no "host unreachable" from the sender's own kernel, because each end
knows the link-layer addresses of all for good. So does a router far away that lost its power.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import string
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType

LINE = "line0"
"""The interface inside every namespace."""

MACHINES_MAX = 200
"""One byte of the address; more daemons than any machine for tests has room for."""

_SUBNET = "10.77.0.0/16"

_BURST = "128kb"
"""Bytes that the shaper lets through at once: more than the 64 KiB that the kernel hands over at
once, or shaping would cut it up."""

_QUEUE = "50ms"
"""Data that the line may hold back before it drops packets, as a home router does."""

_NAMESPACES = Path("/run/netns")
"""Folder in which `ip netns` keeps the namespaces."""

_CLONE_NEWNET = 0x40000000
"""The constant of <linux/sched.h>; `os.setns` came with Python 3.12."""

_REFUSALS = ("not permitted", "ermission denied", "not supported", "Unknown device type")
"""Parts of the messages of ``ip`` and ``tc`` where the kernel or the container does not let us."""

_networks = itertools.count()

_libc = ctypes.CDLL(None, use_errno=True)


class NamespacesUnavailable(Exception):
    """This machine cannot make the networks; the text says why and what to do."""


class Network:
    """A namespace for each of `rates_mbit` (Mbit/s in each direction). Use as a context.

    Whatever still runs inside the namespaces is killed at the end of the block, and what a process
    that was killed before its end left behind is removed at the beginning of another's.

    Raises:
        NamespacesUnavailable: on entering: no root, no ``ip`` and ``tc``, or a kernel or container
            that does not let us.
    """

    def __init__(self, rates_mbit: Sequence[float]) -> None:
        assert 0 < len(rates_mbit) <= MACHINES_MAX
        self._rates_mbit = list(rates_mbit)
        # An interface's name has at most 15 characters; process ids have up to seven.
        self._tag = f"gr{os.getpid()}{string.ascii_lowercase[next(_networks) % 26]}"
        self._bridges = [f"{self._tag}b0"]

    @property
    def num_machines(self) -> int:
        return len(self._rates_mbit)

    def prefix(self, machine: int) -> list[str]:
        """Returns the words to put before a command that runs it on a machine. The command keeps
        its process id."""
        return ["ip", "netns", "exec", self._name(machine)]

    def host(self, machine: int) -> str:
        """The address of a machine."""
        return f"10.77.0.{machine + 1}"

    @contextlib.contextmanager
    def inside(self, machine: int) -> Iterator[None]:
        """Sockets that this thread opens within the block belong to the machine.

        So that one can call what listens on the machine's loopback, whatever its line does.
        """
        with enter_namespace(self._name(machine)):
            yield

    def pids(self, machine: int) -> list[int]:
        """Processes on a machine."""
        return processes_of(self._name(machine))

    # Faults

    def cut(self, machine: int) -> None:
        """Makes the machine's line silent in both directions."""
        run_tool("ip", "link", "set", self._port(machine), "down")

    def mend(self, machine: int) -> None:
        """The end of `cut`."""
        run_tool("ip", "link", "set", self._port(machine), "up")

    def set_rate(self, machine: int, mbit: float) -> None:
        """Sets the rate of the machine's line in each direction."""
        self._rates_mbit[machine] = mbit
        self._shape(machine, "change")

    def split(self, *groups: Collection[int]) -> None:
        """Lets only machines of the same group reach each other; a machine in no group is with the
        first."""
        while len(self._bridges) < len(groups):
            self._add_bridge(f"{self._tag}b{len(self._bridges)}")
        for bridge, group in zip(self._bridges, groups, strict=False):
            for machine in group:
                run_tool("ip", "link", "set", self._port(machine), "master", bridge)

    def unite(self) -> None:
        """The end of `split`."""
        self.split(range(self.num_machines))

    # Life

    def __enter__(self) -> Network:
        if os.geteuid() != 0:
            raise NamespacesUnavailable("network namespaces need root: run this as root")
        if missing := [program for program in ("ip", "tc") if shutil.which(program) is None]:
            raise NamespacesUnavailable(f"no {' and no '.join(missing)} here: install iproute2")
        try:
            remove_leftovers()
            self._bridges = []
            self._add_bridge(f"{self._tag}b0")
            for machine in range(self.num_machines):
                self._add(machine)
        except subprocess.CalledProcessError as error:
            self._remove()
            said = f"`{' '.join(error.cmd)}` said: {error.stderr.strip()}"
            if not is_refusal(error.stderr):
                raise RuntimeError(said) from error
            raise NamespacesUnavailable(
                f"network namespaces cannot be made here: {said}"
            ) from error
        except BaseException:
            self._remove()
            raise
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

    def _port(self, machine: int) -> str:
        """The bridge's end of a machine's line."""
        return f"{self._tag}p{machine}"

    def _shape(self, machine: int, verb: str) -> None:
        """`verb`: ``add``, or ``change`` what was added."""
        shape = ["tbf", "rate", f"{self._rates_mbit[machine]:g}mbit"]
        shape += ["burst", _BURST, "latency", _QUEUE]
        for prefix, end in ((self.prefix(machine), LINE), ([], self._port(machine))):
            run_tool(*prefix, "tc", "qdisc", verb, "dev", end, "root", *shape)

    def _add_bridge(self, name: str) -> None:
        run_tool("ip", "link", "add", name, "type", "bridge")
        self._bridges.append(name)
        run_tool("ip", "link", "set", name, "up")

    def _add(self, machine: int) -> None:
        name, port, inside = self._name(machine), self._port(machine), self.prefix(machine)
        run_tool("ip", "netns", "add", name)
        end = ("peer", "name", LINE, "address", _link_address(machine), "netns", name)
        run_tool("ip", "link", "add", port, "type", "veth", *end)
        run_tool("ip", "link", "set", port, "master", self._bridges[0], "up")
        run_tool(*inside, "ip", "link", "set", "lo", "up")
        run_tool(*inside, "ip", "addr", "add", f"{self.host(machine)}/16", "dev", LINE)
        run_tool(*inside, "ip", "link", "set", LINE, "up")
        run_tool(*inside, "ip", "route", "change", _SUBNET, "dev", LINE, "congctl", "cubic")
        neighbours = [
            f"neigh add {self.host(one)} lladdr {_link_address(one)} dev {LINE} nud permanent\n"
            for one in range(self.num_machines)
            if one != machine
        ]
        run_tool(*inside, "ip", "-batch", "-", text="".join(neighbours))
        self._shape(machine, "add")

    def _remove(self) -> None:
        for machine in range(self.num_machines):
            remove_namespace(self._name(machine))
        for bridge in self._bridges:
            _remove_link(bridge)


@contextlib.contextmanager
def enter_namespace(name: str) -> Iterator[None]:
    """Sockets that this thread opens within the block belong to a namespace."""
    with open("/proc/thread-self/ns/net") as home, open(_NAMESPACES / name) as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    """The calling thread goes to the network namespace of a file descriptor."""
    if _libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _link_address(machine: int) -> str:
    """Link-layer address of a machine's end of its line; locally administered."""
    return f"02:00:00:00:00:{machine + 1:02x}"


def run_tool(*command: str, text: str = "") -> None:
    """Runs a program that must succeed. `text` is its standard input."""
    subprocess.run(command, check=True, capture_output=True, text=True, input=text)


def is_refusal(text: str) -> bool:
    """Returns whether a tool says that the kernel or the container does not let it."""
    return any(refusal in text for refusal in _REFUSALS)


def processes_of(namespace: str) -> list[int]:
    """Processes in a namespace."""
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in listed.stdout.split()]


def remove_namespace(name: str) -> None:
    """Removes a namespace with its processes and both ends of its line."""
    for pid in processes_of(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    # At once: the kernel takes its time to clear a namespace with the other end in it.
    _remove_link(re.sub(r"n(\d+)$", r"p\1", name))


def _remove_link(name: str) -> None:
    subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def remove_leftovers() -> None:
    """Removes the namespaces of processes that were killed before they could tidy up."""
    dead = set()
    for path in sorted(_NAMESPACES.glob("g[ir]*")):
        found = re.fullmatch(r"(g[ir](\d+)[a-z])[nr]\d+", path.name)
        if found and not Path(f"/proc/{found[2]}").exists():
            dead.add(found[1])
            remove_namespace(path.name)
    for tag in sorted(dead):
        for link in sorted(Path("/sys/class/net").glob(f"{tag}b*")):
            _remove_link(link.name)
