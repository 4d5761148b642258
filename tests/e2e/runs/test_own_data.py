"""Runs in which every peer trains on text of its own: nothing of it leaves its machine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import trio
import zstandard

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.own_data import INDEX_NAME, OwnData
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.limits import MIB
from gossamer.protocol.shard_index import ShardIndex, decode_index
from gossamer.protocol.state.chain import decode_header
from tests.support.daemons import (
    MANIFEST,
    OPTIONS,
    PATIENCE_SECONDS,
    in_rounds_of,
    path_on_disk,
    refused,
    start_founder,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

WIRETAP = Path(__file__).parents[2] / "support" / "wiretap"
WORDS = ("peer", "ring", "round", "chunk", "head", "token", "commit", "swarm", "block", "state")
SECRETS = ("the vault of juniper opens at seven", "my doctor is called wilhelmina")
PUBLIC = "everybody may read that we compare losses on this"
ROUNDS = 4


def write_texts(folder: Path, sentence: str, *, lines: int = 1200) -> Path:
    folder.mkdir()
    randomness = random.Random(sentence)
    for number in range(4):
        words = (" ".join(randomness.choices(WORDS, k=10)) for _ in range(lines // 4))
        (folder / f"{number}.txt").write_text("\n".join(f"{line} {sentence}" for line in words))
    return folder


@dataclass
class Own:
    """A run of two nodes with texts of their own."""

    swarm: LocalSwarm
    nodes: list[LocalNode]
    taps: list[Path]
    texts: list[Path]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    folder = tmp_path_factory.mktemp("own")
    texts = [write_texts(folder / str(n), secret) for n, secret in enumerate(SECRETS)]
    heldout = write_texts(folder / "heldout", PUBLIC, lines=100)
    (folder / "run.toml").write_text('data = "own"\n' + MANIFEST)
    taps = [folder / f"sent{number}" for number in range(2)]
    with LocalSwarm(folder / "swarm", OPTIONS) as swarm:
        nodes = [
            swarm.add(environment={"PYTHONPATH": str(WIRETAP), "WIRETAP": str(tap)}) for tap in taps
        ]
        nodes[0].start(
            *("start", "--manifest", str(folder / "run.toml"), "--corpus", str(texts[0])),
            *("--heldout", str(heldout)),
        )
        nodes[1].start("join", nodes[0].address(), "--corpus", str(texts[1]))
        for node in nodes:
            status = node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
            wait_for_round(node, status.round + ROUNDS)
        yield Own(swarm, nodes, taps, texts)


def index_of(node: LocalNode) -> ShardIndex:
    (path,) = StateDir(node.root).own_path.glob(f"*/{INDEX_NAME}")
    return decode_index(path.read_bytes())


def shards_of(node: LocalNode) -> dict[Digest, bytes]:
    """The private shards on a node's disk, as they lie there."""
    own_path = StateDir(node.root).own_path
    found = {}
    for info in index_of(node).shards:
        (path,) = own_path.glob(f"*/{info.digest.hex()}")
        found[Digest(info.digest)] = path.read_bytes()
    return found


def heldout_of(node: LocalNode) -> ShardIndex:
    state_dir = StateDir(node.root)
    signed = state_dir.read_manifest()
    assert signed is not None
    store = BlockStore(state_dir.blocks_path, 64 * MIB, read_only=True)
    return decode_index(store.get(Digest(open_signed_manifest(signed).data.index_digest)))


def tokens_of(text: str) -> bytes:
    """A text as the tokens of plain bytes lie in a shard."""
    return np.frombuffer(text.encode(), np.uint8).astype("<u2").tobytes()


def middle(data: bytes) -> bytes:
    """Bytes of a shard that no other has: not its header, which all have alike."""
    return data[len(data) // 2 :][:48]


def unpacked(data: bytes) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=64 * MIB)
    except zstandard.ZstdError:
        return data


@pytest.mark.long
def test_nothing_private_is_sent(own: Own) -> None:
    sent = [tap.read_bytes() for tap in own.taps]
    # The tap hears what is sent: the founder served the text that all are compared on.
    blocks = BlockStore(StateDir(own.nodes[0].root).blocks_path, 64 * MIB, read_only=True)
    shared = [blocks.get(Digest(info.digest)) for info in heldout_of(own.nodes[0]).heldout]
    assert all(middle(data) in sent[0] for data in shared)
    assert tokens_of(PUBLIC) in b"".join(map(unpacked, shared))
    assert not heldout_of(own.nodes[0]).shards

    for node, secret, of_node in zip(own.nodes, SECRETS, sent, strict=True):
        shards = shards_of(node)
        # The text is what the node trains on, and it is in no form among what the node sent.
        assert tokens_of(secret) in b"".join(map(unpacked, shards.values()))
        for form in (secret.encode(), tokens_of(secret)):
            assert form not in of_node
        for digest, data in shards.items():
            assert bytes(digest) not in of_node
            assert middle(data) not in of_node


def test_no_peer_is_served_anything_private(own: Own, tmp_path: Path) -> None:
    async def ask(node: LocalNode, wanted: list[Digest], store: BlockStore) -> None:
        async with open_libp2p_transport(Identity.generate(), ()) as transport:
            peer: PeerId = await transport.connect(node.address())
            await BlockService(transport, store).fetch(wanted, lambda: [peer], passes=1)

    for number, node in enumerate(own.nodes):
        store = BlockStore(tmp_path / f"blocks{number}", 64 * MIB)
        trio.run(ask, node, [Digest(info.digest) for info in heldout_of(node).heldout], store)
        private = list(shards_of(node))
        with pytest.raises(FetchError) as caught:
            trio.run(ask, node, private, store)
        assert set(caught.value.missing) == set(private)
        # All that can be served lies among the blocks.
        for path in StateDir(node.root).blocks_path.rglob("*"):
            if path.is_file():
                assert tokens_of(SECRETS[number]) not in unpacked(path.read_bytes()), path


def test_what_is_agreed_on_names_no_data(own: Own) -> None:
    chain, path = path_on_disk(own.nodes[0])
    headers = [decode_header(chain.commit(digest).header) for digest in path]
    assert any(len(header.members) == 2 for header in headers)
    for header in headers:
        assert header.spans == ()
        assert all(member.tokens > 0 for member in header.members)
    for node, secret in zip(own.nodes, SECRETS, strict=True):
        assert secret not in node.log_path.read_text()


@pytest.mark.long
def test_a_restart_goes_on_in_the_text(own: Own) -> None:
    node, state_dir = own.nodes[1], StateDir(own.nodes[1].root)

    def place() -> OwnData:
        data = OwnData(state_dir.own_path)
        assert data.open()
        return data

    for end in (node.leave, node.kill):
        end()
        left = place()
        total = sum(shard.num_tokens for shard in left.shards)
        assert left.position > 0

        def at(status: Status, total: int = total) -> int:
            assert status.data is not None
            return status.data.epoch * total + status.data.tokens_consumed

        def has_moved(status: Status, before: int = left.position) -> bool:
            return status.data is not None and status.data.own and at(status) != before

        node.start("start")
        status = node.wait_for(has_moved, PATIENCE_SECONDS, "training after the restart")
        assert at(status) > left.position
        assert place().shards == left.shards


def test_a_run_of_own_texts_wants_one(own: Own, tmp_path: Path) -> None:
    error = refused("join", own.nodes[0].address(), "--state-dir", tmp_path / "node")
    assert "every peer trains on text of its own" in error
    assert "--corpus FOLDER" in error
    assert not StateDir(tmp_path / "node").has_run()
    missing = refused(
        *("join", own.nodes[0].address(), "--state-dir", tmp_path / "node"),
        *("--corpus", tmp_path / "none"),
    )
    assert "none: no such file or directory" in missing


@pytest.mark.long
def test_text_that_cannot_be_read_can_be_replaced(own: Own, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", "good")
    (texts / "picture.png").write_bytes(b"\x89PNG\0")
    node = own.swarm.add()
    command = ("join", own.nodes[0].address(), "--corpus", str(texts))
    assert "picture.png is binary" in refused(*command, "--state-dir", node.root)
    assert "name yours" in refused("start", "--state-dir", node.root)
    node.start(*command, "--skip-bad")
    node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three")
    assert node.leave() == 0, node.tail()


def test_a_shared_run_has_no_use_for_a_text(
    founded: Path, tmp_path: Path, own: Own, swarm: LocalSwarm
) -> None:
    founder = start_founder(swarm, founded)
    error = refused(
        *("join", founder.address(), "--corpus", own.texts[0], "--state-dir", tmp_path / "node")
    )
    assert "leave out --corpus" in error
