import json
from pathlib import Path

import pytest
import trio
import trio.testing

from gossamer.node.app.reporting.credit_view import FRESH_SECONDS_MIN, FRESH_TIMES, CreditView
from gossamer.node.runs.results.credit import Credits, read_credits
from gossamer.node.storage.owner_files import MemberName
from gossamer.node.storage.state_dir import StateDir, StateDirError
from tests.support.chains import OTHERS, commit_rounds, run_in

A, B = (each.peer_id for each in OTHERS[:2])


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state_dir = StateDir(tmp_path / "state")
    commit_rounds(state_dir, run_in(state_dir), [{A: 100, B: 50}, {A: 50}])
    return state_dir


def test_the_members_and_their_tokens(state: StateDir) -> None:
    names: dict[str, MemberName] = {B: MemberName("Ada", "us")}
    answer = trio.run(CreditView(lambda: read_credits(state), lambda: names).answer)
    found = json.loads(answer or b"")
    assert (found["round"], found["tokens_total"]) == (2, 200)
    assert found["members"] == [
        {"peer_id": A, "rank": 1, "tokens": 150, "share": 0.75, "name": "", "team": ""},
        {"peer_id": B, "rank": 2, "tokens": 50, "share": 0.25, "name": "Ada", "team": "us"},
    ]


@pytest.mark.parametrize(("took", "fresh"), [(0.0, FRESH_SECONDS_MIN), (3.5, 3.5 * FRESH_TIMES)])
def test_counting_takes_a_small_part_of_the_time(
    state: StateDir, took: float, fresh: float
) -> None:
    clock = trio.testing.MockClock()
    num_counts = 0

    def count() -> Credits:
        nonlocal num_counts
        num_counts += 1
        clock.jump(took)  # as if the count took so long
        return read_credits(state)

    async def main() -> None:
        view = CreditView(count)
        first = await view.answer()
        clock.jump(fresh - 0.01)
        assert await view.answer() == first
        assert num_counts == 1
        clock.jump(0.02)
        await view.answer()
        assert num_counts == 2

    trio.run(main, clock=clock)


def test_one_count_at_a_time_and_the_others_do_not_wait(state: StateDir) -> None:
    async def main() -> None:
        started, go_on = trio.Event(), trio.Event()

        def count() -> Credits:
            trio.from_thread.run_sync(started.set)
            trio.from_thread.run(go_on.wait)
            return read_credits(state)

        view = CreditView(count)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(view.answer)
                await started.wait()
                assert await view.answer() is None
                go_on.set()
            assert await view.answer() is not None

    trio.run(main)


def test_damaged_records_are_no_error_of_the_page() -> None:
    def count() -> Credits:
        raise StateDirError("damaged")

    assert trio.run(CreditView(count).answer) is None
