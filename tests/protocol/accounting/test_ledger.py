"""The ledger: every position of every shard is consumed once in the committed chain."""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import (
    Ledger,
    apply_spans,
    choose_partitions,
    claim_rank,
    decode_ledger,
    epoch_progress,
    lost_claims,
    newly_consumed,
)
from gossamer.protocol.accounting.partitions import Partitions
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.statement_checks import check_spans
from gossamer.protocol.wire.statements import Span
from tests.support.builders import peers

spans = st.builds(
    lambda shard, start, length: Span(shard, start, start + length),
    st.integers(0, 3),
    st.integers(0, 20),
    st.integers(1, 10),
)


@given(st.lists(spans, max_size=12), st.randoms())
def test_the_order_of_spans_does_not_matter(several: list[Span], random: Random) -> None:
    shuffled = list(several)
    random.shuffle(shuffled)
    assert apply_spans(Ledger(), shuffled) == apply_spans(Ledger(), several)


@given(st.lists(spans, max_size=12), st.lists(spans, max_size=12))
def test_positions_only_grow_and_leave_no_gap(first: list[Span], second: list[Span]) -> None:
    before = apply_spans(Ledger(), first)
    after = apply_spans(before, second)
    for shard, position in before.positions:
        assert after.as_dict()[shard] >= position
    covered = {(s.partition, p) for s in first + second for p in range(s.start, s.stop)}
    for shard, position in after.positions:
        assert all((shard, p) in covered for p in range(position))


def test_the_largest_ledger_that_spans_can_make_is_read_again() -> None:
    everything = [Span(number, 0, 1) for number in range(limits.SHARDS_MAX + 1)]
    ledger = Ledger()
    for at in range(0, len(everything), limits.SPANS_MAX):
        check_spans(tuple(everything[at : at + limits.SPANS_MAX]))
    ledger = apply_spans(ledger, everything)
    assert len(ledger.positions) == len(everything)
    assert decode_ledger(to_msgpack(ledger)) == ledger


def test_gaps_and_what_was_consumed_before_do_not_count() -> None:
    ledger = apply_spans(Ledger(), [Span(0, 0, 10)])
    assert apply_spans(ledger, [Span(0, 11, 20)]) == ledger
    assert apply_spans(ledger, [Span(0, 2, 9)]) == ledger
    assert apply_spans(ledger, [Span(0, 5, 12)]).as_dict() == {0: 12}
    assert apply_spans(ledger, [Span(0, 12, 15), Span(0, 10, 12)]).as_dict() == {0: 15}


@given(st.lists(spans, max_size=12), st.lists(spans, max_size=12))
def test_what_spans_add_is_each_token_once(first: list[Span], second: list[Span]) -> None:
    before = apply_spans(Ledger(), first)
    positions = before.as_dict()
    for span in newly_consumed(before, second):
        assert span.start == positions.get(span.partition, 0)
        assert span.start < span.stop
        positions[span.partition] = span.stop
    after = apply_spans(before, second)
    assert positions == after.as_dict()
    assert apply_spans(before, newly_consumed(before, second)) == after
    assert newly_consumed(after, second) == ()


def test_progress_in_the_data() -> None:
    tokens = Partitions([10, 20], 1)
    begin = epoch_progress(Ledger(), tokens)
    assert (begin.epoch, begin.tokens_consumed, begin.shards_consumed) == (0, 0, 0)
    assert (begin.num_tokens, begin.num_shards) == (30, 2)
    ahead = epoch_progress(Ledger(((0, 25),)), tokens)
    assert (ahead.epoch, ahead.tokens_consumed, ahead.shards_consumed) == (0, 10, 1)
    second = epoch_progress(Ledger(((0, 25), (1, 20))), tokens)
    assert (second.epoch, second.tokens_consumed, second.shards_consumed) == (1, 10, 1)
    assert epoch_progress(Ledger(((0, 20), (1, 40))), tokens).epoch == 2


@given(st.lists(spans, max_size=12))
def test_a_ledger_comes_back_from_its_bytes(several: list[Span]) -> None:
    ledger = apply_spans(Ledger(), several)
    assert decode_ledger(to_msgpack(ledger)) == ledger


@pytest.mark.parametrize(
    "positions",
    [((1, 5), (0, 5)), ((0, 5), (0, 6)), ((0, 0),), ((-1, 5),), ((2**20, 5),), ((0, 2**50),)],
)
def test_a_ledger_has_one_form(positions: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(MalformedError):
        decode_ledger(to_msgpack(Ledger(positions)))


def test_numbers_that_are_longer_than_needed_are_refused() -> None:
    data = to_msgpack(Ledger(((0, 5),)))
    with pytest.raises(MalformedError):
        decode_ledger(data[:-1] + b"\xcc\x05")


# Claims

SHARD_TOKENS = [10, 10, 6]


def test_begun_shards_of_the_earliest_epoch_come_first() -> None:
    me, other = peers(2)
    ledger = Ledger(((0, 10), (1, 4)))
    assert choose_partitions(ledger.as_dict(), SHARD_TOKENS, {}, me, 3) == [1, 2, 0]
    assert choose_partitions(ledger.as_dict(), SHARD_TOKENS, {other: [1]}, me, 3) == [2, 0]
    assert choose_partitions(ledger.as_dict(), SHARD_TOKENS, {me: [1]}, me, 1) == [1]
    assert choose_partitions(ledger.as_dict(), SHARD_TOKENS, {}, me, 3, excluded=[1, 0]) == [2]


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 3))
@settings(max_examples=60)
def test_peers_that_know_each_other_choose_no_partition_together(
    seed: int, num_peers: int, num_wanted: int
) -> None:
    """They choose at one moment: nobody has heard what the others claim. Somebody left two of the
    partitions half done, and all prefer these."""
    random = Random(seed)
    members = [PeerId(f"{seed} {number}") for number in range(num_peers)]
    sizes = [10] * 512
    positions = dict.fromkeys(random.sample(range(512), 2), 5)
    claims: dict[PeerId, list[int]] = {member: [] for member in members}
    chosen = [choose_partitions(positions, sizes, claims, me, num_wanted) for me in members]
    assert {*map(len, chosen)} == {num_wanted}
    for me, mine in zip(members, chosen, strict=True):
        assert lost_claims(mine, dict(zip(members, chosen, strict=True)), me) == set()


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(0, 2))
@settings(max_examples=60)
def test_newcomers_that_have_only_heard_of_each_other_choose_no_partition_together(
    seed: int, num_newcomers: int, num_members: int
) -> None:
    """They are not connected yet, so none has its claims counted by the others."""
    random = Random(seed)
    newcomers, members = (
        [PeerId(f"{seed} {kind} {number}") for number in range(count)]
        for kind, count in (("newcomer", num_newcomers), ("member", num_members))
    )
    sizes = [10] * 512
    positions = dict.fromkeys(random.sample(range(512), 2), 5)
    claims: dict[PeerId, list[int]] = {member: [] for member in members}
    heard = claims | {newcomer: list[int]() for newcomer in newcomers}
    chosen = [choose_partitions(positions, sizes, claims, me, 1, hearsay=heard) for me in newcomers]
    assert len({*chain.from_iterable(chosen)}) == num_newcomers
    for me, mine in zip(newcomers, chosen, strict=True):
        assert lost_claims(mine, dict.fromkeys(members, mine), me) == set()


def test_a_partition_that_somebody_is_heard_to_claim_comes_after_others() -> None:
    me, stranger = peers(2)
    first, *others = choose_partitions({}, [10] * 16, {}, me, 16, hearsay={stranger: []})
    chosen = choose_partitions({}, [10] * 16, {}, me, 16, hearsay={stranger: [first]})
    assert first not in chosen[:2]
    assert {*chosen} == {first, *others}


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 16))
@settings(max_examples=60)
def test_invented_peers_keep_no_peer_from_data_and_from_what_it_would_keep(
    seed: int, num_invented: int, num_wanted: int
) -> None:
    """They claim what they like. Against those that it knows a peer keeps as many as before, and
    what begins a later epoch comes later."""
    random = Random(seed)
    me, other, *invented = (PeerId(f"{seed} {number}") for number in range(2 + num_invented))
    sizes, claims = [10] * 16, {other: list[int]()}
    positions = {number: random.choice((0, 5, 10)) for number in range(16)}
    hearsay = {each: random.sample(range(16), random.randint(0, 16)) for each in invented}
    before = choose_partitions(positions, sizes, claims, me, num_wanted)
    after = choose_partitions(positions, sizes, claims, me, num_wanted, hearsay=hearsay)

    def worth(partitions: list[int]) -> list[tuple[int, bool]]:
        lost = lost_claims(range(16), {other: range(16)}, me)
        return [(positions[number] // 10, number in lost) for number in partitions]

    assert worth(after) == worth(before)


def test_partitions_that_others_would_keep_are_taken_before_the_next_epoch_begins() -> None:
    """The others do not come for them: they are slow, or paused."""
    me, *others = peers(9)
    sizes, claims = [10] * 16, {other: list[int]() for other in others}
    positions = dict.fromkeys(range(12, 16), 10)
    chosen = choose_partitions(positions, sizes, claims, me, 16)
    assert {*chosen[:12]} == {*range(12)}
    kept = [lost_claims([each], dict.fromkeys(others, chosen), me) == set() for each in chosen]
    for epoch in (kept[:12], kept[12:]):
        assert epoch == sorted(epoch, reverse=True), "its own ones come first"


def test_a_peer_that_claims_all_partitions_keeps_no_peer_from_training() -> None:
    me, greedy, other = peers(3)
    shard_tokens = [100] * 64
    claims = {greedy: range(64)}
    chosen = choose_partitions({}, shard_tokens, claims, me, 64)
    assert 16 < len(chosen) < 48
    assert lost_claims(chosen, claims, me) == set()
    assert set(chosen) == set(range(64)) - lost_claims(range(64), claims, me)
    # A third one contends with both, and whatever is excluded stays so.
    theirs = choose_partitions({}, shard_tokens, {**claims, me: chosen}, other, 64, range(32))
    assert theirs
    assert min(theirs) >= 32
    assert lost_claims(theirs, {**claims, me: chosen}, other) == set()
    # As long as one shard is free, nothing is taken from anybody.
    assert choose_partitions({}, shard_tokens, {greedy: range(1, 64)}, me, 64) == [0]


def test_of_two_claimants_exactly_one_gives_way() -> None:
    one, other = peers(2)
    for shard in range(20):
        claims: dict[PeerId, list[int]] = {one: [shard], other: [shard]}
        lost = lost_claims([shard], claims, one), lost_claims([shard], claims, other)
        assert sorted(lost, key=len) == [set(), {shard}]
        assert (lost[0] == set()) == (claim_rank(shard, one) < claim_rank(shard, other))


@given(st.integers(0, 2**32), st.integers(1, 5))
@settings(max_examples=60)
def test_every_token_is_consumed_once_whichever_peers_die(seed: int, num_peers: int) -> None:
    """Peers claim shards, work, are in a round or not, collide and die; and epochs come round.

    A peer works on from where it is, keeps its uncommitted spans (residual), and starts over at
    the committed position when it takes a shard up.
    """
    random = Random(seed)
    ledger = Ledger()
    consumed: dict[int, int] = {}
    members = peers(num_peers)
    work: dict[PeerId, list[Span]] = {member: [] for member in members}
    for _ in range(30):
        claims: dict[PeerId, list[int]] = {}
        for member in members:
            held = {span.partition for span in work[member]}
            seen = {m: c for m, c in claims.items() if random.random() < 0.8}
            free = choose_partitions(ledger.as_dict(), SHARD_TOKENS, seen, member, 1)
            claims[member] = sorted(held) if held else free
        for member in members:
            for shard in claims[member]:
                position = max(
                    [ledger.as_dict().get(shard, 0)]
                    + [span.stop for span in work[member] if span.partition == shard]
                )
                left_in_epoch = SHARD_TOKENS[shard] - position % SHARD_TOKENS[shard]
                stop = position + random.randint(1, left_in_epoch)
                work[member].append(Span(shard, position, stop))
        taken = [member for member in members if random.random() < 0.7]
        committed = [span for member in taken for span in work[member]]
        before, ledger = ledger.as_dict(), apply_spans(ledger, committed)
        for shard, position in ledger.positions:
            consumed[shard] = consumed.get(shard, 0) + position - before.get(shard, 0)
        for member in members:
            if member in taken or random.random() < 0.2:  # it died, and its work with it
                work[member] = []
            # What others have committed meanwhile is of no use any more.
            positions = ledger.as_dict()
            if any(span.start < positions.get(span.partition, 0) for span in work[member]):
                work[member] = []
    assert consumed == ledger.as_dict()
    for span in apply_spans(ledger, []).positions:
        assert span in ledger.positions
