"""The streams of a ring: frames that keep their order, on lines that take their time.

A frame occupies its sender's line and the stream; the slower of the two ends sets the stream's
pace. What was sent into a network that does not reach the other end waits there (TCP repeats it)
until it does, or until one end gives up the connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gossamer.node.rounds.dispatcher import SENDS_PER_CHUNK_MAX, LinkFullError, LinkTarget
from gossamer.node.rounds.ring_link import SentChunks
from gossamer.protocol.rounds.actions import Send
from gossamer.protocol.rounds.inventory import Inventory
from gossamer.protocol.rounds.measured_link import LinkMeasure
from tests.sim.simulator.network import LOST_SECONDS, RESET_SECONDS
from tests.sim.simulator.scenario import CHUNK_BYTES

if TYPE_CHECKING:
    from tests.sim.simulator.driver import Driver
    from tests.sim.simulator.peer import Peer
    from tests.sim.simulator.world import World

_RETRY_SECONDS = 0.5


class Link:
    """One member's stream to another in one ring. It begins with the roster."""

    def __init__(self, world: World, driver: Driver, target: Peer, what: LinkTarget) -> None:
        self._world = world
        self._driver = driver
        self.source: Peer = driver.peer
        self.target = target
        self._target_life = target.life
        self.ring = what.ring
        self.is_open = True
        self._is_greeted = False
        self._receiver: Driver | None = None
        """Takes what comes, once the greeting is answered; None: it is dropped."""
        self._waits_for_inventory = what.waits_for_inventory
        self._chunks = SentChunks()
        self._num_received = 0
        self._queue: deque[Send] = deque()
        self._is_sending = False
        self._on_the_way: deque[Send] = deque()
        self._num_on_the_way = 0
        """Frames that were sent whole and are not acknowledged."""
        self._retries = False
        self._arrival_seconds = 0.0
        self._sending_since_seconds = 0.0
        self._sending_for_seconds = 1.0
        self._arrive_later(self._hello)

    # The sender

    def dial(self) -> None:
        """There is no connection to its target yet."""
        network = self._world.network
        if self.target.alive and self._is_heard:
            network.dial(self.source, self.target)
        else:
            bounds = RESET_SECONDS if self._is_heard else LOST_SECONDS
            self.fail(self._world.uniform(bounds), "reset")

    def send(self, frame: Send) -> None:
        """See `OutgoingLink`."""
        if len(self._queue) >= SENDS_PER_CHUNK_MAX * self._world.scenario.num_chunks:
            raise LinkFullError
        self._chunks.queue(frame)
        self._queue.append(frame)
        self._pump()

    def _pump(self) -> None:
        """Sends the next frame that is of use, if the line is free."""
        world, source = self._world, self.source
        if not self.is_open or self._is_sending:
            return
        if self._waits_for_inventory and self._chunks.inventory is None:
            return
        while self._queue:
            frame = self._queue.popleft()
            if self._chunks.is_wanted(frame):
                break
            world.count("frame left out")
        else:
            return
        self._is_sending = True
        self._chunks.sent(world.now, frame, len(frame.payload))
        begin = max(world.now, source.line_free_seconds)
        source.line_free_seconds = begin + CHUNK_BYTES / source.bytes_per_second
        link_rate = min(source.bytes_per_second, self.target.bytes_per_second)
        self._sending_since_seconds = begin
        self._sending_for_seconds = CHUNK_BYTES / link_rate
        source.at(begin + self._sending_for_seconds, lambda: self._sent(frame))

    def _sent(self, frame: Send) -> None:
        self._is_sending = False
        if not self.is_open:
            return
        self._on_the_way.append(frame)
        self._num_on_the_way += 1
        self._arrive_later(self._deliver)
        self._pump()

    def measured(self) -> LinkMeasure | None:
        """The totals of the link, with what has arrived of the frame under way."""
        world = self._world
        if self._is_sending and self._is_heard and not self._num_on_the_way:
            part = (world.now - self._sending_since_seconds) / self._sending_for_seconds
            num_bytes = int(CHUNK_BYTES * min(max(part, 0.0), 1.0))
            self._chunks.acknowledged(world.now, self._num_received, num_bytes)
        return self._chunks.measure(world.now)

    def _acknowledged(self) -> None:
        self._num_received += 1
        self._num_on_the_way -= 1
        self._chunks.acknowledged(self._world.now, self._num_received, 0)

    # The way

    @property
    def _is_heard(self) -> bool:
        return self._world.network.quiet_since(self.source, self.target) is None

    def _arrive_later(self, arrive: object) -> None:
        """In order: nothing overtakes what was sent before."""
        world = self._world
        latency_seconds = world.uniform(world.scenario.latency_seconds)
        self._arrival_seconds = max(self._arrival_seconds, world.now + latency_seconds)
        world.at(self._arrival_seconds, arrive)  # type: ignore[arg-type]

    def _hello(self) -> None:
        if self._reaches(self._hello):
            self.target.receive(self._greet)

    def _greet(self) -> None:
        if self.is_open:
            self.target.greeted(self)

    def _deliver(self) -> None:
        """Whatever has come so far is read, if the receiver answered the greeting."""
        if self._is_greeted and self._on_the_way and self._reaches(self._deliver):
            self.target.receive(self._read)

    def _read(self) -> None:
        while self.is_open and self._on_the_way:
            frame = self._on_the_way.popleft()
            latency_seconds = self._world.uniform(self._world.scenario.latency_seconds)
            self.source.later(latency_seconds, self._acknowledged)
            refusal = None
            if self._receiver is not None:
                refusal = self._receiver.frame_received(self, frame)
            if refusal is not None:
                self.refuse(refusal)

    def _reaches(self, again: object) -> bool:
        """Whether something gets through now. If not: later, or never."""
        if not self.is_open:
            return False
        if self.target.life != self._target_life or not self.target.alive:
            if self.target.vanished_seconds is None:
                self.refuse("reset")  # there is no such stream in its new life
            return False
        if self._world.network.reach(self.source.peer_id, self.target.peer_id):
            return True
        if not self._retries:
            self._retries = True

            def retry() -> None:
                self._retries = False
                again()  # type: ignore[operator]

            self._world.later(_RETRY_SECONDS, retry)
        return False

    # The receiver

    def accept(self, inventory: Inventory, receiver: Driver | None) -> None:
        """The target says what it holds, and reads from now on; None drops what comes."""
        self._is_greeted = True
        self._receiver = receiver

        def answered() -> None:
            self._chunks.inventory = inventory
            self._pump()

        self.source.later(self._world.uniform(self._world.scenario.latency_seconds), answered)
        self._deliver()

    def refuse(self, reason: str) -> None:
        """The receiver has no use for it; the source hears of it after a while."""
        self._world.count("link refused")
        self.fail(self._world.uniform(self._world.scenario.latency_seconds), reason)

    def fail(self, delay_seconds: float, reason: str) -> None:
        """The stream ends. Its source takes that for a failure unless it has no more use for it."""
        if not self.is_open:
            return
        self.is_open = False
        self.source.later(delay_seconds, lambda: self._driver.link_failed(self, reason))

    def finish(self) -> None:
        """See `OutgoingLink`: what is queued is still delivered."""

    def close(self) -> None:
        """See `OutgoingLink`."""
        self.is_open = False


class Links:
    """All open links of the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._links: list[Link] = []

    def open(self, driver: Driver, target: Peer, what: LinkTarget) -> Link:
        link = Link(self._world, driver, target, what)
        self._links = [other for other in self._links if other.is_open]
        self._links.append(link)
        return link

    def between(self, source: Peer, target: Peer) -> list[Link]:
        return [
            link
            for link in self._links
            if link.is_open and link.source is source and link.target is target
        ]

    def of(self, source: Peer) -> list[Link]:
        return [link for link in self._links if link.is_open and link.source is source]
