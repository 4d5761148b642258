"""The summary of the chain up to a round: what each member has given, and heads that links name.

It is a function of the chain alone, so all members compute the same bytes. A checkpoint of the
chain (`chain_checkpoint`) holds its digest.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.state.chain import Header, credits_of

CHECKPOINT_PERIOD = 256
"""Rounds between two checkpoints: with rounds of a minute some four hours."""

CREDITS_MAX = 4096
"""Members that a summary names, some 80 bytes each: with its marks it fits one frame."""

EARLY_MARK_ROUNDS = 16
"""Rounds between two marks before the first checkpoint."""

MARKS_MAX = 4096
"""Marks in a summary, 32 bytes each: of a million rounds. Older ones go, and links that name them
lead nowhere."""


class CreditRow(ArrayStruct, frozen=True):
    """The tokens that committed rounds took of one member."""

    peer_id: str
    tokens: int
    rounds: int
    """Number of rounds that took tokens of it."""
    first_round: int
    last_round: int


class ChainSummary(ArrayStruct, frozen=True):
    """The facts that the chain up to and with a round leaves behind, besides its state."""

    round: int
    rows: tuple[CreditRow, ...]
    """By peer id."""
    others: int
    """Tokens of the members that the summary does not name, because it was full."""
    marks: bytes
    """Heads of earlier rounds that links name (`is_mark`), one after the other, oldest first."""

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))


NO_SUMMARY = ChainSummary(0, (), 0, b"")
"""The summary at the run's beginning."""


_summary_decoder = msgspec.msgpack.Decoder(ChainSummary)


def is_mark(round_number: int) -> bool:
    """Returns whether a summary keeps the head of a round: of those of checkpoints, and before the
    first one of more."""
    if round_number <= CHECKPOINT_PERIOD:
        return round_number > 0 and round_number % EARLY_MARK_ROUNDS == 0
    return round_number % CHECKPOINT_PERIOD == 0


def marks_of(summary: ChainSummary) -> frozenset[Digest]:
    """The heads that a summary keeps."""
    size = DIGEST_BYTES
    starts = range(0, len(summary.marks), size)
    return frozenset(Digest(summary.marks[start : start + size]) for start in starts)


def extended(summary: ChainSummary, headers: Iterable[Header]) -> ChainSummary:
    """The summary after the rounds that follow it, oldest first.

    At the round of a checkpoint a summary with more than `CREDITS_MAX` members loses those with the
    fewest tokens, of equal ones those with the higher peer ids. Their tokens go to `others`.
    """
    rows = {row.peer_id: row for row in summary.rows}
    number, others, marks = summary.round, summary.others, summary.marks
    for header in headers:
        assert header.round == number + 1, "headers that do not follow the summary"
        number = header.round
        marks = _marked(marks, number, header.digest)
        for peer, tokens in credits_of(header).items():
            old = rows.get(peer) or CreditRow(peer, 0, 0, number, number)
            rows[peer] = CreditRow(
                peer, old.tokens + tokens, old.rounds + 1, old.first_round, number
            )
        if number % CHECKPOINT_PERIOD == 0 and len(rows) > CREDITS_MAX:
            ranked = sorted(rows.values(), key=lambda row: (-row.tokens, row.peer_id))
            others += sum(row.tokens for row in ranked[CREDITS_MAX:])
            rows = {row.peer_id: row for row in ranked[:CREDITS_MAX]}
    return ChainSummary(number, tuple(rows[peer] for peer in sorted(rows)), others, marks)


def over_gap(summary: ChainSummary, header: Header) -> ChainSummary:
    """The summary up to the parent of a header that does not follow it: records between the two
    are lost. It is known how many tokens these rounds took, and not of whom.

    Raises:
        MalformedError: no round is between them, or the header counts fewer tokens.
    """
    counted = sum(row.tokens for row in summary.rows) + summary.others
    lost = header.tokens_total - header.tokens - counted
    if header.round <= summary.round + 1 or lost < 0:
        raise MalformedError("a header that is not on the way from the summary")
    last = header.round - 1
    marks = _marked(summary.marks, last, header.parent)
    return ChainSummary(last, summary.rows, summary.others + lost, marks)


def _marked(marks: bytes, number: int, head: bytes) -> bytes:
    """The marks of a summary, with the head of a round if the round is one of them."""
    return (marks + head)[-MARKS_MAX * DIGEST_BYTES :] if is_mark(number) else marks


def decode_summary(data: bytes | bytearray) -> ChainSummary:
    """A summary whose values are checked.

    Raises:
        MalformedError: the bytes are no summary, or a value is out of range.
    """
    summary = decoded(_summary_decoder, data, "a summary of a chain")
    names = [row.peer_id for row in summary.rows]
    if to_msgpack(summary) != data or names != sorted(set(names)):
        raise MalformedError("summary of a chain that is not in canonical form")
    if (
        not 0 <= summary.round <= limits.ROUNDS_MAX
        or summary.others < 0
        or len(summary.marks) % DIGEST_BYTES
        or len(summary.marks) > MARKS_MAX * DIGEST_BYTES
    ):
        raise MalformedError("summary of a chain with a value out of range")
    for row in summary.rows:
        public_key_of(PeerId(row.peer_id))
        if not (
            1 <= row.first_round <= row.last_round <= summary.round
            and 1 <= row.rounds <= row.last_round
            and 0 < row.tokens <= limits.TOKENS_TOTAL_MAX
        ):
            raise MalformedError("row of a summary with a value out of range")
    return summary
