"""The ledger of data: which tokens of which shard the committed chain has consumed.

Every partition of the data (`partitions`) has one position, counted over all epochs: position p of
a partition with n tokens means that p // n epochs of it and p % n tokens of the next are in the
chain. A partition is consumed from its beginning to its end by one peer at a time (its claimer).
When the claimer dies, the partition goes back to the pool as it is, and its next claimer goes on at
the committed position: so every token of an epoch is consumed once.

The ledger is a function of the chain of headers alone; its digest is part of every header.

A peer claims partitions of the earliest epoch, begun ones first (`choose_partitions`). Several
peers may choose at one moment, before they hear of each other's choice. So in each epoch those come
first that the peer would keep against all living others, begun or not. Of peers that know each
other no two choose one of these. The rest is taken up before the next epoch.

Newcomers hear of each other before they are connected. So of these partitions those come first that
peers of such hearsay do not claim, and would not keep. If these peers are invented, an order
changes, and nothing else.

If others claim all of them, a peer chooses those that it would keep against all their claimants. So
a peer that claims more than it can use, or only pretends to train, keeps no peer from training.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from types import MappingProxyType

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.accounting.partitions import Partitions
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.wire.statements import Span

RANKED_MAX = 64
"""Free partitions of which a peer looks whether it would keep them against the living others, if it
wants no more. In most cases one of the first is such a one. Where many peers live there may be
none, and the first is as good. Each takes some hashes, and a corpus may have 100,000 partitions."""


class Ledger(ArrayStruct, frozen=True):
    """Positions of the partitions that were begun, sorted by partition."""

    positions: tuple[tuple[int, int], ...] = ()

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))

    def as_dict(self) -> dict[int, int]:
        return dict(self.positions)


class EpochProgress(msgspec.Struct, frozen=True):
    """The part of the present epoch, the earliest incomplete one, that a ledger has consumed."""

    epoch: int
    """Number of the present epoch, counted from 0, which is also the number of complete epochs."""
    tokens_consumed: int
    """Tokens of the present epoch that are consumed. Tokens of later epochs, in partitions that are
    ahead, are not counted."""
    num_tokens: int
    shards_consumed: int
    """Shards of the present epoch that are consumed to their end."""
    num_shards: int


_decoder = msgspec.msgpack.Decoder(Ledger)


def decode_ledger(data: bytes) -> Ledger:
    """Raises MalformedError if the bytes are not a ledger in canonical form. It has at most one
    position of each partition that a span may name."""
    ledger = decoded(_decoder, data, "a ledger")
    partitions = [partition for partition, _ in ledger.positions]
    if partitions != sorted(set(partitions)):
        raise MalformedError("ledger that is not sorted")
    for partition, position in ledger.positions:
        if not (0 <= partition <= limits.SHARDS_MAX and 0 < position <= limits.TOKENS_MAX):
            raise MalformedError("ledger with values out of range")
    if to_msgpack(ledger) != data:
        raise MalformedError("ledger that is not in canonical form")
    return ledger


def apply_spans(ledger: Ledger, spans: Iterable[Span]) -> Ledger:
    """The ledger after these spans were committed.

    A span that begins at or before its partition's position moves the position to its end; one that
    leaves a gap is not counted (the tokens in the gap would never be consumed), and one that lies
    before the position was consumed already. The order of the spans does not matter.
    """
    positions = ledger.as_dict()
    positions.update((span.partition, span.stop) for span in newly_consumed(ledger, spans))
    return Ledger(tuple(sorted(positions.items())))


def newly_consumed(ledger: Ledger, spans: Iterable[Span]) -> tuple[Span, ...]:
    """Returns the spans by which these spans extend a ledger, sorted. No token is in them twice,
    and none that the ledger has. A token that the ledger has, or that two of the spans have, is
    added once."""
    positions = ledger.as_dict()
    added: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.partition, span.start, span.stop)):
        position = positions.get(span.partition, 0)
        if span.start <= position < span.stop:
            positions[span.partition] = span.stop
            added.append(Span(span.partition, position, span.stop))
    return tuple(added)


def epoch_progress(ledger: Ledger, partitions: Partitions) -> EpochProgress:
    """Returns the progress of the chain in a run with these partitions."""
    positions = ledger.as_dict()
    at = [positions.get(number, 0) for number in range(len(partitions))]
    epoch = min(done // size for done, size in zip(at, partitions.tokens, strict=True))
    consumed = [
        min(done - epoch * size, size) for done, size in zip(at, partitions.tokens, strict=True)
    ]
    return EpochProgress(
        epoch,
        sum(consumed),
        sum(partitions.tokens),
        sum(partitions.shards_within(number, done) for number, done in enumerate(consumed)),
        partitions.num_shards,
    )


def claim_rank(partition: int, peer_id: PeerId | str) -> bytes:
    """Returns a peer's rank among the claimants of a partition: the claimant with the lowest rank
    keeps it."""
    return digest_of(b"gossamer claim:", partition.to_bytes(8, "big"), peer_id.encode())


def claim_ranks(num_partitions: int, me: PeerId) -> list[bytes]:
    """`claim_rank` of one peer for every partition: computed once, it never changes."""
    return [claim_rank(partition, me) for partition in range(num_partitions)]


def choose_partitions(
    positions: Mapping[int, int],
    partition_tokens: Sequence[int],
    claims: Mapping[PeerId, Collection[int]],
    me: PeerId,
    num_wanted: int,
    excluded: Collection[int] = (),
    my_ranks: Sequence[bytes] | None = None,
    hearsay: Mapping[PeerId, Collection[int]] = MappingProxyType({}),
) -> list[int]:
    """Partitions for `me` to claim next, by the rule at the top of this module.

    Args:
        positions: of the ledger of the newest head.
        partition_tokens: tokens of each partition of one epoch.
        claims: what the other living peers claim, which may be nothing.
        me: own id; peers walk the pool in different orders, so that they rarely want the same.
        num_wanted: how many at most; fewer if nothing is free.
        excluded: partitions that are of no use to me, whether or not another peer claims them.
        my_ranks: `claim_ranks`, if the caller has them: they take a hash for each partition.
        hearsay: what living peers claim that may be invented; those of `claims` may be among them.
    """
    ranks = claim_ranks(len(partition_tokens), me) if my_ranks is None else my_ranks
    holders: dict[int, list[PeerId]] = {}
    for peer, held in claims.items():
        for partition in held if peer != me else ():
            holders.setdefault(partition, []).append(peer)

    def preference(partition: int) -> tuple[int, int, bytes]:
        epoch, offset = divmod(positions.get(partition, 0), partition_tokens[partition])
        return (epoch, 0 if offset else 1, ranks[partition])

    def is_mine(partition: int, rivals: Collection[PeerId]) -> bool:
        return all(ranks[partition] < claim_rank(partition, peer) for peer in rivals)

    known = claims.keys() - {me}
    strangers = hearsay.keys() - claims.keys() - {me}
    said = {partition for peer in strangers for partition in hearsay[peer]}

    def contention(partition: int) -> int:
        """2: a known peer would keep it; 1: one of `hearsay` would, or claims it; 0: neither."""
        if not is_mine(partition, known):
            return 2
        return 1 if partition in said or not is_mine(partition, strangers) else 0

    useless = frozenset(excluded)
    candidates = [number for number in range(len(partition_tokens)) if number not in useless]
    free = [partition for partition in candidates if partition not in holders]
    # Ranks are computed of the best ones only: each of them takes a hash for each peer.
    if free:
        best = heapq.nsmallest(max(num_wanted, RANKED_MAX), free, key=preference)
        epochs = groupby(best, key=lambda partition: preference(partition)[0])
        in_order = (_least_contested_first(each, contention) for _, each in epochs)
        return list(islice(chain.from_iterable(in_order), num_wanted))
    mine = (each for each in sorted(candidates, key=preference) if is_mine(each, holders[each]))
    return list(islice(mine, num_wanted))


def _least_contested_first(
    partitions: Iterable[int], contention: Callable[[int], int]
) -> Iterator[int]:
    """Yields partitions of one epoch in the order of their contention, 0 to 2. It is looked up of
    no more than are taken while there are some of 0: each takes some hashes."""
    others: tuple[list[int], list[int]] = ([], [])
    for partition in partitions:
        if how := contention(partition):
            others[how - 1].append(partition)
        else:
            yield partition
    yield from chain.from_iterable(others)


def lost_claims(
    mine: Collection[int], claims: Mapping[PeerId, Collection[int]], me: PeerId
) -> set[int]:
    """Those of my claims that another living peer claims with a lower rank."""
    held = frozenset(mine)
    return {
        partition
        for peer, theirs in claims.items()
        for partition in held.intersection(theirs)
        if claim_rank(partition, peer) < claim_rank(partition, me)
    }


def keeper_rank(shard: int, peer_id: PeerId | str) -> bytes:
    """Returns a peer's rank for a shard: the living peers with the lowest ranks keep a copy of it
    for all peers."""
    return digest_of(b"gossamer keeper:", shard.to_bytes(8, "big"), peer_id.encode())
