"""Entry of the process that cuts a text of a peer's own: `python -m` this module and a FOLDER.

It reads text that must not leave this machine, and runs the chat template of a founder who may be
a stranger. So it first gives up the network, and all writing outside of the folder of the shards.
Only then it loads libraries that start threads.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gossamer.trainer.confinement.confine import confine


def main() -> int:
    """Does the task on stdin, see `preparing`."""
    confine(Path(sys.argv[1]), gpu_starts=None)
    from gossamer.node.runs.founding import preparing_process

    return preparing_process.main()


if __name__ == "__main__":
    sys.exit(main())
