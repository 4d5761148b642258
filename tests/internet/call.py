"""Does a video call survive beside a member? Packets of a call on the line that a daemon shares.

    sudo python -m tests.internet.call
    sudo python -m tests.internet.call --limits 18 12 6 --queue-ms 50

Four real daemons at home lines of 20 Mbit/s up and 100 Mbit/s down train a model whose ring fills
the line for seconds. On the machine of one of them a call runs to a machine outside of the swarm:
`CALL_MBIT` in each direction, a packet every `INTERVAL_SECONDS`. The line's queue holds
`--queue-ms`, as the buffers of many home routers do. First all daemons are paused, then they train
without a limit, then the owner sets one upload limit after the other with `gossamer limits`.

Columns, of the call's packets from the home outwards and inwards:
    delay     one way: median, 99 % and the longest, in ms; the line's own delay is in it
    lost      share of the packets that did not come
    rounds    rounds committed meanwhile, and the time of one (median)
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gossamer.node.app.http.client import change_limits, give_order
from gossamer.node.storage.state_dir import StateDir
from tests.internet.homes import Home, Homes
from tests.internet.internet import Machine
from tests.internet.line import Line
from tests.internet.run import LARGE_MANIFEST, PATIENCE_SECONDS
from tests.support.netns import NamespacesUnavailable

NUM_MEMBERS = 4

CALLER, FAR = 1, NUM_MEMBERS
"""The member beside which the call runs, and the machine of the call's other end."""

CALL_PORT = 5004
INTERVAL_SECONDS = 0.008
PACKET_BYTES = 1200
CALL_MBIT = 8e-6 * PACKET_BYTES / INTERVAL_SECONDS
"""1.2 Mbit/s: a call with a picture of 720 lines."""

INNER_STEPS = 300
"""Training of some seconds: a limit under which the ring would last longer is refused."""

SETTLE_SECONDS = 8.0
"""Time after a change that is not measured: a limit holds within 5 s."""

LATE_SECONDS = 2.0
"""Time after the last packet in which others may still come."""

_STAMP = struct.Struct("!Id")  # phase, monotonic time of sending


@dataclass
class Way:
    """The packets of one direction, by phase."""

    sent: dict[int, int] = field(default_factory=dict)
    delays: dict[int, list[float]] = field(default_factory=dict)

    def row(self, phase: int) -> str:
        """Returns a phase's delays and losses for people."""
        delays = sorted(self.delays.get(phase, []))
        sent = self.sent.get(phase, 0)
        if not delays or not sent:
            return "no packet came"
        at_99 = delays[int(0.99 * (len(delays) - 1))]
        shown = " / ".join(
            f"{1000 * x:.0f}" for x in (statistics.median(delays), at_99, delays[-1])
        )
        return f"{shown} | {1 - len(delays) / sent:.1%}"


class Call:
    """Both ends of the call, each a thread that sends and one that receives."""

    def __init__(self, homes: Homes) -> None:
        self.phase = 0
        """Number of the phase that is measured; 0 while none is."""
        self.out, self.inwards = Way(), Way()
        self._ended = threading.Event()
        hosts = [homes.internet.public_host(number) for number in (CALLER, FAR)]
        self._sockets = []
        for number, host in zip((CALLER, FAR), hosts, strict=True):
            with homes.internet.inside(number):
                end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                end.bind((host, CALL_PORT))
                end.settimeout(0.2)
                self._sockets.append(end)
        near, far = self._sockets
        jobs = (
            (self._send, near, hosts[1], self.out),
            (self._receive, far, hosts[0], self.out),
            (self._send, far, hosts[0], self.inwards),
            (self._receive, near, hosts[1], self.inwards),
        )
        self._threads = [threading.Thread(target=job, args=rest) for job, *rest in jobs]

    def __enter__(self) -> Call:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()

    @contextlib.contextmanager
    def measured(self, phase: int) -> Iterator[None]:
        """The packets that are sent within the block belong to a phase."""
        self.phase = phase
        yield
        self.phase = 0
        time.sleep(LATE_SECONDS)

    def _send(self, end: socket.socket, host: str, way: Way) -> None:
        padding = bytes(PACKET_BYTES - _STAMP.size)
        due = time.monotonic()
        while not self._ended.is_set():
            phase = self.phase
            with contextlib.suppress(OSError):  # A full queue of the interface is a loss.
                end.sendto(_STAMP.pack(phase, time.monotonic()) + padding, (host, CALL_PORT))
            way.sent[phase] = way.sent.get(phase, 0) + 1
            due = max(due + INTERVAL_SECONDS, time.monotonic() - INTERVAL_SECONDS)
            time.sleep(max(due - time.monotonic(), 0.0))

    def _receive(self, end: socket.socket, _host: str, way: Way) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                phase, sent_at = _STAMP.unpack_from(end.recv(2 * PACKET_BYTES))
                way.delays.setdefault(phase, []).append(time.monotonic() - sent_at)


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Runs the swarm and the call, and prints a row for each phase."""
    line = Line(delay_seconds=0.01, queue_seconds=options.queue_ms / 1000)
    manifest, corpus = folder / "manifest.toml", folder / "corpus.txt"
    manifest.write_text(LARGE_MANIFEST.replace("inner_steps = 8", f"inner_steps = {INNER_STEPS}"))
    corpus.write_text("The quick brown fox jumps over the lazy dog. " * 20_000)
    with Homes(folder, [Machine(line=line)] * (NUM_MEMBERS + 1)) as homes:
        members = homes.homes[:NUM_MEMBERS]
        founder, *others = members
        wait = ("--wait-for-peers", str(NUM_MEMBERS - 1))
        founder.start("start", "--manifest", str(manifest), "--corpus", str(corpus), *wait)
        founder.wait_for(lambda status: status.phase == "training", PATIENCE_SECONDS, "the run")
        for home in others:
            home.start("join", founder.public_address)
        everybody = homes.watch(founder, 5.0, rounds_min=3)
        if everybody.share_of(NUM_MEMBERS) == 0:
            sys.exit("there was no round of all four: see the logs with --keep")
        with Call(homes) as call:
            _phases(homes, members, call, options)


def _phases(homes: Homes, members: Sequence[Home], call: Call, options: argparse.Namespace) -> None:
    print("| | out, ms | lost | in, ms | lost | rounds | a round, s |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    caller = members[CALLER]
    for phase, name in enumerate(("paused", "no limit", *options.limits), start=1):
        with contextlib.ExitStack() as stack:
            stack.enter_context(homes.internet.inside(caller.number))
            if phase > 2:
                change_limits(StateDir(caller.root), {"upload": name})
        for home in members:
            with homes.internet.inside(home.number):
                if phase == 1:
                    give_order(StateDir(home.root), "pause")
                elif phase == 2:
                    give_order(StateDir(home.root), "resume")
        time.sleep(SETTLE_SECONDS)
        with call.measured(phase):
            rounds = homes.watch(members[0], options.seconds)
        title = f"upload limit {name} Mbit/s" if phase > 2 else name
        print(
            f"| {title} | {call.out.row(phase)} | {call.inwards.row(phase)} "
            f"| {len(rounds.num_members)} | {rounds.round_seconds:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--limits", nargs="*", default=["18", "12"], help="Mbit/s, one by one")
    parser.add_argument("--queue-ms", type=float, default=300.0, help="what the line's queue holds")
    parser.add_argument("--seconds", type=float, default=40.0, help="measured time of each phase")
    parser.add_argument("--keep", type=Path, help="folder for logs and states")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            measure(options, folder)
        except NamespacesUnavailable as reason:
            sys.exit(str(reason))


if __name__ == "__main__":
    main()
