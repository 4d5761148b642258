"""`gossamer plan --corpus`: what data a run begins with, and when the rest comes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from gossamer.node.cli import run_command
from gossamer.node.runs.founding.data_plan import DataPlan, plan_data
from gossamer.node.runs.founding.founding import prepare_data
from gossamer.node.runs.planning.draft import CorpusDraft, Draft, draft_of_preset
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.protocol.ids import digest_of
from gossamer.protocol.limits import KIB, MIB

GIB = 1024 * MIB
START_BYTES = 256 * KIB
BYTES, BPE = draft_of_preset("tiny"), draft_of_preset("150m")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """4 GiB that take no room."""
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.truncate(4 * GIB)
    return path


def data_of(
    draft: Draft,
    corpus: Path,
    tokens_per_second: float | None = None,
    start_bytes: int | None = 256 * MIB,
    cores: int = 2,
) -> DataPlan:
    planned = plan_round(draft, 4, Line(100, 100), tokens_per_second)
    return plan_data(draft, [corpus], start_bytes, planned, cores)


def test_parts_are_those_that_the_founder_cuts(tmp_path: Path) -> None:
    draw = random.Random(1)
    lines = (f"{n} " + "w" * draw.randrange(400) for n in range(8_000))
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines))
    data = prepare_data(BYTES, [path], put=digest_of, start_bytes=START_BYTES)
    assert data.rest is not None
    planned = data_of(BYTES, path, start_bytes=START_BYTES)
    assert len(planned.part_tokens) == data.rest.plan.num_parts
    heldout = data.config.heldout_tokens
    assert planned.part_tokens[0] == pytest.approx(data.config.num_tokens + heldout, rel=0.01)
    assert planned.num_tokens == path.stat().st_size


def test_a_part_is_there_when_all_before_it_are_cut(large: Path) -> None:
    planned = data_of(BPE, large)
    assert planned.num_tokens == GIB
    first, second = planned.part_tokens[:2]
    assert first >= 64 * MIB
    assert planned.ready_seconds[:2] == (0.0, second / planned.cut_per_second)
    assert planned.ready_seconds[-1] == pytest.approx((GIB - first) / planned.cut_per_second)
    assert planned.needed_seconds is None
    assert planned.late_part is None
    # Some 25 MB/s and 40 s were measured on two free cores (decision 110).
    assert planned.cut_per_second * 4 == pytest.approx(25e6, rel=0.3)
    assert planned.begin_seconds == pytest.approx(40, rel=0.2)
    assert data_of(BPE, large, cores=4).begin_seconds == pytest.approx(planned.begin_seconds / 2)


def test_a_part_is_needed_when_the_peers_are_through_with_those_before(large: Path) -> None:
    slow = data_of(BPE, large, 1_000)
    assert slow.trained_per_second is not None
    assert slow.trained_per_second <= 4_000
    assert slow.needed_seconds is not None
    assert slow.needed_seconds[0] == 0
    assert slow.needed_seconds[1] == pytest.approx(slow.part_tokens[0] / slow.trained_per_second)
    assert slow.late_part is None
    rates = msgspec.structs.replace(BPE.outer, inner_steps=100_000)
    fast = data_of(msgspec.structs.replace(BPE, outer=rates), large, 5e7)
    assert fast.late_part == 1


def test_a_small_corpus_is_one_part(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 1_000)
    planned = data_of(BYTES, path)
    assert planned.part_tokens == (1_000,)
    assert planned.cores == 1
    limited = msgspec.structs.replace(BYTES, corpus=CorpusDraft(max_bytes=300))
    assert data_of(limited, path).part_tokens == (300,)


def test_the_command_says_when_data_come(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--preset", "150m", "--corpus", str(large)]
    assert run_command([*command, "--tokens-per-second", "1000", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert sum(data["part_tokens"]) == GIB
    assert data["needed_seconds"][1] > data["ready_seconds"][1] > 0
    assert run_command(command) == 0
    said = capsys.readouterr().out
    assert "the second part" in said
    assert "give --tokens-per-second" in said
    assert run_command([*command, "--start-after", "all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["data"]["part_tokens"]) == 1
    assert run_command([*command, "--start-after", "soon"]) == 2
    assert "--start-after" in capsys.readouterr().err
    assert run_command(["plan", "--corpus", str(large.parent / "none")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_data_that_come_too_late_are_said(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--preset", "tiny", "--peers", "1", "--corpus", str(large)]
    for rate, is_late in (("1000", False), ("1e10", True)):
        assert run_command([*command, "--tokens-per-second", rate]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("they train on the same text again" in said) is is_late


def test_the_name_of_a_text_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('preset = "tiny"\n[corpus]\npaths = ["text[v2][/b]"]\n')
    assert run_command(["plan", str(path)]) == 0
    assert "text[v2][/b]" in capsys.readouterr().out.replace("\n", "")


def test_a_manifest_may_be_planned_where_its_corpus_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('preset = "tiny"\n[corpus]\npaths = ["elsewhere"]\n')
    assert run_command(["plan", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "trainer busy" in said
    assert "The data are not planned" in said
    (tmp_path / "elsewhere").write_text("some text\n" * 10)
    assert run_command(["plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["part_tokens"] == [100]
