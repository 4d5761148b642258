"""The chain of committed rounds: headers, and the records that commit them.

Rules
-----
- A *header* records what one round did to the state. Its digest is the *head* after that round. The
  parent of the first header is the run id.
- A header is *committed* when enough members of its ring signed votes for it (`quorum_reached`):
  more than half of the members that are not out of the ring, as the signers say.
- Of several committed heads every peer chooses by the same rule (`policy.heads.head_choice`), so a
  swarm that was split joins again without a coordinator.
- The tokens of a member count in proportion to the chunks whose average contains it. Its spans of
  data count if it is in at least half of the chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.wire.envelopes import decode_statement
from gossamer.protocol.wire.statement_checks import check_norm, check_spans
from gossamer.protocol.wire.statements import Signed, Span, Vote


class ChunkAverage(ArrayStruct, frozen=True):
    """One averaged chunk: the digest of its encoded bytes, and its contributors.

    Bit i of `contributors` stands for member i of the header.
    """

    digest: bytes
    contributors: bytes
    """Big-endian bit mask, as long as the ring needs."""

    def mask(self) -> int:
        return int.from_bytes(self.contributors, "big")

    def has(self, position: int) -> bool:
        """Returns whether the work of the member at this position of the header is in it."""
        return bool(self.mask() >> position & 1)


class UpdateIndex(ArrayStruct, frozen=True):
    """The averaged pseudo-gradient of one round, chunk by chunk."""

    codec: str
    averages: tuple[ChunkAverage, ...]

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))


class Member(ArrayStruct, frozen=True):
    """A ring member, with the tokens that this round took of its work."""

    peer_id: str
    tokens: int
    norm: float
    """The norm in its `Ready`."""


class Header(ArrayStruct, frozen=True):
    """The record of what one committed round did to the state. `digest` is the head after it."""

    version: int
    run_id: bytes
    round: int
    parent: bytes
    ring_id: bytes
    members: tuple[Member, ...]
    """All members of the ring, in ring order."""
    tokens_total: int
    """Contributed tokens of the chain up to and with this round."""
    update_digest: bytes
    state_digest: bytes
    ledger_digest: bytes
    spans: tuple[Span, ...]

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))

    @property
    def tokens(self) -> int:
        """Tokens that this round took."""
        return sum(member.tokens for member in self.members)


class Commit(ArrayStruct, frozen=True):
    """A header with the statements that prove it (`rounds.commit_proof`)."""

    header: bytes
    roster: Signed
    """The roster of the header's ring, with the signed `Ready` of every member."""
    votes: tuple[Signed, ...]
    """The votes that make the header binding."""


_header_decoder = msgspec.msgpack.Decoder(Header)
_update_decoder = msgspec.msgpack.Decoder(UpdateIndex)


def mask_bytes(mask: int, num_members: int) -> bytes:
    """A contributor mask as bytes, big-endian, of the length that the ring needs."""
    return mask.to_bytes((num_members + 7) // 8, "big")


def decode_update_index(
    data: bytes, num_chunks: int, num_members: int, *, may_lack: bool = False
) -> UpdateIndex:
    """The update of a ring of this size.

    Args:
        may_lack: whether a chunk may have no contributor.

    Raises:
        MalformedError: the bytes are not an update index.
    """
    index = decoded(_update_decoder, data, "an update index")
    if to_msgpack(index) != data:
        raise MalformedError("update index that is not in canonical form")
    if len(index.averages) != num_chunks:
        raise MalformedError(f"update of {len(index.averages)} chunks; the run has {num_chunks}")
    for average in index.averages:
        if (
            len(average.digest) != DIGEST_BYTES
            or len(average.contributors) != (num_members + 7) // 8
            or not (average.mask() or may_lack)
            or average.mask() >= 1 << num_members
        ):
            raise MalformedError("update with a digest or contributors out of range")
    return index


def decode_header(data: bytes) -> Header:
    """A header whose values are checked. Raises MalformedError if the bytes are not a header, or a
    value is out of range."""
    header = decoded(_header_decoder, data, "a header")
    if to_msgpack(header) != data:
        raise MalformedError("header that is not in canonical form")
    digests = (
        header.run_id,
        header.parent,
        header.ring_id,
        header.update_digest,
        header.state_digest,
        header.ledger_digest,
    )
    if any(len(digest) != DIGEST_BYTES for digest in digests):
        raise MalformedError("header with a digest that is not 32 bytes long")
    if header.version != limits.PROTOCOL_VERSION:
        raise MalformedError(f"header of version {header.version}")
    if not 1 <= header.round <= limits.ROUNDS_MAX:
        raise MalformedError(f"header of round {header.round}")
    if not 1 <= len(header.members) <= limits.RING_MEMBERS_MAX:
        raise MalformedError(f"header with {len(header.members)} members")
    if len({member.peer_id for member in header.members}) != len(header.members):
        raise MalformedError("header that names a member twice")
    for member in header.members:
        public_key_of(PeerId(member.peer_id))
        if not 0 <= member.tokens <= limits.TOKENS_MAX:
            raise MalformedError("header with tokens out of range")
        check_norm(member.norm)
    if not 0 < header.tokens <= header.tokens_total <= limits.TOKENS_TOTAL_MAX:
        raise MalformedError("header without tokens, or whose total is below its own")
    check_header_spans(header)
    return header


def check_header_spans(header: Header) -> None:
    """Raises MalformedError if a header has more than `SPANS_MAX` spans for every member, or if
    they are not sorted, or have a token twice."""
    if len(header.spans) > limits.SPANS_MAX * len(header.members):
        raise MalformedError("header with more spans than its members may have")
    for start in range(0, len(header.spans), limits.SPANS_MAX):
        check_spans(header.spans[start : start + limits.SPANS_MAX])
    for one, following in pairwise(header.spans):
        if (following.partition, following.start) < (one.partition, one.stop):
            raise MalformedError("header whose spans are not sorted, or have a token twice")


def quorum_reached(members: Sequence[str], votes: dict[str, Vote], accusers: int = 1) -> bool:
    """Returns whether the votes for one header commit it.

    A member counts as out of the ring when the votes of so many signers as the manifest demands
    name it in `removed`, and it did not sign itself. More than half of the other members must have
    signed. So with one accuser the last member of a ring commits alone, with two only that of a
    ring of two. Two members that cannot reach each other both go on. The head rule joins them
    later.

    Args:
        votes: the vote of each signer.
        accusers: `RoundConfig.num_accusers`.
    """
    signers = {author for author in votes if author in members}
    named = Counter(peer for author in signers for peer in {*votes[author].removed})
    enough = accusers_needed(len(members), accusers)
    removed = {peer for peer, count in named.items() if count >= enough} - signers
    living = [member for member in members if member not in removed]
    return 2 * len(signers) > len(living)


def accusers_needed(num_members: int, accusers: int) -> int:
    """Returns how many signers must name a member of a ring of this size in `removed`."""
    return min(accusers, max(num_members - 1, 1))


def credits_of(header: Header) -> dict[PeerId, int]:
    """The members of which a round took tokens, each with these."""
    return {PeerId(member.peer_id): member.tokens for member in header.members if member.tokens}


def signers_of(commit: Commit) -> frozenset[PeerId]:
    """The members that signed a round and of which it took tokens, as far as this record tells.

    Records of one round may hold different votes: enough of them, whichever came first.

    Raises:
        MalformedError: the record has no header.
    """
    credits = credits_of(decode_header(commit.header))
    return frozenset(PeerId(vote.author) for vote in commit.votes).intersection(credits)


def lost_members(commit: Commit) -> bool:
    """Returns whether a signer of a checked record holds a member to be out of the ring."""
    return bool(_removals(commit))


def removed_in(commit: Commit) -> frozenset[PeerId]:
    """The members that more than half of the signers of a checked record hold to be out of the
    ring. The word of one signer could excuse its accomplice."""
    needed = len(commit.votes) // 2 + 1
    return frozenset(peer for peer, count in _removals(commit).items() if count >= needed)


def _removals(commit: Commit) -> Counter[PeerId]:
    """The number of signers that hold a member to be out of the ring, by member."""
    votes = (decode_statement(signed.payload) for signed in commit.votes)
    removed = (vote.removed for vote in votes if isinstance(vote, Vote))
    return Counter(PeerId(peer) for each in removed for peer in set(each))


def check_follows(header: Header, parent_head: bytes, round_number: int, tokens_total: int) -> None:
    """Checks that a header continues the chain that ends with its parent.

    Raises:
        MalformedError: the parent, the round or the total does not fit.
    """
    if header.parent != parent_head:
        raise MalformedError("header with another parent")
    if header.round != round_number + 1:
        raise MalformedError(f"header of round {header.round} after round {round_number}")
    if header.tokens_total != tokens_total + header.tokens:
        raise MalformedError("header whose total is not its parent's and its own tokens")


def tokens_taken(tokens: int, num_chunks_in: int, num_chunks: int) -> int:
    """Tokens of a member that is in `num_chunks_in` of the round's chunks, rounded up.

    The number is rounded up: so a round that took any work has tokens, and its head wins over its
    parent.
    """
    return -(-tokens * num_chunks_in // num_chunks)


def spans_taken(num_chunks_in: int, num_chunks: int) -> bool:
    """Returns whether a member's data counts as consumed by the round."""
    return 2 * num_chunks_in >= num_chunks
