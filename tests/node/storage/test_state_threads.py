"""Real threads at one committed state: a driver that was left still computes while others' rounds
are replayed."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gossamer.node.storage.state import next_state, retention
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.state.outer_step import nesterov
from tests.support.committed_rounds import Holder, small_manifest

pytestmark = pytest.mark.usefixtures("eager_switching")

ROUNDS = 8


JOIN_SECONDS = 30.0
"""A thread that takes so long is stuck."""


@pytest.fixture
def _slow_outer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk of an outer step takes up to 2 ms, as with a large model."""
    draw = random.Random(0)

    def slow(*arguments: object) -> None:
        time.sleep(draw.random() * 0.002)
        nesterov(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(next_state, "nesterov", slow)


def run_threads(*functions: Callable[[], object]) -> None:
    """Runs them at once, each in a thread; the first error is raised here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> None:
        barrier.wait(JOIN_SECONDS)
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("_slow_outer_step")
def test_the_step_of_a_round_that_was_left_does_not_tear_what_is_replayed(tmp_path: Path) -> None:
    manifest = small_manifest()
    theirs, mine = Holder(manifest, tmp_path / "theirs"), Holder(manifest, tmp_path / "mine")
    for number in range(ROUNDS):
        made = theirs.commit(theirs.averages(number))
        mine.learn(made)
        left, parent = mine.averages(500 + number), mine.state.head
        run_threads(partial(mine.take_step, left, parent), partial(mine.state.replay, made.head))
        assert mine.state.head == made.head
        mine.assert_whole()


@pytest.mark.usefixtures("_slow_outer_step")
def test_a_late_step_of_a_round_that_was_left_does_not_tear_the_next_commit(
    tmp_path: Path,
) -> None:
    holder = Holder(small_manifest(), tmp_path)
    for number in range(ROUNDS):
        left, parent = holder.averages(500 + number), holder.state.head
        run_threads(
            partial(holder.take_step, left, parent), partial(holder.commit, holder.averages(number))
        )
        assert holder.state.entry.round == number + 1
        holder.assert_whole()


def test_a_step_that_is_not_wanted_any_more_is_dropped(tmp_path: Path) -> None:
    holder = Holder(small_manifest(), tmp_path)
    before = holder.state.head
    assert holder.take_step(holder.averages(1), is_wanted=lambda: False) is None
    holder.commit(holder.averages(2))
    assert holder.take_step(holder.averages(3), parent=before) is None
    holder.assert_whole()


def test_the_event_loop_always_finds_the_newest_checkpoint(tmp_path: Path) -> None:
    """It is announced to the others while a thread writes it once more, or the next one."""
    holder = Holder(small_manifest(checkpoint_rounds=1), tmp_path)
    seen: list[int] = []

    def look(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        """Switches threads before each line that changes what is kept."""
        if frame.f_code.co_filename != retention.__file__:
            return None
        seen.append(holder.state.checkpoint_round)
        return look

    sys.settrace(look)
    try:
        for number in range(10):
            holder.state.checkpoint()
            holder.commit(holder.averages(number))
    finally:
        sys.settrace(None)
    assert seen == sorted(seen)
    assert seen[-1] == 10


def test_what_others_put_into_a_full_store_evicts_no_average_of_a_new_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch stores its blocks while a thread stores the averages of the round."""
    holder = Holder(small_manifest(checkpoint_rounds=100), tmp_path)
    averages = holder.averages(0)
    holder.store.quota_bytes = holder.store.used_bytes() + len(averages.averages[0])
    put = holder.store.put
    others = iter(range(1_000_000))

    def put_with_others(data: bytes, **how: Any) -> Digest:
        digest = put(data, **how)
        put(next(others).to_bytes(4) * 100)
        return digest

    monkeypatch.setattr(holder.store, "put", put_with_others)
    made = holder.commit(averages)
    assert not holder.store.missing([digest_of(block) for block in made.blocks])


def test_a_header_that_was_forgotten_meanwhile_is_a_missing_one(tmp_path: Path) -> None:
    """Its averages are fetched ahead, and the branch is forgotten before all of them have come."""
    holder = Holder(small_manifest(), tmp_path)
    with pytest.raises(CannotRebuildError):
        holder.state.blocks.header(digest_of(b"forgotten"))
