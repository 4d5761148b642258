"""The signed pieces by which a run of `admission = "invite"` grows, and their messages.

A *sponsor* signs a `Certificate` for a one-time key. The secret of that key signs the id of the
*newcomer*. A *witness*, any member that the newcomer reaches, checks both and signs the `Entry`.
All entries and revocations that a member knows are its *roll* (`protocol.policy.members.roll`).

``/gossamer/admit/1``, the only protocol that a stranger is served:

request: a `Claim` as the frame's message (an empty frame asks no more than whether one is admitted)
reply:   a `Welcomed` as the frame's message

``/gossamer/roll/1``, between members, is the exchange of `piece_messages`. Its pieces are entries
and revocations, and its page is a `RollPage`.

Every public key is the 32 raw bytes of an Ed25519 key. Signatures cover a context, the run id and
the piece, so that a piece of one run says nothing in another.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import DECODING_ERRORS, ArrayStruct, to_msgpack
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.ids import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Digest, digest_of

ROLL_PROTOCOL = "/gossamer/roll/1"

DEPTH_MAX = 4
"""Entries between a root and a member. A claim carries them all, some 320 bytes each, and each
level trusts somebody whom the founder knows less."""

SLOTS_MAX = 64
"""Newcomers of one certificate. A leaked secret lets in no more."""

UNIX_SECONDS_MAX = 2**40

PROOF_ENTRIES_MAX = 16
"""Entries in one claim: those above a member, and those of the witnesses, as many as have room. A
stranger can make a member check three signatures of each."""

CLAIM_BYTES_MAX = PROOF_ENTRIES_MAX * 360 + 512
"""Of a claim: entries of at most 360 bytes, a certificate and a proof. Strangers send it."""

PROBLEM_CHARACTERS_MAX = 200

PIECES_MAX = 32 * limits.MEMBERS_MAX
"""Pieces of a roll whose digests one exchange names: an entry a member, its revocations, and those
of the roots. More can come only from roots, which are trusted."""

PAGE_BYTES_MAX = 256 * limits.KIB
"""Of the pieces in one page; the next exchange brings the rest."""

ROLL_BYTES_MAX = PIECES_MAX * 400
"""Of a whole roll in a file: an entry has at most some 360 bytes."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Certificate(ArrayStruct, frozen=True):
    """A sponsor's permission for holders of a one-time secret to become members."""

    sponsor: bytes
    key: bytes
    """Public key of the one-time secret."""
    slots: int
    """Newcomers that it lets in, at most `SLOTS_MAX`."""
    expires_unix_seconds: int
    depth: int
    """Levels of members below its newcomers: 0 if they may invite nobody."""
    signature: bytes
    """The sponsor's."""

    def signing_bytes(self, run_id: Digest) -> bytes:
        """Returns the bytes that the sponsor signs."""
        fields = (self.sponsor, self.key, self.slots, self.expires_unix_seconds, self.depth)
        return b"gossamer certificate 1:" + run_id + to_msgpack(fields)


class Entry(ArrayStruct, frozen=True):
    """A newcomer came in by a certificate."""

    certificate: Certificate
    newcomer: bytes
    proof: bytes
    """The one-time key's signature over the newcomer, see `proof_bytes`."""
    witness: bytes
    """The member that let the newcomer in."""
    unix_seconds: int
    """The witness's clock, moved past the entries of sponsor, witness and certificate."""
    signature: bytes
    """The witness's."""

    def signing_bytes(self, run_id: Digest) -> bytes:
        """Returns the bytes that the witness signs."""
        fields = (self.certificate, self.newcomer, self.proof, self.witness, self.unix_seconds)
        return b"gossamer entry 1:" + run_id + to_msgpack(fields)

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))


class Revocation(ArrayStruct, frozen=True):
    """A root, or somebody above the target in its chain, puts it out for good."""

    revoker: bytes
    target: bytes
    """Public key of a member, or of a certificate's one-time secret."""
    signature: bytes

    def signing_bytes(self, run_id: Digest) -> bytes:
        """Returns the bytes that the revoker signs."""
        return b"gossamer revocation 1:" + run_id + to_msgpack((self.revoker, self.target))

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))


class Claim(ArrayStruct, frozen=True, tag="claim"):
    """The caller's proof that it may come in, or that it is in already."""

    entries: tuple[Entry, ...]
    """Those that lead from a root to the sponsor of the certificate, or without one to the caller,
    and those of their witnesses; each behind the ones that it needs."""
    certificate: Certificate | None
    proof: bytes
    """The one-time key's signature over the caller; empty without a certificate."""


class Welcomed(ArrayStruct, frozen=True, tag="welcomed"):
    """The answer to a claim."""

    is_admitted: bool
    problem: str
    """The reason for people why the holder of a genuine invitation is not let in."""
    yours: tuple[Entry, ...]
    """The entries that lead to the caller, as in a claim."""
    mine: tuple[Entry, ...]
    """Those that lead to the peer that answers."""


class RollPage(ArrayStruct, frozen=True):
    """Pieces of a roll."""

    entries: tuple[Entry, ...]
    revocations: tuple[Revocation, ...]

    def __bool__(self) -> bool:
        return bool(self.entries or self.revocations)


class Invitation(ArrayStruct, frozen=True):
    """Everything but address, run and head that an invitation's text holds."""

    secret: bytes
    """Seed of the one-time key, 32 bytes."""
    certificate: Certificate
    entries: tuple[Entry, ...]
    """From below a root down to the sponsor."""
    addresses: tuple[str, ...]
    """More peers to try: the sponsor may be away."""


INVITATION_ADDRESSES_MAX = 4
"""Addresses in an invitation besides the link's: one living peer is enough."""

INVITATION_BYTES_MAX = (
    DEPTH_MAX * 360 + 512 + INVITATION_ADDRESSES_MAX * (limits.ADDRESS_CHARACTERS_MAX + 8)
)


def proof_bytes(run_id: Digest, newcomer: bytes) -> bytes:
    """Returns the bytes that the one-time key signs to let a newcomer in."""
    return b"gossamer newcomer 1:" + run_id + newcomer


def decode_claim(data: bytes | bytearray) -> Claim:
    """A claim whose values are in range; no signature is checked. Raises MalformedError or
    OversizedError for anything else."""
    claim = _decode(data, Claim, CLAIM_BYTES_MAX)
    _check_entries(claim.entries, PROOF_ENTRIES_MAX)
    if claim.certificate is not None:
        check_certificate(claim.certificate)
        _check_length("proof", claim.proof, SIGNATURE_BYTES)
    elif claim.proof:
        raise MalformedError("a proof without a certificate")
    return claim


def decode_welcomed(data: bytes | bytearray) -> Welcomed:
    """An answer whose values are in range; no signature is checked. Raises MalformedError or
    OversizedError for anything else."""
    welcomed = _decode(data, Welcomed, 2 * CLAIM_BYTES_MAX + 4 * PROBLEM_CHARACTERS_MAX)
    if len(welcomed.problem) > PROBLEM_CHARACTERS_MAX:
        raise OversizedError(f"a reason of {len(welcomed.problem)} characters")
    _check_entries(welcomed.yours, PROOF_ENTRIES_MAX)
    _check_entries(welcomed.mine, PROOF_ENTRIES_MAX)
    return welcomed


def decode_page(
    data: bytes | bytearray, bytes_max: int = limits.FRAME_MESSAGE_BYTES_MAX
) -> RollPage:
    """A page whose values are in range; no signature is checked. Raises MalformedError or
    OversizedError for anything else."""
    page = _decode(data, RollPage, bytes_max)
    for entry in page.entries:
        check_entry(entry)
    for revocation in page.revocations:
        check_revocation(revocation)
    return page


def decode_revocation(data: bytes | bytearray) -> Revocation:
    """A revocation whose values are in range; its signature is not checked. Raises MalformedError
    or OversizedError for anything else."""
    revocation = _decode(data, Revocation, limits.KIB)
    check_revocation(revocation)
    return revocation


def decode_invitation(data: bytes) -> Invitation:
    """An invitation whose values are in range; no signature is checked. Raises MalformedError or
    OversizedError for anything else."""
    invitation = _decode(data, Invitation, INVITATION_BYTES_MAX)
    _check_length("secret", invitation.secret, PUBLIC_KEY_BYTES)
    check_certificate(invitation.certificate)
    _check_entries(invitation.entries, DEPTH_MAX)
    if len(invitation.addresses) > INVITATION_ADDRESSES_MAX or any(
        len(address) > limits.ADDRESS_CHARACTERS_MAX for address in invitation.addresses
    ):
        raise OversizedError("an invitation with too many or too long addresses")
    return invitation


def check_certificate(certificate: Certificate) -> None:
    """Raises MalformedError for a value that no certificate has."""
    _check_length("sponsor", certificate.sponsor, PUBLIC_KEY_BYTES)
    _check_length("one-time key", certificate.key, PUBLIC_KEY_BYTES)
    _check_length("certificate's signature", certificate.signature, SIGNATURE_BYTES)
    _check_range("slots", certificate.slots, 1, SLOTS_MAX)
    _check_range("expiry", certificate.expires_unix_seconds, 0, UNIX_SECONDS_MAX)
    _check_range("depth", certificate.depth, 0, DEPTH_MAX - 1)


def check_entry(entry: Entry) -> None:
    """Raises MalformedError for a value that no entry has."""
    check_certificate(entry.certificate)
    _check_length("newcomer", entry.newcomer, PUBLIC_KEY_BYTES)
    _check_length("proof", entry.proof, SIGNATURE_BYTES)
    _check_length("witness", entry.witness, PUBLIC_KEY_BYTES)
    _check_length("entry's signature", entry.signature, SIGNATURE_BYTES)
    _check_range("time of entry", entry.unix_seconds, 0, UNIX_SECONDS_MAX)


def check_revocation(revocation: Revocation) -> None:
    """Raises MalformedError for a value that no revocation has."""
    _check_length("revoker", revocation.revoker, PUBLIC_KEY_BYTES)
    _check_length("target", revocation.target, PUBLIC_KEY_BYTES)
    _check_length("revocation's signature", revocation.signature, SIGNATURE_BYTES)


def _check_entries(entries: tuple[Entry, ...], most: int) -> None:
    if len(entries) > most:
        raise OversizedError(f"{len(entries)} entries; at most {most}")
    for entry in entries:
        check_entry(entry)


def _check_length(what: str, value: bytes, num_bytes: int) -> None:
    if len(value) != num_bytes:
        raise MalformedError(f"{what} has {len(value)} bytes, not {num_bytes}")


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise MalformedError(f"{what} is {value}; allowed: {low} to {high}")


def _decode(data: bytes | bytearray, kind: type[_Struct], bytes_max: int) -> _Struct:
    name = kind.__name__.lower()
    if len(data) > bytes_max:
        raise OversizedError(f"the {name} has {len(data)} bytes; at most {bytes_max}")
    try:
        message = msgspec.msgpack.decode(data, type=kind)
    except DECODING_ERRORS as error:
        raise MalformedError(f"it is no {name}: {error}") from error
    if to_msgpack(message) != data:
        raise MalformedError(f"the {name} is not in canonical form")
    return message
