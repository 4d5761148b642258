"""What `gossamer watch` says while it waits, and when nobody answers."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_ports

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"

SLOW = """
import importlib.abc, sys
from gossamer.node.cli import main


class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("trio", "libp2p", "structlog"):
            sys.stdin.readline()


sys.meta_path.insert(0, Slow())
main()
"""
"""A command that loads nothing large before a line comes in."""


AT_A_TERMINAL = """
import signal
from gossamer.node.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
"""A command that a terminal can interrupt. Those that a shell runs in the background ignore that,
and so do their children, as where tests run so."""

INSIDE_THE_NETWORK = """
import os, signal, sys
import trio, gossamer.node.app.outside
from gossamer.node.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
shown = sys.stderr.write


def interrupt(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "reschedule":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)


def write(text):
    if text.startswith("connecting"):
        sys.setprofile(interrupt)
    return shown(text)


sys.stderr.write = write
main()
"""
"""A command that is interrupted while the network hands a task its turn, in no line of its own."""


def watching(port: int, *options: str, program: tuple[str, ...] = ()) -> list[str]:
    link = f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}"
    run = program or ("-m", "gossamer.node.cli")
    return [sys.executable, *run, "watch", link, *options]


def test_it_says_what_it_does_before_it_loads_anything_large() -> None:
    (port,) = free_ports(1)
    with subprocess.Popen(
        watching(port, program=("-c", SLOW)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.kill()
    assert said == (
        f"looking from outside at the run of the peer at /ip4/127.0.0.1/tcp/{port} ...\n"
    )


@pytest.mark.long
def test_a_peer_that_accepts_and_is_silent_is_waited_for_in_words() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        subprocess.Popen(
            watching(silent.getsockname()[1], "--json", program=("-c", AT_A_TERMINAL)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        dialled, _ = silent.accept()
        with dialled:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("looking from outside")
            assert process.stderr.readline() == "connecting; an answer may take 30 s ...\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.long
def test_an_interrupt_inside_the_network_ends_it_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = watching(silent.getsockname()[1], "--json", program=("-c", INSIDE_THE_NETWORK))
        done = subprocess.run(link, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.endswith("connecting; an answer may take 30 s ...\n")


def test_nobody_there_is_one_sentence_with_the_address() -> None:
    (port,) = free_ports(1)
    done = subprocess.run(watching(port, "--json"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "gossamer: no peer of the run answers: cannot connect to" in done.stderr
    assert f"/tcp/{port}/" in done.stderr
    assert "cannot join" not in done.stderr


@pytest.mark.long
def test_a_terminal_shows_that_it_connects(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = subprocess.Popen(
            watching(silent.getsockname()[1], program=("-c", AT_A_TERMINAL)),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        shown = b""
        while b"connecting; an answer may take 30 s" not in shown:
            shown += os.read(ours, 4096)  # an end of the program raises
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    os.close(ours)
    assert b"looking from outside at the run of the peer at /ip4/127.0.0.1/tcp/" in shown
