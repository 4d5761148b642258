"""A line with a rate, a delay, random loss and a queue, forwarded by a process of its own.

    python -m tests.internet.line NEAR FAR '{"up_mbit": 20, ...}'

The kernel's netem is not everywhere. So the line is a pair of TAP devices, and this process reads
the frames of each and writes them to the other. A TAP device without offloads gets no frame above
its MTU and no checksum that is still to be computed, so what goes over the line is what goes over
a wire. The devices end with the process.

A frame leaves the sender's queue after the time that its bytes take at the line's rate, and arrives
the delay later. A frame that would have to wait longer than the queue lasts is dropped as it comes
(drop tail), before the draw of random loss. Frames are never reordered.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from tests.support.netns import enter_namespace

FRAME_BYTES_MAX = 2048
"""An Ethernet frame with an MTU of 1500, and room for tags."""

BATCH_FRAMES = 256
"""Frames read of one device before the other has its turn."""

TICK_SECONDS = 0.001
"""The process looks at its devices this often at most: to wake for every frame would cost three
times the processor time. It is the error of the delay."""

FRAMES_WAITING_MAX = 20_000
"""Frames on their way in one direction: those of 100 Mbit/s in 2 s. What comes then is dropped."""

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
"""Constants of <linux/if_tun.h>."""


@dataclass(frozen=True)
class Line:
    """The properties of a home's line. The delay and the loss are those of one direction."""

    up_mbit: float = 20.0
    down_mbit: float = 100.0
    delay_seconds: float = 0.0
    loss: float = 0.0
    """Probability that a frame is lost."""
    queue_seconds: float = 0.05
    """Time that a frame may wait for those before it; a home router's buffer."""
    seed: int = 1
    """Seed of the losses."""


class Direction:
    """The frames on their way in one direction."""

    def __init__(self, line: Line, mbit: float, sink: int, randomness: random.Random) -> None:
        """`sink`: file descriptor of the device that the frames are written to."""
        self._line = line
        self._bytes_per_second = mbit * 1e6 / 8
        self._sink = sink
        self._random = randomness.random
        self._free_seconds = 0.0
        """When the sender has sent all that it has got."""
        self._waiting: deque[tuple[float, bytes]] = deque()
        """Time of arrival and frame, in order."""

    def accept(self, frame: bytes, now: float) -> None:
        """A frame has come from the sender. It is queued or dropped."""
        begins = max(now, self._free_seconds)
        if begins - now > self._line.queue_seconds or len(self._waiting) >= FRAMES_WAITING_MAX:
            return
        self._free_seconds = begins + len(frame) / self._bytes_per_second
        if self._random() >= self._line.loss:
            self._waiting.append((self._free_seconds + self._line.delay_seconds, frame))

    def deliver(self, now: float) -> None:
        """Writes all frames that have arrived."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            frame = waiting.popleft()[1]
            try:
                os.write(self._sink, frame)
            except OSError:  # The device is down: a cable without a light at its other end.
                continue

    @property
    def next_seconds(self) -> float | None:
        """When the next frame arrives; None if none is on its way."""
        return self._waiting[0][0] if self._waiting else None


def forward(near: int, far: int, line: Line) -> None:
    """Carries frames between two devices (file descriptors) for ever. Up is from near to far."""
    randomness = random.Random(line.seed)
    up = Direction(line, line.up_mbit, far, randomness)
    down = Direction(line, line.down_mbit, near, randomness)
    directions = {near: up, far: down}
    for device in directions:
        os.set_blocking(device, False)
    while True:
        arrivals = [due for way in (up, down) if (due := way.next_seconds) is not None]
        patience = None
        if arrivals:
            patience = max(min(arrivals) - time.monotonic(), 0.0)
        readable, _, _ = select.select([near, far], [], [], patience)
        for device in readable:
            way = directions[device]
            try:
                for _ in range(BATCH_FRAMES):
                    way.accept(os.read(device, FRAME_BYTES_MAX), time.monotonic())
            except BlockingIOError:
                pass
            except OSError:  # The device is down, and select reports it as readable.
                continue
        now = time.monotonic()
        up.deliver(now)
        down.deliver(now)
        time.sleep(TICK_SECONDS)


def open_tap(namespace: str | None, name: str) -> int:
    """Makes a TAP device in a namespace, or in this process's own one. The device ends when the
    last copy of the descriptor is closed.

    Raises:
        OSError: the kernel has no TUN/TAP, or the container does not let us.
    """
    with enter_namespace(namespace) if namespace else contextlib.nullcontext():
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(
                device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
            )
        except BaseException:
            os.close(device)
            raise
        return device


def start_line(line: Line, near: tuple[str, str], far: str) -> subprocess.Popen[bytes]:
    """Starts the process of a line between two new devices. It ends when it is killed.

    Args:
        near: namespace and name of the home's device.
        far: name of the other device, in this process's own namespace.
    """
    devices: list[int] = []
    try:
        devices += [open_tap(*near), open_tap(None, far)]
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.internet.line", *map(str, devices)),
                msgspec.json.encode(asdict(line)).decode(),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=devices,
            cwd=Path(__file__).resolve().parents[2],
            start_new_session=True,
        )
    finally:
        for device in devices:
            os.close(device)


if __name__ == "__main__":
    forward(int(sys.argv[1]), int(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=Line))
