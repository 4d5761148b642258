"""Text into tokens with all cores.

A table of words (`words`) belongs to one thread of Python. So each further core has a process of
its own, `python -m` this module. It reads the tokenizer's file and then batches of texts from
stdin, and writes the tokens of each to stdout. What comes out does not depend on their number.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import IO

import msgspec
import numpy as np

from gossamer.protocol.limits import MIB
from gossamer.trainer.ipc import pipe
from gossamer.trainer.ipc.control_groups import group_cores
from gossamer.trainer.text.sources.corpus_errors import CorpusError
from gossamer.trainer.text.tokenizers.tokens import TokenVector
from gossamer.trainer.text.tokenizers.words import EncoderFile, TextEncoder

PROCESSES_MAX = 8
"""More have nothing to do: what reads the text and packs the tokens is one process."""

BYTES_A_PROCESS = 16 * MIB
"""Text for which a process is worth its start, half a second of a core."""

BATCHES_AHEAD = 2
"""Batches for each process that are read before their tokens are needed, so that none waits."""

_MESSAGE_BYTES_MAX = 256 * MIB
"""The largest is the answer to a batch with a document of 16 MiB, 4 bytes for each token, and these
are at most as many as its bytes."""

Batch = list[bytes]


def num_cores() -> int:
    """Returns how many cores text can be encoded on."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, PROCESSES_MAX, group_cores() or cores)


def num_processes(num_bytes: int) -> int:
    """Returns how many processes so much text is worth; below 2 it is best encoded here."""
    return min(num_cores(), num_bytes // BYTES_A_PROCESS)


class Encoders:
    """Processes that encode text with one tokenizer. They end with `close`, and with their
    parent."""

    def __init__(self, file: EncoderFile, number: int) -> None:
        self._processes = [_Encoder(file) for _ in range(number)]
        self._idle: SimpleQueue[_Encoder] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(number)

    def close(self) -> None:
        for process in self._processes:
            process.kill()  # it holds nothing, and a thread that waits for it goes on
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()

    def encode(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, list[TokenVector]]]:
        """Yields each batch with its tokens, in their order. Raises CorpusError: a process died."""
        under_way: deque[tuple[Batch, Future[list[TokenVector]]]] = deque()
        for batch in batches:
            under_way.append((batch, self._threads.submit(self._tokens, batch)))
            if len(under_way) > BATCHES_AHEAD * len(self._processes):
                done, tokens = under_way.popleft()
                yield done, tokens.result()
        while under_way:
            done, tokens = under_way.popleft()
            yield done, tokens.result()

    def _tokens(self, batch: Batch) -> list[TokenVector]:
        """Has an idle process encode a batch; in a thread, of which there is one for each."""
        process = self._idle.get()
        try:
            return process.encode(batch)
        finally:  # a dead one as well: the next batch that gets it fails, and waits for nothing
            self._idle.put(process)


class _Encoder:
    """One of the processes."""

    def __init__(self, file: EncoderFile) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._untold: EncoderFile | None = file
        """What it is told first."""

    def encode(self, batch: Batch) -> list[TokenVector]:
        """Raises CorpusError: the process died."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            if self._untold is not None:
                _write(stdin, self._untold)
                self._untold = None
            _write(stdin, batch)
            data = pipe.read(stdout, _MESSAGE_BYTES_MAX)
        except OSError as error:
            raise self._died() from error
        if data is None:
            raise self._died()
        vectors = msgspec.msgpack.decode(data, type=list[bytes])
        return [np.frombuffer(vector, "<u4").astype(np.uint32, copy=False) for vector in vectors]

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Waits for the end of a process that was killed."""
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):  # what was not written yet has no reader
                stream.close()

    def _died(self) -> CorpusError:
        return CorpusError(
            f"a process that turns text into tokens ended with exit status "
            f"{self._process.wait()}; if memory is short, end other programs, or use less "
            "text (corpus.max_bytes)"
        )


def _write(stream: IO[bytes], message: EncoderFile | Batch) -> None:
    pipe.write(stream, msgspec.msgpack.encode(message), _MESSAGE_BYTES_MAX)


def main() -> int:
    """Encodes what stdin says, until it ends."""
    told = pipe.read(sys.stdin.buffer, _MESSAGE_BYTES_MAX)
    if told is None:
        return 0
    file = msgspec.msgpack.decode(told, type=EncoderFile)
    tokenizer = TextEncoder(file.open(), file)
    while (data := pipe.read(sys.stdin.buffer, _MESSAGE_BYTES_MAX)) is not None:
        vectors = tokenizer.encode(msgspec.msgpack.decode(data, type=list[bytes]))
        answer = [vector.astype("<u4", copy=False).tobytes() for vector in vectors]
        with suppress(BrokenPipeError):  # stdin says that nobody is there
            _write(sys.stdout.buffer, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
