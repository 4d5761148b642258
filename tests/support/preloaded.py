"""Processes of the product that begin as copies of one process which has everything loaded.

    python -m gossamer.node.cli ...        takes 2 s of processor time for its imports
    python -m gossamer.trainer.worker      takes 2 s for torch

The tests start several hundred of them. `Popen` below stands for `subprocess.Popen` while they
run. It asks a server, which has loaded the modules and has one thread, to fork. Every other command
is executed as always, and so is one that needs what only `exec` gives.

The copy is a child of the process that asked for it: it can be waited for, killed, frozen and
confined, and its command line, session, folder, environment and open files are those that were
asked for. It differs in three ways. Its memory has libp2p and torch in it, its hash seed is the
server's, and a copy of `gossamer.node.cli` has a child more: a server of its own, from which its
trainer comes. The option `--real-processes` and the mark `real_processes` start all anew.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import gc
import importlib
import inspect
import json
import os
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, AnyStr

ROOT = Path(__file__).parents[2]

CLI = "gossamer.node.cli"
CODE = "tests.support.forked_code"
MODULES = (
    CLI,
    "gossamer.node.runs.founding.cut_confined",
    "gossamer.node.runs.founding.preparing_process",
    "gossamer.trainer.generation.generate",
    "gossamer.trainer.ranks.follower",
    "gossamer.trainer.train",
    "gossamer.trainer.worker",
    "tests.benchmarks._ring_gossamer",
    CODE,
)
"""Modules that a copy may run."""

LOADED = (
    "gossamer.node.app.daemon",
    "gossamer.node.command_table",
    "gossamer.node.runs.founding.preparing_process",
    "gossamer.trainer.generation.generate",
    "gossamer.trainer.worker_loop",
)
"""Modules that the server loads besides all commands. `MODULES` themselves are run by a copy."""

READ_AT_IMPORT = (
    *("CUDA", "GOMP", "KMP", "LANG", "LC_", "LD_", "MALLOC", "MKL", "OMP", "OPENBLAS"),
    *("PYTHON", "PYTORCH", "TORCH", "TZ"),
)
"""Beginnings of variables that Python and libraries read when they are loaded: a process with
others is started anew."""

SET_WHILE_RUNNING = (
    "CUDA_DEVICE_ORDER",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TORCH_GLOO_LAZY_INIT",
)
"""A daemon sets the first of these variables for every process that computes; CUDA reads it when a
process first uses a card, and the server uses none. Torch sets the second one in a process that
loads its compiler, to the value that it would have in any case; a trainer sets the third one in
itself before it compiles, and one of several devices the fourth one before it connects them. A test
that does so must not change how the processes of later tests are started."""

_THREADS = "OMP_NUM_THREADS"  # `tests/conftest.py` sets it, unless the person has

MESSAGE_BYTES_MAX = 96 * 1024
"""Limit of a request, of which the environment is most. A socket takes twice as much."""
FDS_MAX = 64
ANSWER_SECONDS_MAX = 240.0
"""Limit of the wait for a copy. The first one waits until the server has loaded its modules, which
takes four seconds of processor time; some machines have a load of 20."""
COMMAND_LINE_BYTES = 8 * 1024
"""Room for the command line of a copy. Longer ones are cut."""

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000  # <linux/sched.h>
_MS_REC, _MS_SLAVE, _MNT_DETACH = 1 << 14, 1 << 19, 2  # <linux/mount.h>, <sys/mount.h>
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that groups of processes get; a server ends with the process that it serves."""


@dataclass(frozen=True)
class _Start:
    """What a copy is to become."""

    command: list[str]
    namespace: str
    """Network namespace to enter, as `ip netns exec` does; empty for none."""
    environment: dict[str, str]
    folder: str
    fds: list[int]
    """Numbers of its open files, in the order in which they are sent."""
    new_session: bool
    process_group: int


REAL_POPEN = subprocess.Popen


class Popen(subprocess.Popen[AnyStr]):
    """`subprocess.Popen` that lets a server fork for commands of `MODULES`."""

    def _execute_child(self, *given: Any) -> None:
        call: Mapping[str, Any] = _CALL.bind(self, *given).arguments
        start = _start_of(call)
        if start is None:
            super()._execute_child(*given)  # type: ignore[misc]
        else:
            self._fork(start, call)

    def _fork(self, start: _Start, call: Mapping[str, Any]) -> None:
        self.pid = _server().fork(start, [*_standard_fds(call), *start.fds[3:]])
        self._child_created: bool = True
        self._close_pipe_fds(*map(call.get, _PIPES))  # type: ignore[attr-defined]


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_CALL = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


def _start_of(call: Mapping[str, Any]) -> _Start | None:
    """Returns the start of a copy, or None if the command has to be executed."""
    args = call["args"]
    if isinstance(args, str | bytes | os.PathLike):
        return None
    command, namespace = [os.fsdecode(each) for each in args], ""
    if command[:3] == ["ip", "netns", "exec"]:
        _, _, _, namespace, *command = command
    is_module = len(command) > 2 and command[:2] == [sys.executable, "-m"]
    fits = is_module and command[2] in MODULES
    if not fits or call["executable"] not in (None, args[0]) or not call["close_fds"]:
        return None
    if call["preexec_fn"] is not None or call["shell"] or call["umask"] != -1:
        return None
    if any(call[name] is not None for name in ("gid", "gids", "uid")):
        return None
    environment = os.environ if call["env"] is None else call["env"]
    wanted = {os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()}
    # With more threads than one numpy starts them when it is loaded, and no process can be forked.
    loaded_with = _servers[0].loaded_with if _servers else _read_at_import(os.environ)
    if _read_at_import(wanted) != loaded_with or wanted.get(_THREADS) != "1":
        return None
    start = _Start(
        command=command,
        namespace=namespace,
        environment=wanted,
        folder=os.fsdecode(call["cwd"] or os.getcwd()),
        fds=[0, 1, 2, *sorted(call["pass_fds"])],
        new_session=bool(call["start_new_session"]),
        process_group=call["process_group"],
    )
    return start if len(start.fds) <= FDS_MAX and len(_encoded(start)) < MESSAGE_BYTES_MAX else None


def _standard_fds(call: Mapping[str, Any]) -> list[int]:
    """Returns what a copy has as 0, 1 and 2: ends of pipes, files, or what this process has."""
    ends = (call["p2cread"], call["c2pwrite"], call["errwrite"])
    return [number if end == -1 else end for number, end in enumerate(ends)]


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    names = [key for key in environment if key.startswith(READ_AT_IMPORT)]
    return {name: environment[name] for name in names if name not in SET_WHILE_RUNNING}


def _encoded(start: _Start) -> bytes:
    return json.dumps(asdict(start)).encode()


class _Server:
    """The asking side of a server. Threads may ask at the same time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._control.settimeout(ANSWER_SECONDS_MAX)
        self.loaded_with = _read_at_import(os.environ)
        self._lock = threading.Lock()

    def fork(self, start: _Start, fds: Sequence[int]) -> int:
        """Returns the process id of a copy, which is now a child of this process."""
        with self._lock, _adopting():
            socket.send_fds(self._control, [_encoded(start)], fds)
            answer = self._control.recv(32)
        if not answer:
            raise OSError("the process that tests fork from has ended; its error is above")
        return int(answer)

    def close(self) -> None:
        self._control.close()


@contextmanager
def _adopting() -> Iterator[None]:
    """Makes this process the parent of descendants whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt others")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


_servers: list[_Server] = []
"""The server of this process: none before the first copy is wanted."""
_starting = threading.Lock()


def _server() -> _Server:
    with _starting:
        if not _servers:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            program = "import sys; from tests.support.preloaded import main; main()"
            command = [sys.executable, "-c", program, str(theirs.fileno())]
            process = subprocess.Popen(
                [*command, " " * COMMAND_LINE_BYTES], pass_fds=[theirs.fileno()], cwd=ROOT
            )
            theirs.close()
            server = _Server(ours)
            _servers.append(server)
            atexit.register(process.wait)
            atexit.register(server.close)  # called first
    return _servers[0]


def main() -> None:
    """Loads everything, and forks for each request. A copy returns from here as the process that
    was asked for; its end is then the end of the program."""
    atexit.register(_end_at_once)  # before all others, so that it is called after them
    dispositions = {each: signal.getsignal(each) for each in _SIGNALS}
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    commands = importlib.import_module("gossamer.node.commands")
    for module in pkgutil.walk_packages(commands.__path__, "gossamer.node.commands."):
        importlib.import_module(module.name)
    for name in LOADED:
        importlib.import_module(name)
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1
    gc.collect()
    # A generator of random numbers that was made at import would give the same to all copies.
    generators = [each for each in gc.get_objects() if issubclass(type(each), random.Random)]
    gc.freeze()  # the collector writes to what it looks at, which would copy the pages
    _run(*_serve(control), generators, dispositions)


def _serve(control: socket.socket) -> tuple[_Start, list[int]]:
    """Forks for each request; returns in each copy. Ends the program with the asking process."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, FDS_MAX)
        if not message:
            os._exit(0)
        reader, writer = os.pipe()
        waits, adopted = os.pipe()
        between = os.fork()
        if not between:
            # The end of the process between makes the copy a child of the one that adopts.
            pid = os.fork()
            if not pid:
                # Before that the copy must not ask to be killed when its parent ends.
                os.read(waits, 1)
                # Else its end would close whatever has got its number by then.
                control.close()
                return _Start(**json.loads(message)), fds
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        os.write(adopted, b"\0")
        control.send(os.read(reader, 32))
        for fd in (reader, writer, waits, adopted, *fds):
            os.close(fd)


def _run(
    start: _Start,
    fds: Sequence[int],
    generators: Sequence[random.Random],
    dispositions: Mapping[signal.Signals, Any],
) -> None:
    """Becomes the process that was asked for, and runs it."""
    _servers.clear()
    _take_fds(fds, start.fds)
    if start.new_session:
        os.setsid()
    elif start.process_group >= 0:
        os.setpgid(0, start.process_group)
    if start.namespace:
        _enter(start.namespace)
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    for generator in generators:
        generator.seed()
    _, _, module, *arguments = start.command
    if module == CLI:
        _keep_server(generators, dispositions)
    for number, disposition in dispositions.items():
        signal.signal(number, disposition)
    _show_command_line(start.command)
    _open_standard_streams()
    sys.path[0] = start.folder
    sys.argv = ["-m", *arguments]
    # A module of these may be loaded already, as what others import from.
    warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning, "runpy")
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        _status.append(0)
    except SystemExit as end:
        _status.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except Exception:
        _status.append(1)
        raise


_status: list[int] = []
"""The exit status of this process, once it has one."""


def _end_at_once() -> None:
    """Ends a process that has done everything but to free its memory. To free it means to copy all
    of the server's, which takes longer than most commands."""
    if _status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status[-1])


def _enter(namespace: str) -> None:
    """Enters a network namespace as `ip netns exec` does: /sys shows that network's devices, in a
    mount namespace of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    for failed in (
        libc.setns(network, _CLONE_NEWNET),
        libc.unshare(_CLONE_NEWNS),
        libc.mount(b"", b"/", b"none", ctypes.c_ulong(_MS_SLAVE | _MS_REC), None),
        libc.umount2(b"/sys", _MNT_DETACH) and ctypes.get_errno() != errno.EINVAL,
        libc.mount(namespace.encode(), b"/sys", b"sysfs", ctypes.c_ulong(0), None),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
    os.close(network)


def _take_fds(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Gives the open files their numbers, and closes all others."""
    free = max(numbers) + 1
    spare = [fcntl.fcntl(fd, fcntl.F_DUPFD, free) for fd in fds]
    for fd, number in zip(spare, numbers, strict=True):
        os.dup2(fd, number)
    limit = os.sysconf("SC_OPEN_MAX")
    for low, high in zip(numbers, [*numbers[1:], limit], strict=True):
        os.closerange(low + 1, high)


def _keep_server(
    generators: Sequence[random.Random], dispositions: Mapping[signal.Signals, Any]
) -> None:
    """Keeps a copy of this process as its server, from which its trainer comes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        _servers.append(_Server(ours))
        subprocess.Popen = Popen  # type: ignore[misc]
        return
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    _show_command_line(["server", "of", "copies"])
    _run(*_serve(theirs), generators, dispositions)
    # The end of the copy is the end of the program, also here in the middle of another `_run`.
    sys.exit()


def _show_command_line(command: Sequence[str]) -> None:
    """Puts a command line where the kernel shows it to `ps`, in the place of the server's own."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, proc(5)
    text = b"".join(os.fsencode(each) + b"\0" for each in command)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _open_standard_streams() -> None:
    """Opens the streams of Python on the files that are 0, 1 and 2 now, as Python does."""
    encoding = sys.stdout.encoding
    sys.stdin = os.fdopen(0, encoding=encoding, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = os.fdopen(
        2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False
    )
