"""Several daemons on this machine, each a process of its own: for the demo, tests and benchmarks.

Every node has its own state directory, identity, ports and log file, and is started by the same
command line that a person would use.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gossamer.node.app.client import ClientError, fetch_status
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status

POLL_SECONDS = 0.1
END_SECONDS = 15.0
"""An orderly leave takes a round at most; whoever is not gone by then is killed."""

_T = TypeVar("_T")


class SwarmError(Exception):
    """A node did not do what it should in time; the text has the end of its log."""


@dataclass
class LocalNode:
    """One daemon process."""

    root: Path
    prefix: tuple[str, ...] = ()
    """Put before the command, e.g. ``ip netns exec NAME``."""
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    listen: str = "/ip4/127.0.0.1/tcp/0"
    process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.root.with_name(f"{self.root.name}.log")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *command: str) -> None:
        """Starts ``gossamer COMMAND`` on this node's state directory."""
        assert not self.is_running
        arguments = [
            *self.prefix,
            *(sys.executable, "-m", "gossamer.node.cli", *command),
            *("--state-dir", str(self.root), "--listen", self.listen, "--api", "127.0.0.1:0"),
            *self.options,
        ]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for whoever started us
            )

    def signal(self, number: int) -> None:
        if self.is_running:
            assert self.process is not None
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, as a power cut would; returns when the process is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def leave(self) -> int:
        """SIGTERM, and the exit status. Killed after `END_SECONDS`."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise SwarmError(
                f"{self.root.name} did not leave in {END_SECONDS} s\n{self.tail()}"
            ) from None

    def wait(self, timeout_seconds: float | None = None) -> int:
        assert self.process is not None
        return self.process.wait(timeout_seconds)

    def status(self) -> Status | None:
        """What the node says of itself; None while it does not answer."""
        try:
            return fetch_status(StateDir(self.root))
        except ClientError:
            return None

    def address(self, timeout_seconds: float = 60.0) -> str:
        """The first address that others can dial."""
        status = self.wait_for(lambda s: bool(s.addresses), timeout_seconds, "an address")
        return status.addresses[0]

    def wait_for(
        self, condition: Callable[[Status], bool], timeout_seconds: float, what: str
    ) -> Status:
        """The first status that fulfils a condition.

        Raises:
            SwarmError: not in time, or the process ended before.
        """
        deadline = time.monotonic() + timeout_seconds
        status: Status | None = None
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and condition(status):
                return status
            if not self.is_running:
                break
            time.sleep(POLL_SECONDS)
        code = self.process.returncode if self.process is not None else None
        ended = "" if self.is_running else f" (it ended with {code})"
        raise SwarmError(
            f"{self.root.name}: no {what} in {timeout_seconds} s{ended}; last status: {status}\n"
            f"{self.tail()}"
        )

    def tail(self, num_lines: int = 30) -> str:
        """The end of the node's log."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-num_lines:])


class LocalSwarm:
    """Nodes under one folder; ends them all at the end of the block."""

    def __init__(self, root: Path, options: Sequence[str] = ()) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._options = tuple(options)
        self.nodes: list[LocalNode] = []

    def __enter__(self) -> LocalSwarm:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGKILL)
        for node in self.nodes:
            if node.process is not None:
                node.wait()

    def add(self, **changes: object) -> LocalNode:
        """A node that is not started yet."""
        root = self.root / f"node{len(self.nodes) + 1}"
        node = LocalNode(root, options=self._options, **changes)  # type: ignore[arg-type]
        self.nodes.append(node)
        return node

    def found(self, *command: str) -> LocalNode:
        """A node that founds a run (``gossamer start ...``)."""
        node = self.add()
        node.start("start", *command)
        return node

    def join(self, address: str) -> LocalNode:
        """A node that joins by an address."""
        node = self.add()
        node.start("join", address)
        return node

    @property
    def running(self) -> list[LocalNode]:
        return [node for node in self.nodes if node.is_running]
