"""Blocks between peers: serving ours, and getting theirs into the store.

Serving keeps one piece of a block (`PIECE_BYTES`) a stream in memory, and both streams and time are
bounded: a peer that asks and never reads costs a place (`stream_places`) for `SEND_SECONDS` and
nothing else.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import BinaryIO

import structlog
import trio

from gossamer.node.network.frames import asked, receive_message, send_frame
from gossamer.node.network.places import NoPlaceError
from gossamer.node.network.transport import OffenceHandler, Stream, Transport, TransportError
from gossamer.node.peers.blocks.fetching import OPEN_SECONDS, PASSES, Download, read_or_write
from gossamer.node.peers.blocks.stream_places import ServedStream, StreamPlaces
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.storage.block_files import BlockError, CorruptBlockError, MissingBlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.limits import BLOCK_BYTES_MAX, KIB
from gossamer.protocol.wire.block_messages import (
    BLOCK_MESSAGE_BYTES_MAX,
    BLOCKS_PROTOCOL,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from gossamer.protocol.wire.framing import PREFIX_BYTES, decode_prefix, encode_prefix

_log = structlog.get_logger()

PIECE_BYTES = 256 * KIB

STREAMS_MAX = 256
"""Streams that are served: 64 MiB of pieces in the worst case."""

STREAMS_PER_PEER_MAX = 16
"""A peer fetches state, shards and averages at once, each with up to four streams."""

IDLE_SECONDS = 60.0
"""An open stream without a request for so long is closed."""

SEND_SECONDS = 120.0
"""Longest time for sending one whole block: a little longer than a fetching side waits."""

TELL_SECONDS = 60.0
"""Time between two warnings of blocks that the disk does not give: a disk that fails does not give
one block after another."""

# Threads that check blocks for serving: the disk and two cores are busy with less.
_CHECKING_THREADS = 2


_IS_METERED = "this node's line is metered"


class FetchError(Exception):
    """Some blocks could not be had from anybody; `missing` are their digests."""

    def __init__(self, missing: Sequence[Digest], num_wanted: int, why: str) -> None:
        super().__init__(
            f"{len(missing)} of {num_wanted} blocks are missing, {short(missing[0])} is the first: "
            f"{why}. What arrived is kept; it goes on from there when a peer that has them is back"
        )
        self.missing = tuple(missing)


class BlockService:
    """Serves the store's blocks on `transport` and fetches missing ones into it.

    Args:
        on_offence: told when a peer sends wrong bytes or breaks the protocol.
        uploads: the order in which peers are served; without it there is no budget.

    Attributes:
        verify_failures: blocks received that did not have their digest.
    """

    def __init__(
        self,
        transport: Transport,
        store: BlockStore,
        on_offence: OffenceHandler = lambda _peer, _error: None,
        uploads: Uploads | None = None,
    ) -> None:
        self.verify_failures = 0
        self._transport = transport
        self._store = store
        self._on_offence = on_offence
        self.uploads = uploads or Uploads()
        self.spares_line: Callable[[], bool] = lambda: False
        """Returns whether no blocks are to be moved now: the owner's line is metered."""
        self._places = StreamPlaces(STREAMS_MAX)
        self._checking = trio.CapacityLimiter(_CHECKING_THREADS)
        self._num_useless = 0
        """Blocks of no use on the disk since the newest warning of them."""
        self._warned_seconds = -math.inf
        self._fetch_numbers = itertools.count()
        # Blocks that one of our fetches is getting; the event is set when it is done with them.
        self._fetching: dict[Digest, trio.Event] = {}
        transport.handle(
            BLOCKS_PROTOCOL,
            self._serve,
            streams_per_peer_max=STREAMS_PER_PEER_MAX,
        )

    async def fetch(
        self,
        digests: Iterable[Digest],
        sources: Callable[[], Sequence[PeerId]],
        *,
        passes: int | None = None,
        bytes_max: int = BLOCK_BYTES_MAX,
    ) -> None:
        """Get the blocks that are not in the store yet, from several peers at once.

        `sources` is called whenever a new peer may be asked; the peers should be connected.
        A block that another fetch is getting already is waited for, not
        downloaded twice. The blocks are pinned until the call is back: pin them yourself, before,
        to keep them longer. `passes`: how often everybody is asked without any success before it
        gives up, if not `PASSES`. `bytes_max`: most bytes of
        each block; a longer one counts as missing, and is not read.

        Raises:
            FetchError: no peer has some of them, after several attempts. The others are stored. Or
                this node spares its line, from the beginning or since a second.
            DiskError: the store could not write.

        Cancellation: what has been stored stays, the next fetch goes on from there.
        """
        wanted = list(dict.fromkeys(digests))
        if self.spares_line() and (missing := self._store.missing(wanted)):
            raise FetchError(missing, len(wanted), _IS_METERED)
        pin_name = f"fetch {next(self._fetch_numbers)}"
        self._store.pin(pin_name, wanted)
        try:
            await self._fetch(wanted, sources, passes or PASSES, bytes_max)
        finally:
            self._store.unpin(pin_name)

    async def fetch_checked(
        self,
        digests: Iterable[Digest],
        sources: Callable[[], Sequence[PeerId]],
        *,
        passes: int | None = None,
    ) -> None:
        """Fetches like `fetch`, and reads the blocks that are here already: damaged ones are
        fetched again.

        Use it for blocks that another process will read from the file, without the store's check.
        """
        wanted = list(dict.fromkeys(digests))
        await self.fetch(wanted, sources, passes=passes)
        problems: list[BlockError] = []
        for digest in wanted:
            try:
                size = self._store.size(digest) or 0
                await read_or_write(
                    size, partial(self._store.check, digest), limiter=self._checking
                )
            except BlockError as error:
                problems.append(error)
        if problems:
            await self._tell_useless(problems)
        await self.fetch(wanted, sources, passes=passes)

    async def _tell_useless(self, problems: Sequence[BlockError]) -> None:
        """Logs the blocks that the disk did not give, in one line with their number.

        Where one is gone, the disk may be: all that are gone are forgotten at once. Otherwise each
        would be found missing when it is wanted.
        """
        self._num_useless += len(problems)
        if any(isinstance(problem, MissingBlockError) for problem in problems):
            self._num_useless += await read_or_write(
                self._store.used_bytes(), self._store.forget_lost, limiter=self._checking
            )
        if trio.current_time() < self._warned_seconds + TELL_SECONDS:
            return
        _log.warning(
            "blocks on disk are of no use: check the disk. They are fetched again from peers",
            blocks=self._num_useless,
            first_problem=str(problems[0]),
        )
        self._num_useless, self._warned_seconds = 0, trio.current_time()

    async def is_at(self, peer_id: PeerId, digest: Digest) -> bool:
        """Asks a peer for a block, and hangs up when the answer begins.

        Returns whether the peer has it; False as well if there is no answer, or this node spares
        its line. A peer that has the block has then sent up to a window of the stream in vain.
        """
        if self.spares_line():
            return False
        request = encode_request(digest)
        try:
            with trio.fail_after(OPEN_SECONDS):
                async with asked(self._transport, peer_id, BLOCKS_PROTOCOL, request) as stream:
                    prefix = await stream.receive_exactly(PREFIX_BYTES)
                    num_bytes, _ = decode_prefix(prefix, message_bytes_max=BLOCK_MESSAGE_BYTES_MAX)
                    answer = decode_reply(await stream.receive_exactly(num_bytes))
        except (TransportError, trio.TooSlowError):
            return False
        except RemoteProtocolError as error:
            self._on_offence(peer_id, error)
            return False
        return answer == (digest, True)

    async def _fetch(
        self,
        wanted: list[Digest],
        sources: Callable[[], Sequence[PeerId]],
        passes: int,
        bytes_max: int,
    ) -> None:
        pending = dict.fromkeys(wanted)
        failed: list[Digest] = []
        why = ""
        while pending:
            pending = dict.fromkeys(self._store.missing(pending))
            ours = [digest for digest in pending if digest not in self._fetching]
            if ours:
                not_found, problem = await self._download(ours, sources, passes, bytes_max)
                if not_found:
                    failed += not_found
                    why = problem
                for digest in ours:
                    del pending[digest]
            for digest in pending:
                if (event := self._fetching.get(digest)) is not None:
                    await event.wait()
        still_missing = self._store.missing(failed)  # another fetch may have found one since
        if still_missing:
            raise FetchError(still_missing, len(wanted), why)

    async def _download(
        self,
        digests: list[Digest],
        sources: Callable[[], Sequence[PeerId]],
        passes: int,
        bytes_max: int,
    ) -> tuple[list[Digest], str]:
        """Returns (what is still missing, why)."""
        self._fetching.update((digest, trio.Event()) for digest in digests)
        download = Download(
            self._transport,
            self._store,
            digests,
            sources,
            on_stored=lambda digest: self._fetching.pop(digest).set(),
            on_offence=self._note_fetch_offence,
            spares_line=lambda: self.spares_line(),
            bytes_max=bytes_max,
            passes=passes,
        )
        try:
            await download.run()
        finally:
            for digest in download.wanted:
                self._fetching.pop(digest).set()
        if self.spares_line():
            return list(download.wanted), _IS_METERED
        if not download.peers_asked:
            return list(download.wanted), "there was no peer to ask"
        why = f"asked {len(download.peers_asked)} peers and none of them sent these"
        if download.last_problem:
            why += f" (last trouble: {download.last_problem})"
        return list(download.wanted), why

    def _note_fetch_offence(self, peer_id: PeerId, error: RemoteProtocolError) -> None:
        if isinstance(error, ForgedError):
            self.verify_failures += 1
        self._on_offence(peer_id, error)

    async def _serve(self, stream: Stream) -> None:
        """Handler of one inbound stream."""
        peer_id = stream.peer_id
        if self.spares_line():
            await stream.reset()
            return
        with trio.CancelScope() as scope:
            network = self._transport.network_of(peer_id)
            place = ServedStream(peer_id, network, self.uploads.is_member(peer_id), scope.cancel)
            try:
                self._places.take(trio.current_time(), place)
            except NoPlaceError:
                await stream.reset()
                return
            try:
                await self._serve_at(place, stream)
            finally:
                self._places.leave(place)
        if scope.cancelled_caught:  # its place was given to another stream
            await stream.reset()

    async def _serve_at(self, place: ServedStream, stream: Stream) -> None:
        """Answers the requests of a stream that has a place."""
        try:
            while (digest := await self._receive_request(place, stream)) is not None:
                if self.spares_line():  # perhaps only since the stream was opened
                    await stream.reset()
                    return
                with trio.fail_after(SEND_SECONDS):
                    await self._answer(place, stream, digest)
        except RemoteProtocolError as error:
            await stream.reset()
            self._on_offence(place.peer, error)

    async def _receive_request(self, place: ServedStream, stream: Stream) -> Digest | None:
        """The next digest, or None when none comes for long."""
        with trio.move_on_after(IDLE_SECONDS), place.waiting(trio.current_time()):
            message = await receive_message(stream, BLOCK_MESSAGE_BYTES_MAX)
            return decode_request(message)
        return None

    async def _answer(self, place: ServedStream, stream: Stream, digest: Digest) -> None:
        size = self._store.size(digest) or 0
        try:
            file = await read_or_write(
                size, partial(self._store.open_block, digest), limiter=self._checking
            )
        except (MissingBlockError, CorruptBlockError) as error:
            if isinstance(error, CorruptBlockError):
                _log.warning("a block cannot be served", problem=str(error))
            await self.uploads.turn(stream.peer_id, 0)
            await send_frame(stream, encode_reply(digest, found=False))
            return
        with file, self.uploads.serving(stream.peer_id):
            await self._send_block(place, stream, digest, file)

    async def _send_block(
        self, place: ServedStream, stream: Stream, digest: Digest, file: BinaryIO
    ) -> None:
        """Piece by piece, because the peer may be slow and there may be many of them."""
        num_bytes = os.fstat(file.fileno()).st_size
        message = encode_reply(digest, found=True)
        head = encode_prefix(len(message), num_bytes) + message
        rest_bytes = num_bytes
        while rest_bytes:
            piece = await read_or_write(num_bytes, partial(file.read, PIECE_BYTES))
            if not piece:
                raise OSError(f"block {short(digest)} became shorter while it was sent")
            await self.uploads.turn(stream.peer_id, len(piece))
            with place.waiting(trio.current_time()):
                await stream.send(head, piece)
            head = b""
            rest_bytes -= len(piece)
