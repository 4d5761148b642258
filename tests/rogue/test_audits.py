"""Members that do not train, and auditors that lie, among nodes that audit each other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import structlog
import trio
from msgspec.structs import replace

from gossamer.node.rounds import participant
from gossamer.node.rounds.auditing import Auditing
from gossamer.node.rounds.auditor import Auditor
from gossamer.node.rounds.participant import Participant
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.chain import credits_of
from gossamer.protocol.wire.audit_messages import Verdict
from gossamer.trainer.ipc import messages
from tests.support.node_world import (
    STEP_SECONDS,
    NumbersTrainer,
    World,
    headers_of,
    initial_weights,
    simulate,
)

NAMES = "abcde"
EIGHT = "abcdefgh"
LIARS = "fgh"
ROUNDS = 14
NUM_SHARDS = 256


class Honest(NumbersTrainer):
    """All train towards one target, which they do not reach."""

    rate = 0.01

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._target = initial_weights(1_000, self.base.size)


class AtTheEnd(Honest):
    """There is nothing left to learn: its work changes nothing."""

    rate = 0.0


class Noise(Honest):
    """Sends random numbers, as long as the work that it says it has done."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        finished = await super().train(begin)
        noise = initial_weights(2_000 + finished.round, self.base.size)  # not those of the start
        self._work = noise * np.float32(np.linalg.norm(self._work) / np.linalg.norm(noise))
        return finished


class NoiseOnNoData(Noise):
    """The same, and says nothing of the data behind it."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        return replace(await super().train(begin), spans=())


class NoiseOnLostData(Noise):
    """The same, and names data that nobody has: another shard in each round."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        finished = await super().train(begin)
        lost = (NUM_SHARDS - finished.round, 0, finished.tokens)
        return replace(finished, spans=(lost,) if finished.tokens else ())


class InEveryOtherRound(Honest):
    """Comes too late for each second round, and hands the work of two rounds in with the next."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        self.step_seconds = 20 * STEP_SECONDS if begin.round % 2 else STEP_SECONDS
        return await super().train(begin)


class NoiseInEveryOtherRound(InEveryOtherRound, Noise):
    pass


class HundredthInEveryOtherRound(InEveryOtherRound):
    """Sends a hundredth of its work: that helps, and next to nothing."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        finished = await super().train(begin)
        self._work = self._work * np.float32(0.01)
        return finished


class SilentOnData(Honest):
    """Works, and says nothing of the data behind it."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        return replace(await super().train(begin), spans=())


@pytest.fixture(autouse=True)
def an_audit_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    monkeypatch.setattr(participant, "rounds_between", lambda _manifest: 1)


def lived(
    root: Path,
    last: type[NumbersTrainer] = Honest,
    others: type[NumbersTrainer] = Honest,
    corrupt: Callable[[World], None] = lambda _world: None,
    is_over: Callable[[World], bool] = lambda world: world.round("a") >= ROUNDS,
    *,
    overlap: bool = False,
    names: str = NAMES,
) -> World:
    """A swarm, of which e has another trainer, when something is over."""
    world = World(
        root,
        seed=43,
        codec="int8",
        trust="open",
        inner_steps=10,
        num_shards=NUM_SHARDS,
        overlap=overlap,
    )

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", [], others)
        for name in names[1:]:
            await nursery.start(world.run, name, ["a"], last if name == "e" else others)
        await world.until(lambda: all(world.participant_or_none(name) for name in names))
        corrupt(world)
        await world.until(lambda: is_over(world), 300.0, 0.05)
        await world.come_together(*names, seconds=30.0)

    simulate(world, story)
    return world


def auditing_of(participant: Participant) -> Auditing:
    """What a node hears of audits."""
    assert isinstance(participant.audits, Auditor)
    return participant.audits.auditing


def verdicts_on(world: World, name: str) -> tuple[int, int]:
    """Verdicts on a member's work, good and poor, that another one has heard."""
    participant = world.participant("a" if name != "a" else "b")
    return participant.audits.count_of(world.identity(name).peer_id)


def found_poor(world: World, name: str) -> float:
    """Findings that a member has heard of."""
    registry = world.nodes[name].first.metrics.registry
    return registry.get_sample_value("gossamer_poor_work_total") or 0.0


def audits_of(world: World, name: str, verdict: str) -> float:
    """Audits of others that a member made, and that came to this."""
    registry = world.nodes[name].first.metrics.registry
    return registry.get_sample_value("gossamer_audits_total", {"verdict": verdict}) or 0.0


@pytest.mark.long
def test_honest_members_are_audited_and_found_good(tmp_path: Path) -> None:
    world = lived(tmp_path, overlap=True)
    assert sum(verdicts_on(world, name)[0] for name in NAMES) > 10
    assert all(verdicts_on(world, name)[1] == 0 for name in NAMES)
    assert all(found_poor(world, name) == 0 for name in NAMES)


def test_nobody_is_judged_where_the_round_changes_nothing(tmp_path: Path) -> None:
    world = lived(tmp_path, AtTheEnd, AtTheEnd, is_over=lambda world: world.round("a") >= 8)
    assert all(verdicts_on(world, name) == (0, 0) for name in NAMES)
    assert sum(audits_of(world, name, "undecided") for name in NAMES) >= 3
    assert all(audits_of(world, name, "poor") == 0 for name in NAMES)


def times_out(world: World, name: str) -> float:
    """How often a member let another one sit out because of its work."""
    registry = world.nodes[name].first.metrics.registry
    return registry.get_sample_value("gossamer_poor_members_total") or 0.0


def test_a_member_that_sends_random_numbers_is_found_and_sits_out_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    when_found: dict[str, tuple[int, int]] = {}

    def is_over(world: World) -> bool:
        if not when_found and all(found_poor(world, name) for name in NAMES):
            when_found.update({name: verdicts_on(world, name) for name in NAMES})
        return bool(when_found) and any(times_out(world, name) for name in "abcd")

    world = lived(tmp_path, Noise, is_over=is_over)
    for num_good, num_poor in (when_found["e"], verdicts_on(world, "e")):
        assert num_poor >= 2
        assert num_good == 0
    assert all(when_found[name][1] == verdicts_on(world, name)[1] == 0 for name in "abcd")
    assert times_out(world, "e") == 0, "the others' work is good"
    for name in "abcd":
        auditing = auditing_of(world.participant(name))
        poor = auditing._swarm.admission.partners.poor_work
        others = [world.identity(other).peer_id for other in "abcd" if other != name]
        assert not any(poor.sits_out(number, each) for each in others for number in range(200))


def test_a_member_that_names_no_data_is_audited_like_all_others(tmp_path: Path) -> None:
    """Nobody looked at its work: it sent noise for as long as it wanted."""

    def is_over(world: World) -> bool:
        return any(times_out(world, name) for name in "abcd") or world.round("a") >= 60

    world = lived(tmp_path, NoiseOnNoData, is_over=is_over)
    num_good, num_poor = verdicts_on(world, "e")
    assert num_good == 0
    assert num_poor >= 2
    assert any(times_out(world, name) for name in "abcd")
    assert all(verdicts_on(world, name)[1] == 0 for name in "abcd")


def lose_shards(world: World) -> None:
    """All nodes lose the second half of the corpus, of which nobody has claimed anything yet."""
    for name in NAMES:
        data, store = world.participant(name).context.audit_data, world.nodes[name].inputs.store
        assert data is not None
        for shard in data._data.shards[NUM_SHARDS // 2 :]:
            store.path(Digest(shard.digest)).unlink(missing_ok=True)
        store.forget_lost()


def test_a_member_that_names_data_that_nobody_has_is_audited_on_held_out_text(
    tmp_path: Path,
) -> None:
    """Each audit of it ended without a verdict."""

    def is_over(world: World) -> bool:
        return any(times_out(world, name) for name in "abcd") or world.round("a") >= 60

    world = lived(tmp_path, NoiseOnLostData, corrupt=lose_shards, is_over=is_over)
    num_good, num_poor = verdicts_on(world, "e")
    assert num_good == 0
    assert num_poor >= 2
    assert all(verdicts_on(world, name)[1] == 0 for name in "abcd")


def rounds_of(world: World, name: str) -> list[int]:
    """The rounds that took work of a member."""
    member = world.identity(name).peer_id
    return [header.round for header in headers_of(world, "a") if member in credits_of(header)]


def test_a_member_that_takes_part_in_every_other_round_is_audited(tmp_path: Path) -> None:
    """Nobody looked at its work: it was never in two rounds in succession."""

    def is_over(world: World) -> bool:
        return any(times_out(world, name) for name in "abcd") or world.round("a") >= 60

    world = lived(tmp_path, NoiseInEveryOtherRound, is_over=is_over)
    rounds = rounds_of(world, "e")
    assert len(rounds) >= 4
    # The others may wait in the round in which it joins, which can be one of those it is late for.
    assert all(later > earlier + 1 for earlier, later in pairwise(rounds[1:]))
    num_good, num_poor = verdicts_on(world, "e")
    assert num_poor >= 2
    assert num_good == 0
    assert any(times_out(world, name) for name in "abcd")
    assert all(verdicts_on(world, name)[1] == 0 for name in "abcd")


def test_work_that_helps_next_to_nothing_from_where_it_began_is_poor(tmp_path: Path) -> None:
    """It was good: all sequences agree that it helps."""

    def is_over(world: World) -> bool:
        return sum(verdicts_on(world, "e")) >= 2 or world.round("a") >= 60

    world = lived(tmp_path, HundredthInEveryOtherRound, is_over=is_over)
    num_good, num_poor = verdicts_on(world, "e")
    assert num_poor >= 2
    assert num_good == 0


@pytest.mark.long
@pytest.mark.parametrize("overlap", [False, True])
def test_honest_work_that_was_carried_is_found_good(tmp_path: Path, *, overlap: bool) -> None:
    def is_over(world: World) -> bool:
        return verdicts_on(world, "e")[0] >= 3 or world.round("a") >= 60

    world = lived(tmp_path, InEveryOtherRound, is_over=is_over, overlap=overlap)
    assert verdicts_on(world, "e")[0] >= 3
    assert all(verdicts_on(world, name)[1] == 0 for name in NAMES)
    assert all(times_out(world, name) == 0 for name in NAMES)


@pytest.mark.long
def test_honest_work_of_which_no_data_is_named_is_found_good(tmp_path: Path) -> None:
    """A member that was in too few chunks of several rounds names the data of its work no more."""

    def is_over(world: World) -> bool:
        return verdicts_on(world, "e")[0] >= 3 or world.round("a") >= 60

    world = lived(tmp_path, SilentOnData, is_over=is_over)
    assert verdicts_on(world, "e")[0] >= 3
    assert all(verdicts_on(world, name)[1] == 0 for name in NAMES)
    assert all(times_out(world, name) == 0 for name in NAMES)


def lying(world: World, name: str = "e") -> None:
    auditing = auditing_of(world.participant(name))
    say = auditing.say

    def lie(audit: object, verdict: Verdict) -> None:
        say(audit, replace(verdict, is_poor=not verdict.is_poor))  # type: ignore[arg-type]

    auditing.say = lie  # type: ignore[method-assign]


@pytest.mark.long
def test_three_liars_of_eight_find_honest_members_and_let_none_sit_out(tmp_path: Path) -> None:
    """Two of the three auditors lie in more than a third of the audits of honest members."""
    honest = [name for name in EIGHT if name not in LIARS]

    def lie(world: World) -> None:
        for name in LIARS:
            lying(world, name)

    world = lived(
        tmp_path,
        corrupt=lie,
        is_over=lambda world: world.round("a") >= 3 * ROUNDS,
        names=EIGHT,
    )
    assert sum(verdicts_on(world, name)[1] for name in honest) >= 5, "they have lied"
    assert all(times_out(world, name) == 0 for name in honest)


def test_a_lying_auditor_finds_nobody_and_is_soon_not_believed(tmp_path: Path) -> None:
    def is_ignored(world: World) -> bool:
        auditing = auditing_of(world.participant("a"))
        return not auditing._verdicts.counts(world.identity("e").peer_id, world.round("a"))

    world = lived(tmp_path, corrupt=lying, is_over=is_ignored)
    assert sum(verdicts_on(world, name)[1] for name in "abcd") >= 2, "it has lied"
    assert all(found_poor(world, name) == 0 for name in NAMES)
