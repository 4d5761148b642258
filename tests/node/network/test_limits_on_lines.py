"""A limit on lines of their own: what the kernel counts on the interface, every header included."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from gossamer.node.base.limit_periods import Period
from gossamer.node.base.rate_limit import BURST_SECONDS, Limits, RateLimit
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.tcp.receive_window import window_bytes
from gossamer.node.network.transport import Stream
from tests.benchmarks.line_limits import busiest, most_ahead
from tests.internet.internet import Internet
from tests.internet.internet import Machine as PublicMachine
from tests.internet.line import Line
from tests.support.daemons import poll
from tests.support.netns import LINE, NamespacesUnavailable, Network, run_tool

LINE_MBIT = 100.0
PROTOCOL = "/test/bulk/1"
WARM_UP_SECONDS = 1.5
"""Time in which windows fill and the first burst is over."""

MEASURE_SECONDS = 4.0

BUSY_PART = 0.6
"""Least part of the limit that moves while other tests have the processors. An idle machine moves
0.95 of it and more: ``pytest -s`` shows what was moved."""


@pytest.fixture
def network() -> Iterator[Network]:
    lines = Network([LINE_MBIT, LINE_MBIT])
    try:
        lines.__enter__()
    except NamespacesUnavailable as why:
        pytest.skip(str(why))
    try:
        for number in range(lines.num_machines):
            # Packets as a real line has them: else one header counts for 64 KiB.
            command = ("ip", "link", "set", "dev", LINE, "gso_max_segs", "1")
            run_tool(*lines.prefix(number), *command)
        yield lines
    finally:
        lines.__exit__(None, None, None)


class Machine(threading.Thread):
    """A node on a machine of its own: it sends to the other one, or takes what that sends."""

    def __init__(self, network: Network | Internet, number: int, limits: Limits) -> None:
        super().__init__(daemon=True)
        self.network, self.number, self.limits = network, number, limits
        self.address = ""
        self.is_up, self.sends, self.ends = (threading.Event() for _ in range(3))
        self.sends_to: str | None = None
        self.bulk_bytes = 200_000_000
        """What it sends by itself on each of its streams."""
        self.streams: list[Stream] = []
        self.token: trio.lowlevel.TrioToken | None = None
        self.counted: list[tuple[float, int, int]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self.network.inside(self.number):
                trio.run(self._main)
        except BaseException as error:
            self.error = error
            self.is_up.set()
            self.sends.set()

    async def _main(self) -> None:
        self.token = trio.lowlevel.current_trio_token()

        async def take(stream: Stream) -> None:
            while True:
                await stream.receive_exactly(10_000)

        network, number = self.network, self.number
        host = (
            network.public_host(number) if isinstance(network, Internet) else network.host(number)
        )
        listen = (f"/ip4/{host}/tcp/4610",)
        async with (
            open_libp2p_transport(Identity.generate(), listen, limits=self.limits) as transport,
            trio.open_nursery() as nursery,
        ):
            transport.handle(PROTOCOL, take)
            self.address = transport.addresses()[0]
            self.is_up.set()
            if self.sends_to is not None:
                peer = await transport.connect(self.sends_to)
                for _ in range(2):
                    stream = await transport.open_stream(peer, PROTOCOL)
                    self.streams.append(stream)
                    if self.bulk_bytes:
                        nursery.start_soon(stream.send, bytes(self.bulk_bytes))
                self.sends.set()
            while not self.ends.is_set():
                self.counted.append((time.monotonic(), *_interface_bytes()))
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    def send(self, num_bytes: int, taker: Machine) -> None:
        """Sends so much at once, and returns when the other machine's interface has had it."""
        wanted = taker.counted[-1][1] + num_bytes
        trio.from_thread.run(self.streams[0].send, bytes(num_bytes), trio_token=self.token)
        poll(lambda: taker.counted[-1][1] >= wanted, "all bytes at the other machine")

    def mbit(self) -> tuple[float, float]:
        """Received and sent, in the newest `MEASURE_SECONDS`."""
        last = self.counted[-1]
        first = next(each for each in self.counted if each[0] > last[0] - MEASURE_SECONDS)
        seconds = last[0] - first[0]
        return tuple((last[i] - first[i]) * 8 / 1e6 / seconds for i in (1, 2))  # type: ignore[return-value]


class Moved(NamedTuple):
    """What two nodes moved."""

    received_mbit: float
    """By the one that takes."""
    sent_mbit: float
    """By the one that sends."""


def _interface_bytes() -> tuple[int, int]:
    """Bytes received and sent by the interface of this thread's machine."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, values = line.partition(":")
        if values and name.strip() != "lo":
            numbers = values.split()
            return int(numbers[0]), int(numbers[8])
    raise AssertionError("no interface")


def _measure(network: Network | Internet, taker_limits: Limits, sender_limits: Limits) -> Moved:
    """Lets one node send to another one for `MEASURE_SECONDS`, after `WARM_UP_SECONDS`."""
    taker = Machine(network, 0, taker_limits)
    taker.start()
    assert taker.is_up.wait(20)
    assert taker.error is None, taker.error
    sender = Machine(network, 1, sender_limits)
    sender.sends_to = taker.address
    sender.start()
    assert sender.sends.wait(20)
    time.sleep(WARM_UP_SECONDS + MEASURE_SECONDS)
    for machine in (sender, taker):
        machine.ends.set()
        machine.join(20)
        assert machine.error is None, machine.error
    return Moved(received_mbit=taker.mbit()[0], sent_mbit=sender.mbit()[1])


@pytest.mark.long
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("mbit", [2.0, 20.0])
def test_the_interface_moves_no_more_and_hardly_less_than_the_limit(
    network: Network, direction: str, mbit: float
) -> None:
    limited, free = RateLimit([Period(mbit)]), RateLimit()
    none = Limits(RateLimit(), RateLimit())
    both = _measure(
        network,
        Limits(free, limited) if direction == "down" else none,
        Limits(limited, free) if direction == "up" else none,
    )
    moved = both.sent_mbit if direction == "up" else both.received_mbit
    print(f"{moved:.2f} of {mbit:g} Mbit/s {direction}")
    assert BUSY_PART * mbit < moved < 1.05 * mbit


BURST_MBIT = 6.0
BURST_BYTES = 2_000_000
"""More than the window at the limit."""

LONG_BURST_BYTES = 4_000_000
"""More than `line_limits.WINDOW_SECONDS` at the limit."""

NUM_BURSTS = 4
"""Enough for a window of megabytes to open, or to be used up."""


@pytest.mark.long
def test_a_burst_comes_in_at_a_limit_that_was_set_while_the_line_was_free(
    network: Network,
) -> None:
    limited, free = RateLimit(), RateLimit()
    taker = Machine(network, 0, Limits(free, limited))
    taker.start()
    assert taker.is_up.wait(20)
    sender = Machine(network, 1, Limits(RateLimit(), RateLimit()))
    sender.bulk_bytes, sender.sends_to = 0, taker.address
    sender.start()
    try:
        assert sender.sends.wait(20)
        for _ in range(NUM_BURSTS):  # the kernel lets the peer send ever more
            sender.send(BURST_BYTES, taker)
        trio.from_thread.run_sync(limited.change, [Period(BURST_MBIT)], trio_token=taker.token)
        for _ in range(NUM_BURSTS):  # what the kernel had let come before may come at once
            sender.send(BURST_BYTES, taker)
        poll(lambda: taker.counted[-1][1] == taker.counted[-20][1], "a second of silence")
        first = len(taker.counted)
        sender.send(LONG_BURST_BYTES, taker)
    finally:
        for machine in (sender, taker):
            machine.ends.set()
            machine.join(20)
    received = [(at, 0, taken) for at, taken, _ in taker.counted[first - 1 :]]
    ahead = most_ahead(received, 2, BURST_MBIT)
    _, mbit = busiest(received)
    print(f"{ahead / 1000:.0f} kB ahead of the limit, {mbit:.2f} of {BURST_MBIT:g} Mbit/s")
    # The kernel's buffer is twice the window, and has little besides data in it here.
    rate = BURST_MBIT / 8e-6
    assert ahead < 2 * window_bytes(rate, 0.001) + BURST_SECONDS * rate
    assert mbit < 1.05 * BURST_MBIT


LONG_MBIT = 6.0
DELAY_SECONDS = 0.1
"""Of one direction: as between two continents."""


@pytest.fixture
def long_line() -> Iterator[Internet]:
    line = Line(up_mbit=LINE_MBIT, down_mbit=LINE_MBIT, delay_seconds=DELAY_SECONDS)
    network = Internet([PublicMachine(), PublicMachine(line=line)])
    try:
        network.__enter__()
    except NamespacesUnavailable as why:
        pytest.skip(str(why))
    try:
        yield network
    finally:
        network.__exit__(None, None, None)


@pytest.mark.long
def test_a_long_line_is_no_slower_than_its_limit(long_line: Internet) -> None:
    limited, none = (
        Limits(RateLimit(), RateLimit([Period(LONG_MBIT)])),
        Limits(RateLimit(), RateLimit()),
    )
    moved = _measure(long_line, limited, none).received_mbit
    print(f"{moved:.2f} of {LONG_MBIT:g} Mbit/s with a round trip of {2 * DELAY_SECONDS:g} s")
    assert BUSY_PART * LONG_MBIT < moved < 1.05 * LONG_MBIT
