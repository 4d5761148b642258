"""The trainer process: `python -m gossamer.trainer.worker [FOLDER [several]]`, started by the
daemon, never by people.

With a folder the process first gives up all writing outside of it, and the network
(`confinement`). Only then it loads torch, which starts threads. Where it is to train on `several`
devices, it gives up the network when it has connected their processes (`ranks`), and before it
reads anything of other peers.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from gossamer.trainer.confinement.confine import confine
from gossamer.trainer.ipc import environment

SEVERAL = "several"
"""The second argument, where several devices train."""


def main() -> int:
    """Exit code: 0 after Exit, SIGTERM or the end of stdin; 1 after Failed."""
    confinement = None
    if len(sys.argv) > 1:
        try:
            confinement = confine(Path(sys.argv[1]), keeps_network=SEVERAL in sys.argv[2:])
        except OSError as error:
            print(f"the trainer's folder cannot be made: {error}", file=sys.stderr)
            return 1
    # The modules stay for the life of the process. To look for garbage while they are loaded takes
    # a sixth of that time, and each later look at all of them would take a tenth of a second.
    gc.disable()
    from gossamer.trainer import worker_loop

    gc.freeze()
    gc.enable()
    return worker_loop.main(confinement)


if __name__ == "__main__":
    environment.end(main())
