"""A swarm grows from one and survives its founder."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.network.identity import Identity
from gossamer.node.storage.state_dir import StateDir
from tests.support.daemons import (
    MANIFEST,
    PATIENCE_SECONDS,
    gossamer,
    has_all_data,
    in_rounds_of,
    poll,
    said,
    shared_rounds,
    start_founder,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

ANY_API = "127.0.0.1:0"


def test_one_alone_then_two_then_a_third_without_the_seed(swarm: LocalSwarm, founded: Path) -> None:
    seed = start_founder(swarm, founded)
    alone = seed.wait_for(in_rounds_of(1), PATIENCE_SECONDS, "round alone")

    second = swarm.join(seed.address())
    together = second.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    assert together.round > alone.round
    assert together.run_id == alone.run_id
    # It was in the first ring that it could be in: it took over no round after it began to train.
    lines = second.log_path.read_text().splitlines()
    begun = next(i for i, line in enumerate(lines) if " committed " in line)
    assert "peers=2" in lines[begun]
    seed.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")

    # A shard that one node alone has is gone with it.
    poll(lambda: has_all_data(second) or None, "copy of all data")
    seed.kill()
    third = swarm.join(second.address())
    for node in (second, third):
        node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two without the seed")
    goal = wait_for_round(third, together.round + 1).round + 2
    for node in (second, third):
        wait_for_round(node, goal)
    assert len(shared_rounds(second, third)) >= goal - 1


def test_a_node_that_knows_no_peers_any_more_asks_the_addresses_of_its_first_life(
    swarm: LocalSwarm, founded: Path
) -> None:
    """It died before it wrote the known peers for the first time."""
    seed = start_founder(swarm, founded)
    second = swarm.join(seed.address())
    second.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    for node in (seed, second):
        node.kill()
        StateDir(node.root).known_peers_path.unlink(missing_ok=True)
    for node in (seed, second):
        node.start("start")
    second.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two in the second life")


def test_a_joiner_without_anybody_leaves_when_told(swarm: LocalSwarm, founded: Path) -> None:
    """The joiner knows its run, but its seed has gone before the joiner had the data index."""
    node = swarm.add()
    node.root.mkdir()
    shutil.copy(founded / "manifest.msgpack", node.root)
    node.start("start")
    poll(lambda: said(node, "the run's data index cannot be had yet"), "word of what is missing")
    assert node.leave() == 0, node.tail()
    assert said(node, "left before")


def test_a_closed_run_tells_a_stranger_its_id_and_takes_who_is_named(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path
) -> None:
    (swarm.root / "node2").mkdir(parents=True)
    named = Identity.load_or_create(swarm.root / "node2" / "identity.key")
    manifest = tmp_path / "closed.toml"
    closed = f'admission = "allow"\nallowed = ["{named.peer_id}"]\n'
    manifest.write_text(MANIFEST.replace("[tokenizer]", f"{closed}[tokenizer]", 1))
    seed = swarm.found("--manifest", str(manifest), "--corpus", str(corpus))
    seed.wait_for(in_rounds_of(1), PATIENCE_SECONDS, "round alone")

    folder = tmp_path / "stranger"
    options = ("--listen", "/ip4/127.0.0.1/tcp/0", "--api", "127.0.0.1:0")
    refused = gossamer("join", seed.address(), "--state-dir", folder, *options)
    assert refused.status == 2, refused
    assert Identity.load_or_create(folder / "identity.key").peer_id in refused.err
    assert not (folder / "manifest.msgpack").exists()
    assert not [each for each in (folder / "blocks").rglob("*") if each.is_file()]

    member = swarm.join(seed.address())
    assert member.root.name == "node2"
    member.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")


def test_on_a_terminal_the_owner_is_asked_first(
    swarm: LocalSwarm, founded: Path, tmp_path: Path
) -> None:
    seed = start_founder(swarm, founded)
    folder = tmp_path / "asked"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gossamer.node.cli", "join", seed.address()]
    options = ["--state-dir", str(folder), "--listen", "/ip4/127.0.0.1/tcp/0", "--api", ANY_API]
    for answer in (b"n\n", b"\x04"):  # a no, and Ctrl-D
        process = subprocess.Popen([*command, *options], stdin=theirs, stdout=theirs, stderr=theirs)
        try:
            shown = b""
            while b"Join this run? [y/N]" not in shown:
                shown += os.read(ours, 4096)
            os.write(ours, answer)
            assert process.wait(PATIENCE_SECONDS) == 1
            text = shown.decode()
            while "gossamer: not joined" not in shown.decode():
                shown += os.read(ours, 4096)
        finally:
            process.kill()
            process.wait()
    os.close(theirs)
    os.close(ours)
    for word in (
        "end-to-end",
        "founder",
        "parameters",
        "memory",
        "disk",
        "each round",
        "corpus",
        "limits",
    ):
        assert word in text, text
    assert not (folder / "manifest.msgpack").exists()


def test_a_run_is_watched_from_outside(swarm: LocalSwarm, founded: Path, tmp_path: Path) -> None:
    founder = start_founder(swarm, founded)
    second = swarm.join(founder.address(), "--name", "<i>Ada</i>")
    for node in (founder, second):
        node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    status = founder.status()
    assert status is not None
    assert [peer.name for peer in status.peers] == ["<i>Ada</i>"]
    given = gossamer("peers", "--state-dir", founder.root)
    assert f"{status.peers[0].peer_id} <i>Ada</i>" in given.out
    link = f"{founder.address()}#{status.run_id}"
    (tmp_path / "home").mkdir()
    plain = {name: text for name, text in os.environ.items() if not name.startswith("XDG_")}
    home = {**plain, "HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "gossamer.node.cli", "watch", link]

    def seen(*options: str) -> str:
        asked = [*command, *options]
        done = subprocess.run(asked, env=home, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def view_of_two() -> dict[str, Any] | None:
        view: dict[str, Any] = json.loads(seen("--json"))
        return view if len(view["rounds"][-1]["members"]) == 2 else None

    # A busy machine may do a round without one of them in between.
    view = poll(view_of_two, "view of a round of two")
    assert view["run_id"] == status.run_id
    assert view["round"] >= status.round
    assert view["tokens_total"] > 0
    assert {peer["peer_id"] for peer in view["peers"]} == {
        poll(node.status, "an answer").peer_id for node in (founder, second)
    }
    assert 0 < view["loss"] < 10
    shown = poll(
        lambda: text if "with 2 members" in (text := seen()) else None, "text on a round of two"
    )
    assert f"<i>Ada</i> {status.peers[0].peer_id[-6:]}" in shown
    # It leaves nothing on the machine that looked.
    assert not any((tmp_path / "home").iterdir())
    other = gossamer("watch", f"{founder.address()}#{'0' * 64}")
    assert (other.status, "the link says" in other.err) == (2, True)
    for node in (founder, second):
        assert node.leave() == 0, node.tail()
