"""Words to the service manager that started this process (systemd's sd_notify(3) protocol).

The manager is told when the node is ready, what it does, and that it stops. With a watchdog it gets
a beat from a task of the event loop. So an event loop that hangs sends none, and the manager starts
the node again. The beats say nothing about the trainer: the daemon looks after that itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, MutableMapping

import structlog
import trio

BEATS_PER_LIMIT = 4
"""Beats within the watchdog's limit: a machine that swaps may miss two of them."""

STATUS_SECONDS = 5.0
"""Time between two looks at what the node does."""

STATUS_CHARACTERS_MAX = 200
"""A line of `systemctl status`."""

_MICRO = 1e-6

log = structlog.get_logger("node")


class ServiceManager:
    """The manager of this process; all methods do nothing where there is none."""

    def __init__(self, address: str = "", watchdog_seconds: float | None = None) -> None:
        """
        Args:
            address: path of the manager's datagram socket, or `@NAME` of an abstract one.
            watchdog_seconds: time after which the manager gives up a process without a beat.
        """
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds
        self._status = ""

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Returns the manager that the environment names. Its variables are taken out: what this
        process starts is no service."""
        address = environment.pop("NOTIFY_SOCKET", "")
        limit = environment.pop("WATCHDOG_USEC", "")
        process = environment.pop("WATCHDOG_PID", str(os.getpid()))
        is_watched = address and limit.isdigit() and int(limit) and process == str(os.getpid())
        return cls(address, int(limit) * _MICRO if is_watched else None)

    def ready(self) -> None:
        """The node has its state directory and its ports, and obeys orders."""
        self._tell("READY=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    async def run(self, doing: Callable[[], str]) -> None:
        """Sends beats, and what the node does whenever that changes, until cancelled.

        Args:
            doing: returns a line for people.
        """
        if not self._address:
            return
        seconds = STATUS_SECONDS
        if self.watchdog_seconds is not None:
            seconds = min(seconds, self.watchdog_seconds / BEATS_PER_LIMIT)
        while True:
            words = [] if self.watchdog_seconds is None else ["WATCHDOG=1"]
            status = " ".join(doing().split())[:STATUS_CHARACTERS_MAX]
            if status != self._status:
                self._status = status
                words.append(f"STATUS={status}")
            if words:
                self._tell(*words)
            await trio.sleep(seconds)

    def _tell(self, *words: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.setblocking(False)  # a manager that reads nothing holds up no event loop
                channel.sendto("\n".join(words).encode(), self._address)
        except OSError as error:
            log.debug("the service manager was not told", words=words, error=str(error))
