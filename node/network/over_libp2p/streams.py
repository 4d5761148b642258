"""The streams of the transport: opened, handed to handlers, and counted by protocol."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection

import trio
from libp2p.abc import INetConn
from libp2p.custom_types import TProtocol
from libp2p.network.stream.net_stream import NetStream
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.stream_muxer.exceptions import MuxedStreamError

from gossamer.node.network.counted import counted
from gossamer.node.network.over_libp2p.addresses import peer_id_of, why
from gossamer.node.network.over_libp2p.gossip.pubsub import GOSSIP_PREFIX
from gossamer.node.network.over_libp2p.negotiation import GuardedHost, agreement_on
from gossamer.node.network.over_libp2p.yamux.stream import YamuxStream
from gossamer.node.network.transport import (
    ORDINARY_ENDS,
    Bytes,
    ConnectError,
    ProtocolRefused,
    Stream,
    StreamClosed,
    StreamHandler,
    reason_of,
)
from gossamer.protocol.ids import PeerId


class Libp2pStream(Stream):
    """One stream of py-libp2p. The interface describes its methods."""

    def __init__(
        self,
        net_stream: NetStream,
        muxed: YamuxStream,
        protocol: str,
        agreement: Collection[bytes] = (),
    ) -> None:
        """`agreement`: the words that ask for the protocol, piece by piece, where it was not asked
        for yet. They go out with the first bytes. A peer that speaks the protocol says the same
        before anything else."""
        self._net_stream = net_stream
        self._agreement = deque(agreement)
        muxed.put_first(b"".join(agreement))
        self._muxed = muxed
        self._protocol = protocol
        self._peer_id = peer_id_of(muxed.conn.peer_id)

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def protocol(self) -> str:
        return self._protocol

    async def send(self, *parts: Bytes) -> None:
        try:
            await self._muxed.send(*parts)
        except MuxedStreamError as error:
            raise self._closed(error) from None

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        try:
            if self._agreement:
                self._muxed.push()
            while self._agreement:
                piece = self._agreement[0]
                if await self._muxed.receive_exactly(len(piece)) != piece:
                    self._muxed.abort()
                    raise MuxedStreamError("the peer does not speak it")
                self._agreement.popleft()
            return await self._muxed.receive_exactly(num_bytes)
        except MuxedStreamError as error:
            raise self._closed(error) from None

    async def close(self) -> None:
        self._muxed.discard()
        await self._net_stream.close()

    async def reset(self) -> None:
        self._muxed.abort()
        with trio.CancelScope(shield=True):  # only bookkeeping, nothing here waits for the peer
            await self._net_stream.reset()

    def _closed(self, error: MuxedStreamError) -> StreamClosed:
        return StreamClosed(f"{self._protocol} with {self._peer_id}: {error}")


logger = logging.getLogger(__name__)

# Two round trips, on a peer that may be busy with a batch of bulk data.
OPEN_STREAM_SECONDS_MAX = 10.0
# For the goodbye of a handler whose other side may be gone.
HANDLER_CLOSE_SECONDS_MAX = 5.0


class Streams:
    """Opens streams to peers, and runs the handlers of those that peers open."""

    def __init__(self, host: GuardedHost) -> None:
        self._host = host
        self._traffic: dict[str, list[int]] = {}
        host.count_stream = self._count

    async def open_on(
        self, connection: INetConn, peer_id: PeerId, protocol: str, *, at_once: bool = False
    ) -> Stream:
        """Opens a stream on a connection, see `Transport.open_stream`."""
        what = f"stream {protocol} to {peer_id}"
        agreement: tuple[bytes, ...] = ()
        stream: NetStream | None = None
        try:
            with trio.fail_after(OPEN_STREAM_SECONDS_MAX):
                stream = await connection.new_stream()  # type: ignore[assignment]
                assert stream is not None
                if at_once:
                    agreement = agreement_on(protocol)
                else:
                    await self._host.multiselect_client.select_one_of(
                        [TProtocol(protocol)],
                        MultiselectCommunicator(stream),
                        int(OPEN_STREAM_SECONDS_MAX * 2),  # the deadline above counts
                    )
        except BaseException as error:
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await stream.reset()
            if isinstance(error, trio.TooSlowError):
                seconds = f"{OPEN_STREAM_SECONDS_MAX:.0f} s"
                raise ConnectError(f"{what}: no answer in {seconds}") from None
            if isinstance(error, MultiselectClientError) and "not supported" in str(error):
                raise ProtocolRefused(f"{what}: the peer does not speak it") from None
            if isinstance(error, Exception):
                raise ConnectError(f"{what}: {why(error)}") from error
            raise
        stream.set_protocol(TProtocol(protocol))
        self._host.count(stream)
        assert isinstance(stream.muxed_stream, YamuxStream)
        return Libp2pStream(stream, stream.muxed_stream, protocol, agreement)

    def handle(self, protocol: str, handler: StreamHandler, streams_per_peer_max: int) -> None:
        num_open = Counter[PeerId]()

        async def run(net_stream: NetStream) -> None:
            assert isinstance(net_stream.muxed_stream, YamuxStream)
            self._host.count(net_stream)
            stream = Libp2pStream(net_stream, net_stream.muxed_stream, protocol)
            try:
                with counted(num_open, stream.peer_id) as number:
                    if number > streams_per_peer_max:
                        raise StreamClosed(f"the peer has {streams_per_peer_max} open already")
                    await handler(stream)
            except ORDINARY_ENDS as error:
                logger.debug("%s with %s ends: %s", protocol, stream.peer_id, reason_of(error))
                await stream.reset()
            except Exception:
                logger.exception("handler of %s failed with peer %s", protocol, stream.peer_id)
                await stream.reset()
            except BaseException:
                await stream.reset()
                raise
            else:
                with trio.move_on_after(HANDLER_CLOSE_SECONDS_MAX) as scope:
                    await stream.close()
                if scope.cancelled_caught:
                    await stream.reset()

        self._host.set_stream_handler(TProtocol(protocol), run)  # type: ignore[arg-type]

    def _count(self, protocol: str, stream: YamuxStream) -> None:
        """Let `stream` add its bytes to its protocol's sum, also those that came before now."""
        key = "gossip" if protocol.startswith(GOSSIP_PREFIX) else protocol
        counter = self._traffic.setdefault(key, [0, 0])
        if stream.traffic is not counter:
            counter[0] += stream.traffic[0]
            counter[1] += stream.traffic[1]
            stream.traffic = counter

    def traffic(self) -> dict[str, tuple[int, int]]:
        return {key: (sent, received) for key, (sent, received) in sorted(self._traffic.items())}
