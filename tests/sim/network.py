"""The simulated network: ring links, which keep order, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.messages import Signed
from gossamer.protocol.ring import Send
from gossamer.protocol.roster import Ring

if TYPE_CHECKING:
    from simulator import World

RESET_SECONDS = (0.02, 0.5)
"""After this a peer notices that a process at the other end died."""
SILENCE_SECONDS = (8.0, 12.0)
"""After this it notices a machine that vanished without a word."""


@dataclass
class Link:
    """One direction of one ring between two peers. The first frame carries the roster."""

    world: World
    source: PeerId
    target: PeerId
    ring: Ring
    envelope: Signed
    is_open: bool = True
    free_seconds: float = 0.0
    arrival_seconds: float = 0.0
    num_sent: int = field(default=0)

    def send(self, frame: Send | None) -> None:
        """Queues a frame (None: the first one): occupies the link, then takes the latency."""
        world = self.world
        scenario = world.scenario
        begin = max(world.now, self.free_seconds)
        self.free_seconds = begin + (world.uniform(scenario.frame_seconds) if frame else 0.0)
        arrival = self.free_seconds + world.uniform(scenario.latency_seconds)
        self.arrival_seconds = max(self.arrival_seconds, arrival)
        self.num_sent += 1
        world.at(self.arrival_seconds, lambda: self._deliver(frame))

    def _deliver(self, frame: Send | None) -> None:
        if not self.is_open:
            return
        target = self.world.peers[self.target]
        if not self.world.reach(self.source, self.target):
            self.fail(self.world.uniform(SILENCE_SECONDS), "timeout")
            return
        if not target.alive:
            self.fail(target.death_notice_seconds(), "reset")
            return
        refusal = target.frame_received(self, frame)
        if refusal is not None:
            self.fail(self.world.uniform(self.world.scenario.latency_seconds), refusal)

    def fail(self, delay_seconds: float, reason: str) -> None:
        """Closes the link; its source hears of it after a while."""
        if not self.is_open:
            return
        self.is_open = False
        source = self.world.peers[self.source]
        self.world.later(delay_seconds, source, lambda: source.link_failed(self, reason))

    def close(self) -> None:
        """The source has no more use for it."""
        self.is_open = False


class Links:
    """All links of the world, by source, target and ring."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._links: dict[tuple[PeerId, PeerId, Digest], Link] = {}

    def open(self, source: PeerId, target: PeerId, ring: Ring, envelope: Signed) -> Link:
        """The link, opened if it is new. One that failed stays failed."""
        key = (source, target, ring.ring_id)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(self._world, source, target, ring, envelope)
            link.send(None)
        return link

    def of(self, peer: PeerId) -> list[Link]:
        """Open links from or to a peer."""
        return [
            link
            for link in self._links.values()
            if link.is_open and peer in (link.source, link.target)
        ]

    def all_open(self) -> list[Link]:
        return [link for link in self._links.values() if link.is_open]
