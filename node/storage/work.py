"""The account of this node's own work: what it trained and where it went.

What a committed round took is kept on disk for as many rounds as the manifest lets work be stale:
if the swarm turns out to have gone another way (a split that healed), it is reclaimed, which means
carried again.

Tokens are trained, and then committed (on time or late, as residual) or dropped. What is neither is
*carried*: it lies in `pending` and is part of the next `Ready`. With every change

    trained = committed + dropped + carried        (since this account began)

holds. The account and, where there is any, the residual itself are written to the state directory,
so that a restart loses nothing but the round under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import structlog

from gossamer.node.interface.metrics import Metrics
from gossamer.node.storage.state_dir import write_atomically
from gossamer.protocol import limits
from gossamer.protocol.ids import DIGEST_BYTES, Digest, digest_of
from gossamer.protocol.messages import Span
from gossamer.protocol.state import FloatVector

log = structlog.get_logger("work")


class Account(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tokens by fate, and what is carried."""

    trained: int = 0
    committed: int = 0
    dropped: int = 0
    carried: int = 0
    carried_since_round: int = 0
    """Round in which the oldest carried work was trained; 0 if nothing is carried."""
    head: bytes = b""
    """Committed head up to which the account on disk is true."""
    spans: list[Span] = msgspec.field(default_factory=list)
    """Data behind the carried work that no committed round has counted."""


class _Taken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one committed round took of this node's work."""

    round: int
    tokens: int
    spans: tuple[Span, ...]


class Work:
    """The account with its files and metrics."""

    def __init__(
        self, directory: Path, pending: FloatVector, stale_rounds: int, metrics: Metrics
    ) -> None:
        self._path = directory / "account"
        self._taken_path = directory / "taken"
        self._pending = pending
        self._stale_rounds = stale_rounds
        self._metrics = metrics
        self.account = Account()
        self._saved_carried = 0
        self._taken_path.mkdir(parents=True, exist_ok=True)

    def trained(self, round_number: int, tokens: int, spans: Sequence[Span]) -> None:
        """The trainer finished a round's inner steps."""
        account = self.account
        if account.carried == 0:
            account.carried_since_round = round_number
        account.trained += tokens
        account.carried += tokens
        account.spans = merged([*account.spans, *spans])

    def committed(
        self, head: Digest, round_number: int, tokens: int, spans_counted: bool, vector: FloatVector
    ) -> None:
        """A committed round took `tokens` of what was carried, and `vector` out of `pending`."""
        account = self.account
        tokens = min(tokens, account.carried)  # after a crash some of them are not ours to give
        spans = tuple(account.spans) if spans_counted else ()
        self._keep_taken(head, _Taken(round_number, tokens, spans), vector)
        account.committed += tokens
        account.carried -= tokens
        timing = "on_time" if account.carried_since_round >= round_number else "late"
        self._metrics.tokens_committed.add(timing, tokens)
        if spans_counted:
            account.spans = []
        account.carried_since_round = round_number if account.carried else 0

    def reclaim(self, head: Digest) -> bool:
        """The round of `head` is not in the chain after all: its part of ours is carried again.

        Says whether there was anything of ours. May take long for large models: use a thread.
        """
        path = self._taken_path / head.hex()
        try:
            header, vector = _read(path, _Taken, self._pending.size)
        except FileNotFoundError:
            return False
        except ValueError as error:
            log.warning("work that a lost round took is damaged on disk", error=str(error))
            return False
        self._pending += vector
        path.unlink()
        account = self.account
        account.committed -= header.tokens
        account.carried += header.tokens
        account.spans = merged([*account.spans, *header.spans])
        since = account.carried_since_round or header.round
        account.carried_since_round = min(since, header.round)
        log.info("work of a lost round is carried again", round=header.round, tokens=header.tokens)
        return True

    def _keep_taken(self, head: Digest, header: _Taken, vector: FloatVector) -> None:
        """Not synced to the disk: losing it costs something only after a split and a power cut."""
        path = self._taken_path / head.hex()
        try:
            with open(path, "wb") as file:
                for part in _encoded(header, vector):
                    file.write(part)
        except OSError as error:
            path.unlink(missing_ok=True)
            log.error("what a round took could not be kept", problem=str(error))
        kept = sorted(self._taken_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in kept[: -self._stale_rounds]:
            old.unlink(missing_ok=True)

    def drop(self, reason: str) -> None:
        """What is carried will not be taken: it is too old, or not a number."""
        account = self.account
        log.warning("work is dropped", tokens=account.carried, reason=reason)
        self._metrics.tokens_dropped.add(reason, account.carried)
        self._pending[:] = 0.0
        account.dropped += account.carried
        account.carried = account.carried_since_round = 0
        account.spans = []

    def is_stale(self, next_round: int) -> bool:
        """Whether the carried work missed more rounds than the manifest allows."""
        account = self.account
        return account.carried > 0 and next_round - account.carried_since_round > self._stale_rounds

    @property
    def must_save(self) -> bool:
        """Whether the disk would give a later life work that is gone, or lose work that is not."""
        return self.account.carried > 0 or self._saved_carried > 0

    def save(self, head: Digest) -> None:
        """Writes account and residual as of a committed head. Raises DiskFullError or OSError."""
        self.account.head = head
        write_atomically(self._path, *_encoded(self.account, self._pending))
        self._saved_carried = self.account.carried

    def load(self) -> None:
        """Takes over what an earlier life left behind; a damaged file is reported and left out."""
        try:
            self.account, residual = _read(self._path, Account, self._pending.size)
        except FileNotFoundError:
            return
        except ValueError as error:
            log.warning("the residual on disk is damaged and left out", error=str(error))
            return
        self._pending[:] = residual
        self._saved_carried = self.account.carried


_T = TypeVar("_T")


def _encoded(header: msgspec.Struct, vector: FloatVector) -> tuple[bytes, memoryview]:
    """Digest, header's length and msgpack; and the vector's bytes, none if it is zero."""
    encoded = msgspec.msgpack.encode(header)
    content = vector.astype("<f4", copy=False).data.cast("B") if vector.any() else memoryview(b"")
    front = len(encoded).to_bytes(4, "big") + encoded
    return digest_of(front, content) + front, content


def _read(path: Path, kind: type[_T], num_elements: int) -> tuple[_T, FloatVector]:
    """What `_encoded` gave. FileNotFoundError; ValueError for a damaged file."""
    content = memoryview(path.read_bytes())
    data = content[DIGEST_BYTES:]
    if bytes(content[:DIGEST_BYTES]) != digest_of(data):
        raise ValueError(f"{path} does not fit its digest")
    end = 4 + int.from_bytes(data[:4], "big")
    header = msgspec.msgpack.decode(data[4:end], type=kind)  # its DecodeError is a ValueError
    vector = np.frombuffer(data[end:], dtype="<f4")
    if vector.size == 0:
        return header, np.zeros(num_elements, dtype=np.float32)
    if vector.size != num_elements or not np.isfinite(vector).all():
        raise ValueError(f"{path.name} is of another model or damaged")
    return header, vector.astype(np.float32, copy=False)


def merged(spans: Sequence[Span]) -> list[Span]:
    """The same tokens in as few spans as possible, the newest `SPANS_MAX` of them."""
    result: list[Span] = []
    for span in sorted(set(spans), key=lambda span: (span.shard, span.start, span.stop)):
        last = result[-1] if result else None
        if last is not None and last.shard == span.shard and span.start <= last.stop:
            result[-1] = Span(span.shard, last.start, max(last.stop, span.stop))
        else:
            result.append(span)
    return result[-limits.SPANS_MAX :]
