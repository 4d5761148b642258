"""The cut of a corpus into partitions: two rounds of every preset fit one announcement."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.accounting.partitions import (
    PARTITIONS_MIN,
    PARTITIONS_PER_ROUND,
    SHARED_ROUNDS_NAMED,
    Partitions,
    named_tokens_max,
    round_tokens,
    shards_per_partition,
)
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.rounds.roster import ROSTER_BYTES_MAX
from gossamer.protocol.sync_modes import SyncMode
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import DATA_RANGES_MAX
from gossamer.trainer.presets.modes import adapted
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text.shards import default_shard_tokens
from tests.support.builders import announce, manifest, peer, ready, sealed

CORPORA_TOKENS = [250_000_000, 1_000_000_000, 30_000_000_000]
ROUNDS_HELD = 3
"""Two are queued, and one waits for its commit."""


def run_of(name: str, sync: SyncMode, num_tokens: int) -> tuple[Manifest, Partitions]:
    """A run of a preset on a corpus, which has the shards that founding cuts it into."""
    preset = adapted(PRESETS[name], sync)
    context = preset.model.context
    shard_tokens = default_shard_tokens(num_tokens, 2, context)
    shard_tokens -= shard_tokens % (context + 1)
    num_shards = -(-num_tokens // shard_tokens)
    assert num_shards <= limits.SHARDS_MAX
    data = msgspec.structs.replace(manifest().data, num_shards=num_shards, num_tokens=num_tokens)
    run = msgspec.structs.replace(
        manifest(), model=preset.model, inner=preset.inner, outer=preset.outer, data=data
    )
    sizes = [shard_tokens] * (num_shards - 1)
    sizes.append(num_tokens - sum(sizes))
    return run, Partitions(sizes, shards_per_partition(run))


@pytest.mark.parametrize("num_tokens", CORPORA_TOKENS)
@pytest.mark.parametrize("sync", ["diloco", "sparse", "distro"])
@pytest.mark.parametrize("name", PRESETS)
def test_two_rounds_are_claimed_and_queued(name: str, sync: SyncMode, num_tokens: int) -> None:
    run, partitions = run_of(name, sync, num_tokens)
    needed = ROUNDS_HELD * round_tokens(run)
    by_size = sorted(partitions.tokens)
    is_whole = len(partitions) <= limits.CLAIMS_MAX
    assert sum(by_size[: limits.CLAIMS_MAX]) >= needed or is_whole
    # What is queued at the trainer, by shards; where the corpus is smaller, some of them twice.
    smallest_of_most = sorted(partitions.shard_tokens(n) for n in range(partitions.num_shards))[1]
    assert 2 * round_tokens(run) / smallest_of_most < DATA_RANGES_MAX // 2
    # A round has one span of each of its partitions, and as many again may be carried.
    assert 2 * min(PARTITIONS_PER_ROUND, len(partitions)) <= limits.SPANS_MAX
    assert len(partitions) >= PARTITIONS_MIN or len(partitions) == partitions.num_shards


@given(st.integers(1, limits.SHARDS_MAX), st.integers(1, 10**6), st.integers(1, 10**4))
def test_claims_hold_three_rounds_or_all_data(
    num_shards: int, shard_tokens: int, steps: int
) -> None:
    base = manifest()
    data = msgspec.structs.replace(
        base.data, num_shards=num_shards, num_tokens=num_shards * shard_tokens
    )
    outer = msgspec.structs.replace(base.outer, inner_steps=steps)
    run = msgspec.structs.replace(base, data=data, outer=outer)
    each = shards_per_partition(run)
    num_partitions = -(-num_shards // each)
    held = min(num_partitions, limits.CLAIMS_MAX)
    assert num_partitions >= min(PARTITIONS_MIN, num_shards)
    assert held == num_partitions or held * each * shard_tokens >= ROUNDS_HELD * round_tokens(run)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 12))
def test_every_token_is_in_one_shard_of_one_partition(sizes: list[int], each: int) -> None:
    partitions = Partitions(sizes, each)
    assert sum(partitions.tokens) == sum(sizes)
    shards: list[int] = []
    for number, size in enumerate(partitions.tokens):
        place = 0
        for shard in partitions.shards(number):
            assert partitions.partition_of(shard) == number
            assert partitions.offset_of(shard) == place
            assert partitions.shard_tokens(shard) == sizes[shard]
            for offset in (place, place + sizes[shard] - 1):
                assert partitions.shard_at(number, offset) == shard
            place += sizes[shard]
            assert partitions.shards_within(number, place) == len(shards) + 1 - number * each
            shards.append(shard)
        assert place == size
        assert partitions.shards_within(number, size) == len(partitions.shards(number))
    assert shards == list(range(len(sizes)))
    assert all(b - a == 1 for a, b in pairwise(shards))


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.integers(1, 12),
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_added_partitions_leave_the_others_as_they_are(
    first: list[int], each: int, more: list[int], each_of_more: int
) -> None:
    partitions, before = Partitions(first, each), Partitions(first, each)
    alone = Partitions(more, each_of_more)
    partitions.add(more, each_of_more)
    assert partitions.num_shards == len(first) + len(more)
    assert partitions.tokens == [*before.tokens, *alone.tokens]
    for number in range(len(before)):
        assert partitions.shards(number) == before.shards(number)
    for number in range(len(alone)):
        shards = alone.shards(number)
        there = partitions.shards(len(before) + number)
        assert there == range(shards.start + len(first), shards.stop + len(first))
        for shard in shards:
            assert partitions.partition_of(shard + len(first)) == len(before) + number
            assert partitions.offset_of(shard + len(first)) == alone.offset_of(shard)
            assert partitions.shard_tokens(shard + len(first)) == more[shard]


def test_what_a_peer_says_of_its_data_stays_small() -> None:
    """A claim takes at most 3 bytes; the widest spans of a whole ring still fit one roster."""
    few, many = (
        len(sealed(peer(0), announce(claims=tuple(range(n)))).payload)
        for n in (0, limits.CLAIMS_MAX)
    )
    assert many - few < 3 * limits.CLAIMS_MAX
    far = 2**40
    spans = tuple(Span(2000 + n, far, far + 10**7) for n in range(PARTITIONS_PER_ROUND))
    size = len(sealed(peer(0), ready(spans=spans)).payload) + 136
    assert limits.RING_MEMBERS_MAX * size < ROSTER_BYTES_MAX


def test_a_peer_names_the_data_of_the_rounds_that_it_carries_and_of_two_more() -> None:
    run = manifest()
    sequences = run.outer.round_steps_max * run.inner.sequences_per_step
    assert round_tokens(run) == sequences * (run.model.context + 1)
    assert named_tokens_max(run) == (run.stale_rounds + 2) * round_tokens(run)
    shared = msgspec.structs.replace(run, sync="distro")
    assert named_tokens_max(shared) == SHARED_ROUNDS_NAMED * round_tokens(shared)
