"""The verdicts of auditors: on the work of a member (`policy.audits`), and on a sum of a ring
(`policy.sum_audits`)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, PeerId, public_key_of

SEQUENCES = 16
"""Sequences of the declared data that an audit measures, and as many of held-out data."""

GAIN_MAX = 1e9
"""Nats a token. What is not finite, or beyond that, is said to be minus or plus this."""


class Verdict(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="verdict"
):
    """The author has audited the work of the member that the head of a round picked, and found it
    good or poor. There is one of each auditor and head; it has some 60 bytes."""

    round: int
    """The round whose work was audited."""
    head: bytes
    """The head that this round led to: it names the member and the auditors."""
    is_poor: bool
    gain_declared: float
    """How much the update lowers the loss on the data that the member says it trained on, nats a
    token."""
    gain_other: float
    """Likewise on held-out data. It is for people."""


def check_verdict(verdict: Verdict) -> None:
    """Raises MalformedError for values out of range."""
    if not 0 < verdict.round <= limits.ROUNDS_MAX or len(verdict.head) != DIGEST_BYTES:
        raise MalformedError("verdict on no round")
    for gain in (verdict.gain_declared, verdict.gain_other):
        if not -GAIN_MAX <= gain <= GAIN_MAX:  # NaN fails too
            raise MalformedError("verdict with a gain out of range")


class SumVerdict(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="sum verdict"
):
    """The author added up the chunk that its secret picked, and found a member at fault
    (`policy.sum_audits`). There is one of each author and head at most."""

    round: int
    """The round whose sum was audited."""
    head: bytes
    """The head that this round led to."""
    secret: bytes
    """The secret behind the commitment in the author's `Ready` of that round: it says that the
    author is an auditor, and of which chunk."""
    member: str
    is_replaced: bool
    """Whether the member passed on another sum than it should have made. Otherwise it did not open
    the chunk."""


AnyVerdict: TypeAlias = Verdict | SumVerdict


class AuditSecret(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="audit secret"
):
    """A member makes its secret of a `Ready` from its signature under this. Neither is ever
    sent."""

    incarnation: int
    """As in the `Ready`."""
    sequence: int


_encoder = msgspec.msgpack.Encoder()


def encode_secret(secret: AuditSecret) -> bytes:
    """The bytes that a member signs for a secret."""
    return _encoder.encode(secret)


def check_sum_verdict(verdict: SumVerdict) -> None:
    """Raises MalformedError for values out of range."""
    if not 0 < verdict.round <= limits.ROUNDS_MAX or len(verdict.head) != DIGEST_BYTES:
        raise MalformedError("verdict on no round")
    if len(verdict.secret) != DIGEST_BYTES:
        raise MalformedError(f"verdict with a secret of {len(verdict.secret)} bytes")
    public_key_of(PeerId(verdict.member))
