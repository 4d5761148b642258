"""Gossipsub of py-libp2p 0.8.1: its guards (see `libp2p_guards`) and our settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub

from gossamer.node.network.libp2p_guards import GuardedHost

logger = logging.getLogger(__name__)

# Everyone in everyone's mesh up to 200 peers: with the usual 6 to 12, hosts with more topic peers
# than the upper degree lose messages even without churn (measured: 88 of 128 in a star of 8).
GOSSIP_DEGREE, GOSSIP_DEGREE_LOW, GOSSIP_DEGREE_HIGH = 200, 100, 400
# Upstream's 120 s leave a newcomer out of the mesh for two minutes.
GOSSIP_HEARTBEAT_SECONDS = 1
GOSSIP_PROTOCOLS = ("/meshsub/1.2.0", "/meshsub/1.1.0", "/meshsub/1.0.0")


class GuardedPubsub(Pubsub):
    """Gossip messages: a bad one costs itself, and none is lost in a queue of 32."""

    on_message: Callable[[rpc_pb2.Message], None] | None = None

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Check, deliver and forward one message.

        Symptom: a message with a sender id or key that cannot be parsed raises in a task of the
        pubsub service, which ends the program: any remote can do it.
        """
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:
            if msg_forwarder == self.my_id:
                raise
            logger.info("gossip message from %s dropped: %r", msg_forwarder, error)

    def notify_subscriptions(self, msg: rpc_pb2.Message) -> None:
        """Deliver at once; py-libp2p's subscription queue drops what is over 32 messages."""
        if self.on_message is not None:
            self.on_message(msg)

    def _forget_all_subscriptions(self, peer_id: ID) -> None:
        """Forget a peer's topics when it is gone, and only then.

        Symptom: when the older of two connections to a peer dies (it restarted, or both sides
        dialled), its topics are forgotten although it will not announce them again: from then on
        it hears nothing from us.
        """
        if not self._peer_is_connected(peer_id):
            super()._forget_all_subscriptions(peer_id)

    async def stream_handler(self, stream: INetStream) -> None:
        """Read one peer's gossip stream, counted."""
        host = self.host
        if isinstance(host, GuardedHost):
            host.count(stream)
        await super().stream_handler(stream)


class GuardedGossipSub(GossipSub):
    """The mesh's upkeep goes on after an exception.

    Symptom: an exception in one heartbeat (peers come and go while it iterates) ends the program.
    """

    async def heartbeat(self) -> None:
        """Heartbeats for ever."""
        while True:
            try:
                await super().heartbeat()
            except Exception:
                logger.exception("gossip heartbeat failed; going on")
                await trio.sleep(self.heartbeat_interval)


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
