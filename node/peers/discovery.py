"""Finding peers and staying connected to them.

A node starts from addresses that a person gave and from peers that it knew before. Whoever it is
connected to passes on everybody's announcements (gossip and boards), and those carry addresses: so
one living address leads to the whole swarm, and nobody depends on the first seed. Each node keeps a
connection to every living member of its run, up to `CONNECTIONS_MAX`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.interface.metrics import Metrics
from gossamer.node.network.transport import ConnectError, Transport
from gossamer.node.storage.state_dir import DiskFullError, KnownPeers
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.messages import Announce

LOOK_SECONDS = 1.0
SAVE_SECONDS = 10.0
BACK_OFF_SECONDS_MIN = 2.0
BACK_OFF_SECONDS_MAX = 60.0
"""A peer that is away for an hour is asked 60 times, each a few packets."""
DIALS_AT_ONCE_MAX = 8
CONNECTIONS_MAX = 192
"""Every ring member may have to reach every other; a ring has at most 256 members, and the
transport refuses inbound connections above its own limit."""

log = structlog.get_logger("peers")


@dataclass
class _Attempt:
    next_seconds: float
    back_off_seconds: float = BACK_OFF_SECONDS_MIN


class Discovery:
    """Dials whoever should be connected and is not."""

    def __init__(
        self,
        transport: Transport,
        known: KnownPeers,
        bootstrap: Sequence[str],
        members: Callable[[], dict[PeerId, Announce]],
        metrics: Metrics,
        randomness: random.Random,
    ) -> None:
        self._transport = transport
        self._known = known
        self._bootstrap = tuple(bootstrap)
        self._members = members
        self._metrics = metrics
        self._random = randomness
        self._attempts: dict[str, _Attempt] = {}
        self._dialling: set[str] = set()

    async def run(self) -> None:
        """Dials and remembers until cancelled."""
        saved_seconds = trio.current_time()
        async with trio.open_nursery() as nursery:
            while True:
                self._look(nursery)
                if trio.current_time() - saved_seconds > SAVE_SECONDS:
                    saved_seconds = trio.current_time()
                    self.save()
                await trio.sleep(LOOK_SECONDS)

    def save(self) -> None:
        """Writes the known peers; a full disk is no reason to stop."""
        connected = set(self._transport.peers())
        for peer, announce in sorted(self._members().items()):
            if peer in connected and announce.addresses:
                self._known.saw(peer, announce.addresses)
        try:
            self._known.save()
        except (DiskFullError, OSError) as error:
            log.warning("known peers were not saved", error=str(error))

    def _look(self, nursery: trio.Nursery) -> None:
        connected = set(self._transport.peers())
        if len(connected) >= CONNECTIONS_MAX:
            return
        me = self._transport.peer_id
        wanted = {
            peer: announce.addresses
            for peer, announce in self._members().items()
            if peer not in connected and peer != me and announce.phase != "leaving"
        }
        for peer, addresses in sorted(wanted.items()):
            # Of two that know each other the lower id dials at once, the other if that fails.
            patience = 0.0 if me < peer else BACK_OFF_SECONDS_MIN
            self._dial(nursery, peer, peer, addresses, patience)
        if connected:
            return
        for address in self._bootstrap:
            self._dial(nursery, address, None, (address,), 0.0)
        for peer, addresses in self._known.newest_first()[:DIALS_AT_ONCE_MAX]:
            if peer != me:
                self._dial(nursery, peer, peer, addresses, 0.0)

    def _dial(
        self,
        nursery: trio.Nursery,
        key: str,
        peer: PeerId | None,
        addresses: tuple[str, ...],
        patience_seconds: float,
    ) -> None:
        now = trio.current_time()
        attempt = self._attempts.setdefault(key, _Attempt(now + patience_seconds))
        if (
            now < attempt.next_seconds
            or key in self._dialling
            or len(self._dialling) >= DIALS_AT_ONCE_MAX
            or not addresses
        ):
            return
        self._dialling.add(key)
        nursery.start_soon(self._connect, key, peer, addresses, attempt)

    async def _connect(
        self, key: str, peer: PeerId | None, addresses: tuple[str, ...], attempt: _Attempt
    ) -> None:
        try:
            if peer is None:
                await self._transport.connect(addresses[0])
            else:
                await self._transport.connect_any(peer, addresses)
            self._metrics.dials.add("connected")
            self._attempts.pop(key, None)
            log.info("connected", peer=short(peer) if peer else addresses[0])
        except ConnectError as error:
            self._metrics.dials.add("unreachable")
            log.debug("could not connect", error=str(error))
            attempt.next_seconds = trio.current_time() + attempt.back_off_seconds * (
                self._random.uniform(0.8, 1.2)
            )
            attempt.back_off_seconds = min(2 * attempt.back_off_seconds, BACK_OFF_SECONDS_MAX)
        finally:
            self._dialling.discard(key)
