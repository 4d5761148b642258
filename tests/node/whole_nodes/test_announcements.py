"""A node says so little that no honest peer takes it for a flood."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
import trio
from prometheus_client import generate_latest

from gossamer.node.peers.announcer import QUIET_SECONDS
from gossamer.node.peers.connection_watch import WATCH_SECONDS
from gossamer.node.peers.statements import store_comparison
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.peers.statements.store_comparison import QUIET_RECONCILE_SECONDS
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.gossip_quota import GossipQuota
from gossamer.protocol.policy.membership import ANNOUNCE_SECONDS
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import Announce, Signed, Statement
from tests.support.apart import Apart
from tests.support.memory_peer import MemoryPeer
from tests.support.node_world import FastTrainer, World, simulate, start

MET_ANNOUNCEMENTS_MAX = 6
"""Announcements of a node from its start until it knows all others."""

STARTED_SECONDS = 10.0
"""Time after which all nodes of a story are connected, and wait for more."""


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> dict[PeerId, list[float]]:
    """Times at which each peer announced itself, in seconds of virtual time."""
    times: dict[PeerId, list[float]] = defaultdict(list)

    def watch(name: str) -> None:
        tell = getattr(Gossip, name)

        def watched(gossip: Gossip, statement: Statement) -> Signed:
            signed: Signed = tell(gossip, statement)
            if isinstance(statement, Announce):
                times[PeerId(signed.author)].append(trio.current_time())
            return signed

        monkeypatch.setattr(Gossip, name, watched)

    watch("say")
    watch("keep")  # `repeat` keeps as well
    return times


def assert_no_flood(times: dict[PeerId, list[float]]) -> None:
    """The gate of a libp2p connection, which the transport in memory does not have, takes all."""
    for author, seconds in sorted(times.items()):
        gate = GossipQuota()
        assert all(gate.admits(now, author, author, is_connected=True)[0] for now in seconds)


def assert_names_the_wait(world: World, name: str, num_ready: int) -> None:
    """Status, line of the service manager and gauge say what the node waits for."""
    reporter = world.nodes[name].reporter
    assert reporter is not None
    reason = f"the first round waits: {num_ready} of 9 other peers are ready"
    status = reporter.status()
    assert status.waits_for == reason
    assert status.problem is None
    assert reporter.line() == f"training ({reason}), round 0"
    text = generate_latest(world.nodes[name].first.metrics.registry).decode()
    assert "gossamer_waiting_for_peers 1.0" in text


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_nodes_that_wait_for_more_peers_announce_at_the_usual_period(
    tmp_path: Path, announced: dict[PeerId, list[float]], names: str
) -> None:
    world = World(tmp_path, seed=90, wait_for_peers=9)
    watched_seconds = 60.0

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await trio.sleep(STARTED_SECONDS)
        began = trio.current_time()
        await trio.sleep(watched_seconds)
        for name in names:
            assert world.round(name) == 0
            swarm = world.participant(name).context.swarm
            assert len(swarm.living()) == len(names) - 1
            assert swarm.num_banned == 0
            assert_names_the_wait(world, name, len(names) - 1)
            recent = [each for each in announced[swarm.me] if each >= began]
            assert len(recent) <= 1.2 * watched_seconds / ANNOUNCE_SECONDS

    simulate(world, story)
    assert_no_flood(announced)


def test_nodes_that_are_all_connected_do_not_repeat_what_all_have(
    tmp_path: Path, announced: dict[PeerId, list[float]]
) -> None:
    """Each said the same every ten seconds, and all others checked its signature."""
    world = World(tmp_path, seed=96, wait_for_peers=9)
    watched_seconds = 5 * QUIET_SECONDS

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await trio.sleep(STARTED_SECONDS + QUIET_SECONDS)
        began = trio.current_time()
        await trio.sleep(watched_seconds)
        for name in "abcd":
            swarm = world.participant(name).context.swarm
            assert len(swarm.living()) == 3
            recent = [each for each in announced[swarm.me] if each >= began]
            assert 1 <= len(recent) <= 1 + watched_seconds / QUIET_SECONDS

    simulate(world, story)


def test_a_node_says_something_new_to_a_peer_that_connects_again(tmp_path: Path) -> None:
    """b has lost its connection, as with another network, and a has not: it sees a second one
    begin. b counts a as living when it hears something new of it."""
    world = World(tmp_path, seed=98, wait_for_peers=9)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await trio.sleep(STARTED_SECONDS + 2 * QUIET_SECONDS)
        a, b = (world.participant(name).context.swarm for name in "ab")
        b.membership.disconnected(a.me)
        assert a.me not in b.living_anywhere()
        a._connections.changed()
        until = trio.current_time() + ANNOUNCE_SECONDS + 2 * QUIET_RECONCILE_SECONDS
        await world.until(lambda: a.me in b.living_anywhere(), until - trio.current_time())

    simulate(world, story)


def test_nodes_without_a_connection_to_each_other_go_on_announcing_themselves(
    tmp_path: Path, announced: dict[PeerId, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither b nor c is connected to the other, and each lives for the other all the time."""
    world = World(tmp_path, seed=97, wait_for_peers=9)
    parted = sorted(world.identity(name).peer_id for name in "bc")
    apart = Apart(monkeypatch, parted)
    watched_seconds = 6 * QUIET_SECONDS

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await trio.sleep(STARTED_SECONDS + QUIET_SECONDS)
        apart.begin()
        for swarm in (world.participant(name).context.swarm for name in "bc"):
            swarm._connections.wake()  # the connection "broke"
        await trio.sleep(2 * QUIET_SECONDS)
        began = trio.current_time()
        while trio.current_time() < began + watched_seconds:
            for name in "abcd":
                swarm = world.participant(name).context.swarm
                assert len(swarm.living_anywhere()) == 3
            await trio.sleep(1)
        for peer in parted:
            recent = [each for each in announced[peer] if each >= began]
            assert len(recent) >= watched_seconds / ANNOUNCE_SECONDS - 1

    simulate(world, story)


@pytest.mark.long
def test_nodes_without_a_connection_live_by_what_is_published_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others compare stores so seldom that nothing of b would get to c by their comparisons."""
    world = World(tmp_path, seed=99, wait_for_peers=9)
    apart = Apart(monkeypatch, sorted(world.identity(name).peer_id for name in "bc"))
    monkeypatch.setattr(store_comparison, "QUIET_RECONCILE_SECONDS", 1e6)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await trio.sleep(STARTED_SECONDS + QUIET_SECONDS)
        apart.begin()
        for swarm in (world.participant(name).context.swarm for name in "bc"):
            swarm.announce()  # it ends the wait for a comparison that began before
            await trio.sleep(1)
            swarm._connections.changed()  # the connection "broke"
        await trio.sleep(2 * ANNOUNCE_SECONDS)
        for _ in range(6 * round(QUIET_SECONDS)):
            for name in "abcd":
                assert len(world.participant(name).context.swarm.living_anywhere()) == 3
            await trio.sleep(1)

    simulate(world, story)


def test_nodes_that_meet_announce_themselves_no_more_often_the_more_they_are(
    tmp_path: Path, announced: dict[PeerId, list[float]]
) -> None:
    """Every new connection was greeted with an announcement to all: N^3 messages of N nodes."""
    names = "abcdefghijklmnop"
    world = World(tmp_path, seed=98, wait_for_peers=99)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, names[0])
        for name in names[1:]:
            await nursery.start(world.run, name, [names[0]])
            await trio.sleep(1.0)
        await trio.sleep(STARTED_SECONDS)
        swarms = [world.participant(name).context.swarm for name in names]
        assert all(len(each.living()) == len(names) - 1 for each in swarms)
        seconds = trio.current_time()
        renewed = seconds / ANNOUNCE_SECONDS
        assert max(map(len, announced.values())) <= MET_ANNOUNCEMENTS_MAX + renewed

    simulate(world, story)


def test_nodes_that_were_cut_off_from_each_other_live_again_as_soon_as_they_are_connected(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, seed=99, wait_for_peers=9)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await trio.sleep(STARTED_SECONDS)
        b, c = (world.participant(name).context.swarm for name in "bc")
        for _ in range(3):
            world.network.reset(b.me, c.me)
            await world.until(lambda: b.me not in c.living() and c.me not in b.living())
            await world.until(lambda: b.is_connected(c.me))
            await trio.sleep(3 * WATCH_SECONDS)
            assert b.me in c.living()
            assert c.me in b.living()
            await trio.sleep(STARTED_SECONDS)

    simulate(world, story)


def test_a_phase_that_changes_is_announced_at_once(
    tmp_path: Path, announced: dict[PeerId, list[float]]
) -> None:
    world = World(tmp_path, seed=91, wait_for_peers=9)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await trio.sleep(STARTED_SECONDS)
        b = world.identity("b").peer_id
        heard = world.participant("a").context.swarm.living
        world.participant("b").leave()
        await world.until(lambda: b not in heard(), seconds=0.1)

    simulate(world, story)
    assert_no_flood(announced)


def test_a_node_with_news_at_every_instant_stays_under_the_rate_of_an_author(
    tmp_path: Path, announced: dict[PeerId, list[float]]
) -> None:
    """Each claim is an announcement, as with small shards and quick rounds."""
    world = World(tmp_path, seed=92, wait_for_peers=9)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await trio.sleep(STARTED_SECONDS)
        swarm = world.participant("a").context.swarm
        for _ in range(1500):
            swarm.announce()
            await trio.sleep(0.02)
        newest = swarm.new_sequence()
        swarm.announce()
        heard = world.participant("b").context.swarm.living
        await world.until(lambda: heard()[swarm.me].sequence > newest, seconds=0.3)

    simulate(world, story)
    assert_no_flood(announced)


def test_a_round_has_few_announcements_of_each_member(
    tmp_path: Path, announced: dict[PeerId, list[float]]
) -> None:
    """Three of six members announce the head, and each one its claims: all at once, and none that
    did not change. It was more than three of each member."""
    names = "abcdef"
    world = World(tmp_path, seed=95, wait_for_peers=5, num_shards=64, inner_steps=20)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.reach(2, *names)
        first, began = world.round("a"), trio.current_time()
        await world.reach(first + 4, *names)
        num_rounds = world.round("a") - first
        recent = [each for times in announced.values() for each in times if each >= began]
        assert len(names) * num_rounds / 2 < len(recent) < 2.5 * len(names) * num_rounds

    simulate(world, story)


def test_an_identity_in_use_twice_makes_neither_announce_without_end(
    tmp_path: Path, announced: dict[PeerId, list[float]]
) -> None:
    """Each of the two answers the other's higher number with one that is higher still."""
    world = World(tmp_path, seed=93, wait_for_peers=9)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await trio.sleep(STARTED_SECONDS)
        identity, context = world.identity("b"), world.participant("b").context
        swarm, run_id = context.swarm, context.manifest.run_id
        some = swarm.living()[world.identity("a").peer_id]
        began, before = trio.current_time(), swarm.incarnation
        for _ in range(1000):
            twin = msgspec.structs.replace(some, incarnation=swarm.incarnation, sequence=2**40)
            swarm.gossip._take_own(seal(twin, identity.peer_id, run_id, identity.sign))
            await trio.sleep(0.02)
        assert swarm.incarnation == before + 1000
        seconds = [each for each in announced[swarm.me] if each >= began]
        assert len(seconds) <= 2 + 20 / ANNOUNCE_SECONDS

    simulate(world, story)
    assert_no_flood(announced)


@pytest.mark.long
def test_rounds_of_a_fraction_of_a_second_stay_under_the_rate_of_an_author(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small models on one machine: some twenty rounds a second, if nothing held them back."""
    published: dict[PeerId, list[float]] = defaultdict(list)
    publish = MemoryPeer.publish

    async def watched(peer: MemoryPeer, topic: str, data: bytes) -> None:
        published[peer.peer_id].append(trio.current_time())
        await publish(peer, topic, data)

    monkeypatch.setattr(MemoryPeer, "publish", watched)
    world = World(tmp_path, seed=94, latency_seconds=0.001)

    async def story(nursery: trio.Nursery) -> None:
        for name, seeds in (("a", []), ("b", ["a"])):
            await nursery.start(world.run, name, seeds, FastTrainer)
        await world.until(lambda: world.round("a") > 2)
        first = world.round("a")
        await trio.sleep(25.0)
        assert world.round("a") - first > 25 * 4

    simulate(world, story)
    assert_no_flood(published)
