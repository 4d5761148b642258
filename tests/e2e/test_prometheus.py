"""Prometheus itself reads two real nodes with the configuration, rules and board of deploy/."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from tests.support.daemons import in_rounds_of, poll, start_founder, wait_for_round
from tests.support.ports import free_ports

pytestmark = pytest.mark.e2e

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[httpx.Client]:
    """Runs Prometheus on the configuration of deploy/ with other targets; skips without it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: apt install prometheus)")
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["scrape_configs"][0]["static_configs"][0]["targets"] = targets
    # These nodes live for seconds.
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(DEPLOY / "alerts.yml", folder)
    (port,) = free_ports(1)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

            def is_ready() -> bool:
                assert process.poll() is None, (folder / "log").read_text()
                try:
                    return client.get("/-/ready").status_code == 200
                except httpx.TransportError:
                    return False

            poll(is_ready, "Prometheus")
            yield client
    finally:
        process.terminate()
        process.wait(30)


def ask(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    """The series of an expression now."""
    answer = client.get("/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", answer
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def instances(client: httpx.Client, expression: str) -> set[str]:
    return {series["metric"]["instance"] for series in ask(client, expression)}


@pytest.mark.long
def test_prometheus_sees_two_nodes_of_one_run(
    tmp_path: Path, swarm: LocalSwarm, founded: Path
) -> None:
    nodes = [start_founder(swarm, founded)]
    nodes.append(swarm.join(nodes[0].address()))
    for node in nodes:
        node.wait_for(in_rounds_of(2), 90, "a round of two")
    apis = [DaemonFiles(StateDir(node.root)).read_api() for node in nodes]
    targets = {api for api in apis if api is not None}
    with prometheus(tmp_path / "prometheus", sorted(targets)) as client:
        status = wait_for_round(nodes[0], nodes[0].wait_for(bool, 30, "status").round + 3)
        poll(lambda: instances(client, "gossamer_peers == 1") == targets, "peers in Prometheus")
        assert instances(client, 'up{job="gossamer"} == 1') == targets
        (run,) = ask(client, "count by (run) (gossamer_run_info)")
        assert run["value"][1] == "2"
        assert status.run_id is not None
        assert status.run_id.startswith(run["metric"]["run"].split()[-1])
        for expression in (
            "gossamer_trainer_resident_memory_bytes > 2^20",
            "rate(gossamer_trainer_cpu_seconds_total[30s]) > 0",
            'rate(gossamer_line_bytes_total{direction="sent"}[30s]) > 0',
            'gossamer_paused{reason="disk"} == 0',
            "gossamer_limit_threads == 1",
            "gossamer_limit_memory_bytes == +Inf",
            "gossamer_late_work_tokens >= 0",
        ):
            wanted = expression
            poll(lambda: instances(client, wanted) == targets, expression)  # noqa: B023
        groups = client.get("/api/v1/rules").json()["data"]["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        written = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
        assert set(rules) == {rule["alert"] for group in written for rule in group["rules"]}
        poll(lambda: all_are_ok(client), "an evaluation of every rule")
        board = json.loads((DEPLOY / "grafana/dashboards/gossamer.json").read_text())
        shown = {
            panel["title"]: [
                ask(client, in_grafana(target["expr"])) for target in panel.get("targets", ())
            ]
            for panel in board["panels"]
        }
        table = shown["Nodes of the run"]
        for series in table:
            assert {one["metric"]["instance"] for one in series} == targets
        assert max(float(one["value"][1]) for one in shown["Committed round"][0]) >= status.round
        for title in ("Training loss", "Phase", "Line: sent, and the limit"):
            assert {one["metric"]["instance"] for one in shown[title][0]} == targets
    for node in nodes:
        assert node.leave() == 0, node.tail()


def all_are_ok(client: httpx.Client) -> bool:
    """Returns whether every rule was evaluated; a rule with an error fails the test."""
    groups = client.get("/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for rule in rules:
        assert rule["health"] != "err", rule
    return bool(rules) and all(rule["health"] == "ok" for rule in rules)


def in_grafana(expression: str) -> str:
    """The expression with all nodes, as Grafana asks it."""
    return re.sub(r"\$node\b", ".*", expression.replace("$__rate_interval", "30s"))
