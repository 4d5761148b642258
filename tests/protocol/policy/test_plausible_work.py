"""The root of a `Ready` is there where the run's members sign their records, and only there."""

from __future__ import annotations

import pytest

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Trust
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.wire.statements import Roster
from tests.support.builders import HEAD, RUN_ID, manifest, peer, ready, sealed

ROOT = digest_of(b"records")


@pytest.mark.parametrize(("trust", "root"), [("open", ROOT), ("members", b"")])
def test_a_root_is_there_as_the_manifest_says(trust: Trust, root: bytes) -> None:
    bounds = WorkBounds(manifest(trust=trust))
    good, bad = ready(root=root), ready(root=b"" if root else ROOT)
    bounds.check_statement(good, RUN_ID)
    with pytest.raises(MalformedError, match="a root over its records"):
        bounds.check_statement(bad, RUN_ID)
    members = [sealed(peer(0), good), sealed(peer(1), bad)]
    bounds.check_statement(Roster(5, HEAD, 0, (members[0],), "fp16", 4096), RUN_ID)
    with pytest.raises(MalformedError, match="a root over its records"):
        bounds.check_statement(Roster(5, HEAD, 0, tuple(members), "fp16", 4096), RUN_ID)
