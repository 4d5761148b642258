"""A member that says a rate of its link that it does not have: simulated rings of two fast machines
and home lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring.link_rates import RingLinkRates, Verdict
from tests.sim.simulator.world import World
from tests.sim.test_fault_table import calm
from tests.support.measured import measured

FAST_FACTOR = 100
"""How much faster the lines of two machines are than those of the others, the liar among them."""

SECONDS_FACTOR = 4
"""How much longer a ring takes than in the fault table: time enough to find a member slow."""

LIE = 1e12
NUM_WORLDS = 8


def worlds_with_slow_members(
    num_members: int, has_liar: bool, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Returns the number of worlds in which an honest member puts some member out as slow."""
    put_out: set[int] = set()
    for seed in range(NUM_WORLDS):
        scenario = calm(seed, num_members)
        machines = tuple(
            replace(
                machine,
                bytes_per_second=machine.bytes_per_second
                * (FAST_FACTOR if index < 2 else 1)
                / SECONDS_FACTOR,
            )
            for index, machine in enumerate(scenario.machines)
        )
        world = World(replace(scenario, machines=machines))
        liar = world.order[-1] if has_liar else None
        with monkeypatch.context() as patch:
            patch.setattr(RingLinkRates, "to_say", lying(liar))
            patch.setattr(RingLinkRates, "too_slow", noting(liar, seed, put_out))
            world.run()
    return len(put_out)


def lying(liar: PeerId | None):  # type: ignore[no-untyped-def]
    say = RingLinkRates.to_say

    def to_say(
        self: RingLinkRates, now: float, successor: PeerId
    ) -> tuple[int, float, float] | None:
        if self._me != liar:
            return say(self, now, successor)
        if self._num_said:
            return None
        self._num_said = 1
        return 1, LIE, LIE

    return to_say


def noting(liar: PeerId | None, seed: int, put_out: set[int]):  # type: ignore[no-untyped-def]
    judge = RingLinkRates.too_slow

    def too_slow(
        self: RingLinkRates, now: float, living: tuple[PeerId, ...], successor: PeerId
    ) -> Verdict:
        verdict = judge(self, now, living, successor)
        if verdict.member is not None and self._me != liar:
            put_out.add(seed)
        return verdict

    return too_slow


@pytest.mark.parametrize("num_members", [4, 5])
def test_one_false_rate_puts_no_home_line_out(
    num_members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worlds_with_slow_members(num_members, False, monkeypatch) == 0
    harmed = worlds_with_slow_members(num_members, True, monkeypatch)
    measured(f"members put out as slow in {harmed} of {NUM_WORLDS} worlds of {num_members}")
    assert harmed == 0
