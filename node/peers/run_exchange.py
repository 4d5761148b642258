"""The exchange by which a newcomer that knows only an address learns its run.

`protocol.wire.run_messages` has the messages.

The manifest is checked with its founder's signature, so a peer that hands it on cannot change it.
"""

from __future__ import annotations

import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import verify
from gossamer.node.network.racing import RaceLost, race
from gossamer.node.network.transport import (
    RACE_SECONDS,
    ConnectError,
    ProtocolRefused,
    Stream,
    Transport,
    TransportError,
)
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, short
from gossamer.protocol.manifest import Manifest, SignedManifest, decode_manifest, signing_bytes
from gossamer.protocol.wire.run_messages import (
    RUN_PROTOCOL,
    RUN_REPLY_BYTES_MAX,
    decode_signed_manifest,
    encode_signed_manifest,
)

REQUEST_SECONDS = 30.0
"""A manifest with its data index by digest is a few KiB; 30 s is a very bad line."""


class JoinError(Exception):
    """This node cannot join; the text says why and what to do."""


def open_signed_manifest(signed: SignedManifest) -> Manifest:
    """The manifest inside, after every value and the founder's signature were checked.

    Raises:
        MalformedError: not a manifest, or not one that this version can train.
        ForgedError: not signed by the founder that it names.
    """
    manifest = decode_manifest(signed.manifest)
    run_id = digest_of(signed.manifest)
    if not verify(PeerId(manifest.founder), signing_bytes(run_id), signed.signature):
        raise ForgedError("manifest that its founder did not sign")
    return manifest


def serve_manifest(transport: Transport, signed: SignedManifest) -> None:
    """Answers newcomers."""
    data = encode_signed_manifest(signed)

    async def serve(stream: Stream) -> None:
        with trio.move_on_after(REQUEST_SECONDS):
            await receive_frame(stream, message_bytes_max=0, payload_bytes_max=0)
            await send_frame(stream, b"", data)

    transport.handle(RUN_PROTOCOL, serve)


async def request_manifest(
    transport: Transport, addresses: tuple[str, ...], run_id: Digest | None
) -> SignedManifest:
    """Asks the peers at these addresses for their run: the first one that answers decides.

    Addresses are tried `RACE_SECONDS` apart, so one where no peer is costs little.

    Raises:
        JoinError: none can be reached, or the run is not the wanted one, or nothing that this
            version understands.
    """

    async def ask(address: str) -> SignedManifest:
        try:
            with trio.fail_after(REQUEST_SECONDS):
                signed = await _request(transport, await transport.connect(address))
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
        raise JoinError("cannot join: " + "\n  ".join(map(str, lost.failures))) from None
    found = open_signed_manifest(signed).run_id
    if run_id is not None and found != run_id:
        raise JoinError(
            f"{address} is in run {short(found)}..., and the link says "
            f"{short(run_id)}...: ask for a new link, or leave out what follows the #"
        )
    return signed


async def _request(transport: Transport, peer: PeerId) -> SignedManifest:
    stream = await transport.open_stream(peer, RUN_PROTOCOL)
    try:
        await send_frame(stream, b"")
        _, payload = await receive_frame(
            stream, message_bytes_max=0, payload_bytes_max=RUN_REPLY_BYTES_MAX
        )
    finally:
        with trio.CancelScope(shield=True):
            await stream.reset()
    return decode_signed_manifest(payload)
