"""The story of `gossamer demo`: real daemons train on this machine, one is killed, a fifth joins.

The demo starts, kills and asks daemons as a person would, and has no other access to them. Each
daemon is a process with its own identity, ports and state directory. The daemons learn of each
other only from the network.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from gossamer.node.base.settings.settings import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, ConfigError
from gossamer.node.base.terminal.terminal import open_console
from gossamer.node.demo.live_view import View, print_summary, what_stays
from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm, SwarmError
from gossamer.node.demo.plot import Mark, draw_loss_curve
from gossamer.node.demo.record import Record
from gossamer.node.demo.ring_aim import RingAim
from gossamer.node.telemetry.status import Status

DEFAULT_SECONDS = 100.0
LIMIT_SECONDS = 160.0
"""Training ends by then, whatever is missing. The rest of the demo takes less than 20 s."""

KILL_AT, JOIN_AT, END_AT = 0.40, 0.55, 0.93
"""Fractions of the time at which the seed is killed, the fifth peer starts, and the end is near."""

POLL_SECONDS = 0.15
"""Time between two looks at all peers. A round takes a second or more."""

AIM_SECONDS = 0.01
"""Time between two looks at the peer to be killed. A ring takes some tenths of a second."""

AIM_LIMIT_SECONDS = 20.0
"""Limit for hitting the middle of a ring, about ten rings. Later any moment of a ring will do."""

LEAVE_SECONDS = 8.0
"""Limit for an orderly leave. A slower peer is killed, which loses no committed work."""

LOG_LINES = 15
"""Lines shown of the log of a peer that should not have ended. The file has the rest."""

NUM_FOUNDERS = 4
PICTURE_NAME = "loss.png"

MANIFEST = """\
# The run that `gossamer demo` founds. About a hundred seconds on two cores: the rounds are short.
preset = "tiny"
name = "demo"

[corpus]
max_bytes = 4000000

[inner]
warmup_steps = 20
total_steps = 400
ends = false

[outer]
inner_steps = 10
warmup_rounds = 12
warmup_inner_steps = 4

[rounds]
gather_seconds = 3.0
"""


def run_demo(
    directory: Path | None = None,
    *,
    seconds: float = DEFAULT_SECONDS,
    console: Console | None = None,
) -> int:
    """Runs the demo and prints its results.

    The call blocks for about `seconds`, and at most for `LIMIT_SECONDS` and the time of the end.
    All daemons have ended when it returns or raises.

    Args:
        directory: folder in which states, logs and picture stay. None means a new temporary folder,
            in which only logs and picture stay.

    Returns:
        The exit status: 0 if every step of the story happened, the loss fell, and the states of the
        living peers are equal; otherwise 1.

    Raises:
        ConfigError: the directory is not empty, or a file.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP came.
    """
    folder = _folder(directory)
    console = console or open_console()
    record = Record()
    problems: list[str] = []
    is_stopped, started = False, time.monotonic()
    try:
        with (
            _interrupts_held_back() as check_interrupts,
            LocalSwarm(folder, ("--threads", "1")) as swarm,
        ):
            demo = Demo(swarm, record, console, check_interrupts, started=started, seconds=seconds)
            try:
                with demo.view:
                    demo.play()
            except SwarmError as error:
                problems.append(str(error))
            demo.end()
    except KeyboardInterrupt:
        is_stopped = True
        raise
    finally:
        if directory is None:
            for state_dir in folder.glob("node*/"):
                shutil.rmtree(state_dir, ignore_errors=True)
        if is_stopped:
            console.print(f"stopped: {what_stays(folder)}", soft_wrap=True, highlight=False)
    picture = _draw(folder / PICTURE_NAME, record, demo.marks)
    took = time.monotonic() - started
    print_summary(record, console, seconds=took, picture=picture, folder=folder)
    problems += failures(record)
    for problem in problems:
        console.print(Text(f"failed: {problem}", "red"), highlight=False)
    return 1 if problems else 0


def failures(record: Record) -> list[str]:
    """Returns one sentence for each result that is not as it must be."""
    problems = []
    losses, digests = record.losses(), record.digests()
    if losses is None:
        problems.append("fewer than two rounds were committed")
    elif not losses.fell:
        problems.append(f"the loss {losses.kind} did not fall")
    if digests is None:
        problems.append("the living peers were never seen at the same round")
    elif not digests.equal:
        problems.append("the living peers' states differ")
    return problems


def _folder(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="gossamer-demo-"))
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError([f"{directory} is not empty: name a new or an empty folder"])
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError([f"{directory} is no folder: name a new or an empty folder"]) from None
    return directory.resolve()


def without_own_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables by which a person's own settings do not reach the demo's nodes: those
    of the shell are empty, and the file is an empty one. An empty name would mean the platform's
    own file."""
    own = {name: "" for name in environment if name.startswith(ENVIRONMENT_PREFIX)}
    return own | {CONFIG_VARIABLE: os.devnull}


def _draw(path: Path, record: Record, marks: Sequence[Mark]) -> Path | None:
    training, heldout = record.training_losses(), record.heldout_losses()
    if not training:
        return None
    draw_loss_curve(
        path,
        title="gossamer demo: 0.47 M parameters, Python's standard library",
        training=training,
        heldout=heldout,
        marks=marks,
    )
    return path


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[Callable[[], None]]:
    """Holds SIGINT, SIGTERM and SIGHUP back, so that none comes while a process is being started.

    Yields a function that raises KeyboardInterrupt if a signal came. A second signal raises at
    once.
    """
    has_come = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        if has_come:
            raise KeyboardInterrupt
        has_come = True

    def check() -> None:
        if has_come:
            raise KeyboardInterrupt

    # Python delivers signals only to the main thread.
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Demo:
    """The steps of the story, and the daemons in it."""

    def __init__(
        self,
        swarm: LocalSwarm,
        record: Record,
        console: Console,
        check_interrupts: Callable[[], None],
        *,
        started: float,
        seconds: float,
    ) -> None:
        self._swarm = swarm
        self._record = record
        self._check_interrupts = check_interrupts
        self._started = started
        self._seconds = seconds
        self._nodes: dict[str, LocalNode] = {}
        self.view = View(record, console, self.elapsed)
        self.marks: list[Mark] = []

    def elapsed(self) -> float:
        """Returns the seconds since the start."""
        return time.monotonic() - self._started

    def play(self) -> None:
        """Runs the story up to its end. Raises SwarmError if a step did not happen in time."""
        founders = self._found()
        self._until(
            lambda: any(
                len(p.rounds) and len(p.rounds[max(p.rounds)].members) == NUM_FOUNDERS
                for p in self._record.living
            ),
            "ring of all four",
        )
        self._note(f"all four average in one ring (round {self._record.round})")
        self._until_time(KILL_AT)
        self._kill_in_ring(founders[0])
        self._until_time(JOIN_AT)
        self._join_fifth(founders[1])
        self._until_time(END_AT)
        last = self._record.round
        self._until(
            lambda: (self._record.common_round() or 0) > last,
            "round at which all peers reported their state",
        )
        self._note(f"the end: all {len(self._record.living)} peers reported their state")

    # Scenes

    def _found(self) -> list[str]:
        manifest = self._swarm.root / "demo.toml"
        manifest.write_text(MANIFEST)
        seed = self._start("start", "--manifest", str(manifest), doing="founding")
        self._note(f"{seed} founds a run on the sources of Python's standard library")
        address = self._address_of(seed)
        others = [self._start("join", address) for _ in range(NUM_FOUNDERS - 1)]
        self._note(f"{', '.join(others)} join by its address, {address.partition('/p2p/')[0]}")
        return [seed, *others]

    def _kill_in_ring(self, name: str) -> None:
        before = self._aim(name)
        self._nodes[name].kill()
        self._record.peer(name).ended("killed")
        killed = self.elapsed()
        number = before.round + 1
        self.marks.append(Mark(number, f"{name} (the seed) killed"))
        self._note(f"{name}, the seed, is killed (SIGKILL) in the ring of round {number}")
        survivors = [other.name for other in self._record.living]
        self._until(
            lambda: self._record.ring_of(number, survivors) is not None,
            f"commit of round {number} by the survivors",
        )
        ring = self._record.ring_of(number, survivors)
        assert ring is not None
        self._note(
            f"round {number} is committed {self.elapsed() - killed:.1f} s later, with the work of "
            f"{len(ring.contributors)} of its ring's {len(ring.members)}"
        )

    def _aim(self, name: str) -> Status:
        """Waits for the middle of a ring, by the peer's own counters. Returns its status then."""
        node, aim = self._nodes[name], RingAim()
        deadline = self.elapsed() + AIM_LIMIT_SECONDS
        next_look = self.elapsed()
        while True:
            self._check_time(f"ring with {name} in it")
            if self.elapsed() >= next_look:
                self._look()
                next_look = self.elapsed() + POLL_SECONDS
            status = node.status()
            if status is not None:
                is_late = status.phase == "averaging" and self.elapsed() > deadline
                if aim.is_amid(status) or is_late:
                    return status
            time.sleep(AIM_SECONDS)

    def _join_fifth(self, host: str) -> None:
        fifth = self._start("join", self._address_of(host))
        self._note(f"{fifth} joins by the address of {host}")
        peer = self._record.peer(fifth)
        self._until(lambda: bool(peer.shared_rounds), f"round with {fifth} in the ring")
        first = min(peer.shared_rounds)
        self.marks.append(Mark(first, f"{fifth} joined"))
        self._note(f"{fifth} has the state and is in the ring of round {first}")

    # Machinery

    def _start(self, *command: str, doing: str = "joining") -> str:
        node = self._swarm.add(environment=without_own_settings(os.environ))
        name = node.root.name
        self._nodes[name] = node
        self._record.peer(name).doing = doing
        node.start(*command)
        return name

    def _address_of(self, name: str) -> str:
        peer = self._record.peer(name)
        self._until(lambda: bool(peer.status and peer.status.addresses), f"address of {name}")
        assert peer.status is not None
        return peer.status.addresses[0]

    def _note(self, text: str) -> None:
        self._record.note(self.elapsed(), text)
        self.view.update()

    def _until_time(self, part: float) -> None:
        self._until(lambda: self.elapsed() >= part * self._seconds, "time")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Watches the swarm until a condition holds."""
        while not condition():
            self._check_time(what)
            self._look()
            time.sleep(POLL_SECONDS)

    def _check_time(self, what: str) -> None:
        if self.elapsed() > LIMIT_SECONDS:
            raise SwarmError(f"no {what} within {LIMIT_SECONDS:g} s: is this machine very busy?")

    def _look(self) -> None:
        self._check_interrupts()
        for peer in self._record.living:
            node = self._nodes[peer.name]
            status = node.status()
            if status is not None:
                self._record.see(peer.name, status, self.elapsed())
            elif not node.is_running:
                peer.ended("ended")
                end = node.tail(LOG_LINES)
                raise SwarmError(f"{peer.name} ended by itself; the end of its log:\n{end}")
        self.view.update()

    def end(self) -> None:
        """Lets all living peers leave in order, and kills the rest after `LEAVE_SECONDS`."""
        for node in self._swarm.running:
            node.signal(signal.SIGTERM)
        deadline = time.monotonic() + LEAVE_SECONDS
        for node in self._swarm.running:
            try:
                node.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.kill()
