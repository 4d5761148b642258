"""Honest nodes in trouble: no other node bans one for it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from gossamer.protocol.limits import LOSS_MAX
from gossamer.trainer.ipc import messages
from tests.support.node_world import (
    NOT_USED,
    NumbersTrainer,
    World,
    headers_of,
    simulate,
    tokens_of,
)
from tests.support.noted_offences import noted_offences

MANY_SECONDS = 1200.0
"""A peer that is blamed each time a head is tried again would be banned in half of this time."""


def test_a_member_that_cannot_help_others_to_its_head_is_not_banned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line is metered, so it serves no blocks. It followed the newest rounds and signed none of
    them, and the member that did has gone. Another one has lost its chain, and asks again and
    again."""
    noted, is_metered = noted_offences(monkeypatch), False
    world = World(tmp_path, seed=14, look_seconds=0.05)

    def is_paused(name: str) -> bool:
        participant = world.participant_or_none(name)
        return participant is not None and participant.progress.phase == "paused"

    async def story(nursery: trio.Nursery) -> None:
        nonlocal is_metered
        await nursery.start(world.run, "a")
        world.use = replace(NOT_USED, is_metered=lambda: is_metered)
        await nursery.start(world.run, "b", ["a"])
        world.use = NOT_USED
        await nursery.start(world.run, "c", ["a"])
        await world.reach(2, *"abc")
        await world.until(lambda: world.all_shards_are_with(*"bc"), seconds=120)
        for name in "bc":
            world.nodes[name].pause()
        await world.until(lambda: is_paused("b") and is_paused("c"))
        world.crash("c")
        await world.reach(world.round("a") + 6, "a")
        world.participant("a").pause()
        await world.until(lambda: is_paused("a") and world.path("a") == world.path("b"))
        is_metered = True
        await world.until(lambda: world.participant("b").spares_line)
        world.crash("a")
        del world.nodes["c"]
        shutil.rmtree(tmp_path / "c" / "chain")
        await nursery.start(world.run, "c", ["b"])
        await trio.sleep(MANY_SECONDS)
        blamed = [peer for peer, error in noted if "cannot be reached" in str(error)]
        assert {*blamed} == {world.identity("b").peer_id}
        assert world.participant("c").context.swarm.num_banned == 0
        is_metered = False
        await world.until(lambda: world.path("c") == world.path("b"), seconds=120)

    simulate(world, story)


class Diverged(NumbersTrainer):
    """Its loss is finite, and larger than a peer may say."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        finished = await super().train(begin)
        return msgspec.structs.replace(finished, loss=1e3 * LOSS_MAX)


def test_members_whose_training_diverges_do_not_ban_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad average can bring all of them to such a loss."""
    noted = noted_offences(monkeypatch)
    world = World(tmp_path, seed=15)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), Diverged)
        await nursery.start(world.run, "b", ["a"], Diverged)
        await world.reach(1, *"ab")
        await world.until(lambda: tokens_of(world, headers_of(world, "a")[-1], "b") > 0)
        assert noted == []

    simulate(world, story)
