"""Circuits: a connection of two peers through a third one, which cannot read it.

Two peers that no dial brings together use it to agree on a crossing
(`over_libp2p.nat_traversal.crossing`), and, where that does not succeed, for everything.
`protocol.wire.relay_messages` has the messages.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from gossamer.node.base.rate_limit import NO_LIMIT, RateLimit
from gossamer.node.network.circuit_places import CIRCUITS_MAX, Circuit, CircuitPlaces
from gossamer.node.network.frames import receive_frame, receive_message, send_frame
from gossamer.node.network.places import NoPlaceError
from gossamer.node.network.transport import (
    ORDINARY_ENDS,
    ConnectError,
    MayRelay,
    Path,
    Stream,
    StreamClosed,
    Transport,
    TransportError,
    reason_of,
)
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.framing import PREFIX_BYTES
from gossamer.protocol.wire.relay_messages import (
    PIECE_BYTES_MAX,
    RELAY_MESSAGE_BYTES_MAX,
    RELAY_PROTOCOL,
    RELAYED_PROTOCOL,
    RelayAnswer,
    Relayed,
    RelayMessage,
    RelayRequest,
    decode_relay_message,
)

ANSWER_SECONDS_MAX = 10.0
"""The relay asks the target, which answers at once: three round trips."""

CIRCUITS_PER_PEER_MAX = 8
"""Circuits that one peer may ask for: to the members that it cannot reach."""

INTRODUCTION_BYTES_MAX = 128 * limits.KIB
"""Bytes that a relay that only introduces carries for a circuit, both directions together: the
handshake, some gossip, and the messages of a few crossings take less than half of it."""

INTRODUCTION_SECONDS_MAX = 60.0
"""Time for which such a circuit stands: three crossings are tried in it."""

SOCKET_BYTES = 64 * limits.KIB
"""Bytes that wait in the kernel in each direction of a circuit's end: more would only add delay."""


@dataclass(frozen=True)
class RelayTerms:
    """The terms on which this node carries circuits; see `Transport.relay_for`."""

    may_relay: MayRelay = lambda _caller, _target: "this peer does not relay"
    rate: RateLimit = NO_LIMIT
    introduces: bool = False


class Circuits:
    """Carries circuits for others, and makes and accepts this node's own."""

    def __init__(
        self,
        transport: Transport,
        accept: Callable[[Path, trio.SocketStream], Awaitable[None]],
        network_of_peer: Callable[[PeerId], str],
    ) -> None:
        """
        Args:
            accept: gets the path and the end of a circuit that a peer has opened to this node. It
                returns when the connection over it has ended.
            network_of_peer: the network from which a connected peer comes.
        """
        self._transport = transport
        self._accept_end = accept
        self._network_of_peer = network_of_peer
        self.terms = RelayTerms()
        self.places = CircuitPlaces()
        self.carried_bytes = 0
        """Payload bytes that this node has carried for others."""
        transport.handle(RELAY_PROTOCOL, self._serve, streams_per_peer_max=CIRCUITS_PER_PEER_MAX)
        transport.handle(RELAYED_PROTOCOL, self._accept, streams_per_peer_max=CIRCUITS_MAX)

    # The caller

    async def open(self, relay: PeerId, target: PeerId) -> tuple[Stream, Path]:
        """A circuit's stream to a target, on which `carry` has to run, and its path.

        Raises:
            ConnectError: the relay is not connected, refuses, or cannot reach the target.
        """
        stream = await self._transport.open_stream(relay, RELAY_PROTOCOL)
        try:
            with trio.fail_after(ANSWER_SECONDS_MAX):
                await _say(stream, RelayRequest(target))
                answer = await _hear(stream)
            if not isinstance(answer, RelayAnswer) or answer.problem:
                said = answer.problem if isinstance(answer, RelayAnswer) else "a wrong message"
                raise ConnectError(f"it says: {said}")
        except BaseException as error:
            await stream.reset()
            if isinstance(error, ORDINARY_ENDS):
                raise ConnectError(f"no circuit through {relay}: {reason_of(error)}") from None
            raise
        return stream, Path("relayed", relay, answer.introduces)

    # The target

    async def _accept(self, stream: Stream) -> None:
        with trio.fail_after(ANSWER_SECONDS_MAX):
            message = await _hear(stream)
            if not isinstance(message, Relayed):
                raise MalformedError("a circuit that does not name its caller")
            await _say(stream, RelayAnswer())
        near, far = ends()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry, stream, far)
            await self._accept_end(Path("relayed", stream.peer_id, message.introduces), near)
            nursery.cancel_scope.cancel()

    # The relay

    async def _serve(self, stream: Stream) -> None:
        deadline = trio.current_time() + ANSWER_SECONDS_MAX
        with trio.fail_at(deadline):
            request = await _hear(stream)
            if not isinstance(request, RelayRequest):
                raise MalformedError("a circuit that does not name its target")
        caller, target = stream.peer_id, PeerId(request.target)
        now, scope = trio.current_time(), trio.CancelScope()
        circuit = Circuit(caller, target, self._network_of_peer(caller), now, scope.cancel)
        try:
            with scope:  # ends where its place is given to another one
                with trio.fail_at(deadline):
                    try:
                        self._take_place(circuit)
                        onward = await self._reach(caller, target)
                    except (NoPlaceError, TransportError) as error:
                        problem = str(error)[: limits.TEXT_CHARACTERS_MAX]
                        await _say(stream, RelayAnswer(problem))
                        return
                await self._connect(circuit, stream, onward)
        finally:
            self.places.leave(circuit)

    def _take_place(self, circuit: Circuit) -> None:
        """Raises NoPlaceError: why this node does not carry a circuit."""
        if problem := self.terms.may_relay(circuit.caller, circuit.target):
            raise NoPlaceError(problem)
        for peer in (circuit.caller, circuit.target):
            path = self._transport.path(peer)
            if path is None or path.kind == "relayed":
                raise NoPlaceError("this peer has no direct connection with both ends")
        self.places.take(trio.current_time(), circuit)

    async def _reach(self, caller: PeerId, target: PeerId) -> Stream:
        """The stream to the target. Raises TransportError: the reason why there is none."""
        onward = await self._transport.open_stream(target, RELAYED_PROTOCOL)
        try:
            await _say(onward, Relayed(caller, self.terms.introduces))
            answer = await _hear(onward)
            if not isinstance(answer, RelayAnswer) or answer.problem:
                raise ConnectError("the target refuses")
        except BaseException as error:
            await onward.reset()
            if isinstance(error, StreamClosed | RemoteProtocolError):
                raise ConnectError(f"the target does not answer: {error}") from None
            raise
        return onward

    async def _connect(self, circuit: Circuit, stream: Stream, onward: Stream) -> None:
        """Tells the caller that its circuit stands, and carries it until it ends."""
        introduces = self.terms.introduces
        circuit.left_bytes = INTRODUCTION_BYTES_MAX if introduces else math.inf
        try:
            await _say(stream, RelayAnswer(introduces=introduces))
            async with trio.open_nursery() as nursery:
                if introduces:
                    nursery.cancel_scope.deadline = trio.current_time() + INTRODUCTION_SECONDS_MAX
                for one, other in ((stream, onward), (onward, stream)):
                    nursery.start_soon(self._pass_on, circuit, one, other, nursery.cancel_scope)
        finally:
            with trio.CancelScope(shield=True):
                await onward.reset()
                await stream.reset()

    async def _pass_on(
        self, circuit: Circuit, source: Stream, sink: Stream, scope: trio.CancelScope
    ) -> None:
        try:
            while True:
                piece = await _receive_piece(source)
                circuit.moved_seconds = trio.current_time()
                circuit.left_bytes -= len(piece)
                if circuit.left_bytes < 0:
                    scope.cancel()
                    return
                await self.terms.rate.take(PREFIX_BYTES + len(piece))
                self.carried_bytes += len(piece)
                await send_frame(sink, b"", piece)
                circuit.moved_seconds = trio.current_time()
        except (StreamClosed, RemoteProtocolError):
            scope.cancel()


def ends() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two ends of a connection inside this process: one for the handshake, one for `carry`."""
    near, far = (
        trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair()
    )
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    return near, far


_ENDED = (StreamClosed, RemoteProtocolError, trio.BrokenResourceError, trio.ClosedResourceError)
"""The ways in which one of two ends has ended."""


async def carry(stream: Stream, end: trio.SocketStream) -> None:
    """Carries bytes between a circuit's stream and this process's end, until either is closed."""

    async def outward(scope: trio.CancelScope) -> None:
        with suppress(*_ENDED):
            while piece := await end.receive_some(PIECE_BYTES_MAX):
                await send_frame(stream, b"", piece)
        scope.cancel()

    async def inward(scope: trio.CancelScope) -> None:
        with suppress(*_ENDED):
            while True:
                await end.send_all(memoryview(await _receive_piece(stream)))
        scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outward, nursery.cancel_scope)
            nursery.start_soon(inward, nursery.cancel_scope)
    finally:
        with trio.CancelScope(shield=True):
            await stream.reset()
            await trio.aclose_forcefully(end)


async def _receive_piece(stream: Stream) -> bytearray:
    """The next bytes of a circuit.

    Raises:
        MalformedError: there are none in the frame. No end sends that, and no limit would count it.
    """
    _, piece = await receive_frame(stream, message_bytes_max=0, payload_bytes_max=PIECE_BYTES_MAX)
    if not piece:
        raise MalformedError("a circuit's frame without bytes")
    return piece


async def _say(stream: Stream, message: RelayMessage) -> None:
    await send_frame(stream, to_msgpack(message))


async def _hear(stream: Stream) -> RelayMessage:
    return decode_relay_message(await receive_message(stream, RELAY_MESSAGE_BYTES_MAX))
