"""A round's driver with real threads: what its thread work may still do once the round is left."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import trio
import trio.testing
from structlog.testing import capture_logs

from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.network.identity import Identity, verify
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.rounds.dispatcher import TICK_SECONDS
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import Compute, Signer
from gossamer.protocol.rounds.commit import Parent, members_of
from gossamer.protocol.rounds.inventory import Average, Payload
from gossamer.protocol.rounds.ring.ring_parts import SumPart
from gossamer.protocol.rounds.roster import Ring, RoundRules
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Member
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.statements import Ready, Vote
from tests.support.contributions import contribution_of
from tests.support.gossip_listener import OpenListener
from tests.support.memory_transport import MemoryNetwork
from tests.support.round_host import HonestRound

RUN_ID, HEAD = digest_of(b"driver threads"), digest_of(b"head")
PLAN = ChunkPlan(32, 4)
PAYLOADS = SumPayloads(codec("fp32"))
WAIT_SECONDS = 20.0
"""Nothing here takes longer unless it is stuck."""


class Gate:
    """Stops a thread at one place until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def stop_here(self) -> None:
        self.reached.set()
        assert self.go_on.wait(WAIT_SECONDS), "the test has forgotten a thread"

    async def until_reached(self) -> None:
        assert await trio.to_thread.run_sync(lambda: self.reached.wait(WAIT_SECONDS))


class Alone(HonestRound):
    """A driver of a ring of one, whose outer steps are noted in the order in which they begin."""

    def __init__(self, transport: object, in_step: Callable[[], None] = lambda: None) -> None:
        identity = Identity.from_seed(bytes(32))
        self.me = identity.peer_id
        self.work = np.ones(PLAN.num_elements, np.float32)
        self.in_add: Callable[[], None] = lambda: None
        self.in_step = in_step
        self.taken: list[tuple[bytes, ...]] = []
        """Averages of the outer steps that were taken."""
        self.dropped: list[tuple[bytes, ...]] = []
        self.gossip = Gossip(
            transport,  # type: ignore[arg-type]
            identity,
            RUN_ID,
            OpenListener(),
            random.Random(0),
        )
        machine = Round(
            signer=Signer(self.me, RUN_ID, identity.sign),
            parent=Parent(HEAD, 0, 0, Ledger()),
            rules=RoundRules(PAYLOADS, PLAN.chunk_elements, PLAN.num_chunks, 0.1, 0.3, 1.0),
            verify=verify,
            now=trio.current_time(),
        )
        self.driver = RoundDriver(
            machine,
            transport=transport,  # type: ignore[arg-type]
            gossip=self.gossip,
            plan=PLAN,
            payloads=PAYLOADS,
            run_in_thread=trio.to_thread.run_sync,
            host=self,
        )

    def awaited(self) -> Awaited:
        """See `RoundHost`."""
        return Awaited([], [])

    async def reach(self, peer: PeerId) -> None:
        """See `RoundHost`."""
        raise AssertionError("there is no other member")

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """See `RoundHost`."""

    def contribution_to(self, ring: Ring) -> Contribution:
        """See `RoundHost`."""
        contribution = contribution_of(self.work, PLAN, PAYLOADS, ring, self.me, 1.0)
        assert isinstance(contribution, SumPart)
        add = contribution.add

        def slow_add(chunk: int, payload: Payload | None, mask: int) -> Payload:
            self.in_add()
            return add(chunk, payload, mask)

        contribution.add = slow_add  # type: ignore[method-assign]
        return contribution

    def outer_step(
        self,
        parent: Digest,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
        is_wanted: Callable[[], bool],
    ) -> Digest | None:
        """See `RoundHost`."""
        assert parent == HEAD
        self.in_step()
        wanted = is_wanted()
        (self.taken if wanted else self.dropped).append(tuple(map(bytes, averages)))
        return digest_of(*averages) if wanted else None

    def ready(self) -> None:
        self.driver.ready(Ready(1, 1, 1, HEAD, 100, 1, 0.0, 1.0, ()))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - threads set no event of trio's
            await trio.sleep(0.001)

    @property
    def has_voted(self) -> bool:
        return any(isinstance(what, Vote) for _, what in self.gossip.statement_store.statements())


def story(tell: Callable[[Alone, trio.Nursery], object]) -> None:
    """One driver in real time; it is ready."""

    async def main() -> None:
        network = MemoryNetwork()
        with trio.fail_after(WAIT_SECONDS):
            async with network.transport(Identity.from_seed(bytes(32))) as transport:
                alone = Alone(transport)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(alone.driver.run)
                    await trio.testing.wait_all_tasks_blocked()
                    alone.ready()
                    await tell(alone, nursery)  # type: ignore[misc]

    trio.run(main)


def test_the_driver_commits_alone() -> None:
    async def tell(alone: Alone, _nursery: trio.Nursery) -> None:
        await alone.driver.finished.wait()
        assert len(alone.taken) == 1
        assert alone.has_voted

    story(tell)


def test_chunks_of_a_ring_cause_no_ticks() -> None:
    """Each addition and each average did. A tick looks at the time and at who is there."""
    states: list[tuple[str, int]] = []
    num_added = 0

    async def tell(alone: Alone, _nursery: trio.Nursery) -> None:
        dispatcher = alone.driver.dispatcher
        tick = dispatcher.tick

        def noted(now: float, awaited: Awaited) -> None:
            states.append((dispatcher.machine.state, num_added))
            tick(now, awaited)

        def slowly() -> None:
            nonlocal num_added
            time.sleep(0.002)
            num_added += 1

        dispatcher.tick = noted  # type: ignore[method-assign]
        alone.in_add = slowly
        began = trio.current_time()
        await alone.driver.finished.wait()
        num_due = (trio.current_time() - began) / TICK_SECONDS
        assert num_added == PLAN.num_chunks
        # The first one of a ring, those that are due by the time, and one that meets a change.
        assert sum(state == "reducing" for state, _ in states) <= 2 + num_due

    story(tell)


def test_the_reason_for_gathering_is_logged_when_it_changes() -> None:
    async def tell(alone: Alone, _nursery: trio.Nursery) -> None:
        await alone.driver.finished.wait()

    with capture_logs() as lines:
        story(tell)
    reasons = [line["reason"] for line in lines if line["event"] == "gathering"]
    assert reasons[-1] == "organiser of attempt 0"
    assert len(reasons) == len(set(reasons))


def test_the_outer_step_of_a_round_that_was_left_is_neither_taken_nor_voted_for() -> None:
    gate = Gate()

    async def tell(alone: Alone, _nursery: trio.Nursery) -> None:
        alone.in_step = gate.stop_here
        await gate.until_reached()
        alone.driver.leave()
        gate.go_on.set()
        await alone.until(lambda: bool(alone.dropped or alone.taken))
        assert not alone.taken
        await trio.testing.wait_all_tasks_blocked()
        assert not alone.has_voted

    story(tell)


def test_of_several_outer_steps_only_the_newest_is_taken() -> None:
    """The order of the threads does not matter: an older step would overwrite the newer state."""
    gate = Gate()

    def averages(number: int) -> list[Average]:
        payload = PAYLOADS.coder.encode(np.full(PLAN.chunk_elements, number, np.float32))
        return [Average(1, digest_of(payload), 0, payload) for _ in range(PLAN.num_chunks)]

    async def tell(alone: Alone, _nursery: trio.Nursery) -> None:
        alone.in_step = gate.stop_here
        await gate.until_reached()
        num_steps, machine = 20, alone.driver.machine
        assert machine.ring is not None
        ring_id, head = machine.ring.ring_id, machine.head
        members = members_of(machine.ring, [1] * PLAN.num_chunks)
        alone.driver.dispatcher.apply(
            trio.current_time(),
            [
                Compute(ring_id, number, head, averages(number), members)
                for number in range(2, num_steps + 1)
            ],
        )
        await trio.testing.wait_all_tasks_blocked()
        gate.go_on.set()
        await alone.until(lambda: len(alone.taken) + len(alone.dropped) == num_steps)
        assert alone.taken == [tuple(average.payload for average in averages(num_steps))]
        alone.driver.leave()

    story(tell)


def test_the_work_of_a_round_may_change_once_no_thread_reads_it() -> None:
    gate = Gate()

    async def tell(alone: Alone, nursery: trio.Nursery) -> None:
        closed = trio.Event()

        async def close() -> None:
            await alone.driver.close_work()
            closed.set()

        alone.in_add = gate.stop_here
        await gate.until_reached()
        nursery.start_soon(close)
        await trio.sleep(0.05)
        assert not closed.is_set()
        gate.go_on.set()
        await closed.wait()
        alone.work[:] = np.nan  # a thread that still read it would send this
        alone.in_add = lambda: None
        alone.driver.leave()

    story(tell)
