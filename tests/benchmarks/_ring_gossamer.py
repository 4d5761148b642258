"""Gossamer's ring as one member of a measured all-reduce (see `_member`).

Everything that a node uses in a round is the real thing: libp2p, gossip, the round machine and its
driver, the ring's links, the arithmetic, the outer step and the votes. Only training, the run's
history and the disk are left out: the vector is the work, and every repeat is a round of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import trio

from gossamer.node.app.daemon import limit_malloc_arenas
from gossamer.node.modes.pending_work import Contributions
from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import Transport
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.rounds.decisions import LINGER_SECONDS
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import AveragedPayloads, payloads_named
from gossamer.protocol.codecs.step_payloads import DISTRO, SignPayloads
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Trust
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import Observation, Removed, Signer
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.rounds.roster import Ring, RoundRules
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Commit, Member
from gossamer.protocol.state.chunk_plan import ChunkPlan, default_chunk_elements
from gossamer.protocol.state.digest import chunk_bytes
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL
from gossamer.protocol.wire.statements import Ready, Signed, Statement
from tests.benchmarks import _ring_steps
from tests.benchmarks._member import (
    Assignment,
    Channel,
    Checker,
    Part,
    Usage,
    Vector,
    sleep_until,
    vector_of,
)
from tests.support.gossip_listener import OpenListener
from tests.support.round_host import HonestRound, serve_ring_of

RUN_ID = digest_of(b"ring benchmark")
CONNECT_SECONDS = 30.0
TOKENS = 1000
"""Weight of each member: equal, so that the result is the mean."""


def head_of(repeat: int) -> Digest:
    """Returns the head that a repeat's round builds on; with the peer ids it decides the order of
    the ring."""
    return digest_of(b"repeat", repeat.to_bytes(4, "big"))


class OuterStep:
    """The arithmetic of a commit on a state of zeros: Nesterov and the digests of every chunk."""

    def __init__(self, plan: ChunkPlan, payloads: AveragedPayloads | SignPayloads) -> None:
        self._plan = plan
        self._payloads = payloads
        self._zeros = np.zeros(plan.chunk_elements, np.float32)
        self._parameters = np.empty(plan.chunk_elements, np.float32)
        self._momentum = np.empty(plan.chunk_elements, np.float32)
        self._chunk = ChunkPlan(plan.chunk_elements, plan.chunk_elements)
        self.averages: Sequence[Payload] = ()
        self._masks: Sequence[int] = ()
        self._tokens: Sequence[int] = ()
        self.finished_seconds = 0.0
        self.cost: dict[str, float] = {}
        self.usage = Usage()

    def begin(self) -> None:
        """A new round: what it costs is counted from here."""
        self.averages = ()
        self.usage = Usage()

    def __call__(
        self,
        _parent: Digest,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
        _is_wanted: Callable[[], bool],
    ) -> Digest:
        self.finished_seconds = time.monotonic()
        self.cost = self.usage.so_far()
        self.averages, self._masks = averages, masks
        self._tokens = [member.tokens for member in members]
        if isinstance(self._payloads, SignPayloads):
            return digest_of(*averages)
        digests = []
        for chunk, payload in enumerate(averages):
            size = self._plan.elements_of(chunk)
            zeros, parameters = self._zeros[:size], self._parameters[:size]
            gradient = self._payloads.average(payload, size, masks[chunk], self._tokens)
            nesterov(zeros, zeros, gradient, 0.7, 0.9, parameters, self._momentum[:size])
            for vector in (self._parameters, self._momentum):
                digests.append(digest_of(chunk_bytes(vector, self._chunk, 0)))
        return digest_of(*digests)

    def result(self) -> Vector:
        """The average."""
        assert not isinstance(self._payloads, SignPayloads)
        vector = np.empty(self._plan.num_elements, np.float32)
        for chunk, payload in enumerate(self.averages):
            part = self._plan.range_of(chunk)
            size = part.stop - part.start
            vector[part] = self._payloads.average(payload, size, self._masks[chunk], self._tokens)
        return vector


class Peer(OpenListener, HonestRound):
    """One member of the rings."""

    def __init__(self, channel: Channel, identity: Identity, transport: Transport) -> None:
        self._channel = channel
        self._assignment = channel.assignment
        self._identity = identity
        self._transport = transport
        self._payloads: AveragedPayloads | SignPayloads
        trust: Trust = "open" if self._assignment.trust == "open" else "members"
        if self._assignment.codec == DISTRO:
            self._plan = _ring_steps.PLAN
            self._payloads = _ring_steps.payloads_of(self._assignment.num_elements, trust)
            self._vector = np.zeros(0, np.float32)
        else:
            self._plan = _plan_of(self._assignment)
            self._payloads = payloads_named(
                self._assignment.codec, trust=trust, is_packing=self._assignment.packing
            )
            self._vector = vector_of(self._assignment.rank, self._assignment.num_elements)
        self._records = (
            None if isinstance(self._payloads, SignPayloads) else Contributions(self._payloads, 1.0)
        )
        self.outer_step = OuterStep(self._plan, self._payloads)
        self._driver: RoundDriver | None = None
        self._ranks: dict[PeerId, int] = {}
        self._others: list[PeerId] = []
        self._removed: dict[int, str] = {}
        """Ranks of members that are out of the present ring, and why."""
        self._is_out = trio.Event()
        """Set when this member is out of the present ring."""
        self._gossip = Gossip(
            transport,
            identity,
            RUN_ID,
            self,
            random.Random(self._assignment.rank),
        )
        transport.handle(
            RING_PROTOCOL, lambda stream: serve_ring_of(stream, RUN_ID, lambda: self._driver)
        )

    async def run(self) -> None:
        """Connects, then a round whenever `ring.py` says so."""
        self._channel.say(address=self._transport.addresses()[0])
        addresses = ((await self._hear()) or {})["addresses"]
        self._ranks = {PeerId(a.rsplit("/", 1)[1]): rank for rank, a in enumerate(addresses)}
        self._others = sorted(set(self._ranks) - {self._me})
        self._gossip.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._gossip.run)
            for address in addresses[: self._assignment.rank]:
                await self._transport.connect(address)
            with trio.fail_after(CONNECT_SECONDS):
                while self._transport.peers() != self._others:  # noqa: ASYNC110  # has no event
                    await trio.sleep(0.05)
            self._channel.say()
            checker = Checker(self._assignment)
            while (order := await self._hear()) is not None:
                parts = await self._round(order["repeat"])
                if parts is None:
                    self._channel.say()
                elif isinstance(self._payloads, SignPayloads):
                    digest = digest_of(*self.outer_step.averages).hex()
                    self._channel.say(error=0.0, magnitude=1.0, digest=digest, parts=parts)
                else:
                    self._channel.say(**checker.check(self.outer_step.result(), parts))
            nursery.cancel_scope.cancel()

    async def _round(self, number: int) -> list[Part] | None:
        """One all-reduce; returns who is in which part of the average if that is to be checked."""
        head = head_of(number)
        self._removed, self._is_out = {}, trio.Event()
        self._gossip.statement_store.keep(lambda _signed, _statement: False)
        async with trio.open_nursery() as nursery:
            driver = self._driver = self._new_driver(Parent(head, number, number, Ledger()))
            is_driven = trio.Event()
            nursery.start_soon(_drive, driver, is_driven)
            self._channel.say()
            start_seconds = ((await self._hear()) or {})["start_seconds"]
            self.outer_step.begin()
            sent_before = self._bytes_sent()
            await trio.to_thread.run_sync(sleep_until, start_seconds)
            driver.ready(await self._ready(number, head))
            while driver.machine.ring is None:
                await driver.changed.wait()
            ring_seconds = time.monotonic()
            if not await is_finished(driver.finished, self._is_out):
                driver.cancel()
                self._channel.say(is_whole=False, removed=self._removed)
                await self._hear()
                return None
            committed_seconds = time.monotonic()
            parts = self._parts(driver)
            all_ranks = sorted(self._ranks.values())
            round_cpu_seconds = self.outer_step.usage.so_far()["cpu_seconds"]
            # A majority of votes commits the round while this member may still have averages to
            # pass on. The driver ends when all members have committed.
            await is_driven.wait()
            self._channel.say(
                is_whole=all(part.ranks == all_ranks for part in parts),
                finished_seconds=self.outer_step.finished_seconds,
                ring_seconds=ring_seconds,
                committed_seconds=committed_seconds,
                round_cpu_seconds=round_cpu_seconds,
                bytes_sent=self._bytes_sent() - sent_before,
                removed=self._removed,
                **self.outer_step.cost,
            )
            order = (await self._hear()) or {}
            return parts if order.get("check") else None

    async def _ready(self, number: int, head: Digest) -> Ready:
        root, records = b"", self._records
        if records is not None:
            root = await trio.to_thread.run_sync(lambda: records.root_of(self._vector, self._plan))
        return Ready(1, number + 1, number + 1, head, TOKENS, 1, 0.0, 1.0, (), b"", root)

    def _parts(self, driver: RoundDriver) -> list[Part]:
        assert driver.committed is not None
        assert driver.machine.ring is not None
        ranks = [self._ranks[peer] for peer in driver.machine.ring.members]
        parts = []
        for chunk, average in enumerate(driver.committed.averages):
            contributors = [rank for place, rank in enumerate(ranks) if average.mask >> place & 1]
            part = self._plan.range_of(chunk)
            parts.append(Part(part.start, part.stop, sorted(contributors)))
        return parts

    def _new_driver(self, parent: Parent) -> RoundDriver:
        plan, payloads = self._plan, self._payloads
        chunk_elements = max(plan.chunk_elements, limits.CHUNK_ELEMENTS_MIN)
        machine = Round(
            signer=Signer(self._me, RUN_ID, self._identity.sign),
            parent=parent,
            rules=RoundRules(payloads, chunk_elements, plan.num_chunks, 30.0, 100.0, 5.0),
            verify=verify,
            now=trio.current_time(),
        )
        return RoundDriver(
            machine,
            transport=self._transport,
            gossip=self._gossip,
            plan=plan,
            payloads=payloads,
            run_in_thread=trio.to_thread.run_sync,
            host=self,
        )

    # The host of a round

    def contribution_to(self, ring: Ring) -> Contribution:
        """See `RoundHost`."""
        if isinstance(self._payloads, SignPayloads):
            assert self._driver is not None
            sign_step = self._driver.machine.signed_averages_of(ring).sign_step
            return _ring_steps.Signs(self._payloads, ring, self._me, sign_step)
        assert self._records is not None
        return self._records.contribution(self._vector, self._plan, ring, self._me)

    def awaited(self) -> Awaited:
        """See `RoundHost`."""
        return Awaited(self._others, [])

    async def reach(self, peer: PeerId) -> None:
        """See `RoundHost`."""
        await _reach(peer)

    def observed(self, observation: Observation) -> None:
        """See `Observer`."""
        if not isinstance(observation, Removed):
            return
        self._removed[self._ranks[observation.peer]] = observation.reason
        if observation.peer == self._me:
            self._is_out.set()

    @property
    def _me(self) -> PeerId:
        return self._identity.peer_id

    def _bytes_sent(self) -> int:
        return self._transport.traffic().get(RING_PROTOCOL, (0, 0))[0]

    async def _hear(self) -> dict[str, Any] | None:
        return await trio.to_thread.run_sync(self._channel.hear)

    # What comes from the others

    def heard_statement(self, signed: Signed, statement: Statement) -> bool:
        if self._driver is not None:
            self._driver.heard(signed, statement)
        return True

    def heard_commit(self, commit: Commit) -> bool:
        if self._driver is not None:
            self._driver.commit_received(commit)
        return True


async def is_finished(finished: trio.Event, is_out: trio.Event) -> bool:
    """Returns whether a member has the round in the end.

    A member that is out of the ring may still get all averages, as long as the others serve it. A
    node fetches the round after that; a measured member has nothing to fetch, and would wait for
    ever.
    """
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await is_out.wait()
            await trio.sleep(LINGER_SECONDS)
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        await finished.wait()
        nursery.cancel_scope.cancel()
    return finished.is_set()


async def _drive(driver: RoundDriver, is_driven: trio.Event) -> None:
    """Runs a round, and says when it has ended for all members."""
    await driver.run()
    is_driven.set()


async def _reach(_peer: PeerId) -> None:
    """All members are connected from the start."""


def _plan_of(assignment: Assignment) -> ChunkPlan:
    elements = assignment.chunk_elements or default_chunk_elements(assignment.num_elements)
    return ChunkPlan(assignment.num_elements, elements)


async def main() -> None:
    channel = Channel()
    identity = Identity.generate()
    listen = [f"/ip4/{channel.assignment.host}/tcp/0"]
    async with open_libp2p_transport(identity, listen) as transport:
        await Peer(channel, identity, transport).run()


if __name__ == "__main__":
    limit_malloc_arenas()
    trio.run(main)
