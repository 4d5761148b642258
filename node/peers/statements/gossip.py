"""Gossip: signed statements go out to all peers and come in from them.

Gossipsub carries statements quickly and may lose them. The `StatementStore` keeps those that still
matter, and comparisons with the stores of other peers (`store_comparison`) bring what gossip lost.
So nothing depends on a single gossip message. What is no news goes by comparisons alone
(`Gossip.keep`), unless a member lives by it (`Gossip.repeat`): a comparison brings each statement
once, and gossip may repeat it.

Topics:   gossamer/<start of the run id>/members   Signed(Announce)
          gossamer/<start of the run id>/rounds    Signed(Ready | Accusation | Vote), rosters
                                                   (`compact_rosters`) and commit records

A gossip message is one byte for its kind, then msgpack.
"""

from __future__ import annotations

import random

import structlog
import trio

from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import Transport, TransportError
from gossamer.node.peers.statements.compact_rosters import CompactRosters
from gossamer.node.peers.statements.listeners import GossipListener
from gossamer.node.peers.statements.other_runs import OtherRuns
from gossamer.node.peers.statements.store_comparison import StoreComparison
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.conduct.gossip_quota import OWN_RATE
from gossamer.protocol.policy.conduct.throttle import Throttle
from gossamer.protocol.policy.statement_store import StatementStore
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.state.commit_records import decode_commit, encode_commit
from gossamer.protocol.wire.envelopes import decode_signed, open_signed, seal, signing_bytes
from gossamer.protocol.wire.gossip_messages import (
    CompactRoster,
    decode_compact,
    decode_own,
    encode_compact,
    encode_own,
)
from gossamer.protocol.wire.statements import (
    Announce,
    Extension,
    MoreData,
    Ready,
    Rollback,
    Roster,
    Signed,
    Statement,
    version_of,
)

TOPIC_RUN_BYTES = 8
"""Bytes of the run id in a topic. Each message carries its topic, and each statement is signed for
the whole run id."""

PUBLISHING_RING_MAX = 4
"""Members of the largest ring that publish its commit record. A record has the roster and the votes
in it, so its size grows with the ring, and nearly all peers are members and have it. Of a larger
ring none publishes it: a peer that lacks it asks for the head that the members announce."""

OUTBOX_MAX = 1024
"""Messages that wait to be published. When the outbox is full, new messages are dropped, and
anti-entropy brings them later."""

_STATEMENT = b"\x00"
_COMMIT = b"\x01"
_ROSTER = b"\x02"
_OWN = b"\x03"

log = structlog.get_logger("gossip")


def topics_of(run_id: Digest) -> tuple[str, str]:
    """The topics of a run: of announcements, and of all other statements."""
    run = run_id[:TOPIC_RUN_BYTES].hex()
    return f"gossamer/{run}/members", f"gossamer/{run}/rounds"


class Gossip:
    """Publishes and receives for one run. Messages go out while `run` is running.

    It has more than 12 attributes: the parts of gossip that it connects, and what it has sent.
    """

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        run_id: Digest,
        listener: GossipListener,
        randomness: random.Random,
    ) -> None:
        """`randomness`: for the choice of the peer to compare stores with, and the time for it."""
        self._transport = transport
        self._identity = identity
        self._run_id = run_id
        self._listener = listener
        self._newest_own: Announce | None = None
        self._posted: set[Digest] = set()
        self.other_runs = OtherRuns(listener.is_member)
        self.statement_store = StatementStore(near=lambda: {*transport.peers(), identity.peer_id})
        self._comparison = StoreComparison(
            transport, self.statement_store, listener, self.other_runs, self._take_compared,
            randomness,
        )  # fmt: skip
        self._rosters = CompactRosters(
            self.statement_store, self._is_good, self._comparison.try_reconcile
        )
        self._members_topic, self._rounds_topic = topics_of(run_id)
        self._send_outbox, self._outbox = trio.open_memory_channel[tuple[str, bytes]](OUTBOX_MAX)

    def start(self) -> None:
        """Begins to listen. Call once, before the first connection."""
        self._transport.subscribe(self._members_topic, self._received, retains=True)
        self._transport.subscribe(self._rounds_topic, self._received)
        self._comparison.start()

    async def run(self) -> None:
        """Publishes, and compares stores with other peers, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_outbox)
            nursery.start_soon(self._comparison.run)
            nursery.start_soon(self._rosters.run)

    # Out

    def say(self, statement: Statement) -> Signed:
        """Signs a statement, stores it and publishes it."""
        signed = self._seal(statement)
        self.publish(signed, statement)
        return signed

    def repeat(self, announce: Announce) -> Signed:
        """Signs an announcement, stores it and publishes it, and does not count it as news."""
        signed = self.keep(announce)
        self._enqueue(self._members_topic, _OWN + encode_own(signed))
        return signed

    def keep(self, statement: Statement) -> Signed:
        """Signs a statement and stores it. Others take it when they compare stores."""
        signed = self._seal(statement)
        self.statement_store.post(signed, statement)
        return signed

    def _seal(self, statement: Statement) -> Signed:
        if isinstance(statement, Announce):
            self._newest_own = statement
        return seal(statement, self._identity.peer_id, self._run_id, self._identity.sign)

    def publish(self, signed: Signed, statement: Statement) -> None:
        """Stores and publishes a statement that is signed already."""
        self._comparison.note_news()
        self.statement_store.post(signed, statement)
        topic = self._members_topic if isinstance(statement, Announce) else self._rounds_topic
        if signed.author != self._identity.peer_id:
            self._enqueue(topic, _STATEMENT + to_msgpack(signed))
        elif isinstance(statement, Roster):
            self._enqueue(topic, _ROSTER + encode_compact(signed, statement))
        else:
            self._enqueue(topic, _OWN + encode_own(signed))

    def keep_posted(self, signed: Signed, statement: Statement) -> None:
        """Publishes an order to all once in this life, and stores it again where others needed the
        room. There are as many orders as the founder and the keepers may sign in a run."""
        if signed.digest not in self._posted:
            self._posted.add(signed.digest)
            self.publish(signed, statement)
        elif not self.statement_store.has(signed.digest):
            self.statement_store.post(signed, statement)

    def publish_commit(self, commit: Commit, num_members: int) -> None:
        """Publishes the record of a round that this node has just committed, if its ring is small.

        Args:
            num_members: of the round's ring.
        """
        if num_members <= PUBLISHING_RING_MAX:
            self._comparison.note_news()
            self._enqueue(self._rounds_topic, _COMMIT + encode_commit(commit))

    def _enqueue(self, topic: str, data: bytes) -> None:
        try:
            self._send_outbox.send_nowait((topic, data))
        except trio.WouldBlock:
            log.warning("gossip is congested: anti-entropy has to bring this message", topic=topic)

    async def _publish_outbox(self) -> None:
        rate = Throttle(OWN_RATE)
        async for topic, data in self._outbox:
            # Others take a peer that publishes more for one that floods, and ban it.
            await trio.sleep(rate.take(trio.current_time()))
            try:
                await self._transport.publish(topic, data)
            except TransportError as error:
                log.debug("could not publish", topic=topic, error=str(error))

    # In

    def _received(self, author: PeerId, data: bytes) -> bool:
        """Takes a gossip message and returns whether it is passed on."""
        try:
            return self._take_message(author, data)
        except RemoteProtocolError as error:
            self._listener.offence(author, error)
            return False

    def _take_message(self, author: PeerId, data: bytes) -> bool:
        if data[:1] == _OWN:
            return self._take(author, decode_own(author, data[1:]))
        if data[:1] == _STATEMENT:
            return self._take(author, decode_signed(data[1:]))
        if data[:1] == _COMMIT:
            if not self._listener.heard_commit(decode_commit(data[1:])):
                return False
            self._comparison.note_news()
            return True
        if data[:1] == _ROSTER:
            return self._take_roster(author, decode_compact(data[1:]))
        raise MalformedError("gossip message of an unknown kind")

    def _take(self, bringer: PeerId, signed: Signed, *, compared: bool = False) -> bool:
        """Takes a statement that `bringer` made or passed on, and returns whether it is new here.

        An error in it is its author's offence if the author signed it, and else raised: the
        bringer's.

        Args:
            compared: a comparison brought it. Then an announcement is no news: it says what has
                changed little, such as a speed (`keep`).
        """
        author = PeerId(signed.author)
        if author == self._identity.peer_id:
            self._take_own(signed)
            return False
        if not self._listener.is_welcome(author):
            return False
        if self.statement_store.has(signed.digest):
            return False
        try:
            # The signature is checked last: that takes most of the time, and most of the statements
            # that are not taken have a good one.
            if not self._listener.admits(
                author, open_signed(signed, self._run_id, lambda *_: True)
            ):
                return False
            statement = open_signed(signed, self._run_id, verify)
        except RemoteProtocolError as error:
            if not self._is_good(signed):
                raise ForgedError(f"{author} did not sign this statement") from error
            if author == bringer:
                raise
            self._listener.offence(author, error)
            return False
        self._listener.verified(signed, statement)
        if not self.statement_store.post(signed, statement):
            return False
        says_something_new = self._listener.heard_statement(signed, statement)
        if says_something_new and not (compared and isinstance(statement, Announce)):
            self._comparison.note_news()
        if isinstance(statement, Ready):
            for roster in self._rosters.completed():
                self._take(PeerId(roster.author), roster)
        return True

    def _take_roster(self, author: PeerId, compact: CompactRoster) -> bool:
        """Takes a roster, or waits for the `Ready` in it that are not here yet."""
        if not self._listener.is_welcome(author):
            return False
        signed = self._rosters.put_together(author, compact)
        if signed is not None:
            return self._take(author, signed)
        self._rosters.wait(author, compact)
        return False

    def _is_good(self, signed: Signed) -> bool:
        payload = signing_bytes(self._run_id, signed.payload)
        return len(signed.signature) == 64 and verify(
            PeerId(signed.author), payload, signed.signature
        )

    def _take_own(self, signed: Signed) -> None:
        """Takes a statement of this node that comes back. RemoteProtocolError: this node did not
        sign it."""
        mine = self._newest_own
        statement = open_signed(signed, self._run_id, lambda *_: True)
        if (
            mine is not None
            and isinstance(statement, Announce)
            and version_of(statement) > version_of(mine)
        ):
            open_signed(signed, self._run_id, verify)
            self._listener.heard_own(statement)
        is_kept = isinstance(statement, Roster | Rollback | Extension | MoreData)
        if is_kept and not self.statement_store.has(signed.digest):
            # An earlier life organised this ring. While that ring works, this life begins no other.
            # A founder that lost its disk hears of its own orders to all in the same way.
            open_signed(signed, self._run_id, verify)
            if self.statement_store.post(signed, statement):
                self._listener.heard_statement(signed, statement)

    # Comparisons of stores

    async def reconcile(self, peer: PeerId) -> None:
        """Takes what this node lacks from a peer's store, see `StoreComparison.reconcile`."""
        await self._comparison.reconcile(peer)

    def _take_compared(self, peer: PeerId, signed: Signed) -> bool:
        """Takes a statement of a peer's store, see `_take`."""
        try:
            return self._take(peer, signed, compared=True)
        except ForgedError:
            if not self._is_good(signed):
                self.other_runs.note_forged(peer, PeerId(signed.author))
            raise
