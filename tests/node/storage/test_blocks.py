import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gossamer.node.base.disk_health import DiskError, DiskFullError
from gossamer.node.storage import blocks
from gossamer.node.storage.block_files import CorruptBlockError, MissingBlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol import limits
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import Digest, digest_of

QUOTA_BYTES = 1000


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path, QUOTA_BYTES)


def block(number: int, num_bytes: int = 100) -> bytes:
    return number.to_bytes(4, "big") * (num_bytes // 4)


def files_under(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file()}


def test_put_and_get(store: BlockStore) -> None:
    digest = store.put(b"some bytes")
    assert digest == digest_of(b"some bytes")
    assert store.has(digest)
    assert store.size(digest) == 10
    assert store.get(digest) == b"some bytes"
    assert store.path(digest).read_bytes() == b"some bytes"
    with store.open_block(digest) as file:
        assert file.read() == b"some bytes"
    assert (store.num_blocks(), store.used_bytes()) == (1, 10)


def test_the_layout_on_disk_is_the_documented_one(store: BlockStore, tmp_path: Path) -> None:
    digest = store.put(memoryview(bytearray(b"x")))
    assert store.path(digest) == tmp_path / digest.hex()[:2] / digest.hex()
    assert files_under(tmp_path) == {digest.hex()}


def test_a_block_is_stored_once(store: BlockStore) -> None:
    for _ in range(3):
        store.put(b"twice")
    assert (store.num_blocks(), store.used_bytes()) == (1, 5)


def test_a_block_that_is_not_there(store: BlockStore) -> None:
    digest = digest_of(b"never stored")
    assert not store.has(digest)
    assert store.size(digest) is None
    for read in (store.get, store.open_block):
        with pytest.raises(MissingBlockError, match="is not in"):
            read(digest)


def test_a_file_that_was_removed_is_missing(store: BlockStore) -> None:
    digest = store.put(b"soon gone")
    store.path(digest).unlink()
    with pytest.raises(MissingBlockError, match="is gone"):
        store.get(digest)
    assert not store.has(digest)
    assert store.used_bytes() == 0


def test_missing_keeps_the_order_and_drops_doubles(store: BlockStore) -> None:
    here = store.put(b"here")
    absent = [digest_of(bytes([number])) for number in (3, 1, 2)]
    assert store.missing([absent[0], here, *absent]) == absent


@pytest.mark.parametrize("data", [b"", bytes(limits.BLOCK_BYTES_MAX + 1)])
def test_a_block_has_a_size(store: BlockStore, data: bytes) -> None:
    with pytest.raises(ValueError, match="a block has 1 to"):
        store.put(data)


def test_the_largest_block(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, limits.BLOCK_BYTES_MAX)
    data = os.urandom(limits.BLOCK_BYTES_MAX)
    assert store.get(store.put(data)) == data


def test_unexpected_content_is_not_stored(store: BlockStore, tmp_path: Path) -> None:
    with pytest.raises(ForgedError):
        store.put(b"other", expected=digest_of(b"expected"))
    assert store.num_blocks() == 0
    assert not files_under(tmp_path)


@pytest.mark.parametrize("read", ["get", "open_block"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"X" + data[1:],
        lambda data: data[:-1],
        lambda data: data + b"X",
        lambda data: data * (limits.BLOCK_BYTES_MAX // len(data) + 1),
        lambda data: b"",
    ],
    ids=["flipped", "cut", "longer", "far too long", "empty"],
)
def test_a_damaged_block_is_removed_and_can_be_put_again(
    store: BlockStore, read: str, damage: Callable[[bytes], bytes]
) -> None:
    digest = store.put(block(1))
    store.path(digest).write_bytes(damage(block(1)))
    with pytest.raises(CorruptBlockError, match="fetched again"):
        getattr(store, read)(digest)
    assert store.verify_failures == 1
    assert not store.has(digest)
    assert not store.path(digest).exists()
    assert store.used_bytes() == 0
    store.put(block(1))
    assert store.get(digest) == block(1)


def test_a_block_replaced_while_its_damage_was_found_stays(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.put(block(1))
    store.path(digest).write_bytes(b"damaged")
    raise_damaged = store._raise_damaged

    def replace_and_raise(*args: Any) -> None:
        store.path(digest).unlink()
        store.forget_lost()
        store.put(block(1))
        raise_damaged(*args)

    monkeypatch.setattr(store, "_raise_damaged", replace_and_raise)
    with pytest.raises(CorruptBlockError):
        store.get(digest)
    assert store.get(digest) == block(1)


class FailingFile:
    """A file that can be opened, and not read."""

    def __init__(self, file: Any, error: int) -> None:
        self._file = file
        self._error = error

    def read(self, num_bytes: int) -> bytes:
        raise OSError(self._error, os.strerror(self._error))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def failing(error: int) -> Callable[..., None]:
    """Stands for a function of the system that fails so."""

    def fail(*_args: object, **_more: object) -> None:
        raise OSError(error, os.strerror(error))

    return fail


def fail_reading(patch: pytest.MonkeyPatch, error: int) -> None:
    patch.setattr(
        "builtins.open", lambda *args, _open=open, **more: FailingFile(_open(*args, **more), error)
    )


def test_a_block_the_disk_cannot_read_counts_as_damaged(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.put(block(1))
    fail_reading(monkeypatch, errno.EIO)
    with pytest.raises(CorruptBlockError):
        store.get(digest)


@pytest.mark.parametrize("error", [errno.ENODEV, errno.ESTALE, errno.EBADMSG, errno.ENOMEM])
@pytest.mark.parametrize("read", [BlockStore.get, BlockStore.check])
def test_a_block_counts_as_missing_where_the_disk_goes_away_while_it_is_read(
    store: BlockStore,
    monkeypatch: pytest.MonkeyPatch,
    error: int,
    read: Callable[[BlockStore, Digest], object],
) -> None:
    digest = store.put(block(1))
    with monkeypatch.context() as patch:
        fail_reading(patch, error)
        with pytest.raises(MissingBlockError, match=os.strerror(error)):
            read(store, digest)
    assert not store.has(digest)
    assert store.path(digest).read_bytes() == block(1), "it may be as good as ever"
    store.put(block(1))
    assert store.get(digest) == block(1)


def test_a_damaged_block_of_which_the_disk_tells_nothing_is_a_missing_one(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.put(block(1))

    with monkeypatch.context() as patch:
        fail_reading(patch, errno.EIO)
        patch.setattr(Path, "stat", failing(errno.EIO))
        with pytest.raises(MissingBlockError, match="Input/output error"):
            store.get(digest)
    assert not store.has(digest)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_place_of_the_disk_that_cannot_be_read_costs_the_blocks_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The node did not start any more, for blocks that every other one may have."""
    store = BlockStore(tmp_path, QUOTA_BYTES)
    lost, good = store.put(block(1)), store.put(block(2))
    folder = store.path(lost).parent

    class Entry:
        name, path = lost.hex(), str(store.path(lost))

        def stat(self) -> os.stat_result:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)

    def fail(path: Path, _scandir: Any = os.scandir) -> Any:
        if path != folder:
            return _scandir(path)
        if what == "folder":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return [Entry()]

    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", fail)
        again = BlockStore(tmp_path, QUOTA_BYTES)
    assert again.missing([lost, good]) == [lost]
    again.put(block(1))
    assert again.get(lost) == block(1)


def test_leftovers_that_cannot_be_removed_keep_no_node_from_its_start(tmp_path: Path) -> None:
    digest = BlockStore(tmp_path, QUOTA_BYTES).put(block(1))
    (tmp_path / "tmp" / "a folder").mkdir()
    assert BlockStore(tmp_path, QUOTA_BYTES).get(digest) == block(1)


def test_a_file_stays_readable_while_its_block_is_evicted(store: BlockStore) -> None:
    digest = store.put(block(1))
    store.quota_bytes = 0
    with store.open_block(digest) as file:
        assert store.evict() == 100
        assert file.read() == block(1)


def test_restart_finds_the_blocks_and_removes_what_a_crash_left(tmp_path: Path) -> None:
    digests = [BlockStore(tmp_path, QUOTA_BYTES).put(block(number)) for number in range(3)]
    (tmp_path / "tmp" / "7").write_bytes(b"half a blo")
    empty = tmp_path / "ab" / ("ab" * 32)
    empty.parent.mkdir(exist_ok=True)
    empty.touch()  # what a power cut may leave of a block that was not synced
    foreign = tmp_path / "ab" / "README"
    foreign.write_text("not a block")

    store = BlockStore(tmp_path, QUOTA_BYTES)
    assert store.missing(digests) == []
    assert (store.num_blocks(), store.used_bytes()) == (3, 300)
    assert not (tmp_path / "tmp" / "7").exists()
    assert not empty.exists()
    assert foreign.exists()


def test_a_folder_that_is_no_ones_block_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of blocks may be a disk of its own, whose `lost+found` only root may read."""
    digest = BlockStore(tmp_path, QUOTA_BYTES).put(b"some bytes")
    (tmp_path / "lost+found").mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "lost+found":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert BlockStore(tmp_path, QUOTA_BYTES).has(digest)


def test_the_least_recently_used_blocks_make_room(store: BlockStore) -> None:
    digests = [store.put(block(number)) for number in range(10)]
    store.get(digests[0])
    store.open_block(digests[1]).close()
    store.put(block(2))  # already here: that is a use as well
    newest = [store.put(block(number)) for number in (10, 11)]
    assert store.missing([*digests, *newest]) == digests[3:5]
    assert store.used_bytes() == QUOTA_BYTES
    assert not store.path(digests[3]).exists()


def test_the_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, QUOTA_BYTES)
    digests = [store.put(block(number)) for number in range(3)]
    for age, digest in enumerate(digests):
        os.utime(store.path(digest), (1000 + age, 1000 + age))
    store.get(digests[0])
    restarted = BlockStore(tmp_path, 100)
    assert restarted.evict() == 200
    assert restarted.has(digests[0])


def test_pinned_blocks_stay(store: BlockStore) -> None:
    digests = [store.put(block(number)) for number in range(3)]
    later = digest_of(block(50))
    store.pin("state", [*digests[:2], later])
    store.pin("other", digests[:1])
    store.put(block(50))
    for number in range(3, 20):
        store.put(block(number))
    assert store.missing([*digests, later]) == digests[2:]
    assert store.num_pinned() == 3
    assert store.used_bytes() == QUOTA_BYTES

    store.unpin("state")
    store.unpin("never pinned")
    store.quota_bytes = 100
    assert store.evict() == 900
    assert store.has(digests[0])  # still pinned by "other"
    store.pin("other", [])
    store.quota_bytes = 0
    store.evict()
    assert store.num_blocks() == 0


def test_pins_outrank_the_quota_and_a_new_block_is_never_its_own_victim(store: BlockStore) -> None:
    digests = [digest_of(block(number)) for number in range(12)]
    store.pin("state", digests)
    for number in range(12):
        store.put(block(number))
    assert store.missing(digests) == []
    extra = store.put(block(99))
    assert store.has(extra)
    store.put(block(100))
    assert not store.has(extra)


def refuse_writes(monkeypatch: pytest.MonkeyPatch, error_number: int, room: list[int]) -> None:
    """Writing fails halfway through a file as long as `room` is empty."""

    class FullFile:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, data: memoryview) -> int:
            if room:
                return int(self._file.write(data))
            self._file.write(data[: len(data) // 2])
            raise OSError(error_number, os.strerror(error_number))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

    def open_full(path: Any, mode: str = "r", *args: Any, _open: Any = open, **more: Any) -> Any:
        file = _open(path, mode, *args, **more)
        return FullFile(file) if "w" in mode else file

    monkeypatch.setattr("builtins.open", open_full)


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_loses_nothing_and_leaves_no_half_block(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error_number: int
) -> None:
    kept = store.put(block(1))
    store.pin("state", [kept])
    with monkeypatch.context() as patch:
        refuse_writes(patch, error_number, room=[])
        with pytest.raises(DiskFullError, match="the disk is full"):
            store.put(block(2))
    assert files_under(tmp_path) == {kept.hex()}
    assert (store.num_blocks(), store.used_bytes()) == (1, 100)
    assert store.get(kept) == block(1)
    store.put(block(2))  # and when there is room again it goes on
    assert store.num_blocks() == 2


def test_cached_blocks_give_way_on_a_full_disk(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, cached = store.put(block(1)), store.put(block(2))
    store.pin("state", [pinned])
    room: list[int] = []
    unlink = Path.unlink

    def note_and_unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == cached.hex():
            room.append(1)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", note_and_unlink)
    refuse_writes(monkeypatch, errno.ENOSPC, room)
    new = store.put(block(3))
    assert store.missing([pinned, new, cached]) == [cached]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_kernels_own_full_device(store: BlockStore, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "tmp" / str(number)).symlink_to("/dev/full")
    with pytest.raises(DiskFullError):
        store.put(b"no room")
    assert store.num_blocks() == 0


def test_another_trouble_of_the_disk_is_not_called_full(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, words in (
        (errno.EROFS, "the disk is read-only"),
        (errno.EIO, r"the disk fails: .*Input/output error"),
    ):
        with monkeypatch.context() as patch:
            refuse_writes(patch, number, room=[])
            with pytest.raises(DiskError, match=words):
                store.put(block(1))
    assert not files_under(tmp_path)


def refuse_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the disk read-only: what is there can be read, and nothing else."""
    for module, name in ((Path, "unlink"), (os, "utime"), (os, "replace")):
        monkeypatch.setattr(module, name, failing(errno.EROFS))
    refuse_writes(monkeypatch, errno.EROFS, room=[])


def test_blocks_are_read_from_a_read_only_disk(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = store.put(block(1)), store.put(block(2))
    store.path(bad).write_bytes(b"x" * 100)
    with monkeypatch.context() as patch:
        refuse_changes(patch)
        assert store.get(good) == block(1)
        with pytest.raises(CorruptBlockError):
            store.get(bad)
        assert not store.has(bad)
        store.quota_bytes = 0
        assert store.evict() == 0
        assert store.has(good), "it cannot be removed now, and is as good as ever"
    store.quota_bytes = QUOTA_BYTES
    assert store.put(block(2)) == bad
    assert store.get(bad) == block(2)


def test_a_block_that_cannot_be_read_is_a_missing_one(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.put(block(1))

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", failing(errno.EIO))
        with pytest.raises(MissingBlockError, match="Input/output error"):
            store.get(digest)
    assert not store.has(digest)
    store.put(block(1))
    assert store.get(digest) == block(1)


def test_blocks_of_which_the_disk_tells_nothing_count_as_lost(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a fault that the kernel answered by taking the file system away."""
    digests = [store.put(block(number)) for number in range(3)]
    stat = os.stat

    def fail(path: Any, *args: Any, **more: Any) -> os.stat_result:
        if os.path.basename(path) in {digest.hex() for digest in digests[:2]}:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr("os.stat", fail)
        assert store.forget_lost() == 2
    assert store.missing(digests) == digests[:2]
    store.put(block(0))
    assert store.get(digests[0]) == block(0)


def test_a_folder_that_was_deleted_is_made_anew_where_that_is_right(tmp_path: Path) -> None:
    is_right_place = [True]

    def check_place() -> None:
        if not is_right_place[0]:
            raise DiskError("another disk")

    store = BlockStore(tmp_path / "blocks", QUOTA_BYTES, check_place=check_place)
    lost = [store.put(block(number)) for number in range(3)]
    shutil.rmtree(tmp_path / "blocks")
    assert all(store.has(digest) for digest in lost), "not looked for yet"
    new = store.put(block(9))
    assert store.get(new) == block(9)
    assert store.forget_lost() == 3
    assert store.missing(lost) == lost
    assert store.used_bytes() == 100

    shutil.rmtree(tmp_path / "blocks")
    is_right_place[0] = False
    with pytest.raises(DiskError, match="another disk"):
        store.put(block(8))
    assert not (tmp_path / "blocks").exists()


def test_threads_may_share_the_store(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, 20 * 100)
    errors: list[Exception] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 60):
                digest = store.put(block(number % 40))
                try:
                    assert store.get(digest) == block(number % 40)
                except MissingBlockError:
                    continue  # evicted in between
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(10 * index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    on_disk = files_under(tmp_path)
    assert store.used_bytes() == 100 * store.num_blocks() == 100 * len(on_disk) <= 2000
    assert all(store.has(Digest(bytes.fromhex(name))) for name in on_disk)


def test_a_block_that_comes_back_while_its_file_is_missed_is_not_forgotten(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread finds no file, and before it says so another one has fetched the block again."""
    digest = store.put(block(1))

    def open_too_early(*_arguments: object, **_others: object) -> None:
        monkeypatch.undo()
        store.quota_bytes = 0
        store.evict()
        store.quota_bytes = QUOTA_BYTES
        store.put(block(1))
        raise FileNotFoundError

    monkeypatch.setattr(blocks, "open", open_too_early, raising=False)
    with pytest.raises(MissingBlockError):
        store.get(digest)
    assert store.get(digest) == block(1)
    assert (store.num_blocks(), store.used_bytes()) == (1, 100)


def test_a_block_that_comes_back_while_lost_ones_are_counted_is_not_forgotten(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.put(block(1))
    store.path(digest).unlink()

    def look_too_early(_path: Path) -> bool:
        monkeypatch.undo()
        with pytest.raises(MissingBlockError):
            store.get(digest)  # another thread wants it, and fetches it again
        store.put(block(1))
        return False

    monkeypatch.setattr("os.path.exists", look_too_early)
    assert store.forget_lost() == 0
    assert store.get(digest) == block(1)
    assert (store.num_blocks(), store.used_bytes()) == (1, 100)


@pytest.mark.parametrize("removal", ["discard", "evict"])
def test_the_event_loop_does_not_wait_for_a_disk_that_removes(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, removal: str
) -> None:
    digests = [store.put(block(number)) for number in range(3)]
    store.pin("round", digests)
    if removal != "discard":
        store.unpin("round")
    store.quota_bytes = 0
    removing, go_on = threading.Event(), threading.Event()
    unlink = Path.unlink

    def slow_unlink(path: Path, missing_ok: bool = False) -> None:
        removing.set()
        assert go_on.wait(10.0)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", slow_unlink)
    remove: dict[str, Callable[[], Any]] = {
        "discard": lambda: store.discard("round"),
        "evict": store.evict,
    }
    remover = threading.Thread(target=remove[removal])
    remover.start()
    assert removing.wait(10.0)
    answers: list[Any] = []

    def ask() -> None:
        answers.extend((store.has(digests[0]), store.missing(digests[:1]), store.size(digests[0])))
        store.pin("next round", digests[:1])
        answers.append(store.num_pinned())

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join(5.0)
    waited = asker.is_alive()
    go_on.set()
    for thread in (asker, remover):
        thread.join()
    assert not waited
    assert answers == [False, digests[:1], None, 0]
    assert not store.path(digests[0]).exists()


def test_a_block_that_comes_back_while_it_is_discarded_stays(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.put(block(1))
    store.pin("round", [digest])
    remove = store._remove

    def remove_too_late(*arguments: Any) -> bool:
        store.pin("next round", [digest])
        assert store.missing([digest]) == [digest]
        store.put(block(1))  # another thread needs it again
        return remove(*arguments)

    monkeypatch.setattr(store, "_remove", remove_too_late)
    store.discard("round")
    assert store.get(digest) == block(1)
    assert (store.num_blocks(), store.used_bytes(), store.num_pinned()) == (1, 100, 1)


def test_a_block_that_the_disk_keeps_is_still_here_and_goes_first(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, *others = [store.put(block(number)) for number in range(3)]
    store.get(kept)
    store.pin("others", others)
    store.quota_bytes = 0

    def refuse(_path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert store.evict() == 0
    store.unpin("others")
    assert store.get(others[0]) == block(1)
    assert (store.num_blocks(), store.used_bytes()) == (3, 300)
    store.quota_bytes = 200
    assert store.evict() == 100
    assert store.missing([kept, *others]) == [kept]


def test_a_reader_beside_a_running_node_leaves_out_what_that_evicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [BlockStore(tmp_path / "blocks", 10**6).put(block(number)) for number in range(2)]
    scan = os.scandir

    def scan_and_evict(folder: Path) -> list[os.DirEntry[str]]:
        found = list(scan(folder))
        for entry in found:
            if entry.name == digests[0].hex():
                Path(entry.path).unlink()
        return found

    monkeypatch.setattr(os, "scandir", scan_and_evict)
    reader = BlockStore(tmp_path / "blocks", 10**6, read_only=True)
    assert reader.missing(digests) == [digests[0]]


def test_threads_that_put_at_once_evict_no_more_than_is_over(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has written its block before any of them looks for blocks to evict."""
    for number in range(10):
        store.put(block(number))
    assert store.used_bytes() == store.quota_bytes
    met, cached = threading.Barrier(2), store.cached_bytes

    def cached_bytes() -> int:
        found = cached()
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(0.5)  # both have looked, unless one waits until the other has evicted
        return found

    monkeypatch.setattr(store, "cached_bytes", cached_bytes)
    putting = [threading.Thread(target=store.put, args=(block(number),)) for number in (100, 101)]
    for thread in putting:
        thread.start()
    for thread in putting:
        thread.join()
    assert store.used_bytes() == store.quota_bytes
