"""py-libp2p's streams as `gossamer.node.network.transport.Stream`."""

from __future__ import annotations

import trio
from libp2p.network.stream.net_stream import NetStream
from libp2p.stream_muxer.exceptions import MuxedStreamError

from gossamer.node.network.over_libp2p.addresses import peer_id_of
from gossamer.node.network.over_libp2p.yamux_stream import YamuxStream
from gossamer.node.network.transport import Bytes, StreamClosed
from gossamer.protocol.ids import PeerId


class Libp2pStream:
    """One stream of py-libp2p as a `gossamer.node.network.transport.Stream`."""

    def __init__(self, net_stream: NetStream, muxed: YamuxStream, protocol: str) -> None:
        self._net_stream = net_stream
        self._muxed = muxed
        self._protocol = protocol
        self._peer_id = peer_id_of(muxed.conn.peer_id)

    @property
    def peer_id(self) -> PeerId:
        """The authenticated peer."""
        return self._peer_id

    @property
    def protocol(self) -> str:
        """The negotiated protocol."""
        return self._protocol

    async def send(self, *parts: Bytes) -> None:
        """See `Stream.send`."""
        try:
            await self._muxed.send(*parts)
        except MuxedStreamError as error:
            raise self._closed(error) from None

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        """See `Stream.receive_exactly`."""
        try:
            return await self._muxed.receive_exactly(num_bytes)
        except MuxedStreamError as error:
            raise self._closed(error) from None

    async def close(self) -> None:
        """See `Stream.close`."""
        self._muxed.discard()
        await self._net_stream.close()

    async def reset(self) -> None:
        """See `Stream.reset`."""
        self._muxed.abort()
        with trio.CancelScope(shield=True):  # only bookkeeping, nothing here waits for the peer
            await self._net_stream.reset()

    def _closed(self, error: MuxedStreamError) -> StreamClosed:
        return StreamClosed(f"{self._protocol} with {self._peer_id}: {error}")
