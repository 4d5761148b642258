"""Drivers of one ring in virtual time, with faults in the middle of it: how long the others take.

Four members (or five), 16 MB and lines of 4 MB/s from each to each: 6 s undisturbed. The same
faults with real processes are in tests/chaos.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
import trio

from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import Transport
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.rounds.dispatcher import SILENT_SECONDS
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import Committed, Observation, Removed, Signer
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.rounds.roster import Ring, RoundRules
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL
from gossamer.protocol.wire.statements import Ready, Signed, Statement
from tests.support import jumping_clock
from tests.support.contributions import contribution_of
from tests.support.gossip_listener import OpenListener
from tests.support.memory_peer import MemoryPeer
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.node_world import in_no_thread
from tests.support.round_host import HonestRound, serve_ring_of
from tests.support.signatures_once import signatures_checked_once

if TYPE_CHECKING:
    from trio_typing import TaskStatus

RUN_ID = digest_of(b"ring faults")
HEAD = digest_of(b"head")
PLAN = ChunkPlan(4_000_000, 62_500)
PAYLOADS = SumPayloads(codec("fp32"))
LINE = 4_000_000.0
UNDISTURBED_SECONDS = 6.5
"""2 (N-1)/N of 16 MB at 4 MB/s are 6 s; the rest is gathering the ring and the last hops."""


@dataclass
class Member(OpenListener, HonestRound):
    """One peer with its driver."""

    identity: Identity
    transport: Transport
    driver: RoundDriver | None = None
    committed_seconds: float | None = None
    others: Callable[[], list[PeerId]] = list
    removals: list[tuple[PeerId, str]] = field(default_factory=list)
    limit: float = math.inf

    def begin(self, others: Callable[[], list[PeerId]], nursery: trio.Nursery) -> None:
        me = self.identity.peer_id
        gossip = Gossip(
            self.transport,
            self.identity,
            RUN_ID,
            self,
            random.Random(0),
        )
        self.transport.handle(
            RING_PROTOCOL, lambda stream: serve_ring_of(stream, RUN_ID, lambda: self.driver)
        )
        gossip.start()
        nursery.start_soon(gossip.run)
        machine = Round(
            signer=Signer(me, RUN_ID, self.identity.sign),
            parent=Parent(HEAD, 0, 0, Ledger()),
            rules=RoundRules(PAYLOADS, PLAN.chunk_elements, PLAN.num_chunks, 10.0, 0.3, 2.5),
            verify=verify,
            now=trio.current_time(),
        )
        self.others = others
        self.driver = RoundDriver(
            machine,
            transport=self.transport,
            gossip=gossip,
            plan=PLAN,
            payloads=PAYLOADS,
            run_in_thread=in_no_thread,
            host=self,
        )
        nursery.start_soon(self.driver.run)
        nursery.start_soon(self._note_commit, self.driver)

    def ready(self) -> None:
        assert self.driver is not None
        self.driver.ready(Ready(1, 1, 1, HEAD, 100, 1, 0.0, 1.0, ()))

    @property
    def committed(self) -> Committed:
        assert self.driver is not None
        assert self.driver.committed is not None, "not committed"
        return self.driver.committed

    def is_done(self, removed: set[PeerId]) -> bool:
        """Returns whether the round is committed, or the member is out of the ring and left to
        fetch the round from the others."""
        return self.committed_seconds is not None or self.identity.peer_id in removed

    async def _note_commit(self, driver: RoundDriver) -> None:
        await driver.finished.wait()
        self.committed_seconds = trio.current_time()

    def awaited(self) -> Awaited:
        """See `RoundHost`."""
        return Awaited(self.others(), [])

    def contribution_to(self, ring: Ring) -> Contribution:
        """See `RoundHost`."""
        work = np.ones(PLAN.num_elements, np.float32)
        return contribution_of(work, PLAN, PAYLOADS, ring, self.identity.peer_id, 1.0)

    def outer_step(
        self,
        parent: Digest,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[object],
        is_wanted: Callable[[], bool],
    ) -> Digest:
        """See `RoundHost`."""
        return digest_of(*averages)

    def observed(self, observation: Observation) -> None:
        """See `Observer`."""
        if isinstance(observation, Removed):
            self.removals.append((observation.peer, observation.reason))

    def upload_limit(self) -> float:
        """See `RoundHost`."""
        return self.limit

    async def reach(self, peer: PeerId) -> None:
        """See `RoundHost`."""
        if peer not in self.transport.peers():
            await self.transport.connect_any(peer, ())

    def heard_statement(self, signed: Signed, statement: Statement) -> bool:
        if self.driver is not None:
            self.driver.heard(signed, statement)
        return True

    def heard_commit(self, commit: Commit) -> bool:
        if self.driver is not None and self.driver.is_running:
            self.driver.commit_received(commit)
        return True


class Lab:
    """A ring at work."""

    def __init__(self, network: MemoryNetwork, members: dict[PeerId, Member]) -> None:
        self.network = network
        self.members = members
        self.began_seconds = trio.current_time()
        ring = next(iter(members.values())).driver
        assert ring is not None
        assert ring.machine.ring is not None
        self.order = ring.machine.ring.members

    def set_line(self, peer: PeerId, rate: float, *, up: bool = True, down: bool = True) -> None:
        for other in self.members:
            if up:
                self.network.link(peer, other).bytes_per_second = rate
            if down:
                self.network.link(other, peer).bytes_per_second = rate

    def kill(self, *peers: PeerId) -> None:
        for peer in peers:
            self.network.kill(peer)
            driver = self.members.pop(peer).driver
            assert driver is not None
            driver.cancel()

    async def all_committed(self) -> float:
        """Seconds from the ring's beginning until the last of those left in it has committed."""
        await self.until(lambda: all(m.is_done(self.removed) for m in self.members.values()))
        times = [m.committed_seconds for m in self.members.values() if m.committed_seconds]
        assert len({m.committed.proposal.header.digest for m in self.in_ring()}) == 1
        return max(times) - self.began_seconds

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks a thousand times a second of virtual time."""
        with trio.fail_after(120):
            await jumping_clock.until(condition, 0.001)

    def has_committed(self, peer: PeerId) -> bool:
        return self.members[peer].committed_seconds is not None

    def in_ring(self) -> list[Member]:
        return [member for peer, member in self.members.items() if peer not in self.removed]

    @property
    def removed(self) -> set[PeerId]:
        return {peer for peer, _ in self.reasons()}

    def contributors(self) -> list[set[PeerId]]:
        """The contributors of each chunk."""
        averages = self.in_ring()[0].committed.averages
        return [
            {peer for place, peer in enumerate(self.order) if average.mask >> place & 1}
            for average in averages
        ]

    def reasons(self) -> set[tuple[PeerId, str]]:
        return {removal for member in self.members.values() for removal in member.removals}


def run_ring(story: Callable[[Lab], object], num_members: int = 4) -> None:
    async def main() -> None:
        network = MemoryNetwork(latency_seconds=0.01)
        identities = [Identity.from_seed(bytes([n]) * 32) for n in range(1, num_members + 1)]
        async with trio.open_nursery() as nursery:
            members: dict[PeerId, Member] = {}
            for identity in identities:
                transport = await nursery.start(_run_transport, network, identity)
                members[identity.peer_id] = Member(identity, transport)
            peers = sorted(members)
            for peer in peers:
                for other in peers:
                    network.link(peer, other).bytes_per_second = LINE
            for place, peer in enumerate(peers):
                others = [other for other in peers if other != peer]
                members[peer].begin(lambda others=others: others, nursery)  # type: ignore[misc]
                for other in peers[:place]:
                    await members[peer].transport.connect(members[other].transport.addresses()[0])
            for peer in peers:
                members[peer].ready()
            for member in members.values():
                assert member.driver is not None
                while member.driver.machine.ring is None:
                    await member.driver.changed.wait()
            await story(Lab(network, members))  # type: ignore[misc]
            nursery.cancel_scope.cancel()

    with signatures_checked_once():
        run_simulated(main)


async def _run_transport(
    network: MemoryNetwork,
    identity: Identity,
    task_status: TaskStatus[Transport] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with network.transport(identity) as transport:
        task_status.started(transport)
        await trio.sleep_forever()


def test_undisturbed() -> None:
    async def story(lab: Lab) -> None:
        assert await lab.all_committed() < UNDISTURBED_SECONDS
        assert all(len(members) == 4 for members in lab.contributors())
        assert not lab.reasons()

    run_ring(story)


def test_members_listen_to_all_of_their_ring_while_it_lasts() -> None:
    """The silence of a member counts from 6 s on, so signs of life have to come often."""

    def listened(lab: Lab) -> dict[PeerId, Counter[PeerId]]:
        peers = {peer: member.transport for peer, member in lab.members.items()}
        return {peer: each.listened for peer, each in peers.items() if isinstance(each, MemoryPeer)}

    async def story(lab: Lab) -> None:
        assert listened(lab) == {
            peer: Counter(other for other in lab.order if other != peer) for peer in lab.members
        }
        await lab.all_committed()
        await lab.until(lambda: not any(listened(lab).values()))

    run_ring(story)


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.0, 3.5, 5.0, 5.9])
def test_one_is_killed(seconds: float) -> None:
    async def story(lab: Lab) -> None:
        await trio.sleep(seconds)
        lab.kill(lab.order[1])
        assert await lab.all_committed() < UNDISTURBED_SECONDS + 2.0
        assert all(members >= set(lab.members) for members in lab.contributors())

    run_ring(story)


@pytest.mark.parametrize("num_killed", [1, 2])
def test_a_member_that_has_committed_delivers_what_the_dead_were_to_pass_on(
    num_killed: int,
) -> None:
    """The line before the last member has half the others' rate, so its averages come later."""

    async def story(lab: Lab) -> None:
        *others, last = lab.order
        lab.network.link(others[-1], last).bytes_per_second = LINE / 2
        await lab.until(lambda: all(map(lab.has_committed, others)))
        assert not lab.has_committed(last)
        lab.kill(*others[-num_killed:])
        killed = trio.current_time()
        await lab.all_committed()
        seconds = lab.members[last].committed_seconds
        assert seconds is not None
        assert seconds < killed + 2.0
        assert not {last, *lab.members} & lab.removed
        assert all(len(members) == 5 for members in lab.contributors())

    run_ring(story, num_members=5)


def test_a_ring_is_over_when_all_that_are_left_have_voted() -> None:
    async def story(lab: Lab) -> None:
        *others, last = lab.order
        lab.network.link(others[-1], last).bytes_per_second = LINE / 2
        await lab.until(lambda: all(map(lab.has_committed, others)))
        drivers = [member.driver for member in lab.members.values()]
        machines = [driver.machine for driver in drivers if driver is not None]
        assert not any(machine.is_over for machine in machines)
        await lab.all_committed()
        await trio.sleep(0.1)  # votes are on their way for 0.01 s
        assert all(machine.is_over for machine in machines)

    run_ring(story)


@pytest.mark.parametrize("seconds", [0.1, 2.0, 3.5, 5.0])
def test_two_neighbours_are_killed(seconds: float) -> None:
    async def story(lab: Lab) -> None:
        await trio.sleep(seconds)
        lab.kill(lab.order[1], lab.order[2])
        assert await lab.all_committed() < UNDISTURBED_SECONDS + 2.0
        assert all(members >= set(lab.members) for members in lab.contributors())

    run_ring(story, num_members=5)


@pytest.mark.parametrize("num_silent", [1, 2])
def test_neighbours_fall_silent(num_silent: int) -> None:
    async def story(lab: Lab) -> None:
        await trio.sleep(2.0)
        silent = lab.order[1 : 1 + num_silent]
        for peer in silent:
            for other in lab.order:
                if other != peer:
                    lab.network.cut(peer, other)
        for peer in silent:
            del lab.members[peer]
        assert await lab.all_committed() < UNDISTURBED_SECONDS + SILENT_SECONDS + 2.0
        assert all(members >= set(lab.members) for members in lab.contributors())

    run_ring(story, num_members=5)


@pytest.mark.parametrize(("up", "down"), [(True, True), (True, False), (False, True)])
def test_one_has_a_twentieth_of_the_line(up: bool, down: bool) -> None:
    async def story(lab: Lab) -> None:
        slow = lab.order[2]
        lab.set_line(slow, LINE / 20, up=up, down=down)
        member = lab.members.pop(slow)
        seconds = await lab.all_committed()
        assert seconds < 1.5 * UNDISTURBED_SECONDS
        assert slow in {peer for peer, reason in lab.reasons() if reason == "slow"}
        if down:
            # Its predecessor sees a slow line and its own predecessor none: no other is blamed.
            assert lab.removed == {slow}
            assert all(members >= set(lab.members) for members in lab.contributors())
        else:
            # It blames its successor first, and itself when the next one looks slow as well.
            assert lab.removed == {slow, lab.order[3]}
        assert member.driver is not None
        assert member.driver.machine.hints.found_slow == {slow}

    run_ring(story)


@pytest.mark.parametrize("seconds", [1.0, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("up", [True, False])
def test_the_line_of_one_falls_to_a_twentieth(up: bool, seconds: float) -> None:
    async def story(lab: Lab) -> None:
        await trio.sleep(seconds)
        slow = lab.order[2]
        lab.set_line(slow, LINE / 20, up=up)
        del lab.members[slow]
        assert await lab.all_committed() < 1.5 * UNDISTURBED_SECONDS
        assert lab.reasons() == {(slow, "slow")}
        assert all(members >= set(lab.members) for members in lab.contributors())

    run_ring(story)


@pytest.mark.parametrize("seconds", [1.0, 2.0, 3.0])
def test_the_line_of_one_falls_in_one_direction(seconds: float) -> None:
    """The line falls within the first seconds. If it fell later, the others would have all parts of
    the slow member, and would commit without the one that waits for it. A node fetches such a
    round; these members do not."""

    async def story(lab: Lab) -> None:
        await trio.sleep(seconds)
        slow = lab.order[2]
        lab.set_line(slow, LINE / 20, down=False)
        member = lab.members.pop(slow)
        assert await lab.all_committed() < 1.5 * UNDISTURBED_SECONDS
        # It blames its successor first, and itself when the next one looks slow as well.
        assert lab.reasons() == {(slow, "slow"), (lab.order[3], "slow")}
        assert member.driver is not None
        assert member.driver.machine.hints.found_slow == {slow}

    run_ring(story)


@pytest.mark.parametrize("share", [1 / 4, 1 / 20])
def test_a_member_with_a_limit_of_its_upload_blames_no_neighbour(share: float) -> None:
    async def story(lab: Lab) -> None:
        limited = lab.order[2]
        lab.set_line(limited, share * LINE, down=False)
        member = lab.members[limited]
        member.limit = share * LINE
        if share < 1 / 8:
            del lab.members[limited]
        seconds = await lab.all_committed()
        if share < 1 / 8:
            # The work before this ring took no time, so the ring does not wait that long for it.
            assert lab.reasons() == {(limited, "slow")}
            assert seconds < 1.5 * UNDISTURBED_SECONDS
        else:
            assert not lab.removed
            assert all(members == set(lab.order) for members in lab.contributors())

    run_ring(story)
