"""TensorBoard and wandb as places of a run's log, each through its own package.

The packages are extras and are imported only by a node that writes for them, in the thread that
writes: an import takes seconds. Nothing leaves this machine. wandb runs offline, and what it would
note of the machine and its program is off.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

from gossamer.node.base.settings.setting_values import LogPlace
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.telemetry.run_log import Place, Record

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

FILES_BYTES_MAX = 1024 * 1024 * 1024
"""Of the event files of one run at one node, a hundred days of steps. Beyond it only rounds are
written: a few hundred bytes each."""

_EXTRAS = {"tensorboard": "tensorboard", "wandb:offline": "wandb"}
"""The extra for each place, which has the name of its package."""

assert set(_EXTRAS) == set(get_args(LogPlace))


def require_packages(places: Sequence[str]) -> None:
    """Raises ConfigError for places whose packages are not installed."""
    missing = [place for place in places if importlib.util.find_spec(_EXTRAS[place]) is None]
    if missing:
        raise ConfigError(
            [
                f"log_to: {place} takes the package {_EXTRAS[place]}, which is not installed: "
                f"pip install 'gossamer[{_EXTRAS[place]}]'"
                for place in missing
            ]
        )


def place_of(name: str, folder: Path, run: str, config: dict[str, str | int]) -> Place:
    """Returns a place.

    Args:
        name: a `LogPlace`.
        folder: of all logs.
        run: name of this node's part in its run, without characters that a file cannot have. It
            stays the same over restarts.
        config: facts about the run.
    """
    if name == "tensorboard":
        return TensorBoardPlace(folder / "tensorboard" / run)
    return WandbPlace(folder, run, config)


class TensorBoardPlace:
    """Event files in one folder, one for each life of the node: TensorBoard reads them as one run.

    A file is only appended to. The end of a life may leave half a record, so the next life does not
    write behind it.
    """

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: RecordWriter | None = None
        self._before_bytes = 0
        """Of the files of earlier lives."""
        self._file: BinaryIO | None = None
        self._working = threading.Lock()

    def write(self, records: Sequence[Record]) -> None:
        """See `Place`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        with self._working:
            writer = self._opened(records[0].unix_seconds)
            for record in records:
                if record.name == "step" and self._num_bytes >= FILES_BYTES_MAX:
                    continue
                values = [
                    Summary.Value(tag=tag, simple_value=value)
                    for tag, value in record.values.items()
                ]
                event = Event(
                    wall_time=record.unix_seconds,
                    step=record.number,
                    summary=Summary(value=values),
                )
                writer.write(event.SerializeToString())
            writer.flush()

    @property
    def _num_bytes(self) -> int:
        return self._before_bytes + (0 if self._file is None else self._file.tell())

    def _opened(self, unix_seconds: float) -> RecordWriter:
        if self._writer is None:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter

            self._folder.mkdir(parents=True, exist_ok=True)
            self._before_bytes = sum(path.stat().st_size for path in self._folder.iterdir())
            # TensorBoard reads the files of a folder in the order of their names.
            name = f"events.out.tfevents.{int(unix_seconds):010d}.gossamer.{os.getpid()}"
            self._file = (self._folder / name).open("ab")
            self._writer = RecordWriter(self._file)
            first = Event(wall_time=unix_seconds, file_version="brain.Event:2")
            self._writer.write(first.SerializeToString())
        return self._writer

    def close(self) -> None:
        """See `Place`."""
        with self._working:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()


class WandbPlace:
    """A folder that `wandb sync` sends. Every life makes one, of the same run."""

    name = "wandb:offline"

    def __init__(self, folder: Path, run: str, config: dict[str, str | int]) -> None:
        self._folder = folder
        self._name = run
        self._config = config
        self._run: Any = None
        self._working = threading.Lock()

    def write(self, records: Sequence[Record]) -> None:
        """See `Place`."""
        with self._working:
            if self._run is None:
                self._run = self._begun()
            for record in records:
                self._run.log({record.name: record.number, **record.values})

    def _begun(self) -> Any:
        # Before the import: it reports its own errors to its maker otherwise.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            mode="offline",
            project="gossamer",
            id=self._name,
            name=self._name,
            resume="allow",
            dir=str(self._folder),
            config=self._config,
            settings=wandb.Settings(
                console="off",
                silent=True,
                save_code=False,
                disable_git=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        # wandb's own axis counts calls; these are the run's, which go on over restarts.
        for axis in ("step", "round"):
            run.define_metric(axis, hidden=True)
            run.define_metric(f"{axis}/*", step_metric=axis)
        return run

    def close(self) -> None:
        """See `Place`."""
        with self._working:
            run, self._run = self._run, None
            if run is not None:
                run.finish()
