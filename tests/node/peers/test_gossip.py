"""What is published, what waits for a comparison of statements, and how often those take place."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.peers.gossip import (
    APART_SECONDS,
    DROPPED_SECONDS,
    PUBLISHING_RING_MAX,
    RECONCILE_SECONDS,
    Gossip,
)
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import Announce, Signed, Statement
from tests.support.builders import RUN_ID, announce
from tests.support.gossip_listener import OpenListener
from tests.support.memory_transport import MemoryNetwork, run_simulated


class Listener(OpenListener):
    """Notes what it hears."""

    apart = False

    def __init__(self) -> None:
        self.heard: list[Statement] = []
        self.commits: list[Commit] = []

    def heard_statement(self, signed: Signed, statement: Statement) -> None:
        self.heard.append(statement)

    def heard_commit(self, commit: Commit) -> bool:
        self.commits.append(commit)
        return True

    def is_apart(self) -> bool:
        return self.apart


def with_two(story: Callable[[list[Gossip], list[Listener]], Awaitable[None]]) -> None:
    """Runs a story with the gossip of two connected peers."""

    async def main() -> None:
        network, listeners = MemoryNetwork(), [Listener(), Listener()]
        async with AsyncExitStack() as stack:
            gossips, transports = [], []
            for number, listener in enumerate(listeners):
                identity = Identity.from_seed(digest_of(b"%d" % number))
                transport = await stack.enter_async_context(network.transport(identity))
                randomness = random.Random(number)
                gossip = Gossip(transport, identity, RUN_ID, listener, randomness)
                gossip.start()
                gossips.append(gossip)
                transports.append(transport)
            await transports[0].connect(transports[1].addresses()[0])
            async with trio.open_nursery() as nursery:
                for gossip in gossips:
                    nursery.start_soon(gossip.run)
                await story(gossips, listeners)
                nursery.cancel_scope.cancel()

    run_simulated(main)


def test_what_is_kept_comes_with_a_comparison_and_what_is_said_at_once() -> None:
    said, kept = announce(sequence=1), announce(sequence=2)

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        gossips[0].say(said)
        await trio.sleep(0.1)
        assert listeners[1].heard == [said]
        gossips[0].keep(kept)
        await trio.sleep(0.1)
        assert listeners[1].heard == [said]
        await trio.sleep(2 * RECONCILE_SECONDS)
        assert listeners[1].heard == [said, kept]

    with_two(story)


@pytest.mark.parametrize(("apart", "seconds"), [(False, RECONCILE_SECONDS), (True, APART_SECONDS)])
def test_stores_are_compared_more_often_by_a_peer_that_lacks_a_connection(
    monkeypatch: pytest.MonkeyPatch, apart: bool, seconds: float
) -> None:
    monkeypatch.setattr(Listener, "apart", apart)
    asked: list[PeerId] = []
    reconcile = Gossip.reconcile

    async def counted(gossip: Gossip, peer: PeerId) -> None:
        asked.append(peer)
        await reconcile(gossip, peer)

    monkeypatch.setattr(Gossip, "reconcile", counted)

    async def story(_gossips: list[Gossip], _listeners: list[Listener]) -> None:
        await trio.sleep(100)

    with_two(story)
    assert len(asked) == pytest.approx(2 * 100 / seconds, rel=0.15)


@pytest.mark.parametrize("num_members", [PUBLISHING_RING_MAX, PUBLISHING_RING_MAX + 1])
def test_the_commit_record_of_a_large_ring_is_not_published(num_members: int) -> None:
    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        roster = gossips[0].say(announce())
        gossips[0].publish_commit(Commit(b"header", roster, ()), num_members)
        await trio.sleep(1)
        assert len(listeners[1].commits) == (num_members <= PUBLISHING_RING_MAX)

    with_two(story)


def test_a_comparison_brings_nothing_that_is_there() -> None:
    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        gossips[0].say(announce(sequence=3))
        await trio.sleep(5)
        heard = [each for each in listeners[1].heard if isinstance(each, Announce)]
        assert len(heard) == 1
        store = gossips[0].statement_store
        assert store.missing_from(gossips[1].statement_store.tags()) == []

    with_two(story)


def test_what_was_dropped_is_not_sent_again_by_who_holds_it_still() -> None:
    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        gossips[0].say(announce(sequence=3))
        await trio.sleep(2 * RECONCILE_SECONDS)
        gossips[1].statement_store.keep(lambda _signed, _statement: False)
        await trio.sleep(DROPPED_SECONDS - 1)
        assert len(listeners[1].heard) == 1
        # It was dropped by mistake, as after a change to another head and back.
        await trio.sleep(1 + 3 * RECONCILE_SECONDS)
        assert len(listeners[1].heard) == 2

    with_two(story)
