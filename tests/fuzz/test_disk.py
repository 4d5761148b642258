"""Damaged files: they are refused with their module's own error, or left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from gossamer.node.network.identity import Identity, IdentityError
from gossamer.node.storage.block_files import BlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import VersionError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.limits import PROTOCOL_VERSION
from gossamer.protocol.manifest import SignedManifest, encode_manifest
from gossamer.protocol.state.commit_records import encode_commit
from tests.support.builders import commit_of, header, manifest, peer, peers, ring_of
from tests.support.mutations import anything
from tests.support.node_world import SUMS_TOP_K, World, simulate, start

HEADER = to_msgpack(header(peers(3)))
COMMIT = commit_of(ring_of(peers(3)), sorted(peers(2)))
RECORDS = [encode_commit(COMMIT), to_msgpack(COMMIT)]
KNOWN = msgspec.msgpack.encode([(peer(0), ("/ip4/192.0.2.1/tcp/4001",)), (peer(1), ())])
MANIFEST = msgspec.msgpack.encode(
    SignedManifest(manifest=encode_manifest(manifest()), signature=bytes(64))
)
THIS_VERSION, LATER_VERSION = (
    b"\xa7version" + bytes([PROTOCOL_VERSION + later]) for later in (0, 1)
)
PEM = Identity.from_seed(bytes(32)).pem()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(data=anything([KNOWN]))
def test_known_peers(folder: Path, data: bytes) -> None:
    path = folder / "peers"
    path.write_bytes(data)
    known = KnownPeers(path)
    known.saw({peer(5): ()})
    known.save()
    assert KnownPeers(path).newest_first()[0] == (peer(5), ())


@given(data=anything([MANIFEST]))
@example(data=MANIFEST.replace(THIS_VERSION, LATER_VERSION))
def test_the_manifest(folder: Path, data: bytes) -> None:
    state_dir = StateDir(folder)
    state_dir.manifest_path.write_bytes(data)
    try:
        state_dir.read_manifest()
    except StateDirError as error:
        # Nothing tells a wrong bit in the version from a later release.
        is_later = isinstance(error.__cause__, VersionError)
        assert "damaged" in str(error) or is_later  # noqa: PT017  (the point of the test)


@given(data=anything([PEM], is_msgpack=False))
@example(data=PEM.replace(b"AwBQYDK2Vw", b"AwBQYDK2Vv"))  # the kind of key
def test_the_identity(folder: Path, data: bytes) -> None:
    path = folder / "identity.key"
    path.touch(mode=0o600)
    path.write_bytes(data)
    try:
        identity = Identity.load_or_create(path)
    except IdentityError as error:
        assert "damaged" in str(error)  # noqa: PT017
    else:
        assert identity.peer_id


def test_an_identity_of_another_kind(folder: Path) -> None:
    """A key on an unknown elliptic curve: well-formed, so a parser's error of its own."""
    path = folder / "other.key"
    path.touch(mode=0o600)
    path.write_text(
        "-----BEGIN PRIVATE KEY-----\n"
        "MB8CAQAwEAYHKoZIzj0CAQYFKgMEBQYECDAGAgEBBAEK\n"
        "-----END PRIVATE KEY-----\n"
    )
    with pytest.raises(IdentityError, match="damaged"):
        Identity.load_or_create(path)


@given(data=anything(RECORDS), has_digest=st.booleans())
def test_committed_headers(folder: Path, data: bytes, has_digest: bool) -> None:
    chain = folder / "chain"
    chain.mkdir(exist_ok=True)
    for old in chain.iterdir():
        old.unlink()
    digest = digest_of(data) if has_digest else digest_of(RECORDS[0])
    (chain / f"{5:010d}-{digest.hex()}").write_bytes(digest + data)
    store = ChainStore(chain, digest_of(b"run"), digest_of(b"genesis"))
    for head in store.tips():
        assert store.records_after(head, 0) == []  # its parent is not known


@given(data=anything([b"1700000000000000000"], is_msgpack=False))
def test_the_incarnation(folder: Path, data: bytes) -> None:
    (folder / "incarnation").write_bytes(data)
    assert 0 < Incarnation(StateDir(folder)).number < 2**63


@given(data=anything([b"127.0.0.1:4611\n"], is_msgpack=False))
def test_the_api_file(folder: Path, data: bytes) -> None:
    state_dir = StateDir(folder)
    state_dir.api_path.write_bytes(data)
    try:
        assert isinstance(DaemonFiles(state_dir).read_api(), str)
    except StateDirError as error:
        assert str(error)  # noqa: PT017


@given(data=anything([b"a block of data"], is_msgpack=False))
def test_blocks(folder: Path, data: bytes) -> None:
    digest = digest_of(b"a block of data")
    path = BlockStore(folder / "blocks", 2**20).path(digest)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    store = BlockStore(folder / "blocks", 2**20)
    try:
        assert store.get(digest) == b"a block of data"
    except BlockError:
        assert not store.has(digest)


@pytest.mark.parametrize("seed", range(2))
def test_a_node_starts_again_on_whatever_is_left(tmp_path: Path, seed: int) -> None:
    """Any file but the identity is damaged, emptied or gone: it goes on with what its peer has.

    The number of the folder's format stays: with another digit it is that of a newer version, which
    a node refuses.
    """
    _live_on_damaged_disks(World(tmp_path, seed=seed), "ab", "a")


KINDS: Mapping[str, Mapping[str, Any]] = {
    "shared steps": {"codec": "distro"},
    "signed steps": {"codec": "distro", "trust": "open", "step_chunks": 2},
    "sparse": {"codec": "sparse"},
    "sparse sums": {"codec": "sparse", "top_k": SUMS_TOP_K},
    "fragments": {"fragments": 2, "overlap": True},
    "probation": {"trust": "open", "probation": 10},
    "invitations": {"is_by_invitation": True, "allowed": ("b", "c")},
}
"""Other kinds of runs: what differs in their worlds."""


@pytest.mark.long
@pytest.mark.parametrize(("names", "damaged"), [("ab", "a"), ("abc", "ac")])
@pytest.mark.parametrize("kind", KINDS)
def test_nodes_of_other_runs_start_again_on_whatever_is_left(
    tmp_path: Path, kind: str, names: str, damaged: str
) -> None:
    """Also two of three at once."""
    _live_on_damaged_disks(World(tmp_path, seed=60, **KINDS[kind]), names, damaged)


def _live_on_damaged_disks(world: World, names: str, damaged: str) -> None:
    """Three times some nodes are killed, and start again on damaged disks. b keeps its own."""
    draw = random.Random(world.seed)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await trio.sleep(15.0)
        assert world.all_shards_are_with("b")
        for _ in range(3):
            await world.reach(world.round("b") + draw.randint(1, 4), *names, seconds=600.0)
            for name in damaged:
                world.crash(name)
            await trio.sleep(1.0)
            for name in damaged:
                _damage(draw, world.root / name)
            for name in damaged:
                await nursery.start(world.run, name, ["b"])
        await world.reach(world.round("b") + 2, *names, seconds=600.0)
        # Each may have been alone for a round; the head rule joins them.
        await world.until(lambda: world.is_one_chain(*names))
        world.assert_one_chain(*names)

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        simulate(world, story)
    finally:
        structlog.reset_defaults()


def _damage(draw: random.Random, root: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    files = [path for path in files if path.name not in ("identity.key", "lock", "format")]
    for path in draw.sample(files, min(len(files), draw.choice((1, 3, 20, len(files) // 2)))):
        data = bytearray(path.read_bytes())
        damages: list[Callable[[], bytes | None]] = [
            lambda: None,
            lambda: b"",
            lambda data=data: bytes(data[: draw.randrange(len(data) + 1)]),  # type: ignore[misc]
            lambda data=data: _flipped(draw, data),  # type: ignore[misc]
            lambda: draw.randbytes(draw.randrange(200)),
        ]
        damaged = draw.choice(damages)()
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)


def _flipped(draw: random.Random, data: bytearray) -> bytes:
    for _ in range(draw.randint(1, 4) if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)
