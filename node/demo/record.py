"""The demo's record of its peers, round by round, and the results that follow from it.

The daemons themselves gave all of it as answers to `/api/status`, several times a round.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import fmean

from gossamer.node.telemetry.status import LastRound, Status

RATE_SECONDS = 15.0
"""Time over which tokens per second are averaged: several rounds."""

ENDS_ROUNDS = 3
"""Rounds whose mean is the training loss at the start and at the end. One round is noisy."""


@dataclass
class PeerRecord:
    """One of the demo's peers."""

    name: str
    doing: str = "not started"
    """Text to show before the first answer and after the end."""
    is_alive: bool = True
    status: Status | None = None
    """The newest answer of the daemon."""
    rounds: dict[int, LastRound] = field(default_factory=dict)
    """Rounds that the peer committed as a member, by number."""
    losses: dict[int, float] = field(default_factory=dict)
    heldout_losses: dict[int, float] = field(default_factory=dict)
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    """(head, state digest) by round, from the newest answer about that round."""

    @property
    def round(self) -> int:
        return 0 if self.status is None else self.status.round

    @property
    def shared_rounds(self) -> dict[int, LastRound]:
        """Rounds that the peer committed with others. Sometimes a peer is alone in a ring."""
        return {number: ring for number, ring in self.rounds.items() if len(ring.members) > 1}

    def ended(self, how: str) -> None:
        """Notes that the daemon ended, and how."""
        self.is_alive, self.doing = False, how

    def see(self, status: Status) -> None:
        self.status = status
        if status.head is not None and status.state_digest is not None:
            self.states[status.round] = (status.head, status.state_digest)
        last = status.last_round
        if last is not None and last.outcome == "committed":
            self.rounds[last.round] = last
        for point in status.loss_history:
            if point.loss is not None and math.isfinite(point.loss):
                self.losses[point.round] = point.loss
            if point.heldout_loss is not None:
                self.heldout_losses[point.round] = point.heldout_loss


@dataclass(frozen=True)
class Event:
    """Something that happened, for the list below the table."""

    seconds: float
    text: str


@dataclass(frozen=True)
class Losses:
    """The loss at the start and at the end."""

    kind: str
    """The text that it was measured on."""
    first_rounds: str
    first: float
    last_rounds: str
    last: float

    @property
    def fell(self) -> bool:
        return self.last < self.first


@dataclass(frozen=True)
class Digests:
    """The states of the living peers at one round."""

    round: int
    by_name: dict[str, str]
    contradictions: tuple[str, ...]
    """Heads with more than one state digest at any time. There must be none."""
    num_compared: int
    """Rounds at which at least two peers reported their state."""
    num_alike: int
    """Compared rounds at which all reported states were equal. Two heads of one round are no error:
    the heavier one wins."""

    @property
    def equal(self) -> bool:
        return len(set(self.by_name.values())) == 1 and not self.contradictions


class Record:
    """All peers of the demo, and the results of the swarm as a whole.

    It has more than 15 public methods: each is one question of the table that the demo shows.
    """

    def __init__(self) -> None:
        self.peers: dict[str, PeerRecord] = {}
        self.events: list[Event] = []
        self._tokens: deque[tuple[float, int]] = deque()

    def peer(self, name: str) -> PeerRecord:
        return self.peers.setdefault(name, PeerRecord(name))

    @property
    def living(self) -> list[PeerRecord]:
        return [peer for peer in self.peers.values() if peer.is_alive]

    def see(self, name: str, status: Status, seconds: float) -> None:
        """Adds an answer that came `seconds` after the start."""
        self.peer(name).see(status)
        if not self._tokens or status.swarm_tokens_total >= self._tokens[-1][1]:
            self._tokens.append((seconds, status.swarm_tokens_total))
        while len(self._tokens) > 2 and self._tokens[0][0] < seconds - RATE_SECONDS:
            self._tokens.popleft()

    def note(self, seconds: float, text: str) -> None:
        self.events.append(Event(seconds, text))

    # The swarm at present

    @property
    def round(self) -> int:
        """The newest committed round."""
        return max((peer.round for peer in self.peers.values()), default=0)

    @property
    def tokens_per_second(self) -> float | None:
        """Committed tokens per second of all peers over `RATE_SECONDS`; None before a round."""
        if len(self._tokens) < 2:
            return None
        (first_seconds, first), (last_seconds, last) = self._tokens[0], self._tokens[-1]
        if last == first or last_seconds == first_seconds:
            return None
        return (last - first) / (last_seconds - first_seconds)

    @property
    def newest_ring(self) -> tuple[str, ...]:
        """Names of the members of the newest committed round, in ring order."""
        newest: LastRound | None = None
        for peer in self.living:
            last = peer.status.last_round if peer.status is not None else None
            if last is not None and (newest is None or last.round > newest.round):
                newest = last
        return self.names(newest.members) if newest is not None else ()

    def names(self, peer_ids: Collection[str]) -> tuple[str, ...]:
        """Returns the demo's names of peers. An unknown peer keeps the end of its id."""
        known = {p.status.peer_id: p.name for p in self.peers.values() if p.status is not None}
        return tuple(known.get(peer_id, peer_id[-6:]) for peer_id in peer_ids)

    def ring_of(self, number: int, names: Collection[str]) -> LastRound | None:
        """Returns a round as one of the named peers reported it."""
        for name in names:
            if number in self.peer(name).rounds:
                return self.peer(name).rounds[number]
        return None

    # Results

    def training_losses(self) -> dict[int, float]:
        """Returns the mean training loss of the peers by round."""
        return _means([peer.losses for peer in self.peers.values()])

    def heldout_losses(self) -> dict[int, float]:
        """Returns the mean held-out loss by round, for rounds that a peer evaluated."""
        return _means([peer.heldout_losses for peer in self.peers.values()])

    def losses(self) -> Losses | None:
        """Returns the held-out losses if two rounds have one, else those of training, else None."""
        heldout = self.heldout_losses()
        if len(heldout) >= 2:
            first, last = min(heldout), max(heldout)
            return Losses(
                "on held-out text", f"round {first}", heldout[first], f"round {last}", heldout[last]
            )
        return self.losses_in_training()

    def losses_in_training(self) -> Losses | None:
        """Returns the training losses at the start and the end; None with fewer than two rounds."""
        training = self.training_losses()
        rounds = sorted(training)
        if len(rounds) < 2:
            return None
        num = max(1, min(ENDS_ROUNDS, len(rounds) // 2))
        first, last = rounds[:num], rounds[-num:]
        return Losses(
            "in training",
            f"rounds {first[0]} to {first[-1]}",
            fmean(training[number] for number in first),
            f"rounds {last[0]} to {last[-1]}",
            fmean(training[number] for number in last),
        )

    def common_round(self) -> int | None:
        """Returns the newest round at which every living peer reported its state, or None."""
        living = [set(peer.states) for peer in self.living]
        common = set.intersection(*living) if living else set()
        return max(common, default=None)

    def digests(self) -> Digests | None:
        """Returns the states of the living peers at `common_round`."""
        common = self.common_round()
        if common is None:
            return None
        by_head: dict[str, set[str]] = {}
        by_round: dict[int, list[str]] = {}
        for peer in self.peers.values():
            for number, (head, digest) in peer.states.items():
                by_head.setdefault(head, set()).add(digest)
                by_round.setdefault(number, []).append(digest)
        compared = [told for number, told in by_round.items() if number > 0 and len(told) > 1]
        return Digests(
            round=common,
            by_name={peer.name: peer.states[common][1] for peer in self.living},
            contradictions=tuple(sorted(h for h, told in by_head.items() if len(told) > 1)),
            num_compared=len(compared),
            num_alike=sum(1 for told in compared if len(set(told)) == 1),
        )

    def bytes_per_round(self, name: str) -> tuple[float, int] | None:
        """Returns the mean bytes that a peer sent in shared rounds, and the number of these."""
        sent = [ring.bytes_sent for ring in self.peer(name).shared_rounds.values()]
        return (fmean(sent), len(sent)) if sent else None


def _means(tables: list[dict[int, float]]) -> dict[int, float]:
    gathered: dict[int, list[float]] = {}
    for table in tables:
        for number, value in table.items():
            gathered.setdefault(number, []).append(value)
    return {number: fmean(values) for number, values in sorted(gathered.items())}
