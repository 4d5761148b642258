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
from gossamer.protocol.wire.statements import Span


class Ledger(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Positions of the shards that were begun, sorted by shard."""

    positions: tuple[tuple[int, int], ...] = ()

    @property
    def digest(self) -> Digest:
        return digest_of(encode_ledger(self))

    def as_dict(self) -> dict[int, int]:
        return dict(self.positions)


class EpochProgress(msgspec.Struct, frozen=True):
    """How much of the present epoch, the earliest that is not complete, a ledger has consumed."""

    epoch: int
    """Counted from 0: so many are complete."""
    tokens_consumed: int
    """At most those of one epoch: what a shard is ahead of it is not among them."""
    num_tokens: int
    shards_consumed: int
    """To their end."""
    num_shards: int


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
    positions.update((span.shard, span.stop) for span in newly_consumed(ledger, spans))
    return Ledger(tuple(sorted(positions.items())))


def newly_consumed(ledger: Ledger, spans: Iterable[Span]) -> tuple[Span, ...]:
    """What these spans add to a ledger: sorted, without a token that it has or that comes twice."""
    positions = ledger.as_dict()
    added: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.shard, span.start, span.stop)):
        position = positions.get(span.shard, 0)
        if span.start <= position < span.stop:
            positions[span.shard] = span.stop
            added.append(Span(span.shard, position, span.stop))
    return tuple(added)


def epoch_progress(ledger: Ledger, shard_tokens: Sequence[int]) -> EpochProgress:
    """Where the chain stands in a run with these shards (tokens of each)."""
    positions = ledger.as_dict()
    at = [positions.get(shard, 0) for shard in range(len(shard_tokens))]
    epoch = min(position // tokens for position, tokens in zip(at, shard_tokens, strict=True))
    consumed = [
        min(position - epoch * tokens, tokens)
        for position, tokens in zip(at, shard_tokens, strict=True)
    ]
    return EpochProgress(
        epoch,
        sum(consumed),
        sum(shard_tokens),
        sum(1 for done, tokens in zip(consumed, shard_tokens, strict=True) if done == tokens),
        len(shard_tokens),
    )


def claim_rank(shard: int, peer_id: PeerId | str) -> bytes:
    """Of several claimants of one shard the lowest rank keeps it."""
    return digest_of(b"gossamer claim:", shard.to_bytes(8, "big"), peer_id.encode())


def choose_shards(
    ledger: Ledger,
    shard_tokens: Sequence[int],
    claims: Mapping[PeerId, Collection[int]],
    me: PeerId,
    num_wanted: int,
    excluded: Collection[int] = (),
) -> list[int]:
    """Shards for `me` to claim next: from the earliest epoch, begun ones first.

    If others claim all of them, those that I would keep against all who claim them: who claims
    more than it can use, or only pretends to train, keeps nobody from training.

    Args:
        ledger: of the newest head.
        shard_tokens: tokens of each shard of one epoch.
        claims: what the other living peers claim.
        me: own id; peers walk the pool in different orders, so that they rarely want the same.
        num_wanted: how many at most; fewer if nothing is free.
        excluded: shards that are of no use to me, whoever claims them.
    """
    holders: dict[int, list[PeerId]] = {}
    for peer, shards in claims.items():
        for shard in shards if peer != me else ():
            holders.setdefault(shard, []).append(peer)
    positions = ledger.as_dict()

    def preference(shard: int) -> tuple[int, int, bytes]:
        epoch, offset = divmod(positions.get(shard, 0), shard_tokens[shard])
        return (epoch, 0 if offset else 1, claim_rank(shard, me))

    def is_mine(shard: int) -> bool:
        return all(claim_rank(shard, me) < claim_rank(shard, peer) for peer in holders[shard])

    candidates = [shard for shard in range(len(shard_tokens)) if shard not in excluded]
    free = [shard for shard in candidates if shard not in holders]
    if not free:
        free = [shard for shard in candidates if is_mine(shard)]
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
