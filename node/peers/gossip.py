"""Gossip and anti-entropy: signed statements out to everybody, and everybody's statements in.

Statements go out by gossipsub, which is quick and may lose them. What still matters lies on the
`Board`; every `EXCHANGE_SECONDS` this node compares its board with one random peer's and takes what
it lacks. So nothing hangs on a gossip message that was lost.

Topics:   gossamer/<run id>/members   Signed(Announce)
          gossamer/<run id>/rounds    Signed(Ready | Roster | Suspect | Vote), and commit records
Stream:   /gossamer/board/1           request: digests of the statements that I hold, 32 bytes each
                                      reply:   the statements that I lack

A gossip message is one byte that says what follows, then its msgpack.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import structlog
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import Stream, Transport, TransportError
from gossamer.protocol import limits
from gossamer.protocol.board import STATEMENTS_MAX, Board
from gossamer.protocol.chain import Commit, decode_commit, encode_commit
from gossamer.protocol.errors import MalformedError, OversizedError, RemoteProtocolError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.messages import (
    Announce,
    Signed,
    Statement,
    decode_signed,
    encode_signed,
    open_signed,
    seal,
)

BOARD_PROTOCOL = "/gossamer/board/1"

EXCHANGE_SECONDS = 1.0
"""A statement that gossip lost is here after about this long; one exchange costs a few KiB."""

EXCHANGE_TIMEOUT_SECONDS = 10.0
"""A peer that takes longer for a few hundred KiB is as good as gone for this purpose."""

OUTBOX_MAX = 1024
"""Messages waiting to be published. When it is full the oldest matter least: anti-entropy
brings what is dropped."""

_STATEMENT = b"\x00"
_COMMIT = b"\x01"

log = structlog.get_logger("gossip")

_reply_encoder = msgspec.msgpack.Encoder()
_reply_decoder = msgspec.msgpack.Decoder(list[Signed])

StatementHandler = Callable[[Signed, Statement], None]
CommitHandler = Callable[[PeerId, Commit], None]
OffenceHandler = Callable[[PeerId, RemoteProtocolError], None]


class Gossip:
    """Publishes and receives for one run. `run` has to be running for anything to go out."""

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        run_id: Digest,
        *,
        on_statement: StatementHandler,
        on_commit: CommitHandler,
        on_offence: OffenceHandler,
        randomness: random.Random,
    ) -> None:
        self._transport = transport
        self._identity = identity
        self._run_id = run_id
        self._on_statement = on_statement
        self._on_commit = on_commit
        self._on_offence = on_offence
        self._random = randomness
        self.board = Board()
        self._members_topic = f"gossamer/{run_id.hex()}/members"
        self._rounds_topic = f"gossamer/{run_id.hex()}/rounds"
        self._send_outbox, self._outbox = trio.open_memory_channel[tuple[str, bytes]](OUTBOX_MAX)

    def start(self) -> None:
        """Begins to listen; call once, before the first connection."""
        self._transport.subscribe(self._members_topic, self._received)
        self._transport.subscribe(self._rounds_topic, self._received)
        self._transport.handle(BOARD_PROTOCOL, self._serve_exchange)

    async def run(self) -> None:
        """Publishes and exchanges boards until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_outbox)
            nursery.start_soon(self._exchange_forever)

    # Out

    def say(self, statement: Statement) -> Signed:
        """Signs a statement, posts it on our own board and publishes it."""
        signed = seal(statement, self._identity.peer_id, self._run_id, self._identity.sign)
        self.publish(signed, statement)
        return signed

    def publish(self, signed: Signed, statement: Statement) -> None:
        """Publishes a statement that is signed already."""
        self.board.post(signed, statement)
        topic = self._members_topic if isinstance(statement, Announce) else self._rounds_topic
        self._enqueue(topic, _STATEMENT + encode_signed(signed))

    def publish_commit(self, commit: Commit) -> None:
        self._enqueue(self._rounds_topic, _COMMIT + encode_commit(commit))

    def _enqueue(self, topic: str, data: bytes) -> None:
        try:
            self._send_outbox.send_nowait((topic, data))
        except trio.WouldBlock:
            log.warning("gossip is congested; a message was left to anti-entropy", topic=topic)

    async def _publish_outbox(self) -> None:
        async for topic, data in self._outbox:
            try:
                await self._transport.publish(topic, data)
            except TransportError as error:
                log.debug("could not publish", topic=topic, error=str(error))

    # In

    def _received(self, author: PeerId, data: bytes) -> None:
        try:
            if data[:1] == _STATEMENT:
                self._take(decode_signed(data[1:]))
            elif data[:1] == _COMMIT:
                self._on_commit(author, decode_commit(data[1:]))
            else:
                raise MalformedError("gossip message of an unknown kind")
        except RemoteProtocolError as error:
            self._on_offence(author, error)

    def _take(self, signed: Signed) -> None:
        if signed.author == self._identity.peer_id:
            return
        statement = open_signed(signed, self._run_id, verify)
        if self.board.post(signed, statement):
            self._on_statement(signed, statement)

    # Anti-entropy

    async def _exchange_forever(self) -> None:
        while True:
            await trio.sleep(EXCHANGE_SECONDS * self._random.uniform(0.8, 1.2))
            peers = self._transport.peers()
            if not peers:
                continue
            peer = self._random.choice(peers)
            with trio.move_on_after(EXCHANGE_TIMEOUT_SECONDS):
                try:
                    await self.exchange(peer)
                except (TransportError, RemoteProtocolError) as error:
                    log.debug("exchange failed", peer=peer, error=str(error))

    async def exchange(self, peer: PeerId) -> None:
        """Takes from a peer's board what ours lacks.

        Raises:
            TransportError: the peer cannot be reached.
            RemoteProtocolError: it answered nonsense (reported as its offence too).
        """
        stream = await self._transport.open_stream(peer, BOARD_PROTOCOL)
        try:
            held = self.board.digests()
            await send_frame(stream, b"", b"".join(held))
            message, _ = await receive_frame(stream)
        finally:
            with trio.CancelScope(shield=True):
                await stream.reset()
        try:
            try:
                statements = _reply_decoder.decode(message)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise MalformedError(f"not a board: {error}") from error
            for signed in statements[:STATEMENTS_MAX]:
                self._take(signed)
        except RemoteProtocolError as error:
            self._on_offence(peer, error)
            raise

    async def _serve_exchange(self, stream: Stream) -> None:
        with trio.move_on_after(EXCHANGE_TIMEOUT_SECONDS):
            try:
                _, held = await receive_frame(stream)
                if len(held) > STATEMENTS_MAX * DIGEST_BYTES or len(held) % DIGEST_BYTES:
                    raise OversizedError(f"board request of {len(held)} bytes")
                digests = {
                    bytes(held[start : start + DIGEST_BYTES])
                    for start in range(0, len(held), DIGEST_BYTES)
                }
                reply = _reply_encoder.encode(self.board.missing_from(digests))
                assert len(reply) <= limits.FRAME_MESSAGE_BYTES_MAX
                await send_frame(stream, reply)
                await stream.close()
                return
            except RemoteProtocolError as error:
                self._on_offence(stream.peer_id, error)
        await stream.reset()
