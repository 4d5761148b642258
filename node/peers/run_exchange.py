"""The exchange by which a newcomer that knows only an address learns its run.

`protocol.wire.run_messages` has the messages.

The manifest is checked with its founder's signature, so a peer that hands it on cannot change it.
"""

from __future__ import annotations

import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import verify
from gossamer.node.network.transport import (
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
    """Asks the peers at these addresses for their run, until one answers.

    Raises:
        JoinError: none can be reached, or the run is not the wanted one, or nothing that this
            version understands.
    """
    problems: list[str] = []
    for address in addresses:
        try:
            with trio.fail_after(REQUEST_SECONDS):
                peer = await transport.connect(address)
                signed = await _request(transport, peer)
            manifest = open_signed_manifest(signed)
        except trio.TooSlowError:
            problems.append(f"{address}: no answer in {REQUEST_SECONDS:.0f} s")
            continue
        except ProtocolRefused:
            problems.append(
                f"{address}: the peer there is in no run that this version of Gossamer speaks; "
                "compare `gossamer --version` on both sides"
            )
            continue
        except ConnectError as error:
            problems.append(str(error))
            continue
        except (TransportError, RemoteProtocolError) as error:
            problems.append(f"{address}: {error}")
            continue
        if run_id is not None and manifest.run_id != run_id:
            raise JoinError(
                f"{address} is in run {short(manifest.run_id)}..., and the link says "
                f"{short(run_id)}...: ask for a new link, or leave out what follows the #"
            )
        return signed
    raise JoinError("cannot join: " + "\n  ".join(problems))


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
