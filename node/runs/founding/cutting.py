"""A founder's node cuts the rest of its corpus while the run trains, and adds it part by part.

For each part of the plan (`rest_of_corpus`) a process of its own cuts the shards into a folder:

    cutting/XXXXXXXX/    shards and index of the part that is being cut

The node then moves them into its blocks, writes the new list of parts, and signs it. A node that
dies in between begins the part anew; what was signed stays. A founder that never comes back leaves
the run with the data that it signed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.base.threads import RunInThread
from gossamer.node.network.identity import Identity
from gossamer.node.peers.blocks.first_copies import FirstCopies
from gossamer.node.runs.founding.preparing import PartTask, PreparingError, cut_elsewhere
from gossamer.node.runs.founding.rest_of_corpus import RestFile, RestOfCorpus, expected_tokens
from gossamer.node.storage.block_files import BlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.own_data import INDEX_NAME
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.node.training.more_data import AddedData
from gossamer.protocol import limits
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.data_parts import DataPart, PartList
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import ShardIndex, decode_index
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import MoreData
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.text.sources.corpus_errors import CorpusError

LOOK_SECONDS = 1.0
"""Interval of the looks whether a part that was signed is in the data, or the cache has room."""

STAGE_SECONDS_MIN = 0.1
"""Shortest time over which a rate is counted: a stage says at its beginning what it did at once."""

_PIN = "cut part"

_EXPECTED = (
    CorpusError, FolderError, DiskError, PreparingError, StateDirError, BlockError, OSError
)  # fmt: skip
"""Ends of the cutting that cost the run nothing but data."""

log = structlog.get_logger("data")


class CorpusCutter:
    """Cuts and adds what is left of the founder's corpus.

    It has 9 parameters: it reads a plan, writes blocks, signs lists, and looks at the copies of
    others.
    """

    def __init__(
        self,
        manifest: Manifest,
        identity: Identity,
        state_dir: StateDir,
        store: BlockStore,
        data: RunData,
        added: AddedData,
        first_copies: FirstCopies,
        run_in_thread: RunInThread,
        is_held: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            data: the data of the run, which `added` appends to.
            first_copies: holds what was cut until others have it.
            is_held: whether the node is paused: no part is begun then.
        """
        self._manifest = manifest
        self._identity = identity
        self._state_dir = state_dir
        self._store = store
        self.data = data
        self._added = added
        self._first_copies = first_copies
        self._run_in_thread = run_in_thread
        self._is_held = is_held
        self._file = RestFile(state_dir.root)
        self._folder = state_dir.root / "cutting"
        self.status = ""
        """How far the cutting is, or why it stands still, for people; empty if nothing is left."""

    async def run(self) -> None:
        """Cuts until nothing is left. Returns at once on a node that did not found the run."""
        if self._identity.peer_id != self._manifest.founder:
            return
        try:
            rest = await self._run_in_thread(self._file.read)
            if rest is not None:
                await self._cut_all(rest)
        except _EXPECTED as error:
            self._stopped(str(error))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _cut_all(self, rest: RestOfCorpus) -> None:
        plan = rest.plan
        while (number := len(self.data.parts.parts) + 1) < plan.num_parts:
            newest = self._added.newest
            if newest is not None and newest.number >= number:
                # What this founder signed before is not here yet: it lost its disk.
                self.status = "waiting for the parts that this node added in an earlier life"
                await trio.sleep(LOOK_SECONDS)
                continue
            if self._is_held():
                self.status = f"part {number + 1} of {plan.num_parts} waits: this node is paused"
                await trio.sleep(LOOK_SECONDS)
                continue
            if not await self._cut(rest, number):
                rest = msgspec.structs.replace(rest, plan=plan.without(number))
                plan = rest.plan
                await self._run_in_thread(lambda rest=rest: self._file.write(rest))  # type: ignore[misc]
        await self._run_in_thread(self._file.remove)
        self.status = ""
        log.info(
            "the whole corpus is in the run",
            fields={"event": "corpus complete", "tokens": self.data.num_tokens},
            parts=plan.num_parts,
            tokens=self.data.num_tokens,
        )

    async def _cut(self, rest: RestOfCorpus, number: int) -> bool:
        """Cuts one part and adds it to the run. Returns whether there was text in it."""
        plan, store = rest.plan, self._store
        done, total = plan.num_bytes(number), plan.num_bytes()
        part_bytes = plan.num_bytes(number + 1) - done
        share = f"part {number + 1} of {plan.num_parts}; {done / total:.0%} of the corpus is cut"
        self.status = share
        begun = time.monotonic()

        stages: dict[str, float] = {}

        def progress(stage: str, so_far: int, stage_bytes: int) -> None:
            seconds = time.monotonic() - stages.setdefault(stage, time.monotonic())
            rate = so_far / max(seconds, STAGE_SECONDS_MIN) / 1e6
            part = so_far / max(1, stage_bytes)
            self.status = f"{share}; {stage}: {part:.0%} at {rate:.1f} MB/s"

        folder = await self._run_in_thread(self._new_folder)
        digest = self._manifest.data.tokenizer_digest
        tokenizer_file = store.get(Digest(digest)) if digest else b""
        root = str(self._state_dir.root)
        task = PartTask(root, number, self._manifest, tokenizer_file, str(folder))
        for warning in (await cut_elsewhere(task, progress)).warnings:
            log.warning(warning)
        index_bytes = await self._run_in_thread((folder / INDEX_NAME).read_bytes)
        index = decode_index(index_bytes)
        if not index.shards:
            log.info("a part of the corpus has no text", part=number + 1, parts=plan.num_parts)
            return False
        self._require_fitting(index)
        await self._wait_for_room(index, share)
        digests = [Digest(shard.digest) for shard in index.shards]
        store.pin(_PIN, digests)
        for shard in digests:
            await self._run_in_thread(lambda shard=shard: _move(folder, shard, store))  # type: ignore[misc]
        await self._add(rest, index_bytes, index)
        self._first_copies.note_added()
        store.unpin(_PIN)
        await self._run_in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))
        seconds = time.monotonic() - begun
        log.info(
            "a part of the corpus is cut and added",
            part=number + 1,
            parts=plan.num_parts,
            bytes=part_bytes,
            seconds=round(seconds, 1),
            megabytes_per_second=round(part_bytes / 1e6 / seconds, 2),
        )
        return True

    async def _add(self, rest: RestOfCorpus, index_bytes: bytes, index: ShardIndex) -> None:
        """Signs the list with one part more, and waits until it is in the data."""
        identity, run_id = self._identity, self._manifest.run_id
        tokens = sum(shard.num_tokens for shard in index.shards)
        before = self.data.parts.parts
        store = self._store
        part = DataPart(digest_of(index_bytes), len(index.shards), tokens)
        parts = PartList(parts=(*before, part))
        list_bytes = to_msgpack(parts)
        shards = [Digest(shard.digest) for shard in index.shards]
        blocks = [*shards, digest_of(index_bytes), digest_of(list_bytes)]
        store.pin(_PIN, blocks)
        store.put(index_bytes)
        store.put(list_bytes)
        # What is signed is data of the run for good, and at first only this disk has it.
        await self._run_in_thread(lambda: store.sync(blocks))
        is_last = len(parts.parts) + 1 == rest.plan.num_parts
        expected = expected_tokens(rest.plan, self._manifest) - self._manifest.data.num_tokens
        statement = MoreData(
            len(parts.parts),
            digest_of(list_bytes),
            parts.num_tokens,
            parts.num_tokens if is_last else max(expected, parts.num_tokens),
        )
        self._added.heard(seal(statement, identity.peer_id, run_id, identity.sign), statement)
        await self._added.wait_for_parts(len(parts.parts))

    def _require_fitting(self, index: ShardIndex) -> None:
        num_shards = len(self.data.shards) + len(self.data.heldout) + len(index.shards)
        if num_shards > limits.SHARDS_MAX:
            raise CorpusError(
                f"a run has {limits.SHARDS_MAX:,} shards at most, and this part of the corpus "
                "would give it more: the run goes on with what it has"
            )

    async def _wait_for_room(self, index: ShardIndex, share: str) -> None:
        """Waits until the cache has room for a part: at first nobody but this node has it."""
        copies, is_said = self._first_copies, False
        copies.needed_bytes = sum(shard.num_bytes for shard in index.shards)
        try:
            while not copies.has_room:
                self.status = (
                    f"{share}; it waits for room in the cache (--cache-bytes), until others have "
                    "copies"
                )
                if not is_said:
                    is_said = True
                    log.warning(
                        "the cache has no room for the next part of the corpus, and what is there "
                        "is still needed: give a larger --cache-bytes, or wait until other peers "
                        "keep copies",
                        needs=format_bytes(copies.needed_bytes),
                    )
                await trio.sleep(LOOK_SECONDS)
        finally:
            copies.needed_bytes = 0

    def _new_folder(self) -> Path:
        """Returns an empty folder. What an earlier life left, perhaps with a process that still
        writes there, is elsewhere, and goes away."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _stopped(self, reason: str) -> None:
        self.status = f"stopped: {reason}"
        log.error(
            "the rest of the corpus is not cut, and the run goes on with the data that it has",
            reason=reason,
        )


def _move(folder: Path, digest: Digest, store: BlockStore) -> None:
    """Moves a shard into the blocks; in a thread. Raises DiskError."""
    path = folder / digest.hex()
    store.put(path.read_bytes(), expected=digest)
    path.unlink()
