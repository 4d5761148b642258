"""The process of a further device, started by a trainer's first process and never by people:
`python -m gossamer.trainer.ranks.follower`. `messages` has what it says and hears.

It has the model without an optimiser. For each step it gets the parameters, and gives the gradient
of its sequences. It inherits from the first process what that gave up (`confinement`), and gives up
the network itself when it is connected.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
import traceback
from contextlib import suppress
from typing import IO

import msgspec
import numpy as np

from gossamer.trainer.compiling.compiler import Compiler
from gossamer.trainer.confinement.confine import take_network
from gossamer.trainer.confinement.system_calls import end_with_parent
from gossamer.trainer.inner_step.gradients import Gradients, TrainerError
from gossamer.trainer.ipc import environment, pipe
from gossamer.trainer.ipc.messages import Limits
from gossamer.trainer.model import decoder_on
from gossamer.trainer.ranks import messages
from gossamer.trainer.ranks.group import Group
from gossamer.trainer.resources.device import OWNER_LIMITS, is_out_of_memory, take_device
from gossamer.trainer.resources.passes import Passes, passes_of

_INBOX_MAX = 8
"""Messages that are read ahead: the first process waits for answers, but not after Limits."""


class Follower:
    """Answers the first process until the end of stdin."""

    def __init__(self, source: IO[bytes], output: IO[bytes]) -> None:
        self._source, self._output = source, output
        self._inbox: queue.Queue[messages.ToFollower] = queue.Queue(_INBOX_MAX)
        self._passes: Passes | None = None

    def read(self) -> None:
        """Reads messages until the end of stdin, and then ends the process. Runs in a thread of its
        own."""
        with suppress(ValueError, msgspec.DecodeError):
            while (body := messages.read(self._source)) is not None:
                self._inbox.put(messages.to_follower.decode(body))
        if self._passes is not None:
            with suppress(OSError):
                self._passes.withdraw()
        # The main thread may be in a long pass, whose result nothing needs any more.
        os._exit(0)

    def run(self) -> None:
        """Works until the process ends.

        Raises:
            TrainerError, DeviceError, DataError, OSError: it cannot go on.
        """
        start = self._inbox.get()
        assert isinstance(start, messages.Start)
        config = start.configure
        device = take_device(config.device, config.model.width)
        if device.torch_device.type == "cpu":
            os.nice(environment.NICENESS)
        OWNER_LIMITS.apply(config.limits or Limits(), device.torch_device)
        self._say(messages.Started())
        assert isinstance(self._inbox.get(), messages.Connect)
        group = Group(device.torch_device, start.rank, start.num_ranks, start.store_path)
        self._say(messages.Connected(take_network() if start.is_confined else ""))
        decoder = decoder_on(config.model, device, config.frozen_paths, self._advanced)
        self._passes = passes_of(config, device, start.rank)
        compiler = Compiler(decoder, device, config.model, config.compiling)
        gradients = Gradients(
            decoder,
            device,
            self._passes,
            self._advanced,
            compiler=compiler,
        )
        while True:
            message = self._inbox.get()
            match message:
                case Limits():
                    OWNER_LIMITS.apply(message, device.torch_device)
                case messages.Take():
                    group.share(decoder.flat)
                    self._say(_taken(gradients, message))
                case messages.Add():
                    group.add_up(list(decoder.parameters()))
                    gradients.drop()

    def _advanced(self) -> None:
        self._say(messages.Advanced())

    def _say(self, message: messages.FromFollower) -> None:
        messages.write(self._output, message)

    def fail(self, reason: str) -> None:
        """Says why it cannot go on, if anybody is there."""
        with suppress(OSError):
            self._say(messages.Failed(reason))


def _taken(gradients: Gradients, message: messages.Take) -> messages.Taken:
    started = time.monotonic()
    tokens = np.frombuffer(message.tokens, "<u4").astype(np.int64)
    sequences = tokens.reshape(message.num_sequences, -1)
    loss, _ = gradients.take_part(sequences, message.targets)
    return messages.Taken(loss=loss, seconds=time.monotonic() - started)


def main() -> int:
    """Works at stdin and stdout until the end of stdin. Exit code: 0 then, 1 after Failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    follower = Follower(*pipe.take_pipes())
    threading.Thread(target=follower.read, name="stdin", daemon=True).start()
    try:
        follower.run()
    except (TrainerError, ValueError) as error:
        follower.fail(str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            traceback.print_exc()
        follower.fail(f"{type(error).__name__}: {error}")
    return 1


if __name__ == "__main__":
    environment.end(main())
