"""The ledger of data: which tokens of which shard the committed chain has consumed.

Every shard has one position, counted over all epochs: position p of a shard with n tokens means
that p // n epochs of it and p % n tokens of the next are in the chain. A shard is consumed from
its beginning to its end by one peer at a time (its claimer). When the claimer dies, the shard goes
back to the pool as it is, and whoever claims it next goes on at the committed position: so every
token of an epoch is consumed once.

The ledger is a function of the chain of headers alone; its digest is part of every header.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.messages import Span


class Ledger(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Positions of the shards that were begun, sorted by shard."""

    positions: tuple[tuple[int, int], ...] = ()

    @property
    def digest(self) -> Digest:
        return digest_of(encode_ledger(self))

    def as_dict(self) -> dict[int, int]:
        return dict(self.positions)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Ledger)


def encode_ledger(ledger: Ledger) -> bytes:
    return _encoder.encode(ledger)


def decode_ledger(data: bytes) -> Ledger:
    """Raises MalformedError if the bytes are not a ledger in canonical form."""
    try:
        ledger = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a ledger: {error}") from error
    shards = [shard for shard, _ in ledger.positions]
    if shards != sorted(set(shards)) or len(shards) > limits.SHARDS_MAX:
        raise MalformedError("ledger that is not sorted or too long")
    for shard, position in ledger.positions:
        if not (0 <= shard <= limits.SHARDS_MAX and 0 < position <= limits.TOKENS_MAX):
            raise MalformedError("ledger with values out of range")
    if encode_ledger(ledger) != data:
        raise MalformedError("ledger that is not in canonical form")
    return ledger


def apply_spans(ledger: Ledger, spans: Iterable[Span]) -> Ledger:
    """The ledger after these spans were committed.

    A span that begins at or before its shard's position moves the position to its end; one that
    leaves a gap is not counted (the tokens in the gap would never be consumed), and one that lies
    before the position was consumed already. The order of the spans does not matter.
    """
    positions = ledger.as_dict()
    for span in sorted(spans, key=lambda span: (span.shard, span.start, span.stop)):
        position = positions.get(span.shard, 0)
        if span.start <= position < span.stop:
            positions[span.shard] = span.stop
    return Ledger(tuple(sorted(positions.items())))


def claim_rank(shard: int, peer_id: PeerId | str) -> bytes:
    """Of several claimants of one shard the lowest rank keeps it."""
    return digest_of(b"gossamer claim:", shard.to_bytes(8, "big"), peer_id.encode())


def choose_shards(
    ledger: Ledger,
    shard_tokens: Sequence[int],
    claims: Mapping[PeerId, Collection[int]],
    me: PeerId,
    num_wanted: int,
) -> list[int]:
    """Shards for `me` to claim next: from the earliest epoch, begun ones first.

    Args:
        ledger: of the newest head.
        shard_tokens: tokens of each shard of one epoch.
        claims: what the other living peers claim.
        me: own id; peers walk the pool in different orders, so that they rarely want the same.
        num_wanted: how many at most; fewer if nothing is free.
    """
    taken = {shard for peer, shards in claims.items() if peer != me for shard in shards}
    positions = ledger.as_dict()

    def preference(shard: int) -> tuple[int, int, bytes]:
        epoch, offset = divmod(positions.get(shard, 0), shard_tokens[shard])
        return (epoch, 0 if offset else 1, claim_rank(shard, me))

    free = [shard for shard in range(len(shard_tokens)) if shard not in taken]
    return sorted(free, key=preference)[:num_wanted]


def keepers(shard: int, peers: Collection[PeerId], num_copies: int) -> list[PeerId]:
    """The peers that keep a copy of a shard for everybody: the first by rank.

    When a peer comes or goes only its own shards change their keepers (rendezvous hashing).
    """
    return sorted(
        peers,
        key=lambda peer: digest_of(b"gossamer keeper:", shard.to_bytes(8, "big"), peer.encode()),
    )[:num_copies]


def lost_claims(
    mine: Collection[int], claims: Mapping[PeerId, Collection[int]], me: PeerId
) -> set[int]:
    """Those of my claims that another living peer claims with a lower rank."""
    return {
        shard
        for shard in mine
        for peer in claims
        if peer != me and shard in claims[peer] and claim_rank(shard, peer) < claim_rank(shard, me)
    }
