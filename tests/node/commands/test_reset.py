"""`gossamer reset`, `gossamer uninstall` and `gossamer identity`."""

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Literal

import pytest
import trio
from cyclopts.completion.install import get_default_completion_path

from gossamer.node.base.settings.default_places import default_config_file
from gossamer.node.cli import run_command
from gossamer.node.commands.machine import reset
from gossamer.node.network.identity import Identity
from gossamer.node.service.managers import ServiceError
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.storage.state_names import (
    HELD_NAME,
    IDENTITY_NAMES,
    KEPT_NAMES,
    RUN_NAMES,
    erase,
)
from tests.support.node_world import World, simulate


def node_dir(root: Path) -> StateDir:
    """A state directory with files as a node leaves them: 3,000 bytes and a key."""
    state_dir = StateDir(root)
    with state_dir.locked():
        Identity.load_or_create(state_dir.identity_path)
        (root / "incarnation").write_text("7")
        state_dir.manifest_path.write_bytes(bytes(1000))
        (state_dir.blocks_path / "ab").mkdir(parents=True)
        (state_dir.blocks_path / "ab" / "block").write_bytes(bytes(2000))
    return state_dir


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return node_dir(tmp_path / "state")


def test_reset_keeps_the_identity_and_counts_the_bytes(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    key = state.identity_path.read_bytes()
    assert run_command(["reset", "--yes", "--state-dir", str(state.root)]) == 0
    # 2 bytes are those of the file `format`.
    assert capsys.readouterr().out == f"3,002 bytes are freed in {state.root}\n"
    assert names(state.root) == {*IDENTITY_NAMES, HELD_NAME}
    assert state.identity_path.read_bytes() == key
    assert not state.has_run()


def test_reset_frees_room_on_a_full_disk(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has to hold the directory, and there was no room for its pid."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert run_command(["reset", "--yes", "--state-dir", str(state.root)]) == 0
    assert names(state.root) == {*IDENTITY_NAMES, HELD_NAME}


def test_reset_keeps_the_limits_that_the_owner_set(state: StateDir) -> None:
    state.limits_path.write_bytes(b"upload")
    assert run_command(["reset", "--yes", "--state-dir", str(state.root)]) == 0
    assert state.limits_path.read_bytes() == b"upload"
    assert run_command(["uninstall", "--yes", "--state-dir", str(state.root)]) == 0
    assert not state.limits_path.exists()


def test_reset_refuses_while_a_node_runs(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(state.root)
    with StateDir(state.root).locked():
        assert run_command(["reset", "--yes", "--state-dir", str(state.root)]) == 1
        assert f"is in use by process {os.getpid()}" in capsys.readouterr().err
    assert names(state.root) == before


def test_reset_asks_and_without_a_terminal_does_nothing(
    state: StateDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reset", "--state-dir", str(state.root)]
    before = names(state.root)
    assert run_command(command) == 2
    assert "nobody is at the terminal" in capsys.readouterr().err

    class Terminal:
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            pass

    asked: list[str] = []
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    for answer, status in (("", 1), ("n", 1), (None, 1), ("y", 0)):
        assert names(state.root) == before
        said = answer

        def ask(text: str) -> str:
            asked.append(text)
            if said is None:  # noqa: B023
                raise EOFError  # Ctrl-D
            return said  # noqa: B023

        monkeypatch.setattr("builtins.input", ask)
        assert run_command(command) == status
    assert not state.has_run()
    assert "3.0 kB" in asked[0]


def test_reset_leaves_what_no_node_wrote(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state.root / "my notes.txt").write_text("mine")
    # The blocks on another disk: the link stays, and the folder is emptied.
    other = tmp_path / "other disk"
    state.blocks_path.rename(other)
    state.blocks_path.symlink_to(other)
    assert run_command(["reset", "--yes", "--state-dir", str(state.root)]) == 0
    assert "left there, because no node wrote it: blocks, my notes.txt" in capsys.readouterr().out
    assert state.blocks_path.is_symlink()
    assert names(other) == set()


def test_reset_touches_no_folder_that_is_no_state_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("mine")
    assert run_command(["reset", "--yes", "--state-dir", str(tmp_path)]) == 2
    assert "is no state directory" in capsys.readouterr().err
    assert names(tmp_path) == {"work"}
    assert run_command(["reset", "--yes", "--state-dir", str(tmp_path / "none")]) == 0


def test_every_file_of_a_node_is_known(tmp_path: Path) -> None:
    """A new file of a node needs a line in `RUN_NAMES`, or `reset` leaves it."""
    world = World(tmp_path, seed=1)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(3, "a")
        world.nodes["a"].pause()
        await trio.sleep(30)

    simulate(world, story)
    (root,) = {path.parent for path in tmp_path.rglob("chain")}
    known = {*RUN_NAMES, *KEPT_NAMES, HELD_NAME}
    assert names(root) >= {"chain", "blocks", "work", "paused"}
    assert names(root) <= known
    # And those that the code names, whether or not a node has written them here.
    attributes = vars(StateDir(root)).values()
    paths = [path.relative_to(root) for path in attributes if isinstance(path, Path)]
    assert {path.parts[0] for path in paths if path.parts} <= known
    state_dir = StateDir(root)
    with state_dir.locked():
        assert erase(state_dir, keep_identity=False).left == ()


# uninstall


class FakeService:
    """A service that is there once."""

    file = Path("/etc/gossamer.service")

    def __init__(self) -> None:
        self.is_there = True

    def uninstall(self) -> bool:
        was_there, self.is_there = self.is_there, False
        return was_there

    def remove_rest(self) -> list[str]:
        return ["removed: the links"]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeService:
    fake = FakeService()
    monkeypatch.setattr(reset, "manager_here", lambda system: fake)
    monkeypatch.setattr(reset, "SYSTEM_STATE_DIR", tmp_path / "none")
    monkeypatch.setattr(
        "gossamer.node.base.settings.default_places.platformdirs.user_config_path",
        lambda name: tmp_path / "config" / name,
    )
    return fake


def test_uninstall_removes_service_state_and_settings(
    state: StateDir, service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    file = default_config_file()
    file.parent.mkdir(parents=True)
    file.write_text("threads = 2\n")
    assert run_command(["uninstall", "--yes", "--state-dir", str(state.root)]) == 0
    assert not service.is_there
    assert not state.root.exists()
    assert not file.parent.exists()
    out = capsys.readouterr().out
    assert "uninstall gossamer" in out
    assert "removed: the links" in out
    assert "bytes are freed" in out


def test_uninstall_keeps_the_identity_and_a_named_file_if_wanted(
    state: StateDir, service: FakeService, tmp_path: Path
) -> None:
    named = tmp_path / "mine.toml"
    named.write_text("threads = 2\n")
    options = ["--state-dir", str(state.root), "--config", str(named)]
    assert run_command(["uninstall", "--yes", "--keep-identity", *options]) == 0
    assert names(state.root) == {*IDENTITY_NAMES, HELD_NAME}
    assert named.exists()


def test_uninstall_takes_a_folder_with_nothing_but_the_owners_limits(
    service: FakeService, tmp_path: Path
) -> None:
    """As `gossamer limits set` leaves it before the first node."""
    state_dir = StateDir(tmp_path / "state")
    assert run_command(["limits", "set", "upload=10", "--state-dir", str(state_dir.root)]) == 0
    assert names(state_dir.root) == {"limits"}
    assert run_command(["uninstall", "--yes", "--state-dir", str(state_dir.root)]) == 0
    assert (state_dir.root.exists(), service.is_there) == (False, False)


def test_uninstall_looks_at_the_folder_before_the_service_goes(
    service: FakeService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    assert run_command(["uninstall", "--yes", "--state-dir", str(folder)]) == 2
    assert "nothing is removed" in capsys.readouterr().err
    assert (names(folder), service.is_there) == ({"thesis.tex"}, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_uninstall_removes_the_completion_of_a_shell(
    shell: Literal["bash", "zsh", "fish"],
    state: StateDir,
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("ZSH", "ZSH_CUSTOM"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    written = get_default_completion_path(shell, "gossamer")
    written.write_text("complete -F _gossamer gossamer\n")
    neighbour = written.with_name("git")
    neighbour.write_text("")
    assert run_command(["uninstall", "--yes", "--state-dir", str(state.root)]) == 0
    assert (written.exists(), neighbour.exists()) == (False, True)


def test_uninstall_asks_first(state: StateDir, service: FakeService) -> None:
    assert run_command(["uninstall", "--state-dir", str(state.root)]) == 2
    assert service.is_there
    assert state.has_run()


def test_uninstall_where_no_service_manager_is(
    state: StateDir, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_manager(system: bool) -> FakeService:
        raise ServiceError("there is none")

    monkeypatch.setattr(reset, "manager_here", no_manager)
    assert run_command(["uninstall", "--yes", "--state-dir", str(state.root)]) == 0
    assert not state.root.exists()


def test_root_removes_the_state_of_a_service_that_was_removed_before(
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`gossamer service uninstall` leaves the state, in a folder that root names nowhere."""
    machine = node_dir(tmp_path / "machine")
    service.is_there = False
    monkeypatch.setattr(reset, "SYSTEM_STATE_DIR", machine.root)
    monkeypatch.setattr(reset, "is_for_all_users", lambda: True)
    monkeypatch.setattr(
        "gossamer.node.base.settings.default_places.platformdirs.user_state_path",
        lambda name: tmp_path / "home" / name,
    )
    monkeypatch.delenv("GOSSAMER_STATE_DIR", raising=False)
    asked: list[str] = []

    def ask(question: str, *, yes: bool) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(reset, "require_yes", ask)
    assert run_command(["uninstall"]) == 0
    assert not machine.root.exists()
    assert f"{machine.root} (3.1 kB)" in asked[0]  # before it is lost, with its identity
    assert f"bytes are freed in {machine.root}" in capsys.readouterr().out


def test_root_keeps_the_state_of_the_machine_where_another_one_is_named(
    state: StateDir, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = node_dir(tmp_path / "machine")
    monkeypatch.setattr(reset, "SYSTEM_STATE_DIR", machine.root)
    monkeypatch.setattr(reset, "is_for_all_users", lambda: True)
    service.is_there = False
    assert run_command(["uninstall", "--yes", "--state-dir", str(state.root)]) == 0
    assert (state.root.exists(), machine.has_run()) == (False, True)


# identity


def test_an_identity_is_backed_up_and_restored(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer_id = Identity.load(state.identity_path).peer_id
    file, other = tmp_path / "key.pem", tmp_path / "other"
    assert run_command(["identity", "backup", str(file), "--state-dir", str(state.root)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o777)  # as on a stick with FAT
    assert run_command(["identity", "restore", str(file), "--state-dir", str(other)]) == 0
    restored = other / "identity.key"
    assert Identity.load(restored).peer_id == peer_id
    assert stat.S_IMODE(restored.stat().st_mode) == 0o600
    assert capsys.readouterr().out.count(peer_id) == 2


def test_a_back_up_into_no_folder_says_so(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = ["identity", "backup", "--state-dir", str(state.root), "--force"]
    assert run_command([*backup, str(tmp_path / "stick" / "key.pem")]) == 2
    assert f"there is no folder {tmp_path / 'stick'}: make it" in capsys.readouterr().err
    assert run_command([*backup, str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder: name a file in it" in capsys.readouterr().err


def test_no_identity_is_overwritten_without_force(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = ["--state-dir", str(state.root)]
    file = tmp_path / "key.pem"
    file.write_text("another secret")
    assert run_command(["identity", "backup", str(file), *mine]) == 2
    assert "exists already" in capsys.readouterr().err
    assert file.read_text() == "another secret"
    assert run_command(["identity", "backup", str(file), "--force", *mine]) == 0

    other = node_dir(tmp_path / "other")
    theirs = ["--state-dir", str(other.root)]
    key = other.identity_path.read_bytes()
    assert run_command(["identity", "restore", str(file), *theirs]) == 2
    assert "has another identity" in capsys.readouterr().err
    assert other.identity_path.read_bytes() == key
    assert run_command(["identity", "restore", str(file), "--force", *theirs]) == 0
    assert other.identity_path.read_bytes() == state.identity_path.read_bytes()
    # The same one again is no loss.
    assert run_command(["identity", "restore", str(file), *theirs]) == 0


@pytest.mark.parametrize("content", [b"", b"x" * 5000, b"-----BEGIN PRIVATE KEY-----\nAA\n"])
def test_what_is_no_identity_is_not_restored(
    state: StateDir, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(content)
    key = state.identity_path.read_bytes()
    command = ["identity", "restore", str(file), "--force", "--state-dir", str(state.root)]
    assert run_command(command) == 2
    assert "is damaged, or no back-up of an identity" in capsys.readouterr().err
    assert state.identity_path.read_bytes() == key


def test_an_identity_is_not_replaced_under_a_node(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key.pem"
    assert run_command(["identity", "backup", str(file), "--state-dir", str(state.root)]) == 0
    with StateDir(state.root).locked():
        command = ["identity", "restore", str(file), "--force", "--state-dir", str(state.root)]
        assert run_command(command) == 1
        assert "is in use" in capsys.readouterr().err


def test_a_node_without_identity_has_nothing_to_back_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["identity", "backup", str(tmp_path / "key.pem"), "--state-dir", str(tmp_path)]
    assert run_command(command) == 2
    assert "gossamer id" in capsys.readouterr().err
    assert not (tmp_path / "key.pem").exists()
