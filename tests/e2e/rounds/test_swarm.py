"""Three daemons in one run: they agree on every state, and go on when some or all are killed.

They are started once; every test finds all three in the ring and may kill what it likes.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.identity import Identity
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from gossamer.trainer.confinement import landlock
from tests.support.daemons import (
    OPTIONS,
    PATIENCE_SECONDS,
    digests_on_disk,
    get,
    gossamer,
    in_rounds_of,
    poll,
    refused,
    restarts_of,
    said,
    takes_part,
    trainer_of,
    wait_for_round,
)
from tests.support.ports import free_ports

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, founded: Path) -> Iterator[list[LocalNode]]:
    """The founder and two that join it, each on a port that it keeps over its restarts."""
    with LocalSwarm(tmp_path_factory.mktemp("three"), OPTIONS) as swarm:
        ports = free_ports(3)
        for port in ports:
            swarm.add(listen=f"/ip4/127.0.0.1/tcp/{port}")
        seed, *joiners = swarm.nodes
        shutil.copytree(founded, seed.root)
        seed.start("start")
        address = seed.address()
        for node in joiners:
            node.start("join", address)
        yield swarm.nodes


def start_again(nodes: list[LocalNode], node: LocalNode) -> None:
    """Starts a node with the plain command of its first start."""
    if node is nodes[0]:
        node.start("start")
        return
    seed_id = Identity.load_or_create(StateDir(nodes[0].root).identity_path).peer_id
    node.start("join", f"{nodes[0].listen}/p2p/{seed_id}")


@pytest.fixture
def nodes(three: list[LocalNode]) -> list[LocalNode]:
    """The three nodes, all in the ring; one that a failed test left dead is started."""
    for node in three:
        if not node.is_running:
            start_again(three, node)
    for node in three:
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three")
    return three


def test_all_states_are_equal_after_every_round(nodes: list[LocalNode]) -> None:
    first = max(status.round for node in nodes if (status := node.status()))
    seen: dict[int, set[str]] = {}
    heads: dict[int, set[str]] = {}
    newest = [0, 0, 0]

    def observe() -> bool:
        for index, node in enumerate(nodes):
            status = node.status()
            assert status is not None, node.tail()
            assert status.head is not None
            assert status.state_digest is not None
            assert status.round >= newest[index], "a committed round was taken back"
            newest[index] = status.round
            seen.setdefault(status.round, set()).add(status.state_digest)
            heads.setdefault(status.round, set()).add(status.head)
        return min(newest) >= first + 5

    poll(observe, "five more rounds")
    assert all(len(digests) == 1 for digests in seen.values()), seen
    assert all(len(one) == 1 for one in heads.values()), heads

    chains = [digests_on_disk(node) for node in nodes]
    shared = set(chains[0]) & set(chains[1]) & set(chains[2])
    assert len(shared) >= first + 4
    for number in shared:
        assert chains[0][number] == chains[1][number] == chains[2][number], number
        assert seen.get(number, {chains[0][number]}) == {chains[0][number]}


def test_every_trainer_is_confined_where_the_kernel_can_do_it(nodes: list[LocalNode]) -> None:
    try:
        landlock.abi_version()
    except OSError as error:
        pytest.skip(f"{error}")
    for node in nodes:
        status, trainer = node.status(), trainer_of(node)
        assert status is not None
        assert "can write only to its own folder" in (status.confinement or "")
        assert trainer is not None
        assert "NoNewPrivs:\t1" in Path(f"/proc/{trainer.pid}/status").read_text()


def test_two_peers_export_the_same_model(nodes: list[LocalNode], tmp_path: Path) -> None:
    models: dict[str, dict[str, bytes]] = {}

    def exported() -> bool:
        # Both go on committing, so it takes some luck to find them at the same round.
        for name, node in (("one", nodes[0]), ("other", nodes[1])):
            answer = gossamer("export", tmp_path / name, "--force", "--state-dir", node.root)
            assert answer.status == 0, answer
            found = re.search(r"head\s+([0-9a-f]{16})", answer.out)
            assert found, answer.out
            model = (tmp_path / name / "model.safetensors").read_bytes()
            models.setdefault(found[1], {})[name] = model
        return any(len(pair) == 2 for pair in models.values())

    for node in nodes:  # so that heads stand still, which costs no round
        assert gossamer("pause", "--state-dir", node.root).status == 0
    try:
        for node in nodes:
            node.wait_for(lambda status: status.phase == "paused", PATIENCE_SECONDS, "pause")
        poll(exported, "head that both have")
    finally:
        for node in nodes:
            assert gossamer("resume", "--state-dir", node.root).status == 0
    (pair,) = [pair for pair in models.values() if len(pair) == 2]
    assert pair["one"] == pair["other"]


def status_in_round_of_three(node: LocalNode) -> dict[str, Any] | None:
    """What `gossamer status --json` prints; None where the newest round was another one."""
    answer = gossamer("status", "--json", "--state-dir", node.root)
    assert answer.status == 0
    status: dict[str, Any] = msgspec.json.decode(answer.out)
    last = status["last_round"]
    return status if len((last or {}).get("contributors", ())) == 3 else None


def test_status_and_metrics_are_what_tools_expect(nodes: list[LocalNode]) -> None:
    # A busy machine may do a round without one of them in between.
    status = poll(lambda: status_in_round_of_three(nodes[0]), "status in a round of three")
    assert status["phase"] in ("training", "averaging")
    assert len(bytes.fromhex(status["run_id"])) == 32
    assert status["addresses"][0].endswith(f"/p2p/{status['peer_id']}")
    assert status["round"] >= 1
    assert len(status["head"]) == len(status["state_digest"]) == 64
    assert 0 < status["tokens_total"] < status["swarm_tokens_total"]
    assert 0 < status["loss"] < 6
    assert len(status["peers"]) == 2
    for peer in status["peers"]:
        assert {"peer_id", "phase", "round", "head", "tokens_per_second", "device"} <= set(peer)
        assert peer["tokens_per_second"] > 0
        assert peer["cores"] >= 1
    last = status["last_round"]
    assert last["outcome"] == "committed"
    assert len(last["members"]) == len(last["contributors"]) == 3
    assert min(last["duration_seconds"], last["bytes_sent"], last["bytes_received"]) > 0

    assert get(nodes[0], "/readyz")[0] == 200
    assert get(nodes[0], "/livez")[0] == 200
    code, metrics = get(nodes[0], "/metrics")
    assert code == 200
    assert status["peer_id"] not in metrics
    if (promtool := shutil.which("promtool")) is None:
        print("promtool is not here: /metrics was not checked with it")
        return
    check = subprocess.run(
        [promtool, "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=60
    )
    assert (check.returncode, check.stdout + check.stderr) == (0, "")


def test_pause_and_resume(nodes: list[LocalNode]) -> None:
    paused, *others = nodes
    assert gossamer("pause", "--state-dir", paused.root).status == 0
    before = paused.wait_for(lambda s: s.phase == "paused", PATIENCE_SECONDS, "pause")
    assert before.paused_reason == "user"
    assert get(paused, "/readyz")[0] == 503
    assert trainer_of(paused) is None, "the device is not free"
    status = others[0].wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round without the paused one")
    wait_for_round(paused, status.round)  # it follows all the same
    assert gossamer("resume", "--state-dir", paused.root).status == 0
    for node in nodes:
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three after the pause")


def test_a_killed_trainer_is_started_again(nodes: list[LocalNode]) -> None:
    node = nodes[1]
    restarts = restarts_of(node)
    trainer = trainer_of(node)
    assert trainer is not None
    trainer.send_signal(signal.SIGKILL)
    poll(lambda: restarts_of(node) > restarts, "restart in the metrics")
    assert said(node, "the trainer was killed (SIGKILL)")
    poll(lambda: (new := trainer_of(node)) and new.pid != trainer.pid, "new trainer")
    status = node.status()
    assert status is not None
    node.wait_for(
        lambda s: s.round > status.round + 1 and in_rounds_of(3)(s), PATIENCE_SECONDS, "round"
    )


def test_a_second_daemon_on_the_same_state_directory_is_refused(nodes: list[LocalNode]) -> None:
    node = nodes[0]
    assert node.process is not None
    error = refused("start", "--state-dir", node.root, status=1)
    assert f"is in use by process {node.process.pid}" in error
    assert "--state-dir" in error
    assert node.status() is not None


def test_a_killed_peer_catches_up_when_it_is_started_again(nodes: list[LocalNode]) -> None:
    *others, victim = nodes
    victim.kill()
    lived = digests_on_disk(victim)
    status = others[0].wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of the survivors")
    wait_for_round(others[0], status.round + 2)
    start_again(nodes, victim)
    for node in nodes:
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three after the restart")
    assert not said(victim, "Traceback")
    chains = [digests_on_disk(node) for node in nodes]
    for number in set(chains[0]) & set(chains[2]):
        assert chains[0][number] == chains[1].get(number, chains[0][number]) == chains[2][number]
    # What it had committed with the others is part of what they have now.
    assert all(chains[0][number] == lived[number] for number in sorted(lived)[:-1])


def test_everybody_is_killed_and_the_run_goes_on(nodes: list[LocalNode]) -> None:
    for node in nodes:
        node.signal(signal.SIGKILL)
    for node in nodes:
        node.wait()
    before = [digests_on_disk(node) for node in nodes]
    newest = [max(chain) for chain in before]
    for node in reversed(nodes):
        start_again(nodes, node)
    rounds: list[int] = []
    for node in reversed(nodes):
        rounds.append(node.wait_for(takes_part, PATIENCE_SECONDS, "training again").round)
    # At once, before anything is fetched, each is where its disk was.
    assert min(rounds) >= min(newest)
    goal = max(newest) + 2
    for node in nodes:
        node.wait_for(
            lambda s: s.round >= goal and in_rounds_of(3)(s), PATIENCE_SECONDS, "newer round"
        )
    after = [digests_on_disk(node) for node in nodes]
    for number in set(after[0]) & set(after[1]) & set(after[2]):
        assert after[0][number] == after[1][number] == after[2][number]
    # The newest round that any of them had written is in the chain: it did not go back.
    best = max(before, key=max)
    assert after[0][max(best)] == best[max(best)]


def test_leaving_in_order(nodes: list[LocalNode]) -> None:
    by_signal, by_order, stays = nodes
    assert by_signal.leave() == 0, by_signal.tail()
    assert said(by_signal, "left in order")
    assert DaemonFiles(StateDir(by_signal.root)).read_api() is None
    assert gossamer("leave", "--state-dir", by_order.root).status == 0
    assert by_order.wait(PATIENCE_SECONDS) == 0, by_order.tail()
    stays.wait_for(in_rounds_of(1), PATIENCE_SECONDS, "round of the one that stays")
    answer = gossamer("status", "--state-dir", by_order.root)
    assert answer.status == 1
    assert "no node runs on" in answer.err
