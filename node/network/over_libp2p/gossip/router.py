"""To whom a gossip message of py-libp2p 0.8.1 goes, and who is in the mesh: the guards of its
router (see `over_libp2p.guards`)."""

from __future__ import annotations

import logging
import random
from collections import Counter
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.mcache import MessageCache, default_msg_id_fn
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.pubsub.utils import safe_bytes_from_hex

from gossamer.node.network.over_libp2p.gossip.checks import RPC_BYTES_MAX
from gossamer.node.network.spreading import num_passed_on
from gossamer.protocol.limits import MEMBERS_MAX, MIB

logger = logging.getLogger(__name__)

# Our own ones that a new peer is sent: those of some rounds. Comparisons of statements bring more.
RECENT_MESSAGES_MAX = 64
# Of what a peer asks for between two heartbeats: one RPC. Where next to nothing is missed, hardly
# anything is asked for, and a comparison of statements brings what is left out.
ANSWER_BYTES_MAX = RPC_BYTES_MAX
# Of what waits for a peer that does not read, besides one RPC. Comparisons bring what is dropped.
QUEUE_BYTES_MAX = RPC_BYTES_MAX
# Of the messages that are kept. All peers together may bring 4 MiB a second, and a message stays
# for up to 50 s. Those of two hundred members that follow the protocol are a few MiB.
CACHE_BYTES_MAX = 32 * MIB
# What a message costs besides its own bytes: the objects of protobuf and of the history.
MESSAGE_OVERHEAD_BYTES = 1024
# Peers that have to wait with their next GRAFT of a topic: the peers of a run that a node
# remembers. Beyond that the one whose wait ends first is forgotten, and may be early.
BACK_OFFS_MAX = MEMBERS_MAX


class BoundedMessageCache(MessageCache):
    """Drops the oldest messages when there are too many bytes.

    Symptom: py-libp2p keeps whatever has come in five heartbeats.
    """

    def __init__(self, window_size: int, history_size: int) -> None:
        super().__init__(window_size, history_size)
        self.num_bytes = 0
        """What the messages that are kept cost."""

    def put(self, msg: rpc_pb2.Message) -> None:
        """Keep a message, and drop the oldest ones that have no room beside it."""
        if default_msg_id_fn(msg) in self.msgs:
            return
        super().put(msg)
        self.num_bytes += _cost_bytes(msg)
        while self.num_bytes > CACHE_BYTES_MAX:
            oldest = next(entries for entries in reversed(self.history) if entries)
            self._drop(oldest.pop(0).mid)

    def shift(self) -> None:
        """A heartbeat has passed: drop the messages that have been here for the whole history."""
        for entry in self.history[-1]:
            self._drop(entry.mid)
        super().shift()

    def _drop(self, message_id: bytes) -> None:
        self.num_bytes -= _cost_bytes(self.msgs.pop(message_id))


def _cost_bytes(message: rpc_pb2.Message) -> int:
    return message.ByteSize() + MESSAGE_OVERHEAD_BYTES


class GuardedGossipSub(GossipSub):
    """Sends no more than it has to, and keeps up the maintenance of the mesh after an exception,
    and after jumps of the wall clock.

    Symptoms: every message goes to the whole mesh from each of its members; each time the whole
    mesh is told by an IDONTWANT of 268 bytes that it is not wanted again; every RPC carries a
    signed record of addresses that nobody here reads; and a new peer is sent what all authors have
    said for some seconds, which it has from them. An exception in one heartbeat (peers come and
    go while it iterates) ends the program. When the wall clock is set back by a day, a peer that
    was pruned a minute ago is kept out of the mesh for that day. A message goes to a peer as often
    as one question names it: thousands of copies, made in one turn of a task.
    """

    _random = random.Random()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mcache = BoundedMessageCache(self.mcache.window_size, self.mcache.history_size)
        self._answered_bytes: Counter[ID] = Counter()
        """Bytes of messages that each peer has asked for and been sent since the last heartbeat."""
        self.retained: dict[str, rpc_pb2.Message | None] = {}
        """Our newest message on each topic that new peers are sent it of; None before the first."""

    async def publish(self, msg_forwarder: ID, pubsub_msg: rpc_pb2.Message) -> None:
        """Send our own message to all subscribers, and one of another author to a few of them. A
        peer that has yet to name its topics gets our own by `send_recent_messages`.

        No IDONTWANT is sent: `num_passed_on` repetitions cost less than telling everybody. Those
        of other implementations count.
        """
        await trio.lowlevel.checkpoint()
        pubsub = self.pubsub
        assert pubsub is not None
        self.mcache.put(pubsub_msg)
        topic = pubsub_msg.topicIDs[0]
        known_by = {msg_forwarder, ID(pubsub_msg.from_id)}
        subscribers = pubsub.peer_topics.get(topic, set()) & pubsub.peers.keys()
        is_own = msg_forwarder == pubsub.my_id
        if is_own and topic in self.retained:
            self.retained[topic] = pubsub_msg
        rpc = rpc_pb2.RPC(publish=[pubsub_msg])
        message_id = pubsub.get_message_id(pubsub_msg)
        wanting = [
            peer
            for peer in sorted(subscribers - known_by, key=ID.to_bytes)
            if message_id not in self.dont_send_message_ids.get(peer, ())
        ]
        if not is_own:
            num_copies = min(num_passed_on(len(subscribers)), len(wanting))
            wanting = self._random.sample(wanting, num_copies)
        for peer in wanting:
            self.send_rpc(peer, rpc)

    def send_rpc(self, peer_id: ID, rpc: rpc_pb2.RPC, priority: bool = False) -> None:
        """Queue an RPC for a peer, unless too many bytes wait for it.

        Symptom: a queue holds 32 RPCs, of up to 1 MiB each, for each peer that does not read.
        """
        assert self.pubsub is not None
        queue = self.pubsub.peer_queues.get(peer_id)
        if queue is not None and len(queue):
            waiting = [*queue._queue._priority, *queue._queue._non_priority, rpc]
            if sum(map(rpc_pb2.RPC.ByteSize, waiting)) > QUEUE_BYTES_MAX:
                self._handle_dropped_rpc(peer_id, rpc, "too many bytes wait")
                return
        super().send_rpc(peer_id, rpc, priority)

    async def send_recent_messages(self, peer_id: ID, topic: str) -> None:
        """Send a peer that has just named a topic our own messages of the last seconds on it, or
        the retained one. Those of others come from their authors."""
        await trio.lowlevel.checkpoint()
        pubsub = self.pubsub
        assert pubsub is not None
        mine = pubsub.my_id.to_bytes()
        recent = map(self.mcache.get, self.mcache.window(topic))
        own = [each for each in recent if each is not None and each.from_id == mine]
        retained = self.retained.get(topic)
        if retained is not None:
            own = [retained]
        if own:
            self.send_rpc(peer_id, rpc_pb2.RPC(publish=own[:RECENT_MESSAGES_MAX]))

    async def handle_iwant(self, iwant_msg: rpc_pb2.ControlIWant, sender_peer_id: ID) -> None:
        """Send a peer the messages that it asks for, each once, and not more than one RPC between
        two heartbeats. This holds across its connections."""
        await trio.lowlevel.checkpoint()
        answer = rpc_pb2.RPC()
        for message_id in dict.fromkeys(map(safe_bytes_from_hex, iwant_msg.messageIDs)):
            message = None if message_id is None else self.mcache.get(message_id)
            if message is None:
                continue
            num_bytes = RpcQueue.size_of_embedded_msg(message)
            if self._answered_bytes[sender_peer_id] + num_bytes > ANSWER_BYTES_MAX:
                break
            self._answered_bytes[sender_peer_id] += num_bytes
            answer.publish.append(message)
        if answer.publish:
            self.send_rpc(sender_peer_id, answer)

    def _prune_idontwant_entries(self) -> None:
        """Forget, with each heartbeat, what peers do not want, and what they have been sent."""
        super()._prune_idontwant_entries()
        self._answered_bytes.clear()

    def _add_back_off(
        self, peer: ID, topic: str, is_unsubscribe: bool, backoff_duration: int = 0
    ) -> None:
        longest = self.unsubscribe_back_off if is_unsubscribe else self.prune_back_off
        until = int(trio.current_time()) + (min(backoff_duration, longest) or longest)
        peers = self.back_off.setdefault(topic, {})
        until = max(peers.pop(peer, 0), until)
        if len(peers) >= BACK_OFFS_MAX:  # peers come and go, and most never ask again
            now = trio.current_time()
            for known in [each for each, end in peers.items() if end <= now]:
                del peers[known]
        if len(peers) >= BACK_OFFS_MAX:
            del peers[min(peers, key=peers.__getitem__)]
        peers[peer] = until

    def _check_back_off(self, peer: ID, topic: str) -> bool:
        """Returns whether a peer has to wait with its next GRAFT."""
        peers = self.back_off.get(topic, {})
        if peers.get(peer, 0) > trio.current_time():
            return True
        peers.pop(peer, None)
        return False

    def _check_graft_flood_protection(self, peer_id: ID, topic: str) -> bool:
        """The back-off says the same, with a clock that goes on evenly."""
        return True

    async def heartbeat(self) -> None:
        """Heartbeats for ever."""
        while True:
            try:
                await super().heartbeat()
            except Exception:
                logger.exception("gossip heartbeat failed; going on")
                await trio.sleep(self.heartbeat_interval)
