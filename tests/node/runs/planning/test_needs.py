"""What a run needs is told to the owner of the machine, and refused where it does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from gossamer.node.machine.capacity import free_memory_bytes, host_memory_bytes
from gossamer.node.runs.planning.needs import (
    PEERS_SUPPOSED,
    PROCESS_BYTES,
    NotWantedError,
    TooLargeError,
    ask_owner,
    describe,
    needs_of,
    require_disk,
    require_memory,
)
from gossamer.protocol.manifest import Manifest, Trust
from gossamer.trainer.ipc.choices import MomentChoice
from tests.support.builders import manifest
from tests.support.measured import measured

GB = 1000**3


def large_manifest(layers: int = 64) -> Manifest:
    """Some 13 billion parameters."""
    example = manifest()
    model = replace(
        example.model, num_layers=layers, width=4096, num_heads=32, num_kv_heads=32,
        hidden_width=11008, vocabulary=32000,
    )  # fmt: skip
    return replace(example, model=model)


def test_memory_is_refused_above_seven_tenths_of_what_is_free() -> None:
    run = large_manifest()
    parameters = run.model.num_parameters
    assert 12e9 < parameters < 14e9
    needs = needs_of(run, trains_on_host=True, cache_bytes=0)
    measured(f"{parameters / 1e9:.1f} B parameters: refused, {needs.memory / 1e9:.0f} GB needed")
    assert needs.memory == PROCESS_BYTES + 44 * parameters
    require_memory(run, needs, int(needs.memory / 0.69))
    with pytest.raises(
        TooLargeError, match=r"13,\d+,\d+,\d+ parameters and needs some 5\d\d\.. GB"
    ):
        require_memory(run, needs, int(needs.memory / 0.71))


def test_disk_is_refused_above_seven_tenths_of_what_is_free_or_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the state directory has is there already, and the cache takes what is left."""
    run = large_manifest()
    needs = needs_of(run, trains_on_host=True, cache_bytes=10**15)
    assert needs.disk > 10**15
    assert needs.least_disk == 64 * run.model.num_parameters
    state_dir = tmp_path / "not" / "yet"

    def with_free(num_bytes: int) -> None:
        usage = type(shutil.disk_usage(tmp_path))(2 * num_bytes, num_bytes, num_bytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
        require_disk(run, needs, state_dir)

    with_free(int(needs.least_disk / 0.69))
    with pytest.raises(TooLargeError, match=r"needs some 8\d\d\.. GB of disk here; .* are free in"):
        with_free(int(needs.least_disk / 0.71))
    state_dir.mkdir(parents=True)
    with open(state_dir / "states", "wb") as file:
        file.truncate(needs.least_disk)
    with_free(int(needs.least_disk / 2))


def test_a_founder_cannot_forge_the_lines_that_the_owner_is_shown() -> None:
    run = replace(manifest(), name="small\n\x1b[2Kmemory    some 1 kB\u202e")
    lines = describe(run, needs_of(run, trains_on_host=True, cache_bytes=0))
    assert all(line.isprintable() for line in lines), lines


def test_the_owner_is_told_what_leaves_the_machine() -> None:
    shared = manifest()
    own = replace(shared, data=replace(shared.data, own=True, num_shards=0, num_tokens=0))
    of_shared, of_own = (
        "\n".join(describe(run, needs_of(run, trains_on_host=True, cache_bytes=0)))
        for run in (shared, own)
    )
    assert "parts of its corpus" in of_shared
    assert "parts of its corpus" not in of_own
    assert "your own text stays here" in of_own
    assert "changes of the model, from which somebody may be able to tell parts" in of_own


def test_the_records_of_a_round_are_counted_where_members_sign_them() -> None:
    closed = replace(large_manifest(), outer=replace(manifest().outer, codec="int8"))
    run = replace(closed, trust="open")
    needs = [needs_of(each, trains_on_host=True, cache_bytes=0) for each in (closed, run)]
    records = PEERS_SUPPOSED * 1.13 * run.model.num_parameters  # a path of 480 bytes to each 4,096
    assert needs[1].memory - needs[0].memory == pytest.approx(records, rel=0.01)
    assert needs[1].disk > needs[0].disk


@pytest.mark.parametrize("trust", ["members", "open"])
def test_shared_steps_keep_one_momentum_in_fp32(trust: Trust) -> None:
    run = replace(large_manifest(), sync="distro", trust=trust)
    parameters = run.model.num_parameters
    for moments in get_args(MomentChoice):
        host = needs_of(run, trains_on_host=True, cache_bytes=0, moments=moments)
        card = needs_of(run, trains_on_host=False, cache_bytes=0, moments=moments)
        assert host.memory == PROCESS_BYTES + (28 + 12) * parameters
        assert card.device_memory == 12 * parameters


def test_a_device_with_memory_of_its_own_holds_the_trainer() -> None:
    run = large_manifest()
    needs = needs_of(run, trains_on_host=False, cache_bytes=5 * GB)
    assert needs.memory == PROCESS_BYTES + 28 * run.model.num_parameters
    assert needs.device_memory == 16 * run.model.num_parameters
    assert needs.disk > 5 * GB


def test_the_owner_sees_what_is_used_and_decides() -> None:
    run = manifest()
    lines = describe(run, needs_of(run, trains_on_host=True, cache_bytes=4 * GB))
    text = "\n".join(lines)
    for word in (run.name, run.founder, f"{run.model.num_parameters:,}", "corpus", "each round"):
        assert word in text
    shown: list[str] = []
    ask_owner(lines, shown.append, lambda _question: "Yes ")
    assert shown == lines
    for answer in ("", "n", "yep"):
        with pytest.raises(NotWantedError):
            ask_owner(lines, shown.append, lambda _question, answer=answer: answer)  # type: ignore[misc]


def test_free_memory_is_a_part_of_the_machines() -> None:
    assert 0 < free_memory_bytes() < host_memory_bytes()


def test_free_memory_in_a_container(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1000\n")
    (group / "memory.current").write_text("900\n")
    assert free_memory_bytes(tmp_path) == 100
    (group / "memory.stat").write_text("anon 400\ninactive_file 500\n")
    assert free_memory_bytes(tmp_path) == 600, "the pages of files are given up"
    (group / "memory.max").write_text("max\n")
    assert free_memory_bytes(tmp_path) > 1000
