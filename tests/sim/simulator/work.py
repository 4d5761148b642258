"""What one peer trained: the vectors behind its work account, in memory and on disk; its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gossamer.node.modes.sync_mode import Contribution
from gossamer.protocol.accounting.account_state import AccountState
from gossamer.protocol.accounting.ledger import choose_partitions, lost_claims
from gossamer.protocol.accounting.work_account import WorkAccount
from gossamer.protocol.accounting.work_records import Offer, offered_by
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.chain import spans_taken
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.statements import Span
from tests.sim.simulator import arithmetic
from tests.support.balance import is_balanced

if TYPE_CHECKING:
    from tests.sim.simulator.peer import Peer

SHARDS_PER_PEER = 3
SHARD_TOKENS = 3000

GROWING_SHARDS_PER_PEER = 1
"""The same where data are added, so that peers soon come to what was added."""

ADDED_SHARDS_PER_PEER = 2
"""Of each part that the founder adds."""

HEARD_AFTER_SECONDS = 20.0
"""Until the last peer has heard of a part: some rounds."""


@dataclass
class Disk:
    """What survives the process: the account as of its newest event, vectors as of their saving."""

    account: bytes | None = None
    pending: list[int] = field(default_factory=list)
    offers: dict[int, list[int]] = field(default_factory=dict)
    """The vector behind each offer."""


class Work:
    """One peer's account, and the work that the swarm has not taken."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._world = peer.world
        scenario = self._world.scenario
        self._num_chunks = scenario.num_chunks_carried
        self._stale_rounds = scenario.stale_rounds * scenario.fragments
        self.disk = Disk(pending=self._zeros())
        self.num_units = 0
        """Local rounds that this peer finished, over all its lives."""
        self._unit_tokens: list[int] = []
        self._died = self._zeros()
        """Work that was lost with a process, for each chunk."""
        self._dropped = self._zeros()
        self._pending = self._zeros()
        self._residue = np.zeros_like(self._world.mode.genesis.parameters)
        """What encoding left out of what rounds took, in memory only."""
        self._newest: tuple[int, list[int]] | None = None
        """Number and vector of the offer to the round under way; not on disk."""

    def _zeros(self) -> list[int]:
        return [0] * self._num_chunks

    # Life

    def restart(self) -> None:
        """The process starts with what is on disk."""
        disk = self.disk
        self._residue[:] = 0.0
        if disk.account is None:
            self.account = WorkAccount(self._num_chunks, self._stale_rounds)
            self.account.state.head = self._world.run_id
            self._write()
            return
        state = msgspec.msgpack.decode(disk.account, type=AccountState)
        self.account = WorkAccount(self._num_chunks, self._stale_rounds, state)
        before, self._pending = self._pending, self._zeros()
        restart = self.account.restarted()
        for chunk in _chunks(restart.chunks):
            self._pending[chunk] = disk.pending[chunk]
        if self._newest is not None:
            # Its vector was not written: what was offered last is what is left.
            disk.offers[self._newest[0]] = list(self._pending)
            self._newest = None
        for number, chunks in restart.offers.items():
            vector = disk.offers.setdefault(number, self._zeros())
            for chunk in _chunks(chunks):
                vector[chunk] = self._pending[chunk]
        for chunk, (old, new) in enumerate(zip(before, self._pending, strict=True)):
            assert not new & ~old, f"{self._peer.name} has work back that was gone"
            self._died[chunk] |= old & ~new
        self._write()
        # A crash may have come between the new head and what it took.
        checks, head = self._world.checks, self._peer.heads.head
        since = Digest(self.account.state.head)
        if since != head:
            self._world.count("settled after a restart")
            self.moved(checks.path(head, since), checks.path(since, head)[::-1])

    def _write(self) -> None:
        """After every event. Checks what has to hold at every step."""
        assert is_balanced(self.account), f"{self._peer.name}'s account does not balance"
        for chunk, work in enumerate(self._pending):
            assert arithmetic.is_counted_once(work, self.num_units), (
                f"{self._peer.name} carries {arithmetic.describe(work)} in chunk {chunk}"
            )
        self.disk.account = msgspec.msgpack.encode(self.account.state)

    def tidy(self) -> None:
        """After a round: what is too old is dropped, the rest goes to disk."""
        self._end_turn()
        next_round = self._world.checks.round_of(self._peer.heads.head) + 1
        chunks, _ = self.account.drop_stale(next_round)
        self._drop(chunks)
        self._write()
        self.disk.pending = list(self._pending)
        self.account.saved()
        self._write()

    def _drop(self, chunks: int) -> None:
        for chunk in _chunks(chunks):
            self._world.count("work dropped", self._pending[chunk] != 0)
            self._dropped[chunk] |= self._pending[chunk]
            self._pending[chunk] = 0

    # Rounds

    def trained(self, head: Digest, round_number: int, tokens: int, spans: Sequence[Span]) -> None:
        """A local round ended."""
        self._end_turn()
        if tokens:
            unit = arithmetic.unit_of(self.num_units)
            self.num_units += 1
            self._unit_tokens.append(tokens)
            self._pending = [work + unit for work in self._pending]
        self.account.stepped(tokens)
        self.account.trained(head, round_number, tokens, spans)
        self._write()

    def offer(self, head: Digest, round_number: int) -> Offer | None:
        """All that is carried, for the round under way."""
        self._end_turn()
        offer = self.account.offer(head, round_number, life=self._peer.life)
        if offer is not None:
            self._newest = (offer.number, list(self._pending))
        self._write()
        return offer

    def withdraw(self, number: int) -> None:
        """No ring with this offer was followed."""
        self._end_turn()
        self.account.withdraw(number)
        self._write()

    def offered(self, round_number: int, chunk: int) -> int:
        """My part of a chunk of the round's ring."""
        assert self._newest is not None
        return self._newest[1][self._world.scenario.first_chunk_of(round_number) + chunk]

    def offered_vector(self, round_number: int) -> FloatVector:
        """The numbers behind it, all chunks of the round's ring."""
        assert self._newest is not None
        mode = self._world.mode
        first = self._world.scenario.first_chunk_of(round_number)
        pending = mode.pending(self._peer.index, self._newest[1], self._residue)
        return pending[mode.elements_of_round(first)]

    def taken(self, contribution: Contribution, round_number: int, chunks: int) -> None:
        """A round took these chunks of what was offered: what its encoding left out is carried."""
        first = self._world.scenario.first_chunk_of(round_number)
        for chunk in _chunks(chunks):
            error = contribution.error_of(chunk)
            part = self._world.mode.plan.range_of(first + chunk)
            self._residue[part] = 0.0 if error is None else error

    def _end_turn(self) -> None:
        """The offer's vector goes to disk before `pending` changes."""
        if self._newest is not None:
            number, vector = self._newest
            self.disk.offers[number] = vector
            self._newest = None
            numbers = [offer.number for offer in self.account.state.offers]
            kept = numbers[-self._stale_rounds - 1 :]
            self.disk.offers = {n: v for n, v in self.disk.offers.items() if n in kept}

    def moved(self, lost: Iterable[Digest], gained: Iterable[Digest]) -> None:
        """The chain has other rounds now: `lost` newest first, then `gained`, oldest first."""
        self._end_turn()
        lost = list(lost)
        if lost:
            self._residue[:] = 0.0
        checks, me = self._world.checks, self._peer.peer_id
        next_round = checks.round_of(self._peer.heads.head) + 1
        for head in lost:
            header = checks.headers[head]
            tokens = sum(member.tokens for member in header.members if member.peer_id == me)
            self._give_back(head, header.parent, tokens, next_round)
        for head in gained:
            self._settle(head)

    def _give_back(self, head: Digest, parent: bytes, tokens: int, next_round: int) -> None:
        """What a lost round took is carried again, unless it is too old."""
        takings = (offer for offer in self.account.state.offers if offer.taking)
        offer = next((o for o in takings if o.taking and o.taking.head == head), None)
        vector = self.disk.offers.get(offer.number) if offer is not None else None
        gone = self.account.dropped + self.account.state.lost
        reclaim = self.account.abandoned(
            head, parent, tokens, next_round, has_vector=vector is not None
        )
        self._world.count("work reclaimed", reclaim.chunks != 0)
        for chunk in _chunks(reclaim.chunks):
            assert vector is not None
            self._pending[chunk] += vector[chunk]
        if self.account.dropped + self.account.state.lost > gone and not reclaim.chunks:
            self._world.count("work too old to reclaim")
            parts = self._world.checks.part_of(self._peer.peer_id, head)
            self._dropped = [old | part for old, part in zip(self._dropped, parts, strict=True)]
        self._write()

    def _settle(self, head: Digest) -> None:
        """What a committed round took leaves what is carried."""
        checks, me = self._world.checks, self._peer.peer_id
        header, averages = checks.headers[head], checks.averages[head]
        tokens = chunks = 0
        for position, member in enumerate(header.members):
            if member.peer_id == me:
                tokens = member.tokens
                chunks = sum(
                    1 << chunk
                    for chunk, average in enumerate(averages)
                    if average.mask >> position & 1
                )
        first = self._world.scenario.first_chunk_of(header.round)
        settled = self.account.committed_by(
            head,
            header.parent,
            tokens,
            chunks << first,
            counts_spans=spans_taken(chunks.bit_count(), len(averages)),
            exchanged=((1 << len(averages)) - 1) << first,
            offered=offered_by(me, checks.commits[head]),
        )
        vector = None if settled.offer is None else self.disk.offers.get(settled.offer)
        if vector is None:
            self.account.vector_missing(settled.taken)
            self._drop(settled.taken)
        else:
            for chunk in _chunks(settled.taken):
                self._pending[chunk] -= vector[chunk]
        self._drop(settled.zeroed)
        self._write()

    # The end

    def check_at_end(self, in_chain: list[int]) -> None:
        """Every unit of work has one fate in every chunk."""
        name = self._peer.name
        for chunk, (committed, carried) in enumerate(zip(in_chain, self._pending, strict=True)):
            there = committed + carried
            assert arithmetic.is_counted_once(there, self.num_units), (
                f"{name} has work in its chain and carries it still, in chunk {chunk}: "
                f"{arithmetic.describe(there)}"
            )
            missing = arithmetic.all_units(self.num_units) - there
            missing &= ~(self._died[chunk] | self._dropped[chunk])
            assert not missing, f"{name} lost work in chunk {chunk}: {arithmetic.describe(missing)}"
        state = self.account.state
        assert state.lost == 0 or any(self._died) or any(self._dropped)
        assert self.account.dropped == 0 or any(self._dropped)
        if not self._peer.num_deaths:
            assert state.trained == sum(self._unit_tokens)


def _chunks(mask: int) -> Iterator[int]:
    """The chunks of a mask."""
    chunk = 0
    while mask:
        if mask & 1:
            yield chunk
        mask >>= 1
        chunk += 1


class Feed:
    """Which data one peer trains on: shards that it claims, each from its committed position."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        scenario = peer.world.scenario
        self._num_machines = len(scenario.machines)
        random = Random(f"data {scenario.seed} {peer.name}")
        self._heard_seconds = [
            seconds + random.uniform(0.0, HEARD_AFTER_SECONDS) for seconds in scenario.data_seconds
        ]
        """When this peer knows of each part that was added; some have trained on it by then."""
        self.restart()

    @property
    def num_shards(self) -> int:
        """Shards that this peer knows of."""
        num_parts = sum(seconds <= self._peer.world.now for seconds in self._heard_seconds)
        first = GROWING_SHARDS_PER_PEER if self._heard_seconds else SHARDS_PER_PEER
        return self._num_machines * (first + ADDED_SHARDS_PER_PEER * num_parts)

    def restart(self) -> None:
        self.claims: list[int] = []
        self._consumed: dict[int, int] = {}

    def prepare(self, tokens: int) -> None:
        """Claims shards for so many tokens, after giving up those that others hold."""
        peer = self._peer
        claims = {other: announce.claims for other, announce in peer.living().items()}
        lost = lost_claims(self.claims, claims, peer.peer_id)
        self.claims = [shard for shard in self.claims if shard not in lost]
        ledger = peer.world.checks.ledgers[peer.heads.head]
        num_shards = self.num_shards
        peer.world.count(
            "data consumed that a peer does not know",
            any(shard >= num_shards for shard in ledger.as_dict()),
        )
        shard_tokens = [SHARD_TOKENS] * num_shards
        while sum(SHARD_TOKENS - self._position(s) % SHARD_TOKENS for s in self.claims) < tokens:
            chosen = choose_partitions(
                ledger.as_dict(), shard_tokens, claims, peer.peer_id, 1, excluded=self.claims
            )
            if not chosen:
                break
            self._consumed.pop(chosen[0], None)
            self.claims += chosen

    def _position(self, shard: int) -> int:
        ledger = self._peer.world.checks.ledgers[self._peer.heads.head]
        return max(ledger.as_dict().get(shard, 0), self._consumed.get(shard, 0))

    def take(self, tokens: int) -> list[Span]:
        """The data behind so many tokens of training."""
        spans: list[Span] = []
        while tokens and self.claims:
            shard = self.claims[0]
            start = self._position(shard)
            stop = min(start + tokens, start - start % SHARD_TOKENS + SHARD_TOKENS)
            spans.append(Span(shard, start, stop))
            self._consumed[shard] = stop
            tokens -= stop - start
            if stop % SHARD_TOKENS == 0:
                self.claims.remove(shard)
        return spans
