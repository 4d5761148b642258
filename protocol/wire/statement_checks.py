"""The bounds of what a statement may say, whoever signed it."""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, PeerId, public_key_of
from gossamer.protocol.wire.audit_messages import GAIN_MAX, AnyVerdict, SumVerdict, Verdict
from gossamer.protocol.wire.statements import (
    Accusation,
    Announce,
    Equivocation,
    Extension,
    LinkRate,
    MoreData,
    Ready,
    Rollback,
    Roster,
    Span,
    Statement,
    Vote,
)

_CONTROLS = frozenset(
    {
        *range(0x20),
        *range(0x7F, 0xA0),
        *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # directions
        *(0x2028, 0x2029),  # ends of lines and paragraphs
    }
)
"""Letters that no name has: control characters, and those that end lines or turn other letters."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise MalformedError(what)


def _check_digest(value: bytes, what: str) -> None:
    _require(len(value) == DIGEST_BYTES, f"{what} has {len(value)} bytes, not {DIGEST_BYTES}")


def _check_count(value: int, high: int, what: str) -> None:
    _require(0 <= value <= high, f"{what} is {value}; allowed: 0 to {high}")


def _check_text(value: str, what: str) -> None:
    _require(len(value) <= limits.TEXT_CHARACTERS_MAX, f"{what} has {len(value)} characters")


def check_name(name: str) -> None:
    """Raises MalformedError for a display name that is too long, or that has letters which move a
    cursor or turn other letters.

    The list of these letters is fixed. Which letters are printable depends on the version of
    Python: the owner of a newer one would be an offender to older ones.
    """
    high = limits.NAME_CHARACTERS_MAX
    _require(len(name) <= high, f"a name has {len(name)} characters; at most {high}")
    is_plain = not any(ord(letter) in _CONTROLS for letter in name) and name == name.strip(" ")
    _require(is_plain, "a name has control characters, or spaces at its ends")


def _check_speed(value: float) -> None:
    _require(0 <= value < 1e15, "speed out of range")  # NaN fails both


def _check_peers(peers: Iterable[str], what: str) -> None:
    listed = list(peers)
    _require(len(listed) <= limits.RING_MEMBERS_MAX, f"{what} lists {len(listed)} peers")
    _require(len(set(listed)) == len(listed), f"{what} lists a peer twice")
    for peer in listed:
        public_key_of(PeerId(peer))


def check_norm(norm: float) -> None:
    """Raises MalformedError for a Euclidean norm that no fp32 vector in use has."""
    _require(0 <= norm < limits.NORM_MAX, "norm out of range")  # NaN fails both


def check_spans(spans: tuple[Span, ...]) -> None:
    """Raises MalformedError if a list of spans is too long or a span is empty or out of range."""
    _require(len(spans) <= limits.SPANS_MAX, f"{len(spans)} spans; at most {limits.SPANS_MAX}")
    for span in spans:
        _check_count(span.partition, limits.SHARDS_MAX, "span's partition")
        _require(0 <= span.start < span.stop <= limits.TOKENS_MAX, "span that is empty or too far")


def check_statement(statement: Statement) -> None:
    match statement:
        case Announce():
            _check_announce(statement)
        case Ready():
            _check_ready(statement)
        case Roster():
            _check_roster(statement)
        case Accusation():
            _check_digest(statement.ring_id, "ring_id")
            public_key_of(PeerId(statement.accused))
            _check_text(statement.reason, "reason")
        case Vote():
            _check_digest(statement.ring_id, "ring_id")
            _check_digest(statement.header_digest, "header_digest")
            _check_count(statement.sequence, limits.TOKENS_MAX, "sequence")
            _check_peers(statement.removed, "vote")
        case LinkRate():
            _check_digest(statement.ring_id, "ring_id")
            _check_count(statement.sequence, limits.LINK_RATES_MAX, "sequence")
            _check_speed(statement.bytes_per_second)
            _check_speed(statement.arrived_bytes_per_second)
        case Rollback():
            _check_digest(statement.undone, "undone")
            _check_digest(statement.parent, "parent")
            _check_count(statement.round, limits.ROUNDS_MAX, "round")
        case Extension():
            _require(
                1 <= statement.number <= limits.EXTENSIONS_MAX,
                f"extension {statement.number}; allowed: 1 to {limits.EXTENSIONS_MAX}",
            )
            _require(
                0 <= statement.cooldown_tokens <= statement.total_tokens
                and 1 <= statement.total_tokens <= limits.TOKENS_TOTAL_MAX,
                "extension with tokens out of range",
            )
        case MoreData():
            _check_digest(statement.parts_digest, "parts_digest")
            high = limits.DATA_PARTS_MAX
            _require(
                1 <= statement.number <= high,
                f"{statement.number} data parts; allowed: 1 to {high}",
            )
            _require(
                1 <= statement.num_tokens <= limits.TOKENS_MAX
                and 0 <= statement.expected_tokens <= limits.TOKENS_MAX,
                "added data with tokens out of range",
            )
        case Equivocation():
            first, second = statement.first, statement.second
            _require(first.author == second.author, "proof about two peers")
            _require(first.payload < second.payload, "proof without a contradiction")
        case Verdict():
            _check_round_of_verdict(statement)
            for gain in (statement.gain_declared, statement.gain_other):
                _require(-GAIN_MAX <= gain <= GAIN_MAX, "gain out of range")  # NaN fails both
        case SumVerdict():
            _check_round_of_verdict(statement)
            _check_digest(statement.secret, "secret")
            public_key_of(PeerId(statement.member))


def _check_round_of_verdict(verdict: AnyVerdict) -> None:
    _require(0 < verdict.round <= limits.ROUNDS_MAX, "verdict on no round")
    _check_digest(verdict.head, "head")


def _check_version(statement: Announce | Ready) -> None:
    _check_count(statement.incarnation, limits.INCARNATION_MAX, "incarnation")
    _check_count(statement.sequence, limits.SEQUENCE_MAX, "sequence")


def _check_ready(ready: Ready) -> None:
    _check_version(ready)
    _check_count(ready.round, limits.ROUNDS_MAX, "round")
    _check_digest(ready.head, "head")
    # Work without weight would be in no average, and a header without tokens would not win over
    # its own parent.
    _require(0 < ready.tokens <= limits.TOKENS_MAX, "tokens out of range")
    _check_count(ready.steps, limits.TOKENS_MAX, "steps")
    _require(-limits.LOSS_MAX < ready.loss < limits.LOSS_MAX, "loss out of range")  # NaN fails both
    check_norm(ready.norm)
    check_spans(ready.spans)
    _require(
        len(ready.links) % limits.LINK_BYTES == 0 and len(ready.links) <= limits.LINKS_BYTES_MAX,
        f"links of {len(ready.links)} bytes",
    )
    if ready.root:
        _check_digest(ready.root, "root")
    if ready.commitment:
        _check_digest(ready.commitment, "commitment")


def _check_roster(roster: Roster) -> None:
    _check_count(roster.round, limits.ROUNDS_MAX, "round")
    _check_digest(roster.head, "head")
    _check_count(roster.attempt, limits.ATTEMPTS_MAX, "attempt")
    _require(len(roster.members) > 0, "roster without members")
    _check_peers((member.author for member in roster.members), "roster")
    _check_text(roster.codec, "codec")
    _require(
        limits.CHUNK_ELEMENTS_MIN <= roster.chunk_elements <= limits.CHUNK_ELEMENTS_MAX,
        "chunk_elements out of range",
    )


def _check_announce(announce: Announce) -> None:
    _check_version(announce)
    _check_count(announce.round, limits.ROUNDS_MAX, "round")
    _check_count(announce.checkpoint_round, limits.ROUNDS_MAX, "checkpoint_round")
    _check_count(announce.tokens_total, limits.TOKENS_TOTAL_MAX, "tokens_total")
    _check_digest(announce.head, "head")
    _require(len(announce.claims) <= limits.CLAIMS_MAX, f"{len(announce.claims)} claims")
    for partition in announce.claims:
        _check_count(partition, limits.SHARDS_MAX, "claimed partition")
    _require(len(announce.addresses) <= limits.ADDRESSES_MAX, "too many addresses")
    for address in announce.addresses:
        _require(len(address) <= limits.ADDRESS_CHARACTERS_MAX, "address too long")
    check_name(announce.name)
    check_name(announce.team)
    capacity = announce.capacity
    _check_text(capacity.device, "device")
    _check_text(capacity.device_kind, "device kind")
    _check_count(capacity.device_memory_bytes, 2**63, "device memory")
    _check_count(capacity.host_memory_bytes, 2**63, "host memory")
    _check_count(capacity.cores, 2**20, "cores")
    _check_speed(capacity.tokens_per_second)
    _check_speed(capacity.bandwidth_bytes_per_second)
