"""Each sync mode of the manifest has its strategy, and few modules tell modes apart by name."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import get_args
from unittest.mock import MagicMock

import pytest

from gossamer.node.modes.pending_work import PendingWork
from gossamer.node.modes.shared import SharedSteps
from gossamer.node.rounds.opening import mode_of
from gossamer.node.storage.state.next_state import payloads_for
from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Trust
from gossamer.protocol.manifest_checks import problems_of
from gossamer.protocol.sync_modes import SYNC_MODES, SyncMode
from tests.support.builders import manifest

ROOT = Path(__file__).resolve().parents[3]

COMPARED_BY_NAME = re.compile(r'\bsync [!=]= "|"(?:diloco|sparse|distro)" [!=]= ')


@pytest.mark.parametrize(("sync", "trust"), list(product(get_args(SyncMode), get_args(Trust))))
def test_each_mode_that_a_manifest_allows_has_a_strategy(sync: SyncMode, trust: Trust) -> None:
    run = manifest(sync=sync, trust=trust)
    assert not any("trust" in problem for problem in problems_of(run))
    committed = MagicMock(payloads=payloads_for(run))
    mode = mode_of(PeerId(run.founder), committed, MagicMock())
    assert isinstance(mode, SharedSteps if SYNC_MODES[sync].shares_steps else PendingWork)


def test_each_mode_has_its_row() -> None:
    assert tuple(SYNC_MODES) == get_args(SyncMode)


def test_a_mode_is_told_by_its_name_only_where_contributing_says_so() -> None:
    """All other code asks `SYNC_MODES`, so that it holds for a new mode as well."""
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("protocol", "node", "trainer")
        for path in (ROOT / package).rglob("*.py")
        if COMPARED_BY_NAME.search(path.read_text())
    }
    assert found == {"protocol/codecs/payloads.py", "trainer/presets/modes.py"}
