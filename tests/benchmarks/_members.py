"""The processes of a measured all-reduce, as `ring.py` and `faults.py` speak with them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tests.benchmarks._member import Assignment, encode_assignment
from tests.internet.internet import LINE as HOME_INTERFACE
from tests.internet.internet import Internet
from tests.support.netns import LINE, Network

ROOT = Path(__file__).parents[2]
"""The repository's top folder, from which `python -m tests.benchmarks...` finds its modules."""

ANSWER_SECONDS = 600.0
START_SECONDS = 0.3
"""Time between the message and the common start: every member has received it by then."""


class Member:
    """One member's process and the conversation with it (see `_member`)."""

    def __init__(
        self, name: str, command: Sequence[str], assignment: Assignment, log: Path
    ) -> None:
        self._name = name
        self._log = log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self._send(encode_assignment(assignment))

    def say(self, **message: Any) -> None:
        self._send(json.dumps(message) + "\n")

    def hear(self) -> dict[str, Any]:
        """The member's answer; SystemExit with its log if it has none to give."""
        answer = self.hear_within(ANSWER_SECONDS)
        if answer is None:
            self._fail(f"gave no answer in {ANSWER_SECONDS:.0f} s")
        return answer

    def hear_within(self, seconds: float) -> dict[str, Any] | None:
        """The member's answer, or None; SystemExit with its log if it ended."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            return None
        line = self._process.stdout.readline()
        if not line:
            self._fail("ended")
        message: dict[str, Any] = json.loads(line)
        return message

    def tail(self, num_lines: int = 30) -> str:
        """The end of the member's log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-num_lines:])

    def signal(self, number: int) -> None:
        """Sends a signal to the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self, patience_seconds: float = 10.0) -> None:
        """End of input, and if that does not help SIGKILL to it and its children."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_seconds)
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("ended")

    def _fail(self, what: str) -> NoReturn:
        raise SystemExit(f"{self._name} {what}; the end of its log:\n{self.tail()}")


class Lines(Protocol):
    """Machines with a line each."""

    @property
    def interface(self) -> str:
        """The interface of every machine."""

    def prefix(self, machine: int) -> list[str]:
        """Returns the words to put before a command that runs it on a machine."""

    def host(self, machine: int) -> str:
        """The address of a machine."""


class ShapedLines:
    """Lines with a rate and no delay."""

    interface = LINE

    def __init__(self, network: Network) -> None:
        self.prefix, self.host = network.prefix, network.host


class LongLines:
    """Lines with a rate, a delay and losses."""

    interface = HOME_INTERFACE

    def __init__(self, internet: Internet) -> None:
        self.prefix, self.host = internet.prefix, internet.public_host


class Members:
    """All processes of one system, by rank."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self.addresses: list[str] = []

    def start(
        self, name: str, command: Sequence[str], plan: Assignment, lines: Lines | None, logs: Path
    ) -> None:
        """Starts and connects them; `plan` is every member's assignment but for rank and place.

        Each is on its own machine of `lines`, or all are on the loopback. Adds them one by one, so
        that `end` ends those that were started if one cannot be.
        """
        for rank in range(plan.num_members):
            host, interface, prefix = "127.0.0.1", "lo", []
            if lines is not None:
                host, prefix = lines.host(rank), lines.prefix(rank)
                interface = lines.interface
            assignment = replace(plan, rank=rank, host=host, interface=interface)
            log = logs / f"{name}.{rank}.log"
            self._members.append(
                Member(f"{name} member {rank}", [*prefix, *command], assignment, log)
            )
        self.addresses = [answer["address"] for answer in self.hear()]
        self.say(addresses=self.addresses)
        self.hear()

    def __getitem__(self, rank: int) -> Member:
        return self._members[rank]

    def say(self, ranks: Sequence[int] | None = None, /, **message: Any) -> None:
        """Sends a message to the members of these ranks; None means all."""
        for member in self._of(ranks):
            member.say(**message)

    def hear(self, ranks: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """The answers of these, or of all, in the order of `ranks`."""
        return [member.hear() for member in self._of(ranks)]

    def prepare(self, repeat: int) -> float:
        """All members prepare an all-reduce; returns when it begins (monotonic clock)."""
        self.say(repeat=repeat)
        self.hear()
        start = time.monotonic() + START_SECONDS
        self.say(start_seconds=start)
        return start

    def end(self) -> None:
        for member in self._members:
            member.end()

    def _of(self, ranks: Sequence[int] | None) -> list[Member]:
        return self._members if ranks is None else [self._members[rank] for rank in ranks]
