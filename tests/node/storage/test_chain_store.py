import errno
import itertools
import os
import random
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import structlog

from gossamer.node.base.disk_health import DiskError, DiskHealth
from gossamer.node.storage.chain import record_files
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.record_files import VOTED_ROUNDS_MAX, FurtherVotes
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of, peer_id_from_public_key
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.wire.statements import Signed
from tests.support.builders import peers
from tests.support.synced import Synced

RUN_ID = Digest(bytes(32))
PEER = peer_id_from_public_key(bytes(range(32)))
ROSTER = Signed(PEER, b"", bytes(64))
"""The store leaves checking to its caller."""


def chain_of(peer_id: PeerId, num_rounds: int) -> list[tuple[Commit, Header]]:
    """Rounds of one member without votes."""
    chain = []
    parent = bytes(RUN_ID)
    for number in range(1, num_rounds + 1):
        header = Header(
            version=limits.PROTOCOL_VERSION,
            run_id=RUN_ID,
            round=number,
            parent=parent,
            ring_id=bytes(32),
            members=(Member(peer_id, 10, 1.0),),
            tokens_total=10 * number,
            update_digest=bytes(32),
            state_digest=bytes(32),
            ledger_digest=bytes(32),
            spans=(),
        )
        chain.append((Commit(to_msgpack(header), ROSTER, ()), header))
        parent = header.digest
    return chain


@pytest.mark.usefixtures("eager_switching")
def test_two_threads_may_add_the_same_round_at_once(tmp_path: Path) -> None:
    chain = chain_of(PEER, 50)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    errors: list[BaseException] = []
    barrier = threading.Barrier(2)

    def add_all() -> None:
        for commit, header in chain:
            barrier.wait(10.0)
            try:
                head = store.add(commit, header)
                assert store.tips() == [head]
                assert store.commit(head) == commit
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=add_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)

    assert errors == []
    again = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    assert again.tips() == [chain[-1][1].digest]


def test_what_the_disk_does_not_take_is_known_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = chain_of(PEER, 3)
    health = DiskHealth()
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)), health=health)
    store.add(*first)

    def refuse(*_args: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        head = store.add(*second)
    assert isinstance(store.problem, DiskError)
    assert health.problem is not None
    assert "read-only" in health.problem
    assert store.tips() == [head]
    assert store.commit(head) == second[0]
    assert ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32))).tips() == [first[1].digest]

    store.add(*third)
    assert store.problem is None
    assert health.problem is None
    again = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    assert again.path_between(RUN_ID, Digest(third[1].digest)) is not None


def test_nothing_is_the_matter_when_what_the_disk_did_not_take_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = chain_of(PEER, 2)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    kept = store.add(*first)

    def refuse(*_args: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        store.add(*second)
        assert store.write_waiting() is store.problem is not None
    store.forget_all_but([kept])
    assert store.write_waiting() is None
    assert store.problem is None


def with_votes(commit: Commit, *authors: PeerId) -> Commit:
    return Commit(commit.header, commit.roster, tuple(Signed(each, b"", b"") for each in authors))


VOTERS = tuple(sorted(peers(4)))


def test_a_record_with_further_votes_is_durable_before_it_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record was durable. A file that replaces it, and is not, may be empty after a power
    cut."""
    (first, header), second = chain_of(PEER, 2)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    head = store.add(with_votes(first, VOTERS[0]), header)
    store.sync(head)
    path = Path(store._files.path_of(store.entry(head)))
    before = path.read_bytes()
    store.add(with_votes(first, VOTERS[1]), header)
    assert [vote.author for vote in store.commit(head).votes] == [*VOTERS[:2]]
    assert path.read_bytes() == before
    synced = Synced(monkeypatch)
    store.sync(store.add(*second))
    assert path.read_bytes() != before
    assert not synced.missing({path})
    again = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    assert [vote.author for vote in again.commit(head).votes] == [*VOTERS[:2]]


class _Disk:
    """A disk that refuses to replace files now and then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._replace = os.replace
        self.is_full = False
        monkeypatch.setattr(os, "replace", self._replaced)

    def _replaced(self, *paths: str) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._replace(*paths)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_takes_no_round_that_was_durable_and_no_vote_of_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Records and votes come in any order, and the disk may be full in between."""
    draw, directory, synced = random.Random(seed), tmp_path / "chain", Synced(monkeypatch)
    disk, rounds = _Disk(monkeypatch), chain_of(PEER, 6)
    store = ChainStore(directory, RUN_ID, Digest(bytes(32)))
    heads: list[Digest] = []
    known: dict[Digest, set[str]] = {}
    durable: dict[Digest, set[str]] = {}
    for _ in range(60):
        voters = draw.sample(VOTERS, draw.randrange(1, 4))
        place = draw.randrange(len(heads) + 1) if len(heads) < len(rounds) else 0
        action = draw.choice(["record", "vote", "sync", "sync", "waiting", "disk"])
        if action == "record" or not heads:
            commit, header = rounds[place]
            head = store.add(with_votes(commit, *sorted(voters)), header)
            heads += [head] if head not in heads else []
            known.setdefault(head, set()).update(voters)
        elif action == "vote":
            head = draw.choice(heads)
            store.further_votes.add(head, Signed(voters[0], b"", b""))
            known[head].add(voters[0])
        elif action == "disk":
            disk.is_full = not disk.is_full
        elif action == "waiting":
            store.write_waiting()
        elif store.problem is None:
            store.sync(heads[-1])
            durable.setdefault(heads[-1], set())
            for head in () if disk.is_full else durable:
                durable[head] = {*known[head]} if head != heads[-1] else durable[head]
    for path in directory.iterdir():
        if path in synced.missing({path}):
            path.write_bytes(b"")
    again = ChainStore(directory, RUN_ID, Digest(bytes(32)))
    for head, votes in durable.items():
        assert head in again
        assert votes <= {vote.author for vote in again.commit(head).votes}


def test_further_votes_that_the_disk_does_not_take_harm_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, header), second = chain_of(PEER, 2)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    head = store.add(with_votes(first, VOTERS[0]), header)
    newest = store.add(*second)
    store.further_votes.add(head, Signed(VOTERS[1], b"", b""))

    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        store.sync(newest)
    assert store.problem is None, "the records are on disk"
    assert not [*(tmp_path / "chain").glob(".*")]
    assert [vote.author for vote in store.commit(head).votes] == [*VOTERS[:2]]
    again = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    assert [vote.author for vote in again.commit(head).votes] == [VOTERS[0]]
    store.forget_all_but([RUN_ID])
    assert store.write_waiting() is None
    assert not [*(tmp_path / "chain").iterdir()]


def test_many_records_with_further_votes_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of records may bring votes for some hundred rounds at once."""
    rounds = chain_of(PEER, 8)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    heads = [store.add(with_votes(commit, VOTERS[0]), header) for commit, header in rounds]
    monkeypatch.setattr(record_files, "GROWN_BYTES_MAX", 4 * len(store.record(heads[0])))
    for commit, header in rounds:
        store.add(with_votes(commit, VOTERS[1]), header)
    assert 0 < len(store._files._grown) < 4
    assert all(len(store.commit(head).votes) == 2 for head in heads)
    store.sync(heads[-1])
    assert not store._files._grown
    assert not store._files._grown_bytes
    again = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    assert all(len(again.commit(head).votes) == 2 for head in heads)


@pytest.mark.usefixtures("eager_switching")
def test_votes_may_come_while_others_are_written(tmp_path: Path) -> None:
    rounds = chain_of(PEER, 40)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    heads = [store.add(with_votes(commit, VOTERS[0]), header) for commit, header in rounds]
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            store.sync(heads[0])

    writer = threading.Thread(target=write)
    writer.start()
    for head, (commit, header) in zip(heads, rounds, strict=True):
        store.further_votes.add(head, Signed(VOTERS[1], b"", b""))
        store.add(with_votes(commit, VOTERS[2]), header)
    is_over.set()
    writer.join()
    store.write_waiting()
    again = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    for head in heads:
        assert [vote.author for vote in again.commit(head).votes] == [*VOTERS[:3]]


def test_votes_of_the_newest_rounds_wait() -> None:
    votes, signed = FurtherVotes(), Signed(PEER, b"", b"")
    heads = [digest_of(b"%d" % number) for number in range(VOTED_ROUNDS_MAX + 1)]
    for head in heads:
        votes.add(head, signed)
    assert [*votes.take(but=heads[-1])] == heads[1:-1]
    assert votes.take(but=None) == {heads[-1]: (signed,)}
    assert not votes.take(but=None)


def test_records_are_served_while_their_branch_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread reads them for a peer, and the event loop forgets a branch that leads nowhere."""
    chain = chain_of(PEER, 20)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    for commit, header in chain:
        store.add(commit, header)
    head, read = chain[-1][1].digest, store.record

    def forget_meanwhile(head: Digest) -> bytes:
        store.forget_all_but([])
        return read(head)

    monkeypatch.setattr(store, "record", forget_meanwhile)
    records = store.records_after(head, 0)
    assert len(records) <= len(chain)
    assert head not in store


def rounds_of_a_tree(draw: random.Random, num_heads: int) -> list[tuple[Commit, Header]]:
    """Rounds that each follow another one or the genesis, in any order."""
    rounds: list[tuple[Commit, Header]] = []
    parents = [(0, bytes(RUN_ID))]
    for number in range(num_heads):
        before, parent = draw.choice(parents[-4:])
        _, header = chain_of(PEER, 1)[0]
        header = msgspec.structs.replace(
            header, round=before + 1, parent=parent, tokens_total=10 * (before + 1) + number
        )
        rounds.append((Commit(to_msgpack(header), ROSTER, ()), header))
        parents.append((header.round, header.digest))
    draw.shuffle(rounds)
    return rounds


def way_to(known: Mapping[bytes, Header], head: bytes) -> list[bytes]:
    """A head and those before it, as far as they are known; the newest first."""
    found = []
    while head in known:
        found.append(head)
        head = known[head].parent
    return [*found, head] if head == RUN_ID else found


@pytest.mark.parametrize("seed", range(30))
def test_what_is_kept_beside_the_rounds_is_what_they_say(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    known: dict[bytes, Header] = {}
    rounds = rounds_of_a_tree(draw, 24)
    for number, (commit, header) in enumerate(rounds):
        known[store.add(commit, header)] = header
        if number % 7 == 6:
            kept = [Digest(head) for head in draw.sample(sorted(known), 3)]
            store.forget_all_but(kept)
            on_the_way = {each for head in kept for each in way_to(known, head)}
            known = {head: header for head, header in known.items() if head in on_the_way}
        check_answers(store, known)
    check_answers(ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32))), known)


def check_answers(store: ChainStore, known: Mapping[bytes, Header]) -> None:
    parents = {header.parent for header in known.values()}
    heads = [RUN_ID, *(Digest(head) for head in known)]
    assert sorted(store.tips()) == sorted(head for head in heads if head not in parents)
    for head in heads:
        way = way_to(known, head)
        is_whole = way[-1] == RUN_ID
        assert store.is_whole(head) == is_whole
        beside = [each for each in known if not is_whole or each not in way]
        assert store.bytes_beside(head) == sum(store.entry(Digest(h)).num_bytes for h in beside)
        for other in heads:
            of_other = way_to(known, other)
            shared = [*of_other, RUN_ID]
            expected = list(itertools.takewhile(lambda each: each not in shared, way))  # noqa: B023
            assert store.only_in(head, other) == expected
            is_on_it = other in way
            path = store.path_between(other, head)
            assert path == (way[: way.index(other)][::-1] if is_on_it else None)


def test_damaged_records_are_one_line_of_the_log(tmp_path: Path) -> None:
    """A disk that fails damages hundreds at once."""
    folder = tmp_path / "chain"
    store = ChainStore(folder, RUN_ID, Digest(bytes(32)))
    for commit, header in chain_of(PEER, 40):
        store.add(commit, header)
    paths = sorted(folder.iterdir())
    for number, path in enumerate(paths[10:30]):
        path.write_bytes(b"" if number % 2 else bytes(100))
    with structlog.testing.capture_logs() as lines:
        again = ChainStore(folder, RUN_ID, Digest(bytes(32)))
    assert again.heads_by_weight()[0] == chain_of(PEER, 10)[-1][1].digest
    (line,) = [line for line in lines if "damaged" in line["event"] and "headers" in line]
    assert (line["headers"], line["first_file"]) == (20, str(paths[10]))
    assert "bring" in line["event"]
    assert len(lines) <= 2, "besides, one line on the gap"
    with structlog.testing.capture_logs() as lines:
        ChainStore(folder, RUN_ID, Digest(bytes(32)), read_only=True)
    assert len(lines) <= 2


def test_no_record_comes_into_a_directory_that_is_another_nodes_by_now(tmp_path: Path) -> None:
    """A folder was deleted and made anew while its node ran on: the records of that node have no
    states there."""
    is_ours = True

    def check_place() -> None:
        if not is_ours:
            raise DiskError("the directory is not this node's any more")

    folder = tmp_path / "chain"
    store = ChainStore(folder, RUN_ID, Digest(bytes(32)), check_place=check_place)
    rounds = chain_of(PEER, 3)
    store.add(*rounds[0])
    is_ours = False
    head = store.add(*rounds[1])
    store.further_votes.add(head, ROSTER)
    assert store.write_waiting() is not None
    assert len(list(folder.iterdir())) == 1
    assert store.commit(head).header == rounds[1][0].header, "it is known in memory"
    is_ours = True
    store.add(*rounds[2])
    assert store.problem is None
    assert len(list(folder.iterdir())) == 3
