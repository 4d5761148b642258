"""The head that wins over a round under way: which node yields, and when, as the daemon decides it.

The chain here: all three members made the first round, which is the fork, and mine is one round
after it. My ring may commit another round on mine.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from gossamer.node.heads.allowed_heads import AllowedHeads
from gossamer.node.heads.avoided_heads import (
    BLAME_SECONDS,
    SIGNER_AVOID_SECONDS_MAX,
    UNASKED_SECONDS,
    AvoidedHeads,
)
from gossamer.node.heads.branches import RingAtWork
from gossamer.node.heads.heads import BetterHead, Heads
from gossamer.node.peers.chain.chain_records import BehindError
from gossamer.node.rounds.decisions import OVERTAKEN_SECONDS, RingProgress
from gossamer.node.rounds.turn import is_round_overtaken
from gossamer.node.storage.chain import known_rounds
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.conduct.bans import Bans
from gossamer.protocol.policy.heads.head_choice import UNDO_ROUNDS_MAX, HeadChoice
from gossamer.protocol.policy.statement_store import StatementStore
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.state.commit_records import decode_commit
from gossamer.protocol.state.run_end import RunEnd
from gossamer.protocol.wire.statements import Rollback, Signed, Vote
from tests.support.builders import manifest, peers
from tests.support.long_chains import rounds_after

RUN_ID = Digest(bytes(32))
ME, B, C, STRANGER = peers(4)
ALL = (ME, B, C)
TOKENS = 100
MY_RING, OTHER_RING = digest_of(b"mine"), digest_of(b"other")

RING_SECONDS = 60.0
"""Time that my ring has taken when a better head is seen."""
GATHER_SECONDS = 10.0
END = RunEnd(manifest().model, manifest().inner, manifest().outer)
"""Of a run that does not end."""


def signed(author: PeerId) -> Signed:
    """An envelope that nothing here opens."""
    return Signed(author, b"", bytes(64))


class TakenBack(list[Rollback]):
    """Rollbacks, as `Heads` needs them."""

    def parents(self) -> frozenset[Digest]:
        return frozenset(Digest(each.parent) for each in self)


class Chain:
    """Rounds by some members each, and the `Heads` of `ME` among them.

    Attributes:
        at_work: living peers that work on the round after my head, with me.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = ChainStore(directory, RUN_ID, Digest(bytes(32)))
        self.committed = SimpleNamespace(chain=self.store, head=RUN_ID, is_loaded=True, end=END)
        self.at_work: Collection[PeerId] = ALL
        self.statements = StatementStore()
        self.conduct = SimpleNamespace(doubted=lambda _number: frozenset())
        partners = SimpleNamespace(conduct=self.conduct)
        swarm = SimpleNamespace(
            me=ME,
            admission=SimpleNamespace(partners=partners),
            living=self._living,
            ready_since=lambda _head: None,
            gossip=SimpleNamespace(statement_store=self.statements),
        )
        self.rounds = KnownRounds(self.store)
        choice = HeadChoice(self.rounds, ME)
        unused: Any = None
        self.rollbacks = TakenBack()
        committed = cast(Any, self.committed)
        self.heads = Heads(
            cast(Any, SimpleNamespace(gather_seconds=GATHER_SECONDS)),
            self.rounds,
            choice,
            committed,
            cast(Any, SimpleNamespace(records=SimpleNamespace(unfinished=frozenset()))),
            cast(Any, swarm),
            unused,
            cast(Any, SimpleNamespace(phase="averaging")),
            AllowedHeads(committed, choice, cast(Any, self.rollbacks)),
        )
        self.fork = self.committed.head = self.add(RUN_ID, ALL)
        self.mine = self.committed.head = self.add(self.fork, [ME, B])

    def _living(self) -> dict[PeerId, SimpleNamespace]:
        announce = SimpleNamespace(head=self.committed.head, phase="averaging")
        return {peer: announce for peer in self.at_work if peer != ME}

    def add(
        self,
        parent: Digest,
        signers: Collection[PeerId],
        tokens: int = TOKENS,
        ring_id: Digest = OTHER_RING,
        voters: Collection[PeerId] = (),
        only: Collection[PeerId] = (),
    ) -> Digest:
        """A round of some members; `voters` sign it besides. If there are `only`, these sign it and
        nobody else."""
        before = self.store.entry(parent)
        header = Header(
            version=limits.PROTOCOL_VERSION,
            run_id=RUN_ID,
            round=before.round + 1,
            parent=parent,
            ring_id=ring_id,
            members=tuple(Member(peer, tokens, 1.0) for peer in signers),
            tokens_total=before.tokens_total + tokens * len(signers),
            update_digest=bytes(32),
            state_digest=bytes(32),
            ledger_digest=bytes(32),
            spans=(),
        )
        votes = tuple(signed(peer) for peer in (only or (*signers, *voters)))
        head = self.store.add(Commit(to_msgpack(header), signed(ME), votes), header)
        self.heads.note_counting(head)
        return head

    def is_overtaken_after(
        self,
        seconds: float,
        *,
        ring: Collection[PeerId] = ALL,
        is_at_work: bool = True,
        proposed: Digest | None = None,
        average_at: float | None = None,
    ) -> bool:
        """Returns whether my ring is left so long after the better head was first seen.

        Args:
            average_at: time from the better head to an average of the ring, which began a minute
                before the better head was seen.
        """

        async def main() -> bool:
            progress = RingProgress()
            progress.look(trio.current_time(), MY_RING, 0)
            await trio.sleep(RING_SECONDS)
            self.heads.better()
            heard_at = trio.current_time()
            await trio.sleep(seconds)
            if average_at is not None:
                progress.look(heard_at + average_at, MY_RING, 1)
            weights = dict.fromkeys(ring, TOKENS)
            better = self.heads.better()
            at_work = RingAtWork(MY_RING, proposed) if is_at_work else None
            return is_round_overtaken(self.heads, better, progress, weights, at_work).holds

        return trio.run(main, clock=MockClock(autojump_threshold=0.0))


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path / "chain")


def head_better_than_mine(chain: Chain) -> Digest | None:
    better = better_of(chain)
    return None if better is None else better.head


def shown_by_one_signer(chain: Chain) -> tuple[Digest, Digest]:
    """A round of all members after mine, of which C has shown a record that it signed alone, and is
    my head. Beside it is one of C alone, which claims more. Returns the heads."""
    round_of_all = chain.add(chain.mine, ALL, only=[C])
    lone = chain.add(chain.mine, [C], 10 * TOKENS)
    chain.committed.head = round_of_all
    return round_of_all, lone


def test_a_member_that_shows_a_round_first_does_not_choose_who_signed_it(chain: Chain) -> None:
    """By its own record alone the round of all would weigh as much as that of C alone."""
    round_of_all, lone = shown_by_one_signer(chain)
    assert head_better_than_mine(chain) == lone
    chain.add(chain.mine, ALL)  # the record of a member of that ring
    assert head_better_than_mine(chain) is None
    assert chain.heads.signers_of(round_of_all) == {*ALL}
    chain.store.sync(chain.add(round_of_all, ALL))  # the next round is over
    again = ChainStore(chain.directory, RUN_ID, Digest(bytes(32)))
    assert KnownRounds(again).signers_of(round_of_all) == {*ALL}


@pytest.mark.parametrize("is_early", [False, True])
def test_votes_that_are_heard_count_beside_the_record_of_a_round(
    chain: Chain, *, is_early: bool
) -> None:
    ring_id = OTHER_RING
    first = chain.add(chain.mine, ALL, only=[C])
    others = [(peer, Vote(ring_id, 1, first, ())) for peer in ALL]
    wrong = Vote(MY_RING, 1, first, ())
    if is_early:
        chain.store.forget_all_but([chain.mine])
        chain.heads._rounds._records.clear()
        for author, vote in [*others, (STRANGER, Vote(ring_id, 1, first, ()))]:
            chain.statements.post(signed(author), vote)
    round_of_all, lone = shown_by_one_signer(chain)
    assert round_of_all == first
    if not is_early:
        assert head_better_than_mine(chain) == lone
        chain.rounds.heard_vote(signed(ME), wrong)
        chain.rounds.heard_vote(signed(STRANGER), Vote(ring_id, 1, first, ()))
        assert head_better_than_mine(chain) == lone
        for author, vote in others:
            chain.rounds.heard_vote(signed(author), vote)
    assert head_better_than_mine(chain) is None
    assert chain.heads.signers_of(round_of_all) == {*ALL}


def with_heard_vote(chain: Chain) -> Digest:
    """The head of a round that C has shown alone. Besides, my vote was heard, and is so old that
    nothing else has it any more."""
    round_of_all, _ = shown_by_one_signer(chain)
    assert chain.heads.signers_of(round_of_all) == {C}
    chain.rounds.heard_vote(signed(ME), Vote(OTHER_RING, 1, round_of_all, ()))
    assert chain.heads.signers_of(round_of_all) == {ME, C}
    return round_of_all


@pytest.mark.parametrize("is_early", [False, True])
def test_heard_votes_are_in_the_record_when_the_next_round_is_over(
    chain: Chain, *, is_early: bool
) -> None:
    """A node that is started again knows them, and so does one that learns the round from it."""
    if is_early:
        head = chain.add(chain.mine, ALL, only=[C])
        chain.store.forget_all_but([chain.mine])
        chain.heads._rounds._records.clear()
        chain.statements.post(signed(ME), Vote(OTHER_RING, 1, head, ()))
        chain.add(chain.mine, ALL, only=[C])
        assert chain.heads.signers_of(head) == {ME, C}
    else:
        head = with_heard_vote(chain)
    newest = chain.add(head, ALL, only=[C])
    assert chain.heads.signers_of(newest) == {C}
    chain.rounds.heard_vote(signed(B), Vote(OTHER_RING, 1, newest, ()))
    chain.store.sync(newest)
    again = KnownRounds(ChainStore(chain.directory, RUN_ID, Digest(bytes(32))))
    assert again.signers_of(head) == {ME, C}
    (record,) = chain.store.records_after(head, 2)
    assert {vote.author for vote in decode_commit(record).votes} == {ME, C}
    chain.store.write_waiting()  # the node leaves
    again = KnownRounds(ChainStore(chain.directory, RUN_ID, Digest(bytes(32))))
    assert again.signers_of(newest) == {B, C}


def test_votes_for_old_rounds_displace_no_heard_vote(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any peer may say such votes. The disk was asked once for each."""
    monkeypatch.setattr(known_rounds, "RECORDS_KEPT", 4)
    old = [chain.add(chain.fork, [ME], TOKENS + number) for number in range(4)]
    round_of_all = with_heard_vote(chain)
    for head in old:
        chain.rounds.heard_vote(signed(STRANGER), Vote(MY_RING, 1, head, ()))
    assert chain.heads.signers_of(round_of_all) == {ME, C}


def test_a_further_record_takes_no_heard_vote_away(chain: Chain) -> None:
    round_of_all = with_heard_vote(chain)
    assert chain.add(chain.mine, ALL, only=[B]) == round_of_all
    assert chain.heads.signers_of(round_of_all) == {*ALL}


def test_without_a_better_head_a_round_goes_on(chain: Chain) -> None:
    chain.add(chain.fork, [C], 10 * TOKENS)
    assert not chain.is_overtaken_after(60.0)


def test_what_follows_my_head_is_on_mine_and_a_branch_is_not(chain: Chain) -> None:
    child = chain.add(chain.mine, [B])
    branch = chain.add(chain.fork, ALL)
    assert chain.heads.branches.is_on_mine(chain.mine)
    assert chain.heads.branches.is_on_mine(child)
    assert chain.heads.branches.is_on_mine(chain.add(child, [B]))
    assert not chain.heads.branches.is_on_mine(branch)
    assert not chain.heads.branches.is_on_mine(chain.add(branch, [B]))


def test_a_lone_commit_on_my_head_does_not_stop_a_ring_of_many(chain: Chain) -> None:
    chain.add(chain.mine, [C], 10 * TOKENS)
    assert not chain.is_overtaken_after(60.0)


def test_a_lone_commit_on_my_head_ends_my_wait_when_it_was_time(chain: Chain) -> None:
    """The member that went on alone may have had to: so its round is taken over, later."""
    chain.add(chain.mine, [C])
    chain.at_work = [ME, B]
    assert not chain.is_overtaken_after(GATHER_SECONDS - 0.01, ring=[])
    assert chain.is_overtaken_after(GATHER_SECONDS, ring=[])


def test_a_commit_on_my_head_by_more_than_are_at_work_ends_my_round_at_once(chain: Chain) -> None:
    chain.add(chain.mine, [B, C])
    chain.at_work = [ME]
    assert chain.is_overtaken_after(0.0, ring=[ME])


def test_a_ring_that_the_others_ended_without_me_is_left_at_once(chain: Chain) -> None:
    """They count in my ring no more, whether it is that ring or another one that they committed."""
    chain.add(chain.mine, [B, C])
    assert chain.is_overtaken_after(0.0, ring=[ME, B, C])


def test_a_ring_of_strangers_that_the_others_ended_without_me_is_left(chain: Chain) -> None:
    """Nobody has stake: the tokens decide."""
    one, two, three = peers(9)[5:8]
    chain.add(chain.mine, [one, two])
    chain.at_work = []
    chain.heads._progress.phase = "paused"
    assert chain.is_overtaken_after(0.0, ring=[one, two, three])


def test_strangers_on_my_head_stop_no_member_whatever_they_claim(chain: Chain) -> None:
    chain.add(chain.mine, [STRANGER, *peers(9)[4:]], 10**9)
    chain.at_work = [ME]
    assert not chain.is_overtaken_after(3600.0, ring=[ME])


def test_a_branch_of_strangers_is_never_better(chain: Chain) -> None:
    head = chain.fork
    for _ in range(5):
        head = chain.add(head, [STRANGER, *peers(9)[4:]], 10**9)
    assert not chain.is_overtaken_after(3600.0, ring=[])


def test_of_two_branches_the_one_behind_yields_at_once_whatever_its_ring_may_commit(
    chain: Chain,
) -> None:
    chain.add(chain.fork, [ME, C], TOKENS + 1)
    assert chain.is_overtaken_after(0.0)


def test_the_commit_of_my_own_ring_by_others_is_finished_here_if_that_is_soon(
    chain: Chain,
) -> None:
    chain.add(chain.mine, [B, C], TOKENS, MY_RING)
    assert not chain.is_overtaken_after(OVERTAKEN_SECONDS - 0.01, ring=[ME])
    assert chain.is_overtaken_after(OVERTAKEN_SECONDS, ring=[ME])
    assert not chain.is_overtaken_after(OVERTAKEN_SECONDS + 2.9, ring=[ME], average_at=3.0)
    assert chain.is_overtaken_after(OVERTAKEN_SECONDS + 3.0, ring=[ME], average_at=3.0)
    assert chain.is_overtaken_after(0.0, ring=[ME], is_at_work=False)


def test_the_commit_of_my_own_ring_that_i_signed_is_not_finished_here(chain: Chain) -> None:
    """I found a better average after my vote, and the others had committed by then."""
    head = chain.add(chain.mine, [ME, B, C], TOKENS, MY_RING)
    assert chain.is_overtaken_after(0.0, ring=[ME], proposed=digest_of(b"a better average"))
    assert not chain.is_overtaken_after(0.0, ring=[ME], proposed=head), "I commit it in an instant"


def test_patience_is_for_my_own_ring_only(chain: Chain) -> None:
    chain.add(chain.add(chain.mine, [B, C], TOKENS, MY_RING), [B], 1, OTHER_RING)
    assert not chain.is_overtaken_after(0.0, ring=[ME]), "the way there begins with my ring's round"
    chain.add(chain.add(chain.mine, [B, C], TOKENS, OTHER_RING), [B], 2, MY_RING)
    assert chain.is_overtaken_after(0.0, ring=[ME])


def test_only_chains_with_the_pinned_head_are_followed(chain: Chain) -> None:
    """A newcomer whom its link names a head is not led to a chain that others made for it."""
    pinned = chain.add(chain.fork, [C])
    chain.heads.allowed._pinned_head = pinned
    chain.add(chain.fork, ALL, 10 * TOKENS)
    better = best_of(chain)
    assert better is not None
    assert better.head == pinned, "the own head and a heavier one lack it"
    following = chain.add(pinned, [C])
    better = best_of(chain)
    assert better is not None
    assert better.head == following


def best_of(chain: Chain) -> BetterHead | None:
    async def main() -> BetterHead | None:
        return chain.heads.better()

    return trio.run(main, clock=MockClock(autojump_threshold=0.0))


def test_votes_of_strangers_make_no_most_of_my_ring(chain: Chain) -> None:
    """A record holds as many votes as it has members, and anybody's: only theirs count."""
    for others, follows in (([B], False), ([B, C], True)):
        for padding in ([], [STRANGER, *peers(9)[4:6]]):
            head = chain.add(chain.mine, [*others], TOKENS + len(padding), MY_RING, padding)
            chain.heads.branches._rings = {MY_RING}
            assert chain.heads._rounds.is_by_most_of({MY_RING}, head) is follows
            assert chain.heads.branches.is_of_my_ring(head) is follows
            assert not chain.heads._rounds.is_by_most_of({OTHER_RING}, head)


@pytest.mark.parametrize(
    ("ring_id", "doubted", "follows"),
    [(MY_RING, {C}, True), (MY_RING, {}, False), (OTHER_RING, {C}, False)],
)
def test_one_that_splits_my_ring_keeps_me_from_no_commit_of_it(
    chain: Chain, ring_id: Digest, doubted: Collection[PeerId], *, follows: bool
) -> None:
    """It is at work on my head like me, and the half of the ring that committed has as much stake
    as I alone."""
    chain.conduct.doubted = lambda number: frozenset(doubted if number == 3 else ())
    chain.heads.branches.followed(MY_RING)
    head = chain.add(chain.mine, [B], TOKENS, ring_id)
    assert head_better_than_mine(chain) == (head if follows else None)
    chain.at_work = [ME, B]
    assert head_better_than_mine(chain) == head


def test_a_record_that_cannot_be_read_says_nothing_of_my_ring(chain: Chain) -> None:
    head = chain.add(chain.mine, [B, C], TOKENS, MY_RING)
    for path in (chain.directory).iterdir():
        path.write_bytes(b"damaged")
    chain.heads.branches.followed(MY_RING)
    assert not chain.heads.branches.is_of_my_ring(head)
    assert not chain.heads.branches.is_by_way_of(RingAtWork(MY_RING, None), head)
    assert chain.heads.branches.first_of(head) is None


def take_back(chain: Chain, undone: Digest) -> None:
    """The founder takes back a round and all that followed it."""
    entry = chain.store.entry(undone)
    chain.rollbacks.append(Rollback(undone, entry.parent, entry.round - 1))


def better_of(chain: Chain) -> BetterHead | None:
    async def main() -> BetterHead | None:
        return chain.heads.better()

    return trio.run(main, clock=MockClock())


def wanted_of(chain: Chain) -> list[Digest]:
    async def main() -> list[Digest]:
        return chain.heads.wanted()

    return trio.run(main, clock=MockClock())


def test_a_node_leaves_a_round_that_was_taken_back_for_the_one_before(chain: Chain) -> None:
    chain.committed.head = chain.add(chain.mine, ALL)
    take_back(chain, chain.mine)
    assert chain.is_overtaken_after(0.0)
    better = better_of(chain)
    assert better is not None
    assert better.head == chain.fork
    assert not chain.heads.allowed.may_stand(chain.committed.head)
    chain.committed.head = chain.fork
    assert better_of(chain) is None
    assert chain.heads.allowed.may_stand(chain.fork)


def test_no_support_makes_a_round_count_again_that_was_taken_back(chain: Chain) -> None:
    void = chain.add(chain.add(chain.mine, ALL, 10 * TOKENS), ALL, 10 * TOKENS)
    take_back(chain, chain.mine)
    chain.committed.head = chain.fork
    assert better_of(chain) is None
    assert not wanted_of(chain)
    assert chain.heads.is_lost(cast(Any, SimpleNamespace(head=void)))
    after = chain.add(chain.fork, [B])
    chain.heads.note_counting(after)
    chain.committed.head = void
    better = better_of(chain)
    assert better is not None
    assert better.head == after


def test_more_rounds_are_taken_back_than_a_node_undoes_by_itself(chain: Chain) -> None:
    head = chain.mine
    for _ in range(UNDO_ROUNDS_MAX + 4):
        head = chain.add(head, ALL)
    chain.committed.head = head
    take_back(chain, chain.mine)
    better = better_of(chain)
    assert better is not None
    assert better.head == chain.fork


def test_a_look_at_the_heads_takes_no_more_steps_after_ten_thousand_rounds(chain: Chain) -> None:
    """A node that waits looks several times a second. Steps are calls of functions."""

    def grow(num_rounds: int) -> None:
        entry = chain.store.entry(chain.committed.head)
        rounds = rounds_after(
            [ME, B],
            num_rounds,
            entry.head,
            round_number=entry.round,
            tokens_total=entry.tokens_total,
            run_id=RUN_ID,
        )
        for commit, header in rounds:
            chain.committed.head = chain.store.add(commit, header)
            if header.round % 100 == 0:
                chain.heads.note_counting(chain.committed.head)

    def look() -> None:
        announce = cast(Any, SimpleNamespace(head=chain.committed.head))
        chain.heads.better()
        chain.heads.wanted()
        chain.heads.branches.recent()
        chain.heads.is_lost(announce)
        chain.heads.is_near(chain.committed.head)

    def steps_of_a_look() -> int:
        num_steps = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal num_steps
            num_steps += event in ("call", "c_call")

        async def main() -> None:
            look()  # reads records from the disk, which are remembered
            gc.disable()  # hypothesis has functions called whenever the collector runs
            sys.setprofile(count)
            try:
                look()
            finally:
                sys.setprofile(None)
                gc.enable()

        trio.run(main, clock=MockClock())
        return num_steps

    grow(200)
    few = steps_of_a_look()
    grow(9_800)
    assert 0 < steps_of_a_look() <= few


def test_a_catching_up_that_ends_early_counts_as_far_as_it_came(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its owner pauses the node: it stood at the new head with the bookkeeping of the old
    one, until its next round."""
    nearer = chain.add(chain.mine, ALL)
    head = chain.add(nearer, ALL)
    noted: list[Digest] = []
    is_moving = True

    async def follow(_head: Digest, _sources: object) -> None:
        if is_moving:
            chain.committed.head = nearer
        await trio.sleep_forever()

    heads = cast(Any, chain.heads)
    monkeypatch.setattr(heads, "_chain_sync", SimpleNamespace(follow=follow))
    heads._swarm.sources = tuple
    monkeypatch.setattr(heads, "note_new", lambda: noted.append(chain.committed.head))

    async def main() -> None:
        with trio.move_on_after(1.0):
            await heads.try_take_over(head)

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert noted == [nearer]
    is_moving = False
    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert noted == [nearer], "and not where it did not move"


def test_nobody_is_blamed_for_the_line_that_this_node_spares(tmp_path: Path) -> None:
    """It becomes metered while blocks come, and the fetch fails for it."""
    chain, blamed = Chain(tmp_path), list[PeerId]()
    swarm: Any = chain.heads._swarm
    swarm.sources = lambda: [B]
    swarm.offence = lambda peer, _error: blamed.append(peer)

    async def main() -> None:
        for is_metered in (True, False):
            swarm.spares_line = lambda is_metered=is_metered: is_metered
            assert blamed == []
            chain.heads.avoid(chain.mine, BehindError("blocks are missing"))
        chain.heads.avoid(chain.mine, BehindError("and soon after that again"))
        assert blamed == [B]
        await trio.sleep(BLAME_SECONDS + 1)
        chain.heads.avoid(chain.mine, BehindError("and now"))
        assert blamed == [B, B]

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_peer_at_heads_that_cannot_be_reached_is_not_banned_for_that_alone() -> None:
    bans = Bans()
    numbers = range(1000)
    assert not any(bans.offence(BLAME_SECONDS * each, B, "unproven") for each in numbers)


def test_the_beginning_of_the_run_has_no_branch_and_no_record_that_could_not_be_read(
    chain: Chain,
) -> None:
    """The founder takes all rounds back: this node goes to a head that no record leads to."""
    with capture_logs() as logs:
        assert chain.heads.branches.first_of(RUN_ID) is None
    assert logs == []


def test_a_head_that_no_peer_can_be_asked_for_is_tried_less_and_less_often() -> None:
    """All that hold it may be gone for good, and each try ends this node's training."""
    avoided = AvoidedHeads(lambda _peer: True)
    head, now = digest_of(b"head"), 0.0
    waits = []
    for _ in range(12):
        avoided.failed(now, head, (), was_asked=False)
        since = now
        while avoided.is_avoided(now, head, (), lambda: False):
            now += 1.0
        waits.append(now - since)
    assert waits[:3] == [UNASKED_SECONDS, 2 * UNASKED_SECONDS, 4 * UNASKED_SECONDS]
    assert waits[-1] == SIGNER_AVOID_SECONDS_MAX


def test_a_head_is_tried_at_once_when_there_is_a_peer_to_ask_for_it() -> None:
    avoided = AvoidedHeads(lambda _peer: True)
    head = digest_of(b"head")
    for _ in range(4):
        avoided.failed(0.0, head, (), was_asked=False)
    assert avoided.is_avoided(1.0, head, (), lambda: False)
    assert not avoided.is_avoided(1.0, head, (), lambda: True)
    avoided.failed(1.0, head, (), was_asked=True)
    assert avoided.is_avoided(2.0, head, (), lambda: True), "it was asked in vain"
