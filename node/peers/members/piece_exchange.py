"""One exchange by which members of an invite-only run come to hold the same signed pieces.

The caller asks whether the other one holds the same, and fetches what is missing at its own end
(`protocol.wire.piece_messages`). Nothing is checked here but lengths.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gossamer.node.network.frames import asked, receive_frame, send_frame
from gossamer.node.network.transport import Stream, Transport
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.wire.piece_messages import decode_digests


class Pieces(Protocol):
    """The pieces of one kind that a node holds: a `Roll`, or `Expulsions`."""

    def digest(self) -> Digest:
        """Returns the digest of all: two nodes that hold the same have the same."""

    def digests(self) -> Sequence[Digest]:
        """Returns the digests of the single pieces."""

    def pieces(self, digests: Collection[Digest], /) -> msgspec.Struct:
        """Returns the page with the pieces of these digests, as far as it has room."""


async def pull_pieces(
    transport: Transport, peer: PeerId, protocol: str, held: Pieces, pieces_max: int
) -> bytearray | None:
    """Returns a page with the pieces of a peer that are missing here, unchecked; None if none are.

    Args:
        pieces_max: digests that one exchange names.

    Raises:
        TransportError: the peer cannot be asked.
        RemoteProtocolError: its answer is not valid.
    """
    async with asked(transport, peer, protocol, held.digest()) as stream:
        _, listed = await receive_frame(
            stream, message_bytes_max=0, payload_bytes_max=pieces_max * DIGEST_BYTES
        )
        mine = set(held.digests())
        wanted = [each for each in decode_digests(listed, pieces_max) if each not in mine]
        if not wanted:
            return None
        await send_frame(stream, b"", b"".join(wanted))
        message, _ = await receive_frame(stream, payload_bytes_max=0)
    return message


async def serve_pieces(stream: Stream, held: Pieces, pieces_max: int) -> None:
    """Answers a peer that pulls.

    Raises:
        StreamClosed: the stream ended.
        RemoteProtocolError: the peer sent what the protocol does not allow.
    """
    digest, _ = await receive_frame(stream, message_bytes_max=DIGEST_BYTES, payload_bytes_max=0)
    if len(digest) != DIGEST_BYTES:
        raise MalformedError(f"a digest of {len(digest)} bytes in {stream.protocol}")
    if bytes(digest) == held.digest():
        await send_frame(stream, b"")
        return
    await send_frame(stream, b"", b"".join(held.digests()[:pieces_max]))
    _, wanted = await receive_frame(
        stream, message_bytes_max=0, payload_bytes_max=pieces_max * DIGEST_BYTES
    )
    page = held.pieces(frozenset(decode_digests(wanted, pieces_max)))
    await send_frame(stream, to_msgpack(page))
