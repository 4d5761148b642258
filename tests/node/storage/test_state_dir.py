import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import structlog

from gossamer.node.base.disk_health import DiskError, DiskFullError, DiskHealth, write_atomically
from gossamer.node.heads.extensions import ExtensionFile
from gossamer.node.heads.rollbacks import RollbackFiles, Rollbacks
from gossamer.node.storage import known_peers as known_peers_module
from gossamer.node.storage.address_files import SEEDS_MAX
from gossamer.node.storage.admission_files import ExpulsionFile, RollFile, read_pinned_head
from gossamer.node.storage.daemon_files import TOKEN_BYTES, DaemonFiles
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.storage.owner_orders import read_limits
from gossamer.node.storage.state_dir import (
    StateDir,
    StateDirError,
    StateDirInUseError,
)
from gossamer.node.storage.state_names import require_kinds
from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.manifest import (
    SignedManifest,
    encode_manifest,
)
from gossamer.protocol.manifest_checks import require_valid
from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from tests.support.builders import manifest, peer


def signed_manifest(seed: int) -> SignedManifest:
    content = encode_manifest(require_valid(manifest(seed=seed)))
    return SignedManifest(manifest=content, signature=bytes(64))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "head"
    write_atomically(path, b"old")
    write_atomically(path, memoryview(b"new" * 100_000))
    assert path.read_bytes() == b"new" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["head"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "head"
    write_atomically(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=r"the disk is full: 3 bytes for .*head"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["head"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EROFS, "the disk is read-only: .*head cannot be written"),
        (errno.EIO, r"the disk fails: .*head cannot be written \(Input/output error\)"),
        (errno.EACCES, "rights on the directory"),
        (errno.ESTALE, "is gone: deleted, or on a disk that was removed"),
    ],
)
def test_every_trouble_of_the_disk_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    path = tmp_path / "head"
    write_atomically(path, b"old")

    def fail(*_args: object, **_more: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        patch.setattr(os, "unlink", fail)
        with pytest.raises(DiskError, match=words):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"nowhere is gone"):
        write_atomically(tmp_path / "nowhere" / "head", b"new")


def test_health_tells_of_the_first_trouble_and_of_its_end() -> None:
    health = DiskHealth()
    full, no_room = DiskError("the disk is full"), DiskError("no room for a header")
    with structlog.testing.capture_logs() as lines:
        health.wrote("state")
        assert health.problem is None
        for _ in range(3):
            health.failed("state", full)
            health.failed("chain", no_room)
        assert health.problem == "the disk is full"
        health.wrote("state")
        assert health.problem == "no room for a header"
        health.failed("state", full)
        health.wrote("state")
        health.wrote("chain")
        assert health.problem is None
        health.failed("state", no_room)
    assert [
        (line["log_level"], line.get("problem")) for line in lines if line["log_level"] != "debug"
    ] == [
        ("error", "the disk is full"),
        ("info", None),
        ("error", "no room for a header"),
    ]


def test_a_directory_that_is_not_ours_any_more(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path / "state")
    state_dir.require_ours()  # not locked: nothing to compare with
    with state_dir.locked():
        state_dir.require_ours()
        shutil.move(tmp_path / "state", tmp_path / "away")
        with pytest.raises(DiskError, match="is gone"):
            state_dir.require_ours()
        other = StateDir(tmp_path / "state")
        with other.locked(), pytest.raises(DiskError, match="deleted and made anew"):
            state_dir.require_ours()
        shutil.rmtree(tmp_path / "state")
        shutil.move(tmp_path / "away", tmp_path / "state")
        state_dir.require_ours()
        shutil.rmtree(tmp_path / "state")


def test_a_directory_that_takes_no_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFullError, match="lock did not fit"):
        StateDir(tmp_path).locked().__enter__()


def test_content_and_directory_are_synced_around_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        order.append("sync directory" if is_directory else "sync file")
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        order.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "head", b"x")
    assert order == ["sync file", "rename", "sync directory"]


def test_the_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from gossamer.node.storage.state_dir import StateDir\n"
        "with StateDir(Path(sys.argv[1])).locked():\n    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    root = tmp_path / "state"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateDirInUseError, match=f"process {holder.pid}:") as caught:
            StateDir(root).locked().__enter__()
        assert caught.value.pid == holder.pid
        holder.kill()
    # The kernel's lock ends with its holder, however that ended.
    with StateDir(root).locked():
        assert (root / "lock").read_text() == f"{os.getpid()}\n"
    assert (root / "lock").read_text() == ""
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_the_trainers_folder_is_the_owners_alone(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    for _ in range(2):
        with state_dir.locked():
            assert state_dir.trainer_path.stat().st_mode & 0o077 == 0


def test_locking_removes_what_a_crash_left(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    (tmp_path / ".head.0123.tmp").write_bytes(b"half")
    DaemonFiles(state_dir).write_api("127.0.0.1:1")
    with state_dir.locked():
        assert names(tmp_path) == ["format", "lock", "trainer"]
        DaemonFiles(state_dir).write_api("127.0.0.1:2")
        assert DaemonFiles(state_dir).read_api() == "127.0.0.1:2"
    assert DaemonFiles(state_dir).read_api() is None


@pytest.mark.parametrize("folder", ["work", "own", "rollbacks", "revoked", "voted"])
def test_locking_removes_what_a_crash_left_in_the_folders(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    write_atomically(tmp_path / folder / "whole", b"whole")

    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        patch.setattr(os, "unlink", lambda _path: None)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(tmp_path / folder / "whole", b"half")
    assert len(names(tmp_path / folder)) == 2
    with StateDir(tmp_path).locked():
        assert names(tmp_path / folder) == ["whole"]


def test_a_leftover_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    """As where the node ran as another user once: the lock is not to blame."""
    leftover = tmp_path / "work" / ".journal.tmp"
    leftover.mkdir(parents=True)
    with pytest.raises(DiskError, match=f"{leftover} cannot be"), StateDir(tmp_path).locked():
        pass


def test_files_in_a_folder_of_the_owner_stay(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / ".a.tmp").write_bytes(b"")
    with StateDir(tmp_path).locked():
        assert names(tmp_path / "notes") == [".a.tmp"]


def test_the_secret_for_orders_is_its_users_alone_and_ends_with_the_daemon(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    state_dir.token_path.write_text("of a daemon that was killed")
    before = os.umask(0)
    try:
        with state_dir.locked():
            assert not state_dir.token_path.exists()
            token = DaemonFiles(state_dir).new_token()
            assert len(bytes.fromhex(token)) == TOKEN_BYTES
            assert stat.S_IMODE(state_dir.token_path.stat().st_mode) == 0o600
            assert DaemonFiles(StateDir(tmp_path)).read_token() == token
            assert DaemonFiles(state_dir).new_token() != token
    finally:
        os.umask(before)
    with pytest.raises(StateDirError, match="is missing"):
        DaemonFiles(state_dir).read_token()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateDirError, match="cannot be used as state directory"):
        StateDir(tmp_path / "file" / "state").locked().__enter__()


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    assert not state_dir.has_run()
    assert state_dir.run_id() is None
    state_dir.require_run(bytes(32))
    mine, other = signed_manifest(1), signed_manifest(2)
    state_dir.write_manifest(mine)
    state_dir.write_manifest(mine)
    assert state_dir.has_run()
    assert state_dir.read_manifest() == mine
    with pytest.raises(StateDirError, match=r"holds run .*its own --state-dir"):
        state_dir.write_manifest(other)
    assert state_dir.read_manifest() == mine


@pytest.mark.parametrize("data", [b"", b"rubbish", msgspec.msgpack.encode({"manifest": b""})])
def test_a_damaged_manifest(tmp_path: Path, data: bytes) -> None:
    state_dir = StateDir(tmp_path)
    state_dir.manifest_path.write_bytes(data)
    with pytest.raises(StateDirError, match="is damaged"):
        state_dir.read_manifest()


def test_known_peers_are_kept_newest_first(tmp_path: Path) -> None:
    peers = StateDir(tmp_path).known_peers()
    for number in (1, 2, 3, 1):
        peers.saw({peer(number): (f"/ip4/192.0.2.{number}/tcp/1",)})
    peers.forget(peer(2))
    peers.save()
    again = StateDir(tmp_path).known_peers()
    assert [peer_id for peer_id, _ in again.newest_first()] == [peer(1), peer(3)]
    assert again.newest_first()[1] == (peer(3), ("/ip4/192.0.2.3/tcp/1",))


def test_peers_that_are_seen_at_once_stand_as_if_seen_one_after_the_other(tmp_path: Path) -> None:
    at_once, after_another = KnownPeers(tmp_path / "one"), KnownPeers(tmp_path / "other")
    for seen in ((1, 2, 3), (2, 4), (), (3,)):
        addresses = {peer(number): (f"/ip4/192.0.2.{number}/tcp/{len(seen)}",) for number in seen}
        at_once.saw(addresses)
        for each in addresses:
            after_another.saw({each: addresses[each]})
    assert at_once.newest_first() == after_another.newest_first()
    assert [seen for seen, _ in at_once.newest_first()] == [peer(3), peer(4), peer(2), peer(1)]


def test_known_peers_are_bounded(tmp_path: Path) -> None:
    peers = KnownPeers(tmp_path / "peers")
    for number in range(limits.MEMBERS_MAX + 1):
        peers.saw({peer(number): tuple(str(index) for index in range(limits.ADDRESSES_MAX + 1))})
    assert len(peers) == limits.MEMBERS_MAX
    assert peer(0) not in dict(peers.newest_first())
    assert len(peers.newest_first()[0][1]) == limits.ADDRESSES_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        msgspec.msgpack.encode([("not a peer", ["x"])]),
        b"\x91\x92\xa2\xff\xfe\x90",  # text that is not UTF-8
    ],
)
def test_damaged_known_peers_count_as_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "peers"
    path.write_bytes(data)
    peers = KnownPeers(path)
    assert len(peers) == 0
    peers.saw({peer(1): ()})
    peers.save()
    assert len(KnownPeers(path)) == 1


def test_saving_unchanged_peers_writes_nothing(tmp_path: Path) -> None:
    peers = KnownPeers(tmp_path / "peers")
    peers.save()
    assert names(tmp_path) == []


def test_a_peer_seen_while_known_peers_are_written_is_written_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread writes the file, and the event loop hears of a peer meanwhile."""
    peers = KnownPeers(tmp_path / "peers")
    first, second = peer(1), peer(2)
    peers.saw({first: ("/ip4/10.0.0.1/tcp/1",)})

    def write_and_hear(path: Path, *parts: bytes) -> None:
        monkeypatch.undo()
        write_atomically(path, *parts)
        peers.saw({second: ("/ip4/10.0.0.2/tcp/1",)})

    monkeypatch.setattr(known_peers_module, "write_atomically", write_and_hear)
    peers.save()
    peers.save()
    assert [peer for peer, _ in KnownPeers(tmp_path / "peers").newest_first()] == [second, first]


def test_the_port_outlives_the_process_and_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    assert state_dir.addresses.read_port() == 0
    state_dir.addresses.write_port(4610)
    assert StateDir(tmp_path).addresses.read_port() == 4610
    state_dir.addresses.port_path.write_text("99999\n")
    assert state_dir.addresses.read_port() == 0
    state_dir.addresses.port_path.write_text("x" * 10_000)
    assert state_dir.addresses.read_port() == 0


def test_addresses_of_a_run_that_was_not_joined_go_when_another_one_is(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    seeds = [f"/ip4/10.0.0.{number}/tcp/4610/p2p/{peer(number)}" for number in range(1, 4)]
    state_dir.addresses.write_seeds(seeds[:1])
    state_dir.addresses.write_seeds(seeds[1:2])
    state_dir.addresses.write_seeds(seeds[1:2], has_joined=True)
    state_dir.addresses.write_seeds(seeds[2:])
    assert state_dir.addresses.read_seeds() == (seeds[2], seeds[1])


def test_addresses_of_the_owner_outlive_the_process(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    assert state_dir.addresses.read_seeds() == ()
    seeds = [f"/ip4/10.0.0.{number}/tcp/4610/p2p/{peer(number)}" for number in range(1, 4)]
    state_dir.addresses.write_seeds(seeds[:1])
    state_dir.addresses.write_seeds(seeds[1:])
    state_dir.addresses.write_seeds(())
    assert StateDir(tmp_path).addresses.read_seeds() == (*seeds[1:], seeds[0])
    many = [f"/ip4/10.0.1.1/tcp/{port}/p2p/{peer(1)}" for port in range(1, 100)]
    state_dir.addresses.write_seeds(many)
    assert len(state_dir.addresses.read_seeds()) == SEEDS_MAX
    state_dir.addresses.seeds_path.write_bytes(f"\xff\n{seeds[0]}\nnonsense\n".encode("latin-1"))
    assert state_dir.addresses.read_seeds() == (seeds[0],)
    state_dir.addresses.seeds_path.write_bytes(b"x" * 100_000)
    assert state_dir.addresses.read_seeds() == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "Permission denied. Give --state-dir the directory of a node that is yours"),
        (errno.EIO, "Input/output error. Check the disk: the system's log says more"),
    ],
)
def test_a_file_that_cannot_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    """To remove another user's limits is no help: the directory is the wrong one. Nor is it one
    where the disk fails."""
    state_dir = StateDir(tmp_path)
    real_open = os.open

    def failing_open(path: str, flags: int, *args: int, **more: int) -> int:
        if Path(path).parent == tmp_path:
            raise OSError(code, os.strerror(code), path)
        return real_open(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", failing_open)
    with pytest.raises(StateDirError, match=f"^{state_dir.limits_path} cannot be read: {words}$"):
        read_limits(state_dir.limits_path)
    with pytest.raises(StateDirError, match=f"^{state_dir.format_path} cannot be read: {words}$"):
        state_dir.read_manifest()
    with pytest.raises(StateDirError, match=f"^{state_dir.token_path} cannot be read: {words}$"):
        DaemonFiles(state_dir).read_token()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "that you may write to"),
        (errno.EIO, "Check the disk"),
        (errno.ENOSPC, "Free some space"),
    ],
)
def test_a_directory_that_cannot_be_used_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def fail(*_args: object, **_more: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(StateDirError, match=words), StateDir(tmp_path).locked():
            pass


def test_a_command_that_asks_whether_a_node_runs_keeps_none_from_its_start(tmp_path: Path) -> None:
    """It holds the lock of the directory for a moment (`StateDir.is_in_use`)."""
    state_dir = StateDir(tmp_path)
    with state_dir.locked():
        pass
    asking = os.open(state_dir.lock_path, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    answered = threading.Timer(0.05, os.close, [asking])
    answered.start()
    with state_dir.locked():
        answered.join()


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A FIFO waits for somebody who writes, and a device may have no end."""
    state_dir = StateDir(tmp_path)
    os.mkfifo(state_dir.head_path)
    os.mkfifo(state_dir.limits_path)
    state_dir.format_path.mkdir()
    state_dir.api_path.symlink_to("/dev/zero")
    assert state_dir.newest_head() is None
    for name, reason in [("limits", "It is no file"), ("format", "Is a directory")]:
        words = f"^{tmp_path / name} cannot be read: {reason}. Move {name} away, and try again$"
        with pytest.raises(StateDirError, match=words):
            read_limits(tmp_path / name)
    with pytest.raises(StateDirError, match="api cannot be read: It is no file"):
        DaemonFiles(state_dir).read_api()


def _rollbacks(root: Path) -> None:
    run = manifest()
    files = RollbackFiles(root, run.run_id, RollbackSigners.of(run))
    Rollbacks(files, DiskHealth()).load()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("rollbacks/order", _rollbacks),
        ("revoked/order", lambda root: RollFile(root).orders()),
        ("roll", lambda root: RollFile(root).read()),
        ("pinned_head", read_pinned_head),
        ("expulsions", lambda root: ExpulsionFile(root).read()),
        ("extension", lambda root: ExtensionFile(root, manifest()).read()),
        ("incarnation", lambda root: Incarnation(StateDir(root))),
    ],
)
def test_a_fifo_among_the_orders_stops_no_node(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)

    def read_once() -> None:
        with contextlib.suppress(OSError, MalformedError):
            read(tmp_path)

    reader = threading.Thread(target=read_once, daemon=True)
    reader.start()
    reader.join(5.0)
    assert not reader.is_alive()


@pytest.mark.parametrize("name", ["lock", "head", "starting", "identity.key", "manifest.copy"])
def test_a_folder_or_a_fifo_in_the_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    with pytest.raises(StateDirError, match=f"^{path} has to be a file, and is a folder: move it"):
        require_kinds(tmp_path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(StateDirError, match=f"^{path} has to be a file, and is a FIFO: move it"):
        require_kinds(tmp_path)


@pytest.mark.parametrize(
    "name", ["work/journal", "work/pending", "chain/start", "chain/checkpoints"]
)
def test_a_folder_in_the_place_of_a_file_in_a_folder_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_bytes(b"")
    require_kinds(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StateDirError, match=f"^{path} has to be a file, and is a folder: move it"):
        require_kinds(tmp_path)


@pytest.mark.parametrize("name", ["work/offers", "blocks/tmp", "blocks/00", "blocks/ab"])
def test_a_file_in_the_place_of_a_folder_in_a_folder_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir(parents=True)
    require_kinds(tmp_path)
    path.rmdir()
    path.write_bytes(b"")
    with pytest.raises(StateDirError, match=f"^{path} has to be a folder, and is a file: move it"):
        require_kinds(tmp_path)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "Permission denied. Give --state-dir the directory of a node that is yours"),
        (errno.EIO, "Input/output error. Check the disk: the system's log says more"),
    ],
)
def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    """Such as that of a node which root has started once. Root itself may read all."""
    scandir = os.scandir
    (tmp_path / "chain").mkdir()
    (tmp_path / "work").mkdir()

    def refuse(path: Path) -> object:
        if Path(path).name == "work":
            raise OSError(number, os.strerror(number), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StateDirError) as error:
        require_kinds(tmp_path)
    assert str(error.value) == f"{tmp_path / 'work'} cannot be read: {advice}"


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "blocks").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "chain").symlink_to(tmp_path / "nowhere")
    require_kinds(tmp_path)
    (tmp_path / "work").write_bytes(b"")
    with pytest.raises(StateDirError, match="work has to be a folder, and is a file: move it away"):
        require_kinds(tmp_path)
