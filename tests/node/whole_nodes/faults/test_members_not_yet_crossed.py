"""Members behind routers that know each other by word alone, until their routers are crossed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.heads.fetcher import HeadFetcher
from gossamer.node.network import transport
from gossamer.protocol.ids import PeerId
from tests.support.memory_peer import MemoryPeer
from tests.support.node_world import NumbersTrainer, World, simulate

UNCROSSED_SECONDS = 8.0
"""Time for which the two newcomers cannot send each other blocks."""

TOGETHER_SECONDS = 6.0
"""Time after which they are on one chain: three rounds. A peer is avoided for 20 s or more."""


PARTED_SECONDS = 60.0
"""Time in which each of them makes some 30 rounds: more than a peer undoes by itself."""


class RoundTrainer(NumbersTrainer):
    """A round lasts some 2 s, so the two do not part by more rounds than a peer undoes."""

    step_seconds = 0.5


class Router:
    """Keeps two peers from sending each other blocks, until it is crossed; a third one introduces
    them to each other and has no blocks of theirs."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        """The peers are b and c, and a is the third."""
        middle, *ends = (world.identity(name).peer_id for name in "abc")
        real_path, real_look = MemoryPeer.path, HeadFetcher._look
        self.is_crossed = False

        def path(peer: MemoryPeer, other: PeerId) -> transport.Path | None:
            if not self.is_crossed and {peer.peer_id, other} == {*ends}:
                return transport.Path("relayed", middle, introduced=True)
            return real_path(peer, other)

        def look(fetcher: HeadFetcher, nursery: trio.Nursery) -> None:
            if fetcher._swarm.me != middle:
                real_look(fetcher, nursery)

        patch.setattr(MemoryPeer, "path", path)
        patch.setattr(HeadFetcher, "_look", look)


async def found_and_join(world: World, nursery: trio.Nursery) -> None:
    """The founder pauses before the newcomers are there, so nobody at work has stake."""
    await nursery.start(world.run, "a")
    await world.reach(2, "a")
    world.nodes["a"].pause()
    for name in "bc":
        await nursery.start(world.run, name, ["a"], RoundTrainer)
    await world.reach(4, "b", "c")


def test_newcomers_come_together_although_the_others_rounds_could_not_be_had_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=81)
    router = Router(world, monkeypatch)

    async def story(nursery: trio.Nursery) -> None:
        await found_and_join(world, nursery)
        await trio.sleep(UNCROSSED_SECONDS)
        assert problems(world) == {None}
        router.is_crossed = True
        await world.come_together("b", "c", seconds=TOGETHER_SECONDS)
        assert not any(world.participant(name).context.swarm.num_banned for name in "abc")

    simulate(world, story)


@pytest.mark.long
def test_a_node_whose_history_is_too_long_to_undo_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody had stake where the two parted, so each of them keeps its own rounds."""
    world = World(tmp_path, seed=81)
    router = Router(world, monkeypatch)

    async def story(nursery: trio.Nursery) -> None:
        await found_and_join(world, nursery)
        await trio.sleep(PARTED_SECONDS)
        router.is_crossed = True
        await world.until(lambda: problems(world) != {None}, seconds=TOGETHER_SECONDS)
        assert not world.is_one_chain("b", "c")
        said = [problem for problem in problems(world) if problem is not None]
        assert len(said) == 1, "only the one of the lighter chain says it"
        assert "since round" in said[0]
        assert "gossamer reset" in said[0]

    simulate(world, story)


def problems(world: World) -> set[str | None]:
    """What b and c show as their problems."""
    reporters = [world.nodes[name].reporter for name in "bc"]
    return {reporter.status().problem for reporter in reporters if reporter is not None}
