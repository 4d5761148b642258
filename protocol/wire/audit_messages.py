"""The verdicts of auditors: on the work of a member (`policy.auditing.audits`), and on a sum of a
ring (`policy.auditing.sum_audits`)."""

from __future__ import annotations

from typing import TypeAlias

from gossamer.protocol.decoding import ArrayStruct

SEQUENCES = 16
"""Sequences of the declared data that an audit measures, and as many of held-out data."""

GAIN_MAX = 1e9
"""Nats a token. What is not finite, or beyond that, is said to be minus or plus this."""


class Verdict(ArrayStruct, frozen=True, tag="verdict"):
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


class SumVerdict(ArrayStruct, frozen=True, tag="sum verdict"):
    """The author added up the chunk that its secret picked, and found a member at fault
    (`policy.auditing.sum_audits`). There is one of each author and head at most."""

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


class AuditSecret(ArrayStruct, frozen=True, tag="audit secret"):
    """A member makes its secret of a `Ready` from its signature under this. Neither is ever
    sent."""

    incarnation: int
    """As in the `Ready`."""
    sequence: int
