"""The questions of a newcomer, or of a member that is not known yet, and those about the roll."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import trio

from gossamer.node.network.frames import asked, receive_message
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport, TransportError
from gossamer.node.peers.members.piece_exchange import pull_pieces
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, public_key_of
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.wire.invitation_messages import (
    CLAIM_BYTES_MAX,
    PIECES_MAX,
    PROBLEM_CHARACTERS_MAX,
    ROLL_PROTOCOL,
    Claim,
    Invitation,
    RollPage,
    Welcomed,
    decode_page,
    decode_welcomed,
    proof_bytes,
)
from gossamer.protocol.wire.run_messages import ADMIT_PROTOCOL

PIECES_AT_ONCE = 32
"""Pieces whose signatures are checked in one go: some 15 ms."""

ROLL_SECONDS = 30.0
"""Limit of one exchange: two round trips and a page of 256 KiB on a very bad line."""

_Piece = TypeVar("_Piece")

WELCOMED_BYTES_MAX = 2 * CLAIM_BYTES_MAX + 4 * PROBLEM_CHARACTERS_MAX


def claim_of(invitation: Invitation, run_id: Digest, me: PeerId) -> Claim:
    """Returns the claim by which a newcomer uses an invitation: its secret signs the newcomer."""
    secret = Identity.from_seed(invitation.secret)
    proof = secret.sign(proof_bytes(run_id, public_key_of(me)))
    return Claim(invitation.entries, invitation.certificate, proof)


async def ask_to_come_in(transport: Transport, peer: PeerId, claim: Claim) -> Welcomed:
    """Shows a claim to a connected peer and returns its answer, whose signatures are not checked.

    Raises:
        TransportError: the peer cannot be asked.
        RemoteProtocolError: its answer is not valid.
    """
    async with asked(transport, peer, ADMIT_PROTOCOL, to_msgpack(claim)) as stream:
        message = await receive_message(stream, WELCOMED_BYTES_MAX)
    return decode_welcomed(message)


async def pull_roll(transport: Transport, peer: PeerId, roll: Roll) -> list[RollPage]:
    """Returns the pieces of a peer's roll that are missing in `roll`, unchecked, in parts that can
    be checked in a moment each. Each sponsor comes before its newcomers.

    Raises:
        TransportError: the peer cannot be asked.
        RemoteProtocolError: its answer is not valid.
    """
    message = await pull_pieces(transport, peer, ROLL_PROTOCOL, roll, PIECES_MAX)
    if message is None:
        return []
    page = decode_page(message)
    return [
        *(RollPage(part, ()) for part in _parts(page.entries)),
        *(RollPage((), part) for part in _parts(page.revocations)),
    ]


def _parts(pieces: tuple[_Piece, ...]) -> list[tuple[_Piece, ...]]:
    return [
        pieces[start : start + PIECES_AT_ONCE] for start in range(0, len(pieces), PIECES_AT_ONCE)
    ]


class Applicant:
    """A newcomer with an invitation, and what the peers that let it in have told it."""

    def __init__(self, invitation: Invitation, run_id: Digest, me: PeerId) -> None:
        self._claim = claim_of(invitation, run_id, me)
        self._answers: dict[PeerId, Welcomed] = {}

    async def ask(self, transport: Transport, peer: PeerId) -> str:
        """Asks a peer to let this node in. Returns the reason why it does not; empty if it does.

        Raises:
            TransportError, RemoteProtocolError: as `ask_to_come_in`.
        """
        answer = await ask_to_come_in(transport, peer, self._claim)
        if answer.is_admitted:
            self._answers[peer] = answer
            return ""
        return answer.problem or "the invitation is not one of its run"

    async def learn(self, transport: Transport, roll: Roll) -> None:
        """Fills a roll with what the peers know that have let this node in.

        Raises:
            TransportError: none of them can be asked any more.
            RemoteProtocolError: one of them sent a false piece.
        """
        for peer, answer in self._answers.items():
            roll.add(RollPage((*answer.yours, *answer.mine), ()))
            with trio.move_on_after(ROLL_SECONDS), suppress(TransportError):
                for page in await pull_roll(transport, peer, roll):
                    roll.add(page)
                    await trio.lowlevel.checkpoint()
