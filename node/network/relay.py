"""Circuits: a connection of two peers through a third one, which cannot read it.

Two peers that no dial brings together use it to agree on a crossing (`over_libp2p.crossing`), and,
where that does not succeed, for everything. `protocol.wire.relay_messages` has the messages.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

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
    StreamHandler,
    TransportError,
    reason_of,
)
from gossamer.protocol import limits
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
    encode_relay_message,
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


class Doors(Protocol):
    """The part of a transport that circuits use."""

    async def open_stream(self, peer_id: PeerId, protocol: str) -> Stream: ...

    def handle(
        self, protocol: str, handler: StreamHandler, *, streams_per_peer_max: int = ...
    ) -> None: ...

    def path(self, peer_id: PeerId) -> Path | None: ...


class Circuits:
    """Carries circuits for others, and makes and accepts this node's own."""

    def __init__(
        self,
        doors: Doors,
        accept: Callable[[Path, trio.SocketStream], Awaitable[None]],
        network_of_peer: Callable[[PeerId], str],
    ) -> None:
        """
        Args:
            accept: gets the path and the end of a circuit that a peer has opened to this node. It
                returns when the connection over it has ended.
            network_of_peer: the network from which a connected peer comes.
        """
        self._doors = doors
        self._accept_end = accept
        self._network_of_peer = network_of_peer
        self.terms = RelayTerms()
        self.places = CircuitPlaces()
        self.carried_bytes = 0
        """Payload bytes that this node has carried for others."""
        doors.handle(RELAY_PROTOCOL, self._serve, streams_per_peer_max=CIRCUITS_PER_PEER_MAX)
        doors.handle(RELAYED_PROTOCOL, self._accept, streams_per_peer_max=CIRCUITS_MAX)

    # The caller

    async def open(self, relay: PeerId, target: PeerId) -> tuple[Stream, Path]:
        """A circuit's stream to a target, on which `carry` has to run, and its path.

        Raises:
            ConnectError: the relay is not connected, refuses, or cannot reach the target.
        """
        stream = await self._doors.open_stream(relay, RELAY_PROTOCOL)
        try:
            with trio.fail_after(ANSWER_SECONDS_MAX):
                await _say(stream, RelayRequest(target))
                answer = await _hear(stream)
        except ORDINARY_ENDS as error:
            await stream.reset()
            raise ConnectError(f"no circuit through {relay}: {reason_of(error)}") from None
        except BaseException:
            await stream.reset()
            raise
        if not isinstance(answer, RelayAnswer) or answer.problem:
            await stream.reset()
            said = answer.problem if isinstance(answer, RelayAnswer) else "a wrong message"
            raise ConnectError(f"no circuit through {relay}: it says: {said}")
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
            problem = self._why_not(caller, target) or self._why_no_place(circuit)
            if problem:
                await _refuse(stream, problem)
                return
        try:
            with scope:  # ends where its place is given to another one
                with trio.fail_at(deadline):
                    onward, problem = await self._reach(caller, target)
                    if onward is None:
                        await _refuse(stream, problem)
                        return
                await self._connect(circuit, stream, onward)
        finally:
            self.places.leave(circuit)

    async def _connect(self, circuit: Circuit, stream: Stream, onward: Stream) -> None:
        """Tells the caller that its circuit stands, and carries it until it ends."""
        introduces = self.terms.introduces
        room = _Room(INTRODUCTION_BYTES_MAX if introduces else math.inf)
        try:
            await _say(stream, RelayAnswer(introduces=introduces))
            async with trio.open_nursery() as nursery:
                if introduces:
                    nursery.cancel_scope.deadline = trio.current_time() + INTRODUCTION_SECONDS_MAX
                for one, other in ((stream, onward), (onward, stream)):
                    nursery.start_soon(
                        self._pass_on, circuit, one, other, room, nursery.cancel_scope
                    )
        finally:
            self.places.leave(circuit)
            with trio.CancelScope(shield=True):
                await onward.reset()
                await stream.reset()

    def _why_not(self, caller: PeerId, target: PeerId) -> str:
        """Why this node carries nothing between two peers; empty if it does."""
        problem = self.terms.may_relay(caller, target)
        if problem:
            return problem
        for peer in (caller, target):
            path = self._doors.path(peer)
            if path is None or path.kind == "relayed":
                return "this peer has no direct connection with both ends"
        return ""

    def _why_no_place(self, circuit: Circuit) -> str:
        """Takes a place, or says why there is none."""
        try:
            self.places.take(trio.current_time(), circuit)
        except NoPlaceError as error:
            return str(error)
        return ""

    async def _reach(self, caller: PeerId, target: PeerId) -> tuple[Stream | None, str]:
        """The stream to the target, or the reason why there is none."""
        try:
            onward = await self._doors.open_stream(target, RELAYED_PROTOCOL)
        except TransportError as error:
            return None, str(error)
        try:
            await _say(onward, Relayed(caller, self.terms.introduces))
            answer = await _hear(onward)
        except (TransportError, RemoteProtocolError) as error:
            await onward.reset()
            return None, f"the target does not answer: {error}"
        except BaseException:
            await onward.reset()
            raise
        if not isinstance(answer, RelayAnswer) or answer.problem:
            await onward.reset()
            return None, "the target refuses"
        return onward, ""

    async def _pass_on(
        self,
        circuit: Circuit,
        source: Stream,
        sink: Stream,
        room: _Room,
        scope: trio.CancelScope,
    ) -> None:
        try:
            while True:
                piece = await _receive_piece(source)
                circuit.moved_seconds = trio.current_time()
                room.num_bytes -= len(piece)
                if room.num_bytes < 0:
                    scope.cancel()
                    return
                await self.terms.rate.take(PREFIX_BYTES + len(piece))
                self.carried_bytes += len(piece)
                await send_frame(sink, b"", piece)
                circuit.moved_seconds = trio.current_time()
        except (StreamClosed, RemoteProtocolError):
            scope.cancel()


@dataclass
class _Room:
    """Bytes that a circuit may still carry."""

    num_bytes: float


def ends() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two ends of a connection inside this process: one for the handshake, one for `carry`."""
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    near, far = (_stream_of(end) for end in pair)
    return near, far


def _stream_of(end: socket.socket) -> trio.SocketStream:
    return trio.SocketStream(trio.socket.from_stdlib_socket(end))


async def carry(stream: Stream, end: trio.SocketStream) -> None:
    """Carries bytes between a circuit's stream and this process's end, until either is closed."""

    async def outward(scope: trio.CancelScope) -> None:
        try:
            while piece := await end.receive_some(PIECE_BYTES_MAX):
                await send_frame(stream, b"", piece)
        except (StreamClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()

    async def inward(scope: trio.CancelScope) -> None:
        try:
            while True:
                await end.send_all(memoryview(await _receive_piece(stream)))
        except (
            StreamClosed,
            RemoteProtocolError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
        ):
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
    await send_frame(stream, encode_relay_message(message))


async def _hear(stream: Stream) -> RelayMessage:
    return decode_relay_message(await receive_message(stream, RELAY_MESSAGE_BYTES_MAX))


async def _refuse(stream: Stream, problem: str) -> None:
    await _say(stream, RelayAnswer(problem[: limits.TEXT_CHARACTERS_MAX]))
