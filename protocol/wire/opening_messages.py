"""The messages of a stream of ``/gossamer/opening/1``, on which an auditor has a member open a
chunk (`policy.auditing.sum_audits`).

    auditor -> ["open", head, secret, with the part]
    member  -> ["opened", steps, path]     with the part, which is the payload: fp32, little-endian,
                                           or a record of a set; of a shared step without a path
               ["opened", steps, b""]      without it
               ["closed"]                  the member has nothing to open for this peer and head

Each question has a stream of its own.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, SIGNATURE_BYTES

OPENING_PROTOCOL = "/gossamer/opening/1"

STEPS_MAX = 16
"""Steps of one chunk that a member remembers. Without a fault there is one, and after a fault a
better sum comes now and then."""

OPENING_MESSAGE_BYTES_MAX = 8 * limits.KIB
"""An answer without the part: at most `STEPS_MAX` steps of some 250 bytes each, and a path of 480
bytes."""


class Open(ArrayStruct, frozen=True, tag="open"):
    """The sender asks for the chunk that its secret picked."""

    head: bytes
    secret: bytes
    """It shows that the sender is an auditor of the round."""
    with_part: bool
    """Whether it wants the member's part of the chunk as well."""


class Step(ArrayStruct, frozen=True):
    """The change that the author made to a partial sum that it used."""

    sender: int | None
    """Ring position of the member that sent the sum; None: the author began it."""
    contributors: bytes
    """Mask of the ring positions that are in what came, big-endian, as long as the ring needs."""
    digest: bytes
    signature: bytes
    result: bytes


class Opened(ArrayStruct, frozen=True, tag="opened"):
    """What the member did to the sums of the chunk, the newest last, and with its part the path to
    its root."""

    steps: tuple[Step, ...]
    path: bytes


class Closed(ArrayStruct, frozen=True, tag="closed"):
    """The member has nothing to open."""


_question = msgspec.msgpack.Decoder(Open)
_answer: msgspec.msgpack.Decoder[Opened | Closed] = msgspec.msgpack.Decoder(Opened | Closed)


def decode_question(message: bytes | bytearray) -> Open:
    """Raises MalformedError for anything else than a question."""
    question = decoded(_question, message, "a question of an auditor")
    if len(question.head) != DIGEST_BYTES:
        raise MalformedError("a question of an auditor about no head")
    if len(question.secret) != DIGEST_BYTES:
        raise MalformedError(f"a question with a secret of {len(question.secret)} bytes")
    return question


def decode_answer(message: bytes | bytearray) -> Opened | Closed:
    """Raises MalformedError for anything else than an answer."""
    answer = decoded(_answer, message, "an answer to an auditor")
    if isinstance(answer, Opened):
        if len(answer.steps) > STEPS_MAX:
            raise MalformedError(f"an opened chunk with {len(answer.steps)} steps")
        for step in answer.steps:
            _check_step(step)
    return answer


def _check_step(step: Step) -> None:
    begins = step.sender is None
    if not (
        len(step.result) == DIGEST_BYTES
        and len(step.digest) == (0 if begins else DIGEST_BYTES)
        and len(step.signature) == (0 if begins else SIGNATURE_BYTES)
        and len(step.contributors) <= limits.RING_MEMBERS_MAX // 8
    ):
        raise MalformedError("an opened chunk with a step out of range")
