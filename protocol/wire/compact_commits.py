"""The fields of a commit record in compact form.

`state.commit_records` makes it of a record, and puts the record together again.
"""

from __future__ import annotations

from gossamer.protocol.decoding import ArrayStruct
from gossamer.protocol.wire.statements import Span


class CompactMember(ArrayStruct, frozen=True):
    """A member's `Ready`, without the round and the head that are the same for all."""

    key: bytes
    """Its public key."""
    signature: bytes
    incarnation: int
    sequence: int
    tokens: int
    steps: int
    loss: float
    norm: float
    spans: tuple[Span, ...]
    links: bytes
    root: bytes
    commitment: bytes


class CompactHeader(ArrayStruct, frozen=True):
    """The part of a header that its ring's roster does not say."""

    version: int
    run_id: bytes
    update_digest: bytes
    state_digest: bytes
    ledger_digest: bytes
    tokens_total: int
    not_taken: tuple[int, ...]
    """Tokens of each member's `Ready` that the round did not take; empty if it took all."""
    skipped: bytes
    """Mask of the spans that the ledger skipped, of all that the members' `Ready` name in order of
    (partition, start, stop); empty if it took all."""
    moved: tuple[tuple[int, int], ...]
    """Places of spans in that order of which the header has the end alone, each with the tokens
    that it lacks."""


class CompactVote(ArrayStruct, frozen=True):
    """A vote for the record's header."""

    sequence: int
    removed: bytes
    """Mask of the members that the author holds to be out; empty for none."""
    signature: bytes


class CompactCommit(ArrayStruct, frozen=True):
    """A commit record in compact form. Bit i of its masks, which are big-endian, stands for member
    i of the ring."""

    round: int
    parent: bytes
    attempt: int
    codec: str
    chunk_elements: int
    organiser: int
    """Position of the roster's author."""
    signature: bytes
    """The roster's."""
    members: tuple[CompactMember, ...]
    header: CompactHeader
    voters: bytes
    """Mask of the members whose votes follow."""
    votes: tuple[CompactVote, ...]
    """Votes in the order of the voters' positions."""
