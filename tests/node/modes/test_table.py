"""Each sync mode of the manifest has its strategy."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from gossamer.node.modes.table import MODES, mode_for
from gossamer.protocol.manifest import Trust
from gossamer.protocol.manifest_checks import problems_of
from gossamer.protocol.sync_modes import SyncMode
from tests.support.builders import manifest


@pytest.mark.parametrize(("sync", "trust"), list(product(get_args(SyncMode), get_args(Trust))))
def test_each_mode_that_a_manifest_allows_has_a_strategy(sync: SyncMode, trust: Trust) -> None:
    run = manifest(sync=sync, trust=trust)
    allowed = not any("trust" in problem for problem in problems_of(run))
    assert ((sync, trust) in MODES) == allowed
    if allowed:
        assert mode_for(run) is MODES[sync, trust]
