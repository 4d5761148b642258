"""Gossip messages of py-libp2p 0.8.1: its guards (see `over_libp2p.guards`) and our settings. To
whom a message goes: `router`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.stream_muxer.exceptions import MuxedStreamError

from gossamer.node.network.counted import counted
from gossamer.node.network.over_libp2p.addresses import peer_id_of
from gossamer.node.network.over_libp2p.delimited import read_delimited
from gossamer.node.network.over_libp2p.gossip.checks import (
    RPC_BYTES_MAX,
    check_entries,
    check_shape,
    clean_control,
    is_signed,
    num_questions,
)
from gossamer.node.network.over_libp2p.gossip.router import GuardedGossipSub
from gossamer.node.network.over_libp2p.negotiation import GuardedHost
from gossamer.node.network.over_libp2p.yamux.stream import YamuxStream
from gossamer.protocol.errors import (
    ForgedError,
    MalformedError,
    RemoteProtocolError,
)
from gossamer.protocol.ids import public_key_of
from gossamer.protocol.policy.conduct.gossip_quota import GossipQuota

logger = logging.getLogger(__name__)

# Everyone in everyone's mesh up to 200 peers: with the usual 6 to 12, hosts with more topic peers
# than the upper degree lose messages even without churn (measured: 88 of 128 in a star of 8). Being
# in a mesh costs nothing: `GuardedGossipSub.publish` chooses to whom a message goes.
GOSSIP_DEGREE, GOSSIP_DEGREE_LOW, GOSSIP_DEGREE_HIGH = 200, 100, 400
# Upstream's 120 s leave a newcomer out of the mesh for two minutes. The mesh is for peers of other
# implementations, and each heartbeat looks at every peer for each topic. Among 64, one every 5 s is
# 6 % of what a waiting node does.
GOSSIP_HEARTBEAT_SECONDS = 10
GOSSIP_PREFIX = "/meshsub/"
GOSSIP_PROTOCOLS = ("/meshsub/1.2.0", "/meshsub/1.1.0", "/meshsub/1.0.0")

# Each connection has one in use; the old ones of a peer that dialled again linger a little.
STREAMS_PER_PEER_MAX = 4
# A run has four topics at most, of some 90 characters.
TOPICS_PER_PEER_MAX = 16
TOPIC_CHARACTERS_MAX = 256
# Of a message that is known already, or of an entry that is no message, beside a new one.
CHEAP = 0.05


class GuardedPubsub(Pubsub):
    """Gossip messages: a bad one costs its forwarder, and none is lost in a queue of 32.

    Symptoms of py-libp2p's own reader: every message of an RPC becomes a task at once, a hundred
    thousand in one MiB; ids, topics and signed records of any size are kept, for minutes or for
    good; a PRUNE makes it dial whatever addresses it names; what is forged is dropped without a
    word.
    """

    on_message: Callable[[rpc_pb2.Message], bool] = staticmethod(lambda _message: False)
    """Takes an authentic new message; the answer says whether it is passed on."""
    on_offence: Callable[[ID, RemoteProtocolError], None] = staticmethod(lambda _peer, _error: None)
    is_banned: Callable[[ID], bool] = staticmethod(lambda _peer: False)

    def __init__(self, host: GuardedHost, router: GuardedGossipSub) -> None:
        super().__init__(
            host,
            router,
            max_subscriptions_per_peer=TOPICS_PER_PEER_MAX,
            max_inbound_rpc_size=RPC_BYTES_MAX,
        )
        self._guarded_host = host
        self._guarded_router = router
        self._gate = GossipQuota()
        self._turn = trio.Lock()
        self._num_streams: Counter[ID] = Counter()

    async def _handle_new_peer(self, peer_id: ID) -> None:
        """Open the gossip stream to a peer, unless it is a stranger to the run.

        The first message on that stream names our topics, and with them the run.
        """
        if not self._guarded_host.doors.admits(peer_id):
            return
        await super()._handle_new_peer(peer_id)

    def retain(self, topic: str) -> None:
        """Send our newest message on a topic to each peer that connects later."""
        self._guarded_router.retained.setdefault(topic, None)

    def let_in(self, peer_id: ID) -> None:
        """Open the gossip stream to a peer that was a stranger; see `Transport.let_in`."""
        self.manager.run_task(self._handle_new_peer_with_retry, peer_id)

    async def handle_dead_peer_queue(self) -> None:
        """Open the gossip stream to a peer anew when the connection that it is on has ended.

        Symptom: beside another connection to the peer nothing notices the end, until the next
        message is written to the stream that ended, and is lost.
        """
        async with self.dead_peer_receive_channel:
            self.event_handle_dead_peer_queue_started.set()
            async for peer_id in self.dead_peer_receive_channel:
                stream = self.peers.get(peer_id)
                has_ended = stream is not None and stream.muxed_conn.is_closed
                if has_ended or not self._peer_is_connected(peer_id):
                    self._handle_dead_peer(peer_id)

    def _handle_dead_peer(self, peer_id: ID) -> None:
        """Forget a peer's stream; the next one begins with the messages of the last seconds.

        Symptom: what was under way on a stream that broke is lost, although the peer can be
        reached by another connection. What it has had already costs it next to nothing.
        """
        self._replayed_recent_topics.pop(peer_id, None)
        super()._handle_dead_peer(peer_id)

    # -- reading

    async def stream_handler(self, stream: INetStream) -> None:
        """Read one peer's gossip stream, counted."""
        peer = stream.muxed_conn.peer_id
        self._guarded_host.count(stream)
        with counted(self._num_streams, peer) as number:
            if number > STREAMS_PER_PEER_MAX:
                await stream.reset()
                return
            try:
                await self.continuously_read_stream(stream)
            except RemoteProtocolError as error:
                self.on_offence(peer, error)
                await stream.reset()
                self._handle_dead_peer(peer)

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """Read RPCs one after the other, no faster than the gate allows, until the stream ends.

        Raises:
            RemoteProtocolError: the peer sent what no peer of this network sends.
        """
        peer = stream.muxed_conn.peer_id
        muxed = getattr(stream, "muxed_stream", None)
        assert isinstance(muxed, YamuxStream)
        try:
            while self.manager.is_running:
                num_bytes, rpc = await self._read_rpc(muxed)
                await self._take_rpc(peer, rpc, num_bytes)
        except MuxedStreamError as error:
            logger.debug("gossip stream of %s ended: %s", peer, error)

    async def _read_rpc(self, stream: YamuxStream) -> tuple[int, rpc_pb2.RPC]:
        body = await read_delimited(stream.receive_exactly, RPC_BYTES_MAX, "a gossip RPC")
        rpc = rpc_pb2.RPC()
        try:
            rpc.ParseFromString(body)
        except Exception as error:  # protobuf's own, which has no types
            raise MalformedError(f"not a gossip RPC: {error}") from None
        check_entries(rpc, len(body))
        return len(body), rpc

    async def _take_rpc(self, peer: ID, rpc: rpc_pb2.RPC, num_bytes: int) -> None:
        num_entries = len(rpc.subscriptions) + len(rpc.publish) + 1
        await self._wait_for_forwarder(peer, CHEAP * num_entries, num_bytes)
        for subscription in rpc.subscriptions[:TOPICS_PER_PEER_MAX]:
            if len(subscription.topicid) <= TOPIC_CHARACTERS_MAX:
                self.handle_subscription(peer, subscription)
        for message in rpc.publish:
            if not self._is_subscribed_to_msg(message):
                continue
            check_shape(message)
            if self._is_msg_seen(message):
                continue
            await self._wait_for_forwarder(peer, 1.0, 0)
            async with self._turn:
                now = trio.current_time()
                await trio.sleep(self._gate.total_wait_seconds(now, 1.0, message.ByteSize()))
                await self.push_msg(peer, message)
        if rpc.HasField("control"):
            await self._wait_for_forwarder(peer, 1.0 + num_questions(rpc.control), 0)
            await self.router.handle_rpc(clean_control(rpc.control, self.topic_ids), peer)

    async def _wait_for_forwarder(self, peer: ID, num_messages: float, num_bytes: int) -> None:
        now = trio.current_time()
        seconds = self._gate.forwarder_wait_seconds(now, peer_id_of(peer), num_messages, num_bytes)
        await trio.sleep(seconds)

    # -- messages

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Check, deliver and pass on one message; our own ones as py-libp2p does.

        Symptom: a message with a sender id or key that cannot be parsed raises in a task of the
        pubsub service, which ends the program: any remote can do it.

        Raises:
            MalformedError: its author is no peer of this network.
            ForgedError: its author did not sign it, and no honest forwarder passes that on.
        """
        if msg_forwarder == self.my_id:
            msg.ClearField("key")  # it is in the author's id, and the signature does not cover it
            await super().push_msg(msg_forwarder, msg)
            return
        author = ID(msg.from_id)
        if author == self.my_id or self.is_banned(author):
            return
        public_key_of(peer_id_of(author))  # of another kind than ours: no node passes it on
        if not is_signed(msg):
            raise ForgedError(f"gossip message that {author} did not sign")
        self._mark_msg_seen(msg)
        is_taken, blamed = self._gate.admits(
            trio.current_time(),
            peer_id_of(msg_forwarder),
            peer_id_of(author),
            is_connected=self._peer_is_connected(author),
        )
        if blamed is not None:
            self.on_offence(ID.from_base58(blamed), self._gate.flood())
        if not (is_taken and self.on_message(msg)):
            return
        if not self._gate.passes_on(trio.current_time()):
            return
        try:
            await self.router.publish(msg_forwarder, msg)
        except Exception:  # peers come and go while it iterates
            logger.exception("a gossip message of %s was not passed on", author)

    def notify_subscriptions(self, publish_message: rpc_pb2.Message) -> None:
        """Our own messages are not for us (and py-libp2p's queue drops what is over 32)."""

    def _forget_all_subscriptions(self, peer_id: ID) -> None:
        """Forget a peer's topics when it is gone, and only then.

        Symptom: when the older of two connections to a peer dies (it restarted, or both sides
        dialled), its topics are forgotten although it will not announce them again: from then on
        it hears nothing from us.
        """
        if not self._peer_is_connected(peer_id):
            super()._forget_all_subscriptions(peer_id)


def new_gossip(host: GuardedHost) -> tuple[GuardedPubsub, GuardedGossipSub]:
    """The two services of gossip, to be run by the caller."""
    router = GuardedGossipSub(
        [TProtocol(protocol) for protocol in GOSSIP_PROTOCOLS],
        degree=GOSSIP_DEGREE,
        degree_low=GOSSIP_DEGREE_LOW,
        degree_high=GOSSIP_DEGREE_HIGH,
        heartbeat_interval=GOSSIP_HEARTBEAT_SECONDS,
        adaptive_gossip_enabled=False,
        spam_protection_enabled=False,
        eclipse_protection_enabled=False,
    )
    pubsub = GuardedPubsub(host, router)
    # Message ids are author and counter: after a restart within 120 s a counter that begins again
    # would make everything we say look like a repetition.
    pubsub.counter = time.time_ns()
    return pubsub, router
