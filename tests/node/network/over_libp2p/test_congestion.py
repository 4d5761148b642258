"""BBR begins anew where its estimate is far below the line's rate, and does not overfill a line
whose rate it had found."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from gossamer.node.network.over_libp2p.tcp import congestion
from gossamer.node.network.over_libp2p.tcp.congestion import (
    BBR,
    COLLAPSE_FACTOR,
    FULL_ROUND_TRIPS,
    GROWTH,
    IDLE_PACKETS_MAX,
    LOOK_SECONDS,
    LOST_PACKETS_MIN,
    SEARCH_GAIN,
    BbrView,
    LineRate,
    LineSearch,
    bbr_view,
    begin_anew,
)

LINE = 2_500_000
"""Bytes per second of a line of 20 Mbit/s."""

STEADY, SEARCHING = 512, 739
"""Gains of BBR's window, in 1/256."""

UNBOUNDED = 2**32 - 1

SO_MAX_PACING_RATE = 47
"""Of <asm-generic/socket.h>."""


ROUND_TRIP_SECONDS = 0.1


class Kernel:
    """The socket options of a connection."""

    def __init__(
        self,
        rate: int,
        in_flight: int = 0,
        *,
        line: LineRate | None = None,
        algorithm: bytes = BBR,
        window_gain: int = SEARCHING,
    ) -> None:
        self.rate = rate
        self.in_flight = in_flight
        self.window_gain = window_gain
        self.sent_again = self.received = 0
        self.rate_max = UNBOUNDED
        self.algorithms = [algorithm]
        self.has_ended = False
        self.search = LineSearch(cast(socket.socket, self), line or LineRate())
        self.now = 0.0

    def getsockopt(self, _level: int, option: int, size: int) -> bytes:
        if self.has_ended:
            raise OSError(errno.EBADF, "closed")
        if option == socket.TCP_CONGESTION:
            return self.algorithms[-1].ljust(size, b"\0")
        if option == socket.TCP_INFO:
            packets = self.in_flight, self.sent_again, self.received
            return struct.pack("=24xI72xI88xI", *packets).ljust(size, b"\0")
        halves = self.rate & 0xFFFFFFFF, self.rate >> 32
        return struct.pack("=III4xI", *halves, round(1e6 * ROUND_TRIP_SECONDS), self.window_gain)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        if level == socket.SOL_SOCKET:
            self.rate_max = struct.unpack("=I", value)[0]
            return
        assert option == socket.TCP_CONGESTION
        self.algorithms.append(value)

    def look(self, window_gain: int, rate: int | None = None) -> None:
        """Time passes while bulk data waits, and BBR is where the arguments say."""
        self.window_gain = window_gain
        self.rate = self.rate if rate is None else rate
        self.now += LOOK_SECONDS
        self.search.look(self.now)

    def lose(self, packets: int, of: int) -> None:
        """Packets are lost while so many are received."""
        self.sent_again += packets
        self.received += of

    @property
    def begins_anew(self) -> bool:
        return self.algorithms == [BBR, b"reno", BBR]


def test_an_estimate_that_collapsed_is_thrown_away() -> None:
    line = LineRate()
    collapsed, slower = Kernel(7_800, line=line), Kernel(LINE // 2, line=line)
    for connection in (Kernel(LINE, line=line), collapsed, slower):
        connection.search.begin()
    assert collapsed.begins_anew
    assert slower.algorithms == [BBR]


def test_a_connection_that_fills_the_line_is_not_disturbed() -> None:
    line = LineRate()
    busy = Kernel(7_800, in_flight=IDLE_PACKETS_MAX + 1, line=line)
    for connection in (Kernel(LINE, line=line), busy):
        connection.search.begin()
    assert busy.algorithms == [BBR]


def test_a_line_that_became_slower_is_learnt() -> None:
    line = LineRate()
    slow = Kernel(LINE // 100, line=line)
    Kernel(LINE, line=line).search.begin()
    for _ in range(300):
        slow.search.begin()
    num_changes = len(slow.algorithms)
    assert num_changes > 1
    slow.search.begin()
    assert len(slow.algorithms) == num_changes


def test_another_algorithm_and_a_connection_that_ended_are_left_alone() -> None:
    line = LineRate()
    cubic, ended = Kernel(1, line=line, algorithm=b"cubic"), Kernel(1, line=line)
    ended.has_ended = True
    for connection in (Kernel(LINE, line=line), cubic, ended):
        connection.search.begin()
        connection.look(SEARCHING)
    assert cubic.algorithms == [b"cubic"]
    assert ended.algorithms == [BBR]


def test_a_search_stays_near_the_rate_that_was_found() -> None:
    kernel = Kernel(LINE)
    kernel.look(STEADY)
    assert kernel.rate_max == UNBOUNDED
    kernel.look(SEARCHING)
    assert kernel.rate_max == int(SEARCH_GAIN * LINE)
    kernel.look(SEARCHING, 2 * LINE)  # a faster line
    assert kernel.rate_max == int(2 * SEARCH_GAIN * LINE)
    kernel.look(STEADY)
    assert kernel.rate_max == UNBOUNDED


def test_a_first_search_is_free_until_the_line_is_full() -> None:
    kernel = Kernel(LINE // 10)
    kernel.lose(1000, of=1000)  # before this stream
    kernel.search.begin()
    rate = LINE / 10
    for _ in range(8):  # it grows, and loses what others push out of the queue
        rate *= GROWTH
        kernel.look(SEARCHING, int(rate))
        kernel.lose(LOST_PACKETS_MIN, of=100)
    for _ in range(2 * FULL_ROUND_TRIPS):  # it waits for input: nothing is lost
        kernel.look(SEARCHING, LINE)
        kernel.lose(0, of=1000)
    assert kernel.rate_max == UNBOUNDED
    for _ in range(2 * FULL_ROUND_TRIPS):
        kernel.look(SEARCHING)
        kernel.lose(10 * LOST_PACKETS_MIN, of=200)
    assert kernel.rate_max == int(SEARCH_GAIN * LINE)


def test_a_search_that_ended_far_too_low_begins_anew_in_the_middle_of_a_ring() -> None:
    kernel = Kernel(LINE, in_flight=IDLE_PACKETS_MAX + 1)
    kernel.look(STEADY)
    kernel.look(SEARCHING, LINE // 200)  # loss recovery: nothing is decided
    assert kernel.algorithms == [BBR]
    kernel.look(STEADY, LINE // 30)
    assert kernel.begins_anew
    assert LINE < kernel.rate_max <= SEARCH_GAIN * LINE


def test_a_line_that_became_slow_in_a_ring_is_disturbed_once() -> None:
    kernel = Kernel(LINE)
    kernel.look(STEADY)
    for _ in range(100):
        kernel.look(STEADY, LINE // 30)
    assert kernel.begins_anew
    assert kernel.rate_max == UNBOUNDED


def test_a_rate_far_below_the_lines_bounds_no_search() -> None:
    line = LineRate()
    kernel = Kernel(LINE, line=line)
    kernel.look(SEARCHING, LINE)
    kernel.look(STEADY, LINE // 3)  # the first search collapsed there, or the other end is slow
    kernel.look(SEARCHING)
    assert kernel.rate_max == UNBOUNDED


def test_looks_are_rare() -> None:
    kernel = Kernel(LINE)
    kernel.look(STEADY)
    kernel.window_gain = SEARCHING
    kernel.search.look(1.9 * LOOK_SECONDS)
    assert kernel.rate_max == UNBOUNDED
    kernel.search.look(2 * LOOK_SECONDS)
    assert kernel.rate_max == int(SEARCH_GAIN * LINE)


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


def test_the_kernel_takes_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = 1_000_000
    views = [BbrView(rate, each, 0.1, 0, 0, 0) for each in (False, True, False)]
    monkeypatch.setattr(congestion, "bbr_view", lambda _socket: views.pop(0))
    with _connection() as ours:
        search = LineSearch(ours, LineRate())
        bounds = []
        for look in range(3):
            search.look(look * LOOK_SECONDS)
            bounds.append(ours.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE))
    assert bounds == [-1, int(SEARCH_GAIN * rate), -1]  # -1: none


def test_the_kernel_tells_its_estimate_and_forgets_it() -> None:
    with _connection() as ours:
        before = bbr_view(ours)
        assert before is not None
        assert before.bytes_per_second > 100_000  # loopback
        assert before.received > 1
        begin_anew(ours)
        after = bbr_view(ours)
        assert after is not None
        assert after.is_searching
        assert after.bytes_per_second * COLLAPSE_FACTOR < before.bytes_per_second
