"""A swarm of real daemons, each on a machine of its own, and what may happen to such machines.

    with Lab(folder, rates_mbit=[8, 8, 8]) as lab:
        seed, second, third = lab.machines
        seed.run("start", "--manifest", ...)
        second.run("join", seed.address())
        third.power_off()

Machines are network namespaces (`netns`). A machine's faults hit everything on it: SIGKILL and
SIGSTOP go to the daemon and its trainer together, as when a computer loses its power or is put to
sleep. What a machine is asked is its daemon's own HTTP endpoint, on the machine's loopback.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from gossamer.node.app.http.client import TIMEOUT_SECONDS
from gossamer.node.base.address_text import parse_host_port
from gossamer.node.demo.local_swarm import LocalNode
from gossamer.node.network.identity import Identity
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status
from gossamer.protocol.ids import PeerId
from tests.support.netns import Network

PORT = 4610

GONE_SECONDS = 10.0
"""Time in which the kernel clears away killed processes with some hundred MB each."""

TRAINER_MODULE = "gossamer.trainer.worker"

THROTTLE_SECONDS = 1.0
"""A slow trainer runs and stands still once in this time."""


@dataclass(kw_only=True)
class Machine(LocalNode):
    """A computer behind a line, and the daemon on it."""

    network: Network
    number: int
    is_on: bool = False
    """Whether the daemon should be running."""
    is_frozen: bool = False
    is_cut: bool = False
    _command: tuple[str, ...] | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def peer_id(self) -> PeerId:
        """Peer id of the daemon, also before its first start."""
        self.root.mkdir(exist_ok=True)
        return Identity.load_or_create(StateDir(self.root).identity_path).peer_id

    # The daemon

    def run(self, *command: str) -> None:
        """Starts ``gossamer COMMAND`` here; `again` will use the same command."""
        self._command = command
        self.again()

    def again(self) -> None:
        """Starts the daemon with the command that it had before, as a service manager does."""
        assert self._command is not None
        self.start(*self._command)
        self.is_on = True

    def retire(self) -> None:
        """Switches the daemon off for good."""
        self.power_off()
        self._command = None

    @property
    def is_member(self) -> bool:
        """Returns whether the machine has a daemon that runs, or is to run again."""
        return self._command is not None

    def status(self) -> Status | None:
        """Returns the daemon's status; None while it does not answer, or is frozen."""
        if self.is_frozen:
            return None
        with self.network.inside(self.number):
            return super().status()

    def metrics(self) -> dict[str, float]:
        """`/metrics`: value by sample, such as ``gossamer_rounds_total{outcome="missed"}``."""
        api = DaemonFiles(StateDir(self.root)).read_api()
        assert api is not None, f"{self.name} has no endpoint"
        where = parse_host_port(api)
        with self.network.inside(self.number):
            connection = http.client.HTTPConnection(where.host, where.port, timeout=TIMEOUT_SECONDS)
            with contextlib.closing(connection):
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def trainer_pid(self) -> int | None:
        """Process id of the daemon's trainer; None while it has none."""
        for pid in self.network.pids(self.number):
            with contextlib.suppress(psutil.NoSuchProcess):
                if TRAINER_MODULE in psutil.Process(pid).cmdline():
                    return pid
        return None

    # Faults

    def power_off(self) -> None:
        """SIGKILL to all that runs here; returns when it is gone."""
        self.is_on = self.is_frozen = False
        self._signal_all(signal.SIGKILL)
        if self.process is not None:
            self.wait(GONE_SECONDS)
        deadline = time.monotonic() + GONE_SECONDS
        while self.network.pids(self.number):
            assert time.monotonic() < deadline, f"{self.name} cannot be switched off"
            time.sleep(0.01)

    def kill_trainer(self) -> None:
        """SIGKILL to the trainer alone, if there is one just now."""
        if (pid := self.trainer_pid()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP to all that runs here."""
        self.is_frozen = True
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Sends SIGCONT to all processes that `freeze` stopped."""
        self._signal_all(signal.SIGCONT)
        self.is_frozen = False

    def cut(self) -> None:
        """Nothing goes over the line any more, and neither end is told."""
        self.is_cut = True
        self.network.cut(self.number)

    def mend(self) -> None:
        """The end of `cut`."""
        self.network.mend(self.number)
        self.is_cut = False

    def set_rate(self, mbit: float) -> None:
        """Sets the rate of the line, in each direction."""
        self.network.set_rate(self.number, mbit)

    @contextlib.contextmanager
    def slowed_down(self, part: float) -> Iterator[None]:
        """Within the block the trainer runs for that part of the time only."""
        ended = threading.Event()
        thread = threading.Thread(target=self._slow_down, args=(part, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _slow_down(self, part: float, ended: threading.Event) -> None:
        while not ended.wait(part * THROTTLE_SECONDS):
            if (pid := self.trainer_pid()) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    ended.wait((1 - part) * THROTTLE_SECONDS)
                    os.kill(pid, signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        for pid in self.network.pids(self.number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Lab:
    """Machines named ``m1``, ``m2``..., none of them with a daemon yet. Use as a context.

    Raises:
        NamespacesUnavailable: on entering.
    """

    def __init__(
        self, root: Path, rates_mbit: Sequence[float], options: Sequence[str] = ()
    ) -> None:
        """`options`: more of the daemons' command line."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.network = Network(rates_mbit)
        self.machines = [
            Machine(
                root=root / f"m{number + 1}",
                prefix=tuple(self.network.prefix(number)),
                options=tuple(options),
                listen=f"/ip4/{self.network.host(number)}/tcp/{PORT}",
                network=self.network,
                number=number,
            )
            for number in range(len(rates_mbit))
        ]

    def __enter__(self) -> Lab:
        self.network.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.network.__exit__(kind, error, traceback)  # kills what runs there
        for machine in self.machines:
            if machine.process is not None:
                machine.wait()

    @property
    def running(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.is_running]

    def statuses(self) -> Iterator[tuple[Machine, Status]]:
        """Status of all machines that answer now."""
        for machine in self.machines:
            if machine.is_running and (status := machine.status()) is not None:
                yield machine, status

    def split(self, *groups: Sequence[Machine]) -> None:
        """Lets only machines of the same group reach each other."""
        self.network.split(*([machine.number for machine in group] for group in groups))

    def unite(self) -> None:
        """The end of `split`."""
        self.network.unite()


def wait_until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Raises AssertionError if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds:g} s"
        time.sleep(0.05)
