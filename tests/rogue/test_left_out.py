"""An organiser that leaves an honest, ready member out of its rings, beside honest nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from gossamer.node.rounds import opening
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Action
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.protocol.rounds.roster import make_roster
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.wire.statements import Ready
from tests.support.measured import measured
from tests.support.node_world import World, credited, headers_of, simulate, start, tokens_of

pytestmark = pytest.mark.usefixtures("quiet")

ROUNDS = 40


class InTurn(Round):
    """Leaves the victim out of the rings that are its to organise."""

    victim: PeerId
    liars: frozenset[PeerId]

    def _organise(self, now: float) -> list[Action]:
        kept = self._gatherer._ready
        decision = self._gatherer.decision(now)
        if decision.attempt is None:
            self.gathering_reason = decision.reason
            return []
        return self._publish_without(now, decision.attempt, {*kept} - {self.victim})

    def _publish_without(self, now: float, attempt: int, members: set[PeerId]) -> list[Action]:
        rules, ready = self._rules, self._gatherer._ready
        roster = make_roster(
            self.head,
            self.number,
            attempt,
            {peer: ready[peer] for peer in members},
            rules.ring_rules,
        )
        if self._me not in {member.author for member in roster.members}:
            return []
        publish = self._signer.seal(roster)
        return [publish, *self._roster(now, publish.signed, roster)]


class OutOfTurn(InTurn):
    """Says that it is ready in its own rosters alone, so that nobody else organises a ring before
    it does. Its rosters are those of attempt 0, whoever is to organise that."""

    @property
    def _is_chief(self) -> bool:
        """Of several liars one does this in each round, and the others help it."""
        return rank_order(self.head, 0, self.liars)[0] == self._me

    def ready(self, now: float, ready: Ready) -> list[Action]:
        if not self._is_chief:
            return super().ready(now, ready)
        self._gatherer.note_ready(now, self._signer.seal(ready).signed)
        return self.tick(now)

    def _organise(self, now: float) -> list[Action]:
        gatherer = self._gatherer
        if not self._is_chief:
            return super()._organise(now)
        others = {*gatherer.expected} - {self.victim}
        if gatherer.mine is None or not others <= {*gatherer._ready}:
            return []
        return self._publish_without(now, self._attempt_of_mine(others), {*others, self._me})

    def _attempt_of_mine(self, _others: set[PeerId]) -> int:
        return 0


class Early(OutOfTurn):
    """Takes the first attempt that is its own to organise, before that is due."""

    def _attempt_of_mine(self, others: set[PeerId]) -> int:
        peers = {*others, self._me, self.victim}
        return next(n for n in range(64) if rank_order(self.head, n, peers)[0] == self._me)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the machine of some nodes' rounds."""

    def replace(kind: type[InTurn], liars: set[PeerId], victim: PeerId) -> None:
        made = type(kind.__name__, (kind,), {"victim": victim, "liars": frozenset(liars)})

        def machine(**given: Any) -> Round:
            of_liar: type[Round] = made
            return (of_liar if given["signer"].me in liars else Round)(**given)

        monkeypatch.setattr(opening, "Round", machine)

    return replace


@pytest.mark.long
@pytest.mark.parametrize("kind", [InTurn, OutOfTurn, Early])
@pytest.mark.parametrize(("names", "liars"), [("abcde", "e"), ("abcdef", "ef")])
def test_a_member_that_an_organiser_leaves_out_is_credited_all_the_same(
    tmp_path: Path, names: str, liars: str, kind: type[InTurn], hostile: Callable[..., None]
) -> None:
    world = World(tmp_path, seed=29)
    victim = "c"

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.reach(1, *names)
        await world.until(lambda: all(credited(world, name) > 0 for name in names))
        began = len(headers_of(world, "a"))
        hostile(
            kind,
            {world.identity(name).peer_id for name in liars},
            world.identity(victim).peer_id,
        )

        await world.reach(world.round("a") + ROUNDS, *names)
        had_part = [tokens_of(world, each, victim) > 0 for each in headers_of(world, "a")[began:]]
        rounds, num_rounds = sum(had_part), len(had_part)
        measured(
            f"{kind.__name__}, {len(liars)} of {len(names)}: "
            f"credited in {rounds} of {num_rounds} rounds"
        )
        assert rounds >= 0.95 * num_rounds

    simulate(world, story)
