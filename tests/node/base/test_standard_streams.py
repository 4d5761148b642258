"""What the commands write arrives on any terminal, and no closed stream breaks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

TEXT = "Zo\u00eb \u4e2d \U0001f600"
PROGRAM = f"""
import sys
from gossamer.node.base.terminal.standard_streams import mend_standard_streams
mend_standard_streams()
print({TEXT!r})
print({TEXT!r}, file=sys.stderr)
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_letter_that_the_terminal_lacks_is_escaped(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    for told in (done.stdout, done.stderr):
        text = told.decode(encoding).rstrip("\n")
        assert json.loads(f'"{text}"') == TEXT  # so `--json` stays JSON


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_stream_that_is_closed_is_as_good_as_empty(closed: tuple[int, ...]) -> None:
    """As in `gossamer limits set ... <&-`, and where a supervisor opens none."""
    program = (
        "import sys; from gossamer.node.cli import main\n"
        "try: main(['reset', '--state-dir', '/none'])\n"
        "finally:\n"
        "    import os\n"
        "    assert not sys.stdin.isatty() and sys.stdin.read() == ''\n"
        "    assert not sys.stdout.isatty() and not sys.stderr.isatty()\n"
        "    [os.fstat(number) for number in range(3)]\n"
        "    assert all(os.get_inheritable(number) for number in range(3))\n"
        "    sys.stdout.flush()\n"
    )
    redirections = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {redirections}', sys.executable, program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if 1 in closed else "there is no /none\n")
