"""Training sequences cut from the token shards that the daemon queued, with an account of what was
consumed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from gossamer.protocol import limits
from gossamer.protocol.shard_index import PROMPT_BIT
from gossamer.trainer.ipc.messages import DATA_RANGES_MAX, Span

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


class DataError(ValueError):
    """A shard or a range of one that cannot be trained on. The message says which and why."""


def load_shard(path: str | Path, token_bytes: int, vocabulary: int) -> Tokens:
    """The tokens of a shard file (zstd over little-endian unsigned integers): (num_tokens,).

    Those of four bytes may have `PROMPT_BIT`.

    Raises:
        DataError: not readable, not such a file, over the limits, or a token outside the
        vocabulary.
    """
    bytes_max = limits.SHARD_TOKENS_MAX * token_bytes
    try:
        with open(path, "rb") as file:
            compressed = file.read(limits.BLOCK_BYTES_MAX + 1)
        if len(compressed) > limits.BLOCK_BYTES_MAX:
            raise DataError(f"shard {path} has more than {limits.BLOCK_BYTES_MAX} bytes")
        # A frame that states its length is decompressed whatever `max_output_size` says.
        if zstandard.frame_content_size(compressed) > bytes_max:
            raise DataError(f"shard {path} would have more than {limits.SHARD_TOKENS_MAX} tokens")
        raw = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=bytes_max)
    except OSError as error:
        raise DataError(f"cannot read shard {path}: {error.strerror}") from error
    except zstandard.ZstdError as error:
        raise DataError(f"shard {path} is damaged: {error}") from error
    if len(raw) % token_bytes:
        raise DataError(f"shard {path} has {len(raw)} bytes, not a multiple of {token_bytes}")
    tokens: Tokens = np.frombuffer(raw, dtype="<u2" if token_bytes == 2 else "<u4")
    numbers = tokens & np.uint32(PROMPT_BIT - 1) if token_bytes == 4 else tokens
    highest = int(numbers.max()) if len(numbers) else 0
    if highest >= vocabulary:
        raise DataError(f"shard {path} has token {highest}; the vocabulary has {vocabulary}")
    return tokens


def num_targets(sequences: NDArray[np.int64]) -> int:
    """Tokens that the model is trained to write, in sequences of shape (num_sequences, T + 1)."""
    return int(np.count_nonzero(sequences[:, 1:] < PROMPT_BIT))


def add_span(spans: list[Span], span: Span) -> None:
    """Appends a span, merged with the last one where it follows on from it."""
    shard, start, stop = span
    if spans and spans[-1][0] == shard and spans[-1][2] == start:
        spans[-1] = (shard, spans[-1][1], stop)
    else:
        spans.append(span)


@dataclass
class _Range:
    shard: int
    path: str
    position: int
    stop: int


@dataclass(frozen=True)
class Batch:
    """Sequences of one inner step and the data that they used up."""

    sequences: NDArray[np.int64]
    """(num_sequences, context + 1): inputs are [:, :-1], targets those of [:, 1:] without
    `PROMPT_BIT`."""
    spans: tuple[Span, ...]


class DataQueue:
    """Ranges of shards in the order in which they came, cut into sequences of `context` + 1 tokens.

    The founder shuffled sequences of this length, so the one behind goes on with another text, and
    none takes its last target from there. A tail that is too short for a sequence is skipped and
    counted as consumed.
    """

    def __init__(self, context: int, token_bytes: int, vocabulary: int) -> None:
        self._sequence = context + 1
        self._token_bytes = token_bytes
        self._vocabulary = vocabulary
        self._ranges: deque[_Range] = deque()
        self._cut: list[tuple[NDArray[np.int64], list[Span]]] = []
        self._skipped: list[Span] = []
        self._loaded: tuple[str, Tokens] | None = None

    def push(self, shard: int, path: str, start: int, stop: int) -> None:
        """Queues tokens `start` to `stop`; the file is opened when its turn comes.

        Raises:
            DataError: an empty or negative range, or more than `DATA_RANGES_MAX` are queued.
        """
        if not 0 <= start < stop:
            raise DataError(f"tokens {start} to {stop} of shard {shard} are not a range")
        if len(self._ranges) >= DATA_RANGES_MAX:
            raise DataError(f"more than {DATA_RANGES_MAX} ranges of data are queued")
        self._ranges.append(_Range(shard, path, start, stop))

    def forget(self) -> None:
        """Drops what `take` has not given out."""
        self._ranges.clear()
        self._cut.clear()
        self._skipped.clear()
        self._loaded = None

    @property
    def tokens_queued(self) -> int:
        """Tokens not yet given out, short tails among them."""
        queued = sum(piece.stop - piece.position for piece in self._ranges)
        return queued + len(self._cut) * self._sequence

    def take(self, num_sequences: int) -> Batch | None:
        """The next sequences, or None (and nothing is consumed) if there are not so many.

        Raises:
            DataError: see `load_shard`; or a range that goes past the end of its shard.
        """
        while len(self._cut) < num_sequences:
            if not self._ranges:
                return None
            self._cut_one()
        taken, self._cut = self._cut[:num_sequences], self._cut[num_sequences:]
        spans: list[Span] = []
        for _, pieces in taken:
            for span in pieces:
                add_span(spans, span)
        return Batch(np.stack([sequence for sequence, _ in taken]), tuple(spans))

    def _cut_one(self) -> None:
        """Moves one sequence from the first range to `_cut`. A range that is too short only goes
        away, and its tokens are reported with the sequence behind it."""
        piece = self._ranges[0]
        tokens = self._load(piece.path)
        if piece.stop > len(tokens):
            raise DataError(
                f"shard {piece.path} has {len(tokens)} tokens; {piece.stop} were to be used"
            )

        start, end = piece.position, piece.position + self._sequence
        if end <= piece.stop:
            consumed = end if end + self._sequence <= piece.stop else piece.stop
            spans = [*self._skipped, (piece.shard, start, consumed)]
            self._cut.append((tokens[start:end].astype(np.int64), spans))
            self._skipped = []
            piece.position = consumed
        else:
            self._skipped.append((piece.shard, start, piece.stop))
            piece.position = piece.stop
        if piece.position == piece.stop:
            self._ranges.popleft()

    def _load(self, path: str) -> Tokens:
        if self._loaded is None or self._loaded[0] != path:
            self._loaded = (path, load_shard(path, self._token_bytes, self._vocabulary))
        return self._loaded[1]
