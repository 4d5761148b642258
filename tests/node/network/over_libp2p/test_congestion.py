"""BBR begins anew on an idle connection whose estimate is far below that of the node's line."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gossamer.node.network.over_libp2p import congestion
from gossamer.node.network.over_libp2p.congestion import (
    BBR,
    COLLAPSE_FACTOR,
    IDLE_PACKETS_MAX,
    LineEstimates,
    bbr_bytes_per_second,
    begin_anew,
)

LINE = 2_500_000
"""Bytes per second of a line of 20 Mbit/s."""


class Kernel:
    """The socket options of a connection."""

    def __init__(self, rate: int, in_flight: int = 0, algorithm: bytes = BBR) -> None:
        self.rate = rate
        self.in_flight = in_flight
        self.algorithms = [algorithm]
        self.has_ended = False

    def getsockopt(self, _level: int, option: int, size: int) -> bytes:
        if self.has_ended:
            raise OSError(errno.EBADF, "closed")
        if option == socket.TCP_CONGESTION:
            return self.algorithms[-1].ljust(size, b"\0")
        if option == socket.TCP_INFO:
            return (bytes(24) + struct.pack("=I", self.in_flight)).ljust(size, b"\0")
        return struct.pack("=II", self.rate & 0xFFFFFFFF, self.rate >> 32) + bytes(12)

    def setsockopt(self, _level: int, option: int, value: bytes) -> None:
        assert option == socket.TCP_CONGESTION
        self.algorithms.append(value)

    @property
    def begins_anew(self) -> bool:
        return self.algorithms == [BBR, b"reno", BBR]


@pytest.fixture(autouse=True)
def _connections_are_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion, "socket_of", lambda connection: connection)


def test_an_estimate_that_collapsed_is_thrown_away() -> None:
    estimates, collapsed, slower = LineEstimates(), Kernel(7_800), Kernel(LINE // 2)
    for connection in (Kernel(LINE), collapsed, slower):
        estimates.look(connection)
    assert collapsed.begins_anew
    assert slower.algorithms == [BBR]


def test_a_connection_that_fills_the_line_is_not_disturbed() -> None:
    estimates, busy = LineEstimates(), Kernel(7_800, in_flight=IDLE_PACKETS_MAX + 1)
    for connection in (Kernel(LINE), busy):
        estimates.look(connection)
    assert busy.algorithms == [BBR]


def test_a_line_that_became_slower_is_learnt() -> None:
    estimates, slow = LineEstimates(), Kernel(LINE // 100)
    estimates.look(Kernel(LINE))
    for _ in range(300):
        estimates.look(slow)
    num_changes = len(slow.algorithms)
    assert num_changes > 1
    estimates.look(slow)
    assert len(slow.algorithms) == num_changes


def test_another_algorithm_and_a_connection_that_ended_are_left_alone() -> None:
    estimates, cubic, ended = LineEstimates(), Kernel(1, algorithm=b"cubic"), Kernel(1)
    ended.has_ended = True
    for connection in (Kernel(LINE), cubic, ended):
        estimates.look(connection)
    assert cubic.algorithms == [b"cubic"]
    assert ended.algorithms == [BBR]


@contextmanager
def _connection() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0] as theirs,
    ):
        try:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, BBR)
        except (OSError, AttributeError) as error:
            pytest.skip(f"this kernel has no BBR for us: {error}")
        ours.sendall(bytes(100_000))
        received = 0
        while received < 100_000:
            received += len(theirs.recv(65_536))
        yield ours


def test_the_kernel_tells_its_estimate_and_forgets_it() -> None:
    with _connection() as ours:
        before = bbr_bytes_per_second(ours)
        assert before is not None
        assert before > 100_000  # loopback
        begin_anew(ours)
        after = bbr_bytes_per_second(ours)
        assert after is not None
        assert after * COLLAPSE_FACTOR < before
