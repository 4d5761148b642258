"""Several daemons on this machine, for the demo, tests and benchmarks.

Every node is a process with its own state directory, identity, ports and log file. The command line
that starts it is the one that a person would use.
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

from gossamer.node.app.http.client import ClientError, fetch_status
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status

ANY_PORT = "/ip4/127.0.0.1/tcp/0"
POLL_SECONDS = 0.1
END_SECONDS = 60.0
"""Limit for an orderly leave: a node commits its work within 20 s (`rounds.turn.LEAVE_SECONDS`),
stays up to 30 s for a peer that lacks it (`rounds.farewell.HAND_OVER_SECONDS`), and then saves
its state. A slower node is killed."""

_T = TypeVar("_T")


class SwarmError(Exception):
    """A node did not do in time what it should; the message has the end of its log."""


@dataclass
class LocalNode:
    """One daemon process."""

    root: Path
    prefix: tuple[str, ...] = ()
    """Words before the command, such as `ip netns exec NAME`."""
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    listen: str = ANY_PORT
    process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.root.with_name(f"{self.root.name}.log")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *command: str) -> None:
        """Starts `gossamer COMMAND` on this node's state directory."""
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
                # These nodes are for their own user, who looks at them, also on a laptop.
                env={
                    **os.environ,
                    **self.environment,
                    "GOSSAMER_ON_BATTERY": "on",
                    "GOSSAMER_ON_METERED": "on",
                },
                start_new_session=True,  # Ctrl-C must reach only the parent process
            )

    def signal(self, number: int) -> None:
        if self.is_running:
            assert self.process is not None
            self.process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL, which acts like a power cut. Returns when the process is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def leave(self) -> int:
        """Sends SIGTERM and returns the exit status.

        Raises:
            SwarmError: the node did not end within `END_SECONDS`, and was killed.
        """
        self.signal(signal.SIGTERM)
        try:
            return self.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise SwarmError(
                f"{self.root.name} did not leave within {END_SECONDS} s\n{self.tail()}"
            ) from None

    def wait(self, timeout_seconds: float | None = None) -> int:
        assert self.process is not None
        return self.process.wait(timeout_seconds)

    def status(self) -> Status | None:
        """Returns the status that the node reports, or None while it does not answer."""
        try:
            return fetch_status(StateDir(self.root))
        except ClientError:
            return None

    def address(self, timeout_seconds: float = 60.0) -> str:
        """Waits for an address that other peers can dial, and returns it."""
        status = self.wait_for(lambda s: bool(s.addresses), timeout_seconds, "an address")
        return status.addresses[0]

    def wait_for(
        self, condition: Callable[[Status], bool], timeout_seconds: float, what: str
    ) -> Status:
        """Waits for a status that fulfils a condition, and returns it.

        Raises:
            SwarmError: no such status came in time, or the process ended before.
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
            f"{self.root.name}: no {what} within {timeout_seconds} s{ended}; "
            f"last status: {status}\n{self.tail()}"
        )

    def tail(self, num_lines: int = 30) -> str:
        """Returns the end of the node's log."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-num_lines:])


class LocalSwarm:
    """Nodes under one folder. All of them are killed at the end of the `with` block."""

    def __init__(self, root: Path, options: Sequence[str] = ()) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._options = tuple(options)
        self.nodes: list[LocalNode] = []

    def __enter__(self) -> LocalSwarm:
        return self

    def __exit__(self, *_error: object) -> None:
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGKILL)
        for node in self.nodes:
            if node.process is not None:
                node.wait()

    def add(
        self, *, environment: Mapping[str, str] | None = None, listen: str = ANY_PORT
    ) -> LocalNode:
        """Adds a node and does not start it."""
        root = self.root / f"node{len(self.nodes) + 1}"
        node = LocalNode(root, options=self._options, environment=environment or {}, listen=listen)
        self.nodes.append(node)
        return node

    def found(self, *command: str) -> LocalNode:
        """Adds and starts a node that founds a run (`gossamer start ...`)."""
        node = self.add()
        node.start("start", *command)
        return node

    def join(self, address: str, *options: str) -> LocalNode:
        """Adds and starts a node that joins by an address."""
        node = self.add()
        node.start("join", address, *options)
        return node

    @property
    def running(self) -> list[LocalNode]:
        return [node for node in self.nodes if node.is_running]
