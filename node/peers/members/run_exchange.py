"""The exchange by which a newcomer that knows only an address learns its run.

`protocol.wire.run_messages` has the messages.

The manifest is checked with its founder's signature, so a peer that hands it on cannot change it.
"""

from __future__ import annotations

import trio

from gossamer.node.network.frames import asked, receive_frame, receive_message, send_frame
from gossamer.node.network.racing import RaceLost, race
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import (
    RACE_SECONDS,
    ConnectError,
    PeerTest,
    ProtocolRefused,
    Stream,
    Transport,
    TransportError,
)
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.peers.members.introductions import Applicant
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest, SignedManifest
from gossamer.protocol.wire.run_messages import (
    ADMIT_PROTOCOL,
    ADMIT_REPLY_BYTES_MAX,
    RUN_PROTOCOL,
    RUN_REPLY_BYTES_MAX,
    Admitted,
    decode_admitted,
    decode_signed_manifest,
)

REQUEST_SECONDS = 30.0
"""A manifest with its data index by digest is a few KiB; 30 s is a very bad line."""


class JoinError(Exception):
    """This node cannot join; the text says why and what to do."""


class NotAdmittedError(JoinError):
    """The run does not admit this node."""


class UnreachableError(JoinError):
    """No peer at the given addresses tells its run. `reasons` says of each address why."""

    def __init__(self, reasons: str) -> None:
        super().__init__(f"cannot join: {reasons}")
        self.reasons = reasons


class WrongRunError(JoinError):
    """The peers are in another run than the link says."""


def serve_manifest(transport: Transport, signed: SignedManifest, uploads: Uploads) -> None:
    """Answers newcomers.

    Args:
        uploads: the order in which peers are served.
    """
    data = to_msgpack(signed)

    async def serve(stream: Stream) -> None:
        with trio.move_on_after(REQUEST_SECONDS):
            await receive_message(stream, 0)
            await uploads.turn(stream.peer_id, len(data), "records")
            await send_frame(stream, b"", data)

    transport.handle(RUN_PROTOCOL, serve)


def serve_admission(transport: Transport, admits: PeerTest) -> None:
    """Tells every peer whether the run admits it, and serves strangers nothing else.

    Call it before any other protocol is served.
    """

    async def serve(stream: Stream) -> None:
        with trio.move_on_after(REQUEST_SECONDS):
            await receive_message(stream, 0)
            await send_frame(stream, to_msgpack(Admitted(admits(stream.peer_id))))

    transport.admit(admits)
    transport.handle(ADMIT_PROTOCOL, serve, for_strangers=True)


async def request_manifest(
    transport: Transport,
    addresses: tuple[str, ...],
    run_id: Digest | None,
    applicant: Applicant | None = None,
) -> SignedManifest:
    """Asks the peers at these addresses for their run: the first one that answers decides.

    Addresses are tried `RACE_SECONDS` apart, so one where no peer is costs little.

    Args:
        applicant: shows the peers the invitation of this node.

    Raises:
        NotAdmittedError: a peer was reached, and its run does not admit this node.
        JoinError: none can be reached, or the run is not the wanted one, or nothing that this
            version understands.
    """

    async def ask(address: str) -> SignedManifest:
        try:
            with trio.fail_after(REQUEST_SECONDS):
                peer = await transport.connect(address)
                await _require_let_in(transport, peer, address, applicant)
                signed = await _request(transport, peer)
            open_signed_manifest(signed)
        except trio.TooSlowError:
            raise JoinError(f"{address}: no answer in {REQUEST_SECONDS:.0f} s") from None
        except ProtocolRefused:
            raise JoinError(
                f"{address}: the peer there is in no run that this version of Gossamer speaks; "
                "compare `gossamer --version` on both sides"
            ) from None
        except ConnectError as error:
            raise JoinError(str(error)) from error
        except (TransportError, RemoteProtocolError) as error:
            raise JoinError(f"{address}: {error}") from error
        return signed

    try:
        address, signed = await race(ask, addresses, RACE_SECONDS, JoinError)
    except RaceLost as lost:
        for failure in lost.failures:
            if isinstance(failure, NotAdmittedError):
                raise failure from None
        raise UnreachableError("\n  ".join(map(str, lost.failures))) from None
    found = open_signed_manifest(signed).run_id
    if run_id is not None and found != run_id:
        raise WrongRunError(
            f"{address} is in run {found.hex()}, and the link says {run_id.hex()}: ask for a new "
            "link, or leave out what follows the #"
        )
    return signed


async def _require_let_in(
    transport: Transport, peer: PeerId, address: str, applicant: Applicant | None
) -> None:
    """Raises NotAdmittedError if a peer does not let this node in, or as its questions do."""
    if applicant is not None:
        if problem := await applicant.ask(transport, peer):
            raise NotAdmittedError(
                f"the peer at {address} does not let this node in ({transport.peer_id}): "
                f"{problem}. Ask for another invitation"
            )
    elif not await _is_admitted(transport, peer):
        raise NotAdmittedError(
            f"the run of the peer at {address} does not admit this node. Its id is "
            f"{transport.peer_id}: the founder of the run has to name it, or a member has to send "
            "an invitation (`gossamer invite`)"
        )


def require_admitted(manifest: Manifest, me: PeerId) -> None:
    """Raises NotAdmittedError if a run does not admit this node."""
    if not admits(manifest, me):
        raise NotAdmittedError(
            f"the run {manifest.name} admits only the peers that its founder named, and this node "
            f"({me}) is not among them: its work would count nowhere"
        )


def admits(manifest: Manifest, peer: PeerId) -> bool:
    """Returns whether a run admits a peer."""
    return manifest.admission == "open" or peer in manifest.allowed


async def _is_admitted(transport: Transport, peer: PeerId) -> bool:
    """Asks a peer whether its run admits this node."""
    async with asked(transport, peer, ADMIT_PROTOCOL, b"") as stream:
        message = await receive_message(stream, ADMIT_REPLY_BYTES_MAX)
    return decode_admitted(message).is_admitted


async def _request(transport: Transport, peer: PeerId) -> SignedManifest:
    async with asked(transport, peer, RUN_PROTOCOL, b"") as stream:
        _, payload = await receive_frame(
            stream, message_bytes_max=0, payload_bytes_max=RUN_REPLY_BYTES_MAX
        )
    return decode_signed_manifest(payload)
