"""Keeps the file of known peers up to date: the addresses to try after a restart."""

from __future__ import annotations

import trio

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.base.threads import RunInThread
from gossamer.node.network.transport import Transport
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.protocol.policy.membership import Membership

SAVE_SECONDS = 10.0
"""A crash loses the addresses of peers that were first reached this long before it."""


class KnownPeersFile:
    """Writes the file in a thread, because the disk may need long for it."""

    def __init__(
        self,
        known: KnownPeers,
        transport: Transport,
        membership: Membership,
        health: DiskHealth,
        run_in_thread: RunInThread,
    ) -> None:
        self._known = known
        self._transport = transport
        self._membership = membership
        self._health = health
        self._run_in_thread = run_in_thread

    async def run(self) -> None:
        """Writes every `SAVE_SECONDS` until cancelled."""
        while True:
            await trio.sleep(SAVE_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Writes the connected peers. A disk that does not take them does not end the node."""
        connected = set(self._transport.peers())
        members = self._membership.known()  # by peer id
        self._known.saw(
            {
                peer: announce.addresses
                for peer, announce in members.items()
                if peer in connected and announce.addresses
            }
        )
        await self._run_in_thread(self._write)

    def _write(self) -> None:
        with self._health.writing("known peers"):
            self._known.save()
