"""The committed chain as one peer knows it: which head is best, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gossamer.node.heads.avoided_heads import AVOID_SECONDS
from gossamer.node.heads.heads import BetterHead
from gossamer.node.rounds.turn import POLL_SECONDS
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.head_choice import is_most_of
from gossamer.protocol.policy.membership import NEAR_ROUNDS, TRAILING_ROUNDS
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import AT_WORK
from tests.sim.simulator.scenario import CHUNK_BYTES

if TYPE_CHECKING:
    from tests.sim.simulator.peer import Peer


@dataclass
class Disk:
    """What survives the process."""

    head: Digest
    known: dict[Digest, Commit | None] = field(default_factory=dict)
    """Commit records whose parents are known; None for the beginning."""
    left: dict[Digest, int] = field(default_factory=dict)
    """Heads at which it stood before, each with the number of heads that it had heard of when it
    left."""
    heard: set[Digest] = field(default_factory=set)
    """Heads of which it has a record, or that a peer has announced to it."""
    applied: set[Digest] = field(default_factory=set)
    """Heads whose averaged chunks are here."""


class Heads:
    """One peer's chain."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._world = peer.world
        genesis = self._world.run_id
        self.disk = Disk(genesis, {genesis: None})
        self.held: set[Digest] = set()
        """The heads that it ever held, without those before them."""
        self._tips = {genesis}
        """Known heads that no known head follows."""
        self.restart()

    def restart(self) -> None:
        self._avoided: dict[Digest, tuple[float, int]] = {}
        """Until when, and how often it could not be reached."""
        self._seen_seconds: dict[Digest, float] = {}
        """Since when each head but mine is known."""
        self.rings: set[bytes] = set()
        """Rings on my head that this peer followed."""
        self._better: BetterHead | None = None
        self._looked_seconds = -POLL_SECONDS
        self._better_since_seconds: float | None = None
        self._is_catching_up = False

    @property
    def head(self) -> Digest:
        return self.disk.head

    def recent(self) -> list[Digest]:
        """My head and those before it, newest first."""
        return self._world.checks.ancestors(self.head)[: TRAILING_ROUNDS + 1]

    # What is known

    def learn(self, commit: Commit, head: Digest) -> bool:
        """A commit record; says whether it is of use."""
        if self._world.checks.parent_of(head) not in self.disk.known:
            return False
        self.know(head, commit)
        self.look()
        return True

    def know(self, head: Digest, commit: Commit) -> None:
        """A record that this peer keeps from now on."""
        self.disk.known[head] = commit
        self.disk.heard.add(head)
        self._tips.discard(self._world.checks.parent_of(head))
        self._tips.add(head)

    def look(self) -> None:
        """Something may have changed: the next question is answered anew."""
        self._looked_seconds = -POLL_SECONDS

    def better(self) -> BetterHead | None:
        """The heaviest known head that wins over mine."""
        if self._world.now >= self._looked_seconds + POLL_SECONDS:
            self._looked_seconds = self._world.now
            self._better = self._find_better()
        return self._better

    def _find_better(self) -> BetterHead | None:
        checks, mine = self._world.checks, self.head
        best = self._best_with()
        if best == mine:
            self._better_since_seconds = None
            return None
        if self._better_since_seconds is None:
            self._better_since_seconds = self._peer.now
        weight = checks.choice.weight(checks.choice.fork_of(best, mine), best)
        return BetterHead(best, weight, self._better_since_seconds)

    def _best_with(self, *more: Digest) -> Digest:
        """The head that wins among mine, those that I may follow, and some more."""
        checks, mine = self._world.checks, self.head
        announced = {Digest(announce.head) for announce in self._peer.living().values()}
        self.disk.heard |= announced
        anchors = {checks.choice.anchor_of(head, mine) for head in announced | self._tips}
        others = sorted(anchors - {mine})
        self._seen_seconds = {head: self._seen_seconds.get(head, self._peer.now) for head in others}
        ready = [
            head
            for head in others
            if self._avoided.get(head, (0.0, 0))[0] <= self._world.now
            and checks.choice.may_undo(mine, head)
            and self._may_follow(head)
        ]
        return checks.choice.best([mine, *more, *ready])

    def _may_follow(self, head: Digest) -> bool:
        """As the daemon decides it (`Heads._may_follow`)."""
        peer, mine = self._peer, self.head
        at_work = {
            other
            for other, announce in peer.living().items()
            if announce.head == mine and announce.phase in AT_WORK
        }
        if peer.phase in AT_WORK:
            at_work.add(peer.peer_id)
        since = peer.ready_since.get(mine, self._seen_seconds[head])
        was_time = peer.now >= since + self._world.scenario.gather_seconds
        checks = self._world.checks
        doubted = frozenset[PeerId]()
        if self._is_from_my_ring(head):
            doubted = self._world.doubted_by(peer, checks.round_of(mine) + 1)
        of_mine = self._is_of_my_ring(head)
        return checks.choice.counts(
            head, mine, at_work, was_time=was_time, is_of_my_ring=of_mine, doubted=doubted
        )

    def _is_from_my_ring(self, head: Digest) -> bool:
        checks = self._world.checks
        first = checks.path(self.head, head)[-1:]
        return any(checks.headers[each].ring_id in self.rings for each in first)

    def _is_of_my_ring(self, head: Digest) -> bool:
        checks = self._world.checks
        way = checks.path(self.head, head)
        if not way:
            return False
        first = way[-1]
        header, num_signers = checks.headers[first], len(checks.signers_of(first))
        return header.ring_id in self.rings and is_most_of(num_signers, len(header.members))

    # Getting there

    def consider(self) -> None:
        """No turn is under way, and something changed."""
        if not self._is_catching_up:
            self._peer.proceed()

    def catch_up(self) -> bool:
        """Begins to take over the best head; says whether there is one to wait for."""
        best = self.better()
        if best is None:
            return False
        better = best.head
        peer, world = self._peer, self._world
        is_near = self.head in world.checks.ancestors(better)[: NEAR_ROUNDS + 1]
        peer.turn_ended()
        peer.set_phase("training" if is_near else "syncing")
        self._is_catching_up = True
        num_rounds = len(world.checks.path(self.head, better))
        num_bytes = num_rounds * world.scenario.num_chunks * CHUNK_BYTES
        seconds = num_bytes / peer.machine.bytes_per_second
        seconds += 2 * world.uniform(world.scenario.latency_seconds)

        def arrived() -> None:
            self._is_catching_up = False
            if self._is_held_by_a_peer(better):
                self._take_over(better)
            else:
                world.note(f"{peer.name} cannot reach head {better.hex()[:6]}")
                world.count("head out of reach")
                _, failures = self._avoided.get(better, (0.0, 0))
                until_seconds = world.now + AVOID_SECONDS * 2**failures
                self._avoided[better] = (until_seconds, failures + 1)
                self.look()
            peer.proceed()

        peer.later(seconds, arrived)
        return True

    def _is_held_by_a_peer(self, head: Digest) -> bool:
        if head in self.disk.applied:
            return True
        return any(
            head in other.heads.disk.applied and not other.frozen
            for other in self._world.living()
            if self._world.network.reach(self._peer.peer_id, other.peer_id)
        )

    def _take_over(self, head: Digest) -> None:
        """Moves to a head that is not mine, with what it and the lost ones took of my work."""
        checks, peer = self._world.checks, self._peer
        old = self.head
        if checks.choice.fork_of(self._best_with(head), head) != head:
            return  # mine grew meanwhile
        lost = checks.path(head, old)
        gained = checks.path(old, head)
        self._world.count("heads abandoned", bool(lost))
        for each in reversed(gained):
            self.know(each, checks.commits[each])
            self.disk.applied.add(each)
        self.install(head)
        peer.work.moved(lost, list(reversed(gained)))
        peer.point("settled")
        self.note_new()
        peer.work.tidy()

    def install(self, head: Digest) -> None:
        """Writes that this is the head from now on."""
        checks = self._world.checks
        # A head that it heard of since may have added to the support of the branch that it left.
        num_heard = len(self.disk.heard)
        is_back = head in self.disk.left
        self._world.count("heads come back to", is_back)
        assert not is_back or self.disk.left[head] < num_heard, "it comes back for no new reason"
        self.disk.left[self.head] = num_heard
        old, self.disk.head = self.head, head
        self.look()
        self.held.discard(checks.parent_of(head))
        self.held.add(head)
        for each in checks.path(old, head):
            checks.note_head(self._peer, each)
        self._peer.point("installed")

    def note_new(self) -> None:
        """The head has changed and everything is settled."""
        peer, round_number = self._peer, self._world.checks.round_of(self.head)
        self._better_since_seconds = None
        self.rings.clear()
        peer.statement_store.age()
        peer.statement_store.keep(
            lambda _, statement: (
                getattr(statement, "round", round_number + 1) > round_number
                or hasattr(statement, "incarnation")
            )
        )
        self._world.note(f"{peer.name} is at head {self.head.hex()[:6]} of round {round_number}")
        self._world.news()
