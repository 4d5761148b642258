"""The journal of a node's own work: the account as of its newest event, in one small file.

Two threads write to it: the one in which an event of the account ends, and the event loop, which
notes inner steps at any time. One lock lets one of them write at a time, and what is written is put
together under that lock. So the newest content is the last one, and each is a whole event: an inner
step adds to the event before, and shows nothing of one that a thread is still about.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog
from blake3 import blake3

from gossamer.node.base.disk_health import TEMPORARY_SUFFIX
from gossamer.node.base.threads import num_usable_cores
from gossamer.protocol.accounting.account_state import AccountState
from gossamer.protocol.decoding import ArrayStruct
from gossamer.protocol.ids import DIGEST_BYTES
from gossamer.protocol.state.digest import FloatVector, float_bytes

VERSION = 1
"""Version of the files. A file of another version is ignored."""

JOURNAL_SECONDS = 0.5
"""Interval at which the journal is written while a round is trained, however quick its steps are.
The event loop waits for it: 2 ms on a slow file system, and as long again if a thread is just
writing. So a kill makes unknown at most the work of half a second."""

WAIT_SHARE = 0.05
"""Part of the time that the event loop may wait for the journal. On a disk that takes half a second
for a file, peers and the owner would wait for this node all the time. There the journal is written
less often, and a kill makes more unknown."""

JOURNAL_SECONDS_MAX = 60.0
"""Upper bound on that interval. A disk that hung once may be quick again."""

_HASH_THREADS_MAX = 8
"""Threads that look after one vector: they hash it faster than memory takes it."""

_HASH_THREAD_ELEMENTS = 2**20
"""Values for each of these threads: one takes 0.1 ms to start, and 3 ms to hash so many."""

log = structlog.get_logger("work")


class FileHeader(ArrayStruct, frozen=True):
    """The header before the account in `journal` and `pending`."""

    version: int
    pending: int
    """Number of the `pending` that is meant; each new one has a higher one."""
    event: int
    """Number of the newest event."""
    state: AccountState | None
    """State of the account; None before the vector of an offer."""


class Journal:
    """The file. Thread-safe."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """`clock`: local seconds. Nothing is read or written before the first event or step."""
        self.path = path
        self._temporary = path.with_name(".journal" + TEMPORARY_SUFFIX)
        self._clock = clock
        self._writing = threading.Lock()
        self._pending, self._event = 0, 0
        self._state = msgspec.msgpack.encode(AccountState())
        """The account as of the newest event, encoded: most events are followed by another event
        and not by an inner step."""
        self._next_seconds = -math.inf
        """Time from which on the journal is written for an inner step."""

    def note(self, pending: int, event: int, state: AccountState) -> None:
        """An event of the account is over. Other threads change no more than `under_way` of
        `state` meanwhile."""
        with self._writing:
            self._pending, self._event = pending, event
            self._state = msgspec.msgpack.encode(state)
            self._write(state)

    def stepped(self, under_way: int) -> None:
        """An inner step was done, and so many tokens of the round have been trained."""
        began = self._clock()
        if began < self._next_seconds:
            return
        with self._writing:
            state = msgspec.msgpack.decode(self._state, type=AccountState)
            state.under_way = under_way
            self._write(state)
        ended = self._clock()
        seconds = min((ended - began) / WAIT_SHARE, JOURNAL_SECONDS_MAX)
        self._next_seconds = max(began + JOURNAL_SECONDS, ended + seconds)

    def _write(self, state: AccountState) -> None:
        header = FileHeader(VERSION, self._pending, self._event, state)
        try:
            with open(self._temporary, "wb") as file:
                for part in encoded(header, None):
                    file.write(part)
            os.replace(self._temporary, self.path)
        except OSError as error:
            # Those that write what must not be missing report a disk that takes nothing.
            log.debug("the account of work was not written", problem=str(error))


def copy_of(state: AccountState) -> AccountState:
    """Returns a copy that shares nothing with the state."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=AccountState)


def front_of(header: FileHeader) -> bytes:
    """Returns the header's length and msgpack."""
    data = msgspec.msgpack.encode(header)
    return len(data).to_bytes(4) + data


def encoded(header: FileHeader, vector: FloatVector | None) -> tuple[bytes, memoryview]:
    """Digest, header's length and msgpack; and the vector's bytes, none if it is zero."""
    content = memoryview(b"")
    if vector is not None and vector.any():
        content = float_bytes(vector)
    front = front_of(header)
    hasher = _hasher(0 if vector is None else vector.size)
    hasher.update(front)
    hasher.update(content)
    return hasher.digest() + front, content


def _hasher(num_elements: int) -> blake3:
    """Returns a hasher for a vector of that length. Several threads look after a large one."""
    wanted = min(_HASH_THREADS_MAX, num_elements // _HASH_THREAD_ELEMENTS)
    return blake3(max_threads=min(wanted, num_usable_cores()) if wanted > 1 else 1)


def write_with_digest(
    path: Path, front: bytes, pieces: Iterable[FloatVector], num_elements: int
) -> None:
    """Writes what `encoded` gives, with the vector in pieces: no copy of it is made.

    A file that is not written to its end does not fit its digest. Raises OSError.

    Args:
        num_elements: length of all pieces together. It decides how many threads hash them.
    """
    hasher = _hasher(num_elements)
    hasher.update(front)
    with open(path, "wb") as file:
        file.write(bytes(DIGEST_BYTES))
        file.write(front)
        for piece in pieces:
            content = float_bytes(piece)
            hasher.update(content)
            file.write(content)
        file.seek(0)
        file.write(hasher.digest())
