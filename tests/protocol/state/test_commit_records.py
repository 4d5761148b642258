"""Commit records in compact form are the same records, and far shorter."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import msgspec
import pytest

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, OversizedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.rounds.commit_proof import open_commit
from gossamer.protocol.rounds.roster import Ring, make_roster, open_roster
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.state.commit_records import compacted, decode_commit, encode_commit
from gossamer.protocol.wire.compact_commits import CompactCommit
from gossamer.protocol.wire.envelopes import signing_bytes
from gossamer.protocol.wire.statements import Ready, Signed, Span
from tests.support.builders import (
    HEAD,
    RING_RULES,
    RUN_ID,
    commit_of,
    header_of,
    peers,
    ready,
    ring_of,
    sealed,
    sign_as,
    verify,
)

change = msgspec.structs.replace
encode = msgspec.msgpack.encode


def is_compact(data: bytes) -> bool:
    return data[:1] != to_msgpack(RECORD)[:1]


def ring_with(readies: dict[PeerId, Ready]) -> Ring:
    signed = {peer: sealed(peer, one) for peer, one in readies.items()}
    roster = make_roster(HEAD, 5, 0, signed, RING_RULES)
    envelope = sealed(PeerId(roster.members[0].author), roster)
    return open_roster(envelope, roster, RUN_ID, verify, RING_RULES)


def header_with(ring: Ring, spans: Iterable[Span], **changes: object) -> Header:
    return header_of(ring, spans=tuple(spans), tokens_total=2**50, **changes)


RING = ring_of(peers(4))
VOTERS = sorted(RING.members[:3])
RECORD = commit_of(RING, VOTERS)
COMPACT = compacted(RECORD)
assert COMPACT is not None


def packed(**changes: object) -> bytes:
    assert COMPACT is not None
    return encode(change(COMPACT, **changes))


def with_header(**changes: object) -> bytes:
    assert COMPACT is not None
    return packed(header=change(COMPACT.header, **changes))


def test_a_record_comes_out_as_it_went_in() -> None:
    data = encode_commit(RECORD)
    assert is_compact(data)
    found = decode_commit(data)
    assert found == RECORD
    assert encode_commit(found) == data
    assert open_commit(found, RUN_ID, verify, RING_RULES) == header_of(RING)


def test_records_in_whole_form_are_read() -> None:
    data = to_msgpack(RECORD)
    assert not is_compact(data)
    assert decode_commit(data) == RECORD


@pytest.mark.parametrize("seed", range(60))
def test_any_round_comes_out_as_it_went_in(seed: int) -> None:
    """Members with many spans, of which a round takes a part; votes that name others as out."""
    rng = random.Random(seed)
    members = peers(rng.choice((1, 2, 3, 9, 17, 32)))
    ring = ring_with(
        {
            member: ready(
                incarnation=rng.getrandbits(60),
                tokens=rng.randrange(1, 2**40),
                loss=rng.uniform(0, 11),
                norm=rng.uniform(0, 9),
                spans=_spans(rng),
                links=rng.randbytes(4 * rng.randrange(3)),
                root=rng.choice((b"", rng.randbytes(32))),
            )
            for member in members
        }
    )
    # As in a round: what earlier spans of a partition have taken is skipped, or begins later.
    spans: list[Span] = []
    offered = {span for one in ring.ready for span in one.spans if rng.random() < 0.8}
    positions: dict[int, int] = {}
    for span in sorted(offered, key=lambda each: (each.partition, each.start, each.stop)):
        start = max(span.start, positions.get(span.partition, 0))
        if start < span.stop:
            spans.append(Span(span.partition, start, span.stop))
            positions[span.partition] = span.stop
    credited = tuple(
        Member(
            peer, one.tokens - (rng.randrange(one.tokens) if rng.random() < 0.2 else 0), one.norm
        )
        for peer, one in zip(ring.members, ring.ready, strict=True)
    )
    header = header_with(ring, spans, members=credited)
    signers = sorted(rng.sample(ring.members, rng.randrange(1, len(ring.members) + 1)))
    removed = sorted(rng.sample(ring.members, len(ring.members) // rng.choice((2, 3, 99))))
    record = commit_of(ring, signers, header, removed)
    data = encode_commit(record)
    assert is_compact(data)
    assert decode_commit(data) == record


def _spans(rng: random.Random) -> tuple[Span, ...]:
    found = []
    for _ in range(rng.randrange(5)):
        start = rng.randrange(100)
        found.append(Span(rng.randrange(6), start, start + rng.randrange(1, 100)))
    return tuple(found)


def _sizes(num_members: int, num_spans: int) -> tuple[float, float, float]:
    """Bytes a member: of the compact header, the compact record and the whole one."""
    ring = ring_with(
        {
            peer: ready(
                incarnation=1_760_000_000 * 10**9,
                tokens=2_000_000,
                spans=tuple(Span(9 * place + number, 0, 10**6) for number in range(num_spans)),
            )
            for place, peer in enumerate(peers(num_members))
        }
    )
    spans = sorted({span for one in ring.ready for span in one.spans}, key=lambda s: s.partition)
    record = commit_of(ring, sorted(ring.members)[: num_members // 2 + 1], header_with(ring, spans))
    compact = compacted(record)
    assert compact is not None
    parts = (encode(compact.header), encode(compact), to_msgpack(record))
    return tuple(len(part) / num_members for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize(("num_members", "num_spans"), [(4, 2), (8, 0), (32, 2), (64, 2)])
def test_a_header_is_short(num_members: int, num_spans: int) -> None:
    header, record, whole = _sizes(num_members, num_spans)
    assert header <= 64
    assert record < 0.6 * whole


def test_a_signature_is_all_that_a_vote_adds() -> None:
    some = encode_commit(commit_of(RING, sorted(RING.members)[:3]))
    all_of_them = encode_commit(commit_of(RING, sorted(RING.members)))
    assert len(all_of_them) - len(some) == 64 + 6


# What has no compact form


def _signed_loosely(author: PeerId) -> Signed:
    """A `Ready` whose first number is written longer than it has to be."""
    payload = sealed(author, ready(incarnation=1)).payload
    assert payload[7] == 1
    loose = payload[:7] + b"\xcc\x01" + payload[8:]
    return Signed(author, loose, sign_as(author)(signing_bytes(RUN_ID, loose)))


def _signed_briefly(author: PeerId) -> Signed:
    """A `Ready` that lacks the last field."""
    fields = msgspec.msgpack.decode(sealed(author, ready(root=b"")).payload)
    brief = encode(fields[:-1])
    return Signed(author, brief, sign_as(author)(signing_bytes(RUN_ID, brief)))


@pytest.mark.parametrize("sign", [_signed_loosely, _signed_briefly])
def test_a_statement_in_another_form_keeps_its_record_whole(sign: object) -> None:
    """Its bytes are signed, so they have to stay; and the round counts as any other."""
    assert callable(sign)
    members = peers(3)
    readies = {peer: sealed(peer, ready()) for peer in members[1:]}
    readies[members[0]] = sign(members[0])
    roster = make_roster(HEAD, 5, 0, readies, RING_RULES)
    envelope = sealed(PeerId(roster.members[0].author), roster)
    ring = open_roster(envelope, roster, RUN_ID, verify, RING_RULES)
    record = commit_of(ring, sorted(members), header_with(ring, ring.ready[0].spans))
    data = encode_commit(record)
    assert not is_compact(data)
    assert decode_commit(data) == record
    open_commit(decode_commit(data), RUN_ID, verify, RING_RULES)


def test_a_record_that_proves_nothing_stays_as_it_is() -> None:
    """What a forger made is told apart by the check of the record, and not by its encoding."""
    stranger = peers(9)[8]
    more = tuple(Member(one.peer_id, one.tokens + 1, 1.0) for one in header_of(RING).members)
    broken: list[Commit] = [
        commit_of(RING, sorted([*VOTERS, stranger])),
        commit_of(RING, VOTERS[::-1]),
        commit_of(RING, VOTERS, removed=[stranger]),
        commit_of(RING, [VOTERS[0]] * 2),
        commit_of(RING, VOTERS, header_of(RING, members=more)),
        commit_of(RING, VOTERS, header_with(RING, [Span(7, 0, 5)])),
        commit_of(ring_of(peers(4), attempt=1), VOTERS, header_of(RING)),
        change(RECORD, header=RECORD.header + b"\0"),
        change(RECORD, header=b""),
        change(RECORD, roster=RECORD.votes[0]),
        change(RECORD, roster=change(RECORD.roster, author=stranger)),
        change(RECORD, roster=change(RECORD.roster, payload=b"")),
        change(RECORD, votes=(RECORD.roster,)),
        change(RECORD, votes=(Signed(VOTERS[0], b"vote", bytes(64)),)),
    ]
    for record in broken:
        data = encode_commit(record)
        assert not is_compact(data)
        assert decode_commit(data) == record


# What no peer may send


def _member(position: int, **changes: object) -> bytes:
    assert COMPACT is not None
    members = list(COMPACT.members)
    members[position] = change(members[position], **changes)
    return packed(members=tuple(members))


def test_what_does_not_fit_together_is_malformed() -> None:
    assert COMPACT is not None
    vote = COMPACT.votes[0]
    broken = [
        packed(organiser=4),
        packed(organiser=-1),
        packed(members=()),
        packed(members=COMPACT.members * 65),
        _member(0, key=bytes(31)),
        packed(voters=b"\x0f"),
        packed(voters=b"\x17"),
        packed(voters=b"\x00\x07"),
        packed(votes=COMPACT.votes[:2]),
        packed(votes=(change(vote, removed=b"\x10"), *COMPACT.votes[1:])),
        packed(votes=(change(vote, removed=b"\x00"), *COMPACT.votes[1:])),
        with_header(not_taken=(0, 0, 0, 0)),
        with_header(not_taken=(1, 1, 1)),
        with_header(not_taken=(101, 0, 0, 0)),
        with_header(not_taken=(-1, 0, 0, 0)),
        with_header(skipped=b"\x10"),
        with_header(skipped=b"\x00"),
        with_header(skipped=b"\x00\x01"),
        with_header(moved=((1, 5),)),  # this one is skipped
        with_header(moved=((0, 0),)),
        with_header(moved=((0, 8192),)),
        with_header(moved=((0, 1), (0, 1))),
        with_header(moved=((4, 1),)),
        with_header(moved=((-1, 1),)),
        packed()[:-1],
        packed() + b"\0",
        packed()[:1] + b"\xcc" + packed()[1:],  # a number that is longer than it has to be
        b"",
        b"\x93",
    ]
    assert decode_commit(packed()) == decode_commit(encode_commit(RECORD))
    for data in broken:
        with pytest.raises(MalformedError):
            decode_commit(data)


def test_the_changed_bits_of_a_record_prove_nothing() -> None:
    """Each change is a record of something that nobody has signed."""
    assert COMPACT is not None
    changed = [
        packed(round=6),
        packed(parent=digest_of(b"other")),
        packed(attempt=1),
        packed(voters=b"\x0e"),
        _member(0, tokens=101),
        _member(1, loss=0.5),
        with_header(not_taken=(1, 0, 0, 0)),
        with_header(moved=((0, 5),)),
        with_header(state_digest=digest_of(b"other")),
    ]
    open_commit(decode_commit(packed()), RUN_ID, verify, RING_RULES)
    for data in changed:
        with pytest.raises(RemoteProtocolError):
            open_commit(decode_commit(data), RUN_ID, verify, RING_RULES)


def test_few_bytes_do_not_become_many() -> None:
    """Each of 256 votes names all others with 32 bytes, which are 14,000 in letters."""
    ring = ring_of(peers(limits.RING_MEMBERS_MAX))
    record = commit_of(ring, sorted(ring.members), header_with(ring, ring.ready[0].spans))
    compact = compacted(record)
    assert compact is not None
    names_all = tuple(change(vote, removed=b"\xff" * 32) for vote in compact.votes)
    data = encode(change(compact, votes=names_all))
    assert len(data) < limits.GOSSIP_BYTES_MAX / 4
    with pytest.raises(OversizedError, match="too many members"):
        decode_commit(data)
    with pytest.raises(OversizedError):
        decode_commit(bytes(limits.GOSSIP_BYTES_MAX + 1))


def test_members_of_a_record_are_in_ring_order() -> None:
    """A position of a mask is that of the ring, as in the update index."""
    compact: CompactCommit | None = compacted(commit_of(RING, [RING.members[2]]))
    assert compact is not None
    assert compact.voters == b"\x04"
    assert to_msgpack(header_of(RING)) == decode_commit(encode(compact)).header


def votes_of(record: Commit) -> Sequence[str]:
    return [vote.author for vote in record.votes]


def test_votes_come_out_by_peer_id() -> None:
    record = commit_of(RING, sorted(RING.members))
    assert votes_of(decode_commit(encode_commit(record))) == sorted(RING.members)
