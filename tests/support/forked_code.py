"""Runs the program in its only argument, as ``python -c`` does.

    python -m tests.support.forked_code PROGRAM

A process of a few lines takes most of its time for its imports. This module is one of those that
`tests.support.preloaded` runs in a copy of a process which has them already.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    exec(compile(sys.argv[1], "<program>", "exec"), {"__name__": "__main__"})
