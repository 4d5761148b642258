"""Anti-entropy: this node compares its store of statements with those of other peers.

Every second, and more seldom while there is no news (`comparison_pace`), this node asks one random
peer and takes what it lacks. So a statement arrives even if gossip lost it.

Stream:   /gossamer/board/2   request: tags of 8 bytes of the statements that are held, or not
                                       wanted now (`unwanted`)
                              reply:   the statements that the requester lacks
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import structlog
import trio

from gossamer.node.network.frames import answering, asked, receive_frame, send_frame
from gossamer.node.network.transport import Stream, Transport, TransportError
from gossamer.node.peers.comparison_pace import ComparisonPace
from gossamer.node.peers.listeners import GossipListener
from gossamer.node.peers.other_runs import OtherRuns
from gossamer.node.peers.unwanted import Unwanted
from gossamer.protocol import limits
from gossamer.protocol.decoding import decoded
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.gossip_quota import AnswerQuota
from gossamer.protocol.policy.statement_store import STATEMENTS_MAX, StatementStore
from gossamer.protocol.wire.statements import TAG_BYTES, Signed

STATEMENTS_PROTOCOL = "/gossamer/board/2"

RECONCILE_TIMEOUT_SECONDS = 10.0
"""A peer that takes longer for a few hundred KiB is as good as gone for this purpose."""

STRANGERS_PER_RECONCILIATION = 64
"""Limit of the statements that one reply may bring of authors without a connection to this node. A
newcomer knows a swarm of hundreds after some seconds, and the inventions of a liar stay few."""

log = structlog.get_logger("gossip")

_reply_encoder = msgspec.msgpack.Encoder()
_reply_decoder = msgspec.msgpack.Decoder(list[Signed])


def decode_statement_store(message: bytes | bytearray) -> list[Signed]:
    """Decodes a reply into statements that are not checked, at most `STATEMENTS_MAX`.

    Raises:
        MalformedError: it is not a reply.
    """
    return decoded(_reply_decoder, message, "a list of statements")[:STATEMENTS_MAX]


class StoreComparison:
    """Compares the store of one node with those of others, and answers their comparisons."""

    def __init__(
        self,
        transport: Transport,
        store: StatementStore,
        listener: GossipListener,
        other_runs: OtherRuns,
        pace: ComparisonPace,
        take: Callable[[PeerId, Signed], bool],
        randomness: random.Random,
    ) -> None:
        """
        Args:
            take: checks a statement that a peer sent, stores it, and returns whether it is new
                here; raises RemoteProtocolError for an error of that peer.
            randomness: for the choice of the peer.
        """
        self._transport = transport
        self._store = store
        self._listener = listener
        self._other_runs = other_runs
        self._pace = pace
        self._take = take
        self._random = randomness
        self._unwanted = Unwanted(store, transport.peers)
        self._answers = AnswerQuota()

    def start(self) -> None:
        """Begins to answer comparisons. Call once, before the first connection."""
        self._transport.handle(STATEMENTS_PROTOCOL, self._serve)

    async def run(self) -> None:
        """Compares the store with those of other peers, until cancelled."""
        compared: set[PeerId] = set()  # since they were connected
        while True:
            await self._pace.until_next()
            peers = [peer for peer in self._transport.peers() if peer not in self._other_runs]
            compared &= {*peers}
            if not peers:
                continue
            peer = self._random.choice([p for p in peers if p not in compared] or peers)
            compared.add(peer)
            await self.try_reconcile(peer)

    async def reconcile(self, peer: PeerId) -> None:
        """Takes the statements from a peer's store that are missing in the own one.

        Raises:
            TransportError: the peer cannot be reached.
            RemoteProtocolError: its answer is not valid. It is reported as an offence too, unless
                the peer is in another run.
        """
        held = b"".join(self._tags_held())
        try:
            async with asked(
                self._transport, peer, STATEMENTS_PROTOCOL, b"", held, at_once=True
            ) as stream:
                message, _ = await receive_frame(stream, payload_bytes_max=0)
            await self._take_all(peer, decode_statement_store(message))
        except RemoteProtocolError as error:
            if peer in self._other_runs:
                await self._transport.disconnect(peer)
            else:
                self._listener.offence(peer, error)
            raise

    async def try_reconcile(self, peer: PeerId) -> None:
        """The same in bounded time. An error is logged."""
        with trio.move_on_after(RECONCILE_TIMEOUT_SECONDS):
            try:
                await self.reconcile(peer)
            except (TransportError, RemoteProtocolError) as error:
                log.debug("exchange failed", peer=peer, error=str(error))

    def _tags_held(self) -> list[bytes]:
        """Returns the tags of what this node holds, and of what it does not want now."""
        return [*self._store.tags(), *self._unwanted.tags()][:STATEMENTS_MAX]

    async def _take_all(self, peer: PeerId, statements: Sequence[Signed]) -> None:
        """Takes one statement after the other and lets other tasks run in between: signatures take
        time, and the peer chose how many there are."""
        connected = {*self._transport.peers(), peer}
        num_strangers = 0
        refused: list[Signed] = []
        try:
            for signed in statements:
                is_stranger = signed.author not in connected
                if is_stranger and num_strangers == STRANGERS_PER_RECONCILIATION:
                    continue
                if self._take(peer, signed):
                    num_strangers += is_stranger
                elif not self._store.has(signed.digest):
                    refused.append(signed)
                await trio.lowlevel.checkpoint()
        finally:
            self._unwanted.note_refused(refused)

    async def _serve(self, stream: Stream) -> None:
        has_standing = self._store.has_standing(stream.peer_id)
        now = trio.current_time()
        if not self._answers.admits(now, stream.peer_id, has_standing=has_standing):
            await stream.reset()
            return
        async with answering(stream, RECONCILE_TIMEOUT_SECONDS, self._listener.offence):
            _, held = await receive_frame(
                stream, message_bytes_max=0, payload_bytes_max=STATEMENTS_MAX * TAG_BYTES
            )
            if len(held) % TAG_BYTES:
                raise MalformedError(f"request for statements of {len(held)} bytes")
            tags = {
                bytes(held[start : start + TAG_BYTES]) for start in range(0, len(held), TAG_BYTES)
            }
            reply = _reply_encoder.encode(self._store.missing_from(tags))
            assert len(reply) <= limits.FRAME_MESSAGE_BYTES_MAX
            await send_frame(stream, reply)
