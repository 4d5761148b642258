"""One peer's process: its life, its connections, its gossip, and the loop of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from gossamer.node.network.transport import RING_PING_SECONDS
from gossamer.node.rounds.decisions import goes_straight_on
from gossamer.node.rounds.dispatcher import HELLO_SECONDS
from gossamer.node.rounds.following import FIRST_CONTACT_SECONDS
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.membership import Awaited, Membership, awaited
from gossamer.protocol.policy.statement_store import StatementStore
from gossamer.protocol.rounds.roster import RoundHints
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import (
    Announce,
    Capacity,
    Phase,
    Ready,
    Roster,
    Signed,
    Statement,
)
from tests.sim.simulator.driver import Driver
from tests.sim.simulator.heads import Heads
from tests.sim.simulator.links import Link
from tests.sim.simulator.scenario import CrashPoint
from tests.sim.simulator.signatures import sign_as
from tests.sim.simulator.turn import Turn
from tests.sim.simulator.work import Feed, Work

if TYPE_CHECKING:
    from tests.sim.simulator.world import World

BEAT_SECONDS = 2.0
"""Time between two announcements here. They stand for the signs of life of a connection."""

_CAPACITY = Capacity("", "cpu", 0, 0, 1, 0.0, 0.0)


class Died(Exception):
    """The peer whose event runs was killed in the middle of it."""


class Peer:
    """One peer. What survives its process is in `heads.disk` and `work.disk`."""

    def __init__(self, world: World, peer_id: PeerId, index: int) -> None:
        self.world = world
        self.peer_id = peer_id
        self.index = index
        self.name = f"P{index}"
        self.machine = world.scenario.machines[index]
        self.sign = sign_as(peer_id)
        self.ping_phase_seconds = world.uniform((0.0, RING_PING_SECONDS))
        """When it gives signs of life: then and every `RING_PING_SECONDS`."""
        self.line_free_seconds = 0.0
        self.line_part = 1.0
        """What it has of its line's rate now."""
        self.alive = False
        self.life = 0
        self.num_deaths = 0
        self.vanished_seconds: float | None = None
        """When its machine died without a word."""
        self.frozen_seconds: float | None = None
        """Since when it is stopped."""
        self.was_frozen = False
        self._stops: list[tuple[float, float]] = []
        """On its own clock, when it was stopped in this life and when it went on."""
        self.connections: dict[PeerId, int] = {}
        self._living: tuple[float, Mapping[PeerId, Announce]] | None = None
        """The answer of `living` and the world's time of it; None: something has changed since."""
        self._backlog: list[tuple[bool, Callable[[], None]]] = []
        self.heads = Heads(self)
        self.work = Work(self)
        self.feed = Feed(self)
        self.turn: Turn | None = None
        self.delivering: list[Driver] = []
        """Of rounds that are committed here, and perhaps not by all the others."""
        self.statement_store = StatementStore()
        self.membership = Membership(peer_id)

    @property
    def now(self) -> float:
        """Its own clock."""
        return self.world.now + self.machine.clock_ahead_seconds

    def awake_since(self, seconds: float) -> float:
        """Seconds for which it has run since a time of its own clock."""
        if not self._stops:
            return self.now - seconds
        stops = [(max(began, seconds), ended) for began, ended in self._stops]
        stopped_seconds = sum(ended - began for began, ended in stops if ended > began)
        return self.now - seconds - stopped_seconds

    @property
    def bytes_per_second(self) -> float:
        """Of its line, each way."""
        return self.machine.bytes_per_second * self.line_part

    @property
    def frozen(self) -> bool:
        return self.frozen_seconds is not None

    # Events

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """A timer of its present life."""
        life = self.life

        def ring() -> None:
            if self.life != life or not self.alive:
                return
            if self.frozen_seconds is None:
                event()
            else:
                self._backlog.append((False, event))

        self.world.at(seconds, ring)

    def later(self, delay_seconds: float, event: Callable[[], None]) -> None:
        """A timer of its present life."""
        self.at(self.world.now + delay_seconds, event)

    def receive(self, event: Callable[[], None]) -> None:
        """Something arrives now, for whatever life it is in."""
        if not self.alive:
            return
        if self.frozen_seconds is None:
            event()
        else:
            self._backlog.append((True, event))

    # Life

    def start(self) -> None:
        """The process starts with what is on its disk."""
        if self.alive:
            return
        self.world.note(f"{self.name} starts")
        self.alive = True
        self.life += 1
        self.vanished_seconds = self.frozen_seconds = None
        self._stops = []
        self.statement_store = StatementStore()
        self.membership = Membership(self.peer_id)
        self.connections = {}
        self._living = None
        self.phase: Phase = "syncing"
        self._sequence = 0
        self._said: dict[PeerId, tuple[bytes, Phase]] = {}
        self.expected_now = Awaited([], [])
        """The answer of `expected` when the members changed last."""
        self._greetings: list[tuple[Link, float, Driver | None]] = []
        """Streams that wait for an answer, each with its deadline and the round it belongs to."""
        self._has_begun = False
        self.ready_since: dict[Digest, float] = {}
        """For each head its own time of the first `Ready` of another peer."""
        self.turn = None
        self._hints: RoundHints | None = None
        self.heads.restart()
        self.work.restart()
        self.feed.restart()
        self.world.network.dial_all(self)
        self.world.news()
        self._beat()
        self.later(self._reconcile_delay(), self._reconcile)
        self.later(FIRST_CONTACT_SECONDS, self._begin)

    def die(self, *, silently: bool = False) -> None:
        """The process is killed; `silently`: with its machine, so that no connection closes."""
        world = self.world
        world.note(f"{self.name} dies" + " with its machine" * silently)
        self.alive = False
        self.num_deaths += 1
        for driver in self._drivers:
            driver.die()
        self.delivering = []
        self.turn = None
        for link in world.links.of(self):
            link.close()
        self.connections = {}
        self._living = None
        self._backlog = []
        if silently:
            self.vanished_seconds = world.now
        for other in world.living():
            if silently:
                world.network.falls_silent(other, self)
            else:
                world.network.reset(other, self)
        world.news()

    def point(self, point: CrashPoint) -> None:
        """It may be killed here. Raises Died."""
        if self.world.faults.is_fatal(point):
            self.world.note(f"{self.name} dies at: {point}")
            self.world.faults.kill_at(self)

    def freeze(self) -> None:
        """The process is stopped: events wait, connections stay."""
        self.world.note(f"{self.name} is stopped")
        self.frozen_seconds = self.world.now
        self.was_frozen = True
        for other in self.world.living():
            if other is not self:
                self.world.network.falls_silent(other, self)

    def thaw(self) -> None:
        """It goes on, with all that waited at once: timers first, or everything as it came."""
        if not self.alive or not self.frozen:
            return
        self.world.note(f"{self.name} goes on")
        assert self.frozen_seconds is not None
        self._stops.append((self.frozen_seconds + self.machine.clock_ahead_seconds, self.now))
        self.frozen_seconds = None
        self._living = None
        backlog, self._backlog = self._backlog, []
        if self.world.random.random() < 0.5:
            backlog.sort(key=lambda entry: entry[0])
        for _, event in backlog:
            if self.alive and not self.frozen:
                event()
        self.world.network.dial_all(self)

    # Connections

    def connected(self, other: Peer, number: int) -> None:
        self.connections[other.peer_id] = number
        self._living = None
        self.announce()

    def disconnected(self, other: Peer, number: int) -> None:
        """The connection of this number is gone."""
        if self.connections.get(other.peer_id) != number:
            return
        del self.connections[other.peer_id]
        self.membership.disconnected(other.peer_id)
        self._living = None
        self._said.pop(other.peer_id, None)
        # Links that the other one has opened since it noticed are of a newer connection.
        if other.connections.get(self.peer_id) == number:
            for link in self.world.links.between(other, self):
                link.close()
        for link in self.world.links.between(self, other):
            link.fail(0.0, "reset")
        for driver in self._drivers:
            driver.disconnected(other.peer_id)
        self.members_changed()
        self.world.network.closed_by(self, other)

    def living(self) -> Mapping[PeerId, Announce]:
        """Living, connected others. One event asks for them several times."""
        now = self.world.now
        if self._living is None or self._living[0] != now:
            living = self.membership.living(self.awake_since(0.0))
            connected = self.connections
            self._living = (
                now,
                {peer: announce for peer, announce in living.items() if peer in connected},
            )
        return self._living[1]

    def expected(self) -> Awaited:
        """Others that a round waits for."""
        head, checks = self.heads.head, self.world.checks

        def is_lost(announce: Announce) -> bool:
            return checks.choice.best([head, Digest(announce.head)]) == head

        stakes = checks.choice.stakes_at(head)
        found = awaited(
            self.living(),
            self.heads.recent(),
            checks.round_of(head),
            is_lost,
            has_standing=stakes.__contains__,
        )
        return found._replace(stakes=stakes)

    def members_changed(self) -> None:
        """Which peers live, or where they are, may have changed."""
        self.heads.look()
        expected = self.expected()
        driver = self.driver
        if driver is not None and driver.is_running and expected != self.expected_now:
            self.expected_now = expected
            driver.expect(expected)
        self.consider()

    def _beat(self) -> None:
        self.announce()
        self.members_changed()
        self.later(BEAT_SECONDS, self._beat)

    def announce(self) -> None:
        """Tells the others where this peer stands."""
        head = self.heads.head
        self.gossip(
            *self.sealed(
                Announce(
                    self.life,
                    self.new_sequence(),
                    self.phase,
                    self.world.checks.round_of(head),
                    head,
                    self.world.checks.tokens_of(head),
                    0,
                    tuple(self.feed.claims),
                    (),
                    _CAPACITY,
                )
            )
        )

    def new_sequence(self) -> int:
        """A higher one than all that this life has used."""
        self._sequence += 1
        return self._sequence

    def set_phase(self, phase: Phase) -> None:
        self.phase = phase
        self.announce()

    # Gossip

    def sealed(self, statement: Statement) -> tuple[Signed, Statement]:
        return seal(statement, self.peer_id, self.world.run_id, self.sign), statement

    def gossip(self, signed: Signed, statement: Statement) -> None:
        self.statement_store.post(signed, statement)
        for other in self._neighbours():
            self.tell(other, signed, statement)

    def gossip_commit(self, commit: Commit, head: Digest) -> None:
        for other in self._neighbours():
            self._send(other, partial(other.commit_received, commit, head))

    def tell(self, other: Peer, signed: Signed, statement: Statement) -> None:
        """To one peer, of what may be the last that it hears of this one."""
        self._send(other, partial(other.heard, signed, statement))

    def _neighbours(self) -> list[Peer]:
        return [self.world.peers[peer_id] for peer_id in self.connections]

    def _send(self, other: Peer, event: Callable[[], None]) -> None:
        """By gossip."""
        for delay_seconds in self.world.network.gossip_delays():
            self.world.later(delay_seconds, partial(self._arrive, other, event))

    def _arrive(self, other: Peer, event: Callable[[], None]) -> None:
        if self.world.network.reach(self.peer_id, other.peer_id):
            other.receive(event)

    def heard(self, signed: Signed, statement: Statement) -> None:
        """By gossip or in an exchange, checked."""
        if signed.author == self.peer_id and not isinstance(statement, Roster):
            return  # a ring that an earlier life organised may be at work
        if not self.statement_store.post(signed, statement):
            return
        if isinstance(statement, Announce):
            author = PeerId(signed.author)
            self._living = None
            if self.membership.announced(
                self.awake_since(0.0), author, statement, self.connections
            ):
                said = (statement.head, statement.phase)
                if self._said.get(author) != said:
                    self._said[author] = said
                    self.members_changed()
                    if not self._has_begun:
                        self._begin()
        else:
            if isinstance(statement, Ready):
                self.ready_since.setdefault(Digest(statement.head), self.now)
            for driver in self._drivers:
                driver.heard(signed, statement)

    def commit_received(self, commit: Commit, head: Digest) -> None:
        """A commit record, by gossip."""
        if head in self.heads.disk.known:
            return
        driver = self.driver
        if driver is not None and driver.is_running and driver.commit_received(commit):
            return
        if self.heads.learn(commit, head):
            self.gossip_commit(commit, head)
            self.consider()

    def _reconcile_delay(self) -> float:
        return self.world.scenario.reconcile_seconds * self.world.uniform((0.8, 1.2))

    def _reconcile(self) -> None:
        """Anti-entropy: takes from another's board what mine lacks."""
        self.later(self._reconcile_delay(), self._reconcile)
        if not self.connections:
            return
        other = self.world.peers[self.world.random.choice(list(self.connections))]
        held = self.statement_store.tags()

        def answer() -> None:
            missing = {signed.digest for signed in other.statement_store.missing_from(held)}
            found = [
                each for each in other.statement_store.statements() if each[0].digest in missing
            ]
            if found:
                latency_seconds = self.world.uniform(self.world.scenario.latency_seconds)
                take = partial(self.take, found)
                self.world.later(latency_seconds, partial(other._arrive, self, take))

        self.world.later(
            self.world.uniform(self.world.scenario.latency_seconds),
            partial(self._arrive, other, answer),
        )

    def take(self, statements: list[tuple[Signed, Statement]]) -> None:
        """What another's board had and mine lacked."""
        for signed, statement in statements:
            self.heard(signed, statement)

    # The loop of rounds

    @property
    def driver(self) -> Driver | None:
        return None if self.turn is None else self.turn.driver

    @property
    def _drivers(self) -> list[Driver]:
        """A copy: of the turn, and of those before that are open."""
        driver = self.driver
        newest = [] if driver is None or driver in self.delivering else [driver]
        return [*newest, *self.delivering]

    def _begin(self) -> None:
        """Others were heard, or no peer for a while."""
        if not self._has_begun:
            self._has_begun = True
            self.proceed()

    def proceed(self) -> None:
        """Between two turns: to the best head, and on."""
        earlier = self.turn
        if earlier is not None:
            self._hints = earlier.driver.machine.hints
        straight_on = goes_straight_on(
            wants_device=False, is_trainer_up=True, better=self.heads.better()
        )
        if earlier is not None and not straight_on.holds:
            earlier.end_ahead(self.heads.head, self.world.checks.round_of(self.heads.head) + 1)
        if self.heads.catch_up():
            return
        hints = self._hints or RoundHints(came_late=self.world.checks.round_of(self.heads.head) > 0)
        self.world.count("came late", hints.came_late)
        training = None if earlier is None else earlier.ahead
        self.world.count("trained ahead", training is not None)
        self.turn = Turn(self, training=training, hints=hints)
        self.expected_now = Awaited([], [])
        self.turn.begin()
        self.members_changed()
        self.answer_greetings()

    def turn_ended(self) -> None:
        """Its driver may still deliver what it has queued."""
        self.turn = None

    def proceed_after(self, turn: Turn) -> Callable[[], None]:
        """The event that follows the end of a turn."""

        def proceed() -> None:
            if self.turn is turn:
                self.proceed()

        return proceed

    def consider(self) -> None:
        """Something changed: is there something better to do?"""
        if self.turn is not None:
            self.turn.consider()
        elif self._has_begun:
            self.heads.consider()
        self.answer_greetings()

    # Ring streams

    def greeted(self, link: Link) -> None:
        """A ring member opened its stream to us."""
        self._greetings.append((link, self.world.now + HELLO_SECONDS, None))
        self.later(HELLO_SECONDS, self.answer_greetings)
        self.answer_greetings()

    def answer_greetings(self) -> None:
        """Answers as `Participant.greeted` does, and refuses those that wait too long."""
        if not self._greetings:
            return
        waiting, self._greetings = self._greetings, []
        for link, deadline_seconds, asked in waiting:
            if not link.is_open:
                continue
            driver, roster = self.driver, link.ring.roster
            if asked is None and driver is not None and driver.is_running:
                if driver.machine.head == roster.head:
                    asked = driver
                    driver.heard(link.ring.envelope, roster)
                elif roster.round < driver.machine.number:
                    driver.answer_late_greeting(link)
                    continue
            if asked is not None and asked.answer_greeting(link):
                continue
            if self.world.now >= deadline_seconds:
                link.refuse("refused")
            else:
                self._greetings.append((link, deadline_seconds, asked))
