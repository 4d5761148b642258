"""Whole swarms of `Round` machines on a heap clock, without trio, decided by one seed.

First faults are injected and safety is checked at every step; then the world heals and must make
progress: every peer that lives has to reach the last round in a bounded virtual time, all on one
head.

What is checked
---------------
- No machine ever raises: all traffic is honest.
- Nobody counts twice, and sums hold exactly those that their masks name (`arithmetic`).
- A committed header's votes stand up to `open_commit`.
- Every chunk of a committed header holds all members that lived on and were never accused.
- One ring leads to two headers only if somebody living was accused in it.
- Members left in a ring have the same finals, and all of them, without help by commit records.
- Every living peer reaches the last round, and in the end all are on one head.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import arithmetic
from network import RESET_SECONDS, SILENCE_SECONDS, Links
from peer import Peer
from scenario import FAULT_SECONDS, Scenario, draw
from signatures import peer_id_of, verify

from gossamer.protocol.chain import Commit, Header, open_commit
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.ledger import Ledger
from gossamer.protocol.messages import Signed, Suspect
from gossamer.protocol.ring import Final
from gossamer.protocol.round import Proposal

ROUND_SECONDS_MAX = 200.0
"""Bound on a round's virtual time once the faults are over: gathering, 16 slow hops of 32 slow
chunks, and one wait for the silent."""

EVENTS_MAX = 2_000_000


class World:
    """One swarm. `run` returns when all is well and raises AssertionError otherwise."""

    def __init__(self, scenario: Scenario, *, verbose: bool = False) -> None:
        self.scenario = scenario
        self.random = Random(scenario.seed * 2 + 1)
        self.now = 0.0
        self.run_id = digest_of(b"simulated run", scenario.seed.to_bytes(8, "big"))
        self.statistics: Counter[str] = Counter()
        self.log: list[str] = []
        self._verbose = verbose
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self.links = Links(self)
        self.order = [peer_id_of(index) for index in range(scenario.num_peers)]
        self._names = {peer: f"P{index}" for index, peer in enumerate(self.order)}
        self.headers: dict[Digest, Header] = {}
        self.masks: dict[Digest, list[int]] = {}
        self.ledgers: dict[Digest, Ledger] = {self.run_id: Ledger()}
        self.accused: dict[bytes, set[PeerId]] = {}
        self.accused_living: set[bytes] = set()
        self._far_side: frozenset[PeerId] = frozenset()
        self.peers = {peer: Peer(self, peer) for peer in self.order}

    # The clock

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (max(seconds, self.now), self._num_events, event))

    def later(self, delay_seconds: float, peer: Peer, event: Callable[[], None]) -> None:
        """An event in a peer's present life."""
        self.later_at(self.now + delay_seconds, peer, event)

    def later_at(self, seconds: float, peer: Peer, event: Callable[[], None]) -> None:
        life = peer.life

        def guarded() -> None:
            if peer.alive and peer.life == life:
                event()

        self.at(seconds, guarded)

    def uniform(self, bounds: tuple[float, float]) -> float:
        return self.random.uniform(*bounds)

    def run(self) -> None:
        for peer in self.order:
            self.peers[peer].start()
        for fault in self.scenario.faults:
            self.at(fault.seconds, lambda kind=fault.kind: self._inject(kind))  # type: ignore[misc]
        if self.scenario.hold_seconds:
            self.at(self.scenario.hold_seconds - 1.0, self._check_rings)
        faults_end = FAULT_SECONDS if self.scenario.faults else 0.0
        deadline = faults_end + ROUND_SECONDS_MAX * (self.scenario.num_rounds + 1)
        while self._events:
            seconds, _, event = heapq.heappop(self._events)
            if seconds > deadline:
                break
            self.now = seconds
            event()
            assert self._num_events < EVENTS_MAX, "events without end"
            if self.now > faults_end and self._is_done():
                break
        self._check_end()

    def _is_done(self) -> bool:
        living = [peer for peer in self.peers.values() if peer.alive]
        return all(peer.round is None for peer in living) and len({p.head for p in living}) == 1

    # Faults

    def _inject(self, kind: str) -> None:
        living = [self.peers[peer] for peer in self.order if self.peers[peer].alive]
        if not living:
            return
        peer = self.random.choice(living)
        if kind in ("crash", "hang", "restart"):
            if len(living) > 1 or kind == "restart":
                self.note(f"{peer.name}: {kind}")
                self.count(kind)
                peer.die(hung=kind == "hang")
            if kind == "restart":
                self.at(self.now + self.uniform((0.1, 8.0)), lambda: self._restart(peer))
        elif kind == "suspect":
            self.note(f"{peer.name} suspects its successor wrongly")
            peer.suspect_successor()
        elif kind == "partition":
            self._partition()
        elif links := self.links.all_open():
            link = self.random.choice(links)
            ends = {link.source, link.target}
            self.note(f"connection of {self.name(link.source)} and {self.name(link.target)} breaks")
            for broken in links:
                if {broken.source, broken.target} == ends:
                    broken.fail(self.uniform((0.02, 0.5)), "reset")

    def _partition(self) -> None:
        """Some peers, often one, lose their network, and have it back after a while."""
        num_peers = len(self.order)
        if self._far_side or num_peers < 2:
            return
        size = self.random.choice((1, 1, self.random.randint(1, num_peers - 1)))
        self._far_side = frozenset(self.random.sample(self.order, size))
        names = sorted(self.name(peer) for peer in self._far_side)
        self.note(f"{', '.join(names)} lose their network")
        self.count("partition")
        for link in self.links.all_open():
            if not self.reach(link.source, link.target):
                link.fail(
                    self.uniform(self.random.choice((RESET_SECONDS, SILENCE_SECONDS))), "reset"
                )
        for peer in self.peers.values():
            for other in self.order:
                if peer.alive and not self.reach(peer.peer_id, other):
                    self.later(self.uniform(SILENCE_SECONDS), peer, partial(peer.lost, other))
        self.at(self.now + self.uniform((1.0, 40.0)), self._heal)

    def _heal(self) -> None:
        self._far_side = frozenset()
        self.note("the network is whole again")
        for peer in self.peers.values():
            if peer.alive:
                peer.announce()

    def reach(self, one: PeerId, other: PeerId) -> bool:
        """Whether two peers are on one side of the network."""
        return (one in self._far_side) == (other in self._far_side)

    def _restart(self, peer: Peer) -> None:
        self.note(f"{peer.name} starts again")
        peer.start()
        for other in self.others(peer.peer_id):
            if other.alive and self.reach(peer.peer_id, other.peer_id):
                self.later(
                    self.uniform(self.scenario.latency_seconds),
                    peer,
                    lambda other=other: other.introduce_to(peer) if other.alive else None,  # type: ignore[misc]
                )

    # Gossip

    def others(self, me: PeerId) -> list[Peer]:
        return [self.peers[peer] for peer in self.order if peer != me]

    def _spread(self, me: PeerId, deliver: Callable[[Peer], None]) -> None:
        scenario = self.scenario
        for other in self.others(me):
            copies = 1 + (self.random.random() < scenario.gossip_duplicates)
            for _ in range(copies):
                if other.alive and self.random.random() >= scenario.gossip_loss:
                    self.later(
                        self.uniform(scenario.gossip_seconds),
                        other,
                        lambda other=other: (  # type: ignore[misc]
                            deliver(other) if self.reach(me, other.peer_id) else None
                        ),
                    )

    def gossip(self, me: PeerId, signed: Signed) -> None:
        self._spread(me, lambda other: other.statement_received(signed))

    def gossip_commit(self, me: PeerId, commit: Commit) -> None:
        self._spread(me, lambda other: other.commit_received(commit))

    # The chain, as everybody could fetch it

    def header_of(self, head: Digest) -> Header:
        return self.headers[head]

    def tokens_of(self, head: Digest) -> int:
        return 0 if head == self.run_id else self.headers[head].tokens_total

    def round_of(self, head: Digest) -> int:
        return 0 if head == self.run_id else self.headers[head].round

    def is_committed(self, ring_id: bytes, head: Digest) -> bool:
        """Whether a head's chain has a round of this ring."""
        while head != self.run_id:
            if self.headers[head].ring_id == ring_id:
                return True
            head = Digest(self.headers[head].parent)
        return False

    # Checks

    def note_suspect(self, author: PeerId, suspect: Suspect) -> None:
        accused = PeerId(suspect.accused)
        self.accused.setdefault(suspect.ring_id, set()).add(accused)
        if self.peers[accused].alive:
            self.accused_living.add(suspect.ring_id)
        self.count(f"suspect: {suspect.reason.split(' by ')[0]}")
        self.note(f"{self.name(author)} accuses {self.name(accused)}: {suspect.reason}")

    def note_commit(
        self, peer: Peer, commit: Commit, proposal: Proposal, finals: list[Final]
    ) -> None:
        header = open_commit(commit, self.run_id, verify)
        assert header == proposal.header
        assert header.parent == peer.head
        assert header.update_digest == proposal.update.digest
        assert header.ledger_digest == proposal.ledger.digest
        ring = peer.ring
        assert ring is not None
        for chunk, final in enumerate(finals):
            arithmetic.check(
                final.payload, final.mask, ring.members, ring.weights, peer.head, chunk
            )
        self.note(
            f"{peer.name} commits round {header.round}: {header.digest.hex()[:6]} of ring "
            f"{header.ring_id.hex()[:6]} ({header.tokens} tokens)"
        )
        self.count("commits")
        if header.digest not in self.headers:
            rivals = [other for other in self.headers.values() if other.ring_id == header.ring_id]
            if rivals:
                self.count("two headers of one ring")
                assert header.ring_id in self.accused_living, (
                    "two headers of one ring in which nobody was suspected wrongly"
                )
            if any(other.parent == header.parent for other in self.headers.values()):
                self.count("forks")
        self.headers[header.digest] = header
        self.masks[header.digest] = [final.mask for final in finals]
        self.ledgers[header.digest] = proposal.ledger

    def _check_rings(self) -> None:
        """Everything is at rest, and nothing was committed: rings have finished or are void."""
        held: list[tuple[Peer, Digest, frozenset[PeerId], list[tuple[int, Digest]]]] = []
        for peer in self.peers.values():
            round_, ring = peer.round, peer.ring
            if not peer.alive or round_ is None or ring is None:
                continue
            if peer.peer_id in round_.removed:
                continue
            self.count("ring held")
            assert peer.finals, f"{peer.name} waits in ring {ring.ring_id.hex()[:6]} for finals"
            finals = [(final.mask, final.digest) for final in peer.finals]
            held.append((peer, ring.ring_id, round_.removed, finals))
        for one, ring_id, removed, finals in held:
            for other, other_ring_id, _, other_finals in held:
                if ring_id == other_ring_id and other.peer_id not in removed:
                    assert finals == other_finals, (
                        f"{one.name} and {other.name} have other finals of ring {ring_id.hex()[:6]}"
                    )

    def _check_end(self) -> None:
        living = [self.peers[peer] for peer in self.order if self.peers[peer].alive]
        stuck = [
            f"{peer.name} in round {peer.committed_round + 1} ({peer.round.state})"
            for peer in living
            if peer.round is not None
        ]
        assert not stuck, f"no progress after {self.now:.0f} s: {', '.join(stuck)}"
        assert len({peer.head for peer in living}) == 1, "living peers on different heads"
        for head, header in self.headers.items():
            accused = self.accused.get(header.ring_id, set())
            for position, member in enumerate(header.members):
                peer_id = PeerId(member.peer_id)
                if self.peers[peer_id].num_deaths or peer_id in accused:
                    continue
                assert all(mask >> position & 1 for mask in self.masks[head]), (
                    f"{self.name(peer_id)} lived and is missing in {head.hex()[:6]}"
                )

    # For people

    def name(self, peer: PeerId) -> str:
        return self._names[peer]

    def count(self, what: str, condition: bool = True) -> None:
        if condition:
            self.statistics[what] += 1

    def note(self, what: str) -> None:
        if self._verbose:
            print(f"{self.now:9.3f}  {what}")


def simulate(seed: int, *, verbose: bool = False) -> World:
    """Runs the world of one seed. Raises AssertionError, or whatever a machine raised."""
    world = World(draw(seed), verbose=verbose)
    world.run()
    return world
