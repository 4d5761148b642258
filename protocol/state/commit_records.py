"""Commit records in bytes, as they travel and lie on the disk.

Nearly everything in a header and in a vote follows from the roster beside it: the members and their
norms, the ring, the parent, and the spans of data. Peer ids are 54 bytes in letters, 32 as keys.

Rules
-----
- The *compact* form has what does not follow from the rest. A member is its public key, its
  signature, and the numbers of its `Ready`. The header has three digests, the chain's tokens, and
  what the round did *not* take of the members' tokens and spans. A vote is a bit and a signature.
- The receiver puts header, roster and votes together, byte for byte. So heads, ring ids and
  signatures are those of the whole form, and a chain may hold both forms in any order.
- The *whole* form is the array of header, roster and votes, as all records were before there was
  the compact one. Such records stay as they are on the disk, and are sent so. It also stands for a
  record whose bytes do not come out of a compact form: a member may sign a statement that is not in
  canonical form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import DECODING_ERRORS, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError, OversizedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId, digest_of, peer_id_from_public_key, public_key_of
from gossamer.protocol.state.chain import Commit, Header, Member, decode_header, mask_bytes
from gossamer.protocol.wire.compact_commits import (
    CompactCommit,
    CompactHeader,
    CompactMember,
    CompactVote,
)
from gossamer.protocol.wire.envelopes import decode_statement, ring_id_of
from gossamer.protocol.wire.statements import Ready, Roster, Signed, Span, Vote

_WHOLE = b"\x93"
"""First byte of a whole record: an array of three. A compact one has more fields."""

_SAID = CompactMember.__struct_fields__[2:]
"""Fields that a member has from its `Ready`: all behind its key and signature."""

_whole_decoder = msgspec.msgpack.Decoder(Commit)
_compact_decoder = msgspec.msgpack.Decoder(CompactCommit)


def encode_commit(commit: Commit) -> bytes:
    """A record in compact form; in whole form if the compact one would not give it back."""
    return to_msgpack(compacted(commit) or commit)


def decode_commit(data: bytes | bytearray) -> Commit:
    """A commit record of either form, whose statements and votes are not checked.

    Raises:
        MalformedError: the bytes are not a commit record.
        OversizedError: the record is over its limit.
    """
    if len(data) > limits.GOSSIP_BYTES_MAX:
        raise OversizedError(f"commit record of {len(data)} bytes")
    if data[:1] == _WHOLE:
        return decoded(_whole_decoder, data, "a commit record")
    compact = decoded(_compact_decoder, data, "a commit record")
    if to_msgpack(compact) != data:
        raise MalformedError("commit record that is not in canonical form")
    return _put_together(compact)


def with_votes_of(known: Commit, other: Commit) -> Commit | None:
    """A checked record with the votes that it lacks, of another checked record of its header; None:
    it lacks none, or it would be over its limit with them.

    Each vote is of one more member that is in, so the record proves its header as before.
    """
    authors = {signed.author for signed in known.votes}
    more = [signed for signed in other.votes if signed.author not in authors]
    if not more:
        return None
    votes = tuple(sorted((*known.votes, *more), key=lambda signed: signed.author))
    joined = Commit(known.header, known.roster, votes)
    try:
        return joined if decode_commit(encode_commit(joined)) == joined else None
    except RemoteProtocolError:
        return None


def compacted(commit: Commit) -> CompactCommit | None:
    """The compact form of a record; None: its bytes would not come out of it."""
    try:
        compact = _compact(commit)
        return compact if _put_together(compact) == commit else None
    except (RemoteProtocolError, *DECODING_ERRORS):
        return None


def _compact(commit: Commit) -> CompactCommit:
    """The compact form of a record that may not come out of it. RemoteProtocolError or an error of
    decoding if there is none."""
    header = decode_header(commit.header)
    roster = decode_statement(commit.roster.payload)
    if not isinstance(roster, Roster):
        raise MalformedError("commit record without a roster")
    readies = [_ready_in(member) for member in roster.members]
    places = {member.author: place for place, member in enumerate(roster.members)}
    if commit.roster.author not in places or len(header.members) != len(readies):
        raise MalformedError("commit record whose roster is not of its members")
    votes = _compact_votes(commit, places)
    members = zip(roster.members, readies, strict=True)
    return CompactCommit(
        roster.round,
        roster.head,
        roster.attempt,
        roster.codec,
        roster.chunk_elements,
        places[commit.roster.author],
        commit.roster.signature,
        tuple(_compact_member(signed, ready) for signed, ready in members),
        _compact_header(header, readies),
        _mask(votes, len(readies)),
        tuple(votes[place] for place in sorted(votes)),
    )


def _compact_member(signed: Signed, ready: Ready) -> CompactMember:
    said = [getattr(ready, name) for name in _SAID]
    return CompactMember(public_key_of(PeerId(signed.author)), signed.signature, *said)


def _compact_header(header: Header, readies: Sequence[Ready]) -> CompactHeader:
    offered_and_taken = zip(readies, header.members, strict=True)
    not_taken = tuple(ready.tokens - member.tokens for ready, member in offered_and_taken)
    skipped, moved = _differences(_offered(readies), header.spans)
    return CompactHeader(
        header.version,
        header.run_id,
        header.update_digest,
        header.state_digest,
        header.ledger_digest,
        header.tokens_total,
        not_taken if any(not_taken) else (),
        skipped,
        moved,
    )


def _compact_votes(commit: Commit, places: Mapping[str, int]) -> dict[int, CompactVote]:
    """The votes by their authors' positions.

    Args:
        places: the position of each member.
    """
    votes: dict[int, CompactVote] = {}
    for signed in commit.votes:
        vote = decode_statement(signed.payload)
        if not isinstance(vote, Vote) or signed.author not in places:
            raise MalformedError("commit record with something that is no member's vote")
        removed = _mask([places.get(peer, -1) for peer in vote.removed], len(places))
        votes[places[signed.author]] = CompactVote(vote.sequence, removed, signed.signature)
    return votes


def _ready_in(signed: Signed) -> Ready:
    ready = decode_statement(signed.payload)
    if not isinstance(ready, Ready):
        raise MalformedError("roster with a member that is not ready")
    return ready


def _put_together(compact: CompactCommit) -> Commit:
    """The record behind a compact form.

    Raises:
        MalformedError: positions or masks are out of range, or keys are none.
        OversizedError: the record in whole form is over its limit.
    """
    num_members = len(compact.members)
    if not 0 <= compact.organiser < num_members <= limits.RING_MEMBERS_MAX:
        raise MalformedError(f"record of a ring of {num_members} without its organiser")
    authors = [peer_id_from_public_key(member.key) for member in compact.members]
    readies = [_ready_of(compact, member) for member in compact.members]
    roster = Roster(
        compact.round,
        compact.parent,
        compact.attempt,
        tuple(
            Signed(author, to_msgpack(ready), member.signature)
            for author, ready, member in zip(authors, readies, compact.members, strict=True)
        ),
        compact.codec,
        compact.chunk_elements,
    )
    envelope = Signed(authors[compact.organiser], to_msgpack(roster), compact.signature)
    ring_id = ring_id_of(envelope)
    header = to_msgpack(_header(compact, ring_id, authors, readies))
    num_bytes = len(header) + len(envelope.payload)
    return Commit(header, envelope, _votes(compact, header, ring_id, authors, num_bytes))


def _ready_of(compact: CompactCommit, member: CompactMember) -> Ready:
    said = {name: getattr(member, name) for name in _SAID}
    return Ready(round=compact.round, head=compact.parent, **said)


def _header(
    compact: CompactCommit, ring_id: bytes, authors: Sequence[PeerId], readies: Sequence[Ready]
) -> Header:
    header = compact.header
    not_taken = header.not_taken or (0,) * len(readies)
    if len(not_taken) != len(readies) or (header.not_taken and not any(not_taken)):
        raise MalformedError("record whose tokens are not those of its members")
    for ready, tokens in zip(readies, not_taken, strict=True):
        if not 0 <= tokens <= ready.tokens:
            raise MalformedError("record with more tokens than its members offered")
    return Header(
        header.version,
        header.run_id,
        compact.round,
        compact.parent,
        ring_id,
        tuple(
            Member(author, ready.tokens - tokens, ready.norm)
            for author, ready, tokens in zip(authors, readies, not_taken, strict=True)
        ),
        header.tokens_total,
        header.update_digest,
        header.state_digest,
        header.ledger_digest,
        _taken(_offered(readies), header.skipped, header.moved),
    )


def _votes(
    compact: CompactCommit,
    header: bytes,
    ring_id: bytes,
    authors: Sequence[PeerId],
    num_bytes: int,
) -> tuple[Signed, ...]:
    """The votes for a header, by peer id.

    Args:
        num_bytes: of the record without them.
    """
    voters = _places(compact.voters, len(authors))
    if len(voters) != len(compact.votes):
        raise MalformedError("record with votes of nobody")
    head = digest_of(header)
    votes: list[Signed] = []
    for voter, vote in zip(voters, compact.votes, strict=True):
        removed = sorted(authors[place] for place in _places(vote.removed, len(authors)))
        payload = to_msgpack(Vote(ring_id, vote.sequence, head, tuple(removed)))
        # A byte of a mask stands for eight peer ids: without this bound few bytes become many.
        num_bytes += len(payload)
        if num_bytes > limits.GOSSIP_BYTES_MAX:
            raise OversizedError("commit record whose votes name too many members")
        votes.append(Signed(authors[voter], payload, vote.signature))
    return tuple(sorted(votes, key=lambda signed: signed.author))


def _offered(readies: Sequence[Ready]) -> list[Span]:
    """The spans of all members in the order in which a ledger takes them."""
    spans = [span for ready in readies for span in ready.spans]
    return sorted(spans, key=lambda span: (span.partition, span.start, span.stop))


def _differences(
    offered: Sequence[Span], taken: Sequence[Span]
) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """The mask of the spans that are not in a header, and the places of those that begin later in
    it, each with how much later. MalformedError if the header has others."""
    skipped = set(range(len(offered)))
    moved: list[tuple[int, int]] = []
    place = 0
    for span in taken:
        while place < len(offered) and not _holds(offered[place], span):
            place += 1
        if place == len(offered):
            raise MalformedError("header with spans that its members did not offer")
        if span.start > offered[place].start:
            moved.append((place, span.start - offered[place].start))
        skipped.remove(place)
        place += 1
    return _mask(skipped, len(offered)), tuple(moved)


def _holds(offered: Span, taken: Span) -> bool:
    """Returns whether one span is the end of another."""
    is_end = offered.partition == taken.partition and offered.stop == taken.stop
    return is_end and offered.start <= taken.start


def _taken(
    offered: Sequence[Span], skipped: bytes, moved: Sequence[tuple[int, int]]
) -> tuple[Span, ...]:
    """The spans of a header. MalformedError if the differences do not fit what was offered."""
    left_out = set(_places(skipped, len(offered)))
    shifts = dict(moved)
    if [*shifts.items()] != sorted(moved) or not shifts.keys() <= set(
        range(len(offered))
    ) - left_out:
        raise MalformedError("record with spans out of order")
    spans: list[Span] = []
    for place, span in enumerate(offered):
        if place not in left_out:
            start = span.start + shifts.get(place, 0)
            if place in shifts and not span.start < start < span.stop:
                raise MalformedError("record with a span that is empty")
            spans.append(Span(span.partition, start, span.stop))
    return tuple(spans)


def _mask(places: Collection[int], num_places: int) -> bytes:
    """A mask with the bits of these places; empty for none. MalformedError if one is none."""
    if any(not 0 <= place < num_places for place in places):
        raise MalformedError("record that names a peer which is not in its ring")
    return mask_bytes(sum(1 << place for place in {*places}), num_places) if places else b""


def _places(mask: bytes, num_places: int) -> list[int]:
    """The places of a mask's bits, in order. MalformedError for a mask of another size."""
    if not mask:
        return []
    bits = int.from_bytes(mask, "big")
    if len(mask) != (num_places + 7) // 8 or not 0 < bits < 1 << num_places:
        raise MalformedError("record with a mask out of range")
    return [place for place in range(num_places) if bits >> place & 1]
