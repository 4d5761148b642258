"""The samples of the model on disk: fixed prompts and how states of the run continued them.

Only the node's owner looks at them. A file that is damaged costs the samples and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.protocol.errors import OversizedError
from gossamer.protocol.limits import MIB

ROUNDS_MAX = 12
"""Rounds whose samples are kept: a page that a person reads."""

FILE_BYTES_MAX = 2 * MIB
"""Limit of what is read: 12 rounds of 8 prompts take 1 MB at most."""

log = structlog.get_logger("node")


class Sample(msgspec.Struct, frozen=True):
    """A prompt and its continuation."""

    prompt: str
    text: str


class RoundSamples(msgspec.Struct, frozen=True):
    """What the state after a round wrote."""

    round: int
    samples: tuple[Sample, ...]


class _Samples(msgspec.Struct, frozen=True):
    """The content of the file."""

    run_id: bytes
    rounds: tuple[RoundSamples, ...]


def with_newest(kept: Sequence[RoundSamples], newest: RoundSamples) -> tuple[RoundSamples, ...]:
    """Returns samples with newer ones, oldest round first, at most `ROUNDS_MAX`.

    What is full loses every second round, so that a long run is seen from its beginning. Rounds
    from the newest one on are those of another branch of the chain, or older tries: they go.
    """
    rounds = [each for each in kept if each.round < newest.round]
    if len(rounds) >= ROUNDS_MAX:
        rounds = rounds[::2]
    return (*rounds, newest)


class SamplesFile:
    """The file `samples` of a state directory."""

    def __init__(self, path: Path, run_id: bytes) -> None:
        self._path = path
        self._run_id = run_id

    def load(self) -> tuple[RoundSamples, ...]:
        """Returns the samples of the run, oldest round first; none if the file cannot be used."""
        try:
            data = read_bounded(self._path, FILE_BYTES_MAX)
            if data is None:
                return ()
            found = msgspec.msgpack.decode(data, type=_Samples)
        except (OSError, OversizedError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("the samples begin anew: their file cannot be used", error=str(error))
            return ()
        return found.rounds[-ROUNDS_MAX:] if found.run_id == self._run_id else ()

    def save(self, rounds: tuple[RoundSamples, ...]) -> None:
        """Replaces the file. DiskError."""
        write_atomically(self._path, msgspec.msgpack.encode(_Samples(self._run_id, rounds)))
