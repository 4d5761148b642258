"""A peer's account under everything that can happen to it, in any order (a hypothesis machine)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gossamer.protocol.accounting.account_state import AccountState
from gossamer.protocol.accounting.work_account import WorkAccount
from gossamer.protocol.accounting.work_records import Settlement, mask_of
from gossamer.protocol.ids import digest_of
from gossamer.protocol.state.chain import tokens_taken
from gossamer.protocol.wire.statements import Span
from tests.support.balance import committed_of, is_balanced

NUM_CHUNKS = 4
STALE_ROUNDS = 3
ALL = (1 << NUM_CHUNKS) - 1
GENESIS = digest_of(b"genesis")

Vector = list[Counter[int]]
"""Number of times that each local round is in each chunk: 0 or 1, if no round counts twice."""


def zeros() -> Vector:
    return [Counter() for _ in range(NUM_CHUNKS)]


def copied(vector: Vector) -> Vector:
    return [Counter(chunk) for chunk in vector]


def bits(mask: int) -> list[int]:
    return [chunk for chunk in range(NUM_CHUNKS) if mask >> chunk & 1]


@dataclass(frozen=True)
class Block:
    """A header as this peer's account sees it."""

    head: bytes
    parent: bytes
    round: int
    tokens: int = 0
    chunks: int = 0
    exchanged: int = ALL
    vector: Vector = field(default_factory=zeros)
    """This peer's part of the round."""


class AccountMachine(RuleBasedStateMachine):
    """One peer, and all headers that were ever committed: a tree in which one path is the peer's
    chain.

    `pending` says which local rounds are in it. Whatever happens, each of them is at most once in
    `pending` and the chain together, in every chunk; and exactly once where nothing was given up.
    """

    tokens_unit = 1
    """Factor of all numbers of trained tokens."""
    is_knowing = False
    """Whether the peer always learns which chunks a header took, and keeps the vectors of its
    offers."""
    turns: tuple[int, ...] = (ALL,)
    """Masks of the chunks that the rounds average, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.account = WorkAccount(NUM_CHUNKS, STALE_ROUNDS)
        self.pending = zeros()
        self.offers: dict[int, Vector] = {}
        """The vectors behind the offers, on disk."""
        self.newest: tuple[int, int, Vector] | None = None
        """Number, tokens and vector of the offer to the round under way; not on disk."""
        self.saved = zeros()
        self.blocks: dict[bytes, Block] = {}
        self.chain: list[Block] = []
        self.num_trained = 0
        self.position = 0
        self.tokens_ever = 0
        self.is_waiting_lost = False
        """Whether work was lost that waited for a later round, although its tokens are committed
        already: rounds took them that did not average its chunks."""

    @property
    def head(self) -> bytes:
        return self.chain[-1].head if self.chain else GENESIS

    @property
    def round(self) -> int:
        return len(self.chain) + 1

    @property
    def exchanged(self) -> int:
        """Mask of the chunks that the next round averages."""
        return self.turns[len(self.chain) % len(self.turns)]

    def end_turn(self) -> None:
        if self.newest is not None:
            self.offers[self.newest[0]] = self.newest[2]
            self.newest = None

    # Rules

    @rule(
        tokens=st.integers(1, 1000),
        chunks=st.sampled_from([None, ALL, *range(1, ALL)]),
        heard=st.booleans(),
    )
    def turn(self, tokens: int, chunks: int | None, heard: bool) -> None:
        """The peer trains and offers, and a ring takes some chunks, or none; the commit may be
        unheard of."""
        self.train(tokens, dies=False)
        self.offer()
        if chunks is not None:
            self.ring_commits(chunks, heard)

    @rule(tokens=st.integers(0, 1000), dies=st.booleans())
    def train(self, tokens: int, dies: bool) -> None:
        self.end_turn()
        tokens *= self.tokens_unit
        self.account.stepped(tokens)
        self.tokens_ever += tokens
        kept = 0 if dies else tokens
        span = Span(1, self.position, self.position + kept)
        self.position += kept
        if kept:
            self.num_trained += 1
            for chunk in self.pending:
                chunk[self.num_trained] += 1
        self.account.trained(self.head, self.round, kept, [span] if kept else [])

    @rule()
    def offer(self) -> None:
        self.end_turn()
        offer = self.account.offer(self.head, self.round)
        assert (offer is None) == (self.account.carried == 0)
        if offer is not None:
            assert offer.tokens == self.account.carried
            self.newest = (offer.number, offer.tokens, copied(self.pending))

    @precondition(lambda self: self.newest is not None)
    @rule(chunks=st.integers(1, ALL), heard=st.booleans())
    def ring_commits(self, chunks: int, heard: bool) -> None:
        if self.newest is None:
            return
        _, tokens, vector = self.newest
        part = zeros()
        chunks = chunks & self.exchanged or self.exchanged
        for chunk in bits(chunks):
            part[chunk] = vector[chunk]
        tokens = tokens_taken(tokens, chunks.bit_count(), self.exchanged.bit_count())
        block = self._new_block(tokens, chunks, part)
        if heard:
            self._follow(block, is_known=True)

    @rule(tokens=st.integers(1, 1000))
    def crash_under_way(self, tokens: int) -> None:
        self.account.stepped(tokens)
        self.tokens_ever += tokens
        self.crash()

    @rule()
    def others_commit(self) -> None:
        self._new_block(0, 0, zeros())

    def _new_block(self, tokens: int, chunks: int, part: Vector) -> Block:
        head = digest_of(self.head, len(self.blocks).to_bytes(4))
        block = Block(head, self.head, self.round, tokens, chunks, self.exchanged, part)
        self.blocks[head] = block
        return block

    @rule(data=st.data(), has_files=st.booleans(), is_known=st.booleans())
    def move(self, data: st.DataObject, has_files: bool, is_known: bool) -> None:
        """The peer goes to any other head, by the path that the rules prescribe."""
        target = data.draw(st.sampled_from([*self.blocks] or [GENESIS]))
        self.end_turn()
        way: list[Block] = []
        while target != GENESIS:
            way.insert(0, self.blocks[target])
            target = way[0].parent
        common = 0
        while common < min(len(way), len(self.chain)) and way[common] == self.chain[common]:
            common += 1
        for block in reversed(self.chain[common:]):
            self.chain.pop()
            offer = self.account.offer_behind(block.head)
            reclaim = self.account.abandoned(
                block.head,
                block.parent,
                block.tokens,
                len(way) + 1,
                has_vector=has_files or self.is_knowing,
            )
            assert reclaim.on_time + reclaim.late == block.tokens
            assert reclaim.carried <= block.tokens
            if offer is not None and len(way) + 1 - offer.round > STALE_ROUNDS:
                # It is dropped, also where rounds of the other branch have its tokens.
                self.is_waiting_lost |= len(self.turns) > 1
            for chunk in bits(reclaim.chunks):
                assert offer is not None
                self.pending[chunk].update(self.offers[offer.number][chunk])
        for block in way[common:]:
            self._follow(block, is_known=is_known or self.is_knowing)

    def _follow(self, block: Block, *, is_known: bool) -> None:
        self.end_turn()
        settled: Settlement = self.account.committed_by(
            block.head,
            block.parent,
            block.tokens,
            block.chunks if is_known else None,
            counts_spans=True,
            exchanged=block.exchanged,
        )
        self.chain.append(block)
        assert settled.on_time + settled.late == block.tokens
        assert not settled.taken & settled.zeroed
        for chunk in bits(settled.taken):
            assert settled.offer is not None
            self.pending[chunk].subtract(self.offers[settled.offer][chunk])
        self.clear(settled.zeroed)

    def clear(self, chunks: int) -> None:
        """These are given up."""
        for chunk in bits(chunks):
            self.is_waiting_lost |= len(self.turns) > 1 and self.pending[chunk].total() > 0
            self.pending[chunk].clear()

    @rule(reason=st.sampled_from(["stale", "nonfinite"]))
    def drop(self, reason: str) -> None:
        self.end_turn()
        carried = self.account.carried
        assert self.account.drop(reason) == carried
        assert self.account.carried == 0
        self.clear(ALL)

    @rule()
    def drop_stale(self) -> None:
        self.end_turn()
        before = self.account.carried
        chunks, tokens = self.account.drop_stale(self.round)
        assert before - self.account.carried == tokens
        assert chunks or not tokens
        assert not any(0 < since < self.round - STALE_ROUNDS for since in self.account.state.since)
        self.clear(chunks)

    @rule(tokens_max=st.integers(1, 1000))
    def drop_excess(self, tokens_max: int) -> None:
        """The work stays in `pending`."""
        before, tokens_max = self.account.carried, tokens_max * self.tokens_unit
        dropped = self.account.dropped
        self.account.state.drop_excess(tokens_max)
        assert self.account.carried == min(before, tokens_max)
        assert self.account.dropped - dropped == before - self.account.carried

    @rule()
    def save(self) -> None:
        self.end_turn()
        self.account.saved()
        assert self.account.state.is_saved
        self.saved = copied(self.pending)

    @rule()
    def crash(self) -> None:
        """The peer is killed as by SIGKILL. The account on disk is that of its newest event, and
        `pending` on disk is that of the last save."""
        state = msgspec.msgpack.decode(
            msgspec.msgpack.encode(self.account.state), type=AccountState
        )
        newest, self.newest = self.newest, None
        was_saved, before = self.account.state.is_saved, self.pending
        self.account = WorkAccount(NUM_CHUNKS, STALE_ROUNDS, state)
        restart = self.account.restarted()
        self.pending = zeros()
        for chunk in bits(restart.chunks):
            self.pending[chunk] = Counter(self.saved[chunk])
        is_less = any(old - new for old, new in zip(before, self.pending, strict=True))
        assert not (was_saved and is_less), "it said that all was on disk"
        self.is_waiting_lost |= is_less and len(self.turns) > 1
        assert self.account.state.is_saved
        if newest is not None:
            self.offers[newest[0]] = copied(self.pending)
        for number, chunks in restart.offers.items():
            vector = self.offers.setdefault(number, zeros())
            for chunk in bits(chunks):
                vector[chunk] = Counter(self.pending[chunk])

    # What must hold

    @invariant()
    def balances(self) -> None:
        state = self.account.state
        assert is_balanced(self.account)
        # Where it does not know what a header took, it may hold it for an earlier life's.
        unknown = state.trained + state.under_way - self.tokens_ever
        assert unknown == 0 or (unknown > 0 and not self.is_knowing)
        numbers = [state.committed_on_time, state.committed_late, state.lost, state.trained]
        assert min([*numbers, *state.dropped.values()]) >= 0
        not_on_disk = state.tokens_not_on_disk()
        for number, lot in state.lots.items():
            assert 0 <= not_on_disk[number] <= lot.carried
            assert lot.dropped >= 0
            assert lot.lost >= 0

    @invariant()
    def knows_which_chunks_have_work(self) -> None:
        state = self.account.state
        with_work = mask_of(any(chunk.values()) for chunk in self.pending)
        assert state.with_work == mask_of(since > 0 for since in state.since) == with_work
        assert with_work or not self.account.carried, "tokens without work"

    @invariant()
    def is_what_the_chain_says(self) -> None:
        assert committed_of(self.account) == sum(block.tokens for block in self.chain)

    @invariant()
    def nothing_counts_twice_or_vanishes(self) -> None:
        state = self.account.state
        is_all_there = self.is_knowing and not (
            state.lost or self.account.dropped or self.is_waiting_lost
        )
        for chunk in range(NUM_CHUNKS):
            there = Counter(self.pending[chunk])
            for block in self.chain:
                there.update(block.vector[chunk])
            for number in range(1, self.num_trained + 1):
                assert there[number] in (0, 1)
                assert there[number] == 1 or not is_all_there


class KnowingAccountMachine(AccountMachine):
    """A machine whose tokens can be divided among chunks many times without a rest: nothing is
    rounded."""

    tokens_unit = NUM_CHUNKS**8
    is_knowing = True


class FragmentsMachine(AccountMachine):
    """A machine whose rounds average a part of the chunks."""

    turns = (0b0001, 0b1110)


class KnowingFragmentsMachine(KnowingAccountMachine):
    turns = (0b0011, 0b1000, 0b0100)


SETTINGS = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestAnyAccount = AccountMachine.TestCase
TestAnyAccount.settings = SETTINGS
TestKnowingAccount = KnowingAccountMachine.TestCase
TestKnowingAccount.settings = SETTINGS
TestAnyFragments = FragmentsMachine.TestCase
TestAnyFragments.settings = SETTINGS
TestKnowingFragments = KnowingFragmentsMachine.TestCase
TestKnowingFragments.settings = SETTINGS
