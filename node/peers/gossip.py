"""Gossip and anti-entropy: signed statements out to everybody, and everybody's statements in.

Statements go out by gossipsub, which is quick and may lose them. What still matters lies on the
`StatementStore`; every `RECONCILE_SECONDS` this node compares its board with one random peer's and
takes what it lacks. So nothing hangs on a gossip message that was lost.

Topics:   gossamer/<run id>/members   Signed(Announce)
          gossamer/<run id>/rounds    Signed(Ready | Roster | Suspect | Vote), and commit records
Stream:   /gossamer/board/1           request: digests of the statements that I hold, 32 bytes each
                                      reply:   the statements that I lack

A gossip message is one byte that says what follows, then its msgpack.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import structlog
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import OffenceHandler, Stream, Transport, TransportError
from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.policy.statement_store import STATEMENTS_MAX, StatementStore
from gossamer.protocol.state.chain import Commit, decode_commit, encode_commit
from gossamer.protocol.wire.statements import (
    Announce,
    Roster,
    Signed,
    Statement,
    decode_signed,
    encode_signed,
    open_signed,
    seal,
    signing_bytes,
    version_of,
)

STATEMENTS_PROTOCOL = "/gossamer/board/1"

RECONCILE_SECONDS = 1.0
"""A statement that gossip lost is here after about this long; one exchange costs a few KiB."""

RECONCILE_TIMEOUT_SECONDS = 10.0
"""A peer that takes longer for a few hundred KiB is as good as gone for this purpose."""

OUTBOX_MAX = 1024
"""Messages waiting to be published. When it is full the oldest matter least: anti-entropy
brings what is dropped."""

_STATEMENT = b"\x00"
_COMMIT = b"\x01"

log = structlog.get_logger("gossip")

_reply_encoder = msgspec.msgpack.Encoder()
_reply_decoder = msgspec.msgpack.Decoder(list[Signed])

STRANGERS_PER_RECONCILIATION = 64
"""Of what one peer hands us at once so many statements may be by authors that are not connected
here: a newcomer knows a swarm of hundreds after some seconds, and a liar's inventions stay few."""

StatementHandler = Callable[[Signed, Statement], None]
CommitHandler = Callable[[PeerId, Commit], bool | None]
"""False: not news, and not to be passed on."""
Admission = Callable[[PeerId, Statement], bool]
"""Whether a statement of this author is taken now. RemoteProtocolError for one that nobody may
make."""


def decode_statement_store(message: bytes | bytearray) -> list[Signed]:
    """Statements that were not looked at, at most `STATEMENTS_MAX`. Raises MalformedError."""
    try:
        return _reply_decoder.decode(message)[:STATEMENTS_MAX]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a board: {error}") from error


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
        on_own: Callable[[Announce], None] = lambda _announce: None,
        is_welcome: Callable[[PeerId], bool] = lambda _author: True,
        admits: Admission = lambda _author, _statement: True,
    ) -> None:
        """`on_own` gets announcements of ours that we did not make in this life and that others
        hold to be newer. `is_welcome` is asked about an author before anything of it is looked at.

        What is not taken is not posted either, so a peer that has it offers it again.
        """
        self._transport = transport
        self._identity = identity
        self._run_id = run_id
        self._on_statement = on_statement
        self._on_commit = on_commit
        self._on_offence = on_offence
        self._random = randomness
        self._on_own = on_own
        self._newest_own: Announce | None = None
        self._is_welcome = is_welcome
        self._admits = admits
        self.statement_store = StatementStore(near=lambda: {*transport.peers(), identity.peer_id})
        self._members_topic = f"gossamer/{run_id.hex()}/members"
        self._rounds_topic = f"gossamer/{run_id.hex()}/rounds"
        self._send_outbox, self._outbox = trio.open_memory_channel[tuple[str, bytes]](OUTBOX_MAX)

    def start(self) -> None:
        """Begins to listen; call once, before the first connection."""
        self._transport.subscribe(self._members_topic, self._received)
        self._transport.subscribe(self._rounds_topic, self._received)
        self._transport.handle(STATEMENTS_PROTOCOL, self._serve_reconciliation)

    async def run(self) -> None:
        """Publishes and exchanges boards until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_outbox)
            nursery.start_soon(self._reconcile_forever)

    # Out

    def say(self, statement: Statement) -> Signed:
        """Signs a statement, posts it on our own board and publishes it."""
        if isinstance(statement, Announce):
            self._newest_own = statement
        signed = seal(statement, self._identity.peer_id, self._run_id, self._identity.sign)
        self.publish(signed, statement)
        return signed

    def publish(self, signed: Signed, statement: Statement) -> None:
        """Publishes a statement that is signed already."""
        self.statement_store.post(signed, statement)
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

    def _received(self, author: PeerId, data: bytes) -> bool:
        """A gossip message; whether it is news."""
        try:
            if data[:1] == _STATEMENT:
                return self._take(author, decode_signed(data[1:]))
            if data[:1] == _COMMIT:
                return self._on_commit(author, decode_commit(data[1:])) is not False
            raise MalformedError("gossip message of an unknown kind")
        except RemoteProtocolError as error:
            self._on_offence(author, error)
            return False

    def _take(self, bringer: PeerId, signed: Signed) -> bool:
        """A statement that `bringer` said or handed on; whether it is news.

        What is wrong with it is its author's offence if the author signed it.

        Raises:
            RemoteProtocolError: it is the bringer's.
        """
        author = PeerId(signed.author)
        if author == self._identity.peer_id:
            self._take_own(signed)
            return False
        if not self._is_welcome(author):
            return False
        if self.statement_store.has(signed.digest):
            return False
        try:
            # The signature last: it takes most of the time, and most of what is not taken has one.
            if not self._admits(author, open_signed(signed, self._run_id, lambda *_: True)):
                return False
            statement = open_signed(signed, self._run_id, verify)
        except RemoteProtocolError as error:
            payload = signing_bytes(self._run_id, signed.payload)
            if author == bringer or not verify(author, payload, signed.signature):
                raise
            self._on_offence(author, error)
            return False
        if not self.statement_store.post(signed, statement):
            return False
        self._on_statement(signed, statement)
        return True

    def _take_own(self, signed: Signed) -> None:
        """Something of ours that comes back. RemoteProtocolError if we did not sign it."""
        mine = self._newest_own
        statement = open_signed(signed, self._run_id, lambda *_: True)
        if (
            mine is not None
            and isinstance(statement, Announce)
            and version_of(statement) > version_of(mine)
        ):
            open_signed(signed, self._run_id, verify)
            self._on_own(statement)
        if isinstance(statement, Roster) and not self.statement_store.has(signed.digest):
            # An earlier life organised this ring. As long as it is at work I begin no other.
            open_signed(signed, self._run_id, verify)
            if self.statement_store.post(signed, statement):
                self._on_statement(signed, statement)

    # Anti-entropy

    async def _reconcile_forever(self) -> None:
        while True:
            await trio.sleep(RECONCILE_SECONDS * self._random.uniform(0.8, 1.2))
            peers = self._transport.peers()
            if not peers:
                continue
            peer = self._random.choice(peers)
            with trio.move_on_after(RECONCILE_TIMEOUT_SECONDS):
                try:
                    await self.reconcile(peer)
                except (TransportError, RemoteProtocolError) as error:
                    log.debug("exchange failed", peer=peer, error=str(error))

    async def reconcile(self, peer: PeerId) -> None:
        """Takes from a peer's board what ours lacks.

        Raises:
            TransportError: the peer cannot be reached.
            RemoteProtocolError: it answered nonsense (reported as its offence too).
        """
        stream = await self._transport.open_stream(peer, STATEMENTS_PROTOCOL)
        try:
            try:
                held = self.statement_store.digests()
                await send_frame(stream, b"", b"".join(held))
                message, _ = await receive_frame(stream, payload_bytes_max=0)
            finally:
                with trio.CancelScope(shield=True):
                    await stream.reset()
            await self._take_all(peer, decode_statement_store(message))
        except RemoteProtocolError as error:
            self._on_offence(peer, error)
            raise

    async def _take_all(self, peer: PeerId, statements: Sequence[Signed]) -> None:
        """In pieces, because signatures take time and the peer chose how many there are."""
        connected = {*self._transport.peers(), peer}
        num_strangers = 0
        for signed in statements:
            is_stranger = signed.author not in connected
            if is_stranger and num_strangers == STRANGERS_PER_RECONCILIATION:
                continue
            num_strangers += self._take(peer, signed) and is_stranger
            await trio.lowlevel.checkpoint()

    async def _serve_reconciliation(self, stream: Stream) -> None:
        with trio.move_on_after(RECONCILE_TIMEOUT_SECONDS):
            try:
                _, held = await receive_frame(
                    stream, message_bytes_max=0, payload_bytes_max=STATEMENTS_MAX * DIGEST_BYTES
                )
                if len(held) % DIGEST_BYTES:
                    raise MalformedError(f"board request of {len(held)} bytes")
                digests = {
                    bytes(held[start : start + DIGEST_BYTES])
                    for start in range(0, len(held), DIGEST_BYTES)
                }
                reply = _reply_encoder.encode(self.statement_store.missing_from(digests))
                assert len(reply) <= limits.FRAME_MESSAGE_BYTES_MAX
                await send_frame(stream, reply)
                await stream.close()
                return
            except RemoteProtocolError as error:
                self._on_offence(stream.peer_id, error)
        await stream.reset()
