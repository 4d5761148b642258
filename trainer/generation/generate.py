"""The process with a model that generates text, never started by people:
`python -m gossamer.trainer.generation.generate [FOLDER]`. `ipc.generation` has its messages.

With a folder it first gives up all writing outside of it, and the network, as the trainer does
(`worker`): it reads a tokenizer, a chat template and weights that strangers made.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import Queue
from typing import IO

import msgspec

from gossamer.trainer.confinement.confine import confine
from gossamer.trainer.ipc import environment, pipe
from gossamer.trainer.ipc.generation import (
    MESSAGE_BYTES_MAX,
    FromGenerator,
    GenerateText,
    Loaded,
    LoadModel,
    StopText,
    ToGenerator,
    frames,
)

_WAITING_MAX = 16
"""Messages that are read ahead. A caller waits for the end of one text before it asks for the
next; only stops come in between."""


def main() -> int:
    """Answers the messages on stdin until its end. Exit code: 0, also after `Refused`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # from a terminal; no traceback for that
    if len(sys.argv) > 1:
        confine(Path(sys.argv[1]))
    source, output = pipe.take_pipes()
    reader = _Reader(source)
    try:
        for answer in _answers(reader):
            output.write(msgspec.json.encode(answer) + b"\n")
            output.flush()
    except BrokenPipeError:
        pass  # nobody reads any more
    return 0


class _Reader:
    """Reads messages in a thread, so that a stop is known while a text is being made."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._messages: Queue[ToGenerator | None] = Queue(_WAITING_MAX)
        self._stopped = -1
        threading.Thread(target=self._read, daemon=True).start()

    def is_stopped(self, number: int) -> bool:
        """Whether nobody wants the rest of a text. Numbers grow."""
        return number <= self._stopped

    def __iter__(self) -> Iterator[ToGenerator]:
        while (message := self._messages.get()) is not None:
            yield message

    def _read(self) -> None:
        while (body := pipe.read(self._stream, MESSAGE_BYTES_MAX)) is not None:
            message = frames.decode(body)
            if isinstance(message, StopText):
                self._stopped = message.number
            else:
                self._messages.put(message)
        self._messages.put(None)


def _answers(reader: _Reader) -> Iterator[FromGenerator]:
    """The messages that answer those of the caller, as they come. A bug is raised."""
    # Torch starts threads, which have to come after the confinement.
    from gossamer.trainer.generation.continuation import Continuation, refusal_of

    model: Continuation | None = None
    for message in reader:
        try:
            if isinstance(message, LoadModel):
                if message.device == "cpu":
                    os.nice(environment.NICENESS)
                model = Continuation(message)
                yield Loaded()
                continue
            if model is None:
                return  # it has been refused, and the caller knows
            if isinstance(message, GenerateText):
                yield from model.answer(message, partial(reader.is_stopped, message.number))
            else:
                model.reload()
                yield Loaded()
        except Exception as error:
            yield refusal_of(error)


if __name__ == "__main__":
    environment.end(main())
