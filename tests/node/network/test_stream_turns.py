"""The line of strangers' streams, in virtual time."""

from __future__ import annotations

from collections import Counter

import trio
import trio.testing

from gossamer.node.network.stream_turns import STRANGERS_RATE, StreamTurns


def served_in(seconds: float, num_connections: dict[str, int]) -> Counter[str]:
    """Returns how many streams of each network are served; each connection opens the next one at
    once."""
    served: Counter[str] = Counter()

    async def open_without_end(turns: StreamTurns, network: str) -> None:
        while True:
            await turns.turn(network)
            served[network] += 1
            await trio.lowlevel.checkpoint()

    async def case() -> None:
        turns = StreamTurns()
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for network, number in num_connections.items():
                    for _ in range(number):
                        nursery.start_soon(open_without_end, turns, network)

    trio.run(case, clock=trio.testing.MockClock(autojump_threshold=0))
    return served


def test_strangers_share_a_rate_however_many_they_are() -> None:
    most = STRANGERS_RATE.burst + 4 * STRANGERS_RATE.per_second
    for number in (1, 50):
        (served,) = served_in(4.0, {"198.51.100.0/24": number}).values()
        assert most - number <= served <= most + number


def test_a_network_with_many_identities_gets_no_more_than_another() -> None:
    served = served_in(20.0, {"198.51.100.0/24": 100, "203.0.113.0/24": 1})
    assert served["203.0.113.0/24"] > 0.45 * 20 * STRANGERS_RATE.per_second


def test_a_line_that_is_empty_again_keeps_nothing_of_its_networks() -> None:
    async def case() -> None:
        turns = StreamTurns()
        for number in range(int(STRANGERS_RATE.burst)):
            before = trio.current_time()
            await turns.turn(str(number))
            assert trio.current_time() == before, "a swarm that starts at once waits for nothing"
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(turns.turn, str(number))
        assert not turns._networks

    trio.run(case, clock=trio.testing.MockClock(autojump_threshold=0))
