"""What a peer may put into an RPC of gossip: bounds on its messages and on its control entries."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import signature_validator

from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.limits import GOSSIP_BYTES_MAX, MIB

# Of one RPC: py-libp2p cuts what it sends at this size.
RPC_BYTES_MAX = MIB
MESSAGES_PER_RPC_MAX = 1024
# Shorter than any id or topic.
NAME_BYTES_MIN = 16
# An author's id and a counter, in hexadecimal by some. py-libp2p keeps the ids of two minutes.
MESSAGE_ID_BYTES_MAX = 128
AUTHOR_BYTES_MAX = 64
SEQUENCE_BYTES_MAX = 16
# Bounds on a heartbeat's announcements of missed messages, in a mesh that hardly misses any.
CONTROL_ENTRIES_MAX = 16
MESSAGE_IDS_MAX = 1024


def check_shape(message: rpc_pb2.Message) -> None:
    """Raises RemoteProtocolError for what no node publishes or passes on."""
    if len(message.data) > GOSSIP_BYTES_MAX:
        raise OversizedError(f"gossip message of {len(message.data)} bytes")
    if len(message.topicIDs) != 1 or len(message.seqno) > SEQUENCE_BYTES_MAX:
        raise MalformedError("gossip message with other topics or another counter than ours")
    if len(message.from_id) > AUTHOR_BYTES_MAX:
        raise MalformedError("gossip message of an author that is none")


def check_entries(rpc: rpc_pb2.RPC, num_bytes: int) -> None:
    """Raises OversizedError for an RPC of so many bytes that has next to nothing in its entries.

    Symptom: the objects of half a million entries of two bytes take 34 MB, for as long as the RPC
    waits for its turn. That was minutes, on each of a peer's streams, also when it had left.
    """
    control = rpc.control
    num_entries = [
        len(rpc.subscriptions), len(rpc.publish), len(control.ihave), len(control.iwant),
        len(control.graft), len(control.prune), len(control.idontwant),
    ]  # fmt: skip
    num_names = (
        sum(len(message.topicIDs) for message in rpc.publish)
        + sum(len(ihave.messageIDs) for ihave in control.ihave)
        + sum(len(iwant.messageIDs) for iwant in control.iwant)
        + sum(len(idontwant.messageIDs) for idontwant in control.idontwant)
        + sum(len(prune.peers) for prune in control.prune)
    )
    if max(num_entries) > MESSAGES_PER_RPC_MAX or num_names * NAME_BYTES_MIN > num_bytes:
        raise OversizedError(f"gossip RPC of {num_bytes} bytes with too many entries")


def is_signed(message: rpc_pb2.Message) -> bool:
    """Returns whether a message's author has signed it."""
    try:
        return signature_validator(message)
    except Exception:  # of its key's or signature's parser: there is no list
        return False


def clean_control(control: rpc_pb2.ControlMessage, ours: Collection[str]) -> rpc_pb2.RPC:
    """Returns the part of a control message that concerns our topics, without peers to dial.

    All that is asked for stands in one entry, so that it is answered once. Nothing is named twice.
    """
    clean = rpc_pb2.RPC()
    for ihave in control.ihave[:CONTROL_ENTRIES_MAX]:
        if ihave.topicID in ours:
            clean.control.ihave.add(topicID=ihave.topicID, messageIDs=_ids(ihave.messageIDs))
    wanted = [each for iwant in control.iwant[:CONTROL_ENTRIES_MAX] for each in iwant.messageIDs]
    if wanted:
        clean.control.iwant.add(messageIDs=_ids(wanted))
    for graft in control.graft[:CONTROL_ENTRIES_MAX]:
        if graft.topicID in ours:
            clean.control.graft.add(topicID=graft.topicID)
    for prune in control.prune[:CONTROL_ENTRIES_MAX]:
        if prune.topicID in ours:
            clean.control.prune.add(topicID=prune.topicID, backoff=prune.backoff)
    for idontwant in control.idontwant[:CONTROL_ENTRIES_MAX]:
        clean.control.idontwant.add(messageIDs=_ids(idontwant.messageIDs))
    return clean


def num_questions(control: rpc_pb2.ControlMessage) -> int:
    """Returns the number of entries in which a peer offers messages or asks for some."""
    return sum(min(len(each), CONTROL_ENTRIES_MAX) for each in (control.ihave, control.iwant))


def _ids(ids: Iterable[bytes]) -> list[bytes]:
    known = dict.fromkeys(one for one in ids if len(one) <= MESSAGE_ID_BYTES_MAX)
    return list(known)[:MESSAGE_IDS_MAX]
