"""Real daemons in the homes of `internet`, and the rounds that they commit."""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from gossamer.node.base.settings.setting_values import Switch
from gossamer.node.demo.local_swarm import LocalNode
from gossamer.node.network.identity import Identity
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status
from tests.internet.internet import Internet, Machine
from tests.support.daemons import get, path_on_disk

PORT = 4610

GIVEN_UP_SECONDS = 60.0
"""Time for the rounds that a test needs, on a machine that others use: 20 s a round."""

LOOK_SECONDS = 0.1
"""Interval of the looks at a chain while its rounds are timed."""


@dataclass(kw_only=True)
class Home(LocalNode):
    """A machine and the daemon on it."""

    internet: Internet
    number: int

    def status(self) -> Status | None:
        """Returns the daemon's status; None while it does not answer."""
        with self.internet.inside(self.number):
            return super().status()

    def averaging(self) -> tuple[float, float]:
        """Seconds that the daemon has spent averaging, and in how many rounds; 0 and 0 while it
        does not answer."""
        with self.internet.inside(self.number):
            try:
                text = get(self, "/metrics")[1]
            except (OSError, AssertionError):
                return 0.0, 0.0
        name = r'^gossamer_round_duration_seconds_(sum|count){phase="averaging"} (\S+)$'
        found = dict(re.findall(name, text, re.MULTILINE))
        return float(found.get("sum", 0.0)), float(found.get("count", 0.0))

    @property
    def peer_id(self) -> str:
        """The daemon's peer id, which exists before the daemon runs."""
        return Identity.load_or_create(StateDir(self.root).identity_path).peer_id

    @property
    def public_address(self) -> str:
        """The address that leads to this home, if a connection gets through its router."""
        return f"/ip4/{self.internet.public_host(self.number)}/tcp/{PORT}/p2p/{self.peer_id}"

    @property
    def public_ipv6_address(self) -> str:
        """The IPv6 address that leads to this home, if it has no router."""
        return f"/ip6/{self.internet.public_ipv6_host(self.number)}/tcp/{PORT}/p2p/{self.peer_id}"


@dataclass
class Rounds:
    """Rounds of one chain between two moments."""

    num_members: list[int] = field(default_factory=list)
    """Members with work in each round."""
    seconds: list[float] = field(default_factory=list)
    """Time from each commit to the next one."""
    averaging_seconds: float = float("nan")
    """Mean time of a round's averaging, over all daemons."""

    def share_of(self, everybody: int) -> float:
        """Part of the rounds that have the work of so many peers."""
        full = sum(number >= everybody for number in self.num_members)
        return full / len(self.num_members) if self.num_members else 0.0

    @property
    def round_seconds(self) -> float:
        """Median time from commit to commit; inf if there were not two."""
        return statistics.median(self.seconds) if self.seconds else float("inf")


class Homes:
    """The daemons of one small internet. Use as a context: at its end no daemon is left."""

    def __init__(
        self,
        folder: Path,
        machines: Sequence[Machine],
        options: Sequence[str] = (),
        *,
        lan: Switch = "off",
    ) -> None:
        """`lan`: the internet here is one bridge, so multicast reaches every public machine."""
        self.internet = Internet(machines)
        self.homes = [
            Home(
                root=folder / f"home{number}",
                prefix=tuple(self.internet.prefix(number)),
                options=("--threads", "1", "--log-level", "debug", "--lan", lan, *options),
                listen=f"/ip4/0.0.0.0/tcp/{PORT}",
                internet=self.internet,
                number=number,
            )
            for number in range(len(machines))
        ]

    def __enter__(self) -> Homes:
        self.internet.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for home in self.homes:
            if home.process is not None:
                with contextlib.suppress(OSError):
                    home.kill()
        self.internet.__exit__(kind, error, traceback)

    def watch(self, home: Home, seconds: float, rounds_min: int = 0) -> Rounds:
        """The rounds that the chain of one daemon gains in this time, and until there are
        `rounds_min` of them, if that takes no longer than `GIVEN_UP_SECONDS` more."""
        deadline = time.monotonic() + seconds
        given_up = deadline + GIVEN_UP_SECONDS
        first = number = len(_members(home))
        before = [each.averaging() for each in self.homes]
        commits: list[float] = []
        while time.monotonic() < (deadline if number - first >= rounds_min else given_up):
            time.sleep(LOOK_SECONDS)
            now, newest = time.monotonic(), len(_members(home))
            commits += [now] * (newest - number)
            number = newest
        spent = [
            (after[0] - earlier[0], after[1] - earlier[1])
            for each, earlier in zip(self.homes, before, strict=True)
            for after in [each.averaging()]
        ]
        rounds = sum(count for _, count in spent)
        mean = sum(total for total, _ in spent) / rounds if rounds else float("nan")
        intervals = [later - one for one, later in itertools.pairwise(commits)]
        return Rounds(_members(home)[first:], intervals, mean)


def _members(home: Home) -> list[int]:
    """Number of members with work in each round of the chain on a daemon's disk."""
    try:
        chain, path = path_on_disk(home)
    except FileNotFoundError:
        return []
    headers = [chain.header(each) for each in path]
    return [sum(member.tokens > 0 for member in header.members) for header in headers]


def median(values: Sequence[float]) -> float:
    """The median; nan of none."""
    return statistics.median(values) if values else float("nan")
