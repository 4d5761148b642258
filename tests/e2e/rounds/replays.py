"""A real swarm's run as its founder's disk has it, for tests that do it again without daemons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from gossamer.node.base.settings.settings import DEFAULT_CACHE_BYTES
from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.training.more_data import MoreDataFile
from gossamer.protocol.data_parts import decode_parts
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import ShardIndex, decode_index
from gossamer.protocol.state.chain import Header, decode_update_index
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, index_of
from gossamer.protocol.state.sync_sets import SyncSets
from gossamer.protocol.wire.statements import MoreData, Span
from tests.benchmarks._losses_diloco import Setting
from tests.benchmarks._parity_training import Text
from tests.support.daemons import OPTIONS, path_on_disk, wait_for_round

Reading = dict[str, list[Span]]
"""The text of a round by who read it, in order."""


@dataclass(frozen=True)
class Record:
    """The remains of a run on disk."""

    manifest: Manifest
    headers: tuple[Header, ...]
    """Headers of all rounds, the first one first."""
    store: BlockStore
    added: MoreData | None = None
    """The founder's newest word on the data that it added."""

    @property
    def peers(self) -> list[str]:
        return sorted(member.peer_id for member in self.headers[0].members)

    @property
    def index(self) -> ShardIndex:
        """The shards of the run, and behind them those that were added."""
        index = decode_index(self.store.get(Digest(self.manifest.data.index_digest)))
        if self.added is None:
            return index
        parts = decode_parts(self.store.get(Digest(self.added.parts_digest))).parts
        added = (decode_index(self.store.get(Digest(part.index_digest))) for part in parts)
        shards = (*index.shards, *(shard for each in added for shard in each.shards))
        return ShardIndex(shards=shards, heldout=index.heldout)

    def text(self, folder: Path) -> Text:
        """The founder's shards, where the driver looks for them."""
        index = self.index
        folder.mkdir()
        for shard in index.shards:
            (folder / shard.digest.hex()).write_bytes(self.store.get(Digest(shard.digest)))
        return Text(folder, index, self.manifest.data.token_bytes, 1.0)

    def setting(self, text: Text) -> Setting:
        """The setting of the run for the driver. It deals no text by itself."""
        manifest, outer = self.manifest, self.manifest.outer
        rates = (outer.learning_rate, outer.momentum)
        return Setting(
            text, manifest.model, manifest.inner, outer, rates, manifest.seed, lambda _: (), 1
        )

    def told_of(self, header: Header) -> str:
        """Returns the chain's record of a round in words, to explain why the round cannot be
        replayed."""
        averages = decode_update_index(
            self.store.get(Digest(header.update_digest)),
            self.num_chunks_of(header),
            len(header.members),
            may_lack=self.manifest.sync == "distro",
        ).averages
        return f"{header.members}, {header.spans}, masks {[average.mask() for average in averages]}"

    def num_chunks_of(self, header: Header) -> int:
        manifest = self.manifest
        sync_sets = SyncSets(manifest.model, manifest.outer, manifest.sync)
        return sync_sets.of_round(header.round).plan.num_chunks

    def state_digest(self, parameters: FloatVector, momentum: FloatVector) -> Digest:
        plan = ChunkPlan(self.manifest.model.num_parameters, self.manifest.outer.chunk_elements)
        return index_of(parameters, momentum, plan).digest


def run_swarm(
    root: Path,
    corpus: Path,
    manifest_text: str,
    num_peers: int,
    num_rounds: int,
    disturb: Callable[[LocalSwarm], None] = lambda _swarm: None,
) -> Record:
    """Runs a swarm for so many rounds and kills it; returns its remains on disk.

    `disturb` is called when all have been started.
    """
    root.mkdir(exist_ok=True)
    path = root / "run.toml"
    path.write_text(manifest_text)
    options = (*OPTIONS, "--device", "cpu", "--wait-for-peers", str(num_peers - 1))
    with LocalSwarm(root / "swarm", options) as swarm:
        founder = swarm.found("--manifest", str(path), "--corpus", str(corpus))
        address = founder.address()
        for _ in range(num_peers - 1):
            swarm.join(address)
        disturb(swarm)
        wait_for_round(founder, num_rounds + 1)  # the newest may not be on disk yet
        for node in swarm.nodes:
            node.kill()
    return record_of(founder, num_rounds)


def record_of(node: LocalNode, num_rounds: int) -> Record:
    state_dir = StateDir(node.root)
    signed = state_dir.read_manifest()
    assert signed is not None
    chain, path = path_on_disk(node)
    headers = tuple(chain.header(head) for head in path[:num_rounds])
    store = BlockStore(state_dir.blocks_path, DEFAULT_CACHE_BYTES, read_only=True)
    manifest = open_signed_manifest(signed)
    added = MoreDataFile(node.root, manifest).read()
    return Record(manifest, headers, store, None if added is None else added[1])


def readings(spans: Sequence[Span], peers: Sequence[str]) -> Iterator[Reading]:
    """Every way in which peers may have read a round's text, whose spans do not name them.

    A peer has one shard at a time. Two that had claimed the same one have read the same. With more
    spans than peers a peer came to the end of a shard, as a corpus ends with a short one.
    """
    if len(spans) <= len(peers):
        for chosen in product(spans, repeat=len(peers)):
            if set(chosen) == set(spans):
                yield {peer: [span] for peer, span in zip(peers, chosen, strict=True)}
        return
    ways: list[Reading] = []
    for readers in product(peers, repeat=len(spans)):
        if set(readers) == set(peers):
            way: Reading = {peer: [] for peer in peers}
            for reader, span in zip(readers, spans, strict=True):
                way[reader].append(span)
            # What was begun in an earlier round is read to its end first.
            ways.append(
                {peer: sorted(read, key=lambda s: s.start == 0) for peer, read in way.items()}
            )
    yield from sorted(ways, key=_unevenness)


def _unevenness(way: Reading) -> int:
    """All do as many steps, so a peer that read much less than others went another way."""
    lengths = [sum(span.stop - span.start for span in read) for read in way.values()]
    return max(lengths) - min(lengths)


def replayed(
    rounds: Sequence[tuple[Sequence[Span], Sequence[str]]],
    leads_there: Callable[[Sequence[Reading]], bool],
) -> list[Reading]:
    """Returns the peers' readings from the first round on, as far as there are readings that lead
    to the same states.

    Several readings may lead to one state and only one of them further. In the first round of two
    peers the state is the same if they read each other's text, where an average does not depend on
    the order of its parts: what they carry on does. So a reading is taken back if none of the next
    round leads on from it.

    Args:
        rounds: the text of each, and who read it.
        leads_there: whether the last of some rounds does, if the peers read so in each.
    """
    longest: list[Reading] = []

    def leads_to_the_end(read: list[Reading]) -> bool:
        nonlocal longest
        if len(read) > len(longest):
            longest = read
        if len(read) == len(rounds):
            return True
        further = ([*read, way] for way in readings(*rounds[len(read)]))
        return any(leads_there(each) and leads_to_the_end(each) for each in further)

    leads_to_the_end([])
    return longest


@contextmanager
def one_thread() -> Iterator[None]:
    """Computes with one thread, as the daemons' trainers: the number of threads changes sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
