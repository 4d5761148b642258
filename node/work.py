"""The account of this node's own work: what it trained and where it went.

Tokens are trained, and then committed (on time or late, as residual) or dropped. What is neither is
*carried*: it lies in `pending` and is part of the next `Ready`. With every change

    trained = committed + dropped + carried        (since this account began)

holds. The account and, where there is any, the residual itself are written to the state directory,
so that a restart loses nothing but the round under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import structlog

from gossamer.node.metrics import Metrics
from gossamer.node.state_dir import write_atomically
from gossamer.protocol import limits
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
    spans: list[Span] = msgspec.field(default_factory=list)
    """Data behind the carried work that no committed round has counted."""


class Work:
    """The account with its file and metrics."""

    def __init__(self, path: Path, pending: FloatVector, metrics: Metrics) -> None:
        self._path = path
        self._pending = pending
        self._metrics = metrics
        self.account = Account()

    def trained(self, round_number: int, tokens: int, spans: Sequence[Span]) -> None:
        """The trainer finished a round's inner steps."""
        account = self.account
        if account.carried == 0:
            account.carried_since_round = round_number
        account.trained += tokens
        account.carried += tokens
        account.spans = merged([*account.spans, *spans])

    def committed(self, round_number: int, tokens: int, spans_counted: bool) -> None:
        """A committed round took `tokens` of what was carried."""
        account = self.account
        account.committed += tokens
        account.carried -= tokens
        timing = "on_time" if account.carried_since_round >= round_number else "late"
        self._metrics.tokens_committed.add(timing, tokens)
        if spans_counted:
            account.spans = []
        account.carried_since_round = round_number if account.carried else 0

    def drop(self, reason: str) -> None:
        """What is carried will not be taken: it is too old, or not a number."""
        account = self.account
        log.warning("work is dropped", tokens=account.carried, reason=reason)
        self._metrics.tokens_dropped.add(reason, account.carried)
        self._pending[:] = 0.0
        account.dropped += account.carried
        account.carried = account.carried_since_round = 0
        account.spans = []

    def is_stale(self, next_round: int, stale_rounds: int) -> bool:
        """Whether the carried work missed more rounds than the manifest allows."""
        account = self.account
        return account.carried > 0 and next_round - account.carried_since_round > stale_rounds

    def save(self) -> None:
        """Writes account and residual. Raises DiskFullError or OSError."""
        residual = self._pending.tobytes() if self._pending.any() else b""
        header = msgspec.msgpack.encode(self.account)
        write_atomically(self._path, len(header).to_bytes(4, "big") + header + residual)

    def load(self) -> None:
        """Takes over what an earlier life left behind; a damaged file is reported and left out."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        try:
            length = int.from_bytes(data[:4], "big")
            account = msgspec.msgpack.decode(data[4 : 4 + length], type=Account)
            residual = np.frombuffer(data[4 + length :], dtype="<f4")
            if residual.size not in (0, self._pending.size):
                raise ValueError("residual of another model")
        except (ValueError, msgspec.DecodeError) as error:
            log.warning("the residual on disk is damaged and left out", error=str(error))
            return
        # Work that was being done when the process died is gone with it.
        self.account = account
        if residual.size:
            self._pending[:] = residual


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
