"""Anti-entropy: this node compares its store of statements with those of other peers.

Every second, and more seldom while there is no news, this node asks one random peer and takes what
it lacks. So a statement arrives even if gossip lost it.

Stream:   /gossamer/board/2   request: tags of 8 bytes of the statements that are held, or not
                                       wanted now (`Unwanted`)
                              reply:   the statements that the requester lacks
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec
import structlog
import trio

from gossamer.node.network.frames import answering, asked, receive_frame, send_frame
from gossamer.node.network.held_pages import STATEMENT_PAGES_MAX, HeldPages
from gossamer.node.network.transport import Stream, Transport, TransportError
from gossamer.node.peers.statements.listeners import GossipListener
from gossamer.node.peers.statements.other_runs import OtherRuns
from gossamer.protocol import limits
from gossamer.protocol.decoding import decoded
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.gossip_quota import AnswerQuota
from gossamer.protocol.policy.statement_store import STATEMENTS_MAX, StatementStore
from gossamer.protocol.wire.statements import TAG_BYTES, Signed

STATEMENTS_PROTOCOL = "/gossamer/board/2"

RECONCILE_SECONDS = 1.0
"""A statement that gossip lost arrives after about this time. One exchange costs some 300 bytes and
8 for each statement held."""

APART_SECONDS = 0.5
"""The same while a living member is not connected to this node: its statements come through others,
and in a large swarm by comparisons alone. The author publishes them to these others
(`Announcer.renew`)."""

QUIET_RECONCILE_SECONDS = 4.0
"""The same while there is no news. Comparisons bring nothing then but announcements that repeat
what was said, and no peer that lives by them compares so seldom (decision 127)."""

NEWS_SECONDS = 15.0
"""News is news for this long. The statements of a round, of which gossip may lose any, follow each
other within this time as a rule, and each of them is news itself."""

RECONCILE_TIMEOUT_SECONDS = 10.0
"""A peer that takes longer for a few hundred KiB is as good as gone for this purpose."""

STRANGERS_PER_RECONCILIATION = 64
"""Limit of the statements that one reply may bring of authors without a connection to this node. A
newcomer knows a swarm of hundreds after some seconds, and the inventions of a liar stay few."""

DROPPED_SECONDS = 5.0
"""Time for which this node does not take again what it dropped at a new head. Others drop it when
they get there; meanwhile they would send back a whole round's statements, the roster among them."""

REFUSED_SECONDS = 10.0
"""Time for which this node does not take again what it refused. It may well take it later, as it
takes a roster once it is connected to more of its members, and most rounds last longer than this.
There is a comparison each second, so what is refused for good costs a tenth of what it would."""

REFUSED_MAX = 1024
"""Refused statements that are named: 8 KiB of each request. The oldest are forgotten first."""

REFUSED_FREE_BYTES = 8 * limits.KIB
"""Bytes of refused statements of one comparison that the next one may bring again, the smallest
first. A few statements may come before their author is known or let in here, and matter within
seconds. So little costs nobody much."""

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
        take: Callable[[PeerId, Signed], bool],
        randomness: random.Random,
    ) -> None:
        """
        Args:
            take: checks a statement that a peer sent, stores it, and returns whether it is new
                here; raises RemoteProtocolError for an error of that peer.
            randomness: for the choice of the peer, and the time of a comparison.
        """
        self._transport = transport
        self._store = store
        self._listener = listener
        self._other_runs = other_runs
        self._take = take
        self._random = randomness
        self._unwanted = Unwanted(store, transport.peers)
        self._answers = AnswerQuota()
        self._pages = HeldPages(STATEMENT_PAGES_MAX)
        self._news_seconds = -math.inf
        """Local time of the newest news."""
        self._has_news = trio.Event()
        """Is set when there is news after a quiet time."""

    def start(self) -> None:
        """Begins to answer comparisons. Call once, before the first connection."""
        self._transport.handle(STATEMENTS_PROTOCOL, self._serve)

    async def run(self) -> None:
        """Compares the store with those of other peers, until cancelled."""
        compared: set[PeerId] = set()  # since they were connected
        while True:
            await self._until_next()
            peers = [peer for peer in self._transport.peers() if peer not in self._other_runs]
            compared &= {*peers}
            if not peers:
                continue
            peer = self._random.choice([p for p in peers if p not in compared] or peers)
            compared.add(peer)
            await self.try_reconcile(peer)

    def note_news(self) -> None:
        """Something was said that a node may have missed."""
        was_quiet = self._is_quiet()
        self._news_seconds = trio.current_time()
        if was_quiet:
            self._has_news.set()

    def _is_quiet(self) -> bool:
        return trio.current_time() > self._news_seconds + NEWS_SECONDS

    async def _until_next(self) -> None:
        """Returns when it is time for the next comparison."""
        began, share = trio.current_time(), self._random.uniform(0.8, 1.2)
        while True:
            self._has_news = trio.Event()
            interval_seconds = QUIET_RECONCILE_SECONDS if self._is_quiet() else RECONCILE_SECONDS
            if self._listener.is_apart():
                interval_seconds = APART_SECONDS
            with trio.move_on_at(began + share * interval_seconds) as wait:
                await self._has_news.wait()
            if wait.cancelled_caught:
                return

    async def reconcile(self, peer: PeerId) -> None:
        """Takes the statements from a peer's store that are missing in the own one.

        Raises:
            TransportError: the peer cannot be reached.
            RemoteProtocolError: its answer is not valid. It is reported as an offence too, unless
                the peer is in another run.
        """
        # What this node does not want now counts as held.
        held = [*self._store.tags(), *self._unwanted.tags()][:STATEMENTS_MAX]
        try:
            async with asked(
                self._transport, peer, STATEMENTS_PROTOCOL, b"", b"".join(held), at_once=True
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
            async with self._pages.place(is_member=has_standing):
                reply = _reply_encoder.encode(self._store.missing_from(tags))
                assert len(reply) <= limits.FRAME_MESSAGE_BYTES_MAX
                await send_frame(stream, reply)


class _Refused(NamedTuple):
    until_seconds: float
    """Local time."""
    far_author: PeerId | None
    """The author, if it had no connection to this node. What it says counts as soon as it has."""


class Unwanted:
    """The statements that a node does not hold, and that others are not to send it now.

    They are named beside what it holds. Else a neighbour would send them again at each comparison:
    it has not dropped them yet, or it took what this node refuses, because the two are connected to
    different peers.
    """

    def __init__(self, store: StatementStore, connected: Callable[[], Collection[PeerId]]) -> None:
        """`connected`: the peers that have a connection to this node."""
        self._store = store
        self._connected = connected
        self._dropped: dict[bytes, float] = {}
        """Tags of statements that were dropped lately, and the local time until which they count.
        The oldest first."""
        self._refused: dict[bytes, _Refused] = {}
        """By tag, the oldest first."""

    def note_refused(self, statements: Iterable[Signed]) -> None:
        """One comparison brought these statements, and this node did not take them."""
        connected = {*self._connected()}
        until_seconds = trio.current_time() + REFUSED_SECONDS
        num_bytes = 0
        for signed in sorted(statements, key=_bytes_of):
            num_bytes += _bytes_of(signed)
            if num_bytes <= REFUSED_FREE_BYTES:
                continue
            author, tag = PeerId(signed.author), signed.digest[:TAG_BYTES]
            self._refused.pop(tag, None)
            self._refused[tag] = _Refused(until_seconds, None if author in connected else author)
        for tag in list(self._refused)[:-REFUSED_MAX]:
            del self._refused[tag]

    def tags(self) -> list[bytes]:
        """Returns the tags of what is not to be sent now."""
        now, connected = trio.current_time(), {*self._connected()}
        for tag in self._store.take_dropped():
            self._dropped.pop(tag, None)
            self._dropped[tag] = now + DROPPED_SECONDS
        self._dropped = {tag: until for tag, until in self._dropped.items() if until > now}
        self._refused = {
            tag: refused
            for tag, refused in self._refused.items()
            if refused.until_seconds > now and refused.far_author not in connected
        }
        return [*self._dropped, *self._refused]


def _bytes_of(signed: Signed) -> int:
    return len(signed.author) + len(signed.payload) + len(signed.signature)
