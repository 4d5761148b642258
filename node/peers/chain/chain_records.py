"""The commit records of the chain between peers: served, and learned on the way to a head.

`protocol.wire.chain_messages` has the messages.

Each record is checked with its votes. Pages of records are asked for from the newest round that is
known here on, and from further back where they do not follow a known round; a chain whose older
headers are gone begins at a signed checkpoint (`chain_adoption`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.network.frames import answering, ask, receive_message, send_frame
from gossamer.node.network.transport import OffenceHandler, Stream, Transport, TransportError
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.state.commit_records import decode_commit
from gossamer.protocol.wire.chain_messages import (
    CHAIN_PROTOCOL,
    CHAIN_REQUEST_BYTES_MAX,
    ChainRequest,
    decode_chain_reply,
    decode_chain_request,
)

REQUEST_SECONDS = 15.0
"""Longest wait for one page of commit records, at most some 256 KiB."""

PAGES_MAX = 4096
"""Pages in one catching up: a chain of 250,000 rounds."""

AdmitsRecord = Callable[[PeerId, Commit, Header], bool]
"""Returns whether a record of (bringer, record, its header) is kept."""


async def _adopt_nothing(_peer: PeerId) -> bool:
    return False


OpenedCommit: TypeAlias = tuple[Commit, Header]
"""A commit record that was checked, and its header."""


class BehindError(Exception):
    """The wanted head could not be reached now; the text says why."""


class UnknownHeadError(BehindError):
    """The peer that was asked has no way to that head itself."""


class ChainRecords:
    """Serves the own chain's records, and learns others'."""

    def __init__(
        self,
        transport: Transport,
        committed: CommittedState,
        *,
        run_in_thread: RunInThread,
        open_commit: Callable[[Commit], Header],
        on_offence: OffenceHandler,
        uploads: Uploads,
    ) -> None:
        """
        Args:
            open_commit: checks a commit record.
            uploads: the order in which peers are served.
        """
        self._transport = transport
        self._committed = committed
        self._run_in_thread = run_in_thread
        self._open_commit = open_commit
        self._on_offence = on_offence
        self._uploads = uploads
        self.admits_record: AdmitsRecord = lambda _bringer, _commit, _header: True
        """Returns whether a record that a peer brings is kept."""
        self.adopt: Callable[[PeerId], Awaitable[bool]] = _adopt_nothing
        """Begins the chain at a checkpoint of a peer. Returns False if it has no newer one."""
        self.unfinished: set[Digest] = set()
        """Rounds on the way to a head, up to which the records have come. Their states are no goal:
        for old ones, no peer has them any more."""
        transport.handle(CHAIN_PROTOCOL, self._serve)

    async def learn(self, head: Digest, peer: PeerId) -> None:
        """Gets the commit records on the way to a head that `peer` holds.

        Raises:
            UnknownHeadError: the peer does not know the way.
            BehindError: it cannot be reached, or the way is too long.
            RemoteProtocolError: it sent records that are not committed (its offence).
        """
        chain = self._committed.chain
        self.unfinished.intersection_update(chain.tips())
        # Known rounds need not come again: a peer that joins after many rounds learns them page by
        # page, and a new one is announced before the last page is there.
        after_round = max(chain.entry(tip).round for tip in chain.tips())
        after_round = max(after_round, self._committed.entry.round)
        step = limits.HEADERS_PER_REPLY_MAX
        has_asked = False
        for _ in range(PAGES_MAX):
            if chain.is_whole(head):
                return
            first_round = 0 if chain.start is None else chain.start.round
            # Where a record is missing, that one is asked for: the disk of the peer may have lost
            # another one behind it, and then the peer knows no way to the head either.
            wanted = head
            if (oldest := chain.oldest_behind_gap(head)) is not None:
                wanted, after_round = oldest.parent, min(after_round, oldest.round - 2)
            after_round = max(after_round, first_round)
            start = chain.start
            page = await self.request(peer, ChainRequest(wanted, after_round))
            if chain.start is not start:
                continue  # another peer's checkpoint is the beginning now: this page follows none
            if not page and after_round == first_round:
                if has_asked or not await self.adopt(peer):
                    raise UnknownHeadError(f"{short(peer)} does not know the way to {short(head)}")
                has_asked = True
                continue
            if not page:
                # Of two branches the heavier one may have no more rounds than mine.
                after_round = max(first_round, after_round - step)
                step *= 2
                continue
            first = page[0][1]
            if not chain.may_follow(Digest(first.parent)):
                if after_round == 0:
                    raise MalformedError("chain that does not begin at the run")
                if after_round == first_round:
                    raise BehindError(
                        f"{short(head)} parts from this node's chain before round {first_round}: "
                        "older headers are gone. If the others are the run, stop this node and "
                        "join again with a new --state-dir"
                    )
                after_round = max(first_round, after_round - step)
                step *= 2
                continue
            if first.round != after_round + 1:
                # A page that was asked for before would come again without an end.
                raise MalformedError("a page of the chain that begins at another round")
            self._take(peer, page, wanted)
            after_round = page[-1][1].round
        raise BehindError("the chain is too long")

    def _take(self, peer: PeerId, page: Sequence[OpenedCommit], head: Digest) -> None:
        """Keeps a page of records whose first parent is known. Raises MalformedError if they do not
        follow each other, BehindError if the peer has brought as much as it may."""
        chain, parent = self._committed.chain, Digest(page[0][1].parent)
        for place, (commit, header) in enumerate(page):
            if not chain.entry(parent).is_parent_of(header):
                raise MalformedError("chain whose rounds do not follow each other")
            if not self.admits_record(peer, commit, header):
                if place:
                    self.unfinished.add(parent)
                raise BehindError(f"{short(peer)} has brought as many records as are kept")
            self.unfinished.discard(parent)
            parent = chain.add(commit, header)
        if parent != head:
            self.unfinished.add(parent)

    async def request(self, peer: PeerId, request: ChainRequest) -> list[OpenedCommit]:
        """Commit records of a peer, each of them checked, and not whether they follow each other.

        Raises:
            BehindError: it does not answer.
            RemoteProtocolError: it sends something else, or records that are not committed.
        """
        try:
            encoded = to_msgpack(request)
            message = await ask(self._transport, peer, CHAIN_PROTOCOL, encoded, REQUEST_SECONDS)
        except (TransportError, trio.TooSlowError) as error:
            raise BehindError(f"{short(peer)} did not answer: {error}") from error
        opened = []
        for record in decode_chain_reply(message):
            commit = decode_commit(record)
            opened.append((commit, self._open_commit(commit)))
            await trio.lowlevel.checkpoint()  # up to 256 signatures each
        return opened

    async def _serve(self, stream: Stream) -> None:
        async with answering(stream, REQUEST_SECONDS, self._on_offence):
            message = await receive_message(stream, CHAIN_REQUEST_BYTES_MAX)
            request = decode_chain_request(message)
            # Before the records are read: that takes more than to ask for them.
            async with self._uploads.page(stream.peer_id):
                chain = self._committed.chain
                page = await self._run_in_thread(
                    lambda: to_msgpack(
                        chain.records_after(Digest(request.head), request.after_round)
                    )
                )
                await send_frame(stream, page)
