"""Agreement on protocols by multistream-select, in the place of py-libp2p 0.8.1's.

Agreement happens three times: on the secure channel over bare TCP, on the muxer, and on the
protocol of every stream. See `over_libp2p.guards` for how guards are put in and tested.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio
from libp2p.abc import IMuxedConn, INetStream, ISecureConn
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.io.exceptions import IOException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import (
    MultiselectClientError,
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
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.utils import encode_delim

from gossamer.node.network.over_libp2p.addresses import why
from gossamer.node.network.over_libp2p.delimited import read_delimited, read_exactly
from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.over_libp2p.noise.noise import NoiseSession
from gossamer.node.network.over_libp2p.tcp.congestion import LineRate
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.stream import YamuxStream
from gossamer.protocol.errors import MalformedError, OversizedError, RemoteProtocolError

logger = logging.getLogger(__name__)

# The longest protocol id here has 31 bytes; multistream-select names no limit of its own.
MESSAGE_BYTES_MAX = 1024
# Of one side. An end that knows what it wants says so in its second message.
MESSAGES_MAX = 64

_GREETING = MULTISELECT_PROTOCOL_ID

_BROKEN = (IOException, MuxedStreamError, RemoteProtocolError, UnicodeError, trio.TooSlowError)
"""The ways in which a negotiation ends without an agreement."""


class _Talk:
    """One negotiation, on a connection or on a stream of yamux.

    Symptoms: py-libp2p reads a message of whatever length its prefix says, up to 2**64 bytes,
    before it looks at it: one peer that has not even said who it is fills the memory. Its stream
    takes a lock for each read and each write, and each lock gives other tasks a turn. So to agree
    on a protocol took more turns than what the stream was opened for.

    What is said while more of the other side is here already waits for the answer to that. So
    greeting and answer go out together, and neither side waits for the other one longer than it
    would.
    """

    def __init__(self, communicator: MultiselectCommunicator) -> None:
        self._carrier = communicator.read_writer
        muxed = getattr(self._carrier, "muxed_stream", None)
        self.stream = muxed if isinstance(muxed, YamuxStream) else None
        self._unsent = b""
        self._messages_left = MESSAGES_MAX

    async def say(self, *messages: str) -> None:
        self._unsent += b"".join(map(_delimited, messages))
        await self._flush_unless_more_is_here()

    async def hear(self) -> str:
        """The next message. Raises one of `_BROKEN`."""
        await self._flush_unless_more_is_here()
        self._messages_left -= 1
        if self._messages_left < 0:
            raise OversizedError("a negotiation that goes on for too long")
        message = await read_delimited(self._receive, MESSAGE_BYTES_MAX, "a negotiation's message")
        if not message.endswith(b"\n"):
            raise MalformedError("a negotiation's message without an end")
        return message[:-1].decode()

    async def _flush_unless_more_is_here(self) -> None:
        if self.stream is None or not self.stream.has_unread:
            await self.flush()

    async def flush(self) -> None:
        """Sends what is held back."""
        unsent, self._unsent = self._unsent, b""
        if unsent and self.stream is not None:
            await self.stream.send(unsent)
        elif unsent:
            await self._carrier.write(unsent)

    async def _receive(self, num_bytes: int) -> bytes | bytearray:
        if self.stream is not None:
            return await self.stream.receive_exactly(num_bytes)
        return await read_exactly(self._carrier, num_bytes, "the negotiation")


class _Multiselect(Multiselect):
    """Answers the other side's questions."""

    async def negotiate(
        self, communicator: Any, negotiate_timeout: float = DEFAULT_NEGOTIATE_TIMEOUT
    ) -> Any:
        """The protocol that the other side wants, and its handler. Raises MultiselectError."""
        offered, talk = self.offered_to(communicator), _Talk(communicator)
        try:
            with trio.fail_after(negotiate_timeout):
                await talk.say(_GREETING)
                if await talk.hear() != _GREETING:
                    raise MalformedError("not multistream-select")
                while True:
                    wanted = TProtocol(await talk.hear())
                    if wanted in offered:
                        await talk.say(wanted)
                        await talk.flush()
                        return wanted, offered[wanted]
                    listed = "\n".join([*filter(None, offered), ""])
                    await talk.say(listed if wanted == "ls" else PROTOCOL_NOT_FOUND_MSG)
        except _BROKEN as error:
            raise MultiselectError(f"no agreement: {why(error)}") from error

    def offered_to(self, _communicator: Any) -> dict[TProtocol | None, Any]:
        """Protocols, and the handler of each."""
        return self.handlers


class Doors(_Multiselect):
    """Agrees on the protocols of streams that others open. A peer is offered all of them, or only
    those that strangers are served.

    They stay the same while a connection lives, as long as `admits` does not change its mind.
    """

    def __init__(self, handlers: dict[TProtocol | None, Any]) -> None:
        super().__init__(handlers)
        self.admits: Callable[[ID], bool] = lambda _peer: True
        """Returns whether a peer is no stranger."""
        self.for_strangers: set[TProtocol] = set()

    def offered_to(self, communicator: Any) -> dict[TProtocol | None, Any]:
        """The protocols that are open to the caller, and the handler of each."""
        if self.admits(communicator.read_writer.muxed_conn.peer_id):
            return self.handlers
        return {name: one for name, one in self.handlers.items() if name in self.for_strangers}


class _MultiselectClient(MultiselectClient):
    """Asks for a protocol; for that of a stream without a wait for the other side's greeting.

    Both sides greet each other unasked, and what is asked for does not depend on the greeting. So a
    stream begins one round trip earlier, with the same bytes.
    """

    async def select_one_of(
        self,
        protocols: Sequence[TProtocol],
        communicator: Any,
        negotiate_timeout: float = DEFAULT_NEGOTIATE_TIMEOUT,
    ) -> TProtocol:
        """The first protocol that the other side speaks. Raises MultiselectClientError."""
        talk = _Talk(communicator)
        wanted, *others = protocols
        try:
            with trio.fail_after(negotiate_timeout):
                await talk.say(*([_GREETING] if talk.stream is None else [_GREETING, wanted]))
                answer = await talk.hear()
                if answer == _GREETING:
                    if talk.stream is None:
                        await talk.say(wanted)
                    answer = await talk.hear()
                while answer == PROTOCOL_NOT_FOUND_MSG and others:
                    wanted = others.pop(0)
                    await talk.say(wanted)
                    answer = await talk.hear()
        except _BROKEN as error:
            tried = ", ".join(protocols)
            raise MultiselectClientError(f"no agreement on {tried}: {why(error)}") from error
        if answer == PROTOCOL_NOT_FOUND_MSG:
            raise MultiselectClientError(f"protocols not supported: tried {', '.join(protocols)}")
        if answer != wanted:
            raise MultiselectClientError(f"asked for {wanted}, the answer is {answer!r}")
        return wanted


def agreement_on(protocol: str) -> tuple[bytes, bytes, bytes]:
    """What asks for a protocol, and what the other side answers if it speaks it: the same words.
    The second piece is one byte, in which a refusal differs."""
    asked = _delimited(protocol)
    return _delimited(_GREETING), asked[:1], asked[1:]


def _delimited(message: str) -> bytes:
    """A message of multistream-select: its length, its text, and the end of a line."""
    return bytes(encode_delim(message.encode()))


def guard_selector(selector: GenericMultistreamSelector[Any]) -> None:
    """Lets `_Talk` agree on a secure channel or a muxer."""
    selector.multiselect = _Multiselect(selector.multiselect.handlers)
    selector.multiselect_client = _MultiselectClient()


class GuardedMuxer(MuxerMultistream):
    """Puts `YamuxConnection` in the place of py-libp2p's yamux.

    Symptoms: a write cancelled while it is blocked in TCP leaves half a frame behind and wedges
    every stream of the connection without a word; a timeout around a read loses the bytes it had
    taken; a peer that ignores its receive window was allowed to push 400 MB into memory; a
    reader that pauses for 5 s makes the writer fail.
    """

    def __init__(self, liveness: Liveness) -> None:
        super().__init__({TProtocol(YAMUX_PROTOCOL): Yamux})
        guard_selector(self._selector)
        self._liveness = liveness
        self._line = LineRate()

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """Agree on yamux and start it."""
        await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        assert isinstance(conn, NoiseSession)
        return YamuxConnection(conn, peer_id, self._liveness, self._line)


class GuardedHost(BasicHost):
    """Streams: an exception in a handler costs the stream, never the host."""

    count_stream: Callable[[str, YamuxStream], None] | None = None

    def __init__(self, swarm: Swarm) -> None:
        """Agrees on a stream's protocol as `Doors` says, and drops one protocol.

        Symptom: by ``/ipfs/id/push/1.0.0`` any peer files any addresses under its id, for good.
        """
        super().__init__(swarm, disable_identify_address_discovery=True)
        self.doors = Doors(self.multiselect.handlers)
        self.doors.remove_handler(ID_PUSH)
        self.multiselect = self.doors
        self.multiselect_client = _MultiselectClient()

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
