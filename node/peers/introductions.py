"""The questions of a newcomer, or of a member that is not known yet, on ``/gossamer/admit/1``."""

from __future__ import annotations

import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport
from gossamer.protocol.ids import Digest, PeerId, public_key_of
from gossamer.protocol.wire.invitation_messages import (
    CLAIM_BYTES_MAX,
    PROBLEM_CHARACTERS_MAX,
    Claim,
    Invitation,
    RollPage,
    Welcomed,
    decode_welcomed,
    encode,
    proof_bytes,
)
from gossamer.protocol.wire.run_messages import ADMIT_PROTOCOL

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
    stream = await transport.open_stream(peer, ADMIT_PROTOCOL)
    try:
        await send_frame(stream, encode(claim))
        message, _ = await receive_frame(
            stream, message_bytes_max=WELCOMED_BYTES_MAX, payload_bytes_max=0
        )
    finally:
        with trio.CancelScope(shield=True):
            await stream.reset()
    return decode_welcomed(message)


class Applicant:
    """A newcomer with an invitation, and what the peers that let it in have told it."""

    def __init__(self, invitation: Invitation, run_id: Digest, me: PeerId) -> None:
        self._claim = claim_of(invitation, run_id, me)
        self._answers: list[Welcomed] = []

    async def ask(self, transport: Transport, peer: PeerId) -> str:
        """Asks a peer to let this node in. Returns the reason why it does not; empty if it does.

        Raises:
            TransportError, RemoteProtocolError: as `ask_to_come_in`.
        """
        answer = await ask_to_come_in(transport, peer, self._claim)
        if answer.is_admitted:
            self._answers.append(answer)
            return ""
        return answer.problem or "the invitation is not one of its run"

    @property
    def page(self) -> RollPage:
        """The entries that this node was told: its own, and those of the peers that answered."""
        chains = [chain for answer in self._answers for chain in (answer.yours, answer.mine)]
        return RollPage(tuple(dict.fromkeys(each for chain in chains for each in chain)), ())
