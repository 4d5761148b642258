"""A small internet on this machine: homes behind routers, made of network namespaces.

Needs root, iproute2 and nftables. A bridge is the internet. A public machine is attached to it with
an address of its own (of 5.77.0.0/16: miniupnpd refuses the ranges that are kept for
documentation). A home is a router, attached likewise, and machines behind it with private
addresses: the same ones in every home. What a home sends is shaped to its uplink, and what it
receives where it leaves the bridge. Routers translate and filter with nftables, as most home
routers do, and some speak UPnP (miniupnpd). No router leads back what its own home sends to the
home's public address (no hairpin), unless it is said.
"""

from __future__ import annotations

import itertools
import os
import shutil
import string
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from tests.internet.line import Line, start_line
from tests.support.netns import (
    NamespacesUnavailable,
    enter_namespace,
    is_refusal,
    processes_of,
    remove_leftovers,
    remove_namespace,
    run_tool,
)

LINE = "eth0"
"""The interface inside every namespace that leads to the internet."""

PRIVATE_HOST = "192.168.1.{}"
"""The address of the machine with a place in its home: in every home the same ones."""

FIRST_PLACE = 10
"""The place of a home's first machine."""

NUMBER_OF_MACHINES_MAX = 120
"""One byte of the address, for a router and its machine each."""

_BURST = "128kb"
_QUEUE = "50ms"
"""See `tests.support.netns`."""

_UPNP_TABLE = """
    table inet upnp {
        chain forward { type filter hook forward priority -10; policy accept; jump miniupnpd; }
        chain miniupnpd { }
        chain inward {
            type nat hook prerouting priority -100; policy accept; jump prerouting_miniupnpd;
        }
        chain outward {
            type nat hook postrouting priority 100; policy accept; jump postrouting_miniupnpd;
        }
        chain prerouting_miniupnpd { }
        chain postrouting_miniupnpd { }
    }
"""

_UPNP_CONFIGURATION = """\
ext_ifname={line}
ext_ip={host}
listening_ip=lan
port=0
enable_upnp=yes
enable_natpmp=yes
secure_mode=yes
lease_file={leases}
uuid=00000000-0000-0000-0000-000000000000
upnp_table_name=upnp
upnp_nat_table_name=upnp
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
allow 1024-65535 0.0.0.0/0 1024-65535
"""

_networks = itertools.count()


@dataclass(frozen=True)
class Router:
    """The behaviour of a home's router."""

    ports: Literal["kept", "random"] = "kept"
    """The outer port of a connection: the inner one where it is free (endpoint-independent mapping,
    RFC 4787, section 4.1), or another one for each connection (address- and port-dependent)."""
    uninvited: Literal["drop", "reset"] = "drop"
    """Answer of the router to a connection from outside that it does not expect."""
    forwards: int | None = None
    """A port that the owner has opened by hand."""
    is_cloud: bool = False
    """All ports are forwarded to the machine (1:1 NAT)."""
    speaks_upnp: bool = False
    """Machines may ask for ports (miniupnpd)."""
    has_hairpin: bool = False
    """What the home sends to its own forwarded port comes back to it."""


HOME_LINE = Line()
"""20 Mbit/s up and 100 Mbit/s down, without delay."""


@dataclass(frozen=True)
class Machine:
    """A machine with a daemon."""

    router: Router | None = None
    """The router of the machine's home; None: the machine has public addresses."""
    home_of: int | None = None
    """The number of an earlier machine in whose home it is; it has that home's router."""
    has_ipv4: bool = True
    """Whether a machine with public addresses has one of IPv4 besides that of IPv6."""
    line: Line = HOME_LINE
    """Its rate holds always; its delay and loss need a process, which runs if there are any."""


class Internet:
    """All machines of a test. Use as a context; at its end their processes are killed.

    Raises:
        NamespacesUnavailable: on entering: no root, no ``ip``, ``tc`` and ``nft``, or a kernel or
            container that does not let us.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        assert 0 < len(machines) <= NUMBER_OF_MACHINES_MAX
        self.machines = list(machines)
        # An interface's name has at most 15 characters; process ids have up to seven.
        self._tag = f"gi{os.getpid()}{string.ascii_lowercase[next(_networks) % 26]}"
        self._bridge = f"{self._tag}b"
        self._temporary = tempfile.TemporaryDirectory(prefix="internet")
        self._folder = Path(self._temporary.name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._moves = [0] * len(machines)
        """Number of public addresses that each home has had before its present one."""
        self._home = [
            number if machine.home_of is None else machine.home_of
            for number, machine in enumerate(machines)
        ]
        """The home of each machine, named by the machine that was there first."""
        self._places = [FIRST_PLACE] * len(machines)
        """The private address of each machine in its home."""
        self._num_places = [FIRST_PLACE] * len(machines)
        """Places that each home has given away, and some more."""

    def prefix(self, machine: int) -> list[str]:
        """Returns the words to put before a command that runs it on a machine. The command keeps
        its process id."""
        return ["ip", "netns", "exec", self._machine(machine)]

    def public_host(self, machine: int) -> str:
        """The address that others see, in a network (/24) of its home."""
        home = self._home[machine]
        return f"5.77.{home + 1}.{self._moves[home] + 1}"

    def public_ipv6_host(self, machine: int) -> str:
        """The IPv6 address of a machine without a router."""
        return f"2a05:77::{machine + 1:x}"

    def own_host(self, machine: int) -> str:
        """The address that the machine itself has."""
        if self._has_router(machine):
            return PRIVATE_HOST.format(self._places[machine])
        return self.public_host(machine)

    @contextmanager
    def inside(self, machine: int) -> Iterator[None]:
        """Sockets that this thread opens within the block belong to the machine."""
        with enter_namespace(self._machine(machine)):
            yield

    def pids(self, machine: int) -> list[int]:
        """Processes on a machine."""
        return processes_of(self._machine(machine))

    # What happens

    def move(self, machine: int) -> None:
        """The home gets another public address, as after a night: its connections break."""
        where, old = self._gate(machine), self.public_host(machine)
        self._moves[self._home[machine]] += 1
        for verb, host in (("del", old), ("add", self.public_host(machine))):
            run_tool(*_in(where), "ip", "addr", verb, f"{host}/16", "dev", LINE)
        if self._has_router(machine):
            self._translate(self._home[machine])

    def carry(self, machine: int, home: int) -> None:
        """A machine is carried into the home of another one, behind that one's router."""
        assert self._has_router(machine)
        assert self._has_router(home)
        run_tool(*_in(self._machine(machine)), "ip", "link", "del", LINE)
        self._home[machine] = self._home[home]
        self._plug_in(machine)

    def cut(self, machine: int) -> None:
        """Makes the machine's line silent in both directions."""
        run_tool("ip", "link", "set", self._port(machine), "down")

    def mend(self, machine: int) -> None:
        """The end of `cut`."""
        run_tool("ip", "link", "set", self._port(machine), "up")

    # Life

    def __enter__(self) -> Internet:
        if os.geteuid() != 0:
            self._temporary.cleanup()
            raise NamespacesUnavailable("network namespaces need root: run this as root")
        tools = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}
        missing = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
        speaks_upnp = any(each.router and each.router.speaks_upnp for each in self.machines)
        if speaks_upnp and shutil.which("miniupnpd") is None:
            missing.append("miniupnpd-nftables")
        if missing:
            self._temporary.cleanup()
            raise NamespacesUnavailable(f"install {' and '.join(missing)}")
        try:
            remove_leftovers()
            run_tool("ip", "link", "add", self._bridge, "type", "bridge")
            run_tool("ip", "link", "set", self._bridge, "up")
            for machine in range(len(self.machines)):
                self._add(machine)
        except subprocess.CalledProcessError as error:
            self._remove()
            said = f"`{' '.join(error.cmd)}` said: {error.stderr.strip()}"
            if not is_refusal(error.stderr):
                raise RuntimeError(said) from error
            raise NamespacesUnavailable(f"homes cannot be made here: {said}") from error
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

    def _machine(self, machine: int) -> str:
        return f"{self._tag}n{machine}"

    def _router(self, machine: int) -> str:
        return f"{self._tag}r{self._home[machine]}"

    def _has_router(self, machine: int) -> bool:
        return self.machines[self._home[machine]].router is not None

    def _gate(self, machine: int) -> str:
        """The namespace that has the public address."""
        return self._router(machine) if self._has_router(machine) else self._machine(machine)

    def _port(self, machine: int) -> str:
        """The bridge's end of a home's line."""
        return f"{self._tag}p{machine}"

    def _add(self, machine: int) -> None:
        what, gate, inner = self.machines[machine], self._gate(machine), self._machine(machine)
        port = self._port(machine)
        run_tool("ip", "netns", "add", inner)
        if what.home_of is not None:
            run_tool(*_in(inner), "ip", "link", "set", "lo", "up")
            self._plug_in(machine)
            return
        if what.router is not None:
            run_tool("ip", "netns", "add", gate)
        line = what.line
        is_long = line.delay_seconds > 0 or line.loss > 0
        if is_long:
            self._processes.append(start_line(line, (gate, LINE), port))
        else:
            run_tool("ip", "link", "add", port, "type", "veth", "peer", "name", LINE, "netns", gate)
        run_tool("ip", "link", "set", port, "master", self._bridge, "up")
        for name in {gate, inner}:
            run_tool(*_in(name), "ip", "link", "set", "lo", "up")
        if what.router is not None or what.has_ipv4:
            address = f"{self.public_host(machine)}/16"
            run_tool(*_in(gate), "ip", "addr", "add", address, "dev", LINE)
        if what.router is None:
            address = f"{self.public_ipv6_host(machine)}/64"
            run_tool(*_in(gate), "ip", "addr", "add", address, "dev", LINE, "nodad")
        run_tool(*_in(gate), "ip", "link", "set", LINE, "up")
        if what.router is not None:
            self._add_home(machine)
        if is_long:
            return  # the process shapes both directions
        for prefix, end, mbit in ((_in(gate), LINE, line.up_mbit), ([], port, line.down_mbit)):
            shape = ["tbf", "rate", f"{mbit:g}mbit", "burst", _BURST, "latency", _QUEUE]
            run_tool(*prefix, "tc", "qdisc", "add", "dev", end, "root", *shape)

    def _add_home(self, machine: int) -> None:
        gate = self._gate(machine)
        run_tool(*_in(gate), "ip", "link", "add", "lan", "type", "bridge")
        run_tool(*_in(gate), "ip", "addr", "add", "192.168.1.1/24", "dev", "lan")
        run_tool(*_in(gate), "ip", "link", "set", "lan", "up")
        run_tool(*_in(gate), "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        self._plug_in(machine)
        self._translate(machine)
        router = self.machines[machine].router
        if router is not None and router.speaks_upnp:
            self._serve_upnp(machine)

    def _plug_in(self, machine: int) -> None:
        """Attaches a machine to the network of its home."""
        home, gate, inner = self._home[machine], self._gate(machine), self._machine(machine)
        self._places[machine] = self._num_places[home]
        self._num_places[home] += 1
        host, port = self.own_host(machine), f"lan{machine}"
        run_tool(
            *_in(gate), "ip", "link", "add", port, "type", "veth",
            "peer", "name", LINE, "netns", inner,
        )  # fmt: skip
        run_tool(*_in(gate), "ip", "link", "set", port, "master", "lan", "up")
        run_tool(*_in(inner), "ip", "addr", "add", f"{host}/24", "dev", LINE)
        run_tool(*_in(inner), "ip", "link", "set", LINE, "up")
        run_tool(*_in(inner), "ip", "route", "add", "default", "via", "192.168.1.1")

    def _translate(self, machine: int) -> None:
        """Gives the router its rules."""
        router = self.machines[machine].router
        assert router is not None
        public = self.public_host(machine)
        mapping = "masquerade fully-random" if router.ports == "random" else "masquerade"
        inward, back = "", ""
        inner = self.own_host(machine)
        if router.is_cloud:
            inward = f"ip daddr {public} dnat to {inner}"
        elif router.forwards is not None:
            inward = (
                f"ip daddr {public} tcp dport {router.forwards} dnat to {inner}:{router.forwards}"
            )
        if router.has_hairpin:
            back = 'ip saddr 192.168.1.0/24 oifname "lan" masquerade'
        elif inward:
            inward = f'iifname "{LINE}" {inward}'
        refuse = "reject with tcp reset" if router.uninvited == "reset" else "drop"
        rules = f"""
            table ip gate {{
                chain inward {{
                    type nat hook prerouting priority -100;
                    {inward}
                }}
                chain outward {{
                    type nat hook postrouting priority 100;
                    oifname "{LINE}" {mapping}
                    {back}
                }}
                chain through {{
                    type filter hook forward priority 0; policy accept;
                    ct state established,related accept
                    iifname "{LINE}" ct status dnat accept
                    iifname "{LINE}" drop
                }}
                chain to_router {{
                    type filter hook input priority 0; policy accept;
                    ct state established,related accept
                    iifname "{LINE}" meta l4proto tcp {refuse}
                }}
            }}
        """
        deleted = "table ip gate {}\ndelete table ip gate\n"
        run_tool(*_in(self._gate(machine)), "nft", "-f", "-", text=deleted + rules)

    def _serve_upnp(self, machine: int) -> None:
        """Starts the router's UPnP; it ends with the router's namespace."""
        gate = self._gate(machine)
        run_tool(*_in(gate), "nft", "-f", "-", text=_UPNP_TABLE)
        configuration = self._folder / f"{gate}.conf"
        configuration.write_text(
            _UPNP_CONFIGURATION.format(
                host=self.public_host(machine), leases=self._folder / f"{gate}.leases", line=LINE
            )
        )
        with open(self._folder / f"{gate}.log", "wb") as said:
            process = subprocess.Popen(
                [*_in(gate), "miniupnpd", "-d", "-f", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        self._processes.append(process)

    def _remove(self) -> None:
        for machine in range(len(self.machines)):
            remove_namespace(self._machine(machine))
            # By number: a machine that has moved to another home leaves its router behind.
            remove_namespace(f"{self._tag}r{machine}")
            subprocess.run(
                ["ip", "link", "del", self._port(machine)], capture_output=True, check=False
            )
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)
        for process in self._processes:
            process.kill()
            process.wait()
        self._temporary.cleanup()


def _in(namespace: str) -> list[str]:
    return ["ip", "netns", "exec", namespace]
