"""What do strangers cost that begin the handshake of noise and never finish it?

    python -m tests.benchmarks.half_handshakes                # 400 sockets of one network
    python -m tests.benchmarks.half_handshakes --networks 100
    python -m tests.benchmarks.half_handshakes --hold         # sockets that stay open

One real daemon founds a small run. A second process opens sockets to it. Each socket agrees on
noise, sends the first message of the handshake, and reads the answer, for which the daemon
has computed a key exchange and a signature. Then it begins again, or it says nothing more.
The table has the daemon's share of one core without its trainer, the answers that the strangers
got, and how many of ten honest peers connect at their first attempt: from an address of their own
in the strangers' first network, and from another network.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import psutil
import trio
from rich.console import Console
from rich.table import Table

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import TransportError
from tests.support.daemons import MANIFEST, OPTIONS, wait_for_round

BEGINNING = b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x20"
"""The agreement on noise, and the length of the first message, which is a key of 32 bytes."""

ANSWER_BYTES_MIN = 128
"""The agreement alone takes 28 bytes; the second message of the handshake more than 150."""

NUM_HONEST = 10


@dataclass
class Measure:
    """One row of the table."""

    what: str
    share: float
    answers: float
    refused: float
    near: int | None = None
    far: int | None = None


async def one_socket(
    port: int, host: str, *, holds: bool, answers: Synchronized[int], refused: Synchronized[int]
) -> None:
    """Half handshakes from one address, one after the other, for ever."""
    while True:
        raw = trio.socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        received = 0
        try:
            with trio.move_on_after(15.0):
                await raw.bind((host, 0))
                await raw.connect(("127.0.0.2", port))
                await raw.send(BEGINNING + os.urandom(32))
                while received < ANSWER_BYTES_MIN and (data := await raw.recv(4096)):
                    received += len(data)
                if received >= ANSWER_BYTES_MIN:
                    answers.value += 1
                    if holds:
                        await raw.recv(4096)
        except OSError:
            pass
        finally:
            raw.close()
        if received < ANSWER_BYTES_MIN:
            refused.value += 1
            await trio.sleep(0.05)


def strangers(
    port: int,
    num_sockets: int,
    num_networks: int,
    holds: bool,
    answers: Synchronized[int],
    refused: Synchronized[int],
) -> None:
    """The second process: never returns."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(num_sockets):
                host = f"127.{1 + number % num_networks}.0.{1 + number // num_networks % 250}"

                async def one(host: str = host) -> None:
                    await one_socket(port, host, holds=holds, answers=answers, refused=refused)

                nursery.start_soon(one)

    trio.run(run)


def honest(address: str, source: str) -> int:
    """How many of some peers connect from an address, one after the other."""

    async def run() -> int:
        connected = 0
        for _ in range(NUM_HONEST):
            # A node dials from the address that it listens on.
            async with open_libp2p_transport(
                Identity.generate(), [f"/ip4/{source}/tcp/0"]
            ) as transport:
                try:
                    await transport.connect(address)
                except TransportError:
                    continue
                connected += 1
        return connected

    return trio.run(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sockets", type=int, default=400)
    parser.add_argument("--networks", type=int, default=1)
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalSwarm(Path(folder) / "swarm", OPTIONS) as swarm,
    ):
        manifest = Path(folder) / "run.toml"
        manifest.write_text(MANIFEST)
        node = swarm.add(listen="/ip4/127.0.0.2/tcp/0")  # so that peers dial from where they listen
        node.start("start", "--manifest", str(manifest))
        wait_for_round(node, 2)
        address = node.address()
        assert node.process is not None
        process = psutil.Process(node.process.pid)
        answers, refused = multiprocessing.Value("i", 0), multiprocessing.Value("i", 0)

        def measure(what: str) -> Measure:
            begun, counted, turned = time.monotonic(), answers.value, refused.value
            before = sum(process.cpu_times()[:2])
            time.sleep(arguments.seconds)
            seconds = time.monotonic() - begun
            return Measure(
                what,
                (sum(process.cpu_times()[:2]) - before) / seconds,
                (answers.value - counted) / seconds,
                (refused.value - turned) / seconds,
            )

        rows = [measure("undisturbed")]
        port = int(address.split("/")[4])
        attack = multiprocessing.get_context("fork").Process(
            target=strangers,
            args=(
                port,
                arguments.sockets,
                arguments.networks,
                arguments.hold,
                answers,
                refused,
            ),
        )
        attack.start()
        try:
            rows.append(measure("attacked, first seconds"))
            rows.append(measure("attacked, later"))
            rows[-1].near = honest(address, "127.1.0.251")
            rows[-1].far = honest(address, "127.200.0.1")
        finally:
            attack.kill()
            attack.join()
    _print(rows, arguments)


def _print(rows: list[Measure], arguments: argparse.Namespace) -> None:
    kind = "that stay open" if arguments.hold else "that begin again"
    table = Table(title=f"{arguments.sockets} sockets {kind}, of {arguments.networks} networks")
    for name in ("", "share of a core", "answers/s", "refused/s", "own network", "another network"):
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        ends = ["" if each is None else f"{each} of {NUM_HONEST}" for each in (row.near, row.far)]
        table.add_row(
            row.what, f"{row.share:.0%}", f"{row.answers:.0f}", f"{row.refused:.0f}", *ends
        )
    Console().print(table)


if __name__ == "__main__":
    main()
