"""What the block store knows of its blocks without the disk: their sizes, order of use, and
pins. Content and files are in `blocks`."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable

from gossamer.protocol.ids import Digest


class BlockIndex:
    """The blocks of one store. Thread-safe. No call touches the disk, so the event loop never waits
    for it. What changes the blocks is for the store alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Digest, int] = OrderedDict()
        """Bytes of each block, the least recently used first."""
        self._used_bytes = 0
        self.num_changes = 0
        """How often a block has come or gone: as long as it stays, the same blocks are here."""
        self._pins: dict[str, frozenset[Digest]] = {}
        self._pin_counts: Counter[Digest] = Counter()

    # Blocks

    def has(self, digest: Digest) -> bool:
        """Returns whether the block is here, as far as is known without reading it."""
        return self.size(digest) is not None

    def size(self, digest: Digest) -> int | None:
        """Bytes of a block; None if it is not here."""
        with self._lock:
            return self._sizes.get(digest)

    def missing(self, digests: Iterable[Digest]) -> list[Digest]:
        """Returns those of the digests whose blocks are not here, each once, in their order."""
        with self._lock:
            return [digest for digest in dict.fromkeys(digests) if digest not in self._sizes]

    def _digests(self) -> list[Digest]:
        """All blocks, the least recently used first."""
        with self._lock:
            return list(self._sizes)

    def used_bytes(self) -> int:
        """Sum of the blocks' sizes."""
        with self._lock:
            return self._used_bytes

    def pinned_bytes(self) -> int:
        """Sum of the sizes of the blocks that are pinned: they may exceed the quota."""
        with self._lock:
            return sum(self._sizes.get(digest, 0) for digest in self._pin_counts)

    def num_blocks(self) -> int:
        """Number of blocks."""
        with self._lock:
            return len(self._sizes)

    def num_pinned(self) -> int:
        """Number of blocks that are pinned."""
        with self._lock:
            return sum(1 for digest in self._pin_counts if digest in self._sizes)

    def _add(self, digest: Digest, num_bytes: int) -> None:
        """Notes a block that was written, as the most recently used one."""
        with self._lock:
            self.num_changes += 1
            self._used_bytes += num_bytes - self._sizes.pop(digest, 0)
            self._sizes[digest] = num_bytes

    def _restore(self, digest: Digest, num_bytes: int) -> None:
        """Notes a forgotten block whose file is here all the same, as the least recently used
        one."""
        with self._lock:
            if digest not in self._sizes:
                self.num_changes += 1
                self._used_bytes += num_bytes
                self._sizes[digest] = num_bytes
                self._sizes.move_to_end(digest, last=False)

    def _use(self, digest: Digest) -> bool:
        """Makes a block the most recently used one, and returns whether it is here."""
        with self._lock:
            is_here = digest in self._sizes
            if is_here:
                self._sizes.move_to_end(digest)
            return is_here

    def _forget(self, digest: Digest) -> int | None:
        """Forgets a block, pinned or not, and returns its bytes; None if it was not here."""
        with self._lock:
            return self._drop(digest)

    def _forget_oldest(self, num_bytes: int, keep: Digest | None) -> dict[Digest, int]:
        """Forgets the least recently used blocks until their sum is at least `num_bytes` or all
        others are pinned.

        Args:
            keep: is not forgotten.

        Returns:
            The bytes of each forgotten block.
        """
        forgotten: dict[Digest, int] = {}
        freed_bytes = 0
        with self._lock:
            for digest, size in self._sizes.items():
                if freed_bytes >= num_bytes:
                    break
                if digest not in self._pin_counts and digest != keep:
                    forgotten[digest] = size
                    freed_bytes += size
            for digest in forgotten:
                self._drop(digest)
        return forgotten

    def _drop(self, digest: Digest) -> int | None:
        self.num_changes += 1
        num_bytes = self._sizes.pop(digest, None)
        self._used_bytes -= num_bytes or 0
        return num_bytes

    # Pins

    def pin(self, name: str, digests: Iterable[Digest]) -> None:
        """Keeps these blocks from eviction until `unpin(name)`, instead of those that the name
        pinned before.

        They need not be here yet: pin before fetching.
        """
        pinned = frozenset(digests)
        with self._lock:
            if self._pins.get(name) == pinned:
                return
            self._drop_pins(name)
            self._pins[name] = pinned
            self._pin_counts.update(pinned)

    def unpin(self, name: str) -> None:
        """Allows eviction again. Nothing happens if there is no such name."""
        with self._lock:
            self._drop_pins(name)

    def _unpin_and_forget(self, name: str) -> dict[Digest, int]:
        """Removes the pins of a name and forgets the blocks that no other name pins.

        Both happen at once: a thread that pins such a block and then asks for it is told that it is
        missing, and puts it again.

        Returns:
            The bytes of each forgotten block.
        """
        with self._lock:
            blocks = self._pins.get(name, frozenset())
            self._drop_pins(name)
            unpinned = [digest for digest in blocks if digest not in self._pin_counts]
            sizes = {digest: self._drop(digest) for digest in unpinned}
        return {digest: num_bytes for digest, num_bytes in sizes.items() if num_bytes is not None}

    def _drop_pins(self, name: str) -> None:
        for digest in self._pins.pop(name, ()):
            self._pin_counts[digest] -= 1
            if not self._pin_counts[digest]:
                del self._pin_counts[digest]
