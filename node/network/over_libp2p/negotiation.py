"""Bounds the reads of py-libp2p 0.8.1 while two sides agree on a protocol.

Agreement happens three times: on the secure channel over bare TCP, on the muxer, and on the
protocol of every stream. See `over_libp2p.guards` for how guards are put in and tested.
`Doors` says which protocols of streams a peer is offered, and `GuardedHost` agrees on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio
from libp2p.abc import IMuxedConn, INetStream, ISecureConn
from libp2p.custom_types import TMuxerOptions, TProtocol
from libp2p.exceptions import ParseError
from libp2p.host.basic_host import BasicHost
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import IOException
from libp2p.network.stream.exceptions import StreamEOF, StreamReset
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import (
    MultiselectClientError,
    MultiselectCommunicatorError,
    MultiselectError,
)
from libp2p.protocol_muxer.generic_selector import GenericMultistreamSelector
from libp2p.protocol_muxer.multiselect import (
    MULTISELECT_PROTOCOL_ID,
    PROTOCOL_NOT_FOUND_MSG,
    Multiselect,
)
from libp2p.protocol_muxer.multiselect_client import (
    DEFAULT_NEGOTIATE_TIMEOUT,
    MultiselectClient,
)
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.utils import encode_delim

from gossamer.node.network.over_libp2p.congestion import LineRate
from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.over_libp2p.noise import NoiseSession
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.stream import YamuxStream

logger = logging.getLogger(__name__)

# The longest protocol id here has 31 bytes; multistream-select names no limit of its own.
MESSAGE_BYTES_MAX = 1024
# A message is read in some three calls, and who knows what it wants says so in its second message.
READS_MAX = 256


class _BoundedReader:
    """Reads of one negotiation.

    Symptom: py-libp2p reads a message of whatever length its prefix says, up to 2**64 bytes, before
    it looks at it: one peer that has not even said who it is fills the memory.
    """

    def __init__(self, inner: ReadWriteCloser) -> None:
        self._inner = inner
        self._reads_left = READS_MAX

    async def read(self, n: int | None = None) -> bytes:
        self._reads_left -= 1
        if n is None or n > MESSAGE_BYTES_MAX or self._reads_left < 0:
            raise ParseError(f"a negotiation reads {n} bytes, or has gone on for too long")
        return await self._take(n)

    async def _take(self, n: int) -> bytes:
        return await self._inner.read(n)

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)

    async def flush(self) -> None:
        """Sends what is held back."""


class _BoundedStream(_BoundedReader):
    """The same for a stream of yamux, in few turns of its task.

    Symptom: py-libp2p's stream takes a lock for each read and each write, and each lock gives other
    tasks a turn. A message of the negotiation is read in three calls. So to agree on a protocol
    took more turns than what the stream was opened for.

    What is written while more of the other side is here already waits for the answer to that. So
    greeting and answer go out together, and neither side waits for the other one longer than it
    would.
    """

    def __init__(self, stream: NetStream, muxed: YamuxStream) -> None:
        super().__init__(stream)
        self._muxed = muxed
        self._unsent = b""

    async def _take(self, n: int) -> bytes:
        if not self._muxed.has_unread:
            await self.flush()
        try:
            return await self._muxed.read(n)
        except MuxedStreamEOF as error:
            raise StreamEOF from error
        except MuxedStreamError as error:
            raise StreamReset from error

    async def write(self, data: bytes) -> None:
        self._unsent += data
        if not self._muxed.has_unread:
            await self.flush()

    async def flush(self) -> None:
        unsent, self._unsent = self._unsent, b""
        if not unsent:
            return
        try:
            await self._muxed.send(unsent)
        except MuxedStreamError as error:
            raise StreamReset from error


def _bound(communicator: object) -> _BoundedReader | None:
    """Bounds what is read, and returns what reads and writes from now on."""
    if not isinstance(communicator, MultiselectCommunicator):
        return None
    inner = communicator.read_writer
    if isinstance(inner, _BoundedReader):
        return inner
    if isinstance(inner, NetStream) and isinstance(inner.muxed_stream, YamuxStream):
        bounded: _BoundedReader = _BoundedStream(inner, inner.muxed_stream)
    else:
        bounded = _BoundedReader(inner)
    communicator.read_writer = bounded  # type: ignore[assignment]
    return bounded


class _BoundedMultiselect(Multiselect):
    async def negotiate(self, communicator: Any, *args: Any, **kwargs: Any) -> Any:
        """Does what py-libp2p's method does, with bounded reads."""
        bounded = _bound(communicator)
        agreed = await super().negotiate(communicator, *args, **kwargs)
        if bounded is not None:
            await _flushed(bounded)
        return agreed


async def _flushed(bounded: _BoundedReader) -> None:
    """Sends what a negotiation held back."""
    try:
        await bounded.flush()
    except IOException as error:
        raise MultiselectError("the stream ended before the answer was out") from error


class Doors:
    """The protocols that a peer is offered: all of them, or only those that strangers are served.

    They stay the same while a connection lives, as long as `admits` does not change its mind.
    """

    def __init__(self) -> None:
        self.admits: Callable[[ID], bool] = lambda _peer: True
        """Returns whether a peer is no stranger."""
        self.for_strangers: set[TProtocol] = set()


class _DoorKeeper(_BoundedMultiselect):
    """Agrees on the protocols of streams that others open."""

    def __init__(self, handlers: dict[TProtocol | None, Any], doors: Doors) -> None:
        super().__init__(handlers)
        self._doors = doors

    async def negotiate(self, communicator: Any, *args: Any, **kwargs: Any) -> Any:
        """Does what py-libp2p's method does, with the protocols that are open to the caller."""
        if self._doors.admits(communicator.read_writer.muxed_conn.peer_id):
            return await super().negotiate(communicator, *args, **kwargs)
        offered: dict[TProtocol | None, Any] = {
            protocol: handler
            for protocol, handler in self.handlers.items()
            if protocol in self._doors.for_strangers
        }
        return await _BoundedMultiselect(offered).negotiate(communicator, *args, **kwargs)


class _BoundedMultiselectClient(MultiselectClient):
    async def select_one_of(self, protocols: Any, communicator: Any, *args: Any) -> Any:
        """Does what py-libp2p's method does, with bounded reads."""
        _bound(communicator)
        return await super().select_one_of(protocols, communicator, *args)


class _StreamClient(_BoundedMultiselectClient):
    """Asks for the protocol of a stream without a wait for the other side's greeting.

    Both sides greet each other unasked, and what is asked for does not depend on the greeting. So a
    stream begins one round trip earlier, with the same bytes.
    """

    async def select_one_of(self, protocols: Any, communicator: Any, *args: Any) -> Any:
        """Does what py-libp2p's method does, with greeting and question in one message."""
        if len(protocols) != 1:
            return await super().select_one_of(protocols, communicator, *args)
        _bound(communicator)
        [wanted] = protocols
        answer = None
        with trio.move_on_after(*(args or (DEFAULT_NEGOTIATE_TIMEOUT,))):
            answer = await _ask_for(wanted, communicator)
        if answer == wanted:
            return wanted
        if answer == PROTOCOL_NOT_FOUND_MSG:
            raise MultiselectClientError(f"protocols not supported: tried {wanted}")
        what = "response timed out" if answer is None else f"unrecognized response {answer!r}"
        raise MultiselectClientError(f"{what}, protocols tried: {wanted}")


_GREETING = MULTISELECT_PROTOCOL_ID


async def _ask_for(protocol: str, communicator: MultiselectCommunicator) -> str:
    """Returns the answer of the other side, or what it says in the place of a greeting."""
    try:
        await communicator.read_writer.write(b"".join(agreement_on(protocol)))
        greeting = await communicator.read()
        return await communicator.read() if greeting == _GREETING else greeting
    except (IOException, MultiselectCommunicatorError) as error:
        raise MultiselectClientError(f"no agreement on {protocol}: {error}") from error


def agreement_on(protocol: str) -> tuple[bytes, bytes, bytes]:
    """What asks for a protocol, and what the other side answers if it speaks it: the same words.
    The second piece is one byte, in which a refusal differs."""
    asked = _delimited(protocol)
    return _delimited(_GREETING), asked[:1], asked[1:]


def _delimited(message: str) -> bytes:
    """A message of multistream-select: its length, its text, and the end of a line."""
    return bytes(encode_delim(message.encode()))


def bound_selector(selector: GenericMultistreamSelector[Any]) -> None:
    """Bounds what is read to agree on a secure channel or a muxer."""
    selector.multiselect = _BoundedMultiselect(selector.multiselect.handlers)
    selector.multiselect_client = _BoundedMultiselectClient()


class GuardedMuxer(MuxerMultistream):
    """Puts `YamuxConnection` in the place of py-libp2p's yamux.

    Symptoms: a write cancelled while it is blocked in TCP leaves half a frame behind and wedges
    every stream of the connection without a word; a timeout around a read loses the bytes it had
    taken; a peer that ignores its receive window was allowed to push 400 MB into memory; a
    reader that pauses for 5 s makes the writer fail.
    """

    def __init__(self, muxers: TMuxerOptions, liveness: Liveness) -> None:
        super().__init__(muxers)
        self._liveness = liveness
        self._line = LineRate()

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """Agree on yamux and start it."""
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        assert isinstance(conn, NoiseSession)
        return self._annotate_connection(
            YamuxConnection(conn, peer_id, liveness=self._liveness, line=self._line),
            conn,
            protocol,
        )


class GuardedHost(BasicHost):
    """Streams: an exception in a handler costs the stream, never the host."""

    count_stream: Callable[[str, YamuxStream], None] | None = None

    def __init__(self, swarm: Swarm) -> None:
        """Bounds what is read to agree on a stream's protocol, offers what `doors` says, and drops
        one protocol.

        Symptom: by ``/ipfs/id/push/1.0.0`` any peer files any addresses under its id, for good.
        """
        super().__init__(swarm, disable_identify_address_discovery=True)
        self.doors = Doors()
        handlers = self.multiselect.handlers
        kept = {name: handler for name, handler in handlers.items() if name != ID_PUSH}
        self.multiselect = _DoorKeeper(kept, self.doors)
        self.multiselect_client = _StreamClient()

    async def _swarm_stream_handler(self, net_stream: INetStream) -> None:
        """Negotiate and handle one inbound stream.

        Symptom: any exception here, a time-out or a protocol name that is not UTF-8 or garbage on
        ``/meshsub`` included, ends the host with all its connections: any remote can do it. And a
        handler that answers and leaves, as that of identify does, leaves a stream to which the peer
        can send until its window is full, and which it never has to end.
        """
        try:
            await super()._swarm_stream_handler(net_stream)
        except Exception as error:
            logger.info(
                "stream %s from %s dropped: %r",
                net_stream.get_protocol() or "without a protocol",
                net_stream.muxed_conn.peer_id,
                error,
            )
            with trio.CancelScope(shield=True):
                await net_stream.reset()
        muxed_stream = getattr(net_stream, "muxed_stream", None)
        if isinstance(muxed_stream, YamuxStream):
            muxed_stream.discard()

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        """Asks no peer; this node answers the peers that ask it.

        Symptom: py-libp2p asks every peer who it is, in a task outside all nurseries, and files
        whatever addresses it claims; peers here say these things in signed messages of our own.
        """

    async def new_stream(self, peer_id: ID, protocol_ids: Sequence[TProtocol]) -> INetStream:
        """Open a stream and count its bytes."""
        stream = await super().new_stream(peer_id, protocol_ids)
        self.count(stream)
        return stream

    def count(self, net_stream: INetStream) -> None:
        """Let `count_stream` account for a stream whose protocol is known."""
        muxed_stream = getattr(net_stream, "muxed_stream", None)
        if self.count_stream is not None and isinstance(muxed_stream, YamuxStream):
            self.count_stream(str(net_stream.get_protocol()), muxed_stream)
