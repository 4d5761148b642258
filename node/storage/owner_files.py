"""What only the owner of a node looks at, kept for its next life: the curve of losses, samples of
the model, and the names of members.

No rule depends on these files. One that is damaged costs what is in it and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import structlog

from gossamer.node.base.disk_health import DiskHealth, write_atomically
from gossamer.node.storage.bounded_file import read_record
from gossamer.node.telemetry.loss_history import Heldout, LossHistory
from gossamer.node.telemetry.status import LossPoint
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.limits import MIB
from gossamer.protocol.wire.statement_checks import check_name

if TYPE_CHECKING:
    # Commands that read a file load no event loop.
    from gossamer.node.base.threads import RunInThread

LOSSES_BYTES_MAX = MIB
"""Limit of what is read: 240 points take about 15 kB."""

ROUNDS_MAX = 12
"""Rounds whose samples are kept: a page that a person reads."""

SAMPLES_BYTES_MAX = 2 * MIB
"""Limit of what is read: 12 rounds of 8 prompts take 1 MB at most."""

NAMES_MAX = 4096
"""Members with a name: as many as a summary of the chain gives credit to. Of more, those that were
first seen go."""

NAMES_BYTES_MAX = 2 * MIB
"""Limit of what is read: an id of 60 bytes, and twice 32 letters of 4 bytes, each."""

log = structlog.get_logger("node")


class _OfRun(msgspec.Struct, frozen=True):
    """The content of a file."""

    run_id: bytes


_Content = TypeVar("_Content", bound=_OfRun)


class _Losses(_OfRun, frozen=True, omit_defaults=True):
    heldout_loss: float | None
    stride: int
    points: tuple[LossPoint, ...]
    heldout_round: int | None = None
    heldout_bits_per_byte: float | None = None

    @property
    def heldout(self) -> Heldout | None:
        """The newest evaluation. Files of earlier versions do not say its round: a point may."""
        loss = self.heldout_loss
        if loss is None:
            return None
        if self.heldout_round is not None:
            return Heldout(self.heldout_round, loss, self.heldout_bits_per_byte)
        for point in reversed(self.points):
            if point.heldout_loss == loss:
                return Heldout(point.round, loss, point.heldout_bits_per_byte)
        return None


class Sample(msgspec.Struct, frozen=True):
    """A prompt and its continuation."""

    prompt: str
    text: str


class RoundSamples(msgspec.Struct, frozen=True):
    """The texts that the state after a round wrote."""

    round: int
    samples: tuple[Sample, ...]


class _Samples(_OfRun, frozen=True):
    rounds: tuple[RoundSamples, ...]


class MemberName(msgspec.Struct, frozen=True):
    """How the owner of a member wants it to be shown. Anybody may take any name and any team."""

    name: str = ""
    team: str = ""


class _Names(_OfRun, frozen=True):
    names: dict[str, MemberName]


class _RunFile:
    """A file of a state directory, with something of one run."""

    def __init__(self, path: Path, run_id: bytes) -> None:
        self._path = path
        self._run_id = run_id

    def _read(
        self,
        content: type[_Content],
        bytes_max: int,
        check: Callable[[_Content], None] = lambda content: None,
    ) -> _Content | None:
        """Returns the content; None if there is none of this run, or if it cannot be used."""
        try:
            found = read_record(self._path, content, bytes_max)
            if found is None:
                return None
            check(found)
        except (OSError, MalformedError) as error:
            log.warning(
                "a file that the owner looks at begins anew: it cannot be used",
                file=self._path.name,
                error=str(error),
            )
            return None
        return found if found.run_id == self._run_id else None

    def _write(self, content: _OfRun) -> None:
        """Replaces the file. DiskError."""
        write_atomically(self._path, to_msgpack(content))


class LossFile(_RunFile):
    """The file `losses` of a state directory."""

    def load(self) -> tuple[LossHistory, Heldout | None]:
        """Returns the curve and the newest evaluation of the run; an empty curve and None if there
        are none."""
        losses = self._read(_Losses, LOSSES_BYTES_MAX)
        if losses is None:
            return LossHistory(), None
        return LossHistory.restored(losses.points, losses.stride), losses.heldout

    def save(self, points: tuple[LossPoint, ...], stride: int, heldout: Heldout | None) -> None:
        """Replaces the file. `points` and `stride`: of the `LossHistory`. Raises DiskError."""
        number, loss, bits = (None, None, None) if heldout is None else heldout
        self._write(_Losses(self._run_id, loss, stride, points, number, bits))


def with_newest(kept: Sequence[RoundSamples], newest: RoundSamples) -> tuple[RoundSamples, ...]:
    """Returns samples with newer ones, oldest round first, at most `ROUNDS_MAX`.

    What is full loses every second round, so that a long run is seen from its beginning. Rounds
    from the newest one on are those of another branch of the chain, or older tries: they go.
    """
    rounds = [each for each in kept if each.round < newest.round]
    if len(rounds) >= ROUNDS_MAX:
        rounds = rounds[::2]
    return (*rounds, newest)


class SamplesFile(_RunFile):
    """The file `samples` of a state directory: fixed prompts, and how states continued them."""

    def load(self) -> tuple[RoundSamples, ...]:
        """Returns the samples of the run, oldest round first; none if there are none."""
        found = self._read(_Samples, SAMPLES_BYTES_MAX)
        return () if found is None else found.rounds[-ROUNDS_MAX:]

    def save(self, rounds: tuple[RoundSamples, ...]) -> None:
        """Replaces the file. DiskError."""
        self._write(_Samples(self._run_id, rounds))


def _check_names(found: _Names) -> None:
    for shown in found.names.values():
        check_name(shown.name)
        check_name(shown.team)


class NamesFile(_RunFile):
    """The file `names` of a state directory: names and teams as each member signed its newest
    ones, also of those away."""

    def load(self) -> dict[str, MemberName]:
        """Returns the names of members of the run by peer id."""
        found = self._read(_Names, NAMES_BYTES_MAX, _check_names)
        return {} if found is None else found.names

    def save(self, names: Mapping[str, MemberName]) -> None:
        """Replaces the file. DiskError."""
        self._write(_Names(self._run_id, dict(names)))


class MemberNames:
    """Keeps the names of members, so that tables of credit show those that are away."""

    def __init__(self, file: NamesFile, health: DiskHealth, run_in_thread: RunInThread) -> None:
        self._file = file
        self._health = health
        self._run_in_thread = run_in_thread
        self.kept: dict[str, MemberName] = {}
        """By peer id; replaced at each change."""

    async def load(self) -> None:
        """Takes over the names of earlier lives."""
        self.kept = await self._run_in_thread(self._file.load)

    async def note(self, present: Mapping[str, MemberName]) -> None:
        """Notes the names of members that are here. Without name and team a member has none any
        more: its owner has taken them back."""
        kept = dict(self.kept)
        for peer, shown in sorted(present.items()):
            if kept.get(peer, MemberName()) == shown:
                continue
            kept.pop(peer, None)  # what is noted anew comes last
            if shown != MemberName():
                kept[peer] = shown
        if kept == self.kept:
            return
        for peer in list(kept)[: max(0, len(kept) - NAMES_MAX)]:
            del kept[peer]
        self.kept = kept
        with self._health.writing("names"):
            await self._run_in_thread(lambda: self._file.save(kept))
