"""Rows C8 to C10 of `attacks`: three of eight members lie in each way, with one codec each.

The module's name keeps it out of the ordinary tests, for which a part of it is `test_credit`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rogue.hostile_minority import CREDITED_SHARE_MIN, Outcome, credited_under
from tests.support.lies import ATTACKS, MIXED, NOBODY
from tests.support.measured import measured

pytestmark = pytest.mark.usefixtures("quiet")

HOSTILE_ATTACKS = (*(name for name in ATTACKS if name != NOBODY), MIXED)


def told(codec: str, quiet: Outcome, outcomes: list[Outcome]) -> str:
    """What came of all attacks with one codec, in one line."""
    num_rounds = quiet.num_rounds
    honest = [rounds for each in outcomes for rounds in each.honest]
    hostile = [rounds for each in outcomes for rounds in each.hostile]
    return (
        f"{codec}, {len(outcomes)} attacks: the honest nodes are credited in {sum(honest)} of "
        f"{num_rounds * len(honest)} rounds, each under each attack in at least {min(honest)} of "
        f"{num_rounds}, and in at least {min(quiet.honest)} with nobody hostile; "
        f"the liars in {sum(hostile)} of {num_rounds * len(hostile)}; largest parameter at most "
        f"{max(each.largest for each in outcomes):.1f}, and {quiet.largest:.1f} with nobody"
    )


@pytest.mark.parametrize("codec", ["int8", "sparse", "distro"])
def test_honest_nodes_are_credited_under_every_attack(tmp_path: Path, codec: str) -> None:
    outcomes: dict[str, Outcome] = {}
    for number, attack in enumerate((NOBODY, *HOSTILE_ATTACKS)):
        outcomes[attack] = credited_under(tmp_path / str(number), codec, attack)
        print(codec, attack, outcomes[attack], flush=True)
    measured(told(codec, outcomes[NOBODY], [outcomes[name] for name in HOSTILE_ATTACKS]))
    assert min(each.lowest_share for each in outcomes.values()) >= CREDITED_SHARE_MIN
