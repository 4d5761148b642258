"""What was expected before is not taken in again, and all that depends on it is as if it were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.gathering import Gatherer
from gossamer.protocol.rounds.ready_times import ALL_DONE
from gossamer.protocol.rounds.roster import RoundRules
from tests.support.builders import HEAD, peers, ready, ring_of, sealed

PEERS = peers(4)
ME, *OTHERS = PEERS
RULES = RoundRules(SumPayloads(codec("fp32")), 1024, 1, 3.0, 0.3, attempt_seconds=1.0, accusers=2)

Step = Callable[[Gatherer, float], object]

some = st.sampled_from((tuple(OTHERS), (), tuple(OTHERS[:1])))
stakes = st.sampled_from((3, 0))


def expected(
    peers: Sequence[PeerId], trailing: Sequence[PeerId], strangers: Sequence[PeerId], stake: int
) -> Step:
    stakes = dict.fromkeys((ME, *OTHERS[:stake]), 100)
    return lambda state, now: state.expect(now, peers, trailing, strangers, stakes)


def said_ready(peer: PeerId, done: Fraction = ALL_DONE) -> Step:
    return lambda state, now: state.note_ready(now, sealed(peer, ready()), done)


def again(state: Gatherer, now: float) -> None:
    """Begins again after the ring of the first attempt, without one of its members."""
    state.begin_again(now, 0, OTHERS[:1])


steps = st.one_of(
    st.builds(expected, st.just(tuple(OTHERS)), st.just(()), st.just(()), stakes),
    st.builds(expected, some, some, some, stakes),
    st.builds(
        said_ready,
        st.sampled_from(PEERS),
        st.sampled_from((Fraction(0), Fraction(1, 4), Fraction(1))),
    ),
    st.builds(
        lambda members: lambda state, now: state.elsewhere.note(ring_of(sorted(members))),
        some.filter(bool),
    ),
    st.builds(
        lambda members: lambda state, now: state.followed(now, ring_of(sorted((ME, *members)))),
        some,
    ),
    st.just(again),
)


steps_of_all_ready = [expected(tuple(OTHERS), (), (), 3), *map(said_ready, PEERS)]


@given(st.lists(st.tuples(st.floats(0.1, 30.0), steps), min_size=1, max_size=12), st.data())
def test_what_is_expected_again_is_taken_in_as_if_it_were_new(
    story: list[tuple[float, Step]], data: st.DataObject
) -> None:
    one, other, now = Gatherer(ME, HEAD, 0.0, RULES), Gatherer(ME, HEAD, 0.0, RULES), 0.0
    tick = data.draw(st.builds(expected, some, some, some, stakes))
    early = [each for each in steps_of_all_ready if data.draw(st.booleans())]
    for seconds, step in [*((1.0, each) for each in early), *story]:
        now += seconds
        step(one, now)
        step(other, now)
        tick = step if step.__qualname__.startswith("expected") else tick
        for _ in range(2):
            other._heard = None  # takes everything in
            now += 0.1
            tick(one, now)
            tick(other, now)
            assert known(one, now) == known(other, now)


def known(state: Gatherer, now: float) -> object:
    """What a machine does now, and what it hands to the next round."""
    began = state.times.wait_began_seconds
    return (
        *(state.decision(now), state.strangers_wait, state.gather_seconds, sorted(state.ready)),
        *(state.standpoint, state.missed, began, state._strangers, state._complete_seconds),
    )
