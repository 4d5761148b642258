"""One exchange by which members of an invite-only run come to hold the same signed pieces.

The caller asks whether the other one holds the same, and fetches what is missing at its own end
(`protocol.wire.piece_messages`). Nothing is checked here but lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gossamer.node.network.frames import asked, receive_frame, send_frame
from gossamer.node.network.transport import Stream, Transport
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.wire.piece_messages import decode_digests


class Pieces(Protocol):
    """The pieces that one node holds."""

    def digest(self) -> Digest:
        """Returns the digest of all: two nodes that hold the same have the same."""

    def digests(self) -> Sequence[Digest]:
        """Returns the digests of the single pieces."""


@dataclass(frozen=True)
class PieceExchange:
    """Both ends of the exchange, for one kind of pieces."""

    protocol: str
    held: Pieces
    encoded: Callable[[Collection[Digest]], bytes]
    """The page with the pieces of these digests, as far as it has room."""
    pieces_max: int
    """Digests that one exchange names."""

    async def pull(self, transport: Transport, peer: PeerId) -> bytearray | None:
        """Returns a page with the pieces of a peer that are missing here, unchecked; None if none
        are.

        Raises:
            TransportError: the peer cannot be asked.
            RemoteProtocolError: its answer is not valid.
        """
        async with asked(transport, peer, self.protocol, self.held.digest()) as stream:
            _, listed = await receive_frame(
                stream, message_bytes_max=0, payload_bytes_max=self.pieces_max * DIGEST_BYTES
            )
            held = set(self.held.digests())
            theirs = decode_digests(listed, self.pieces_max)
            wanted = [each for each in theirs if each not in held]
            if not wanted:
                return None
            await send_frame(stream, b"", b"".join(wanted))
            message, _ = await receive_frame(stream, payload_bytes_max=0)
        return message

    async def answer(self, stream: Stream) -> None:
        """Answers a peer that pulls.

        Raises:
            StreamClosed: the stream ended.
            RemoteProtocolError: the peer sent what the protocol does not allow.
        """
        digest, _ = await receive_frame(stream, message_bytes_max=DIGEST_BYTES, payload_bytes_max=0)
        if len(digest) != DIGEST_BYTES:
            raise MalformedError(f"a digest of {len(digest)} bytes in {self.protocol}")
        if bytes(digest) == self.held.digest():
            await send_frame(stream, b"")
            return
        await send_frame(stream, b"", b"".join(self.held.digests()[: self.pieces_max]))
        _, wanted = await receive_frame(
            stream, message_bytes_max=0, payload_bytes_max=self.pieces_max * DIGEST_BYTES
        )
        page = self.encoded(frozenset(decode_digests(wanted, self.pieces_max)))
        await send_frame(stream, page)
