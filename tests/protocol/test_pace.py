"""Who is far slower than the rest of its ring. Rates in bytes a second; chunks of 1 MB."""

from __future__ import annotations

import pytest
from builders import peers

from gossamer.protocol.ids import PeerId
from gossamer.protocol.pace import (
    PATIENCE_SECONDS_MIN,
    PREDECESSOR_SECONDS,
    SAMPLE_SECONDS,
    SLOW_FACTOR,
    VERDICT_SECONDS,
    RingPace,
)

RING = peers(5)
PREDECESSOR, ME, SUCCESSOR, NEXT, LAST = RING
FAST, SLOW = 12_500_000, 625_000  # 100 and 5 Mbit/s
NOW = 10.0 + VERDICT_SECONDS


def pace(
    members: list[PeerId] = RING,
    *,
    round_seconds: float = 0.0,
    line_was_slow: bool = False,
    num_chunks: int = 40,
) -> RingPace:
    """Mine, of a ring that began at second 10."""
    return RingPace(
        members,
        ME,
        began_seconds=10.0,
        chunk_bytes=1_000_000,
        num_chunks=num_chunks,
        round_seconds=round_seconds,
        line_was_slow=line_was_slow,
    )


def measured(mine: RingPace, rate: float, peer: PeerId = SUCCESSOR, seconds: float = 1.7) -> None:
    mine.measured(peer, int(rate * seconds), seconds)  # a slow line has carried a chunk by then


def said(mine: RingPace, rates: dict[PeerId, float]) -> None:
    for peer, rate in rates.items():
        mine.said(peer, rate)


ALL_FAST = dict.fromkeys([PREDECESSOR, SUCCESSOR, NEXT, LAST], FAST)


def test_a_successor_with_a_slow_line_goes() -> None:
    mine = pace()
    measured(mine, SLOW)
    said(mine, {**ALL_FAST, SUCCESSOR: SLOW})
    assert mine.too_slow(NOW, RING, SUCCESSOR) == SUCCESSOR
    assert not mine.line_is_slow


def test_i_go_if_the_line_to_me_is_slow_as_well() -> None:
    mine = pace()
    measured(mine, SLOW)
    said(mine, {**ALL_FAST, PREDECESSOR: SLOW})
    assert mine.too_slow(NOW, RING, SUCCESSOR) == ME
    assert mine.line_is_slow


def test_i_go_with_the_second_successor_that_looks_slow() -> None:
    mine = pace()
    measured(mine, SLOW)
    said(mine, ALL_FAST)
    assert mine.too_slow(NOW, RING, SUCCESSOR) == SUCCESSOR
    living = [peer for peer in RING if peer != SUCCESSOR]
    assert mine.too_slow(NOW, living, NEXT) is None  # not measured yet
    measured(mine, SLOW, NEXT)
    assert mine.too_slow(NOW, living, NEXT) == ME


def test_who_was_slow_in_the_ring_before_blames_nobody_else() -> None:
    mine = pace(line_was_slow=True)
    measured(mine, SLOW)
    said(mine, ALL_FAST)
    assert mine.too_slow(NOW, RING, SUCCESSOR) == ME


def test_lines_that_differ_as_home_lines_do_are_no_reason() -> None:
    mine = pace()
    said(mine, ALL_FAST)
    measured(mine, FAST / SLOW_FACTOR * 1.01)
    assert mine.too_slow(NOW, RING, SUCCESSOR) is None
    measured(mine, FAST / SLOW_FACTOR * 0.99)
    assert mine.too_slow(NOW, RING, SUCCESSOR) == SUCCESSOR


def test_one_fast_machine_among_slow_ones_makes_nobody_slow() -> None:
    mine = pace()
    measured(mine, SLOW)
    said(mine, {PREDECESSOR: 100 * FAST, SUCCESSOR: SLOW, NEXT: SLOW, LAST: SLOW})
    assert mine.too_slow(NOW, RING, SUCCESSOR) is None


def test_what_is_soon_done_is_waited_for() -> None:
    def verdict(num_chunks: int, round_seconds: float) -> PeerId | None:
        mine = pace(num_chunks=num_chunks, round_seconds=round_seconds)
        measured(mine, SLOW)
        said(mine, ALL_FAST)
        return mine.too_slow(NOW, RING, SUCCESSOR)

    # 1.6 MB in all for 0.6 MB a second: some 2.6 s less those already sent.
    assert verdict(num_chunks=1, round_seconds=0.0) is None
    assert verdict(num_chunks=5, round_seconds=0.0) == SUCCESSOR
    assert verdict(num_chunks=5, round_seconds=60.0) is None


def test_a_link_is_judged_when_it_was_busy_and_half_of_the_others_spoke() -> None:
    mine = pace()
    said(mine, ALL_FAST)
    assert mine.too_slow(NOW, RING, SUCCESSOR) is None
    measured(mine, SLOW, seconds=VERDICT_SECONDS / 2)
    assert mine.too_slow(NOW, RING, SUCCESSOR) is None
    few = pace()
    measured(few, SLOW)
    said(few, {PREDECESSOR: FAST})
    assert few.too_slow(NOW, RING, SUCCESSOR) is None
    said(few, {LAST: FAST})
    assert few.too_slow(NOW, RING, SUCCESSOR) == SUCCESSOR


def test_the_predecessors_word_is_waited_for() -> None:
    mine = pace()
    measured(mine, SLOW)
    said(mine, {SUCCESSOR: SLOW, NEXT: FAST, LAST: FAST})
    assert mine.too_slow(NOW, RING, SUCCESSOR) is None
    assert mine.too_slow(10.0 + PREDECESSOR_SECONDS, RING, SUCCESSOR) == SUCCESSOR


def test_two_have_no_rest_to_be_slower_than() -> None:
    mine = pace([ME, SUCCESSOR])
    measured(mine, SLOW)
    said(mine, {SUCCESSOR: FAST})
    assert mine.too_slow(20.0, [ME, SUCCESSOR], SUCCESSOR) is None


def test_my_pace_is_said_once_when_there_is_something_to_say() -> None:
    mine = pace()
    assert mine.to_say(10.0 + SAMPLE_SECONDS, SUCCESSOR) is None
    mine.measured(SUCCESSOR, 100_000, 0.1)
    assert mine.to_say(10.0 + SAMPLE_SECONDS, SUCCESSOR) is None
    mine.measured(SUCCESSOR, 1_000_000, 0.1)
    assert mine.to_say(10.0, SUCCESSOR) is None
    assert mine.to_say(10.0 + SAMPLE_SECONDS, SUCCESSOR) == pytest.approx(10_000_000)
    assert mine.to_say(10.0 + SAMPLE_SECONDS, SUCCESSOR) is None


def test_a_line_that_takes_nothing_has_the_pace_zero() -> None:
    mine = pace()
    mine.measured(SUCCESSOR, 0, 1.5)
    assert mine.to_say(NOW, SUCCESSOR) == 0.0
    said(mine, ALL_FAST)
    assert mine.too_slow(NOW, RING, SUCCESSOR) is None
    mine.measured(SUCCESSOR, 0, PATIENCE_SECONDS_MIN)
    assert mine.too_slow(NOW, RING, SUCCESSOR) == SUCCESSOR


def test_a_slow_line_carries_one_chunk_if_that_is_not_too_long() -> None:
    def verdict(seconds: float, round_seconds: float) -> PeerId | None:
        mine = pace(round_seconds=round_seconds)
        measured(mine, SLOW / 4, seconds=seconds)  # 6.4 s a chunk
        said(mine, ALL_FAST)
        return mine.too_slow(10.0 + seconds, RING, SUCCESSOR)

    assert verdict(6.0, round_seconds=60.0) is None
    assert verdict(6.5, round_seconds=60.0) == SUCCESSOR
    assert verdict(6.0, round_seconds=10.0) == SUCCESSOR


def test_strangers_and_repetitions_do_not_count() -> None:
    mine = pace([PREDECESSOR, ME, SUCCESSOR])
    measured(mine, SLOW)
    said(mine, {NEXT: FAST, LAST: FAST, SUCCESSOR: SLOW, PREDECESSOR: SLOW})
    said(mine, {SUCCESSOR: FAST, PREDECESSOR: FAST})
    assert mine.too_slow(NOW, [PREDECESSOR, ME, SUCCESSOR], SUCCESSOR) is None
