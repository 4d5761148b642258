"""Signed checkpoints of the chain among peers: served, asked for, and kept on the disk.

`protocol.policy.heads.chain_checkpoint` has the rules, `protocol.wire.checkpoint_messages` the
messages. `heads.checkpoint_keeper` makes and collects them, `chain_adoption` begins a chain at one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import trio

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.network.frames import answering, ask, receive_message, send_frame
from gossamer.node.network.identity import verify
from gossamer.node.network.transport import OffenceHandler, Stream, Transport, TransportError
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.storage.chain.chain_start import (
    KeptCheckpoints,
    read_checkpoints,
    write_checkpoints,
)
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, RemoteProtocolError, UnprovenError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.heads.chain_checkpoint import (
    ChainCheckpoint,
    OpenedCheckpoint,
    claimed_by,
    follow_path,
    is_proven,
    is_signed_by,
    open_checkpoint,
    shortened,
)
from gossamer.protocol.policy.heads.chain_summary import (
    ChainSummary,
    decode_summary,
)
from gossamer.protocol.policy.members.branch_caps import BranchOf
from gossamer.protocol.wire.checkpoint_messages import (
    CHECKPOINT_PROTOCOL,
    CHECKPOINT_REQUEST_BYTES_MAX,
    PATH_MAX,
    CheckpointRequest,
    CheckpointSignature,
    PathRequest,
    SignaturesRequest,
    SignedCheckpoint,
    SummaryRequest,
    decode_checkpoint_request,
    decode_path,
    decode_signatures,
    decode_summary_reply,
    encode_path,
    encode_signatures,
)

REQUEST_SECONDS = 15.0
"""Longest wait for one reply, at most a frame."""

log = structlog.get_logger("chain")


class NoAnswerError(Exception):
    """A peer did not answer a question about checkpoints."""


@dataclass
class Pending:
    """The newest checkpoint of this node's own chain, while it collects signatures."""

    checkpoint: ChainCheckpoint
    summary: ChainSummary
    signatures: dict[PeerId, CheckpointSignature] = field(default_factory=dict)

    def opened(self) -> OpenedCheckpoint:
        signatures = tuple(self.signatures[author] for author in sorted(self.signatures))
        signed = SignedCheckpoint(to_msgpack(self.checkpoint), signatures)
        return OpenedCheckpoint(self.checkpoint, frozenset(self.signatures), signed)


class ChainCheckpoints:
    """The checkpoints that one node has.

    It has more than 7 parameters: it asks and serves peers, checks what they say, and keeps it on
    the disk.
    """

    def __init__(
        self,
        manifest: Manifest,
        transport: Transport,
        directory: Path,
        health: DiskHealth,
        branch_of: BranchOf | None,
        require_known: Callable[[list[PeerId]], None],
        on_offence: OffenceHandler,
        uploads: Uploads,
    ) -> None:
        """
        Args:
            directory: the folder of the chain.
            branch_of: of each member of an invite-only run; None in others.
            require_known: raises RemoteProtocolError for a peer that the run never lets in.
            uploads: the order in which peers are served.
        """
        self._run_id = manifest.run_id
        self._founder = PeerId(manifest.founder)
        self._transport = transport
        self._directory = directory
        self._health = health
        self.branch_of = branch_of
        self._require_known = require_known
        self._on_offence = on_offence
        self._uploads = uploads
        self._path: tuple[OpenedCheckpoint, ...] = ()
        self._summary = b""
        self.pending: Pending | None = None
        self._load()
        transport.handle(CHECKPOINT_PROTOCOL, self._serve)

    @property
    def last(self) -> ChainCheckpoint | None:
        """The newest proven checkpoint."""
        return self._path[-1].checkpoint if self._path else None

    @property
    def last_summary(self) -> ChainSummary | None:
        """The summary of the newest proven checkpoint."""
        return decode_summary(self._summary) if self._path else None

    @property
    def last_round(self) -> int:
        return self._path[-1].checkpoint.round if self._path else 0

    def _load(self) -> None:
        kept = read_checkpoints(self._directory)
        if kept is None or not kept.path:
            return
        try:
            self.take_path(list(map(self._open, kept.path)), decode_summary(kept.summary))
        except RemoteProtocolError as error:
            log.warning("the signed checkpoints on disk are left out", error=str(error))

    def _open(self, signed: SignedCheckpoint) -> OpenedCheckpoint:
        opened = open_checkpoint(signed, self._run_id, verify)
        self._require_known(sorted(opened.signers))
        return opened

    def take_path(self, path: Sequence[OpenedCheckpoint], summary: ChainSummary) -> None:
        """Takes a path that leads from the run's beginning to a summary.

        Raises:
            UnprovenError: the founder's signature does not lead to it.
            MalformedError: the summary does not fit it.
        """
        last = follow_path(path, {self._founder: 1}, 0, self.branch_of)
        if summary.round != last.round or summary.digest != last.summary_digest:
            raise MalformedError("a summary that is not that of the chain checkpoint")
        if sum(row.tokens for row in summary.rows) + summary.others != last.tokens_total:
            raise MalformedError("a summary without the tokens of the chain checkpoint")
        self._path = tuple(path)
        self._summary = to_msgpack(summary)

    def take_if_proven(self) -> bool:
        """Adds the pending checkpoint to the path when it has the signatures."""
        pending = self.pending
        if pending is None:
            return False
        if pending.checkpoint.round <= self.last_round:
            self.pending = None  # a peer's path has come meanwhile
            return False
        opened = pending.opened()
        needed = shortened(self._path, opened, self._founder, self.branch_of)
        if needed is None:
            return False
        before = [self._path[place] for place in needed]
        self.take_path([*before, opened], pending.summary)
        self.pending = None
        return True

    def write(self) -> None:
        """Keeps the path on the disk; in a thread. A disk that does not take it costs nothing but
        the question to a peer after the next start."""
        with self._health.writing("checkpoints"):
            path = tuple(each.signed for each in self._path)
            write_checkpoints(self._directory, KeptCheckpoints(path, self._summary))

    # Questions

    async def ask_path(self, peer: PeerId) -> list[OpenedCheckpoint]:
        """A peer's path, proven from the run's beginning.

        Raises:
            NoAnswerError: it does not answer.
            UnprovenError: the founder's signature does not lead to its end, as far as this node
                knows the members.
            RemoteProtocolError: it sends something else.
        """
        path: list[OpenedCheckpoint] = []
        stakes: Mapping[PeerId, int] = {self._founder: 1}
        while len(path) < PATH_MAX:
            after = path[-1].checkpoint.round if path else 0
            page = decode_path(await self._ask(peer, PathRequest(after)))
            if not page:
                break
            for each in page:
                # Before the signatures are checked: strangers' keys cost nothing, the checks do.
                claimed = claimed_by(each, self._run_id)
                if not is_proven(stakes, claimed, self.branch_of):
                    raise UnprovenError("chain checkpoints without the founder's stake behind them")
                stakes = claimed.checkpoint.by_peer
                path.append(self._open(each))
                await trio.lowlevel.checkpoint()  # many signatures each
            rounds = [each.checkpoint.round for each in path]
            if len(path) > PATH_MAX or rounds != sorted(set(rounds)):
                raise MalformedError("chain checkpoints out of order, or too many")
        return path

    async def ask_summary(self, peer: PeerId, digest: Digest) -> ChainSummary:
        """The summary with a digest. Raises as `ask_path` does."""
        summary = decode_summary_reply(await self._ask(peer, SummaryRequest(digest)))
        if not summary:
            raise NoAnswerError(f"{peer} has another summary by now")
        if digest_of(summary) != digest:
            raise MalformedError("a summary that does not have the digest that it was asked for by")
        return decode_summary(summary)

    async def ask_signatures(self, peer: PeerId) -> None:
        """Adds the signatures under the pending checkpoint that a peer knows. Raises as `ask_path`
        does."""
        pending = self.pending
        if pending is None:
            return
        digest = pending.checkpoint.digest
        reply = decode_signatures(await self._ask(peer, SignaturesRequest(digest)))
        wanted = self._wanted_signers(pending)
        for signature in reply:
            author = PeerId(signature.author)
            if author not in wanted or author in pending.signatures:
                continue
            if not is_signed_by(signature, self._run_id, digest, verify):
                raise MalformedError("a signature under a chain checkpoint that is forged")
            pending.signatures[author] = signature
            await trio.lowlevel.checkpoint()

    def _wanted_signers(self, pending: Pending) -> set[PeerId]:
        """The peers whose signatures count: those with stake where a proof can begin or ends."""
        wanted = {self._founder, *pending.checkpoint.by_peer}
        for each in self._path:
            wanted.update(each.checkpoint.by_peer)
        return wanted

    async def _ask(self, peer: PeerId, request: CheckpointRequest) -> bytes | bytearray:
        try:
            message = to_msgpack(request)
            return await ask(self._transport, peer, CHECKPOINT_PROTOCOL, message, REQUEST_SECONDS)
        except (TransportError, trio.TooSlowError) as error:
            raise NoAnswerError(f"{peer} did not answer: {error}") from error

    # Answers

    async def _serve(self, stream: Stream) -> None:
        async with answering(stream, REQUEST_SECONDS, self._on_offence):
            request = decode_checkpoint_request(
                await receive_message(stream, CHECKPOINT_REQUEST_BYTES_MAX)
            )
            async with self._uploads.page(stream.peer_id):
                await send_frame(stream, self._answer(request))

    def _answer(self, request: CheckpointRequest) -> bytes:
        if isinstance(request, PathRequest):
            later = [
                each.signed for each in self._path if each.checkpoint.round > request.after_round
            ]
            return encode_path(later)
        if isinstance(request, SummaryRequest):
            is_mine = self.last is not None and self.last.summary_digest == request.digest
            return to_msgpack(self._summary if is_mine else b"")
        if self.pending is not None and self.pending.checkpoint.digest == request.digest:
            return encode_signatures(list(self.pending.opened().signed.signatures))
        for each in self._path:
            if each.checkpoint.digest == request.digest:
                return encode_signatures(list(each.signed.signatures))
        return encode_signatures([])
