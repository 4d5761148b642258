"""When the proof of an announced head is asked for, and of whom."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gossamer.node.base.orders import Orders
from gossamer.node.heads.prover import (
    ASKED_MAX,
    LOOK_SECONDS,
    NEXT_SECONDS,
    REST_SECONDS,
    SLOW_SECONDS,
    HeadProver,
)
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.wire.statements import Announce
from tests.support.builders import announce, peer, peers
from tests.support.memory_transport import run_simulated

HEAD = digest_of(b"announced")
ROUND = 5
"""Of the committed head."""


def swarm_of(
    me: PeerId, living: Callable[[], dict[PeerId, Announce]], members: Collection[PeerId] = ()
) -> Any:
    """What the prover sees of the other peers. `members` have standing."""
    store = SimpleNamespace(has_standing=members.__contains__)
    return SimpleNamespace(me=me, living=living, gossip=SimpleNamespace(statement_store=store))


def first_asked(me: PeerId, round_number: int) -> tuple[float, PeerId]:
    """Returns when a node asks for a head that all others announce, and whom it asks first."""
    asked: list[tuple[float, PeerId]] = []

    async def learn(head: Digest, holder: PeerId) -> None:
        assert head == HEAD
        asked.append((trio.current_time(), holder))
        await trio.sleep(1.0)

    said = announce(round=round_number, head=HEAD)
    chain = SimpleNamespace(
        is_whole=lambda _head: False,
        entry=lambda _head: SimpleNamespace(tokens_total=said.tokens_total),
    )
    committed: Any = SimpleNamespace(chain=chain, entry=SimpleNamespace(round=ROUND))
    swarm = swarm_of(me, lambda: dict.fromkeys(peers(9)[1:], said))
    sync: Any = SimpleNamespace(learn=learn)

    async def main() -> None:
        prover = HeadProver(committed, sync, swarm, Orders())
        began = trio.current_time()
        with trio.move_on_after(NEXT_SECONDS + 0.3):
            await prover.run()
        assert len(asked) == 1, "one peer is asked for a head that many announce"
        asked[0] = (asked[0][0] - began, asked[0][1])

    run_simulated(main)
    return asked[0]


@pytest.mark.parametrize(
    ("round_number", "seconds"), [(ROUND + 1, NEXT_SECONDS), (ROUND + 2, 0.0), (ROUND, 0.0)]
)
def test_the_head_after_the_own_one_is_asked_for_a_little_later(
    round_number: int, seconds: float
) -> None:
    assert first_asked(peer(0), round_number)[0] == pytest.approx(seconds, abs=0.01)


def test_not_all_ask_the_same_peer() -> None:
    assert len({first_asked(peer(number), ROUND + 2)[1] for number in range(20, 30)}) > 1


@pytest.mark.parametrize(("num_slow", "is_member"), [(ASKED_MAX + 2, False), (100, True)])
def test_peers_that_answer_slowly_do_not_keep_an_honest_one_from_being_asked(
    num_slow: int, *, is_member: bool
) -> None:
    """More of them than are asked at a time announced heads of their own before it came. Of any
    number of strangers none is asked before a member."""
    honest, *slow = peers(num_slow + 2)[1:]
    said = {peer: announce(round=100, head=digest_of(peer.encode())) for peer in slow}
    asked: set[PeerId] = set()
    is_asked = trio.Event()

    async def learn(_head: Digest, holder: PeerId) -> None:
        asked.add(holder)
        if holder == honest:
            is_asked.set()
        await trio.sleep_forever()

    chain = SimpleNamespace(is_whole=lambda _head: False)
    committed: Any = SimpleNamespace(chain=chain, entry=SimpleNamespace(round=ROUND))
    swarm = swarm_of(peer(0), lambda: said, [honest] if is_member else [])

    async def main() -> None:
        prover = HeadProver(committed, SimpleNamespace(learn=learn), swarm, Orders())  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prover.run)
            await trio.sleep(5.0)
            said[honest] = announce(round=100, head=HEAD)
            prover.wake()
            with trio.move_on_after((1 if is_member else 2) * SLOW_SECONDS):
                await is_asked.wait()
            nursery.cancel_scope.cancel()
        assert len(asked) >= ASKED_MAX
        assert honest in asked

    run_simulated(main)


@pytest.mark.parametrize(("is_known", "seconds"), [(True, REST_SECONDS), (False, LOOK_SECONDS)])
def test_heads_are_looked_at_often_only_while_one_of_them_is_not_known(
    is_known: bool, seconds: float
) -> None:
    looked: list[float] = []
    said = announce(round=ROUND, head=HEAD)

    def living() -> dict[PeerId, Announce]:
        looked.append(trio.current_time())
        return dict.fromkeys(peers(9)[1:], said)

    async def learn(_head: Digest, _holder: PeerId) -> None:
        await trio.sleep_forever()

    chain = SimpleNamespace(is_whole=lambda _head: is_known)
    committed: Any = SimpleNamespace(chain=chain, entry=SimpleNamespace(round=ROUND))
    swarm = swarm_of(peer(0), living)

    async def main() -> None:
        prover = HeadProver(committed, SimpleNamespace(learn=learn), swarm, Orders())  # type: ignore[arg-type]
        with trio.move_on_after(100):
            await prover.run()

    run_simulated(main)
    assert len(looked) == pytest.approx(100 / seconds, rel=0.3)
