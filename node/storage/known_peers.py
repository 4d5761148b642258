"""The addresses of peers that a node has seen, kept for its next life."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.storage.bounded_file import read_record
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId, public_key_of

_KNOWN_PEERS_BYTES_MAX = (
    limits.MEMBERS_MAX * limits.ADDRESSES_MAX * (limits.ADDRESS_CHARACTERS_MAX + 8)
)


class KnownPeers:
    """Addresses of peers that were reached, to be tried after a restart. Newest first, bounded.

    Nothing depends on it but speed: a damaged file counts as an empty one.
    The event loop changes them; `save` may come from a thread meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._addresses: dict[PeerId, tuple[str, ...]] = {}
        self._saved: dict[PeerId, tuple[str, ...]] = {}
        self._saving = threading.Lock()
        try:
            found = read_record(path, list[tuple[str, tuple[str, ...]]], _KNOWN_PEERS_BYTES_MAX)
            for peer_id, addresses in (found or [])[: limits.MEMBERS_MAX]:
                public_key_of(PeerId(peer_id))
                self._addresses[PeerId(peer_id)] = addresses[: limits.ADDRESSES_MAX]
        except (OSError, MalformedError):
            self._addresses.clear()
        self._saved = dict(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def newest_first(self) -> list[tuple[PeerId, tuple[str, ...]]]:
        return list(self._addresses.items())

    def saw(self, peers: Mapping[PeerId, tuple[str, ...]]) -> None:
        """Puts peers first, the last one before the others; those that were seen longest ago make
        room for them."""
        self._put({peer: self.in_order(peer, peers[peer]) for peer in reversed([*peers])})

    def reached(self, peer_id: PeerId, address: str) -> None:
        """Puts a peer first, and the address that led to it first among its addresses."""
        others = self._addresses.get(peer_id, ())
        self._put({peer_id: (address, *(other for other in others if other != address))})

    def found(self, peer_id: PeerId, addresses: tuple[str, ...]) -> None:
        """Adds addresses at which a peer may be, behind the one that led to it last."""
        before = self._addresses.get(peer_id, ())
        more = tuple(address for address in addresses if address not in before)
        if more:
            self._put({peer_id: before[:1] + more + before[1:]})

    def in_order(self, peer_id: PeerId, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Addresses of a peer, and before them the one that led to it before."""
        first = self._addresses.get(peer_id, ())[:1]
        return first + tuple(address for address in addresses if address not in first)

    def _put(self, first: Mapping[PeerId, tuple[str, ...]]) -> None:
        kept = {peer: addresses[: limits.ADDRESSES_MAX] for peer, addresses in first.items()}
        kept.update((peer, known) for peer, known in self._addresses.items() if peer not in first)
        while len(kept) > limits.MEMBERS_MAX:
            kept.popitem()
        self._addresses = kept

    def forget(self, peer_id: PeerId) -> None:
        self._addresses.pop(peer_id, None)

    def save(self) -> None:
        """Writes the file if something changed. Raises DiskError."""
        with self._saving:
            addresses = self._addresses.copy()  # at once; more may be seen while it is written
            if list(addresses.items()) == list(self._saved.items()):
                return
            write_atomically(self._path, to_msgpack(list(addresses.items())))
            self._saved = addresses
