"""The process of `gossamer generate`: `python -m gossamer.trainer.generate [FOLDER]`, never started
by people. `ipc.generation` has its messages.

With a folder it first gives up all writing outside of it, and the network, as the trainer does
(`worker`): it reads a tokenizer and weights that strangers made.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from gossamer.trainer.confinement.confine import confine

_NICENESS = 10
"""As a trainer on a CPU: the daemon and its owner's programs come first."""


def main() -> int:
    """Does the task on stdin. Exit code: 0, also after `Refused`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # from a terminal; no traceback for that
    if len(sys.argv) > 1:
        confine(Path(sys.argv[1]))
    # Torch starts threads, which have to come after that.
    from gossamer.trainer.continuation import answers
    from gossamer.trainer.ipc.generation import GenerateText

    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints goes to stderr
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=GenerateText)
    if task.device == "cpu":
        os.nice(_NICENESS)
    try:
        for answer in answers(task):
            output.write(msgspec.json.encode(answer) + b"\n")
            output.flush()
    except BrokenPipeError:
        pass  # nobody reads any more
    return 0


if __name__ == "__main__":
    code = main()
    # Not through the interpreter's end, which can hang or crash in a device's driver.
    sys.stderr.flush()
    os._exit(code)
