"""Signed envelopes of statements: sealed, encoded, opened and checked.

Signature checking is passed in as a function (`Verify`), because this package does no cryptography
beyond hashing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import decoded, to_msgpack
from gossamer.protocol.errors import ForgedError, OversizedError
from gossamer.protocol.ids import SIGNATURE_BYTES, Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.wire.audit_messages import SumVerdict, Verdict
from gossamer.protocol.wire.statement_checks import check_statement
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
    Signed,
    Statement,
    Vote,
)

Verify: TypeAlias = Callable[[PeerId, bytes, bytes], bool]
"""(author, bytes, signature) -> whether the author signed the bytes."""
Sign: TypeAlias = Callable[[bytes], bytes]


_SIGNATURE_CONTEXT = b"gossamer statement 1:"


_statement_decoder: msgspec.msgpack.Decoder[Statement] = msgspec.msgpack.Decoder(
    Announce
    | Ready
    | Roster
    | Accusation
    | Vote
    | LinkRate
    | Rollback
    | Extension
    | MoreData
    | Equivocation
    | Verdict
    | SumVerdict
)
_signed_decoder = msgspec.msgpack.Decoder(Signed)


def signing_bytes(run_id: Digest, payload: bytes) -> bytes:
    return _SIGNATURE_CONTEXT + run_id + payload


def seal(statement: Statement, author: PeerId, run_id: Digest, sign: Sign) -> Signed:
    """Puts a statement into a signed envelope."""
    payload = to_msgpack(statement)
    return Signed(author, payload, sign(signing_bytes(run_id, payload)))


def decode_signed(data: bytes | bytearray | memoryview) -> Signed:
    """Raises MalformedError or OversizedError; says nothing about the signature."""
    if len(data) > limits.GOSSIP_BYTES_MAX:
        raise OversizedError(f"statement of {len(data)} bytes")
    return decoded(_signed_decoder, data, "a signed statement")


def open_signed(signed: Signed, run_id: Digest, verify: Verify) -> Statement:
    """The statement inside an envelope, after its signature and every value were checked.

    Raises:
        ForgedError: the author did not sign it for this run.
        MalformedError: not a statement, or values out of range.
    """
    check_signature(signed, run_id, verify)
    statement = decoded(_statement_decoder, signed.payload, "a statement")
    check_statement(statement)
    return statement


def check_signature(signed: Signed, run_id: Digest, verify: Verify) -> None:
    """Raises ForgedError if the author of an envelope did not sign it for this run."""
    public_key_of(PeerId(signed.author))
    if len(signed.signature) != SIGNATURE_BYTES or not verify(
        PeerId(signed.author), signing_bytes(run_id, signed.payload), signed.signature
    ):
        raise ForgedError(f"{signed.author} did not sign this statement for this run")


def decode_statement(payload: bytes) -> Statement:
    """The statement of an envelope that `open_signed` has checked before."""
    return _statement_decoder.decode(payload)


def ring_id_of(signed: Signed) -> Digest:
    """The id of the ring that a sealed roster defines."""
    return digest_of(b"gossamer ring:", signed.author.encode(), signed.payload)
