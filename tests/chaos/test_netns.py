"""The machines of this folder's tests: that their lines do what is said of them."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.netns import NamespacesUnavailable, Network

PORT = 5000

SILENCE_SECONDS = 0.5
"""A connection over a line that is well takes a millisecond."""

CARRIER_SECONDS = 10.0
"""The kernel says at most once a second that a link is up; TCP asks again after 1, 2 and 4 s."""

MBIT = 10.0
PIECE_BYTES = 1_000_000


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Three machines that each listen on their address."""
    try:
        with Network([MBIT] * 3) as network:
            yield network
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def listeners(network: Network) -> Iterator[list[socket.socket]]:
    sockets = []
    for machine in range(network.num_machines):
        with network.inside(machine):
            sockets.append(socket.create_server((network.host(machine), PORT)))
    yield sockets
    for listener in sockets:
        listener.close()


def connects(
    network: Network,
    listeners: list[socket.socket],
    one: int,
    other: int,
    seconds: float = CARRIER_SECONDS,
) -> bool:
    """Returns whether a machine reaches another; False if there is no answer at all."""
    with network.inside(one), socket.socket() as client:
        client.settimeout(seconds)
        try:
            client.connect((network.host(other), PORT))
        except TimeoutError:
            return False
        listeners[other].accept()[0].close()
        return True


def is_silent(network: Network, listeners: list[socket.socket], one: int, other: int) -> bool:
    return not connects(network, listeners, one, other, SILENCE_SECONDS)


def test_a_cut_line_is_silent(network: Network, listeners: list[socket.socket]) -> None:
    assert connects(network, listeners, 0, 1)
    network.cut(1)
    assert is_silent(network, listeners, 0, 1)
    assert is_silent(network, listeners, 1, 2)
    assert connects(network, listeners, 0, 2)
    network.mend(1)
    assert connects(network, listeners, 0, 1)


def test_halves_reach_themselves_only(network: Network, listeners: list[socket.socket]) -> None:
    network.split([0, 2], [1])
    assert connects(network, listeners, 0, 2)
    assert is_silent(network, listeners, 0, 1)
    assert is_silent(network, listeners, 1, 2)
    network.unite()
    assert connects(network, listeners, 0, 1)


@pytest.mark.parametrize("mbit", [MBIT, 4 * MBIT])
def test_a_line_has_its_rate(network: Network, listeners: list[socket.socket], mbit: float) -> None:
    network.set_rate(0, mbit)
    network.set_rate(1, mbit)
    with network.inside(0), socket.socket() as client:
        client.connect((network.host(1), PORT))
        server, _ = listeners[1].accept()
        with server:
            start = time.monotonic()
            client.setblocking(False)
            left = memoryview(bytes(PIECE_BYTES))
            received = 0
            while received < PIECE_BYTES:
                with contextlib.suppress(BlockingIOError):
                    left = left[client.send(left) :]
                received += len(server.recv(1 << 16))
            seconds = time.monotonic() - start
    # Not faster than the line but for the bucket of 128 KiB, which may be full.
    assert 8 * (PIECE_BYTES - 2 * 131_072) / seconds <= 1e6 * mbit * 1.1
    assert 8 * PIECE_BYTES / seconds >= 1e6 * mbit / 4  # a busy machine may be slower


def test_a_thread_is_on_a_machine_only_within_the_block(network: Network) -> None:
    def namespace() -> str:
        return os.readlink("/proc/thread-self/ns/net")

    home = namespace()
    with network.inside(0):
        assert namespace() != home
        with network.inside(1):
            inner = namespace()
        assert namespace() not in (home, inner)
    assert namespace() == home
