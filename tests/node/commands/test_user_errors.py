"""Which errors a service manager meets again at each start, so that it must not start again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import IO

import pytest

from gossamer.node.app.http.http_server import ApiBindError
from gossamer.node.base.disk_health import DiskError, disk_error
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.cli import run_command
from gossamer.node.commands import user_errors
from gossamer.node.commands.daemon.join import only_run
from gossamer.node.commands.user_errors import exit_status, explain
from gossamer.node.network.identity import IdentityError, read_backup
from gossamer.node.network.transport import ListenError
from gossamer.node.peers.members.run_exchange import JoinError, NotAdmittedError, WrongRunError
from gossamer.node.runs.founding.preparing import PreparingError
from gossamer.node.runs.governance.inviting import InvitationError, NoAddressError
from gossamer.node.runs.governance.signed_orders import OrderError
from gossamer.node.storage.state_dir import StateDir, StateDirError, StateDirInUseError
from gossamer.protocol.errors import ManifestError
from gossamer.trainer.export.hugging_face import ExportError
from gossamer.trainer.text.sources.corpus_errors import CorpusError


@pytest.mark.parametrize(
    "error",
    [
        ConfigError(["--device: 'gpu'"]),
        ManifestError(["sync"]),
        CorpusError("no text"),
        ExportError("the folder is not empty"),
        IdentityError("damaged"),
        InvitationError("not joined by invitation"),
        OrderError("only the founder"),
        NotAdmittedError("a stranger"),
        WrongRunError("another run"),
        StateDirError("of another run"),
    ],
)
def test_what_somebody_has_to_change_is_status_2(error: Exception) -> None:
    assert explain(error)
    assert exit_status(error) == 2


@pytest.mark.parametrize(
    "error",
    [
        ApiBindError("in use"),
        DiskError("full"),
        JoinError("no peer answers"),
        ListenError("in use"),
        PreparingError("out of memory"),
        NoAddressError("try again later"),
        StateDirInUseError(Path("here"), 1),
        OSError(errno.ENETDOWN, "network is down"),
    ],
)
def test_what_may_pass_is_status_1(error: Exception) -> None:
    assert explain(error)
    assert exit_status(error) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_told_with_what_to_do(tmp_path: Path) -> None:
    """As in `gossamer peers --csv > members.csv`: the error has no name of a file."""
    told = (
        "gossamer: the output cannot be written: No space left on device. Free some space, and "
        "give the command again\n"
    )
    with open("/dev/full", "w") as full:
        assert written_to(full, "presets") == (1, told)
        assert written_to(full, "limits", "--state-dir", str(tmp_path)) == (1, told)


def written_to(output: IO[str], *command: str) -> tuple[int, str]:
    """Runs a command whose output Python keeps back until its end, as for most people. Returns its
    exit status and what it says on stderr."""
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "gossamer.node.cli", *command],
        stdout=output, stderr=subprocess.PIPE, env=environment, text=True,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_reader_that_has_gone_is_no_error_to_tell(tmp_path: Path) -> None:
    """As in `gossamer limits | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        assert written_to(output, "presets") == (1, "")
        assert written_to(output, "limits", "--state-dir", str(tmp_path)) == (1, "")


def test_a_file_on_a_read_only_disk_is_told_with_what_to_do() -> None:
    told = explain(OSError(errno.EROFS, "Read-only file system", "public"))
    assert told == ["public: Read-only file system. Name a place that can be written"]
    told = explain(OSError(errno.ENOENT, "No such file or directory", "public"))
    assert told == ["public: No such file or directory"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EAGAIN, "ulimit -u"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENOMEM, "a smaller model"),
        (errno.ENETDOWN, "the system refuses: Network is down"),
    ],
)
def test_a_limit_of_the_system_is_told_with_what_to_do(number: int, advice: str) -> None:
    """As where a container has too little memory for what daemon and trainer share: no file has a
    name."""
    (told,) = explain(OSError(number, os.strerror(number))) or []
    assert os.strerror(number) in told
    assert advice in told
    assert "Errno" not in told


def test_a_path_that_is_too_long_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """Its error is Python's own, from whatever looks at the path first."""
    assert run_command(["start", "--state-dir", f"/tmp/{'x' * 300}", "--device", "cpu"]) == 2
    told = capsys.readouterr().err
    assert "File name too long. Name a shorter path" in " ".join(told.split())
    assert exit_status(OSError(errno.ELOOP, os.strerror(errno.ELOOP), "link")) == 2
    assert exit_status(OSError(errno.ENOENT, os.strerror(errno.ENOENT), "file")) == 1


def test_a_file_beyond_the_limit_of_its_size_is_no_broken_disk(tmp_path: Path) -> None:
    error = disk_error(tmp_path / "block", 10, OSError(errno.EFBIG, "File too large"))
    assert "ulimit -f" in str(error)
    assert "disk fails" not in str(error)


def test_too_few_threads_are_told_without_a_traceback() -> None:
    """Each task of a node that starts a thread fails then."""
    error = RuntimeError("can't start new thread")
    for each in (error, ExceptionGroup("tasks", [error, ExceptionGroup("others", [error] * 2)])):
        (told,) = explain(each) or []
        assert "no more threads" in told
        assert "ulimit -u" in told
        assert exit_status(each) == 1
    assert explain(RuntimeError("a bug")) is None
    assert explain(ExceptionGroup("tasks", [error, RuntimeError("a bug")])) is None


def test_a_back_up_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(IdentityError) as caught:
        read_backup(tmp_path / "nowhere")
    assert exit_status(caught.value) == 2


def test_a_state_directory_is_a_mistake_or_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status() -> int:
        with pytest.raises(StateDirError) as caught, StateDir(tmp_path / "file" / "state").locked():
            pass
        return exit_status(caught.value)

    (tmp_path / "file").touch()
    assert status() == 2  # a file where a folder should be

    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(Path, "mkdir", fail)
    assert status() == 1


def test_no_node_in_the_network_may_pass() -> None:
    with pytest.raises(JoinError) as caught:
        only_run([])
    assert exit_status(caught.value) == 1


def test_every_error_that_is_explained_exists() -> None:
    """The table names classes whose modules are not loaded, and a class before its bases."""
    seen: list[type] = []
    for name in user_errors._LASTS:
        module, kind = name.split(":")
        error = getattr(import_module(module), kind)
        assert issubclass(error, Exception)
        assert not issubclass(error, tuple(seen)), f"{name} stands below one of its bases"
        seen.append(error)


def test_an_error_is_explained_without_what_the_command_did_not_need(tmp_path: Path) -> None:
    program = (
        "import sys; from gossamer.node.cli import run_command\n"
        f"assert run_command(['status', '--state-dir', {str(tmp_path)!r}]) == 1\n"
        "print(*sys.modules.keys() & {'trio', 'structlog', 'numpy', 'rich.console'})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == ""
    assert "no node runs on" in done.stderr, done.stderr
