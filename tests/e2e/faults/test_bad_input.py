"""Mistakes of a person: one clear message, the right status, and nothing that was there is lost."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.peers.members.run_exchange import serve_admission, serve_manifest
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from tests.support import builders
from tests.support.daemons import (
    OPTIONS,
    PATIENCE_SECONDS,
    Answer,
    add_founder,
    gossamer,
    refused,
    start_founder,
    takes_part,
)

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory, founded: Path) -> Iterator[LocalNode]:
    """A node to be asked. It is paused: nothing here is about its training, which would take a
    processor for as long as this module lasts."""
    with LocalSwarm(tmp_path_factory.mktemp("seed"), OPTIONS) as swarm:
        node = start_founder(swarm, founded)
        node.wait_for(takes_part, PATIENCE_SECONDS, "training")
        assert gossamer("pause", "--state-dir", node.root).status == 0
        yield node


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "node"


def test_a_seed_that_cannot_be_reached(state_dir: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening: refuses
        address = f"/ip4/127.0.0.1/tcp/{unused.getsockname()[1]}/p2p/{Identity.generate().peer_id}"
        error = refused("join", address, "--state-dir", state_dir, status=1)
    assert address in error
    assert "cannot connect" in error
    assert "is it running" in error
    assert not StateDir(state_dir).has_run()


def test_a_link_with_the_wrong_run_id(seed: LocalNode, state_dir: Path) -> None:
    error = refused("join", f"{seed.address()}#{'5a' * 32}", "--state-dir", state_dir)
    status = seed.status()
    assert status is not None
    assert status.run_id is not None
    assert status.run_id in error, "the whole of both: a typing error may be in any digit"
    assert "5a" * 32 in error
    assert "ask for a new link" in error
    assert not StateDir(state_dir).has_run()


def test_an_address_with_the_wrong_peer_id(seed: LocalNode, state_dir: Path) -> None:
    address = seed.address().rpartition("/")[0]
    other = Identity.generate().peer_id
    error = refused("join", f"{address}/{other}", "--state-dir", state_dir, status=1)
    assert other in error
    assert "another peer answered there" in error
    assert "ask for the current address" in error
    assert not StateDir(state_dir).has_run()


def test_the_state_directory_of_another_run(
    seed: LocalNode, state_dir: Path, founded: Path, manifest_file: Path, corpus: Path
) -> None:
    status = seed.status()
    assert status is not None
    shutil.copytree(founded, state_dir)
    error = refused("join", f"{seed.address()}#{'5a' * 32}", "--state-dir", state_dir)
    assert f"holds run {str(status.run_id)[:10]}" in error
    assert "own --state-dir" in error
    assert (state_dir / "head").read_text() == (founded / "head").read_text()


def test_a_port_that_is_in_use(seed: LocalNode, state_dir: Path, founded: Path) -> None:
    shutil.copytree(founded, state_dir)
    api = DaemonFiles(StateDir(seed.root)).read_api()
    assert api is not None
    listen = seed.address().partition("/p2p/")[0]
    for options, named in (
        (("--listen", listen, "--api", "127.0.0.1:0"), listen),
        (("--listen", "/ip4/127.0.0.1/tcp/0", "--api", api), f"--api {api}"),
    ):
        answer = gossamer("start", "--state-dir", state_dir, *options)
        assert answer.status == 1, answer
        assert named in answer.err
        assert "in use" in answer.err
        assert "another port (0 picks a free one)" in answer.err
    assert (state_dir / "head").read_text() == (founded / "head").read_text()


def test_a_corpus_that_cannot_be_used(tmp_path: Path, state_dir: Path, manifest_file: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    binary = tmp_path / "picture.txt"
    binary.write_bytes(bytes(range(256)) * 10)
    small = tmp_path / "small.txt"
    small.write_text("too little")
    cases = {
        tmp_path / "nowhere": "no such file",
        empty: "no file with text",
        binary: "is binary",
        small: "name more text",
    }
    for path, what in cases.items():
        error = refused(
            "start", "--manifest", manifest_file, "--corpus", path, "--state-dir", state_dir
        )
        assert what in error, error
        assert path == small or str(path) in error
        assert not StateDir(state_dir).has_run()


def test_a_corpus_that_may_not_be_read(
    tmp_path: Path, state_dir: Path, manifest_file: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("not for you\n" * 1000)
    secret.chmod(0)
    if os.access(secret, os.R_OK):
        pytest.skip("this user may read everything")
    error = refused(
        "start", "--manifest", manifest_file, "--corpus", secret, "--state-dir", state_dir
    )
    assert str(secret) in error
    assert "may not read" in error


def test_a_manifest_with_mistakes_names_them_all(tmp_path: Path, state_dir: Path) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(
        'preset = "tiny"\nsync = "sometimes"\n'
        "[model]\nnum_heads = 3\ncontxt = 5\n"
        '[outer]\ncodec = "int3"\nmomentum = 2.0\n'
        '[rounds]\ngather_seconds = "soon"\n'
    )
    error = refused("start", "--manifest", manifest, "--state-dir", state_dir)
    for mistake in (
        'sync is "sometimes"; allowed: "diloco"',
        "model.contxt is not a key; did you mean model.context?",
        'outer.codec is "int3"; allowed: "fp32", "fp16", "int8", "int4"',
        "outer.momentum is 2.0; allowed: 0 to",
        'rounds.gather_seconds is "soon"; allowed: a number',
        "must divide model.num_heads (3)",
    ):
        assert mistake in error
    assert len(error.splitlines()) == 6
    assert not StateDir(state_dir).has_run()


def test_a_damaged_manifest_is_read_from_its_copy(swarm: LocalSwarm, founded: Path) -> None:
    node = add_founder(swarm, founded)
    path = node.root / "manifest.msgpack"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    node.start("start")
    node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    assert path.read_bytes() == data
    assert "written again" in node.log_path.read_text()


def test_a_key_that_was_lost_is_told(swarm: LocalSwarm, founded: Path) -> None:
    """The node went on as a stranger, and its owner saw another peer id at most."""
    node = add_founder(swarm, founded)
    path = node.root / "identity.key"
    path.unlink()
    node.start("start")
    node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    text = node.log_path.read_text()
    assert f"{path} was missing" in text
    assert "gossamer identity restore FILE" in text


@pytest.mark.parametrize("name", ["identity.key", "manifest.msgpack"])
def test_a_damaged_file_without_which_nothing_goes(
    name: str, swarm: LocalSwarm, founded: Path
) -> None:
    node = add_founder(swarm, founded)
    path = node.root / name
    (node.root / "manifest.copy").unlink(missing_ok=True)
    data = path.read_bytes()
    data = data[: len(data) // 2]
    path.write_bytes(data)
    error = refused("start", "--state-dir", node.root)
    assert str(path) in error
    assert "is damaged" in error
    assert path.read_bytes() == data


def test_a_run_that_does_not_fit_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    """A stranger's manifest of 13 billion parameters: an error for people, also after a restart."""
    founder = Identity.generate()
    example = builders.manifest()
    model = replace(
        example.model, num_layers=64, width=4096, num_heads=32, num_kv_heads=32,
        hidden_width=11008, vocabulary=32000,
    )  # fmt: skip
    outer = replace(example.outer, chunk_elements=2**20)
    manifest = replace(example, founder=founder.peer_id, model=model, outer=outer, name="huge")
    signed = SignedManifest(
        manifest=encode_manifest(manifest),
        signature=founder.sign(signing_bytes(manifest.run_id)),
    )
    folder = tmp_path / "node"
    options = ("--state-dir", folder, "--listen", "/ip4/127.0.0.1/tcp/0", "--api", "127.0.0.1:0")

    async def serve_and_join() -> Answer:
        async with open_libp2p_transport(founder, ["/ip4/127.0.0.1/tcp/0"]) as transport:
            serve_admission(transport, lambda _peer: True)
            serve_manifest(transport, signed, Uploads())
            return await trio.to_thread.run_sync(
                lambda: gossamer("join", transport.addresses()[0], *options)
            )

    answer = trio.run(serve_and_join)
    assert answer.status == 2, answer
    assert "huge has 13," in answer.err
    assert "a run may need 70%" in answer.err
    assert not (folder / "manifest.msgpack").exists()
    # The state directory of a run that was joined on a larger machine.
    StateDir(folder).write_manifest(signed)
    again = gossamer("join", *options)
    assert again.status == 2, again
    assert "huge has 13," in again.err
