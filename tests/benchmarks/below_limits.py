"""What do strangers cost a daemon that stay below each of its limits, all at once?

    python -m tests.benchmarks.below_limits                      # all rows
    python -m tests.benchmarks.below_limits "small frames"       # these rows
    python -m tests.benchmarks.below_limits --identities 64

A founder and one member work in a small run. Strangers of one process connect to the founder, each
with an identity and an address of its own, and do one thing. Each row is measured by turns:
undisturbed, attacked, and again undisturbed. The table has the founder's share of one core without
its trainer, its resident memory, the time in which an honest newcomer connects and has the
manifest, the time of a request to its page, and the rounds in a minute.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.protocol.wire.run_messages import RUN_PROTOCOL
from tests.benchmarks import _stranger_floods as floods
from tests.benchmarks._attacked_swarm import Swarm, process_of
from tests.support.daemons import OPTIONS

ASK_SECONDS_MAX = 20.0


@dataclass
class Measure:
    """One line of the table."""

    share: float
    memory: float
    asked: list[float | None]
    page: list[float | None]
    rounds_a_minute: float

    def __str__(self) -> str:
        return (
            f"share {self.share:4.0%}, memory {self.memory / 1e6:5.0f} MB, "
            f"newcomer {_text(self.asked)}, page {_text(self.page)}, "
            f"{self.rounds_a_minute:3.0f} rounds/min"
        )


def _text(seconds: list[float | None]) -> str:
    good = [each for each in seconds if each is not None]
    middle = f"{statistics.median(good):.2f} s (at most {max(good):.2f})" if good else "-"
    missed = len(seconds) - len(good)
    return middle + (f", {missed} of {len(seconds)} not answered" if missed else "")


async def _ask(address: str) -> None:
    """A newcomer of another network connects and takes the manifest."""
    async with open_libp2p_transport(Identity.generate(), ["/ip4/127.200.0.1/tcp/0"]) as transport:
        victim = await transport.connect(address)
        stream = await transport.open_stream(victim, RUN_PROTOCOL)
        await send_frame(stream, b"")
        await receive_frame(stream)


def _asked(address: str) -> float | None:
    async def ask() -> None:
        with trio.fail_after(ASK_SECONDS_MAX):
            await _ask(address)

    began = time.monotonic()
    try:
        trio.run(ask)
    except Exception:
        return None
    return time.monotonic() - began


def _page(node: LocalNode) -> float | None:
    began = time.monotonic()
    return None if node.status() is None else time.monotonic() - began


def measure(swarm: Swarm, seconds: float) -> Measure:
    """Measures the founder for some seconds."""
    process = process_of(swarm.founder)
    peak, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=look)
    watcher.start()
    first, began = swarm.rounds(), time.monotonic()
    before = sum(process.cpu_times()[:2])
    asked, page = [], []
    while time.monotonic() < began + seconds:
        asked.append(_asked(swarm.address))
        page.append(_page(swarm.founder))
        time.sleep(0.3)
    passed = time.monotonic() - began
    share = (sum(process.cpu_times()[:2]) - before) / passed
    rounds = swarm.rounds() - first
    ended.set()
    watcher.join()
    return Measure(share, peak[0], asked, page, 60 * rounds / passed)


def row(swarm: Swarm, name: str, identities: int, seconds: float) -> None:
    """Prints what one flood does."""
    print(f"{name}, {identities} identities, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"    before   {measure(swarm, seconds)}", flush=True)
    context = multiprocessing.get_context("fork")
    attack = context.Process(target=floods.run, args=(name, swarm.address, identities))
    attack.start()
    try:
        time.sleep(min(seconds, 5.0 + identities / 10))  # all are connected
        print(f"    attacked {measure(swarm, seconds)}", flush=True)
    finally:
        attack.kill()
        attack.join()
    time.sleep(2.0)
    with suppress(AssertionError):
        print(f"    after    {measure(swarm, seconds / 2)}", flush=True)
        print(f"    {swarm.bans()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("tests.benchmarks.below_limits")
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--identities", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="below-") as folder:
        root = Path(folder)
        with LocalSwarm(root / "swarm", OPTIONS) as local:
            swarm = Swarm(root, local, listen="/ip4/127.0.0.2/tcp/0")
            swarm.join(1)
            for name in options.rows or floods.FLOODS:
                row(swarm, name, options.identities, options.seconds)


if __name__ == "__main__":
    main()
