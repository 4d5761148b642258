"""Asks every machine of a lab for its status all the time, and keeps what a fault may overtake.

A status shows the newest round only, and a daemon that is killed shows nothing any more: so one
thread a machine asks several times a second.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from gossamer.node.telemetry.status import LastRound, Status
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring_order import rank_order
from tests.support.lab import Lab, Machine

PATIENCE_SECONDS = 90.0
"""Time for what takes some seconds on an idle machine."""

_T = TypeVar("_T")


@dataclass
class Seen:
    """The observations of one machine."""

    status: Status | None = None
    """The newest; None while the daemon does not answer."""
    sent_before_ring: int = 0
    """Bytes that the daemon had sent when its present round's ring was not yet at work."""
    rounds: dict[int, LastRound] = field(default_factory=dict)
    """Rounds by number, as this node saw them end."""
    committed_seconds: dict[int, float] = field(default_factory=dict)
    """Time at which a round was first seen to be this node's newest (monotonic clock), by round."""
    first: Status | None = None
    """The first of this life of the daemon that knew its work."""
    _process_id: int = 0

    def note(self, process_id: int, status: Status, *, is_in_ring: bool) -> None:
        """A daemon answered."""
        begins = self.status is None or self.status.round != status.round
        self.status = status
        if process_id != self._process_id:
            self._process_id, self.first = process_id, None
        if self.first is None and status.work is not None:
            self.first = status
        if begins or not is_in_ring:
            self.sent_before_ring = status.bytes_sent_total
        self.committed_seconds.setdefault(status.round, time.monotonic())
        if (last := status.last_round) is not None:
            self.rounds[last.round] = last


@dataclass(frozen=True)
class NextRing:
    """The ring that follows on a head that all its members have."""

    number: int
    """Number of its round."""
    members: list[Machine]
    """Members in ring order (before the ring works: of its first attempt), the organiser first."""
    ready: list[Machine]
    sent_bytes: int
    """Bytes that all together have sent since they are ready."""


class Watch:
    """Use as a context; asks until its end. The waits raise AssertionError with what they saw."""

    def __init__(
        self,
        lab: Lab,
        ring_bytes: int,
        every_seconds: float = 0.2,
        *,
        trains_in_ring: bool = False,
    ) -> None:
        """
        Args:
            ring_bytes: of all chunks on their way (`Run.ring_bytes`).
            trains_in_ring: whether members train while their ring is at work.
        """
        self.lab = lab
        self.trains_in_ring = trains_in_ring
        self._ring_bytes = ring_bytes
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._seen = {machine.name: Seen() for machine in lab.machines}
        self._states: dict[str, dict[str, set[str]]] = {}
        """Head to state digest to the machines that said so."""
        self._threads = [
            threading.Thread(target=self._ask, args=(machine,), name=machine.name)
            for machine in lab.machines
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def seen(self, machine: Machine) -> Seen:
        return self._seen[machine.name]

    def wait(
        self, condition: Callable[[], _T | None], what: str, seconds: float = PATIENCE_SECONDS
    ) -> _T:
        """The first result of `condition` that is true."""
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {seconds:g} s\n{self.summary()}")
            time.sleep(self._every_seconds / 4)
        return result

    def summary(self) -> str:
        """The round and phase of all machines, and the end of their logs."""
        parts = []
        for machine in self.lab.machines:
            status = self.seen(machine).status
            known = "does not answer"
            if status is not None:
                rounds = sorted(self.seen(machine).rounds)
                known = f"{status.phase}, round {status.round}, {status.last_round}, saw {rounds}"
            parts.append(f"{machine.name}: {known}\n{machine.tail(30)}")
        return "\n".join(parts)

    # States

    def note_state(self, machine: str, status: Status) -> None:
        """Notes the state digest of a machine at its head."""
        if status.head is not None and status.state_digest is not None:
            states = self._states.setdefault(status.head, {})
            states.setdefault(status.state_digest, set()).add(machine)

    def num_digests_compared(self) -> int:
        """Machines that said a head's state after another had; all equal, or AssertionError."""
        compared = 0
        for head, states in self._states.copy().items():
            assert len(states) == 1, f"two states of head {head}: {states}"
            compared += sum(len(machines) for machines in states.values()) - 1
        return compared

    # Rounds

    def longest_stall_seconds(self, begin: float, end: float) -> float:
        """Longest time between those (monotonic clock) without a round newer than all before."""
        firsts: dict[int, float] = {}
        for seen in self._seen.values():
            for number, seconds in seen.committed_seconds.copy().items():
                firsts[number] = min(seconds, firsts.get(number, seconds))
        newest, marks = 0, [begin]
        for seconds, number in sorted((seconds, number) for number, seconds in firsts.items()):
            if number > newest and begin < seconds < end:
                newest = number
                marks.append(seconds)
        return max(later - earlier for earlier, later in pairwise([*marks, end]))

    def median_round_seconds(self) -> float:
        """Median duration of all rounds that a machine saw committed."""
        ended = (one for seen in self._seen.values() for one in seen.rounds.copy().values())
        return statistics.median(
            one.duration_seconds for one in ended if one.outcome == "committed"
        )

    def together(
        self, machines: Collection[Machine], *, after: int = 0, seconds: float = PATIENCE_SECONDS
    ) -> float:
        """Waits for a round of exactly these, on one head; returns its seconds, their median.

        It is one after round `after`. A machine that is cut off in the middle of a ring of shared
        steps may commit it alone, with what all others did before: the same contributors, and
        another head.
        """
        wanted = {machine.peer_id for machine in machines}

        def common() -> list[LastRound] | None:
            newest = [list(self.seen(machine).rounds.values())[-1:] for machine in machines]
            rounds = [one for last in newest for one in last]
            statuses = [self.seen(machine).status for machine in machines]
            if len({status.head if status is not None else None for status in statuses}) > 1:
                return None
            if len(rounds) < len(machines) or len({one.round for one in rounds}) > 1:
                return None
            is_wanted = all(set(one.contributors) == wanted for one in rounds)
            return rounds if is_wanted and rounds[0].round > after else None

        rounds = self.wait(common, f"round of {_names(machines)}", seconds)
        return statistics.median(one.duration_seconds for one in rounds)

    def newest_round(self, machines: Collection[Machine]) -> int:
        """The newest that any of them has committed."""
        statuses = (self.seen(machine).status for machine in machines)
        return max((status.round for status in statuses if status is not None), default=0)

    def all_take_part(
        self, machines: Collection[Machine], *, after: int = 0, seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Waits until all have one head, and each was in a round after `after`, not all in one."""

        def agree() -> bool:
            statuses = [self.seen(machine).status for machine in machines]
            heads = {status.head if status is not None else None for status in statuses}
            return len(heads) == 1 and all(
                any(
                    number > after and machine.peer_id in one.contributors
                    for number, one in self.seen(machine).rounds.copy().items()
                )
                for machine in machines
            )

        self.wait(agree, f"one head and a part in it of {_names(machines)}", seconds)

    def mid_ring(self, machines: Collection[Machine], part: float = 0.3) -> NextRing:
        """Waits until a ring of these has sent that part of its bytes."""
        goal_bytes = part * 2 * (len(machines) - 1) * self._ring_bytes
        by_id = {machine.peer_id: machine for machine in machines}

        def at_work() -> NextRing | None:
            ring = self._next_ring(machines)
            statuses = [self.seen(machine).status for machine in machines]
            followed = {() if status is None else status.ring for status in statuses}
            if ring is None or len(followed) > 1 or ring.sent_bytes < goal_bytes:
                return None
            (order,) = followed
            if set(order) != set(by_id):
                return None
            return replace(ring, members=[by_id[PeerId(peer)] for peer in order])

        return self.wait(at_work, f"ring of {_names(machines)} at work")

    def organised(self, machines: Collection[Machine]) -> NextRing:
        """Waits until the organiser of a ring of these, its first member, is ready.

        Then it is about to say who is in the ring, or has just done so.
        """
        here = self.newest_round(machines)

        def organiser_is_ready() -> NextRing | None:
            ring = self._next_ring(machines)
            if ring is None or ring.number <= here + 1:
                return None
            return ring if ring.members[0] in ring.ready else None

        return self.wait(organiser_is_ready, f"ring of {_names(machines)} that begins")

    def _next_ring(self, machines: Collection[Machine]) -> NextRing | None:
        """None while they do not all have the same head."""
        sent_bytes, ready, standing = 0, [], set()
        for machine in machines:
            seen = self.seen(machine)
            status = seen.status
            if status is None or status.head is None:
                return None
            standing.add((status.round, status.head))
            if self._is_in_ring(status):
                ready.append(machine)
                sent_bytes += status.bytes_sent_total - seen.sent_before_ring
        if len(standing) > 1:
            return None
        ((number, head),) = standing
        by_id = {machine.peer_id: machine for machine in machines}
        order = rank_order(bytes.fromhex(head), 0, by_id)
        return NextRing(number + 1, [by_id[peer] for peer in order], ready, sent_bytes)

    def _is_in_ring(self, status: Status) -> bool:
        """Returns whether its ring is at work, or is agreed on: it has all that it needs for
        that."""
        if self.trains_in_ring:
            return status.phase == "training" and status.inner_step > 0
        return status.phase == "averaging"

    def mesh(self, machines: Collection[Machine]) -> None:
        """Waits until all these are connected to each other."""
        ids = {machine.peer_id for machine in machines}

        def connected() -> bool:
            for machine in machines:
                status = self.seen(machine).status
                peers = status.peers if status is not None else ()
                others = {peer.peer_id for peer in peers if peer.connected}
                if not ids - {machine.peer_id} <= others:
                    return False
            return True

        self.wait(connected, f"connections of {_names(machines)}")

    def outcome(
        self, machines: Collection[Machine], number: int, seconds: float = PATIENCE_SECONDS
    ) -> dict[str, LastRound]:
        """Waits until a round has ended for each of these machines; returns its end by name.

        AssertionError at once if one of them is two rounds further and was in no ring of this one.
        """

        def ended() -> dict[str, LastRound] | None:
            rounds = {machine.name: self.seen(machine).rounds.get(number) for machine in machines}
            found = {name: one for name, one in rounds.items() if one is not None}
            for machine in machines:
                status = self.seen(machine).status
                if machine.name not in found and status is not None and status.round > number + 1:
                    raise AssertionError(
                        f"{machine.name} was in no ring of round {number}\n{self.summary()}"
                    )
            return found if len(found) == len(machines) else None

        return self.wait(ended, f"end of round {number} at {_names(machines)}", seconds)

    def _ask(self, machine: Machine) -> None:
        seen = self.seen(machine)
        while not self._ended.wait(self._every_seconds):
            process = machine.process
            status = machine.status() if machine.is_running else None
            if status is None or process is None or process is not machine.process:
                seen.status = None
                continue
            seen.note(process.pid, status, is_in_ring=self._is_in_ring(status))
            self.note_state(machine.name, status)


def _names(machines: Collection[Machine]) -> str:
    return ", ".join(machine.name for machine in machines)
