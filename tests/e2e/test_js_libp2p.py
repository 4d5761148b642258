"""Another libp2p implementation (js-libp2p) connects, identifies, pings and hears the gossip."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.peers.statements.gossip import TOPIC_RUN_BYTES
from tests.support.daemons import (
    PATIENCE_SECONDS,
    in_rounds_of,
    poll,
    said,
    start_founder,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent / "js"
INSTALL_SECONDS = 240.0
"""Eighty small packages."""

Event = dict[str, Any]


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that `package-lock.json` names."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not here: js-libp2p cannot be installed")
    folder = tmp_path_factory.mktemp("js")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
    )
    if done.returncode and "network" in done.stderr:
        pytest.skip("npm reaches no registry: js-libp2p cannot be installed")
    assert done.returncode == 0, done.stderr
    return folder


@contextmanager
def js_peer(modules: Path, address: str, *topics: str) -> Iterator[list[Event]]:
    """A js-libp2p peer that dials an address, and what it has said until now."""
    events: list[Event] = []
    with subprocess.Popen(
        ["node", str(HERE / "peer.mjs"), str(modules), address, *topics],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            events.extend(json.loads(line) for line in lines)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield events
        finally:
            process.stdin.close()
            try:
                process.wait(PATIENCE_SECONDS)
            finally:
                process.kill()
                reader.join()


@pytest.mark.long
def test_js_libp2p_connects_identifies_pings_and_hears_the_gossip(
    swarm: LocalSwarm, founded: Path, modules: Path
) -> None:
    founder = start_founder(swarm, founded)
    member = swarm.join(founder.address())
    status = member.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    assert status.run_id is not None
    run = f"gossamer/{status.run_id[: 2 * TOPIC_RUN_BYTES]}"
    authors = {node.address().rsplit("/", 1)[1] for node in (founder, member)}

    with js_peer(modules, founder.address(), f"{run}/members", f"{run}/rounds") as events:

        def those(event: str) -> list[Event]:
            return [each for each in events.copy() if each["event"] == event]

        def has_heard() -> bool:
            heard = {(each["topic"], each["author"]) for each in those("message")}
            return heard >= set(product((f"{run}/members", f"{run}/rounds"), authors))

        poll(lambda: len(those("pinged")) == 3, "three pings")
        assert those("connected")[0]["encryption"] == "/noise"
        assert those("connected")[0]["muxer"] == "/yamux/1.0.0"
        poll(lambda: those("identified"), "identify")
        assert "/meshsub/1.1.0" in those("identified")[0]["protocols"]
        assert founder.address().rsplit("/p2p/")[0] in those("identified")[0]["listening"]
        poll(has_heard, "message of each member on each topic")
        assert not those("disconnected")

    # The swarm does not mind that it was there, and goes on without it.
    goal = wait_for_round(member, status.round + 1).round + 2
    assert wait_for_round(member, goal).last_round is not None
    assert not said(founder, "Traceback")
    assert not said(member, "Traceback")
