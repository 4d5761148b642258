"""Real threads at one committed state: a driver that was left still computes while others' rounds
are replayed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gossamer.node.storage import next_state
from gossamer.protocol.state.outer_step import nesterov
from tests.node.committed_rounds import Holder, small_manifest

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


def test_a_step_that_nobody_wants_any_more_is_dropped(tmp_path: Path) -> None:
    holder = Holder(small_manifest(), tmp_path)
    before = holder.state.head
    assert holder.take_step(holder.averages(1), is_wanted=lambda: False) is None
    holder.commit(holder.averages(2))
    assert holder.take_step(holder.averages(3), parent=before) is None
    holder.assert_whole()
