"""`gossamer presets`."""

import json

import pytest

from gossamer.node.cli import run_command
from gossamer.node.commands.founder.presets import needs_of_preset
from gossamer.protocol.codecs.packing import FLOATS_SHARE
from gossamer.protocol.errors import ManifestError
from gossamer.trainer.presets.table import PRESETS


def test_each_preset_has_its_size_memory_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["presets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(PRESETS)
    for row in rows:
        parameters = PRESETS[row["name"]].model.num_parameters
        assert row["parameters"] == parameters
        assert row["state_bytes"] == 8 * parameters
        # Two bytes of fp16 for each value of a sum, and of an average, over 7 of 8 links, packed.
        whole_bytes = 2 * 7 / 8 * 2 * parameters
        assert row["bytes_a_round"] == pytest.approx(FLOATS_SHARE * whole_bytes, rel=0.01)
        assert row["memory_bytes"] - row["memory_bytes_beside_gpu"] == row["gpu_bytes"]


def test_the_table_fits_a_narrow_terminal_and_names_every_preset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[1 : 1 + len(PRESETS)]
    assert [line.split()[0] for line in table] == list(PRESETS)
    assert not any("…" in line for line in table)
    assert f"{PRESETS['150m'].model.num_parameters:,}" in table[list(PRESETS).index("150m")]


@pytest.mark.parametrize("name", ["150m", "1.1b"])
def test_the_summary_of_a_large_preset_has_the_memory_that_it_needs(name: str) -> None:
    needs = needs_of_preset(name)
    gpu, beside = needs.gpu_bytes / 2**30, needs.memory_bytes_beside_gpu / 2**30
    assert f": {gpu:.1f} GiB on a GPU, {beside:.1f} beside" in needs.summary


def test_an_unknown_preset() -> None:
    with pytest.raises(ManifestError):
        needs_of_preset("gigantic")
