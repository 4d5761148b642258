"""The world's memory of what was committed, and what has to hold of it.

At every step
- No machine raises: all traffic is honest.
- No member counts twice, and sums hold exactly those that their masks name.
- One head, one state: who commits a header has the same finals as everybody else who does, and the
  state that it votes for is what they lead to for each peer that replays the round.
- What the bytes of a final decode to is the average of the members that its mask names.
- A committed header follows its parent, and its record stands up to `open_commit`.
- In no chain is a unit of work twice in a chunk.
- One ring leads to two headers only if a living member was accused in it, or all died that signed.
- No peer comes back to a head that it left without having learnt of a round since, not even over a
  restart (`heads`). What it learnt may support the branch of that head.
- Every account balances, and `pending` holds no unit twice or less than not at all (`work`).

When a ring was left alone long enough: members left in it have the same finals, and all of them,
without help by commit records.

In the end, when everything has healed
- All living peers are on one head, and committed new rounds, in a bounded time.
- It wins among all heads that the living peers ever held.
- Every chunk of a committed header holds all members that lived on and were never accused.
- Every unit of work that did not die with a process is in the winning chain or still carried, or
  was dropped as stale; and never two of these. Each account says what the chain says.
- Each sum of a committed round adds up again, and no member is blamed for one (`audits`).
- Along the winning chain every token of data is counted once, without gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gossamer.node.rounds.dispatcher import HELLO_SECONDS
from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger, apply_spans
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.rounds.commit_proof import (
    check_contributors,
    open_commit,
    open_ring,
)
from gossamer.protocol.rounds.inventory import Average
from gossamer.protocol.rounds.roster import Ring, RingRules
from gossamer.protocol.state.chain import Commit, Header, check_follows, credits_of, signers_of
from gossamer.protocol.state.commit_records import compacted
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.token_caps import capped_tokens
from gossamer.protocol.wire.statements import Accusation
from tests.sim.simulator import arithmetic
from tests.sim.simulator.arithmetic import Sum
from tests.sim.simulator.audits import Audits
from tests.sim.simulator.modes import State
from tests.sim.simulator.scenario import HOLD_SECONDS
from tests.sim.simulator.signatures import verify
from tests.support.balance import committed_of

if TYPE_CHECKING:
    from tests.sim.simulator.peer import Peer
    from tests.sim.simulator.world import World


class Checks:
    """What was committed by anybody, and the checks on it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.verify = verify
        self.headers: dict[Digest, Header] = {}
        self.commits: dict[Digest, Commit] = {}
        self.averages: dict[Digest, list[Average]] = {}
        self.ledgers: dict[Digest, Ledger] = {world.run_id: Ledger()}
        self.choice = HeadChoice(self, world.order[0])
        """The choice of a head, for a peer that knows all that was committed."""
        self._signers: dict[Digest, frozenset[PeerId]] = {}
        self._ancestors: dict[Digest, list[Digest]] = {world.run_id: [world.run_id]}
        self._work: dict[Digest, dict[PeerId, list[int]]] = {world.run_id: {}}
        """For each head what its chain holds of each peer's work in each chunk."""
        self._states: dict[Digest, State] = {world.run_id: world.mode.genesis}
        self._steps: dict[tuple[object, ...], State] = {}
        self._offers: dict[tuple[bytes, int], tuple[FloatVector, int]] = {}
        """For each ring and position the vector that its member offered, and its capped tokens."""
        self._accused: dict[bytes, set[PeerId]] = {}
        self._accused_living: set[bytes] = set()
        self.audits = Audits(world)
        self._goal_round = 0
        self.reached: dict[tuple[PeerId, int], float] = {}
        """When each peer first stood at a round."""

    # The chain, as everybody could fetch it

    num_reshaped = 0

    def tokens_of(self, head: Digest) -> int:
        return self.headers[head].tokens_total if head in self.headers else 0

    def round_of(self, head: Digest) -> int:
        return self.headers[head].round if head in self.headers else 0

    tokens_total_of = tokens_of

    def parent_of(self, head: Digest) -> Digest:
        return Digest(self.headers[head].parent) if head in self.headers else head

    def credits_of(self, head: Digest) -> dict[PeerId, int]:
        return credits_of(self.headers[head])

    def signers_of(self, head: Digest) -> frozenset[PeerId]:
        return self._signers[head]

    def ancestors(self, head: Digest) -> list[Digest]:
        """A head and all before it, newest first, down to the run."""
        return self._ancestors[head]

    def path(self, old: Digest, new: Digest) -> list[Digest]:
        """The heads of one chain that another lacks, newest first."""
        known = set(self.ancestors(old))
        return [head for head in self.ancestors(new) if head not in known]

    def has_other_ring(self, ring: Ring, head: Digest) -> bool:
        """See `CommittedState`."""
        headers = (self.headers[each] for each in self.ancestors(head)[:-1])
        rings = [each.ring_id for each in headers if each.round == ring.roster.round]
        return bool(rings) and rings[0] != ring.ring_id

    def is_committed(self, ring_id: bytes, head: Digest) -> bool:
        """Whether a head's chain has a round of this ring."""
        return any(self.headers[h].ring_id == ring_id for h in self.ancestors(head)[:-1])

    def state_after(self, parent: Digest, averages: list[Average], tokens: Sequence[int]) -> State:
        """The state that an outer step leads to; `tokens` of the members, by position."""
        key = (parent, *((average.mask, average.digest) for average in averages), *tokens)
        if key not in self._steps:
            first_chunk = self._world.scenario.first_chunk_of(self.round_of(parent) + 1)
            self._steps[key] = self._world.mode.state_after(
                self._states[parent], first_chunk, averages, tokens
            )
        return self._steps[key]

    # Events

    def note_offer(self, ring: Ring, position: int, pending: FloatVector) -> None:
        """A member follows a ring with this vector."""
        weights = capped_tokens([ring.weights[member] for member in ring.members])
        self._offers[ring.ring_id, position] = (pending, weights[position])

    def note_head(self, peer: Peer, head: Digest) -> None:
        """A peer stands at a head now."""
        self.reached.setdefault((peer.peer_id, self.round_of(head)), self._world.now)

    def note_accusation(self, author: Peer, accusation: Accusation) -> None:
        world, accused = self._world, PeerId(accusation.accused)
        self._accused.setdefault(accusation.ring_id, set()).add(accused)
        if world.peers[accused].alive:
            self._accused_living.add(accusation.ring_id)
        world.count(f"suspect: {accusation.reason.split(' by ')[0].split(':')[0]}")
        world.note(f"{author.name} accuses {world.name(accused)}: {accusation.reason}")

    def note_commit(self, peer: Peer, committed: Committed) -> None:
        """A peer committed a header of its own ring."""
        world, proposal = self._world, committed.proposal
        payloads, chunk_elements = world.mode.payloads, limits.CHUNK_ELEMENTS_MIN
        members_max, accusers = payloads.members_max(chunk_elements), world.scenario.accusers
        rules = RingRules(payloads.name, chunk_elements, members_max, accusers)
        header = open_commit(committed.commit, world.run_id, verify, rules)
        ring = open_ring(committed.commit, world.run_id, verify, rules)
        check_contributors(header, ring, [average.mask for average in committed.averages])
        head = header.digest
        assert header == proposal.header
        assert len(committed.commit.votes) >= min(accusers, len(header.members) - 1)
        old = peer.heads.head
        assert header.parent == old
        check_follows(header, old, self.round_of(old), self.tokens_of(old))
        assert header.update_digest == proposal.update.digest
        assert header.ledger_digest == proposal.ledger.digest
        # A peer that replays the round takes the step so: with the tokens that the header names.
        tokens = [member.tokens for member in header.members]
        state = self.state_after(old, committed.averages, tokens)
        assert header.state_digest == state.digest
        world.count("commits")
        world.note(
            f"{peer.name} commits round {header.round}: {head.hex()[:6]} of ring "
            f"{header.ring_id.hex()[:6]} ({header.tokens} tokens)"
        )
        if head in self.headers:
            known = [(average.mask, average.digest) for average in self.averages[head]]
            mine = [(average.mask, average.digest) for average in committed.averages]
            assert known == mine, "one head with two sets of finals"
            return
        self._note_rivals(header)
        self.headers[head] = header
        self.commits[head] = committed.commit
        self.averages[head] = committed.averages
        self._states[head] = state
        assert compacted(committed.commit) is not None, "a record that has no compact form"
        self._signers[head] = signers_of(committed.commit)
        self._check_averages(header, committed.averages)
        self.ledgers[head] = proposal.ledger
        self._ancestors[head] = [head, *self._ancestors[old]]
        self._work[head] = self._work_with(old, header, committed.averages)

    def _note_rivals(self, header: Header) -> None:
        world = self._world
        for head, other in self.headers.items():
            if other.ring_id == header.ring_id:
                world.count("two headers of one ring")
                signers = [PeerId(vote.author) for vote in self.commits[head].votes]
                # If all that knew of the first one died, no peer could tell the others.
                assert header.ring_id in self._accused_living or all(
                    world.peers[signer].num_deaths for signer in signers
                ), "two headers of one ring in which no member was accused wrongly"
        others = self.headers.values()
        world.count("forks", any(other.parent == header.parent for other in others))

    def _work_with(
        self, old: Digest, header: Header, averages: list[Average]
    ) -> dict[PeerId, list[int]]:
        """The work in a chain with one round more. In no chunk may a unit be twice."""
        work = dict(self._work[old])
        scenario = self._world.scenario
        first_chunk = scenario.first_chunk_of(header.round)
        for position, member in enumerate(header.members):
            peer_id = PeerId(member.peer_id)
            work[peer_id] = list(work.get(peer_id, [0] * scenario.num_chunks_carried))
            num_chunks_in = sum(average.mask >> position & 1 for average in averages)
            assert (member.tokens > 0) == (num_chunks_in > 0)
        for chunk, average in enumerate(averages, first_chunk):
            payload = average.payload
            assert isinstance(payload, Sum)
            arithmetic.check(payload, average.mask, chunk)
            for position, part in payload.parts:
                peer_id = PeerId(header.members[position].peer_id)
                work[peer_id][chunk] += part
                num_units = self._world.peers[peer_id].work.num_units
                assert arithmetic.is_counted_once(work[peer_id][chunk], num_units), (
                    f"{self._world.name(peer_id)}'s work is in the chain twice: "
                    f"{arithmetic.describe(work[peer_id][chunk])} in chunk {chunk}"
                )
        return work

    def _check_averages(self, header: Header, averages: list[Average]) -> None:
        """What the bytes decode to is the average of those that the masks name."""
        for chunk, average in enumerate(averages):
            places = [p for p in range(len(header.members)) if average.mask >> p & 1]
            offers = [self._offers[header.ring_id, place] for place in places]
            pendings, weights = zip(*offers, strict=True)
            self._world.mode.check_average(chunk, average, pendings, weights)

    def work_of(self, peer: PeerId, head: Digest) -> list[int]:
        """What a head's chain holds of a peer's work, for each chunk."""
        return self._work[head].get(peer, [0] * self._world.scenario.num_chunks_carried)

    def part_of(self, peer: PeerId, head: Digest) -> list[int]:
        """What one round took of a peer's work, for each chunk."""
        before = self.work_of(peer, self.parent_of(head))
        return [new - old for new, old in zip(self.work_of(peer, head), before, strict=True)]

    def tokens_in_chain(self, peer: PeerId, head: Digest) -> int:
        """Tokens that a head's chain took of a peer."""
        return sum(
            member.tokens
            for each in self.ancestors(head)[:-1]
            for member in self.headers[each].members
            if member.peer_id == peer
        )

    # At rest

    def rings_at_rest(self) -> None:
        """Nothing was committed since the faults: rings have finished or are void."""
        assert self._world.scenario.hold_seconds == HOLD_SECONDS
        held: list[tuple[Peer, Digest, frozenset[PeerId], list[tuple[int, Digest]]]] = []
        for peer in self._world.living():
            driver = peer.driver
            if driver is None or driver.ring is None or peer.frozen:
                continue
            if driver.machine.state == "gathering" or peer.peer_id in driver.machine.removed:
                continue
            scenario = self._world.scenario
            # One after the other refuses, and then this peer does each chunk alone.
            asked_seconds = HELLO_SECONDS + 2 * scenario.latency_seconds[1]
            alone_seconds = 3 * scenario.arithmetic_seconds[1]
            others_seconds = asked_seconds * (len(driver.ring.members) - 1) + alone_seconds
            if self._world.now < driver.ring_began_seconds + others_seconds:
                # Begun by one that was away. The others are in another ring, and refuse in turn.
                self._world.count("ring too young")
                continue
            self._world.count("ring held")
            ring_id = driver.ring.ring_id
            assert driver.averages, f"{peer.name} waits in ring {ring_id.hex()[:6]} for finals"
            averages = [(average.mask, average.digest) for average in driver.averages]
            held.append((peer, ring_id, driver.machine.removed, averages))
        for one, ring_id, removed, averages in held:
            for other, other_ring_id, _, other_averages in held:
                if ring_id == other_ring_id and other.peer_id not in removed:
                    assert averages == other_averages, (
                        f"{one.name} and {other.name} have other finals of ring {ring_id.hex()[:6]}"
                    )

    # Progress

    def healed(self) -> None:
        """From now on everybody has to commit some more rounds."""
        heads = [peer.heads.head for peer in self._world.living()]
        newest = max((self.round_of(head) for head in heads), default=0)
        self._goal_round = newest + self._world.scenario.rounds_after

    def is_done(self) -> bool:
        """Whether all living peers are on one head, far enough."""
        heads = {peer.heads.head for peer in self._world.living()}
        return len(heads) == 1 and self.round_of(next(iter(heads))) >= self._goal_round

    def at_end(self) -> None:
        world = self._world
        living = world.living()
        if not self.is_done():
            where = [
                f"{peer.name} in round {self.round_of(peer.heads.head) + 1} "
                f"({'between turns' if peer.driver is None else peer.driver.machine.state})"
                for peer in living
            ]
            raise AssertionError(
                f"no progress {world.progress_seconds:.0f} s after the healing; "
                f"round {self._goal_round} on one head was to come: {', '.join(where)}"
            )
        head = living[0].heads.head
        held = set().union(*(peer.heads.held for peer in living))
        assert self.choice.best(held) == head, "a living peer held a head that wins"
        self._check_members()
        self._check_sums()
        self._check_ledger(head)
        for peer in living:
            peer.work.check_at_end(self.work_of(peer.peer_id, head))
            tokens = self.tokens_in_chain(peer.peer_id, head)
            committed = committed_of(peer.work.account)
            assert committed == tokens, (
                f"{peer.name} counts {committed} tokens as committed, its chain {tokens}"
            )

    def _check_members(self) -> None:
        for head, header in self.headers.items():
            accused = self._accused.get(header.ring_id, set())
            for position, member in enumerate(header.members):
                peer_id = PeerId(member.peer_id)
                if self._world.peers[peer_id].num_deaths or peer_id in accused:
                    continue
                assert all(average.mask >> position & 1 for average in self.averages[head]), (
                    f"{self._world.name(peer_id)} lived and is missing in {head.hex()[:6]}"
                )

    def _check_sums(self) -> None:
        """Whoever adds up the sums of a round again blames nobody."""
        for head, header in self.headers.items():
            places = range(len(header.members))
            pendings = {
                place: self._offers[header.ring_id, place][0]
                for place in places
                if (header.ring_id, place) in self._offers
            }
            peers = [self._world.peers[PeerId(member.peer_id)] for member in header.members]
            is_whole = not (
                self._accused.get(header.ring_id) or any(peer.num_deaths for peer in peers)
            )
            self.audits.check(header, self.averages[head], pendings, is_whole=is_whole)

    def _check_ledger(self, head: Digest) -> None:
        """Every token of data is consumed once, and the ledger says which."""
        ledger = Ledger()
        for each in reversed(self.ancestors(head)[:-1]):
            header = self.headers[each]
            positions = ledger.as_dict()
            for span in header.spans:
                position = positions.get(span.partition, 0)
                assert span.start == position, f"{span} where the ledger is at {position}"
                positions[span.partition] = span.stop
            ledger = apply_spans(ledger, header.spans)
            assert ledger.digest == header.ledger_digest
            assert ledger.as_dict() == positions
