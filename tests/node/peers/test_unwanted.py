"""What a node refuses is not sent to it again at once, and comes again later."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import trio

from gossamer.node.network.identity import Identity
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.peers.statements.store_comparison import (
    REFUSED_FREE_BYTES,
    REFUSED_MAX,
    REFUSED_SECONDS,
    Unwanted,
)
from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.policy.statement_store import REPLY_BYTES_MAX, StatementStore
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import Roster, Signed, Statement
from tests.support.builders import HEAD, RUN_ID, announce, peer, peers, ready, sealed
from tests.support.gossip_listener import OpenListener
from tests.support.memory_transport import MemoryNetwork, run_simulated

NEAR, FAR = (Identity.from_seed(digest_of(name)) for name in (b"near", b"far"))
"""The peer that has the statements, and one that is connected to it alone."""


class Picky(OpenListener):
    """Takes one statement and no other."""

    def __init__(self) -> None:
        self.heard: list[Statement] = []
        self.wanted: Statement | None = None

    def admits(self, author: PeerId, statement: Statement) -> bool:
        return statement == self.wanted

    def heard_statement(self, signed: Signed, statement: Statement) -> bool:
        self.heard.append(statement)
        return True


class Asker:
    """A node that compares its store with that of a neighbour when it is told to."""

    def __init__(self, gossip: Gossip, neighbour: Gossip, listener: Picky) -> None:
        self.gossip, self.listener = gossip, listener
        self._neighbour = neighbour
        self.came: list[list[Signed]] = []
        """What each comparison brought."""

    def hold(self, statement: Statement, author: Identity = FAR) -> Signed:
        """The neighbour holds a statement."""
        signed = seal(statement, author.peer_id, RUN_ID, author.sign)
        assert self._neighbour.statement_store.post(signed, statement)
        return signed

    async def compare(self) -> list[Signed]:
        await self.gossip.reconcile(NEAR.peer_id)
        return self.came[-1]


def with_asker(story: Callable[[Asker, MemoryNetwork], Awaitable[None]]) -> None:
    async def main() -> None:
        network, listener = MemoryNetwork(), Picky()
        mine = Identity.from_seed(digest_of(b"asker"))
        async with AsyncExitStack() as stack:
            here = await stack.enter_async_context(network.transport(mine))
            there = await stack.enter_async_context(network.transport(NEAR))
            gossip = Gossip(here, mine, RUN_ID, listener, random.Random(1))
            neighbour = Gossip(there, NEAR, RUN_ID, OpenListener(), random.Random(2))
            neighbour.start()
            await here.connect(there.addresses()[0])
            asker = Asker(gossip, neighbour, listener)
            take_all = gossip._comparison._take_all

            async def noted(peer_id: PeerId, statements: list[Signed]) -> None:
                asker.came.append(statements)
                await take_all(peer_id, statements)

            gossip._comparison._take_all = noted  # type: ignore[assignment,method-assign]
            await story(asker, network)

    run_simulated(main)


MEMBERS = tuple(sealed(member, ready()) for member in peers(250))


def roster(attempt: int) -> Roster:
    """Of some 60 KiB."""
    return Roster(5, HEAD, attempt, MEMBERS, "fp32", 1024)


def test_what_is_refused_does_not_come_with_the_next_comparison() -> None:
    async def story(asker: Asker, _network: MemoryNetwork) -> None:
        held = [asker.hold(roster(attempt), NEAR) for attempt in range(3)]
        assert await asker.compare() == held
        assert await asker.compare() == []
        await trio.sleep(REFUSED_SECONDS - 1)
        assert await asker.compare() == []
        await trio.sleep(1)
        assert await asker.compare() == held, "it may be taken now"

    with_asker(story)


def test_what_is_refused_keeps_nothing_else_out() -> None:
    """To the neighbour all peers are members."""

    async def story(asker: Asker, _network: MemoryNetwork) -> None:
        num_bytes = sum(len(asker.hold(roster(attempt)).payload) for attempt in range(12))
        assert num_bytes > 2 * REPLY_BYTES_MAX
        asker.listener.wanted = roster(12)
        asker.hold(roster(12))
        for _ in range(4):
            await asker.compare()
        assert asker.listener.heard == [roster(12)]

    with_asker(story)


def test_a_few_short_statements_come_again_at_once() -> None:
    """Their author may be let in, or announce itself, a moment later."""

    async def story(asker: Asker, _network: MemoryNetwork) -> None:
        said = asker.hold(announce())
        large = asker.hold(roster(0))
        assert await asker.compare() == [said, large]
        asker.listener.wanted = announce()
        assert await asker.compare() == [said]
        assert asker.listener.heard == [announce()]

    with_asker(story)


def test_many_short_statements_do_not_come_again_at_once() -> None:
    async def story(asker: Asker, _network: MemoryNetwork) -> None:
        for number in range(300):
            asker.hold(ready(head=digest_of(number.to_bytes(2, "big"))), NEAR)
        assert len(await asker.compare()) == 300
        again = await asker.compare()
        num_bytes = sum(len(one.author) + len(one.payload) + len(one.signature) for one in again)
        assert 0.9 * REFUSED_FREE_BYTES < num_bytes <= REFUSED_FREE_BYTES

    with_asker(story)


def test_what_was_refused_of_a_far_author_comes_when_it_is_connected() -> None:
    """What a peer without a connection says counts less."""

    async def story(asker: Asker, network: MemoryNetwork) -> None:
        refused = asker.hold(roster(0))
        assert await asker.compare() == [refused]
        assert await asker.compare() == []
        async with network.transport(FAR) as far:
            await far.connect(network.addresses_of(asker.gossip._identity.peer_id)[0])
            assert await asker.compare() == [refused]
            assert await asker.compare() == [], "it is refused of the connected peer, too"

    with_asker(story)


def test_the_number_of_refused_statements_is_bounded() -> None:
    async def main() -> None:
        unwanted = Unwanted(StatementStore(), lambda: ())
        refused = [sealed(peer(1), ready(sequence=n)) for n in range(2 * REFUSED_MAX)]
        large = [Signed(each.author, each.payload + bytes(limits.KIB), b"") for each in refused]
        for each in large:
            unwanted.note_refused([each] * 9)  # more than may come again
        assert unwanted.tags() == [each.digest[:8] for each in large[-REFUSED_MAX:]]

    run_simulated(main)
