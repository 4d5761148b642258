"""The data on which a node audits the work of another one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossamer.node.training.audit_data import AuditData
from gossamer.protocol.accounting.partitions import Partitions
from gossamer.protocol.wire.statements import Ready, Span
from tests.support.builders import HEAD, peer

LENGTH = 17
TOKENS = 1000


@pytest.mark.parametrize(
    ("spans", "is_declared"),
    [
        ((), False),
        ((Span(0, 0, 4 * LENGTH),), False),
        ((Span(0, 0, TOKENS // 2 - 1),), False),
        ((Span(0, 0, TOKENS // 2),), True),
        ((Span(0, 0, 4 * LENGTH), Span(9, 0, TOKENS)), False),
        ((Span(0, 0, 4 * LENGTH),) * 8, False),
    ],
    ids=["none", "four sequences", "less than half", "half", "data that are not there", "repeated"],
)
def test_a_member_that_names_too_little_is_audited_on_none_of_it(
    spans: tuple[Span, ...], is_declared: bool
) -> None:
    """It could have been audited on the little that it named, and on nothing else."""
    run_data = SimpleNamespace(partitions=Partitions([2048] * 4, 1))
    nothing = cast(Any, None)
    data = AuditData(cast(Any, run_data), nothing, nothing, nothing, LENGTH)
    ready = Ready(1, 1, 5, HEAD, TOKENS, 1, 2.0, 1.0, spans)
    assert bool(data.declared(HEAD, peer(0), ready)) is is_declared
