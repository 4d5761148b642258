"""The trainer gives up what it does not need: writing outside of its folder, and the network.

It parses what other peers made (shards of text, averaged numbers) in millions of lines of native
code. A mistake there must not become a program that changes this machine's files or calls home. On
a kernel that cannot do this the trainer works all the same, and says what is not confined.

What it needs to write: its optimiser's state, temporary files and the caches of compilers, which
all lie in its folder. With a GPU also the driver's devices, shared memory in /dev/shm, and the
names of its own threads in /proc. The vectors that it shares with the daemon are descriptors that
were open before, which stay usable.

Whether NVIDIA's driver then still works is tried beforehand (`probe`). Where it does not, the
process keeps what the driver needs and says so: a card that is not used protects nobody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gossamer.trainer.confinement import landlock, seccomp
from gossamer.trainer.confinement.probe import cuda_starts, works

_NVIDIA = "nvidia*"
_GPU_DEVICES = (_NVIDIA, "nvidia-caps/*", "dri/*", "kfd", "dxg")
"""Below /dev: NVIDIA's, AMD's two, and that of Windows' subsystem for Linux."""

_PLAIN_DEVICES = ("/dev/null", "/dev/zero")
_SHARED_MEMORY = Path("/dev/shm")

# The names of a process's threads lie there, which NVIDIA's driver writes. For a process of root's
# the rest of /proc has the machine's settings; other users have no rights there but to what is
# their own, and processes outside of the confinement do not let a confined one change them.
_OWN_THREADS, _ALL_THREADS = Path("/proc/self/task"), Path("/proc")

# Loading a module of the kernel takes a second or two.
_MODPROBE_SECONDS_MAX = 30


class Confinement(NamedTuple):
    """The rights that a process gave up."""

    files: bool
    """It writes to its folder alone (and to a GPU)."""
    tcp: bool
    """It opens no TCP connection and listens on no port."""
    network: bool
    """It opens no connection of any kind."""
    with_gpu: bool
    problems: tuple[str, ...]
    """The reasons for what it did not give up."""
    children_use_gpu: bool = True
    """Whether processes that it starts can use NVIDIA's cards, as far as was tried."""

    def without(self, *problems: str) -> Confinement:
        """The same, or less where a process that this one started keeps the network, and why."""
        if not problems:
            return self
        return self._replace(tcp=False, network=False, problems=(*self.problems, *problems))

    @property
    def text(self) -> str:
        """Says what is confined and what is not, for people. The folder's path is not in it: the
        status page shows the text to every user of the machine."""
        gpu = " and to the GPU's devices and /dev/shm" if self.with_gpu else ""
        writes = (
            f"the trainer can write only to its own folder{gpu}, and it"
            if self.files
            else "this machine does not confine the trainer's writing, and the trainer"
        )
        connects = (
            "cannot open network connections"
            if self.network
            else "cannot open TCP connections, but others"
            if self.tcp
            else "can open network connections"
        )
        why = f" ({'; '.join(self.problems)})" if self.problems else ""
        return f"{writes} {connects}{why}"


class _Parts(NamedTuple):
    """The parts of a confinement that are tried."""

    files: bool
    network: bool


_ALL_PARTS = _Parts(files=True, network=True)
_FEWER_PARTS = (_Parts(files=False, network=True), _Parts(files=True, network=False))
_NO_PARTS = _Parts(files=False, network=False)

_DRIVER_PROBLEM = "NVIDIA's driver does not work in a process that gave up more"


def confine(
    folder: Path,
    *,
    keeps_network: bool = False,
    gpu_starts: Callable[[], bool] | None = cuda_starts,
) -> Confinement:
    """Confines this process, for good, as far as the system and NVIDIA's driver can. `folder` is
    made where it is not there, its temporary files are removed, and libraries are told to keep
    their caches there.

    Call it before anything is imported that starts threads: Landlock confines one thread, and
    those that it starts later. With other threads writing does not count as given up.

    Args:
        keeps_network: leaves the network to this process, and to those that it starts, until each
            calls `give_up_network`.
        gpu_starts: tells in a confined process whether the driver works there. None where no card
            is used: then it is not tried.

    Raises:
        OSError: the folder cannot be made.
    """
    _prepare(folder)
    _wake_nvidia()
    parts, children_use_gpu = _ALL_PARTS, True
    if gpu_starts and any(Path("/dev").glob(_NVIDIA)) and _num_threads() == 1:
        parts, is_tried = _parts_for_driver(folder, keeps_network, gpu_starts)
        # With several devices it was tried in a child.
        if is_tried and not keeps_network:
            attempt = partial(_confine, folder, parts, keeps_network)
            children_use_gpu = works(attempt, gpu_starts, in_child=True)
    confinement = _confine(folder, parts, keeps_network)
    return confinement._replace(children_use_gpu=children_use_gpu)


def _parts_for_driver(
    folder: Path, keeps_network: bool, gpu_starts: Callable[[], bool]
) -> tuple[_Parts, bool]:
    """The most parts with which the driver works, and True; all of them, and False, if it does not
    work without any."""

    def is_fine(parts: _Parts) -> bool:
        # With several devices, processes that this one starts use them.
        attempt = partial(_confine, folder, parts, keeps_network)
        return works(attempt, gpu_starts, in_child=keeps_network)

    if is_fine(_ALL_PARTS):
        return _ALL_PARTS, True
    if not is_fine(_NO_PARTS):
        return _ALL_PARTS, False
    return next(filter(is_fine, _FEWER_PARTS), _NO_PARTS), True


def _confine(folder: Path, parts: _Parts, keeps_network: bool) -> Confinement:
    gpus = [path for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern)]
    gpus = [path for path in gpus if not path.is_dir()]
    folders = [folder, *([_SHARED_MEMORY] if gpus and _SHARED_MEMORY.is_dir() else [])]
    devices = [*map(Path, _PLAIN_DEVICES), *gpus]
    threads = _OWN_THREADS if os.geteuid() == 0 else _ALL_THREADS
    problems: list[str] = [] if parts == _ALL_PARTS else [_DRIVER_PROBLEM]
    abi = 0
    if _num_threads() > 1:
        problems.append("a library started threads before it could be confined")
    elif parts.files:
        try:
            abi = landlock.forbid_writes(
                folders=folders,
                devices=devices,
                files=[threads] if any(Path("/dev").glob(_NVIDIA)) else [],
                with_tcp=parts.network and not keeps_network,
            )
        except OSError as error:
            problems.append(str(error))
    confinement = Confinement(
        files=abi > 0,
        tcp=parts.network and not keeps_network and abi >= landlock.TCP_ABI,
        network=False,
        with_gpu=bool(gpus),
        problems=tuple(problems),
    )
    if keeps_network or not parts.network:
        return confinement
    return give_up_network(confinement)


def give_up_network(confinement: Confinement) -> Confinement:
    """Takes the network from this process with all its threads, for good, as far as the system can.
    Connections that it has stay. `confinement`: what it gave up before."""
    problem = take_network()
    if problem:
        return confinement._replace(problems=(*confinement.problems, problem))
    return confinement._replace(tcp=True, network=True)


def take_network() -> str:
    """Takes the network from this process with all its threads, for good. Returns the reason where
    the system refuses, for people, and nothing otherwise."""
    try:
        landlock.forbid_new_privileges()
        seccomp.forbid_network()
    except OSError as error:
        return str(error)
    return ""


def _prepare(folder: Path) -> None:
    temporary, cache = folder / "tmp", folder / "cache"
    shutil.rmtree(temporary, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in (temporary, cache):
        # On a full disk the trainer can do without them, and its round is worth having.
        with suppress(OSError):
            path.mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)
    os.environ["XDG_CACHE_HOME"] = str(cache)
    for variable, name in (
        ("CUDA_CACHE_PATH", "cuda"),
        ("TRITON_CACHE_DIR", "triton"),
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("MIOPEN_USER_DB_PATH", "miopen"),
        ("MIOPEN_CUSTOM_CACHE_DIR", "miopen-cache"),
    ):
        os.environ[variable] = str(cache / name)


def _wake_nvidia() -> None:
    """Has NVIDIA's helper make the device of unified memory. CUDA otherwise starts that helper
    itself, which is a setuid program and so has no rights in a confined process."""
    if Path("/dev/nvidiactl").exists() and not Path("/dev/nvidia-uvm").exists():
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                ["nvidia-modprobe", "-c0", "-u"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_MODPROBE_SECONDS_MAX,
                check=False,
            )


def _num_threads() -> int:
    with suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return 1
