"""Equivocation: two signed statements of one peer that no program makes both.

The number (incarnation, sequence) grows with each `Ready` and with each life, so a program of this
protocol never signs two with one number. A peer that does so can show one contribution to some
members and another one to others. A member finishes each chunk of a ring once, so it never signs
two averages of it, and it gives one part to each chunk of a shared step, so it never signs two for
a step. A peer that does either can show one thing to some members and another one to others. Both
signatures together are a proof that needs no trust in the peer that carries it.

Rules
-----
- A proof has two envelopes of one author, each with a good signature for this run, that differ in
  their bytes. Both hold `Ready` with the same incarnation and sequence, or both hold averages
  (`average_signatures`) of the same chunk of the same ring, made with the same `Ready`, or both
  hold parts of the same shared step of such a ring.
- A false proof is the offence of the peer that signed it as its carrier.
"""

from __future__ import annotations

from collections import OrderedDict

from gossamer.protocol import limits
from gossamer.protocol.decoding import DECODING_ERRORS
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest
from gossamer.protocol.wire.average_signatures import (
    FinishedAverage,
    SignedStep,
    decode_of_ring,
    is_of_ring,
)
from gossamer.protocol.wire.envelopes import (
    Verify,
    check_signature,
    decode_statement,
    open_signed,
)
from gossamer.protocol.wire.statements import Equivocation, Ready, Signed, version_of

AUTHORS_MAX = limits.MEMBERS_MAX
"""Authors whose `Ready` are remembered."""

READY_KEPT = 2
"""`Ready` of one author that are remembered, the newest ones: some 500 bytes each, and at most some
6 KiB. A peer contradicts itself before its next `Ready`, or has no use of it."""


def number_of(proof: Equivocation) -> tuple[int, ...]:
    """The (incarnation, sequence) of the `Ready` that a checked proof is about."""
    payload = proof.first.payload
    if is_of_ring(payload):
        of_ring = decode_of_ring(payload)
        return of_ring.incarnation, of_ring.sequence
    return version_of(decode_statement(payload))


def subject_of(proof: Equivocation) -> str:
    """Returns the kind of the two statements of a checked proof, for people."""
    payload = proof.first.payload
    if not is_of_ring(payload):
        return "contributions with one number"
    is_average = isinstance(decode_of_ring(payload), FinishedAverage)
    return "averages of one chunk" if is_average else "parts of one shared step"


def open_equivocation(proof: Equivocation, run_id: Digest, verify: Verify) -> tuple[int, ...]:
    """The (incarnation, sequence) of the `Ready` that a peer has used for a contradiction.

    Raises:
        RemoteProtocolError: it is no proof.
    """
    if is_of_ring(proof.first.payload):
        return _open_of_ring(proof, run_id, verify)
    first = open_signed(proof.first, run_id, verify)
    second = open_signed(proof.second, run_id, verify)
    if not isinstance(first, Ready) or not isinstance(second, Ready):
        raise ForgedError("a proof of statements that are no contributions")
    if version_of(first) != version_of(second):
        raise ForgedError("a proof of two contributions with two numbers")
    return version_of(first)


def _open_of_ring(proof: Equivocation, run_id: Digest, verify: Verify) -> tuple[int, ...]:
    check_signature(proof.first, run_id, verify)
    check_signature(proof.second, run_id, verify)
    first, second = decode_of_ring(proof.first.payload), decode_of_ring(proof.second.payload)
    if _subject_of(first) != _subject_of(second):
        raise ForgedError("a proof of averages of two chunks, or of parts of two steps")
    return first.incarnation, first.sequence


def _subject_of(signed: FinishedAverage | SignedStep) -> tuple[object, ...]:
    """Returns what a member signs once: a chunk or a step of a ring."""
    number = signed.chunk if isinstance(signed, FinishedAverage) else signed.step
    return type(signed), signed.incarnation, signed.sequence, signed.ring_id, number


class ReadyWitness:
    """The newest `Ready` of each author, as one node has heard them."""

    def __init__(self, run_id: Digest, verify: Verify) -> None:
        self._run_id = run_id
        self._verify = verify
        self._heard: OrderedDict[str, dict[tuple[int, ...], Signed]] = OrderedDict()

    def heard(self, signed: Signed, ready: Ready) -> Equivocation | None:
        """Remembers a `Ready` whose signature is good. Returns the proof if it contradicts another
        one."""
        proof = self._contradicts(signed, ready)
        of_author = self._heard.setdefault(signed.author, {})
        self._heard.move_to_end(signed.author)
        if len(self._heard) > AUTHORS_MAX:
            self._heard.popitem(last=False)
        of_author.setdefault(version_of(ready), signed)
        if len(of_author) > READY_KEPT:
            del of_author[min(of_author)]
        return proof

    def quoted(self, signed: Signed) -> Equivocation | None:
        """Compares a `Ready` that another peer quotes in a roster, whose signature is not checked
        yet. Returns the proof if its author signed it, and it contradicts another one."""
        if signed.author not in self._heard:
            return None
        try:
            ready = decode_statement(signed.payload)
            proof = self._contradicts(signed, ready) if isinstance(ready, Ready) else None
            if proof is not None:
                open_equivocation(proof, self._run_id, self._verify)
        except (RemoteProtocolError, *DECODING_ERRORS):
            return None  # the check of the roster says whose fault that is
        return proof

    def _contradicts(self, signed: Signed, ready: Ready) -> Equivocation | None:
        known = self._heard.get(signed.author, {}).get(version_of(ready))
        if known is None or known.payload == signed.payload:
            return None
        first, second = sorted((known, signed), key=lambda each: each.payload)
        return Equivocation(first, second)
