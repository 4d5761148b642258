"""`gossamer plan`: bytes as the codecs have them, times as the lines allow."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gossamer.node.cli import run_command
from gossamer.node.runs.planning.draft import Draft, draft_of_preset, open_chunk_elements_max
from gossamer.node.runs.planning.planning import (
    AGREE_LINKS,
    AGREE_SECONDS,
    HOP_SECONDS,
    LINE_SHARE,
    MIXING_ADVISED,
    MIXING_MOMENTUM_MIN,
    OFFER_SECONDS,
    TAKE_SECONDS,
    Line,
    RoundPlan,
    plan_round,
)
from gossamer.protocol.codecs.packing import FLOATS_SHARE

replace = msgspec.structs.replace
MBIT = 1e6 / 8


def draft(**outer: object) -> Draft:
    base = draft_of_preset("150m")
    sync = outer.pop("sync", "diloco")
    return replace(base, sync=sync, outer=replace(base.outer, **{"inner_steps": 500, **outer}))


@pytest.mark.parametrize(
    ("codec", "inner_steps", "times"),
    [("fp16", 500, 990), ("int8", 500, 1_960), ("int4", 500, 3_800)],
)
def test_how_many_times_less_than_a_gradient_a_step(
    codec: str, inner_steps: int, times: int
) -> None:
    plan = plan_round(draft(codec=codec, inner_steps=inner_steps), 8, Line(20, 100))
    assert times <= plan.reduction < 1.1 * times


def test_sparse_sends_a_thirteen_thousandth() -> None:
    plan = plan_round(draft(sync="sparse", inner_steps=100), 8, Line(20, 100))
    assert plan.reduction > 13_000
    assert plan.payload_bytes * 8 / plan.parameters <= 0.24


def test_shared_steps_send_a_thousandth_of_a_bf16_gradient_and_wait_for_each_other() -> None:
    shared = draft(sync="distro", inner_steps=50, top_k=4, overlap=False, warmup_rounds=0)
    plan = plan_round(shared, 4, Line(100, 100), 1_000_000.0)
    assert plan.reduction / 2 > 857
    alone = plan_round(shared, 1, Line(100, 100), 1_000_000.0)
    assert plan.round_seconds is not None
    assert alone.round_seconds is not None
    assert plan.round_seconds > alone.round_seconds + 50 * 6 * HOP_SECONDS
    assert alone.training_seconds is not None
    transforms_seconds = 50 * alone.parameters * (OFFER_SECONDS + TAKE_SECONDS)
    tokens = 50 * shared.inner.sequences_per_step * shared.model.context
    assert alone.round_seconds == pytest.approx(tokens / 1_000_000.0 + transforms_seconds)


@pytest.mark.parametrize(("peers", "added"), [(1, 0.0), (2, 0.2), (256, 20.52)])
def test_a_chunk_goes_round_twice_after_three_messages_of_agreement(
    peers: int, added: float
) -> None:
    near, far = (plan_round(draft(), peers, Line(1e6, 1e6, ms / 1000)) for ms in (0, 40))
    assert far.averaging_seconds - near.averaging_seconds == pytest.approx(added)


def test_shared_steps_take_the_latency_of_the_ring_each() -> None:
    shared = draft(sync="distro", inner_steps=50, top_k=4, overlap=False, warmup_rounds=0)
    near, far = (plan_round(shared, 8, Line(1e6, 1e6, ms / 1000)) for ms in (0, 40))
    assert far.averaging_seconds - near.averaging_seconds == pytest.approx(
        (50 * 2 * 7 + AGREE_LINKS) * 0.04
    )


@pytest.mark.parametrize(
    ("peers", "chunks", "busy"), [(8, 1, 8), (8, 8, 1), (8, 4, 2), (3, 4, 1.5)]
)
def test_a_step_in_chunks_uses_the_lines_of_all_members(
    peers: int, chunks: int, busy: float
) -> None:
    """A step in one chunk is at one member at a time."""
    shared = draft(sync="distro", inner_steps=50, top_k=4, overlap=False, warmup_rounds=0)
    run = replace(shared, outer=replace(shared.outer, step_chunks=chunks))
    slow, fast = (plan_round(run, peers, Line(rate, rate)) for rate in (10, 1e9))
    sent_seconds = slow.sent_bytes * 8 / (10e6 * LINE_SHARE)
    took = slow.averaging_seconds - fast.averaging_seconds
    assert took == pytest.approx(busy * sent_seconds, rel=1e-3)


def test_the_command_takes_a_latency_and_no_more_peers_than_a_ring(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def averaging(*arguments: str) -> float:
        assert run_command(["plan", "--json", "--preset", "tiny", *arguments]) == 0
        return float(json.loads(capsys.readouterr().out)["averaging_seconds"])

    assert averaging("--peers", "256", "--latency", "40") > 20
    assert averaging("--peers", "256", "--latency", "0") < 3
    for arguments, what in (
        (("--peers", "100000"), "at most 256 peers"),
        (("--peers", "257"), "at most 256 peers"),
        (("--peers", "0"), "at least one peer"),
        (("--latency", "-1"), "latency"),
        (("--latency", "nan"), "latency"),
        (("--up", "nan"), "upload of a line is nan Mbit/s; allowed: more than 0"),
        (("--down", "inf"), "download of a line is inf Mbit/s; allowed: more than 0"),
        (("--tokens-per-second", "0"), "speed of a trainer is 0 tokens/s; allowed: more than 0"),
    ):
        assert run_command(["plan", *arguments]) == 2
        assert what in capsys.readouterr().err


def test_a_ring_sends_nearly_twice_what_one_has() -> None:
    alone, two, eight = (plan_round(draft(codec="int8"), n, Line(20, 100)) for n in (1, 2, 8))
    assert alone.sent_bytes == alone.averaging_seconds == 0
    assert two.sent_bytes == two.payload_bytes
    assert eight.sent_bytes == round(1.75 * eight.payload_bytes)


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8"])
def test_floats_are_packed_on_their_way_and_not_in_old_runs(codec: str) -> None:
    new = draft(codec=codec)
    old = replace(new, outer=replace(new.outer, packing=msgspec.UNSET))
    packed, whole = (plan_round(run, 4, Line(20, 100)) for run in (new, old))
    share = 1.0 if codec == "int8" else FLOATS_SHARE
    # The estimate of each chunk is a whole number of bytes.
    assert packed.sent_bytes == pytest.approx(share * whole.sent_bytes, rel=1e-5)
    assert packed.payload_bytes == whole.payload_bytes
    assert packed.sent_bytes_open is not None
    assert whole.sent_bytes_open is not None
    assert packed.sent_bytes_open == pytest.approx(share * whole.sent_bytes_open, rel=1e-5)


def test_places_are_packed_on_their_way_and_not_in_old_runs() -> None:
    """By what entropy says of 64 of 4,096 places, with which every large preset begins: 7.4 of 12
    bits of each, beside two bits of its value. With 1,024 it is more, where a ring has no sums."""
    for preset, top_k, bits in (("10m", 64, 0.227 - 64 / 4096 * (12 - 8)), ("tiny", 1024, 1.39)):
        new = replace(draft_of_preset(preset), sync="sparse")
        new = replace(new, outer=replace(new.outer, top_k=top_k))
        old = replace(new, outer=replace(new.outer, packing=msgspec.UNSET))
        packed, whole = (plan_round(run, 2, Line(20, 100)) for run in (new, old))
        parameters = new.model.num_parameters
        assert packed.sent_bytes == pytest.approx(1.5 * parameters * bits / 8, rel=0.02)
        assert packed.sent_bytes < 0.75 * whole.sent_bytes
        assert packed.sent_bytes_open is not None


@pytest.mark.parametrize(
    ("peers", "more"),
    [(2, 0.0), (8, 0.0), (16, 0.057), (32, 0.09), (64, 0.166), (128, 0.204), (256, 0.284)],
)
def test_int4_sends_wider_sums_in_large_rings_and_old_runs_do_not(peers: int, more: float) -> None:
    """The figures of decision 78."""
    new = draft(codec="int4")
    old = replace(new, outer=replace(new.outer, widening=msgspec.UNSET))
    wide, narrow = (plan_round(run, peers, Line(20, 100)).sent_bytes for run in (new, old))
    assert wide / narrow - 1 == pytest.approx(more, abs=0.001)


@pytest.mark.parametrize("peers", [2, 24, 27, 34, 40, 64, 256])
def test_sparse_sends_no_more_than_int4_and_old_runs_do(peers: int) -> None:
    """With 64 values of each 4,096."""
    new = replace(draft(codec="int4", sync="sparse"))
    assert new.outer.top_k == 64
    old = replace(new, outer=replace(new.outer, sparse_sums=msgspec.UNSET))
    dense = replace(new, sync="diloco")
    line = Line(20, 100)
    sums, sets, of_int4 = (plan_round(run, peers, line).sent_bytes for run in (new, old, dense))
    assert sums <= of_int4
    assert (sums == sets) == (peers <= 24)
    assert (sets > of_int4) == (peers > 34)


@pytest.mark.parametrize(
    ("codec", "members", "records"),
    [("fp32", 893, 5360), ("fp16", 446, 2690), ("int8", 267, 1609), ("int4", 135, 822)],
)
def test_the_price_of_signed_records(codec: str, members: int, records: int) -> None:
    """The figures of the founder's guide and of decision 60, in MB sent by each of 8 peers, for 150
    million parameters."""
    closed = draft(codec=codec)
    elements = open_chunk_elements_max("diloco", closed.outer)
    elements = min(elements, closed.outer.chunk_elements)
    run = replace(closed, trust="open", outer=replace(closed.outer, chunk_elements=elements))
    line = Line(20, 100)
    share = 150 / closed.model.num_parameters
    open_bytes = plan_round(closed, 8, line).sent_bytes_open
    assert open_bytes is not None
    assert open_bytes * share == pytest.approx(records, rel=0.03)
    assert plan_round(run, 8, line).sent_bytes_open is None
    assert plan_round(closed, 8, line).sent_bytes * share == pytest.approx(members, rel=0.03)
    assert plan_round(run, 8, line).sent_bytes * share == pytest.approx(records, rel=0.03)


def test_the_price_of_signed_steps_is_a_signature_for_each_part() -> None:
    closed = replace(draft(sync="distro"))
    run = replace(closed, trust="open")
    line, peers = Line(20, 100), 8
    members, signed = (plan_round(each, peers, line).sent_bytes for each in (closed, run))
    chunks = closed.outer.chunks_of_step
    levels = (chunks - 1).bit_length()
    each_part = 64 + 32 * levels
    # Half of a set's members on the way to the average, and all of them on the way back.
    parts = closed.outer.inner_steps * chunks * 2 * (peers - 1) * 3 / 4
    assert signed - members == pytest.approx(parts * each_part, rel=0.01)
    assert plan_round(closed, peers, line).sent_bytes_open == signed
    assert plan_round(run, peers, line).sent_bytes_open is None


def test_the_slower_direction_decides() -> None:
    up, down, even = (
        plan_round(draft(), 4, line) for line in (Line(10, 50), Line(50, 10), Line(10, 10))
    )
    assert up.averaging_seconds == down.averaging_seconds == even.averaging_seconds
    assert up.averaging_seconds - AGREE_SECONDS > up.sent_bytes / (10 * MBIT)


def test_overlap_hides_the_shorter_of_the_two() -> None:
    tokens_per_second = 10_000.0
    apart = plan_round(draft(overlap=False), 4, Line(20, 100), tokens_per_second)
    overlapped = plan_round(draft(overlap=True), 4, Line(20, 100), tokens_per_second)
    assert apart.training_seconds is not None
    assert apart.round_seconds == apart.training_seconds + apart.averaging_seconds
    assert overlapped.round_seconds == max(apart.training_seconds, apart.averaging_seconds)
    assert overlapped.utilisation == 1.0
    assert apart.utilisation is not None
    needed = apart.training_seconds_for(0.95)
    assert needed / (needed + apart.averaging_seconds) == pytest.approx(0.95)


def test_fragments_lower_the_peak_and_not_the_sum() -> None:
    tokens_per_second = 100_000.0
    whole, parts = (
        plan_round(
            draft(codec="int8", overlap=True, fragments=n), 4, Line(20, 100), tokens_per_second
        )
        for n in (1, 4)
    )
    assert whole.inner_steps == 4 * parts.inner_steps
    assert parts.payload_bytes * 4 == pytest.approx(whole.payload_bytes, rel=1e-3)
    assert parts.reduction == pytest.approx(whole.reduction, rel=1e-3)
    assert whole.sent_bytes == whole.sent_bytes_max
    assert parts.sent_bytes < parts.sent_bytes_max < 0.5 * whole.sent_bytes
    # While the largest fragment, with the embedding, is averaged, the trainer waits; else it
    # does not.
    assert parts.training_seconds is not None
    longest = max(parts.averaging_seconds_of)
    assert parts.round_seconds is not None
    assert max(parts.training_seconds, parts.averaging_seconds) <= parts.round_seconds
    assert parts.round_seconds <= max(parts.training_seconds, longest)


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({}, 4),
        ({"inner_steps": 30}, 3),
        ({"inner_steps": 31}, 0),
        ({"fragments": 4}, 0),
        ({"fragments": 2}, 4),
        ({"codec": "int4"}, 4),
    ],
)
def test_fragments_are_advised_as_the_manifest_allows(
    changes: dict[str, object], advised: int
) -> None:
    plan = plan_round(draft(**changes), 4, Line(20, 100))
    assert plan.fragments_advised == advised


@pytest.mark.parametrize(
    ("tokens_per_second", "optimizer", "changes", "advised"),
    [
        (1e9, "muon", {}, MIXING_ADVISED),
        (1e9, "adamw", {}, 0.0),
        (1e9, "muon", {"momentum": 0.6}, 0.0),
        (1e9, "muon", {"mixing": 0.1}, 0.0),
        (1e9, "muon", {"fragments": 2}, 0.0),
        (1e9, "muon", {"overlap": False}, 0.0),
        (10.0, "muon", {}, 0.0),
    ],
)
def test_mixing_is_advised_where_a_state_in_one_piece_is_late(
    tokens_per_second: float, optimizer: str, changes: dict[str, object], advised: float
) -> None:
    run = draft(**{"overlap": True, "momentum": MIXING_MOMENTUM_MIN, **changes})
    run = replace(run, inner=replace(run.inner, optimizer=optimizer))
    assert plan_round(run, 4, Line(20, 100), tokens_per_second).mixing_advised == advised


def test_a_state_is_as_late_as_its_ring_is_long() -> None:
    def plan(tokens_per_second: float, *, overlap: bool = True) -> RoundPlan:
        return plan_round(draft(overlap=overlap), 4, Line(20, 100), tokens_per_second)

    quick, slow = plan(1e5), plan(1e4)
    assert slow.training_seconds is not None
    assert slow.lateness == pytest.approx(slow.averaging_seconds / slow.training_seconds)
    assert slow.lateness is not None
    assert quick.lateness == pytest.approx(min(1.0, 10 * slow.lateness))
    assert plan(1e9).lateness == 1.0
    assert plan(1e5, overlap=False).lateness is None
    assert plan_round(draft(overlap=True), 4, Line(20, 100)).lateness is None


@pytest.mark.parametrize(
    ("fragments", "late_from"),
    # Fewer than four were measured to cost something (tests/benchmarks/losses.py).
    [(1, 0.15), (2, 0.15), (4, 0.5), (5, 0.5)],
)
def test_fragments_may_come_later(fragments: int, late_from: float) -> None:
    def plan(lateness: float) -> RoundPlan:
        changed = draft(overlap=True, fragments=fragments)
        peers, line = 4, Line(20, 100)
        at_once = plan_round(changed, peers, line, 1.0)
        assert at_once.training_seconds is not None
        # Fragments differ in size a little, so the mean of the ratios is what is set.
        rate = lateness * at_once.training_seconds / at_once.averaging_seconds
        planned = plan_round(changed, peers, line, rate)
        assert planned.lateness == pytest.approx(lateness)
        return planned

    assert not plan(late_from - 0.02).is_late
    assert plan(late_from + 0.02).is_late


def test_a_late_state_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for rate, is_said in (("20000", True), ("1000", False)):
        command = ["plan", "--preset", "40m", "--up", "20", "--tokens-per-second", rate]
        assert run_command(command) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("fragments = 3" in said) is is_said
        assert ("A new state arrives when 100% of the next round's steps" in said) is is_said


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "run.toml"
    assert run_command(["init", str(manifest)]) == 0
    capsys.readouterr()
    assert run_command(["plan", str(manifest), "--peers", "3", "--up", "10", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["peers"] == 3
    assert said["round_seconds"] is None
    assert run_command(["plan", "--preset", "1m", "--tokens-per-second", "5000"]) == 0
    said = capsys.readouterr().out
    assert "trainer busy" in said
    assert "sent with trust open" in said


def test_a_narrow_terminal_cuts_no_option_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run_command(["plan", "--preset", "1m"]) == 0
    table = capsys.readouterr().out.partition("Trainer busy (")[0]
    values = "".join(line.split("│")[2].strip() for line in table.splitlines() if "│" in line)
    assert "--tokens-per-second" in values


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peers", "0"], "at least one peer"),
        (["--up", "0"], "upload"),
        (["--tokens-per-second", "-1"], "trainer"),
        (["nowhere.toml"], "no such file"),
        (["--preset", "none"], "preset is"),
    ],
)
def test_what_cannot_be_planned(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["plan", *arguments]) != 0
    assert said in capsys.readouterr().err
