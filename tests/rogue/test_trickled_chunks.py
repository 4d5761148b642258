"""A member that passes on its chunks one by one, each shortly before the others lose patience, or
keeps some averages: simulated rings, which take `RING_SECONDS` undisturbed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Observation, Removed, Send
from gossamer.protocol.rounds.commit import VOTE_SECONDS
from gossamer.protocol.rounds.ring.followed_ring import STALLED, FollowedRing
from gossamer.protocol.rounds.ring.link_rates import RingLinkRates, Verdict
from gossamer.protocol.rounds.ring.patience import AVERAGES_SECONDS, KEPT_SECONDS, LATE_STEP_SECONDS
from gossamer.protocol.wire.statements import Accusation, Signed, Statement, Vote
from tests.sim.simulator.driver import Driver
from tests.sim.simulator.links import Link
from tests.sim.simulator.scenario import CHUNK_BYTES
from tests.sim.simulator.turn import ROUND_SECONDS
from tests.sim.simulator.world import World
from tests.sim.test_fault_table import RING_SECONDS, TRAIN_SECONDS, calm
from tests.support.measured import measured

NUM_MEMBERS = 5
NUM_CHUNKS = 40
HOLD_SECONDS = 7.5
"""Below the 8 s for which the member before it waits when nothing happens."""

TRANSFER_SECONDS = 5.0
"""More than what a member sends takes on a line of 1 Mbit/s, with these small chunks."""

Delay = Callable[[int], float]
"""Time before a chunk is sent, by its number on this stream."""


def every_chunk(_number: int) -> float:
    return HOLD_SECONDS


def last_chunks(number: int) -> float:
    """Fast in all chunks but the last ones."""
    return HOLD_SECONDS if number > NUM_CHUNKS else 0.0


class Trickler:
    """Members that hold each chunk for a while, and judge and accuse nobody themselves."""

    def __init__(self, members: set[PeerId], delay: Delay) -> None:
        self._members = members
        self._delay = delay
        self._sent: dict[Link, int] = {}
        self._holding: set[Link] = set()
        self.put_out: list[tuple[PeerId, PeerId, str]] = []
        """Honest members that put a member out by themselves, that member, and the reason."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pump, observed, keeper = Link._pump, Driver.observed, FollowedRing._keeper
        judge, say = RingLinkRates.too_slow, RingLinkRates.to_say

        def held_pump(link: Link) -> None:
            waits = link._waits_for_inventory and link._chunks.inventory is None
            if link.source.peer_id not in self._members or waits:
                pump(link)
            elif link not in self._holding and not link._is_sending and link._queue:
                self._holding.add(link)
                self._sent[link] = self._sent.get(link, 0) + 1
                link.source.later(self._delay(self._sent[link]), lambda: send_one(link))

        def send_one(link: Link) -> None:
            rest = list(link._queue)[1:]
            while len(link._queue) > 1:
                link._queue.pop()
            pump(link)
            link._queue.extend(rest)
            self._holding.discard(link)
            if link.is_open:
                held_pump(link)

        def no_verdict(rates: RingLinkRates, *what: object) -> Verdict:
            if rates._me in self._members:
                return Verdict(None, "it judges nobody")
            return judge(rates, *what)  # type: ignore[arg-type]

        def no_word(
            rates: RingLinkRates, now: float, successor: PeerId
        ) -> tuple[int, float, float] | None:
            return None if rates._me in self._members else say(rates, now, successor)

        def no_keeper(ring: FollowedRing) -> PeerId | None:
            return None if ring._me in self._members else keeper(ring)

        def note(driver: Driver, observation: Observation) -> None:
            me = driver.peer.peer_id
            if isinstance(observation, Removed) and observation.detail == "found here":
                self.put_out.append((me, observation.peer, observation.reason))
            observed(driver, observation)

        monkeypatch.setattr(Link, "_pump", held_pump)
        monkeypatch.setattr(RingLinkRates, "too_slow", no_verdict)
        monkeypatch.setattr(RingLinkRates, "to_say", no_word)
        monkeypatch.setattr(FollowedRing, "_keeper", no_keeper)
        monkeypatch.setattr(Driver, "observed", note)


def world_of(num_members: int, num_chunks: int) -> World:
    scenario = calm(1, num_members)
    machines = tuple(
        replace(each, bytes_per_second=2 * num_chunks * CHUNK_BYTES / RING_SECONDS)
        for each in scenario.machines
    )
    return World(replace(scenario, machines=machines, num_chunks=num_chunks))


def ring_seconds(world: World, honest: Sequence[PeerId]) -> float:
    """Time until more than half of the honest members have done the first round's ring."""
    return statistics.median_high(world.checks.reached[each, 1] for each in honest) - TRAIN_SECONDS


def test_a_member_that_trickles_its_chunks_holds_a_ring_for_a_round_and_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one before it goes out with it: that one's predecessor cannot tell which of the two keeps
    what it lacks."""
    world = world_of(NUM_MEMBERS, NUM_CHUNKS)
    *honest, liar = world.order
    trickler = Trickler({liar}, every_chunk)
    trickler.patch(monkeypatch)
    world.run()
    seconds = ring_seconds(world, honest)
    measured(f"one of {NUM_MEMBERS} trickles: the ring takes {seconds:.0f} s")
    assert liar in {each for _, each, reason in trickler.put_out if reason == STALLED}
    held_seconds = ROUND_SECONDS + KEPT_SECONDS + LATE_STEP_SECONDS + TRANSFER_SECONDS
    assert seconds < held_seconds + 2 * RING_SECONDS


def test_a_member_that_trickles_its_last_chunks_is_put_out_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of(NUM_MEMBERS, NUM_CHUNKS)
    *honest, liar = world.order
    trickler = Trickler({liar}, last_chunks)
    trickler.patch(monkeypatch)
    world.run()
    seconds = ring_seconds(world, honest)
    measured(f"one of {NUM_MEMBERS} trickles its last chunks: the ring takes {seconds:.0f} s")
    assert {each for _, each, _ in trickler.put_out} == {liar}
    assert seconds < VOTE_SECONDS + 2 * RING_SECONDS


@pytest.mark.parametrize("num_members", [5, 8])
@pytest.mark.parametrize("votes", [True, False])
def test_a_member_that_keeps_the_averages_of_the_one_before_it_is_put_out_alone(
    votes: bool, num_members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These averages come back to nobody who would miss them, and the member that lacks them first
    looks like the one that keeps them."""
    world = world_of(num_members, 8)
    *honest, liar = world.order
    trickler = Trickler({liar}, lambda _number: 0.0)
    trickler.patch(monkeypatch)
    send, publish = Link.send, Driver.publish

    def keeps(link: Link, frame: Send) -> None:
        order = link.ring.members
        is_liars = link.source.peer_id == liar and frame.finisher is not None
        if not is_liars or order[frame.finisher or 0] != order[order.index(liar) - 1]:
            send(link, frame)

    def says(driver: Driver, signed: Signed, statement: Statement) -> None:
        is_liars = driver.peer.peer_id == liar
        if not (is_liars and isinstance(statement, Accusation | Vote)) or (
            votes and isinstance(statement, Vote)
        ):
            publish(driver, signed, statement)

    monkeypatch.setattr(Link, "send", keeps)
    monkeypatch.setattr(Driver, "publish", says)
    world.run()
    seconds = ring_seconds(world, honest)
    measured(f"one of {num_members} keeps averages, votes: {votes}: the ring takes {seconds:.0f} s")
    assert {each for me, each, _ in trickler.put_out if me != liar} == {liar}
    patience = AVERAGES_SECONDS if votes else VOTE_SECONDS
    assert seconds < patience + 2 * RING_SECONDS
