"""The files, vectors and metrics of a node's own work."""

from __future__ import annotations

import errno
import os
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import structlog

from gossamer.node.base import threads
from gossamer.node.base.disk_health import DiskError
from gossamer.node.storage.work import work_files
from gossamer.node.storage.work.own_work import VECTORS_MAX, Work
from gossamer.node.storage.work.work_journal import JOURNAL_SECONDS
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.accounting.work_records import (
    ABANDONED,
    EXCESS,
    OUT_OF_RANGE,
    Offered,
)
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.statements import Span

PLAN = ChunkPlan(8, 2)
ALL = 0b1111
STALE_ROUNDS = 3
TOKENS_MAX = 1000
H0, H1, H2, H3 = (digest_of(bytes([number])) for number in range(4))
RING, OTHER_RING = digest_of(b"ring"), digest_of(b"other ring")
SPANS = (Span(0, 0, 100),)


class Life:
    """A process with its `pending`; all of them work in the same directory."""

    def __init__(self, directory: Path, stale_rounds: int = STALE_ROUNDS) -> None:
        self.pending = np.zeros(PLAN.num_elements, dtype=np.float32)
        self.metrics = Metrics()
        self.now = 0.0
        self.step_seconds = JOURNAL_SECONDS
        """Time of an inner step."""
        self.work = Work(
            directory,
            self.pending,
            PLAN,
            stale_rounds,
            self.metrics,
            tokens_max=TOKENS_MAX,
            clock=lambda: self.now,
        )
        self.work.load()

    def step(self, tokens: int) -> None:
        self.now += self.step_seconds
        self.work.stepped(tokens)

    def train(self, head: Digest, number: int, value: float, tokens: int = 100) -> None:
        self.work.close_offer()
        self.pending += np.float32(value)
        self.step(tokens)
        self.work.trained(head, number, tokens, SPANS)

    def take(
        self, head: Digest, parent: Digest, tokens: int, chunks: int, ring: Digest = RING
    ) -> None:
        self.work.committed_by(head, parent, ring, tokens, chunks, counts_spans=True)
        self.work.moved_to(head)

    def holds(self, *values: float) -> bool:
        """One value a chunk, or one for all."""
        expected = np.repeat(np.broadcast_to(values, PLAN.num_chunks), PLAN.chunk_elements)
        return bool(np.allclose(self.pending, expected))

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"gossamer_{name}", labels) or 0.0


def fates(life: Life) -> tuple[int, int, int, int, int]:
    status = life.work.status
    found = (
        status.committed_on_time, status.committed_late, status.dropped, status.lost,
        status.carried,
    )  # fmt: skip
    assert status.trained == sum(found)
    names = ("committed_on_time", "committed_late", "dropped", "lost", "carried")
    assert found == tuple(life.sample("work_tokens", fate=name) for name in names)
    return found


class Errors:
    """Rounding errors of a ring, the same in every chunk that it has."""

    def __init__(self, num_chunks: int = PLAN.num_chunks) -> None:
        self._num_chunks = num_chunks

    def error_of(self, chunk: int) -> FloatVector | None:
        if not 0 <= chunk < self._num_chunks:
            return None
        return np.full(PLAN.elements_of(chunk), 0.25, dtype=np.float32)


def test_no_offer_has_more_than_any_peer_takes_and_the_oldest_tokens_go_first(
    tmp_path: Path,
) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0, TOKENS_MAX - 100)
    life.work.offer(H0, 1)
    life.train(H1, 2, 2.0, 300)
    offer = life.work.offer(H1, 2)
    assert offer.tokens == TOKENS_MAX
    assert list(offer.lots.values()) == [TOKENS_MAX - 300, 300]
    assert life.holds(3.0)
    assert life.sample("tokens_dropped_total", reason=EXCESS) == 200
    life.take(H2, H1, TOKENS_MAX, ALL)
    assert life.holds(0.0)
    assert fates(life) == (300, TOKENS_MAX - 300, 200, 0, 0)


def test_what_a_round_took_leaves_pending_and_its_rounding_error_stays(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    assert life.work.offer(H0, 1).tokens == 100
    life.work.followed(RING, Errors())
    life.take(H1, H0, 50, 0b0011)
    assert life.holds(0.25, 0.25, 1.0, 1.0)
    assert fates(life) == (50, 0, 0, 0, 50)
    assert life.sample("tokens_committed_total", timing="on_time") == 50


def test_work_that_missed_its_round_waits_in_the_queue_of_late_work(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.work.moved_to(H0)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    assert life.sample("late_work_tokens") == 0
    life.take(H1, H0, 0, 0)  # the round went on without this node
    assert life.sample("late_work_tokens") == 100
    life.train(H1, 2, 1.0, tokens=40)
    assert life.sample("late_work_tokens") == 100
    assert life.sample("work_tokens", fate="carried") == 140
    life.work.offer(H1, 2)
    life.take(H2, H1, 140, 0b1111)
    assert life.sample("late_work_tokens") == 0


@pytest.mark.parametrize("is_open", [True, False])
def test_the_chunks_of_a_ring_may_be_some_of_all(tmp_path: Path, is_open: bool) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.followed(RING, Errors(2), first_chunk=2)
    if not is_open:
        life.train(H0, 1, 10.0)
    life.work.committed_by(H1, H0, RING, 100, 0b1100, counts_spans=True, exchanged=0b1100)
    life.work.moved_to(H1)
    more = 0.0 if is_open else 10.0
    assert life.holds(1.0 + more, 1.0 + more, 0.25 + more, 0.25 + more)
    assert fates(life)[:2] == (100, 0)
    assert life.work.must_save


def test_stale_work_whose_tokens_are_committed_takes_no_data_with_it(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.committed_by(H1, H0, RING, 100, 0b0011, counts_spans=True, exchanged=0b0011)
    assert not life.work.drop_stale(2 + STALE_ROUNDS)
    assert life.holds(0.0)
    life.train(H1, 5, 1.0)
    assert life.work.drop_stale(9)
    assert fates(life) == (100, 0, 100, 0, 0)


def test_the_error_of_another_ring_is_not_that_of_the_one_that_took_it(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.followed(OTHER_RING, Errors())
    life.take(H1, H0, 100, ALL)
    assert life.holds(0.0)


def test_a_lost_round_gives_back_exactly_what_it_took(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.followed(RING, Errors())
    life.take(H1, H0, 50, 0b0011)
    life.train(H1, 2, 10.0)
    life.work.abandoned(H1, H0, 50, 2)
    life.work.moved_to(H2)
    assert life.holds(11.0)
    assert fates(life) == (0, 0, 0, 0, 200)
    assert life.sample("tokens_committed_total", timing="on_time") == 50
    assert life.sample("tokens_reclaimed_total", timing="on_time") == 50


@pytest.mark.parametrize("next_round", [2, 2 + STALE_ROUNDS])
def test_the_log_says_what_becomes_of_the_work_of_a_lost_round(
    next_round: int, tmp_path: Path
) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.followed(RING, Errors())
    life.take(H1, H0, 100, ALL)
    with structlog.testing.capture_logs() as lines:
        life.work.abandoned(H1, H0, 100, next_round)
        life.work.moved_to(H2)
    what = "carried again" if next_round == 2 else "dropped"
    assert [(line["event"], line["tokens"]) for line in lines] == [
        (f"work of lost rounds is {what}", 100)
    ]
    assert fates(life) == ((0, 0, 0, 0, 100) if next_round == 2 else (0, 0, 100, 0, 0))


def test_the_log_tells_of_all_rounds_of_a_branch_in_one_line(tmp_path: Path) -> None:
    life = Life(tmp_path)
    heads = [H0, *(digest_of(bytes([number])) for number in range(3))]
    for number, (parent, head) in enumerate(pairwise(heads), start=1):
        life.train(parent, number, 1.0)
        life.work.offer(parent, number)
        life.work.followed(RING, Errors())
        life.take(head, parent, 100, ALL)
    with structlog.testing.capture_logs() as lines:
        for parent, head in reversed(list(pairwise(heads))):
            life.work.abandoned(head, parent, 100, 4)
        life.work.moved_to(H2)
    assert [(line["tokens"], line["num_rounds"]) for line in lines] == [(300, 3)]


@pytest.mark.parametrize("is_signed_first", [False, True])
def test_work_that_a_ring_took_unheard_of_is_not_taken_for_what_came_in_its_place(
    is_signed_first: bool, tmp_path: Path
) -> None:
    """The first offer was taken in some chunks before a value of it went out of range. With shared
    steps a `Ready` is signed before the work of its offer is done."""
    life = Life(tmp_path)
    for sequence, value in ((3, 1.0), (5, 2.0)):
        if is_signed_first:
            life.work.signed(sequence)
        life.train(H0, 1, value)
        life.work.offer(H0, 1)
        if not is_signed_first:
            life.work.signed(sequence)
        if sequence == 3:
            life.work.drop(OUT_OF_RANGE)
    life.work.committed_by(
        H1, H0, RING, 50, 0b0011, counts_spans=True, offered=Offered(0, 100, sequence=3)
    )
    life.work.moved_to(H1)
    assert life.holds(2.0)
    assert fates(life) == (50, 0, 50, 0, 100)


def test_what_is_trained_after_an_offer_is_not_settled_with_it(tmp_path: Path) -> None:
    """Its ring commits unheard of, while this node trains on."""
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.followed(RING, Errors())
    life.train(H0, 1, 10.0, tokens=70)
    life.take(H1, H0, 75, 0b0111)
    assert life.holds(10.25, 10.25, 10.25, 11.0)
    assert fates(life) == (75, 0, 0, 0, 95)


def test_two_rings_of_one_turn(tmp_path: Path) -> None:
    """It followed one after the other; the first is committed by those who stayed in it."""
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.followed(RING, Errors())
    life.work.followed(OTHER_RING, Errors())
    life.take(H1, H0, 100, ALL, RING)
    assert life.holds(0.0)
    life.train(H1, 2, 10.0)
    life.work.abandoned(H1, H0, 100, 2)
    life.take(H2, H0, 100, ALL, OTHER_RING)
    assert life.holds(10.0)
    assert fates(life) == (100, 0, 0, 0, 100)


def test_a_spoilt_local_round_is_dropped_and_what_was_carried_stays(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.step(50)
    life.step(30)
    life.work.spoilt(50, OUT_OF_RANGE)
    assert life.holds(1.0)
    assert fates(life) == (0, 0, 50, 30, 100)
    assert life.sample("tokens_dropped_total", reason=OUT_OF_RANGE) == 50
    assert life.work.offer(H0, 1).tokens == 100
    life.take(H1, H0, 100, ALL)
    assert fates(life) == (100, 0, 50, 30, 0)


def test_stale_work_and_work_that_is_no_number_is_dropped(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, float("nan"))
    life.work.drop(OUT_OF_RANGE)
    assert life.holds(0.0)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.take(H1, H0, 50, 0b0011)
    life.train(H1, 2, 1.0)
    assert not life.work.drop_stale(1 + STALE_ROUNDS)
    assert not life.work.drop_stale(2 + STALE_ROUNDS)
    assert life.holds(1.0, 1.0, 0.0, 0.0)
    with structlog.testing.capture_logs() as lines:
        assert life.work.drop_stale(3 + STALE_ROUNDS)
    assert [(line["log_level"], line["tokens"]) for line in lines] == [("warning", 75)]
    assert "work is dropped: it missed too many rounds" in lines[0]["event"]
    assert life.holds(0.0)
    assert fates(life) == (50, 0, 250, 0, 0)
    assert life.sample("tokens_dropped_total", reason=OUT_OF_RANGE) == 100
    assert life.sample("tokens_dropped_total", reason="stale") == 150


def test_a_killed_process_loses_what_was_not_saved_and_knows_how_much(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    assert life.work.must_save
    life.work.save()
    assert not life.work.must_save
    life.train(H0, 1, 10.0, tokens=70)
    for _ in range(3):
        life.step(10)
    new = Life(tmp_path)
    assert new.holds(1.0)
    assert fates(new) == (0, 0, 0, 100, 100)
    assert Life(tmp_path).work.status == new.work.status, "a life that did nothing"


def test_a_round_that_had_the_work_of_the_killed_process_had_it(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.work.moved_to(H0)
    life.train(H0, 1, 1.0)
    life.work.save()
    life.train(H0, 1, 10.0)
    life.work.offer(H0, 1)
    life.work.followed(RING, Errors())
    new = Life(tmp_path)
    new.train(H0, 1, 100.0)
    new.take(H1, H0, 150, 0b0111)
    assert new.holds(100.0, 100.0, 100.0, 101.0)
    assert fates(new) == (150, 0, 0, 25, 125)


def test_what_was_taken_after_saving_does_not_come_back(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.save()
    life.work.offer(H0, 1)
    life.take(H1, H0, 50, 0b0011)
    new = Life(tmp_path)
    assert new.holds(0.0, 0.0, 1.0, 1.0)
    assert fates(new) == (50, 0, 0, 0, 50)
    assert new.work.head == H1
    new.work.abandoned(H1, H0, 50, 2)
    assert new.holds(1.0)


def test_what_a_round_took_of_an_offer_outlives_the_kill_that_lost_the_rest(
    tmp_path: Path,
) -> None:
    """The vector of the offer is written anew in the chunks that the round did not take."""
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.take(H1, H0, 50, 0b0011)
    life.work.save()
    life.train(H1, 2, 2.0)
    life.work.offer(H1, 2)
    life.take(H2, H1, 38, 0b0100)
    assert life.holds(2.0, 2.0, 0.0, 3.0)

    life = Life(tmp_path)
    assert life.holds(0.0, 0.0, 0.0, 1.0)

    life.work.abandoned(H2, H1, 38, 2)
    assert life.holds(0.0, 0.0, 3.0, 1.0)
    life.take(H2, H1, 150, ALL)
    assert life.holds(0.0)


def test_a_kill_between_the_two_files(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    journal = tmp_path / "journal"
    before = journal.read_bytes()
    life.work.save()
    journal.write_bytes(before)
    new = Life(tmp_path)
    assert new.holds(1.0)
    assert fates(new) == (0, 0, 0, 0, 100)


@pytest.mark.parametrize("name", ["journal", "pending"])
@pytest.mark.parametrize("damage", ["flipped", "empty", "of another model", "another version"])
def test_a_damaged_file_is_left_out(
    tmp_path: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.save()
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    match damage:
        case "flipped":
            content[-1] ^= 1
        case "empty":
            content.clear()
        case "of another model":
            data = content[32:] + b"\0\0\0\0"
            content = bytearray(digest_of(data) + data)
        case "another version":
            data = content[32:]
            data[5] = 99  # after the length and the array's head
            content = bytearray(digest_of(data) + data)
    path.write_bytes(content)
    new = Life(tmp_path)
    assert new.work.is_damaged
    assert "left out" in capsys.readouterr().out
    if name == "journal":
        assert new.holds(1.0)
        assert fates(new) == (0, 0, 0, 0, 100)
    else:
        assert new.holds(0.0)
        assert fates(new) == (0, 0, 0, 100, 0)


def test_a_damaged_vector_costs_the_work_behind_it_and_nothing_else(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    offer = life.work.offer(H0, 1)
    life.take(H1, H0, 100, ALL)
    life.train(H1, 2, 10.0)
    (tmp_path / "offers" / str(offer.number)).write_bytes(b"rubbish")
    life.work.abandoned(H1, H0, 100, 2)
    assert life.holds(10.0)
    life.work.moved_to(H0)
    assert fates(life) == (0, 0, 0, 100, 100)


def test_a_vector_that_is_gone_is_rather_lost_than_counted_twice(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    offer = life.work.offer(H0, 1)
    life.train(H0, 1, 10.0)
    (tmp_path / "offers" / str(offer.number)).unlink()
    life.take(H1, H0, 50, 0b0011)
    assert life.holds(0.0, 0.0, 11.0, 11.0)
    assert fates(life) == (50, 0, 75, 0, 75), "and the account knows"
    assert life.sample("tokens_dropped_total", reason=ABANDONED) == 75


def test_work_that_went_with_anothers_missing_vector_is_not_taken_again(tmp_path: Path) -> None:
    """A branch is left and comes back, and the vector of its first round is gone: `pending` had the
    second round's work subtracted twice, and the swarm got it with the wrong sign."""
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    first = life.work.offer(H0, 1)
    life.take(H1, H0, 100, ALL)
    life.train(H1, 2, 10.0)
    life.work.offer(H1, 2)
    life.take(H2, H1, 100, ALL)
    for head, parent in ((H2, H1), (H1, H0)):
        life.work.abandoned(head, parent, 100, 1)
    life.work.moved_to(H0)
    life.train(H0, 1, 100.0)
    assert life.holds(111.0)
    (tmp_path / "offers" / str(first.number)).unlink()
    life.take(H1, H0, 100, ALL)
    assert life.holds(0.0)
    life.take(H2, H1, 100, ALL)
    assert life.holds(0.0)
    assert fates(life) == (200, 0, 100, 0, 0)


def test_vectors_on_disk_are_bounded(tmp_path: Path) -> None:
    for stale_rounds, kept in ((STALE_ROUNDS, STALE_ROUNDS + 1), (1000, VECTORS_MAX)):
        directory = tmp_path / str(stale_rounds)
        life = Life(directory, stale_rounds)
        head = H0
        for number in range(1, 2 * VECTORS_MAX):
            life.train(head, number, 1.0)
            life.work.offer(head, number)
            new = digest_of(head)
            life.take(new, head, 100, ALL)
            head = new
        assert len(list((directory / "offers").iterdir())) == kept


def test_an_offer_that_went_into_no_ring_has_no_vector(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.withdraw()
    life.train(H0, 1, 1.0)
    assert list((tmp_path / "offers").iterdir()) == []
    assert life.work.account.state.offers == []


def test_a_disk_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.save()

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    life.train(H0, 1, 10.0)
    with pytest.raises(DiskError):
        life.work.save()
    assert life.work.must_save
    life.work.offer(H0, 1)
    life.take(H1, H0, 200, ALL)
    assert fates(life) == (200, 0, 0, 0, 0)
    monkeypatch.undo()
    life.train(H1, 2, 1.0)
    life.work.save()
    assert fates(Life(tmp_path)) == (200, 0, 0, 0, 100)


def _full(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_and_a_restart_make_no_tokens_without_work(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.work.moved_to(H0)
    life.train(H0, 1, 1.0)
    life.work.save()
    life.work.offer(H0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_files, "write_with_digest", _full)
        life.take(H1, H0, 100, ALL)
    new = Life(tmp_path)
    new.work.abandoned(H1, H0, 100, 2)
    new.work.moved_to(H0)
    assert new.holds(0.0)
    assert fates(new) == (0, 0, 0, 100, 0)


def test_an_open_offer_that_a_full_disk_did_not_take_is_written_at_the_next_start(
    tmp_path: Path,
) -> None:
    life = Life(tmp_path)
    life.work.moved_to(H0)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_files, "write_with_digest", _full)
        life.work.close_offer()
    life.work.save()
    new = Life(tmp_path)
    new.train(H0, 1, 10.0)
    new.take(H1, H0, 100, ALL)
    assert new.holds(10.0)
    assert fates(new) == (100, 0, 0, 0, 100)


def test_a_disk_that_takes_no_vectors_is_told_once(tmp_path: Path) -> None:
    life = Life(tmp_path)
    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as lines:
        patch.setattr(work_files, "write_with_digest", _full)
        for number in range(1, 4):
            life.train(H0, number, 1.0)
            life.work.offer(H0, number)
            life.work.close_offer()
    (told,) = (line for line in lines if line["log_level"] == "warning")
    assert told["event"] == "the work of this round is lost if the round is undone"
    assert "the disk is full: 32 bytes for" in told["problem"]


def test_what_cannot_be_removed_beside_the_offers_keeps_no_vector_from_the_disk(
    tmp_path: Path,
) -> None:
    (tmp_path / "offers" / "folder").mkdir(parents=True)
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    life.work.offer(H0, 1)
    life.work.close_offer()
    assert {path.name for path in (tmp_path / "offers").iterdir()} == {"folder", "2"}


def test_a_fifo_in_the_place_of_the_account_is_left_out(tmp_path: Path) -> None:
    """To open it waits until somebody writes to it."""
    os.mkfifo(tmp_path / "journal")
    life = Life(tmp_path)
    life.train(H0, 1, 1.0)
    assert fates(Life(tmp_path)) == (0, 0, 0, 100, 0)


def test_quick_steps_do_not_wear_out_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path)
    life.step_seconds = JOURNAL_SECONDS / 50
    real, written = os.replace, 0

    def count(source: Path, target: Path) -> None:
        nonlocal written
        written += 1
        real(source, target)

    monkeypatch.setattr(os, "replace", count)
    for _ in range(1000):
        life.step(32)
    assert 20 <= written <= 21
    lost = Life(tmp_path).work.status.lost
    assert 0 <= 1000 * 32 - lost <= 50 * 32


def test_a_slow_disk_does_not_hold_up_the_event_loop_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could join a node whose disk took half a second for a file, and its rounds took a
    minute instead of a second."""
    life = Life(tmp_path)
    life.step_seconds = JOURNAL_SECONDS / 50
    real, disk_seconds = os.replace, 0.0

    def be_slow(source: Path, target: Path) -> None:
        nonlocal disk_seconds
        life.now += 0.5
        disk_seconds += 0.5
        real(source, target)

    monkeypatch.setattr(os, "replace", be_slow)
    for _ in range(5_000):
        life.step(32)
    assert 2.0 <= disk_seconds <= 0.05 * life.now + 0.5
    assert life.now == pytest.approx(5_000 * life.step_seconds + disk_seconds)


def test_threads_settle_a_round_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers: set[str] = set()
    met = threading.Barrier(2)

    class EachItsOwn(Errors):
        def error_of(self, chunk: int) -> FloatVector | None:
            name = threading.current_thread().name
            if name.startswith("pieces") and name not in workers:
                workers.add(name)
                met.wait(60)  # until two threads are at work at the same time
            return np.full(PLAN.elements_of(chunk), 0.25 * chunk, dtype=np.float32)

    found = []
    monkeypatch.setattr(threads, "PIECE_ELEMENTS", 1)
    for num_threads in (1, 2):
        monkeypatch.setattr(threads, "num_usable_cores", lambda num=num_threads: num)
        life = Life(tmp_path / str(num_threads))
        life.train(H0, 1, 1.0)
        life.pending += np.arange(PLAN.num_elements, dtype=np.float32)
        offer = life.work.offer(H0, 1)
        life.work.followed(RING, EachItsOwn())
        life.take(H1, H0, 50, 0b1011)
        written = (tmp_path / str(num_threads) / "offers" / str(offer.number)).read_bytes()
        found.append((life.pending.tobytes(), written))
    assert found[0] == found[1]
    assert len(workers) == 2
