"""Members of a run with very many rounds, whose old headers go as they do in a node; and newcomers.

The rounds are `long_chains`: no work is behind them, and no signatures are in their records. The
checkpoints are signed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.peers.chain.chain_adoption import ChainAdoption
from gossamer.node.peers.chain.chain_checkpoints import ChainCheckpoints, Pending
from gossamer.node.peers.chain.chain_records import ChainRecords, OpenedCommit
from gossamer.node.storage.chain.chain_start import start_after
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.heads.chain_checkpoint import (
    checkpoint_of,
    due_round,
    kept_round,
    signing_bytes,
)
from gossamer.protocol.policy.heads.chain_summary import (
    CHECKPOINT_PERIOD,
    NO_SUMMARY,
    ChainSummary,
    extended,
)
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import Commit, Header, decode_header
from gossamer.protocol.state.commit_records import encode_commit
from gossamer.protocol.wire.chain_messages import ChainRequest
from gossamer.protocol.wire.checkpoint_messages import CheckpointRequest, CheckpointSignature
from tests.support.committed_rounds import IDENTITY, small_manifest
from tests.support.long_chains import rounds_after

CHECKPOINT_ROUNDS = 5
"""Rounds between two whole states, as in the manifest that `gossamer init` makes."""


def manifest_of_the_run() -> Manifest:
    return small_manifest(checkpoint_rounds=CHECKPOINT_ROUNDS)


class _Standing:
    """The committed state of a node, as far as the chain is concerned."""

    def __init__(self, chain: ChainStore) -> None:
        self.chain = chain
        self.head = chain.genesis

    @property
    def entry(self) -> Entry:
        return self.chain.entry(self.head)


def decoded(commit: Commit) -> Header:
    """Opens a record without its signatures, which these rounds do not have."""
    return decode_header(commit.header)


class Peer:
    """A node of the run: its chain, what it serves of it, and how it learns others'."""

    def __init__(
        self,
        directory: Path,
        transport: Transport,
        open_commit: Callable[[Commit], Header] = decoded,
    ) -> None:
        self.manifest = manifest = manifest_of_the_run()
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory / "chain"
        self.chain = ChainStore(self.directory, manifest.run_id, Digest(manifest.genesis_digest))
        self.committed = _Standing(self.chain)
        self.offences: list[tuple[PeerId, RemoteProtocolError]] = []
        self.choice = HeadChoice(KnownRounds(self.chain), PeerId(manifest.founder))
        self.checkpoints = ChainCheckpoints(
            manifest, transport, self.directory, DiskHealth(), None, lambda _: None, self._note,
            Uploads(),
        )  # fmt: skip
        self.records = ChainRecords(
            transport,
            self.committed,  # type: ignore[arg-type]
            run_in_thread=inline,  # type: ignore[arg-type]
            open_commit=open_commit,
            on_offence=self._note,
            uploads=Uploads(),
        )
        self.adoption = ChainAdoption(
            self.committed, self.records, self.checkpoints, self.choice, inline  # type: ignore[arg-type]
        )  # fmt: skip
        self.records.adopt = self.adoption.adopt
        self.num_bytes = 0
        """Bytes of the chain and of its checkpoints that this node asked for."""
        self._count_bytes()

    def _note(self, peer: PeerId, error: RemoteProtocolError) -> None:
        self.offences.append((peer, error))

    def _count_bytes(self) -> None:
        request, ask = self.records.request, self.checkpoints._ask

        async def counted_request(peer: PeerId, wanted: ChainRequest) -> list[OpenedCommit]:
            page = await request(peer, wanted)
            self.num_bytes += len(to_msgpack([encode_commit(commit) for commit, _ in page]))
            return page

        async def counted_ask(peer: PeerId, wanted: CheckpointRequest) -> bytes | bytearray:
            message = await ask(peer, wanted)
            self.num_bytes += len(message)
            return message

        self.records.request = counted_request  # type: ignore[method-assign, assignment]
        self.checkpoints._ask = counted_ask  # type: ignore[method-assign, assignment]

    def disk_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.directory.iterdir())


async def inline(function: Callable[[], object]) -> object:
    """Runs a blocking call at once."""
    return function()


class Member(Peer):
    """A member that has been there since the first round."""

    def __init__(
        self,
        directory: Path,
        transport: Transport,
        num_members: int,
        *,
        signers: int | None = None,
        says_all: bool = False,
    ) -> None:
        """
        Args:
            signers: how many members sign checkpoints, the founder first; all by default.
            says_all: see `rounds_after`.
        """
        super().__init__(directory, transport)
        self.identities = [IDENTITY] + [
            Identity.from_seed(number.to_bytes(32, "big")) for number in range(1, num_members)
        ]
        self.members = [each.peer_id for each in self.identities]
        self._signers = self.identities[:signers]
        self._says_all = says_all
        self._recent: list[Header] = []
        """Headers since the newest checkpoint's round."""
        self._summaries: dict[int, tuple[ChainSummary, Header]] = {}

    def advance(self, num_rounds: int) -> None:
        """Commits rounds. Old ones go, as in `CheckpointKeeper`."""
        entry = self.committed.entry
        rounds = rounds_after(
            self.members, num_rounds, entry.head, round_number=entry.round,
            tokens_total=entry.tokens_total,
            run_id=self.manifest.run_id, says_all=self._says_all,
        )  # fmt: skip
        for commit, header in rounds:
            self.committed.head = self.chain.add(commit, header)
            self._recent.append(header)
            if header.round % CHECKPOINT_PERIOD == 0:
                before, _ = self._summaries.get(
                    header.round - CHECKPOINT_PERIOD, (NO_SUMMARY, header)
                )
                self._summaries[header.round] = extended(before, self._recent), header
                self._recent = []
            due = due_round(header.round, CHECKPOINT_ROUNDS)
            if due > self.checkpoints.last_round:
                self._sign(due)
            kept = kept_round(header.round, CHECKPOINT_ROUNDS, self.manifest.stale_rounds)
            if kept > (0 if self.chain.start is None else self.chain.start.round):
                self._let_go(kept)

    def _sign(self, due: int) -> None:
        summary, header = self._summaries[due]
        stakes = self.choice.stakes_at(header.digest)
        checkpoint = checkpoint_of(header, stakes, summary, stakes)
        message = signing_bytes(self.manifest.run_id, checkpoint.digest)
        signatures = {
            each.peer_id: CheckpointSignature(each.peer_id, each.sign(message))
            for each in self._signers
        }
        self.checkpoints.pending = Pending(checkpoint, summary, signatures)
        if self.checkpoints.take_if_proven():
            self.checkpoints.write()

    def _let_go(self, kept: int) -> None:
        if self.checkpoints.last_round < kept:
            return
        summary, header = self._summaries[kept]
        before = self.chain.entry(self.chain.ancestors(header.digest, STANDING_ROUNDS)[-1])
        start = start_after(kept, header.digest, before.head, before.tokens_total, summary)
        self.chain.write_start(start)
        self.chain.begin_at(start)
        self.chain.remove_leftover()
        for number in [number for number in self._summaries if number < kept]:
            del self._summaries[number]
