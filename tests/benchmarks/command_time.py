"""How long do the commands take that only ask a running node?

    python -m tests.benchmarks.command_time
    python -m tests.benchmarks.command_time --times 20 --python .venv/bin/python OTHER/bin/python

Each command is a process of its own. It asks a stand-in for a node, which answers at once with the
status of a swarm of eight. All rows take turns, so that whatever else the machine does
meets all of them alike. With several interpreters, each with an installation of its own, these take
turns as well.

Columns, medians:
    CPU     processor time of the process, user and system
    wall    time until it has ended

The first rows are the floor: an interpreter that does nothing, and one that loads the library by
which the commands read their arguments.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.support.answering_node import answering_node

FLOOR = (
    ("python -c pass", ("-c", "pass")),
    ("python -c 'import cyclopts'", ("-c", "import cyclopts")),
)
PROGRAM = "from gossamer.node.cli import main; main()"
"""What the console script does. `python -m` would load a module more."""

COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("pause",),
    ("resume",),
    ("limits",),
    ("schedule",),
    ("page",),
    ("id",),
    ("--help",),
)


def seconds_of(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Runs a command; returns its processor time and its wall time."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}: {said.decode()}")
    return usage.ru_utime + usage.ru_stime, wall


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    options = parser.parse_args()
    rows = [*FLOOR]
    rows += [(f"gossamer {' '.join(words)}", ("-c", PROGRAM, *words)) for words in COMMANDS]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {
        (python, name): [] for name, _ in rows for python in options.python
    }
    with tempfile.TemporaryDirectory() as folder, answering_node(Path(folder)):
        environment = {**os.environ, "GOSSAMER_STATE_DIR": folder, "XDG_CONFIG_HOME": folder}
        # With it each process compiles all modules anew, which no installation does.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for turn in range(options.times + 1):
            for name, words in rows:
                for python in options.python:
                    seconds = seconds_of((python, *words), environment)
                    if turn:  # the first time writes what Python compiles
                        found[python, name].append(seconds)
    table = Table(
        "", *(f"{python}: {each}" for python in options.python for each in ("CPU", "wall"))
    )
    for name, _ in rows:
        cells = []
        for python in options.python:
            for column in zip(*found[python, name], strict=True):
                cells.append(f"{1000 * statistics.median(column):.0f} ms")
        table.add_row(name, *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
