"""The journal of work with real threads: inner steps are noted while a thread settles."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.storage.work import work_files, work_journal
from gossamer.node.storage.work.own_work import Work
from gossamer.node.storage.work.work_journal import FileHeader, encoded
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.limits import TOKENS_TOTAL_MAX
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.statements import Span
from tests.support.balance import is_balanced

PLAN = ChunkPlan(8, 2)
TOKENS = 100
ROUNDS = 60
ALL = 0b1111


def head_of(number: int) -> Digest:
    return digest_of(number.to_bytes(4))


class Life:
    """A process with its `pending`. Its clock lets every inner step be written."""

    def __init__(self, directory: Path) -> None:
        self.pending = np.zeros(PLAN.num_elements, dtype=np.float32)
        self.now = 0.0
        self.work = Work(
            directory,
            self.pending,
            PLAN,
            3,
            Metrics(),
            tokens_max=TOKENS_TOTAL_MAX,
            clock=lambda: self.now,
        )
        self.work.load()

    def step(self, tokens: int) -> None:
        self.now += 1.0
        self.work.stepped(tokens)

    def train(self, number: int) -> None:
        """A local round on a head."""
        self.work.close_offer()
        self.pending += 1.0
        self.work.trained(head_of(number), number + 1, TOKENS, (Span(0, 0, TOKENS),))

    def settle(self, number: int, ring_id: Digest) -> None:
        """The round on that head is committed, with all that was offered."""
        new = head_of(number + 1)
        self.work.committed_by(new, head_of(number), ring_id, TOKENS, ALL, counts_spans=True)
        self.work.moved_to(new)


@pytest.mark.usefixtures("eager_switching")
def test_no_write_of_the_journal_fails_and_each_is_a_whole_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[object] = []
    monkeypatch.setattr(
        work_journal.log, "debug", lambda text, **about: problems.append((text, about))
    )
    life, directory = Life(tmp_path / "work"), tmp_path / "work"
    ended = threading.Event()
    balances: list[bool] = []

    def rounds() -> None:
        try:
            for number in range(ROUNDS):
                life.train(number)
                life.work.offer(head_of(number), number + 1)
                life.settle(number, head_of(1000))
                life.work.save()
        finally:
            ended.set()

    def look() -> None:
        """Notes the files that a process that is killed at any time would leave."""
        for number in range(1_000_000):
            if ended.is_set():
                return
            copy = tmp_path / f"copy {number % 4}"
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            try:
                shutil.copy(directory / "journal", copy / "journal")
            except FileNotFoundError:
                continue
            found = Life(copy)
            if found.work.is_damaged:
                problems.append("a journal does not fit its digest")
            balances.append(is_balanced(found.work.account))

    threads = [threading.Thread(target=target) for target in (rounds, look)]
    for thread in threads:
        thread.start()
    stepped = 0
    while not ended.is_set():  # as the event loop does while a thread works
        life.step(1)
        stepped += 1
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert stepped > ROUNDS
    assert balances
    assert all(balances)
    assert not problems, problems[:3]


def test_older_content_of_the_journal_never_replaces_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread is slow between putting its content together and writing it, and steps are done."""
    event_loop, is_writing = threading.current_thread(), threading.Event()

    def slow(header: FileHeader, vector: FloatVector | None) -> tuple[bytes, memoryview]:
        content = encoded(header, vector)
        if threading.current_thread() is not event_loop:
            is_writing.set()
            time.sleep(0.1)  # the thread that is slow
        return content

    life = Life(tmp_path)
    life.train(0)
    monkeypatch.setattr(work_journal, "encoded", slow)
    noting = threading.Thread(target=life.work.moved_to, args=(head_of(7),))
    noting.start()
    assert is_writing.wait(10.0)
    life.step(5)
    noting.join()
    monkeypatch.undo()
    found = Life(tmp_path)
    assert found.work.head == head_of(7)
    assert found.work.status.trained == TOKENS + 5


def test_a_kill_while_the_saved_work_reaches_the_disk_loses_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inner step may be noted between the new `pending` and the journal that names it."""
    life, directory = Life(tmp_path / "work"), tmp_path / "work"
    life.train(0)
    life.work.save()
    life.train(0)
    killed = tmp_path / "killed"

    def write_and_step(path: Path, *parts: bytes | memoryview) -> None:
        write_atomically(path, *parts)
        life.step(5)
        shutil.copytree(directory, killed)

    monkeypatch.setattr(work_files, "write_atomically", write_and_step)
    life.work.save()
    found = Life(killed)
    assert found.work.status.carried == 2 * TOKENS
    assert is_balanced(found.work.account)
    assert (found.pending == 2.0).all()
