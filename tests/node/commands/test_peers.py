"""`gossamer peers`: the credit of each member from the headers on disk."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossamer.node.base.terminal.units import format_cores, format_count
from gossamer.node.cli import run_command
from gossamer.node.commands.views import peers as peers_command
from gossamer.node.commands.views.peers import summary
from gossamer.node.network.identity import Identity
from gossamer.node.runs.results.credit import read_credits
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.owner_files import MemberName, NamesFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import PeerStatus
from gossamer.protocol.ids import Digest
from tests.support.chains import OTHERS, commit_rounds, run_in

A, B, C, D = (each.peer_id for each in OTHERS)
ROUNDS = [{A: 100, B: 50}, {A: 100, B: 0, C: 350}, {B: 300, C: 0}]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """A run of three rounds; the node of this directory is B."""
    state_dir = StateDir(tmp_path / "state")
    manifest = run_in(state_dir)
    commit_rounds(state_dir, manifest, ROUNDS)
    state_dir.identity_path.write_bytes(OTHERS[1].pem())
    state_dir.identity_path.chmod(0o600)
    return state_dir


def test_tokens_rank_and_share_are_those_of_the_headers(state: StateDir) -> None:
    credits = read_credits(state)
    assert (credits.round, credits.tokens_total, credits.missing_rounds) == (3, 900, 0)
    first, second = sorted((B, C))
    rows = [(row.rank, row.peer_id, row.tokens, row.rounds) for row in credits.rows]
    assert rows == [
        (1, first, 350, 2 if first == B else 1),
        (1, second, 350, 2 if second == B else 1),
        (3, A, 200, 2),
    ]
    assert sum(row.share for row in credits.rows) == pytest.approx(1)
    you = credits.you
    assert you is not None
    assert (you.peer_id, you.first_round, you.last_round) == (B, 1, 3)
    assert summary(credits) == "you: 350 tokens, 39 % of the run (rank 1 of 3, round 3)"
    assert credits.by("rounds")[-1].peer_id == C
    assert credits.by("last")[0].peer_id == B
    assert [row.peer_id for row in credits.by("peer")] == sorted((A, B, C))


def test_totals_grow_over_restarts(state: StateDir) -> None:
    manifest = read_credits(state).manifest
    commit_rounds(state, manifest, [{D: 1000}, {B: 100}])
    credits = read_credits(state)
    assert credits.tokens_total == 2000
    assert [(row.peer_id, row.tokens) for row in credits.rows][:2] == [(D, 1000), (B, 450)]


def test_rounds_beside_the_head_count_for_nobody(state: StateDir) -> None:
    """A branch that the node left, and rounds that the founder took back."""
    manifest = read_credits(state).manifest
    heads = commit_rounds(state, manifest, [{D: 10_000}])
    chain = ChainStore(
        state.chain_path, manifest.run_id, Digest(manifest.genesis_digest), read_only=True
    )
    state.head_path.write_text(chain.entry(heads[0]).parent.hex())
    credits = read_credits(state)
    assert (credits.round, credits.tokens_total) == (3, 900)
    assert D not in [row.peer_id for row in credits.rows]


def test_a_damaged_record_is_told(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    second = sorted(state.chain_path.iterdir())[1]
    second.write_bytes(second.read_bytes()[:-1] + b"x")
    state_option = ["--state-dir", str(state.root)]
    assert run_command(["peers", *state_option]) == 0
    out = capsys.readouterr().out
    assert "The records of 1 round are missing on this disk" in out
    assert "39 % of the run" in out  # 50 before it and 300 after it, of 900
    assert [(row.peer_id, row.tokens, row.rounds) for row in read_credits(state).rows] == [
        (B, 350, 2),
        (A, 100, 1),
    ]


def test_csv_json_and_table_agree(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["peers", "--by", "peer", "--state-dir", str(state.root)]
    assert run_command([*command, "--csv"]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert run_command([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["tokens_total"] == 900
    assert answer["run_id"] == read_credits(state).manifest.run_id.hex()
    # Names are for JSON and people alone: a text of others in CSV may be a formula.
    assert {row.pop(key) for row in answer["peers"] for key in ("name", "team", "audits")} == {""}
    assert [{k: str(v) for k, v in row.items()} for row in answer["peers"]] == lines
    assert [row["you"] for row in answer["peers"]].count(True) == 1
    assert run_command(command) == 0
    table = capsys.readouterr().out
    for row in answer["peers"]:
        assert row["peer_id"] in table
    assert table.splitlines()[-1].startswith("you: 350 tokens, 39 % of the run")
    assert run_command([*command, "--csv", "--json"]) == 2


def test_teams_and_names_of_members_that_are_away(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """No node runs here: the names are those that it heard before."""
    names: dict[str, MemberName] = {
        A: MemberName("Ada", "=us"),
        B: MemberName("", "=us"),
        D: MemberName("Eve", "none"),
    }
    NamesFile(state.names_path, read_credits(state).manifest.run_id).save(names)
    command = ["peers", "--state-dir", str(state.root)]
    assert run_command(command) == 0
    table = capsys.readouterr().out
    assert f"{A} Ada (=us)" in table
    assert f"{B} (=us)" in table
    assert run_command([*command, "--by", "team", "--json"]) == 0
    us, others = json.loads(capsys.readouterr().out)["teams"]
    assert us == {
        "rank": 1,
        "team": "=us",
        "tokens": 550,
        "share": 0.611111,
        "members": 2,
        "you": True,
    }
    assert (others["team"], others["tokens"], others["members"]) == ("", 350, 1)
    assert run_command([*command, "--by", "team", "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["rank,team,tokens,share,members,you", "1,'=us,550,0.611111,2,True"]
    assert run_command([*command, "--by", "team"]) == 0
    table = capsys.readouterr().out
    assert "=us" in table
    assert "no team" in table


def test_a_running_node_shows_names_and_audits(
    state: StateDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = (
        PeerStatus(peer_id=A, name="Ada", phase="training", round=3, audits_good=5, audits_poor=1),
        PeerStatus(peer_id=C, phase="training", round=3, audits_good=2),
    )
    status = SimpleNamespace(peer_id=B, name="", team="", peers=others)
    monkeypatch.setattr(peers_command, "fetch_status", lambda _state_dir: status)
    command = ["peers", "--state-dir", str(state.root)]
    assert run_command(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "audits"
    by_peer = {peer: next(line for line in lines if peer in line) for peer in (A, B, C)}
    assert by_peer[A].rstrip().endswith("5 good, 1 poor")
    assert "Ada" in by_peer[A]
    assert by_peer[B].rstrip().endswith("you")
    assert by_peer[C].rstrip().endswith("2 good")
    assert run_command([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["peers"]
    assert {row["peer_id"]: row["audits"] for row in rows} == {
        A: "5 good, 1 poor",
        B: "",
        C: "2 good",
    }


def test_without_a_run_or_without_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_dir = StateDir(tmp_path)
    command = ["peers", "--state-dir", str(tmp_path)]
    assert run_command(command) == 2
    assert "there is no run" in capsys.readouterr().err
    run_in(state_dir)
    assert run_command(command) == 0
    assert capsys.readouterr().out == "you: no tokens in this run yet (round 0)\n"


def test_a_node_without_identity_is_nobody(state: StateDir) -> None:
    state.identity_path.unlink()
    assert read_credits(state).you is None
    Identity.load_or_create(state.identity_path)
    assert read_credits(state).you is None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0 k"),
        (999_949, "999.9 k"),
        (999_950, "1.0 M"),
        (2_800_000, "2.8 M"),
        (10**9, "1.0 G"),
        (5 * 10**15, "5000.0 T"),
    ],
)
def test_counts(number: int, text: str) -> None:
    assert format_count(number) == text


def test_a_container_may_have_one_core() -> None:
    assert [format_cores(number) for number in (1, 2)] == ["1 core", "2 cores"]
