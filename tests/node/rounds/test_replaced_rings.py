"""A ring is replaced while work for it is about to begin."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import trio

from gossamer.node.modes.pending_work import _FinishedRecords
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import payloads_named
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import Contribute, FinishAverage, RingEvent, Signer
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.ring.ring_parts import tree_of
from gossamer.protocol.rounds.roster import Ring, RoundRules
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chunk_plan import ChunkPlan
from tests.support.builders import HEAD, RUN_ID, peers, ring_of, sign_as, verify


def records() -> RecordPayloads:
    found = payloads_named("fp32", trust="open")
    assert isinstance(found, RecordPayloads)
    return found


PLAN = ChunkPlan(4096, 4096)
PAYLOADS = records()
MEMBERS = peers(3)
ME = MEMBERS[0]
WORK = np.random.default_rng(0).standard_normal(4096).astype(np.float32)

T = TypeVar("T")


class Told:
    """Takes the place of the dispatcher, and notes what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def ring_event(self, _now: float, _ring_id: Digest, event: RingEvent) -> None:
        self.events.append(type(event).__name__)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_more: self.events.append(name)


async def at_once(function: Callable[[], T]) -> T:
    return function()


def a_driver() -> tuple[RoundDriver, Told]:
    tree = tree_of(WORK, PLAN, PAYLOADS)

    def contribution_to(ring: Ring) -> object:
        return _FinishedRecords(WORK, PLAN, PAYLOADS, tree, ring.members.index(ME), 1.0)

    host: Any = SimpleNamespace(contribution_to=contribution_to)
    transport: Any = SimpleNamespace(peer_id=ME, listen=lambda _members: lambda: None)
    gossip: Any = None
    run_in_thread: Any = at_once
    machine = Round(
        signer=Signer(ME, RUN_ID, sign_as(ME)),
        parent=Parent(HEAD, 4, 1000, Ledger()),
        rules=RoundRules(PAYLOADS, PLAN.chunk_elements, PLAN.num_chunks, 20.0, 0.3, 5.0),
        verify=verify,
        now=0.0,
    )
    driver = RoundDriver(
        machine,
        transport=transport,
        gossip=gossip,
        plan=PLAN,
        payloads=PAYLOADS,
        run_in_thread=run_in_thread,
        host=host,
    )
    told = Told()
    driver.dispatcher = driver._own_part._dispatcher = told  # type: ignore[assignment]
    return driver, told


def test_work_for_a_ring_has_the_contribution_to_that_ring() -> None:
    """With the one to the next ring this peer's record has the place that an honest member's record
    has already, and that member would be blamed."""
    one, two = ring_of(MEMBERS, attempt=1), ring_of(MEMBERS, attempt=0)
    place = two.members.index(ME)
    other: PeerId = one.members[place]
    assert other != ME, "the rings place this peer differently"
    proof = bytes(480)
    payload = add_record(None, place, PAYLOADS.encode(WORK) + proof)

    async def story() -> list[str]:
        driver, told = a_driver()
        async with trio.open_nursery() as nursery:
            driver._nursery = nursery
            driver.begin_ring(one)
            driver.contribute(one.ring_id, Contribute(0, payload, other, 1 << place))
            driver.begin_ring(two)
        return told.events

    assert trio.run(story) == ["Contributed"]


def test_an_average_for_a_ring_has_the_contribution_to_that_ring() -> None:
    one, two = ring_of(MEMBERS, attempt=1), ring_of(MEMBERS, attempt=0)
    used: list[object] = []

    async def story() -> list[str]:
        driver, told = a_driver()
        async with trio.open_nursery() as nursery:
            driver._nursery = nursery
            driver.begin_ring(one)
            first: Any = driver.contribution

            def finish_average(*_given: object) -> bytes:
                used.append(first)
                return b"average"

            first.finish_average = finish_average
            driver.finish_average(one.ring_id, FinishAverage(0, b"", 0b111))
            driver.begin_ring(two)
        return told.events

    assert trio.run(story) == ["AverageFinished"]
    assert len(used) == 1
