"""The files in deploy/ and around it fit the code: metrics, settings, commands, times, imports."""

import configparser
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from gossamer.node.base.address_text import parse_host_port
from gossamer.node.base.settings.settings import DEFAULT_API, ConfigError, load_settings
from gossamer.node.cli import main
from gossamer.node.command_table import app
from gossamer.node.commands.user_errors import exit_status
from gossamer.node.machine.trainer_process import EXIT_SECONDS, TERMINATE_SECONDS
from gossamer.node.rounds.turn import LEAVE_SECONDS
from gossamer.node.service.units import system_unit
from gossamer.node.storage.manifest_files import NAMES
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PACKAGES = ("node", "protocol", "trainer")
NODES = ("seed", "volunteer-1", "volunteer-2")
# What an orderly leave may take, and as much again for a checkpoint on a slow disk.
STOP_SECONDS_MIN = 2 * (LEAVE_SECONDS + EXIT_SECONDS + TERMINATE_SECONDS)


def tool(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian: apt install {package})")
    return path


def check(*command: str, cwd: Path | None = None) -> str:
    """Runs a checking tool; its output, if it had nothing against it."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# Prometheus and Grafana


def dashboard() -> dict[str, Any]:
    path = DEPLOY / "grafana/dashboards/gossamer.json"
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def dashboard_expressions() -> list[str]:
    return [
        target["expr"].replace("$__rate_interval", "1m").replace("$node", ".*")
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def alert_expressions() -> list[str]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def label_values() -> dict[str, dict[str, set[str]]]:
    """The registry's series names, to label names, to the values that are there from the start."""
    metrics = Metrics(Gpus())
    found: dict[str, dict[str, set[str]]] = {}
    for family in metrics.registry.collect():
        found.setdefault(family.name, {})  # GPU families have no samples where there is no GPU
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


def test_dashboard_and_alerts_use_metrics_that_exist() -> None:
    known = label_values()
    expressions = dashboard_expressions() + alert_expressions()
    for query in (variable["query"] for variable in dashboard()["templating"]["list"]):
        expressions.append(query["query"] if isinstance(query, dict) else query)
    uses = 0
    for expression in expressions:
        for name, matchers in re.findall(r"(gossamer_\w+)(?:\{([^}]*)\})?", expression):
            uses += 1
            assert name in known, f"{name} in {expression}"
            for label, operator, values in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers):
                if label in ("instance", "run"):
                    continue
                for value in values.split("|") if "~" in operator else [values]:
                    assert value in known[name][label], f"{label}={value} in {expression}"
    assert uses > 40


def test_the_dashboard_shows_the_nodes_of_one_run() -> None:
    """The nodes that can be chosen are those of the chosen run, so the rounds of two do not mix."""
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    assert variables["run"]["query"]["query"] == "label_values(gossamer_run_info, run)"
    assert not variables["run"].get("includeAll")
    nodes = variables["node"]
    assert nodes["query"]["query"] == 'label_values(gossamer_run_info{run="$run"}, instance)'
    assert "allValue" not in nodes  # else "All" would be the nodes of all runs


def test_the_dashboard_shows_several_nodes_beside_each_other() -> None:
    """Every series is one of the chosen nodes, and each chart of a machine keeps them apart."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            for matchers in re.findall(r"gossamer_\w+(?:\{([^}]*)\})?", target["expr"]):
                assert 'instance=~"$node"' in matchers, target["expr"]
            if "{{" in target["legendFormat"] and "sum by (" in target["expr"]:
                labels = re.findall(r"{{(\w+)}}", target["legendFormat"])
                kept = re.search(r"sum by \(([^)]*)\)", target["expr"])
                assert kept is not None
                assert set(labels) <= set(kept[1].split(", ")), target
    (table,) = (panel for panel in dashboard()["panels"] if panel["title"] == "Nodes of the run")
    assert all(target["expr"].startswith("sum by (instance) ") for target in table["targets"])


def test_promtool_accepts_configuration_and_rules() -> None:
    promtool = tool("promtool", "prometheus")
    assert "SUCCESS" in check(promtool, "check", "config", str(DEPLOY / "prometheus.yml"))


def test_promtool_understands_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    promtool = tool("promtool", "prometheus")
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions())
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in check(promtool, "check", "rules", str(path))


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    promtool = tool("promtool", "prometheus")
    # promtool wants the texts, too: rules without them keep what is expected readable.
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"], rule["labels"]
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    series = {
        'up{job="gossamer",instance="healthy"}': "1x300",
        'up{job="gossamer",instance="down"}': "0x300",
        'gossamer_run_info{instance="healthy",run="a"}': "1x300",
        'gossamer_run_info{instance="stuck",run="a"}': "1x300",
        # Another run, which does not hide that nothing is committed in this one. Its founder has
        # heard of no other node yet; the third run's node has, and reaches none.
        'gossamer_run_info{instance="founder",run="b"}': "1x300",
        'gossamer_run_info{instance="lone",run="c"}': "1x300",
        'gossamer_inner_steps_total{instance="founder"}': "0+60x300",
        'gossamer_rounds_total{instance="founder",outcome="committed"}': "0+1x300",
        'gossamer_peers{instance="founder",path="direct"}': "0x300",
        'gossamer_peers{instance="lone",path="direct"}': "0x300",
        'gossamer_dials_total{instance="founder",outcome="unreachable"}': "0x300",
        'gossamer_dials_total{instance="lone",outcome="unreachable"}': "0+1x300",
        'gossamer_dials_total{instance="healthy",outcome="unreachable"}': "0+1x300",
        # It goes to and fro between the two phases and gets nowhere.
        'gossamer_phase{instance="lone",phase="syncing"}': " ".join(["1x9 0x9"] * 15) + " 1x0",
        'gossamer_phase{instance="lone",phase="joining"}': " ".join(["0x9 1x9"] * 15) + " 0x0",
        'gossamer_phase{instance="healthy",phase="syncing"}': "0x100 1x10 0x190",
        'gossamer_paused{instance="full",reason="disk"}': "1x300",
        'gossamer_paused{instance="full",reason="user"}': "0x300",
        'gossamer_paused{instance="healthy",reason="user"}': "1x300",
        'gossamer_paused{instance="healthy",reason="disk"}': "0x300",
        'gossamer_memory_used_bytes{instance="healthy"}': "9e9x300",
        # No limit: promtool's series cannot be +Inf.
        'gossamer_limit_memory_bytes{instance="healthy"}': "1e300x300",
        'gossamer_memory_used_bytes{instance="greedy"}': "9e9x300",
        'gossamer_limit_memory_bytes{instance="greedy"}': "8e9x300",
        # 60 bytes in a minute under a limit of 1 byte/s is what is allowed, and 120 bytes are not.
        'gossamer_line_bytes_total{instance="healthy",direction="sent"}': "0+60x300",
        'gossamer_line_bytes_total{instance="greedy",direction="sent"}': "0+120x300",
        'gossamer_line_limit_bytes_per_second{instance="healthy",direction="sent"}': "1x300",
        'gossamer_line_limit_bytes_per_second{instance="greedy",direction="sent"}': "1x300",
        'gossamer_phase{instance="healthy",phase="training"}': "1x300",
        'gossamer_phase{instance="stuck",phase="training"}': "1x300",
        'gossamer_phase{instance="healthy",phase="failed"}': "0x300",
        'gossamer_phase{instance="broken",phase="failed"}': "1x300",
        'gossamer_inner_steps_total{instance="healthy"}': "0+60x300",
        'gossamer_inner_steps_total{instance="stuck"}': "7x300",
        'gossamer_peers{instance="healthy",path="direct"}': "1x300",
        'gossamer_peers{instance="stuck",path="direct"}': "0x300",
        'gossamer_rounds_total{instance="healthy",outcome="committed"}': "0+1x60 60x240",
        'gossamer_rounds_behind{instance="healthy"}': "0x300",
        'gossamer_rounds_behind{instance="stuck"}': "5x300",
        'gossamer_restarts_total{instance="healthy",reason="killed"}': "0x10 1x290",
        'gossamer_restarts_total{instance="broken",reason="killed"}': "0+1x300",
        'gossamer_nonfinite_steps_total{instance="healthy"}': "0x300",
        'gossamer_nonfinite_steps_total{instance="broken"}': "0+5x300",
        'gossamer_block_verify_failures_total{instance="healthy"}': "0x300",
        'gossamer_block_verify_failures_total{instance="broken"}': "0+1x300",
        'gossamer_offences_total{instance="healthy",reason="forged"}': "0+1x300",
        'gossamer_offences_total{instance="stuck",reason="forged"}': "0x300",
        'gossamer_tokens_dropped_total{instance="healthy",reason="stale"}': "0x300",
        'gossamer_tokens_dropped_total{instance="stuck",reason="stale"}': "0+9x300",
        # Its founder takes rounds back all the time.
        'gossamer_tokens_dropped_total{instance="healthy",reason="rolled_back"}': "0+9x300",
        # It wants others in the run's first round.
        'gossamer_phase{instance="patient",phase="training"}': "1x300",
        'gossamer_inner_steps_total{instance="patient"}': "0x300",
        'gossamer_waiting_for_peers{instance="patient"}': "1x300",
        'gossamer_waiting_for_peers{instance="stuck"}': "0x300",
        # It serves a finished run, and all others have left.
        'gossamer_phase{instance="last",phase="finished"}': "1x300",
        'gossamer_phase{instance="lone",phase="finished"}': "0x300",
        'gossamer_peers{instance="last",path="direct"}': "0x300",
        'gossamer_dials_total{instance="last",outcome="unreachable"}': "0+1x300",
    }
    firing: dict[str, list[dict[str, str]]] = {
        "GossamerNodeDown": [{"job": "gossamer", "instance": "down"}],
        "GossamerNodeFailed": [{"instance": "broken", "phase": "failed"}],
        "GossamerStepsStalled": [{"instance": "stuck", "phase": "training"}],
        "GossamerNoRoundCommitted": [{"run": "a"}],
        "GossamerDiskTakesNothing": [{"instance": "full", "reason": "disk"}],
        "GossamerStuckSyncing": [{"instance": "lone"}],
        "GossamerOverLimit": [
            {"instance": "greedy"},
            {"instance": "greedy", "direction": "sent"},
        ],
        "GossamerBehind": [{"instance": "stuck"}],
        "GossamerAlone": [{"instance": "lone"}, {"instance": "stuck"}],
        "GossamerTrainerRestarts": [{"instance": "broken"}],
        "GossamerNonfiniteSteps": [{"instance": "broken"}],
        "GossamerBlocksDamaged": [{"instance": "broken"}],
        "GossamerOffences": [{"instance": "healthy", "reason": "forged"}],
        "GossamerWorkDropped": [{"instance": "stuck"}],
    }
    assert set(firing) == {rule["alert"] for rule in rules["groups"][0]["rules"]}
    expectations = [
        {
            "eval_time": "4h",
            "alertname": name,
            "exp_alerts": [{"exp_labels": one} for one in labels],
        }
        for name, labels in firing.items()
    ]
    # Rounds were committed until an hour ago; no alert fires before its patience is over.
    for early in (
        "GossamerNodeDown",
        "GossamerStepsStalled",
        "GossamerBehind",
        "GossamerAlone",
        "GossamerDiskTakesNothing",
        "GossamerStuckSyncing",
        "GossamerOverLimit",
    ):
        expectations.append({"eval_time": "4m", "alertname": early, "exp_alerts": []})
    expectations.append(
        {"eval_time": "2h", "alertname": "GossamerNoRoundCommitted", "exp_alerts": []}
    )
    test = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "alert_rule_test": expectations,
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    assert "SUCCESS" in check(promtool, "test", "rules", str(tmp_path / "test.yml"))


def test_the_dashboard_is_what_grafana_provisions() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    provisioning = DEPLOY / "grafana/provisioning"
    source = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())
    provider = yaml.safe_load((provisioning / "dashboards/gossamer.yaml").read_text())
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    (datasource,) = source["datasources"]
    assert variables["datasource"]["current"]["value"] == datasource["uid"]
    assert datasource["url"] == "http://prometheus:9090"
    path = provider["providers"][0]["options"]["path"]
    assert f"./grafana/dashboards:{path}:ro" in compose["services"]["grafana"]["volumes"]
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


# Containers


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)?", text).groups()  # type: ignore[union-attr]
    return float(number) * (60 if unit == "m" else 1)


def test_nodes_of_the_compose_file_can_be_scraped_and_leave_in_order(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    scraping = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    targets = scraping[0]["static_configs"][0]["targets"]
    assert [target.partition(":")[0] for target in targets] == list(NODES)
    volumes: list[str] = []
    for name, target in zip(NODES, targets, strict=True):
        service = compose["services"][name]
        settings = load_settings({"state_dir": tmp_path}, service["environment"])
        assert settings.api_hosts == (name,)
        api = parse_host_port(settings.api)
        assert (api.host, f"{name}:{api.port}") == ("0.0.0.0", target)
        assert seconds(service["stop_grace_period"]) >= STOP_SECONDS_MIN
        (volume,) = service["volumes"]
        assert volume == f"{name}:/var/lib/gossamer"
        volumes.append(name)
        if name != "seed":
            assert service["entrypoint"] == ["gossamer-join-seed", f"http://{targets[0]}"]
            assert service["depends_on"] == {"seed": {"condition": "service_healthy"}}
    assert set(volumes) <= set(compose["volumes"])
    for service in compose["services"].values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if "/" in source else source in compose["volumes"]


def test_the_compose_file_does_not_start_again_what_would_fail_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`on-failure` starts a container again after each status but 0, for ever."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name in NODES:
        assert services[name]["restart"] == "on-failure"
        for variable, value in services[name]["environment"].items():
            monkeypatch.setenv(variable, value)
        with pytest.raises(SystemExit) as ended:
            main(["start", "--device", "gpu"])
        assert ended.value.code == 0


def test_the_image_is_made_of_what_is_there() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    for line in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+)$", dockerfile, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert source.rstrip("/") in allowed
    assert "STOPSIGNAL SIGTERM" in dockerfile
    assert "USER gossamer" in dockerfile
    assert f"http://{DEFAULT_API}/livez" in dockerfile
    assert dockerfile.index("USER gossamer") < dockerfile.index("ENTRYPOINT")


def built_for_release(folder: Path, digests: str) -> subprocess.CompletedProcess[str]:
    """Runs the release's script beside these digests, with a `docker` that prints its arguments."""
    deploy, programs = folder / "deploy", folder / "bin"
    for path in (deploy, programs):
        path.mkdir()
    shutil.copy(DEPLOY / "build_release.sh", deploy)
    (deploy / ".env").write_text(digests)
    (programs / "docker").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (programs / "docker").chmod(0o755)
    return subprocess.run(
        [deploy / "build_release.sh", "gossamer:1"],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def digest_names() -> list[str]:
    return re.findall(r"^(\w+)=", (DEPLOY / ".env").read_text(), re.MULTILINE)


def with_digests(**other: str) -> str:
    digests = {name: f"@sha256:{number:064x}" for number, name in enumerate(digest_names())}
    return "".join(f"{name}={digest}\n" for name, digest in {**digests, **other}.items())


@pytest.mark.parametrize("digest", ["", "sha256:" + "0" * 64, "@sha256:" + "0" * 63, ":latest"])
def test_no_release_is_built_from_an_image_without_a_digest(tmp_path: Path, digest: str) -> None:
    for name in digest_names():
        folder = tmp_path / name
        folder.mkdir()
        done = built_for_release(folder, with_digests(**{name: digest}))
        assert (done.returncode, done.stdout) == (1, "")
        assert name in done.stderr


def test_a_release_is_built_from_the_digests(tmp_path: Path) -> None:
    done = built_for_release(tmp_path, with_digests())
    assert done.returncode == 0, done.stderr
    arguments = done.stdout.splitlines()
    python, dockerfile = (f"@sha256:{number:064x}" for number in (0, 1))
    assert f"PYTHON_DIGEST={python}" in arguments
    assert f"BUILDKIT_SYNTAX=docker/dockerfile:1{dockerfile}" in arguments


def test_every_image_from_elsewhere_has_its_digest() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    bases += [one["image"] for one in services if one["image"] != "gossamer"]
    for base in bases:
        name = re.search(r"\$\{(\w+_DIGEST)(:-)?\}$", base)
        assert name is not None, base
        assert name[1] in digest_names()
    for name, digest in re.findall(r"^(\w+)=(.*)", (DEPLOY / ".env").read_text(), re.MULTILINE):
        assert re.fullmatch(r"@sha256:[0-9a-f]{64}", digest), name


@contextmanager
def endpoint(answer: bytes, path: str = "/api/status") -> Iterator[str]:
    """An HTTP server on loopback that answers at one path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == path else 404)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def join_seed(url: str, state_dir: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Runs the entry script with a `gossamer` that prints what it was called with."""
    stand_in = tmp_path / "bin" / "gossamer"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, str(DEPLOY / "join_seed.py"), url, "--device", "cpu"],
        env={**os.environ, "PATH": path, "GOSSAMER_STATE_DIR": str(state_dir)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies that nobody runs, in the variables that Docker's client sets in containers."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.mark.usefixtures("proxies")
def test_the_health_check_goes_through_no_proxy() -> None:
    line = next(
        line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if "/livez" in line
    )
    _, *arguments = json.loads(line.partition("CMD ")[2])
    with endpoint(b"", path="/livez") as url:
        command = [each.replace(f"http://{DEFAULT_API}", url) for each in arguments]
        check(sys.executable, *command)
    done = subprocess.run([sys.executable, *command], capture_output=True, check=False)
    assert done.returncode != 0, "nobody answers any more"


@pytest.mark.usefixtures("proxies")
def test_a_volunteer_asks_the_seed_for_its_address_and_run(tmp_path: Path) -> None:
    addresses = ["/ip4/192.0.2.7/tcp/4610/p2p/X", "/ip4/192.0.2.8/tcp/4610/p2p/X"]
    status = {"addresses": addresses, "run_id": "ab" * 32}
    with endpoint(json.dumps(status).encode()) as url:
        done = join_seed(f"{url}/", tmp_path / "state", tmp_path)
    links = " ".join(f"{address}#{'ab' * 32}" for address in addresses)
    assert (done.returncode, done.stdout) == (0, f"join {links} --device cpu\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_volunteer_with_a_run_does_not_need_the_seed(tmp_path: Path, name: str) -> None:
    """Nor if one of the two files of its manifest is lost."""
    (tmp_path / name).write_bytes(b"a run")
    assert StateDir(tmp_path).has_run()
    with endpoint(b"[]") as url:
        pass
    done = join_seed(url, tmp_path, tmp_path)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["join --device cpu"])


# systemd


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    text = (DEPLOY / "gossamer.service").read_text()
    installed = "/opt/gossamer/bin/gossamer"
    command = re.search(rf"^ExecStart={installed} (\w+)", text, re.MULTILINE)
    assert command is not None
    assert command[1] in app
    # systemd looks whether the program is there; this one is.
    unit = tmp_path / "gossamer.service"
    unit.write_text(text.replace(installed, "/bin/true"))
    assert check(analyze, "verify", str(unit)) == ""
    # Its threshold is in tenths.
    check(analyze, "security", "--offline=true", "--threshold=18", str(unit))


def test_the_unit_is_the_one_that_the_command_writes() -> None:
    text = (DEPLOY / "gossamer.service").read_text()
    assert text[text.index("[Unit]\nDescription") :] == system_unit(
        "/opt/gossamer/bin/gossamer", {}
    )


def test_the_head_of_the_unit_keeps_an_invitation_for_root_alone(tmp_path: Path) -> None:
    """GOSSAMER_SEEDS may hold one."""
    text = (DEPLOY / "gossamer.service").read_text()
    command = re.search(r"^#   (mkdir -p /etc/gossamer .*)$", text, re.MULTILINE)
    assert command is not None
    in_test = command[1].replace("/etc/gossamer", str(tmp_path / "etc"))
    check("sh", "-c", f"umask 022; {in_test}")
    written = tmp_path / "etc" / "gossamer.env"
    assert written.read_text() == "GOSSAMER_SEEDS=ADDRESS\n"
    assert written.stat().st_mode & 0o077 == 0


def test_the_unit_gives_time_to_leave() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "gossamer.service")
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) >= STOP_SECONDS_MIN
    assert service["KillMode"] == "mixed"


def test_the_unit_does_not_start_again_what_would_fail_again() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "gossamer.service")
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == exit_status(ConfigError(["--device"])) == 2
    assert service["Restart"] == "on-failure"
    assert service["OOMPolicy"] == "continue"


# Packaging


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_has_every_file_of_the_packages() -> None:
    setuptools = pyproject()["tool"]["setuptools"]
    for top in PACKAGES:
        assert setuptools["package-dir"][f"gossamer.{top}"] == top
    for package in setuptools["packages"]:
        folder = ROOT.joinpath(*package.split(".")[1:])
        patterns = ["*.py", *setuptools["package-data"].get(package, [])]
        for path in sorted(folder.iterdir()):
            if path.name == "__pycache__":
                continue
            if path.is_dir():
                name = f"{package}.{path.name}"
                assert name in setuptools["packages"], f"{name} is missing from the wheel"
                continue
            assert any(path.match(pattern) for pattern in patterns), f"{path} is not in the wheel"


def test_constraints_pin_every_dependency_to_a_version_that_is_allowed() -> None:
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, pin = line.partition("==")
            pins[name.lower().replace("_", "-")] = pin
    project = pyproject()["project"]
    extras = project["optional-dependencies"].values()
    for text in [*project["dependencies"], *(one for extra in extras for one in extra)]:
        requirement = Requirement(text)
        if requirement.name != "gossamer":
            assert requirement.specifier.contains(pins[requirement.name.lower()]), text


def locked(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Names to their version and digests, as pip reads a lock file."""
    text = path.read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin, *options = line.split()
            name, _, version = pin.partition("==")
            hashes = [re.fullmatch(r"--hash=sha256:([0-9a-f]{64})", each) for each in options]
            found[name] = (version, [each[1] for each in hashes if each])
            assert all(hashes), line
    return found


def test_the_lock_files_have_the_versions_of_constraints_and_a_digest_for_each() -> None:
    spec = importlib.util.spec_from_file_location("make_lock", DEPLOY / "make_lock.py")
    assert spec is not None
    assert spec.loader is not None
    make_lock = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_lock)
    remedy = "run deploy/make_lock.py"
    for path, versions in make_lock.wanted().items():
        lock = locked(path)
        assert {name: version for name, (version, _) in lock.items()} == versions, remedy
        for name, (_, hashes) in lock.items():
            assert hashes, f"{name} has no digest: {remedy}"
    everything = {**locked(make_lock.LOCK), **locked(make_lock.CUDA_LOCK)}
    for text in pyproject()["project"]["dependencies"]:
        assert Requirement(text).name.lower() in everything, f"{text}: {remedy}"


def test_the_image_installs_nothing_without_a_digest_but_torch_of_its_own_index() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    installs = re.findall(r"pip install ([^\\\n;]*)", dockerfile)
    loose = [each for each in installs if "--require-hashes" not in each]
    assert [each.split()[0] for each in loose] == ["--no-deps", "--no-deps"]
    assert "TORCH_INDEX_URL" in loose[0]
    assert loose[1] == "--no-deps --no-build-isolation ."


# Import contracts


def test_the_import_contracts_find_what_breaks_them(tmp_path: Path) -> None:
    pytest.importorskip("importlinter", reason="import-linter is not installed: pip install .[dev]")
    for folder in PACKAGES:
        shutil.copytree(
            ROOT / folder,
            tmp_path / "gossamer" / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    planted = {
        "protocol/ids.py": "import socket",
        "trainer/inner_step/schedule.py": "import gossamer.node.telemetry.metrics",
        # In a function, and around a corner.
        "node/network/frames.py": "def _late() -> None:\n    import gossamer.trainer.model",
        "node/telemetry/status.py": "from libp2p.peer.id import ID",
        "protocol/wire/framing.py": "import gossamer.protocol.rounds.ring.ring",
        "node/base/threads.py": "import gossamer.node.storage.blocks",
        "trainer/text/sources/spool.py": "import gossamer.trainer.local_trainer",
        "trainer/text/tokenizers/words.py": "import gossamer.trainer.text.shards",
        "node/commands/texts.py": "import gossamer.node.commands.founder.plan",
        "protocol/rounds/states.py": "import gossamer.protocol.rounds.commit",
        "node/app/runtime.py": "import gossamer.node.app.core",
        "node/runs/rounds_here.py": "import gossamer.node.runs.results.report",
        "node/network/over_libp2p/liveness.py": "import gossamer.node.network.over_libp2p.host",
        "node/base/durations.py": "import gossamer.node.base.orders",
    }
    for name, text in planted.items():
        with open(tmp_path / "gossamer" / name, "a") as module:
            module.write(f"\n\n{text}\n")
    program = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT / "pyproject.toml")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = re.findall(r"^(.*) (KEPT|BROKEN)(?: \(.*\))?$", done.stdout, re.MULTILINE)
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    assert verdicts == [(contract["name"], "BROKEN") for contract in contracts]
    for chain in (
        "gossamer.protocol.ids -> socket",
        "gossamer.trainer.inner_step.schedule -> gossamer.node.telemetry.metrics",
        "gossamer.node.network.frames -> gossamer.trainer.model",
        "gossamer.node.telemetry.status -> libp2p",
        "gossamer.protocol.wire.framing -> gossamer.protocol.rounds.ring.ring",
        "gossamer.node.base.threads -> gossamer.node.storage.blocks",
        "gossamer.trainer.text.sources.spool -> gossamer.trainer.local_trainer",
        "gossamer.trainer.text.tokenizers.words -> gossamer.trainer.text.shards",
        "gossamer.node.commands.texts -> gossamer.node.commands.founder.plan",
        "gossamer.protocol.rounds.states -> gossamer.protocol.rounds.commit",
        "gossamer.node.app.runtime -> gossamer.node.app.core",
        "gossamer.node.runs.rounds_here -> gossamer.node.runs.results.report",
        "gossamer.node.network.over_libp2p.liveness -> gossamer.node.network.over_libp2p.host",
        "gossamer.node.base.durations -> gossamer.node.base.orders",
    ):
        assert chain in " ".join(done.stdout.split())  # long lines are broken
