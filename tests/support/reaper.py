"""Ends what a process of tests left running when it was killed or interrupted.

    python -m tests.support.reaper MARK

Fixtures end the daemons of a test, but only where they get so far: a worker of xdist whose run is
interrupted, or a run that is killed, leaves a swarm that goes on to train on the owner's machine.
So every process of tests has a reaper beside it, in a session of its own. The reaper waits for the
end of its standard input, which the process of tests holds until it ends in whatever way. Then it
kills all processes that have the mark in their environment, as their descendants have, and removes
the network namespaces of processes that have ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

VARIABLE = "TESTS_OF_GOSSAMER"
"""Environment variable with the mark of the process of tests. All that begin with GOSSAMER are
settings."""

SEARCHES_MAX = 10
"""A process that is killed may have begun another one meanwhile, which the next search finds."""

EXIT_SECONDS = 5.0
"""Longest wait for the processes that one search has killed."""

ROOT = Path(__file__).parents[2]


def start() -> subprocess.Popen[bytes]:
    """Starts the reaper of this process, and marks all processes that this one will start."""
    mark = os.environ[VARIABLE] = uuid.uuid4().hex
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.reaper", mark],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )


def reap(mark: str) -> None:
    """Kills all processes with this mark, but for this one."""
    for _ in range(SEARCHES_MAX):
        found = [process for process in psutil.process_iter() if _has(process, mark)]
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=EXIT_SECONDS)


def _has(process: psutil.Process, mark: str) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        is_over = process.status() == psutil.STATUS_ZOMBIE
        return not is_over and process.environ().get(VARIABLE) == mark
    except (psutil.Error, OSError):  # it has ended, or is another user's
        return False


def main(mark: str) -> None:
    """Waits for the end of the process of tests, and tidies up after it."""
    has_namespaces = sys.platform == "linux" and os.geteuid() == 0
    if has_namespaces:
        # Here, because it looks for libraries and programs that only Linux has; and before the
        # wait, because the tree may be gone after it.
        from tests.support.netns import remove_leftovers
    sys.stdin.buffer.read()
    reap(mark)
    if has_namespaces:
        remove_leftovers()


if __name__ == "__main__":
    main(sys.argv[1])
