"""The messages of gossip that this node keeps for peers that ask for them, bounded in bytes."""

from __future__ import annotations

from libp2p.pubsub.mcache import MessageCache, default_msg_id_fn
from libp2p.pubsub.pb import rpc_pb2

from gossamer.protocol.limits import MIB

CACHE_BYTES_MAX = 32 * MIB
"""Bytes of the messages that are kept. All peers together may bring 4 MiB a second, and a message
stays for up to 50 s. Those of two hundred members that follow the protocol are a few MiB."""

MESSAGE_OVERHEAD_BYTES = 1024
"""What a message costs besides its own bytes: the objects of protobuf and of the history."""


class BoundedMessageCache(MessageCache):
    """Drops the oldest messages when there are too many bytes.

    Symptom: py-libp2p keeps whatever has come in five heartbeats.
    """

    def __init__(self, window_size: int, history_size: int) -> None:
        """See `MessageCache`."""
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
