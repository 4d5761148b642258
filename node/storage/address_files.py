"""Two files of a state directory: the port that others reach this node by, and the addresses of
peers that its owner gave."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from gossamer.node.base.address_text import parse_link
from gossamer.node.base.disk_health import write_atomically
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.protocol import limits

_PORT_BYTES_MAX = 256

SEEDS_MAX = 64
"""Addresses of the owner that are kept: the links of several joins."""

_SEEDS_BYTES_MAX = SEEDS_MAX * (limits.ADDRESS_CHARACTERS_MAX + 1)


class AddressFiles:
    """The files `port` and `seeds`. A file that cannot be read counts as none."""

    def __init__(self, root: Path) -> None:
        self.port_path = root / "port"
        self.seeds_path = root / "seeds"

    def write_port(self, port: int) -> None:
        """Keeps the port that others reach this node by. DiskError."""
        if port != self.read_port():
            write_atomically(self.port_path, f"{port}\n".encode())

    def read_port(self) -> int:
        """The port of the last start, for addresses that leave it open; 0 if there is none."""
        try:
            data = read_bounded(self.port_path, _PORT_BYTES_MAX)
        except OSError:
            return 0  # the kernel chooses again
        text = (data or b"").strip()
        return int(text) if text.isdigit() and int(text) < 65_536 else 0

    def write_seeds(self, addresses: Sequence[str], *, has_joined: bool = False) -> None:
        """Keeps the addresses that the owner gave: they are dialled whatever they are, also in
        later lives. The newest `SEEDS_MAX` stay. DiskError.

        Args:
            has_joined: these addresses have led to the run. Those of earlier attempts go: they may
                be of another run, which the owner did not join in the end.
        """
        before = self.read_seeds()
        kept = () if has_joined else before
        after = tuple(dict.fromkeys((*addresses, *kept)))[:SEEDS_MAX]
        if after != before:
            write_atomically(self.seeds_path, "".join(f"{each}\n" for each in after).encode())

    def read_seeds(self) -> tuple[str, ...]:
        """The addresses that the owner gave, the newest first. Lines that are none are left
        out."""
        try:
            data = read_bounded(self.seeds_path, _SEEDS_BYTES_MAX)
        except OSError:
            return ()  # they have to be typed again
        found = []
        for line in (data or b"").decode("utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                found.append(parse_link(line).address)
        return tuple(found[:SEEDS_MAX])
