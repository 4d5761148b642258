"""A confined process writes to its folder alone and reaches nobody. The trainer works so."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.confinement import landlock
from gossamer.trainer.confinement.confine import Confinement
from gossamer.trainer.ipc import framing, memory, pipe
from gossamer.trainer.ipc import messages as m

pytestmark = pytest.mark.real_processes
"""What a process does before it loads torch is the matter here."""

CONFINED = """
import json, os, signal, socket, sys, threading
from pathlib import Path
from gossamer.trainer.confinement.confine import confine

folder, outside, port, unix, parent = sys.argv[1:]
confinement = confine(Path(folder)) if folder else None

def attempt(act):
    try:
        act()
    except PermissionError:
        return "refused"
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return "done"

def in_a_thread(act):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(attempt(act)))
    thread.start()
    thread.join()
    return answers[0]

def connect(family, address):
    with socket.socket(family) as one:
        one.connect(address)

def datagram(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", address)

def pair_datagram():
    for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
        one.close()

def listen():
    with socket.create_server(("127.0.0.1", 0)):
        pass

there = os.path.join(outside, "there")
tcp = ("127.0.0.1", int(port))
acts = {
    "create": lambda: open(os.path.join(outside, "new"), "w").close(),
    "overwrite": lambda: open(there, "r+").close(),
    "truncate": lambda: os.truncate(there, 0),
    "remove": lambda: os.remove(there + "-removed"),
    "rename": lambda: os.rename(there + "-renamed", there + "-anew"),
    "folder": lambda: os.mkdir(os.path.join(outside, "folder")),
    "link": lambda: os.symlink("/", os.path.join(outside, "link")),
    "tcp": lambda: connect(socket.AF_INET, tcp),
    "listen": listen,
    "udp": lambda: datagram(socket.AF_INET, tcp),
    "unix": lambda: connect(socket.AF_UNIX, unix),
    "unix datagram": pair_datagram,
    "signal": lambda: os.kill(int(parent), 0),
    "read": lambda: open(there).close(),
}
if folder:
    acts["own file"] = lambda: open(os.path.join(folder, "file"), "w").close()
    acts["own rename"] = lambda: os.rename(
        os.path.join(folder, "file"), os.path.join(folder, "tmp", "file")
    )
    acts["link in it"] = lambda: os.symlink("/", os.path.join(folder, "link"))
print(json.dumps({
    "parts": list(confinement)[:3] if confinement else [],
    "text": confinement.text if confinement else "",
    "acts": {name: attempt(act) for name, act in acts.items()},
    "thread": in_a_thread(acts["create"]),
    "child": os.system(f"touch {outside}/child 2> /dev/null") != 0,
}))
"""

WRITES = ("create", "overwrite", "truncate", "remove", "rename", "folder", "link", "link in it")
CONNECTIONS = ("tcp", "listen", "udp", "unix", "unix datagram")


def require_landlock() -> int:
    try:
        return landlock.abi_version()
    except OSError as error:
        pytest.skip(f"{error}")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    for name in ("there", "there-removed", "there-renamed"):
        (tmp_path / "outside" / name).write_text("content")
    return tmp_path / "outside"


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def attempts(folder: Path | None, outside: Path, port: int, tmp_path: Path) -> dict[str, object]:
    unix = str(tmp_path / "u")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(unix)
        server.listen(1)
        done = subprocess.run(
            [
                *(sys.executable, "-c", CONFINED, str(folder or ""), str(outside)),
                *(str(port), unix, str(os.getpid())),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


def acts_of(report: dict[str, object]) -> dict[str, str]:
    return msgspec.convert(report["acts"], dict[str, str])


def test_a_confined_process_writes_nowhere_else_and_reaches_nobody(
    tmp_path: Path, outside: Path, port: int
) -> None:
    abi = require_landlock()
    report = attempts(tmp_path / "own", outside, port, tmp_path)
    acts = acts_of(report)
    files, tcp, network = msgspec.convert(report["parts"], tuple[bool, bool, bool])
    assert files
    assert {name: acts[name] for name in WRITES} == dict.fromkeys(WRITES, "refused")
    assert (outside / "there").read_text() == "content"
    assert (report["thread"], report["child"]) == ("refused", True)
    assert acts["read"] == acts["own file"] == acts["own rename"] == "done"
    if network:
        assert {name: acts[name] for name in CONNECTIONS} == dict.fromkeys(CONNECTIONS, "refused")
    if tcp:
        assert acts["tcp"] == acts["listen"] == "refused"
    if abi >= 6:
        assert acts["signal"] == "refused"
    assert "can write only to its own folder" in str(report["text"])


def test_without_confinement_all_of_that_works(tmp_path: Path, outside: Path, port: int) -> None:
    acts = acts_of(attempts(None, outside, port, tmp_path))
    assert acts == dict.fromkeys(acts, "done")


@pytest.mark.parametrize(
    ("files", "tcp", "network", "said"),
    [
        (True, True, True, "only to its own folder, and it cannot open network connections"),
        (True, True, False, "and it cannot open TCP connections, but others (no filter)"),
        (False, False, True, "confine the trainer's writing, and the trainer cannot open network"),
        (False, False, False, "writing, and the trainer can open network connections (no filter)"),
    ],
)
def test_the_text_claims_no_more_than_what_is_so(
    files: bool, tcp: bool, network: bool, said: str
) -> None:
    problems = () if files and network else ("no filter",)
    assert said in Confinement(files, tcp, network, False, problems).text


def test_of_a_process_with_threads_only_the_network_is_confined(tmp_path: Path) -> None:
    program = (
        "import socket, sys, threading\n"
        "from pathlib import Path\n"
        "from gossamer.trainer.confinement.confine import confine\n"
        "end = threading.Event()\n"
        "def open_one():\n"
        "    end.wait()\n"
        "    try:\n"
        "        socket.socket().close()\n"
        "    except PermissionError:\n"
        "        print('the older thread made no socket')\n"
        "threading.Thread(target=open_one).start()\n"
        "confined = confine(Path(sys.argv[1]))\n"
        "print(confined.text)\n"
        "end.set()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "own")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if sys.platform == "linux":
        assert "does not confine the trainer's writing" in done.stdout, done.stderr
        assert "threads" in done.stdout
        if "cannot open network connections" in done.stdout:
            assert "the older thread made no socket" in done.stdout, done.stderr


def test_a_folder_that_cannot_be_made_is_said_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gossamer.trainer.worker", str(tmp_path / "not there" / "own")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "the trainer's folder cannot be made" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the network filter is for Linux")
def test_a_kernel_without_landlock_is_named_and_the_network_is_given_up_all_the_same(
    tmp_path: Path,
) -> None:
    program = (
        "import socket, sys\n"
        "from pathlib import Path\n"
        "from gossamer.trainer.confinement import landlock\n"
        "from gossamer.trainer.confinement.confine import confine\n"
        "landlock._CREATE_RULESET = 99_999\n"  # a call that no kernel has
        "confined = confine(Path(sys.argv[1]))\n"
        "print(confined.text)\n"
        "Path(sys.argv[1] + '-other').write_text('')\n"
        "if confined.network:\n"
        "    try:\n"
        "        socket.socket()\n"
        "    except PermissionError:\n"
        "        sys.exit(0)\n"
        "    sys.exit('a socket was made')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "own")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "does not confine the trainer's writing" in done.stdout
    assert "this kernel has no Landlock" in done.stdout


DRIVER = """
import os, sys, threading
from pathlib import Path
from gossamer.trainer.confinement import confine as module
from gossamer.trainer.confinement import probe

folder, outside, kind = sys.argv[1:]
module._NVIDIA, module._GPU_DEVICES = "null", ("null",)  # there is a card

def names_its_threads():
    for thread in os.listdir("/proc/self/task"):
        Path(f"/proc/self/task/{thread}/comm").write_text("cuda")
    return True

def writes_elsewhere():
    Path(outside, "driver").write_text("")
    return True

def never_starts():
    return False

def hangs():
    threading.Event().wait()

if kind == "hangs":
    probe.SECONDS_MAX = 0.5
print(confined := module.confine(Path(folder), gpu_starts=globals()[kind]))
try:
    open(f"/proc/{os.getppid()}/comm", "w").close()
    print("may name others")
except PermissionError:
    print("may name nobody else")
"""


def confined_with_driver(kind: str, tmp_path: Path) -> str:
    require_landlock()
    # Not in memory, where a process with a card may write.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(tmp_path / "own"), outside, kind],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_driver_that_names_its_threads_works_in_a_confined_process(tmp_path: Path) -> None:
    """NVIDIA's does since version 570, and ends with error 304 where it cannot. It was seen."""
    said = confined_with_driver("names_its_threads", tmp_path)
    assert "files=True" in said
    assert "network=True" in said
    assert "problems=()" in said
    # What root can write in /proc is no matter of this process alone.
    assert f"children_use_gpu={os.geteuid() != 0}" in said
    assert os.geteuid() != 0 or "may name nobody else" in said


@pytest.mark.parametrize("kind", ["never_starts", "hangs"])
def test_for_a_driver_that_does_not_work_at_all_nothing_is_kept(kind: str, tmp_path: Path) -> None:
    said = confined_with_driver(kind, tmp_path)
    assert "files=True" in said
    assert "network=True" in said
    assert "problems=()" in said


def test_what_the_driver_needs_is_kept_and_said(tmp_path: Path) -> None:
    said = confined_with_driver("writes_elsewhere", tmp_path)
    assert "files=False" in said
    assert "network=True" in said
    assert "NVIDIA's driver does not work in a process that gave up more" in said


def test_a_confined_trainer_trains_and_saves(
    model_config: ModelConfig, inner_config: InnerConfig, shard: str, tmp_path: Path
) -> None:
    require_landlock()
    own = tmp_path / "own"
    fds = [memory.create("test", model_config.num_parameters) for _ in range(2)]
    worker = subprocess.Popen(
        [sys.executable, "-m", "gossamer.trainer.worker", str(own)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=fds,
    )

    def ask(*orders: m.ToWorker) -> m.FromWorker:
        """The last answer to the orders that is neither a sign of life nor a step."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(b"".join(map(framing.encode, orders)))
        worker.stdin.flush()
        while True:
            body = pipe.read(worker.stdout, framing.MESSAGE_BYTES_MAX)
            assert body is not None
            said = framing.decode_from_worker(body)
            if not isinstance(said, m.Alive | m.Step | m.NeedData):
                return said

    with worker:
        try:
            configured = ask(
                m.Configure(
                    model=model_config,
                    inner=inner_config,
                    device="cpu",
                    limits=m.Limits(threads=2),
                    seed=0,
                    base_fd=fds[0],
                    pseudo_gradient_fd=fds[1],
                    token_bytes=2,
                    optimizer_path=str(own / "optimizer"),
                )
            )
            assert isinstance(configured, m.Configured)
            assert "can write only to its own folder" in configured.confinement
            assert isinstance(ask(m.Genesis()), m.GenesisDone)
            finished = ask(
                m.Data(shard=0, path=shard, start=0, stop=4400),
                m.Begin(round=1, first_step=0, steps_max=2, seconds_max=600.0),
            )
            assert isinstance(finished, m.Finished)
            assert finished.steps == 2
            assert memory.open_vector(fds[1], model_config.num_parameters).any()
            saved = ask(m.Save())
            assert isinstance(saved, m.Saved)
            assert saved.problem == ""
            assert (own / "optimizer").stat().st_size > 8 * model_config.num_parameters
            status = Path(f"/proc/{worker.pid}/status").read_text()
            assert "NoNewPrivs:\t1" in status
        finally:
            worker.kill()
            for fd in fds:
                os.close(fd)
