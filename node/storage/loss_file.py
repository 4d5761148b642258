"""The curve of losses on disk, so that a restart does not begin it anew.

Only the node's owner looks at the curve. A file that is damaged costs the curve and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.telemetry.status import LossHistory, LossPoint
from gossamer.protocol.limits import MIB

FILE_BYTES_MAX = MIB
"""Limit of what is read: 240 points take about 15 kB."""

log = structlog.get_logger("node")


class _Losses(msgspec.Struct, frozen=True):
    """The content of the file."""

    run_id: bytes
    heldout_loss: float | None
    stride: int
    points: tuple[LossPoint, ...]


class LossFile:
    """The file `losses` of a state directory."""

    def __init__(self, path: Path, run_id: bytes) -> None:
        self._path = path
        self._run_id = run_id

    def load(self) -> tuple[LossHistory, float | None]:
        """Returns the curve and the newest held-out loss of the run (in nats a token); an empty
        curve and None if there are none, or if the file cannot be used."""
        try:
            with open(self._path, "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            losses = msgspec.msgpack.decode(data, type=_Losses)
        except FileNotFoundError:
            return LossHistory(), None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning(
                "the curve of losses begins anew: its file cannot be used", error=str(error)
            )
            return LossHistory(), None
        if losses.run_id != self._run_id:
            return LossHistory(), None
        return LossHistory.restored(losses.points, losses.stride), losses.heldout_loss

    def save(self, points: tuple[LossPoint, ...], stride: int, heldout_loss: float | None) -> None:
        """Replaces the file. `points` and `stride`: of the `LossHistory`. Raises DiskError."""
        losses = _Losses(self._run_id, heldout_loss, stride, points)
        write_atomically(self._path, msgspec.msgpack.encode(losses))
