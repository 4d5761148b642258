"""What several seeds have measured, as one cell of the table of attacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.attacks import ROWS, spread
from tests.support.node_world import SEEDS_APART, WORLDS_VARIABLE, World

ROOT = Path(__file__).parents[2]


def test_figures_that_differ_are_shown_from_the_lowest_to_the_highest() -> None:
    found = {
        1: ["int8: largest parameter 2.9, 9 offences", "0 bytes"],
        2: ["int8: largest parameter 8e+11, 9 offences", "0 bytes"],
        3: ["int8: largest parameter 1,024, 9 offences", "0 bytes"],
    }
    assert spread(found) == ["int8: largest parameter 2.9 to 8e+11, 9 offences", "0 bytes"]


def test_a_line_that_several_tests_print_stands_once() -> None:
    assert spread({1: ["4 of 4 stay", "4 of 4 stay"]}) == ["4 of 4 stay"]


def test_seeds_that_measured_other_things_are_shown_one_by_one() -> None:
    found = {1: ["8 rounds", "2 bytes"], 4: ["8 rounds"], 5: []}
    assert spread(found) == ["seed 1: 8 rounds; 2 bytes", "seed 4: 8 rounds", "seed 5: nothing"]


def test_another_seed_is_another_world_of_the_same_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = World(tmp_path / "first", seed=7)
    monkeypatch.setenv(WORLDS_VARIABLE, "1")
    same = World(tmp_path / "same", seed=7)
    monkeypatch.setenv(WORLDS_VARIABLE, "3")
    other = World(tmp_path / "other", seed=7)
    assert same.signed == first.signed
    assert other.seed == 7 + 2 * SEEDS_APART
    assert other.identity("a").peer_id != first.identity("a").peer_id


def test_every_row_names_tests_that_exist() -> None:
    for row in ROWS:
        for test in row.tests:
            path, _, name = test.partition("::")
            text = (ROOT / path).read_text()
            assert not name or f"\ndef {name.partition('[')[0]}(" in text, test
