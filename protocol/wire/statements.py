"""Signed statements that peers make to each other by gossip.

A statement is one of the classes of `Statement`, in msgpack arrays that begin with the statement's
name. It travels in a `Signed` envelope with its author and an Ed25519 signature over the run and
the statement's bytes, so any peer may pass it on, and no peer can alter it or use it in another
run. Every statement may be repeated and arrive in any order: `key_of` says which earlier statement
of the same author a newer one replaces.

Signature checking is passed in as a function (`Verify`), because this package does no cryptography
beyond hashing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Literal, TypeAlias

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.errors import ForgedError, MalformedError, OversizedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.wire.audit_messages import Verdict, check_verdict

Phase = Literal[
    "joining", "syncing", "training", "averaging", "paused", "leaving", "failed", "finished"
]
Verify: TypeAlias = Callable[[PeerId, bytes, bytes], bool]
"""(author, bytes, signature) -> whether the author signed the bytes."""
Sign: TypeAlias = Callable[[bytes], bytes]

TAG_BYTES = 8
"""First bytes of an envelope's digest, by which two peers compare their stores, and by which gossip
names the `Ready` in a roster. Two of a thousand honest statements have the same ones with a chance
of 10^-13. Making one statement with the tag of another author's takes 2^64 attempts."""

_SIGNATURE_CONTEXT = b"gossamer statement 1:"


class Span(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Tokens `start` to `stop` of one partition of the data, counted over all epochs.

    Token t of epoch e of a partition with n tokens has position e * n + t.
    """

    partition: int
    start: int
    stop: int


class Capacity(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The capabilities of a machine, as it states them itself."""

    device: str
    device_kind: str
    device_memory_bytes: int
    host_memory_bytes: int
    cores: int
    tokens_per_second: float
    bandwidth_bytes_per_second: float


Reach: TypeAlias = Literal["open", "crossable", "strict", "unknown"]
"""The class of a peer's router: the peer can be dialled; it can be reached if both sides dial at
once; it cannot be dialled; or too few peers have seen its address."""


class Announce(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="announce"
):
    """The author is alive, and says its place in the run. The statement is repeated every few
    seconds; silence means that the author is gone."""

    incarnation: int
    """Number of the author's life: it grows with every start of the same identity."""
    sequence: int
    phase: Phase
    round: int
    """Newest committed round of this peer."""
    head: bytes
    tokens_total: int
    """Tokens in the chain of `head`."""
    checkpoint_round: int
    """Newest round whose whole state this peer serves."""
    claims: tuple[int, ...]
    """Partitions of the data that this peer is training on or about to."""
    addresses: tuple[str, ...]
    capacity: Capacity
    reach: Reach = "unknown"
    """The peers that can connect to this one: all of them, those that dial at the same time, or
    none."""
    name: str = ""
    """The name that its owner wants to be shown; empty for none. Two peers may have the same one:
    only the peer id tells who it is."""
    team: str = ""
    """The team that its owner wants to be shown; empty for none. Anybody may name any team."""


class Ready(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ready"):
    """The author's pseudo-gradient for the round after `head` is done."""

    incarnation: int
    """Number of the author's life: it grows with every start of the same identity."""
    sequence: int
    """Number of this `Ready`. It grows with each one, so no two of one peer are the same: the work
    behind the earlier one is gone, or in other rounds."""
    round: int
    head: bytes
    tokens: int
    """Tokens behind the pseudo-gradient, residual of earlier rounds included: its weight."""
    steps: int
    loss: float
    """Mean training loss of the round's inner steps, nats per token."""
    norm: float
    """Euclidean norm of the pseudo-gradient, residual included; 0 in a run without `displacement`,
    where nothing depends on it and the ring need not wait for it."""
    spans: tuple[Span, ...]
    links: bytes = b""
    """The peers that the author is connected to, `limits.LINK_BYTES` of the digest of each, sorted
    (`ring_order.encode_links`). Empty: it is connected to all that it knows."""
    root: bytes = b""
    """Root over the author's records, chunk by chunk (`record_tree`), in a run with
    `trust = "open"`; empty in others."""


class Roster(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="roster"
):
    """The ring of one attempt: its members' signed `Ready`, in ring order."""

    round: int
    head: bytes
    attempt: int
    members: tuple[Signed, ...]
    codec: str
    chunk_elements: int


class Accusation(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="suspect"
):
    """The author accuses a member of a ring: the member does not keep up, and is out of the ring
    for good."""

    ring_id: bytes
    accused: str
    reason: str


class Vote(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="vote"):
    """The author computed this header from the ring's averages, and holds `removed` to be out of
    the ring."""

    ring_id: bytes
    sequence: int
    header_digest: bytes
    removed: tuple[str, ...]


class LinkRate(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="pace"
):
    """The rate at which the author's successor in this ring takes bytes, while there is something
    to send, and the rate at which the author's predecessor has delivered.

    They are said again when they have changed much.
    """

    ring_id: bytes
    sequence: int
    bytes_per_second: float
    arrived_bytes_per_second: float
    """The highest one at which chunks came to the author in this ring."""


RingStatement: TypeAlias = Accusation | Vote | LinkRate
"""Statements of a member about its ring."""


class Rollback(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="rollback"
):
    """The founder takes a round back, and all rounds that follow it: the run goes on from the head
    before. Only the founder can say so, and it holds for the rest of the run."""

    undone: bytes
    """Digest of the header of the first round that is taken back."""
    parent: bytes
    """The head before it."""
    round: int
    """Number of the round that led to `parent`; 0: the run begins anew."""


class Extension(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="extend"
):
    """The founder names another end of a run whose schedule counts tokens, or begins its cool-down
    (`protocol.state.run_end`). Only the founder can say so; the highest number holds."""

    number: int
    """1 for the first extension of a run."""
    total_tokens: int
    """Tokens of all peers with which the run is over."""
    cooldown_tokens: int
    """Of these the last ones, in which the learning rate falls."""


class Equivocation(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="proof"
):
    """A proof, which anybody can carry, that a peer has signed two different `Ready` with one
    number (`policy.equivocation`)."""

    first: Signed
    second: Signed
    """The author is that of `first`. Of the two payloads `first` has the lower one."""


Statement: TypeAlias = (
    Announce | Ready | Roster | RingStatement | Rollback | Extension | Equivocation | Verdict
)


class Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, dict=True):
    """An envelope: the author, the statement's bytes, and the signature."""

    author: str
    payload: bytes
    signature: bytes

    @cached_property
    def digest(self) -> Digest:
        return digest_of(self.author.encode(), self.payload)


_encoder = msgspec.msgpack.Encoder()
_statement_decoder: msgspec.msgpack.Decoder[Statement] = msgspec.msgpack.Decoder(
    Announce
    | Ready
    | Roster
    | Accusation
    | Vote
    | LinkRate
    | Rollback
    | Extension
    | Equivocation
    | Verdict
)
_signed_decoder = msgspec.msgpack.Decoder(Signed)


def signing_bytes(run_id: Digest, payload: bytes) -> bytes:
    return _SIGNATURE_CONTEXT + run_id + payload


def seal(statement: Statement, author: PeerId, run_id: Digest, sign: Sign) -> Signed:
    """Puts a statement into a signed envelope."""
    payload = encode_statement(statement)
    return Signed(author, payload, sign(signing_bytes(run_id, payload)))


def encode_statement(statement: Statement) -> bytes:
    """The bytes that the author of a statement signs."""
    return _encoder.encode(statement)


def encode_signed(signed: Signed) -> bytes:
    return _encoder.encode(signed)


def decode_signed(data: bytes | bytearray | memoryview) -> Signed:
    """Raises MalformedError or OversizedError; says nothing about the signature."""
    if len(data) > limits.GOSSIP_BYTES_MAX:
        raise OversizedError(f"statement of {len(data)} bytes")
    try:
        return _signed_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a signed statement: {error}") from error


def open_signed(signed: Signed, run_id: Digest, verify: Verify) -> Statement:
    """The statement inside an envelope, after its signature and every value were checked.

    Raises:
        ForgedError: the author did not sign it for this run.
        MalformedError: not a statement, or values out of range.
    """
    public_key_of(PeerId(signed.author))
    if len(signed.signature) != 64 or not verify(
        PeerId(signed.author), signing_bytes(run_id, signed.payload), signed.signature
    ):
        raise ForgedError(f"{signed.author} did not sign this statement for this run")
    try:
        statement = _statement_decoder.decode(signed.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a statement: {error}") from error
    _check(statement)
    return statement


def decode_statement(payload: bytes) -> Statement:
    """The statement of an envelope that `open_signed` has checked before."""
    return _statement_decoder.decode(payload)


def key_of(author: str, statement: Statement) -> tuple[str, ...]:
    """Statements with the same key replace each other; `version_of` says which is newer."""
    match statement:
        case Announce():
            return ("announce", author)
        case Ready():
            # By head: a peer that moves to another head of the same round is ready there anew.
            return ("ready", author, statement.head.hex())
        case Roster():
            return ("roster", author, statement.head.hex(), str(statement.attempt))
        case Accusation():
            return ("suspect", author, statement.ring_id.hex(), statement.accused)
        case Vote():
            return ("vote", author, statement.ring_id.hex())
        case LinkRate():
            return ("pace", author, statement.ring_id.hex())
        case Rollback():
            return ("rollback", author, statement.undone.hex())
        case Extension():
            return ("extend", author)
        case Equivocation():
            return proof_key(statement.first.author)  # one proof is enough, whoever brings it
        case Verdict():
            return ("verdict", author, statement.head.hex())


def proof_key(accused: str) -> tuple[str, ...]:
    """The key of the proof that a peer has equivocated."""
    return ("proof", accused)


def version_of(statement: Statement) -> tuple[int, ...]:
    """Returns the version of a statement: of two statements with one key the higher version is the
    newer."""
    match statement:
        case Announce() | Ready():
            return (statement.incarnation, statement.sequence)
        case Vote() | LinkRate():
            return (statement.sequence,)
        case Extension():
            # The totals decide between two of one number, so that every peer keeps the same one.
            return (statement.number, statement.total_tokens, statement.cooldown_tokens)
        case Roster() | Accusation() | Rollback() | Equivocation() | Verdict():
            return ()


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
    """Raises MalformedError for a display name that is too long, or that has letters which cannot
    be shown or which turn other letters."""
    high = limits.NAME_CHARACTERS_MAX
    _require(len(name) <= high, f"a name has {len(name)} characters; at most {high}")
    is_plain = name.isprintable() and name == name.strip()
    _require(is_plain, "a name has characters that are not printable, or spaces at its ends")


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


def _check(statement: Statement) -> None:
    match statement:
        case Announce():
            _check_announce(statement)
        case Ready():
            _check_version(statement)
            _check_count(statement.round, limits.ROUNDS_MAX, "round")
            _check_digest(statement.head, "head")
            # Work without weight would be in no average, and a header without tokens would not
            # win over its own parent.
            _require(0 < statement.tokens <= limits.TOKENS_MAX, "tokens out of range")
            _check_count(statement.steps, limits.TOKENS_MAX, "steps")
            _require(-1e9 < statement.loss < 1e9, "loss out of range")  # NaN fails both
            check_norm(statement.norm)
            check_spans(statement.spans)
            _require(
                len(statement.links) % limits.LINK_BYTES == 0
                and len(statement.links) <= limits.LINKS_BYTES_MAX,
                f"links of {len(statement.links)} bytes",
            )
            if statement.root:
                _check_digest(statement.root, "root")
        case Roster():
            _check_count(statement.round, limits.ROUNDS_MAX, "round")
            _check_digest(statement.head, "head")
            _check_count(statement.attempt, limits.ATTEMPTS_MAX, "attempt")
            _require(len(statement.members) > 0, "roster without members")
            _check_peers((member.author for member in statement.members), "roster")
            _check_text(statement.codec, "codec")
            _require(
                limits.CHUNK_ELEMENTS_MIN <= statement.chunk_elements <= limits.CHUNK_ELEMENTS_MAX,
                "chunk_elements out of range",
            )
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
        case Equivocation():
            first, second = statement.first, statement.second
            _require(first.author == second.author, "proof about two peers")
            _require(first.payload < second.payload, "proof without a contradiction")
        case Verdict():
            check_verdict(statement)


def _check_version(statement: Announce | Ready) -> None:
    _check_count(statement.incarnation, limits.INCARNATION_MAX, "incarnation")
    _check_count(statement.sequence, limits.SEQUENCE_MAX, "sequence")


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
