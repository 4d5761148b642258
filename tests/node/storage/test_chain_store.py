import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.node.base.disk_health import DiskError, DiskHealth
from gossamer.node.storage.chain_store import ChainStore
from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId, peer_id_from_public_key
from gossamer.protocol.state.chain import Commit, Header, Member, encode_header
from gossamer.protocol.wire.statements import Signed

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
        chain.append((Commit(encode_header(header), ROSTER, ()), header))
        parent = header.digest
    return chain


@pytest.fixture
def _eager_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_eager_switching")
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


def test_records_are_served_while_their_branch_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread reads them for a peer, and the event loop forgets a branch that leads nowhere."""
    chain = chain_of(PEER, 20)
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    for commit, header in chain:
        store.add(commit, header)
    head, read = chain[-1][1].digest, store.commit

    def forget_meanwhile(head: Digest) -> Commit:
        store.forget_all_but([])
        return read(head)

    monkeypatch.setattr(store, "commit", forget_meanwhile)
    records = store.records_after(head, 0)
    assert len(records) <= len(chain)
    assert head not in store
