"""The node's only door to the network, as an interface.

Everything in `gossamer.node` that talks to peers is written against `Transport` and `Stream`:
`over_libp2p.transport` is the real network, `tests/support/memory_transport.py` one inside a
process. `tests/node/network/test_transport_contract.py` runs the same tests over both.

Errors a caller has to expect are all `TransportError`; their text is fit to be shown to a person.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import trio

from gossamer.node.base.rate_limit import NO_LIMIT, RateLimit
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.statements import Reach

Bytes = bytes | bytearray | memoryview

PING_SECONDS = 5.5
"""A connection on which nothing comes is asked for a sign of life this often, and more seldom by a
node with many of them (`Transport.signs_seconds`). Two signs come in the shortest time after which
a silent peer counts as gone (`membership.MEMBER_SECONDS`), and a peer has six seconds for its
answer, as in a ring. These find a process that hangs: the kernel notices a dead link by itself
(`carriers.KEEPALIVE_IDLE_SECONDS`)."""

RING_PING_SECONDS = 2.0
"""The same of a peer that is in a ring with this node, which gives up a silent one earlier
(`dispatcher.SILENT_SECONDS`)."""

STREAMS_PER_PEER_MAX = 4
"""Streams of one protocol that a peer may have open to us, where the protocol does not say more:
one in use, and some that are ending."""


RACE_SECONDS = 0.25
"""Head start of an address over the next one of a peer (Happy Eyeballs, RFC 8305, section 5)."""

ADDRESSES_TRIED_MAX = 8
"""Addresses of one peer that are dialled: global, outer and local ones in two families."""


class TransportError(Exception):
    """Base of everything that the network may do to us. The text is for people."""


class ListenError(TransportError):
    """A listen address that cannot be used: malformed, not ours, or taken by another program."""


class ConnectError(TransportError):
    """No connection to that peer: unreachable, someone else answered, or no answer in time."""


class ProtocolRefused(ConnectError):
    """The peer is connected and does not speak the protocol we asked for."""


class StreamClosed(TransportError):
    """The other side closed or reset the stream, or the connection under it died."""


ORDINARY_ENDS = (TransportError, RemoteProtocolError, trio.TooSlowError)
"""What a peer alone can cause in the handler of its stream. None of it is a defect of this node."""


def reason_of(error: Exception) -> str:
    """Returns why a talk with a peer ended, for people."""
    return str(error) or "no answer in time"


@dataclass(frozen=True)
class Path:
    """The connection of this node and a peer."""

    kind: Literal["direct", "crossed", "relayed"]
    """Kind of the connection. `crossed`: both ends dialled at once, from behind their routers."""
    relay: PeerId | None = None
    """The peer that carries the connection."""
    introduced: bool = False
    """Whether the relay carries no more than it takes to cross the routers."""


@dataclass(frozen=True)
class ReachReport:
    """This node's knowledge of its own reach, and its services to others."""

    reach: Reach
    """The class of the router that this node is behind."""
    num_confirmed: int = 0
    """Peers of other networks that have dialled this node."""
    carried_bytes: int = 0
    """Payload bytes that this node has carried between other peers."""
    num_unfinished: int = 0
    """Handshakes that others have begun here and not finished."""
    num_turned_away: int = 0
    """Connections that ended before a handshake, because of unfinished ones."""


class Stream(Protocol):
    """A reliable, ordered, two-way byte stream to one authenticated peer.

    One task may send while another receives; two tasks must not do the same at once.
    """

    @property
    def peer_id(self) -> PeerId:
        """The peer at the other end, proven by the secure channel."""

    @property
    def protocol(self) -> str:
        """The protocol id that the stream was opened for."""

    async def send(self, *parts: Bytes) -> None:
        """Send all parts in order. Returns when the last byte has left for the connection.

        The parts are not copied first: leave them alone until the call is back. Waits while the
        peer does not read, so bound it with a timeout where that matters.

        Raises:
            StreamClosed: the stream or its connection is gone.

        Cancellation: the stream is reset, because part of the data may have been sent.
        """

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        """The next `num_bytes` bytes, in a buffer that belongs to the caller.

        The caller has checked `num_bytes` against a limit: that much memory may be taken.

        Raises:
            StreamClosed: the stream ended or died before `num_bytes` arrived.

        Cancellation: nothing is lost; what has arrived stays for the next call.
        """

    async def close(self) -> None:
        """Orderly end: what was sent still arrives, and then the peer's receive ends.

        Nothing can be sent or received here afterwards. Never raises for a dead connection.
        """

    async def reset(self) -> None:
        """End the stream at once in both directions. Never raises and never waits."""


StreamHandler = Callable[[Stream], Awaitable[None]]
GossipHandler = Callable[[PeerId, bytes], bool | None]
"""Handler of (author, data); False keeps the message from being passed on to others."""
OffenceHandler = Callable[[PeerId, RemoteProtocolError], None]


PeerTest = Callable[[PeerId], bool]
"""Answers a question about a peer."""

MayRelay = Callable[[PeerId, PeerId], str]
"""(caller, target); the reason why this node does not carry their circuit, or an empty text."""


class Transport(Protocol):
    """Connections, streams and gossip of one node: everything that a network does.

    It has more than 15 public methods: it is the only door to the network, so each thing that a
    node does there is one.
    """

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""

    def addresses(self) -> list[str]:
        """Our multiaddrs that others can dial, each ending in ``/p2p/<our id>``."""

    def reach(self) -> ReachReport:
        """This node's reach, as far as others have shown it."""

    async def connect(self, address: str) -> PeerId:
        """Connect to a full multiaddr, with or without ``/p2p/<peer id>``; returns who answered.

        The address is one that the owner of this machine gave: it is dialled whatever it is. For
        addresses that peers tell there is `connect_any`.

        A live connection to that peer is kept; a dead one is dropped first.

        Raises:
            ConnectError: unreachable, a different peer id than the address says, or no answer.

        Cancellation: the attempt is dropped, nothing is left behind.
        """

    async def connect_any(self, peer_id: PeerId, addresses: Sequence[str]) -> str:
        """Connect to one peer by the first of its addresses that answers, and return that address.

        A peer that is connected through another one is dialled all the same. The addresses are what
        peers tell. Those of networks that this machine is not in are left out, and dials that lead
        nowhere have a budget (`node/network/dial_guard.py`).

        They are tried in order, each `RACE_SECONDS` after the one before, or as soon as that one
        has failed. At most `ADDRESSES_TRIED_MAX` are tried.

        Raises:
            ConnectError: none of them led to that peer; the text names each and its failure.
        """

    def is_answering(self, peer_id: PeerId) -> bool:
        """Returns whether a machine has answered a dial of a peer that is under way, so that only
        handshakes are missing."""

    async def connect_through(self, relay: PeerId, peer_id: PeerId) -> None:
        """Connect to a peer by a circuit through a connected one.

        Both ends then try to get a direct connection by themselves.

        Raises:
            ConnectError: the relay refuses or cannot reach the peer.
        """

    def relay_for(
        self, may_relay: MayRelay, rate: RateLimit = NO_LIMIT, *, introduces: bool = False
    ) -> None:
        """Carry circuits between connected peers for which `may_relay` has no objection.

        Args:
            rate: limit of all circuits together, in each direction.
            introduces: carry no more than it takes to cross the routers of both ends.
        """

    def path(self, peer_id: PeerId) -> Path | None:
        """Returns the connection to a peer, the best one if there are several. None means that
        there is no connection."""

    def network_of(self, peer_id: PeerId) -> str:
        """Returns the network from which a connected peer comes (`places.network_of`), the relay's
        where one carries the connection; empty for a peer that is not connected."""

    async def open_stream(self, peer_id: PeerId, protocol: str, *, at_once: bool = False) -> Stream:
        """A new stream to a connected peer.

        Args:
            at_once: does not wait for the peer's answer, which takes a round trip: the question
                goes out with the first bytes. A peer that refuses shows when the stream is read or
                written: it is closed.

        Raises:
            ProtocolRefused: the peer does not speak `protocol`.
            ConnectError: not connected, or no answer in time.
        """

    def handle(
        self,
        protocol: str,
        handler: StreamHandler,
        *,
        streams_per_peer_max: int = STREAMS_PER_PEER_MAX,
        for_strangers: bool = False,
    ) -> None:
        """Run `handler` in its own task for each inbound stream of `protocol`.

        With `for_strangers` peers are served that `admit` does not let in, too.

        A peer that has `streams_per_peer_max` of them open gets no other one: it is reset. When the
        handler returns the stream is closed; when it raises, the stream is reset. What the peer
        alone can cause (`ORDINARY_ENDS`) is a line of the debug log, and everything else is logged
        as a defect. The transport survives every failure of a handler.
        """

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossip `data`, signed by us, to the subscribers of `topic`.

        Best effort: it may be lost, doubled or reordered. Not delivered to our own handler.

        Raises:
            ValueError: more than `GOSSIP_BYTES_MAX` bytes.
        """

    def subscribe(self, topic: str, handler: GossipHandler, *, retains: bool = False) -> None:
        """Call `handler(author, data)` for every message on `topic` that others publish.

        With `retains` each peer that connects later is sent this node's newest message on the
        topic.

        A message for which it answers False is not passed on. The author is authenticated by its
        signature. The handler must be quick and must not block; an exception in it is logged and
        costs that message.
        """

    def peers(self) -> list[PeerId]:
        """The peers connected now, sorted, without strangers."""

    def on_peers_changed(self, handler: Callable[[], None]) -> None:
        """Call `handler` when `peers` may say something else than before."""

    def admit(self, admits: PeerTest) -> None:
        """Serve only the peers that `admits` lets in.

        The others are strangers. They get no gossip and no stream but those of handlers that are
        for strangers. Call it before the first handler is registered. Without a call there are no
        strangers.
        """

    def let_in(self, peer_id: PeerId) -> None:
        """A peer is no stranger any more: what was refused on a live connection begins now, that
        is gossip, and its word where it sees this node."""

    def keep_places_of(
        self, is_known: PeerTest, has_standing: PeerTest, is_expected: PeerTest
    ) -> None:
        """Say whose connections may end in favour of newcomers, when there are too many.

        Args:
            is_known: whether a peer has announced itself. Others give way first.
            has_standing: whether a peer's work has counted lately. Its connections do not end, and
                others end for them, see `node/network/places.py`.
            is_expected: whether a peer comes in although others of its network are banned again and
                again, and although strangers of many networks begin handshakes that they do not
                finish.
        """

    async def disconnect(self, peer_id: PeerId) -> None:
        """Drop every connection to a peer. Does nothing when there is none."""

    def ban(self, peer_id: PeerId, seconds: float, *, is_offender: bool = True) -> None:
        """Drop a peer and refuse it, both ways and its gossip, for `seconds`.

        With `is_offender` it is for what the peer did itself, which counts for its network: see
        `protocol/policy/conduct/network_bans.py`.
        """

    def on_offence(self, handler: OffenceHandler) -> None:
        """Call `handler(peer, error)` for what a peer does against the network's own protocols.

        That is below what stream and gossip handlers see: connections, multiplexing, gossip RPCs.
        """

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Payload bytes (sent, received) since the start by protocol id, and for ``"gossip"``."""

    def round_trip_seconds(self, peer_id: PeerId) -> float | None:
        """The newest measured round trip to a peer, or None when there is none yet."""

    def heard_seconds(self, peer_id: PeerId) -> float | None:
        """Returns the time at which anything last came from a peer (`trio.current_time`). None
        means that the peer is not connected. A living peer is heard every `signs_seconds` at least,
        also when there is nothing to say.
        """

    def signs_seconds(self) -> float:
        """Returns the longest time between two signs of life of a living, connected peer: it is
        `PING_SECONDS`, and longer among many peers."""

    def listen(self, peers: Collection[PeerId]) -> Callable[[], None]:
        """From now on hear these peers every `RING_PING_SECONDS` at least, while they live. Returns
        a function that ends this; call it once."""
