"""The trainer gives up what it does not need: writing outside of its folder, and the network.

It parses what other peers made (shards of text, averaged numbers) in millions of lines of native
code. A mistake there must not become a program that changes this machine's files or calls home. On
a kernel that cannot do this the trainer works all the same, and says what is not confined.

What it needs to write: its optimiser's state, temporary files and the caches of compilers, which
all lie in its folder. With a GPU also the driver's devices, and shared memory in /dev/shm. The
vectors that it shares with the daemon are descriptors that were open before, which stay usable.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gossamer.trainer.confinement import landlock, seccomp

_GPU_DEVICES = ("nvidia*", "nvidia-caps/*", "dri/*", "kfd", "dxg")
"""Below /dev: NVIDIA's, AMD's two, and that of Windows' subsystem for Linux."""

_PLAIN_DEVICES = ("/dev/null", "/dev/zero")
_SHARED_MEMORY = Path("/dev/shm")

# Loading a module of the kernel takes a second or two.
_MODPROBE_SECONDS_MAX = 30


class Confinement(NamedTuple):
    """What a process gave up."""

    files: bool
    """It writes to its folder alone (and to a GPU)."""
    tcp: bool
    """It opens no TCP connection and listens on no port."""
    network: bool
    """It opens no connection of any kind."""
    with_gpu: bool
    problems: tuple[str, ...]
    """The reasons for what it did not give up."""

    @property
    def text(self) -> str:
        """Says what is confined and what is not, for people. The folder's path is not in it: the
        status page shows the text to every user of the machine."""
        gpu = " and to the GPU's devices and /dev/shm" if self.with_gpu else ""
        can = [
            f"the trainer can write only to its own folder{gpu}"
            if self.files
            else "this machine does not confine the trainer's writing",
            "it cannot open network connections"
            if self.network
            else "it cannot open TCP connections, but others"
            if self.tcp
            else "it can open network connections",
        ]
        why = f" ({'; '.join(self.problems)})" if self.problems else ""
        return ", ".join(can) + why


def confine(folder: Path, *, keeps_network: bool = False) -> Confinement:
    """Confines this process, for good, as far as the system can. `folder` is made where it is not
    there, its temporary files are removed, and libraries are told to keep their caches there.

    Call it before anything is imported that starts threads: Landlock confines one thread, and
    those that it starts later. With other threads writing does not count as given up.

    Args:
        keeps_network: leaves the network to this process, and to those that it starts, until each
            calls `give_up_network`.

    Raises:
        OSError: the folder cannot be made.
    """
    _prepare(folder)
    _wake_nvidia()
    gpus = [path for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern)]
    gpus = [path for path in gpus if not path.is_dir()]
    folders = [folder, *([_SHARED_MEMORY] if gpus and _SHARED_MEMORY.is_dir() else [])]
    devices = [*map(Path, _PLAIN_DEVICES), *gpus]
    problems: list[str] = []
    abi = 0
    if _num_threads() > 1:
        problems.append("a library started threads before it could be confined")
    else:
        try:
            abi = landlock.forbid_writes(
                folders=folders, devices=devices, with_tcp=not keeps_network
            )
        except OSError as error:
            problems.append(str(error))
    confinement = Confinement(
        files=abi > 0,
        tcp=not keeps_network and abi >= landlock.TCP_ABI,
        network=False,
        with_gpu=bool(gpus),
        problems=tuple(problems),
    )
    return confinement if keeps_network else give_up_network(confinement)


def give_up_network(confinement: Confinement) -> Confinement:
    """Takes the network from this process with all its threads, for good, as far as the system can.
    Connections that it has stay.

    Args:
        confinement: what the process gave up before.
    """
    try:
        landlock.forbid_new_privileges()
        seccomp.forbid_network()
    except OSError as error:
        return confinement._replace(problems=(*confinement.problems, str(error)))
    return confinement._replace(tcp=True, network=True)


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
