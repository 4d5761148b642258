"""The members that are far slower than the rest of their ring. Rates in bytes a second; chunks of 1
MB."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest

from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.rounds.measured_link import (
    GAP_SECONDS,
    LAG_SECONDS,
    PATIENCE_FRACTION,
    LinkMeasure,
)
from gossamer.protocol.rounds.ring.link_rates import (
    CHANGE_FACTOR,
    LIMIT_SHARE,
    PATIENCE_SECONDS_MIN,
    PREDECESSOR_SECONDS,
    SAMPLE_SECONDS,
    SLOW_FACTOR,
    STEPS_WORD_SECONDS,
    VERDICT_SECONDS,
    WINDOW_SECONDS_MAX,
    WINDOW_SECONDS_MIN,
    WORD_SECONDS,
    RingLinkRates,
)
from gossamer.protocol.wire.statements import LinkRate
from tests.support.builders import peers

RING = peers(5)
PREDECESSOR, ME, SUCCESSOR, NEXT, LAST = RING
FAST, SLOW = 12_500_000, 625_000  # 100 and 5 Mbit/s
NOW = 10.0 + VERDICT_SECONDS
MUCH = 100_000_000
LOOK_SECONDS = 0.25


def link_rate(
    members: list[PeerId] = RING,
    *,
    round_seconds: float = 0.0,
    was_slow: frozenset[PeerId] = frozenset(),
    num_chunks: int = 40,
    is_in_steps: bool = False,
) -> RingLinkRates:
    """This peer's view of the link rates of a ring that began at second 10."""
    return RingLinkRates(
        members,
        ME,
        began_seconds=10.0,
        chunk_bytes=1_000_000,
        num_chunks=num_chunks,
        round_seconds=round_seconds,
        was_slow=was_slow,
        is_in_steps=is_in_steps,
    )


def measured(
    mine: RingLinkRates, rate: float, peer: PeerId = SUCCESSOR, seconds: float = 1.7
) -> None:
    now = 10.0 + seconds
    mine.measured(
        now, peer, LinkMeasure(int(rate * seconds), seconds, MUCH)
    )  # a slow line has carried a chunk
    much_arrives(mine, now)


def much_arrives(mine: RingLinkRates, now: float) -> None:
    for _ in range(20):
        mine.received(now)


def said(
    mine: RingLinkRates,
    rates: Mapping[PeerId, float],
    sequence: int = 1,
    arrived: Mapping[PeerId, float] | None = None,
) -> None:
    """`arrived`: what came to members to which less came than is said of any line."""
    for peer, rate in rates.items():
        came = (arrived or {}).get(peer, 1e12)
        mine.said(peer, LinkRate(digest_of(b"ring"), sequence, rate, came))


class Line:
    """My link in the middle of a ring, looked at several times a second."""

    def __init__(self, mine: RingLinkRates, *, is_fed: bool = True) -> None:
        """`is_fed`: whether much comes to me."""
        self.now = 10.0
        self.said: list[tuple[int, float, float]] = []
        self.verdict: PeerId | None = None
        self._mine, self._is_fed = mine, is_fed
        self.limit = math.inf
        self._acked_bytes = self._busy_seconds = 0.0

    def hear(self, rates: dict[PeerId, float]) -> None:
        """The other members say new link rates."""
        said(self._mine, rates, sequence=2)

    def run(self, seconds: float, rate: float, waiting: int = MUCH) -> float:
        """Runs until so many seconds are over, or a member is too slow; returns the seconds that it
        took."""
        began_seconds = self.now
        while self.now < began_seconds + seconds and self.verdict is None:
            self._acked_bytes += rate * LOOK_SECONDS
            self.stand_still(LOOK_SECONDS, waiting)
        return self.now - began_seconds

    def send(self, num_bytes: int, seconds: float) -> None:
        """One chunk, behind which nothing waits."""
        self._acked_bytes += num_bytes
        self.stand_still(seconds, waiting=0)

    def idle(self, seconds: float) -> None:
        """Nothing is to be sent."""
        end_seconds = self.now + seconds
        while self.now < end_seconds and self.verdict is None:
            self._busy_seconds -= LOOK_SECONDS  # `stand_still` counts it
            self.stand_still(LOOK_SECONDS, waiting=0)

    def stand_still(self, seconds: float, waiting: int = MUCH) -> None:
        """Looks at the link once after so many busy seconds in which the link was not looked at and
        no bytes came."""
        mine = self._mine
        self.now += seconds
        self._busy_seconds += seconds
        measure = LinkMeasure(int(self._acked_bytes), self._busy_seconds, waiting, self.limit)
        mine.measured(self.now, SUCCESSOR, measure)
        if self._is_fed:
            much_arrives(mine, self.now)
        word = mine.to_say(self.now, SUCCESSOR)
        self.said += [] if word is None else [word]
        self.verdict = mine.too_slow(self.now, RING, SUCCESSOR).member


ALL_FAST = dict.fromkeys([PREDECESSOR, SUCCESSOR, NEXT, LAST], FAST)


def test_a_successor_with_a_slow_line_goes() -> None:
    mine = link_rate()
    measured(mine, SLOW)
    said(mine, {**ALL_FAST, SUCCESSOR: SLOW})
    assert mine.too_slow(NOW, RING, SUCCESSOR).member == SUCCESSOR


def test_i_go_if_the_line_to_me_is_slow_as_well() -> None:
    mine = link_rate()
    measured(mine, SLOW)
    said(mine, {**ALL_FAST, PREDECESSOR: SLOW})
    assert mine.too_slow(NOW, RING, SUCCESSOR).member == ME


def test_i_go_with_the_second_successor_that_looks_slow() -> None:
    mine = link_rate()
    measured(mine, SLOW)
    said(mine, ALL_FAST)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member == SUCCESSOR
    mine.put_out(ME, SUCCESSOR)
    living = [peer for peer in RING if peer != SUCCESSOR]
    assert mine.too_slow(NOW, living, NEXT).member is None  # not measured yet
    measured(mine, SLOW, NEXT)
    assert mine.too_slow(NOW, living, NEXT).member == ME
    mine.put_out(ME, ME)
    assert mine.found_slow == {ME}, "and not whom I blamed first"


def test_a_member_that_leaves_clears_those_alone_that_it_blamed_itself() -> None:
    mine = link_rate()
    mine.put_out(PREDECESSOR, ME)
    mine.put_out(NEXT, LAST)
    mine.put_out(NEXT, NEXT)
    assert mine.found_slow == {ME, NEXT}


def test_what_a_predecessor_said_that_is_out_by_now_is_no_word_on_my_line() -> None:
    mine = link_rate()
    measured(mine, SLOW)
    said(mine, {**ALL_FAST, PREDECESSOR: SLOW})
    now, living = 10.0 + PREDECESSOR_SECONDS, [peer for peer in RING if peer != PREDECESSOR]
    much_arrives(mine, now)
    assert mine.too_slow(now, RING, SUCCESSOR).member == ME
    assert mine.too_slow(now, living, SUCCESSOR).member == SUCCESSOR


@pytest.mark.parametrize("is_in_steps", [False, True])
def test_the_member_that_was_slow_in_the_ring_before_is_first(is_in_steps: bool) -> None:
    for was_slow, slow in (
        ({ME}, ME),
        ({SUCCESSOR}, SUCCESSOR),
        ({ME, SUCCESSOR}, ME),
    ):
        mine = link_rate(was_slow=frozenset(was_slow), is_in_steps=is_in_steps)
        measured(mine, SLOW)
        said(mine, ALL_FAST)
        assert mine.too_slow(NOW, RING, SUCCESSOR).member == slow


def test_every_verdict_says_why() -> None:
    mine = link_rate()
    assert mine.too_slow(NOW, RING, SUCCESSOR).reason == "the link is not measured, or it pauses"
    measured(mine, SLOW)
    assert mine.too_slow(NOW, RING, SUCCESSOR).reason == "too few members said a link rate"
    said(mine, {**ALL_FAST, SUCCESSOR: SLOW})
    reason = mine.too_slow(NOW, RING, SUCCESSOR).reason
    assert reason.startswith("only the link to the successor is slow: ")
    said(mine, {PREDECESSOR: SLOW}, sequence=2)
    reason = "the predecessor's link to this peer is slow as well"
    assert mine.too_slow(NOW, RING, SUCCESSOR).reason == reason
    fast = link_rate()
    said(fast, ALL_FAST)
    measured(fast, FAST)
    assert fast.too_slow(NOW, RING, SUCCESSOR).reason == "the link is not slow"


def test_lines_that_differ_as_home_lines_do_are_no_reason() -> None:
    mine = link_rate()
    said(mine, ALL_FAST)
    measured(mine, FAST / SLOW_FACTOR * 1.01)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    measured(mine, FAST / SLOW_FACTOR * 0.99)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member == SUCCESSOR


def test_one_fast_machine_among_slow_ones_makes_no_member_slow() -> None:
    mine = link_rate()
    measured(mine, SLOW)
    said(mine, {PREDECESSOR: 100 * FAST, SUCCESSOR: SLOW, NEXT: SLOW, LAST: SLOW})
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None


def test_what_is_soon_done_is_waited_for() -> None:
    def verdict(num_chunks: int, round_seconds: float) -> PeerId | None:
        mine = link_rate(num_chunks=num_chunks, round_seconds=round_seconds)
        mine.measured(NOW, SUCCESSOR, LinkMeasure(int(1.7 * SLOW), 1.7, 1_200_000))
        much_arrives(mine, NOW)
        said(mine, ALL_FAST)
        verdict = mine.too_slow(NOW, RING, SUCCESSOR)
        assert verdict.member or verdict.reason == "the link is not slow"
        return verdict.member

    # 1.6 MB in all for 0.6 MB a second: some 2.6 s less those already sent.
    assert verdict(num_chunks=1, round_seconds=0.0) is None
    assert verdict(num_chunks=5, round_seconds=0.0) == SUCCESSOR
    assert verdict(num_chunks=5, round_seconds=60.0) is None


def test_a_link_is_judged_when_it_was_busy_and_half_of_the_others_spoke() -> None:
    mine = link_rate()
    said(mine, ALL_FAST)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    measured(mine, SLOW, seconds=VERDICT_SECONDS / 2)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    few = link_rate()
    measured(few, SLOW)
    said(few, {PREDECESSOR: FAST})
    assert few.too_slow(NOW, RING, SUCCESSOR).member is None
    said(few, {LAST: FAST})
    assert few.too_slow(NOW, RING, SUCCESSOR).member == SUCCESSOR


@pytest.mark.parametrize("num_others", [3, 4])
@pytest.mark.parametrize("liar", [PREDECESSOR, SUCCESSOR])
def test_a_rate_that_one_member_does_not_have_finds_no_link_slow(
    liar: PeerId, num_others: int
) -> None:
    ring = RING[: num_others + 1]
    mine = link_rate(ring)
    measured(mine, SLOW)
    honest = [peer for peer in ring if peer not in (ME, liar)]
    for peer in [liar, *honest]:
        said(mine, {peer: 1e9 if peer == liar else SLOW})
        much_arrives(mine, 10.0 + PREDECESSOR_SECONDS)
        assert mine.too_slow(10.0 + PREDECESSOR_SECONDS, ring, SUCCESSOR).member is None


@pytest.mark.parametrize("num_members", [4, 5])
def test_a_false_rate_beside_a_fast_machine_finds_no_link_slow(num_members: int) -> None:
    """All lines but the link between two fast machines are slow, and one member lies."""
    ring = RING[:num_members]
    verdicts = []
    for liar, fast in itertools.permutations([each for each in ring if each != ME], 2):
        mine = link_rate(ring)
        now = 10.0 + PREDECESSOR_SECONDS + WORD_SECONDS
        mine.measured(now, SUCCESSOR, LinkMeasure(int(SLOW * (now - 10.0)), now - 10.0, MUCH))
        receiver = ring[(ring.index(fast) + 1) % num_members]
        if receiver in (ME, liar):
            continue
        others = [peer for peer in ring if peer != ME]
        rates = dict.fromkeys(others, SLOW) | {fast: FAST, liar: 1e9}
        came = dict.fromkeys(others, SLOW) | {receiver: FAST, liar: 1e9}
        said(mine, rates, arrived=came)
        mine.received(10.0 + 1e6 / SLOW)
        verdicts.append(mine.too_slow(now, ring, SUCCESSOR).member)
    assert len(verdicts) >= 2
    assert verdicts == [None] * len(verdicts)


def test_an_arrival_that_a_member_has_seen_since_is_said_again() -> None:
    mine = link_rate()
    mine.measured(NOW, SUCCESSOR, LinkMeasure(2 * FAST, 1.5, MUCH))
    word = mine.to_say(NOW, SUCCESSOR)
    assert word is not None
    assert word[2] == 0.0
    mine.received(NOW)
    again = mine.to_say(NOW, SUCCESSOR)
    assert again is not None
    assert again[2] == pytest.approx(1e6 / (NOW - 10.0))
    assert mine.to_say(NOW, SUCCESSOR) is None


def test_in_a_ring_of_three_the_predecessors_word_counts_as_far_as_it_is_seen() -> None:
    ring = [PREDECESSOR, ME, SUCCESSOR]

    def verdict(rates: dict[PeerId, float], arrives: float) -> PeerId | None:
        mine = link_rate(ring)
        mine.measured(NOW + 3.0, SUCCESSOR, LinkMeasure(int(4.7 * SLOW), 4.7, MUCH))
        said(mine, rates)
        for chunk in range(1, int(arrives * 4.0 / 1e6) + 1):
            mine.received(10.0 + chunk * 1e6 / arrives)
        return mine.too_slow(NOW + 3.0, ring, SUCCESSOR).member

    assert verdict({PREDECESSOR: FAST, SUCCESSOR: SLOW}, arrives=FAST) == SUCCESSOR
    assert verdict({PREDECESSOR: FAST}, arrives=FAST) == SUCCESSOR
    assert verdict({PREDECESSOR: 1e9, SUCCESSOR: SLOW}, arrives=SLOW) is None
    assert verdict({PREDECESSOR: SLOW, SUCCESSOR: 1e9}, arrives=SLOW) is None
    assert verdict({SUCCESSOR: FAST}, arrives=FAST) is None


def test_the_predecessors_word_is_waited_for() -> None:
    mine = link_rate()
    measured(mine, SLOW)
    said(mine, {SUCCESSOR: SLOW, NEXT: FAST, LAST: FAST})
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    much_arrives(mine, 10.0 + PREDECESSOR_SECONDS)
    assert mine.too_slow(10.0 + PREDECESSOR_SECONDS, RING, SUCCESSOR).member == SUCCESSOR


def test_what_came_before_the_line_became_slow_is_no_sign_that_it_is_not_mine() -> None:
    mine = link_rate()
    measured(mine, SLOW)
    said(mine, ALL_FAST)
    assert mine.too_slow(11.7 + SAMPLE_SECONDS, RING, SUCCESSOR).member is None
    assert mine.too_slow(11.7 + SAMPLE_SECONDS + WORD_SECONDS, RING, SUCCESSOR).member == SUCCESSOR
    still_fed = link_rate()
    measured(still_fed, SLOW)
    said(still_fed, ALL_FAST)
    much_arrives(still_fed, 11.7 + SAMPLE_SECONDS)
    assert still_fed.too_slow(11.7 + SAMPLE_SECONDS, RING, SUCCESSOR).member == SUCCESSOR


def test_two_have_no_rest_to_be_slower_than() -> None:
    mine = link_rate([ME, SUCCESSOR])
    measured(mine, SLOW)
    said(mine, {SUCCESSOR: FAST})
    assert mine.too_slow(20.0, [ME, SUCCESSOR], SUCCESSOR).member is None


def test_my_link_rate_is_said_when_there_is_something_to_say() -> None:
    mine = link_rate()
    now = 10.0 + SAMPLE_SECONDS
    assert mine.to_say(now, SUCCESSOR) is None
    mine.measured(now, SUCCESSOR, LinkMeasure(100_000, 0.1, MUCH))
    assert mine.to_say(now, SUCCESSOR) is None
    mine.measured(now, SUCCESSOR, LinkMeasure(1_000_000, 0.1, MUCH))
    assert mine.to_say(10.0, SUCCESSOR) is None
    assert mine.to_say(now, SUCCESSOR) == pytest.approx((1, 10_000_000, 0.0))
    assert mine.to_say(now, SUCCESSOR) is None


def test_a_line_that_takes_nothing_has_the_link_rate_zero() -> None:
    mine = link_rate()
    mine.measured(NOW, SUCCESSOR, LinkMeasure(0, 1.5, MUCH))
    assert mine.to_say(NOW, SUCCESSOR) == (1, 0.0, 0.0)
    said(mine, ALL_FAST)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    mine.measured(NOW, SUCCESSOR, LinkMeasure(0, PATIENCE_SECONDS_MIN, MUCH))
    much_arrives(mine, NOW)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member == SUCCESSOR


def test_a_link_rate_that_stays_zero_is_said_once() -> None:
    mine = link_rate()
    words = []
    for seconds in (1.0, 2.0, 3.0):
        mine.measured(10.0 + seconds, SUCCESSOR, LinkMeasure(0, seconds, MUCH))
        words.append(mine.to_say(10.0 + seconds, SUCCESSOR))
    assert words == [(1, 0.0, 0.0), None, None]


def test_a_slow_line_carries_one_chunk_if_that_is_not_too_long() -> None:
    def verdict(seconds: float, round_seconds: float) -> PeerId | None:
        mine = link_rate(round_seconds=round_seconds)
        measured(mine, SLOW / 4, seconds=seconds)  # 6.4 s a chunk
        said(mine, ALL_FAST)
        return mine.too_slow(10.0 + seconds, RING, SUCCESSOR).member

    assert verdict(6.0, round_seconds=60.0) is None
    assert verdict(6.5, round_seconds=60.0) == SUCCESSOR
    assert verdict(6.0, round_seconds=10.0) == SUCCESSOR


def test_strangers_and_repetitions_do_not_count() -> None:
    mine = link_rate([PREDECESSOR, ME, SUCCESSOR])
    measured(mine, SLOW)
    said(mine, {NEXT: FAST, LAST: FAST, SUCCESSOR: SLOW, PREDECESSOR: SLOW})
    said(mine, {SUCCESSOR: FAST, PREDECESSOR: FAST})
    assert mine.too_slow(NOW, [PREDECESSOR, ME, SUCCESSOR], SUCCESSOR).member is None


# In the middle of a ring


def test_a_line_that_becomes_slow_is_found_within_a_window() -> None:
    mine = link_rate(num_chunks=400)
    said(mine, ALL_FAST)
    line = Line(mine)
    line.run(20.0, FAST)
    assert line.verdict is None
    assert line.run(20.0, SLOW) <= WINDOW_SECONDS_MAX
    assert line.verdict == SUCCESSOR
    quick = Line(link_rate(num_chunks=400))
    quick.hear(ALL_FAST)
    quick.run(3.0, FAST)
    assert quick.run(20.0, SLOW) <= WINDOW_SECONDS_MIN + LOOK_SECONDS


def test_the_window_grows_with_the_round() -> None:
    def seconds(round_seconds: float) -> float:
        mine = link_rate(num_chunks=4000, round_seconds=round_seconds)
        said(mine, ALL_FAST)
        line = Line(mine)
        line.run(15.0, FAST)
        return line.run(60.0, SLOW)

    assert seconds(0.0) < seconds(30.0) < seconds(60.0) <= WINDOW_SECONDS_MAX
    assert seconds(600.0) == seconds(3600.0) <= WINDOW_SECONDS_MAX


def test_it_is_my_line_if_the_predecessor_says_that_the_line_to_me_became_slow() -> None:
    mine = link_rate(num_chunks=400)
    said(mine, ALL_FAST)
    line = Line(mine)
    line.run(3.0, FAST)
    said(mine, {PREDECESSOR: FAST / SLOW_FACTOR / 2}, sequence=2)
    line.run(3.0, SLOW)
    assert line.verdict == ME


def test_the_predecessors_next_word_is_waited_for_if_little_comes_to_me() -> None:
    def fallen(is_fed: bool) -> Line:
        """A line that became slow a window ago."""
        mine = link_rate(num_chunks=400)
        said(mine, ALL_FAST)
        line = Line(mine, is_fed=is_fed)
        line.run(3.0, FAST)
        line.run(WINDOW_SECONDS_MIN + 2 * LOOK_SECONDS, SLOW)
        return line

    assert fallen(is_fed=True).verdict == SUCCESSOR
    line = fallen(is_fed=False)
    assert line.verdict is None
    assert line.run(60.0, SLOW) >= WORD_SECONDS - 2 * LOOK_SECONDS
    assert line.verdict == SUCCESSOR
    line = fallen(is_fed=False)
    line.hear({PREDECESSOR: SLOW})
    line.run(LOOK_SECONDS, SLOW)
    assert line.verdict == ME


def test_a_link_that_waits_for_what_comes_before_it_is_not_slow() -> None:
    mine = link_rate(num_chunks=400)
    said(mine, ALL_FAST)
    line = Line(mine)
    line.run(3.0, FAST)
    line.run(20.0, SLOW, waiting=int(LAG_SECONDS * SLOW))
    assert line.verdict is None
    assert len(line.said) == 1
    line.run(1.0, SLOW)
    assert line.verdict == SUCCESSOR


STEP_BYTES = 200_000
"""Nothing waits behind them."""


def step_by_step(line: Line, seconds: float, rate: float, idle_seconds: float) -> float:
    """Steps of `STEP_BYTES` over my link with such pauses between them; the time they took."""
    began_seconds = line.now
    while line.now < began_seconds + seconds and line.verdict is None:
        line.send(STEP_BYTES, STEP_BYTES / rate)
        line.idle(idle_seconds)
    return line.now - began_seconds


def test_a_member_that_makes_every_step_wait_is_slow_although_nothing_waits_for_its_link() -> None:
    mine = link_rate(num_chunks=400, is_in_steps=True)
    said(mine, ALL_FAST)
    line = Line(mine)
    step_by_step(line, 3.0, FAST, 1.0)
    # Busy for a quarter of the time: it is slow when that was long enough.
    found_seconds = 4 * VERDICT_SECONDS + STEPS_WORD_SECONDS
    assert STEPS_WORD_SECONDS < step_by_step(line, 20.0, SLOW, 1.0) < found_seconds + 2.0
    assert line.verdict == ME, "one slow line hides all others, and mine is the one that I see"


def test_a_slow_link_that_adds_little_to_a_step_is_none() -> None:
    mine = link_rate(num_chunks=400, is_in_steps=True)
    said(mine, ALL_FAST)
    line = Line(mine)
    step_by_step(line, 100.0, SLOW, 1.5 * STEP_BYTES / SLOW / PATIENCE_FRACTION)
    assert line.verdict is None
    step_by_step(line, 40.0, SLOW, 0.5 * STEP_BYTES / SLOW / PATIENCE_FRACTION)
    assert line.verdict == ME


def slow_steps(was_slow: frozenset[PeerId] = frozenset()) -> RingLinkRates:
    """My link is slow in a ring of shared steps, since second 10."""
    mine = link_rate(is_in_steps=True, was_slow=was_slow)
    said(mine, ALL_FAST)
    measured(mine, SLOW)
    return mine


def test_with_shared_steps_it_is_my_line_unless_my_successor_has_two_slow_links() -> None:
    mine = slow_steps()
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    assert mine.too_slow(NOW + STEPS_WORD_SECONDS - 0.1, RING, SUCCESSOR).member is None
    said(mine, {SUCCESSOR: SLOW}, sequence=2)
    assert mine.too_slow(NOW + STEPS_WORD_SECONDS - 0.1, RING, SUCCESSOR).member == SUCCESSOR
    mine = slow_steps()
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    assert mine.too_slow(NOW + STEPS_WORD_SECONDS, RING, SUCCESSOR).member == ME
    mine = slow_steps()
    said(mine, {PREDECESSOR: SLOW}, sequence=2)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member == ME


def test_with_shared_steps_whom_two_found_slow_one_after_the_other_is() -> None:
    left = link_rate(is_in_steps=True)
    said(left, ALL_FAST)
    left.put_out(SUCCESSOR, SUCCESSOR)
    living = [peer for peer in RING if peer != SUCCESSOR]
    measured(left, SLOW, NEXT)
    assert left.too_slow(NOW, living, NEXT).member == NEXT
    left.put_out(ME, NEXT)
    assert left.found_slow == {NEXT}, "who left for it is as good as before"
    assert slow_steps(left.found_slow).too_slow(NOW, RING, SUCCESSOR).member is None


def test_a_member_that_left_before_another_link_is_no_witness() -> None:
    mine = slow_steps()
    for peer in (PREDECESSOR, NEXT):
        mine.put_out(peer, peer)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    mine.put_out(LAST, SUCCESSOR)
    assert mine.found_slow == {NEXT, SUCCESSOR}, "from LAST on only PREDECESSOR was before it"


def test_a_member_that_stands_still_is_silent_and_not_slow() -> None:
    mine = link_rate(num_chunks=400)
    said(mine, ALL_FAST)
    line = Line(mine)
    line.run(3.0, FAST)
    line.run(20.0, 0.0)
    assert line.verdict is None


def test_a_line_whose_bytes_come_in_large_pieces_is_found_as_well() -> None:
    mine = link_rate(num_chunks=400)
    said(mine, ALL_FAST)
    line = Line(mine)
    line.run(3.0, FAST)
    seconds = 0.0
    while line.verdict is None and seconds < 20.0:
        seconds += line.run(1.75, 0.0) + line.run(LOOK_SECONDS, 262_144 / LOOK_SECONDS)  # 1 Mbit/s
    assert line.verdict == SUCCESSOR
    assert seconds < 10.0


def test_a_pause_is_not_slow_either() -> None:
    for seconds in (1.0, 1.5, 2.0, 2.5):
        mine = link_rate(num_chunks=400)
        said(mine, ALL_FAST)
        line = Line(mine)
        line.run(3.0, FAST)
        line.run(seconds, 0.0)
        line.run(3.0, FAST)
        assert line.verdict is None, seconds


def test_time_in_which_this_process_was_stopped_is_not_the_links() -> None:
    mine = link_rate(num_chunks=400)
    said(mine, ALL_FAST)
    line = Line(mine)
    line.run(3.0, FAST)
    for _ in range(4):
        line.stand_still(3 * GAP_SECONDS)
        line.run(2 * LOOK_SECONDS, FAST)
        assert line.verdict is None


def test_when_all_become_slow_no_member_is_slow() -> None:
    mine = link_rate(num_chunks=4000)
    said(mine, ALL_FAST)
    line = Line(mine)
    line.run(3.0, FAST)
    for number in range(60):
        # The others see what I see, and say it when I do.
        line.run(LOOK_SECONDS, SLOW)
        said(mine, dict.fromkeys(ALL_FAST, line.said[-1][1]), sequence=2 + number)
        assert line.verdict is None


def test_a_link_rate_that_changed_is_said_again() -> None:
    line = Line(link_rate(num_chunks=4000))
    line.run(3.0, FAST)
    (said,) = line.said
    assert said[:2] == pytest.approx((1, FAST))
    line.run(5.0, FAST / CHANGE_FACTOR * 1.1)
    assert len(line.said) == 1
    line.run(5.0, FAST / CHANGE_FACTOR * 0.9)
    assert [sequence for sequence, *_ in line.said] == [1, 2]
    line.run(5.0, SLOW)
    assert line.said[-1][1] < 2 * CHANGE_FACTOR * SLOW
    line.run(5.0, FAST)
    assert line.said[-1][1] > FAST / CHANGE_FACTOR
    assert [sequence for sequence, *_ in line.said] == list(range(1, len(line.said) + 1))


def test_no_member_says_its_link_rate_without_end() -> None:
    line = Line(link_rate(num_chunks=4000))
    for _ in range(limits.LINK_RATES_MAX):
        line.run(WINDOW_SECONDS_MAX, FAST)
        line.run(WINDOW_SECONDS_MAX, SLOW)
    assert len(line.said) == limits.LINK_RATES_MAX


def test_words_that_come_late_do_not_replace_newer_ones() -> None:
    mine = link_rate()
    measured(mine, SLOW)
    said(mine, dict.fromkeys(ALL_FAST, SLOW), sequence=2)
    said(mine, ALL_FAST)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member is None
    said(mine, ALL_FAST, sequence=3)
    assert mine.too_slow(NOW, RING, SUCCESSOR).member == SUCCESSOR


# The owner's limit of the upload


LIMIT = SLOW
"""The owner's limit, a twentieth of the others' lines."""


def limited(round_seconds: float, *, is_in_steps: bool = False) -> Line:
    """My link with 100 MB to send, under my owner's limit."""
    mine = link_rate(round_seconds=round_seconds, is_in_steps=is_in_steps)
    said(mine, ALL_FAST)
    line = Line(mine)
    line.limit = LIMIT
    return line


@pytest.mark.parametrize("share", [1.0, 1.01 * LIMIT_SHARE])
@pytest.mark.parametrize("is_in_steps", [False, True])
def test_the_owners_limit_is_planned_for(share: float, is_in_steps: bool) -> None:
    """The ring lasts no longer than the work before it, so nobody is put out."""
    line = limited(1.1 * MUCH / (share * LIMIT), is_in_steps=is_in_steps)
    assert line.run(60.0, share * LIMIT) == pytest.approx(60.0, abs=LOOK_SECONDS)
    assert line.verdict is None


def test_without_the_limit_the_same_link_is_slow() -> None:
    line = limited(1.1 * MUCH / LIMIT)
    line.limit = math.inf
    line.run(60.0, LIMIT)
    assert line.verdict == SUCCESSOR


def test_a_limit_that_would_hold_up_the_round_costs_its_owner_and_no_neighbour() -> None:
    line = limited(0.5 * MUCH / LIMIT)
    line.run(60.0, LIMIT)
    assert line.verdict == ME


def test_a_link_far_slower_than_the_limit_is_judged_as_without_it() -> None:
    line = limited(1.1 * MUCH / LIMIT)
    line.limit = FAST
    line.run(60.0, SLOW)
    assert line.verdict == SUCCESSOR
