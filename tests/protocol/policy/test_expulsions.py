"""Votes that put a branch out: who counts, when it holds, and that all peers find the same."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members.expulsion_count import VOTE_ROUNDS
from gossamer.protocol.policy.members.expulsions import (
    AHEAD_ROUNDS,
    CONFIRM_ROUNDS,
    Expulsions,
)
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.wire.expulsion_messages import (
    EXPULSION_PAGE_BYTES_MAX,
    VOTE_BYTES_MAX,
    VOTE_PERIOD,
    VOTES_MAX,
    ExpulsionPage,
    ExpulsionVote,
    decode_expulsion_page,
    decode_saved,
)
from gossamer.protocol.wire.invitation_messages import Certificate, Entry, RollPage, proof_bytes
from tests.support.builders import RUN_ID, members_of, peer, sign_as, verify
from tests.support.mutations import altered

ROOT, A, B, C, D, E, BELOW_C, STRANGER = (peer(number) for number in range(8))
NOW = 1_700_000_000
EQUAL = dict.fromkeys((ROOT, A, B, C, D), 10)
SETTLED = 10 * VOTE_PERIOD


class Chain:
    """The settled heads of one chain, with the same stake at all of them."""

    def __init__(
        self,
        stakes: Mapping[PeerId, int],
        settled_round: int = SETTLED,
        *,
        first_round: int = VOTE_PERIOD,
        name: bytes = b"chain",
    ) -> None:
        self.settled_round = settled_round
        self.stakes = stakes
        self.later: dict[int, Mapping[PeerId, int]] = {}
        """Stake at rounds where it differs."""
        self.first_round = first_round
        self._name = name

    def head_at(self, round_number: int) -> Digest | None:
        is_kept = self.first_round <= round_number <= self.settled_round
        return digest_of(self._name + b"%d" % round_number) if is_kept else None

    def stakes_at(self, head: Digest) -> Mapping[PeerId, int]:
        for number, stakes in self.later.items():
            if self.head_at(number) == head:
                return stakes
        return self.stakes


def entry(newcomer: PeerId, sponsor: PeerId, number: int, *, depth: int = 0) -> Entry:
    one_time = peer(1000 + number)
    blank = Certificate(public_key_of(sponsor), public_key_of(one_time), 1, NOW + 1000, depth, b"")
    by = replace(blank, signature=sign_as(sponsor)(blank.signing_bytes(RUN_ID)))
    proof = sign_as(one_time)(proof_bytes(RUN_ID, public_key_of(newcomer)))
    unsigned = Entry(by, public_key_of(newcomer), proof, public_key_of(ROOT), NOW + number, b"")
    return replace(unsigned, signature=sign_as(ROOT)(unsigned.signing_bytes(RUN_ID)))


MEMBERS = (
    *(entry(each, ROOT, number, depth=1) for number, each in enumerate((A, B, C, D, E))),
    entry(BELOW_C, C, 10),
)


def new(members: Iterable[Entry] = MEMBERS) -> tuple[Roll, Expulsions]:
    roll = Roll(RUN_ID, [ROOT], verify)
    roll.add(RollPage(tuple(members), ()))
    return roll, Expulsions(roll, verify)


def vote(
    voter: PeerId,
    target: PeerId = C,
    round_number: int = SETTLED,
    *,
    chain: bytes = b"chain",
    run_id: Digest = RUN_ID,
) -> ExpulsionVote:
    """A vote that nobody has looked at."""
    head = digest_of(chain + b"%d" % round_number)
    blank = ExpulsionVote(public_key_of(voter), public_key_of(target), round_number, head, b"")
    return replace(blank, signature=sign_as(voter)(blank.signing_bytes(run_id)))


def hear(node: tuple[Roll, Expulsions], chain: Chain, *votes: ExpulsionVote) -> int:
    """Takes votes as a node does. Returns the number of those that were news."""
    roll, expulsions = node
    fresh = expulsions.fresh(votes, chain.settled_round)
    expulsions.check(fresh)
    kept = expulsions.take(fresh, chain)
    roll.expel(expulsions.expelled)
    return len(kept)


def advance(node: tuple[Roll, Expulsions], chain: Chain) -> None:
    node[1].advance(chain)
    node[0].expel(node[1].expelled)


def exchange(one: tuple[Roll, Expulsions], other: tuple[Roll, Expulsions], chain: Chain) -> None:
    """One takes what it lacks from the other, as over the wire."""
    held = set(one[1].digests())
    wanted = {each for each in other[1].digests() if each not in held}
    page = decode_expulsion_page(to_msgpack(other[1].pieces(wanted)))
    hear(one, chain, *page.votes)


# When it holds


def test_two_thirds_put_out_a_member_and_all_below_it() -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, vote(A), vote(B), vote(D))
    assert node[0].is_member(C), "30 of 50"
    hear(node, chain, vote(ROOT))
    assert members_of(node[0]) == {ROOT, A, B, D, E}, "40 of 50"
    assert node[0].was_member(C), "its name in old headers stays good"


@pytest.mark.parametrize(("stake", "holds"), [(10, True), (9, False)])
def test_exactly_two_thirds_are_enough_and_less_is_not(stake: int, holds: bool) -> None:
    node = new()
    stakes = {ROOT: 10, A: 10, B: 10, C: 10, D: stake, E: 10}
    hear(node, Chain(stakes), *(vote(each) for each in (ROOT, A, B, D)))
    assert node[0].is_member(C) is not holds


def test_an_invitation_goes_with_those_that_came_in_by_it() -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, *(vote(each, peer(1002)) for each in (ROOT, A, B, D)))
    assert members_of(node[0]) == {ROOT, A, B, D, E}


def test_of_three_branches_two_put_out_the_third_whatever_it_has() -> None:
    node, chain = new(), Chain({A: 30, B: 20, C: 40, BELOW_C: 500})
    hear(node, chain, vote(A), vote(C, B), vote(BELOW_C, B))
    assert node[0].is_member(B)
    tally = node[1].tally(public_key_of(C), chain)
    assert tally is not None
    assert (tally.support, tally.total, tally.needed) == (20, 60, 2)
    hear(node, chain, vote(B))
    assert members_of(node[0]) == {ROOT, A, B, D, E}


@pytest.mark.parametrize("stakes", [{A: 100}, {A: 100, C: 1}, {A: 50, B: 1}])
def test_with_fewer_branches_nobody_is_put_out(stakes: dict[PeerId, int]) -> None:
    """Those who work while others sleep do not decide about them."""
    node, chain = new(), Chain(stakes)
    hear(node, chain, vote(A), vote(B), vote(ROOT))
    assert node[0].is_member(C)
    tally = node[1].tally(public_key_of(C), chain)
    assert tally is not None
    assert (tally.total, tally.needed) == (0, None)


def test_many_identities_of_one_branch_put_nobody_out() -> None:
    """All that B has let in work, and one each of two other branches."""
    of_b = [peer(3000 + number) for number in range(12)]
    members = [*MEMBERS, *(entry(each, B, 100 + n) for n, each in enumerate(of_b))]
    node, chain = new(members), Chain({A: 10, D: 10, B: 10, **dict.fromkeys(of_b, 10)})
    hear(node, chain, *(vote(each, A) for each in (B, *of_b)))
    assert node[0].is_member(A)


def test_peers_that_may_not_vote_are_not_among_those_that_are_needed() -> None:
    node, chain = new(), Chain({A: 10, B: 10, C: 10, STRANGER: 10})
    tally = node[1].tally(public_key_of(C), chain)
    assert tally is not None
    assert tally.total == 40
    assert tally.needed is None


def test_a_branch_counts_for_a_quarter() -> None:
    """C's has most of the work; with four branches that is a quarter, and the others decide."""
    node = new()
    chain = Chain({ROOT: 10, A: 10, B: 10, C: 500, BELOW_C: 500})
    hear(node, chain, vote(C, A), vote(BELOW_C, A))
    assert node[0].is_member(A)
    tally = node[1].tally(public_key_of(C), chain, [A])
    assert tally is not None
    assert (tally.support, tally.total, tally.needed) == (10, 40, 3)
    hear(node, chain, vote(ROOT), vote(A), vote(B))
    assert not node[0].is_member(BELOW_C)


def test_a_vote_of_one_who_is_below_the_target_counts() -> None:
    node, chain = new(), Chain({A: 10, B: 10, D: 10, BELOW_C: 20})
    hear(node, chain, vote(A), vote(B))
    assert node[0].is_member(C)
    hear(node, chain, vote(BELOW_C))
    assert not node[0].is_member(C)
    assert not node[0].is_member(BELOW_C)


def test_votes_at_different_heads_count_together_at_the_newest() -> None:
    node, chain = new(), Chain(EQUAL)
    rounds = (SETTLED - 3 * VOTE_PERIOD, SETTLED - VOTE_PERIOD, SETTLED)
    for voter, number in zip((A, B, D), rounds, strict=True):
        hear(node, chain, vote(voter, round_number=number))
    assert node[0].is_member(C)
    hear(node, chain, vote(ROOT, round_number=SETTLED - 2 * VOTE_PERIOD))
    assert not node[0].is_member(C)


def test_a_head_that_is_not_settled_yet_counts_when_it_is() -> None:
    node, chain = new(), Chain(EQUAL)
    later = SETTLED + 2 * VOTE_PERIOD
    hear(node, chain, *(vote(each, round_number=later) for each in (ROOT, A, B, D)))
    assert node[0].is_member(C)
    chain.settled_round = later
    advance(node, chain)
    assert not node[0].is_member(C)


def test_the_newest_head_at_which_votes_hold_is_found() -> None:
    """At the head that the newest vote names, the stake of the others has gone."""
    chain = Chain(EQUAL)
    chain.later[SETTLED] = {E: 1, A: 1, B: 1}
    node, earlier = new(), SETTLED - VOTE_PERIOD
    votes = [vote(each, round_number=earlier) for each in (ROOT, A, B, D)]
    hear(node, chain, vote(E), *votes)
    assert not node[0].is_member(C)
    other = new()
    exchange(other, node, chain)
    assert other[1].expelled == node[1].expelled


def test_a_newer_vote_of_a_voter_does_not_replace_the_one_that_decides() -> None:
    chain, earlier = Chain({D: 10}), SETTLED - VOTE_PERIOD
    chain.later[earlier] = {A: 10, B: 10, D: 10}
    node = new()
    hear(node, chain, vote(A), vote(A, round_number=earlier), vote(B, round_number=earlier))
    assert not node[0].is_member(C)


def test_one_without_stake_does_not_say_at_which_head_votes_count() -> None:
    """Others, who get the votes with stake as the proof, could not tell that head."""
    chain, earlier = Chain({A: 10, B: 10, C: 10}), SETTLED - VOTE_PERIOD
    chain.later[earlier] = {A: 10, C: 10, D: 10}
    node = new()
    hear(node, chain, *(vote(each, round_number=earlier) for each in (A, B)), vote(BELOW_C))
    assert node[0].is_member(C)
    hear(node, chain, vote(A))
    assert not node[0].is_member(C)


def test_the_fewest_members_that_are_needed_are_told() -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, vote(A), vote(E))
    tally = node[1].tally(public_key_of(C), chain, [B])
    assert tally is not None
    assert tally.voters == {A, B}
    assert tally.needed == 4
    assert not tally.holds
    assert node[1].tally(public_key_of(C), Chain(EQUAL, 0)) is None


# What counts nothing


def test_one_third_of_liars_puts_nobody_out_however_often_they_vote() -> None:
    node, chain = new(), Chain({ROOT: 10, A: 10, B: 10, C: 10, D: 10, E: 10})
    for number in range(VOTE_PERIOD, SETTLED + VOTE_PERIOD, VOTE_PERIOD):
        for target in (A, B, C):
            hear(node, chain, *(vote(liar, target, number) for liar in (D, E, STRANGER)))
    assert members_of(node[0]) >= {ROOT, A, B, C, D, E}
    assert all(len(node[1].tally(public_key_of(each), chain).voters) == 2 for each in (A, B, C))  # type: ignore[union-attr]


def test_members_without_standing_and_strangers_count_nothing() -> None:
    node, chain = new(), Chain({ROOT: 10, A: 10, B: 10, STRANGER: 100})
    hear(node, chain, vote(A), vote(E), vote(BELOW_C), vote(D))
    assert hear(node, chain, vote(STRANGER)) == 0
    assert node[0].is_member(C)
    assert node[1].vote_of(STRANGER, public_key_of(C)) is None


def test_the_same_vote_again_is_no_news() -> None:
    node, chain = new(), Chain(EQUAL)
    assert hear(node, chain, vote(A), vote(A)) == 1
    assert hear(node, chain, vote(A), vote(A)) == 0
    assert node[0].is_member(C)


@pytest.mark.parametrize(
    "changed",
    [
        {"target": public_key_of(A)}, {"round": SETTLED - VOTE_PERIOD}, {"head": bytes(32)},
        {"voter": public_key_of(B)}, {"signature": bytes(64)},
    ],
)  # fmt: skip
def test_nobody_changes_a_vote(changed: dict[str, object]) -> None:
    node, chain = new(), Chain(EQUAL)
    with pytest.raises(ForgedError, match="did not sign"):
        hear(node, chain, replace(vote(D), **changed))
    assert node[1].digests() == []


def test_a_vote_in_another_run_is_none_here() -> None:
    with pytest.raises(ForgedError):
        hear(new(), Chain(EQUAL), vote(A, run_id=digest_of(b"another run")))


def test_votes_on_another_chain_count_nothing() -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, *(vote(each, chain=b"other") for each in (ROOT, A, B, D)))
    assert node[0].is_member(C)


def test_nobody_votes_on_roots_or_strangers() -> None:
    node, chain = new(), Chain(EQUAL)
    assert hear(node, chain, vote(A, ROOT), vote(A, STRANGER), vote(A, peer(1099))) == 0
    assert node[1].expelled == frozenset()


def test_votes_end_and_do_not_come_back() -> None:
    node, chain = new(), Chain(EQUAL)
    early = [vote(each) for each in (A, B, D)]
    hear(node, chain, *early)
    chain.settled_round = SETTLED + VOTE_ROUNDS
    advance(node, chain)
    assert node[1].digests() == []
    assert hear(node, chain, *early, vote(ROOT, round_number=chain.settled_round)) == 1
    assert node[0].is_member(C)


def test_votes_of_far_later_rounds_wait_for_an_exchange() -> None:
    node, chain = new(), Chain(EQUAL)
    assert hear(node, chain, vote(A, round_number=SETTLED + AHEAD_ROUNDS)) == 1
    assert hear(node, chain, vote(B, round_number=SETTLED + AHEAD_ROUNDS + VOTE_PERIOD)) == 0


def test_a_flood_of_votes_stays_within_its_bound() -> None:
    members = [entry(A, ROOT, 0)]
    members += [entry(peer(2000 + number), ROOT, 100 + number) for number in range(60)]
    node, chain = new(members), Chain(EQUAL)
    votes = [
        vote(A, peer(2000 + number), round_number)
        for number in range(60)
        for round_number in (SETTLED, SETTLED - VOTE_PERIOD, SETTLED + AHEAD_ROUNDS)
    ]
    for each in random.Random(5).sample(votes, len(votes)):
        hear(node, chain, each)
    assert len(node[1].digests()) == VOTES_MAX
    kept = [each for each in votes if each.round == SETTLED + AHEAD_ROUNDS]
    highest = sorted(kept, key=lambda each: each.target)[-VOTES_MAX:]
    assert {each.digest for each in highest} == set(node[1].digests())
    # Others have their own places.
    assert hear(node, chain, vote(ROOT, A)) == 1


# All peers find the same


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from([ROOT, A, B, C, D, E, STRANGER]), st.integers(1, 50)),
    st.sets(st.sampled_from([ROOT, A, B, D, E, BELOW_C, STRANGER])),
    st.randoms(use_true_random=False),
)
def test_it_holds_exactly_for_two_thirds_in_any_order(
    stakes: dict[PeerId, int], voters: set[PeerId], dice: random.Random
) -> None:
    node, chain = new(), Chain(stakes)
    votes = [vote(each) for each in sorted(voters)]
    told = [dice.choice(votes) for _ in range(20)] if votes else []
    for each in [*told, *dice.sample(votes, len(votes))]:
        hear(node, chain, each)
    tally = new()[1].tally(public_key_of(C), chain, voters - {STRANGER})
    assert tally is not None
    assert (public_key_of(C) in node[1].expelled) is tally.holds
    assert tally.holds is holds(stakes, voters - {STRANGER})


def holds(stakes: Mapping[PeerId, int], voters: set[PeerId]) -> bool:
    """Whether it holds where each peer with stake is a branch of its own."""
    shares = min(4, len(stakes))
    if shares < 3:
        return False
    caps = range(max(stakes.values()) + 1)
    cap = max(c for c in caps if shares * c <= sum(min(each, c) for each in stakes.values()))
    support = sum(min(stakes.get(each, 0), cap) for each in voters)
    return 3 * support >= 2 * sum(min(each, cap) for each in stakes.values())


@settings(max_examples=200, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_nodes_that_heard_different_votes_agree_after_comparing(
    data: st.DataObject, dice: random.Random
) -> None:
    chain = Chain(EQUAL)
    chain.later[SETTLED] = {ROOT: 20, A: 1, B: 30, E: 9}
    nodes = [new() for _ in range(3)]
    told = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.sampled_from([ROOT, A, B, C, D, E]),
                st.sampled_from([A, C, BELOW_C, peer(1002)]),
                st.sampled_from([SETTLED, SETTLED - VOTE_PERIOD, SETTLED + VOTE_PERIOD]),
            ),
            max_size=30,
        )
    )
    for where, voter, target, number in told:
        hear(nodes[where], chain, vote(voter, target, number))
        if dice.random() < 0.2:
            one, other = dice.sample(nodes, 2)
            exchange(one, other, chain)
    for _ in range(3):
        for one in nodes:
            for other in nodes:
                if one is not other:
                    exchange(one, other, chain)
    assert len({node[1].digest() for node in nodes}) == 1
    assert len({members_of(node[0]) for node in nodes}) == 1


def test_a_voter_that_changes_its_mind_divides_nobody() -> None:
    """One node counts its vote, and then it signs so many others that its own are forgotten."""
    members = [*MEMBERS, *(entry(peer(2000 + n), ROOT, 100 + n) for n in range(VOTES_MAX))]
    chain, one, other = Chain(EQUAL), new(members), new(members)
    earlier = SETTLED - VOTE_PERIOD
    honest = [vote(each, round_number=earlier) for each in (ROOT, A, B)]
    hear(one, chain, *honest, vote(D, round_number=earlier))
    flood = [vote(D, peer(2000 + number)) for number in range(VOTES_MAX)]
    for node in (one, other):
        hear(node, chain, *honest, *flood)
        assert node[1].vote_of(D, public_key_of(C)) is None
    assert not one[0].is_member(C)
    assert other[0].is_member(C)
    exchange(other, one, chain)
    assert not other[0].is_member(C)
    exchange(one, other, chain)
    assert one[1].digest() == other[1].digest()


# Later


def test_what_held_holds_for_good_and_over_a_restart() -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, *(vote(each) for each in (ROOT, A, B, D)))
    hear(node, chain, vote(A, B))
    later = Chain({E: 10}, SETTLED + 2 * VOTE_ROUNDS, first_round=SETTLED + VOTE_ROUNDS)
    advance(node, later)
    assert not node[0].is_member(C)
    assert node[1].targets() == frozenset()
    roll, again = new()
    again.restore(decode_saved(to_msgpack(node[1].saved())))
    roll.expel(again.expelled)
    assert members_of(roll) == members_of(node[0])
    assert again.digests() == node[1].digests()
    damaged = replace(vote(A), signature=bytes(64))
    with pytest.raises(ForgedError):
        new()[1].restore(replace(node[1].saved(), votes=(damaged,)))


def test_those_who_know_confirm_so_that_newcomers_can_count_it() -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, *(vote(each) for each in (ROOT, A, B, D)))
    expulsions, target = node[1], public_key_of(C)
    assert not expulsions.is_due(A, target, chain)
    assert not expulsions.is_due(E, target, chain), "it has no stake"
    chain.settled_round += CONFIRM_ROUNDS
    confirmations = []
    for member in (ROOT, A, B, D):
        assert expulsions.is_due(member, target, chain)
        made = expulsions.vote(member, target, chain, sign_as(member))
        assert made is not None
        confirmations.append(made)
    hear(node, chain, *confirmations)
    # The newcomer's chain begins behind the heads of the first votes.
    newcomer = new()
    short = Chain(EQUAL, chain.settled_round, first_round=SETTLED + VOTE_PERIOD)
    exchange(newcomer, node, short)
    assert not newcomer[0].is_member(C)
    assert newcomer[1].digest() == expulsions.digest()


def test_a_chain_with_another_head_there_has_not_put_it_out() -> None:
    """So a newcomer that was led to a chain of liars is not left with their votes."""
    node = new()
    hear(node, Chain(EQUAL), *(vote(each) for each in (ROOT, A, B, D)))
    other = Chain(EQUAL, SETTLED - VOTE_PERIOD, name=b"other")
    advance(node, other)
    assert not node[0].is_member(C), "it does not reach so far yet"
    other.settled_round = SETTLED
    advance(node, other)
    assert node[0].is_member(C)
    # It holds again when the node comes back to the chain.
    advance(node, Chain(EQUAL))
    assert not node[0].is_member(C)


def test_a_confirmation_that_is_undone_leaves_the_first_votes() -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, *(vote(each) for each in (ROOT, A, B, D)))
    chain.settled_round = later = SETTLED + CONFIRM_ROUNDS
    hear(node, chain, *(vote(each, round_number=later) for each in (ROOT, A, B, D)))
    assert {each.round for each in node[1].proof_of(public_key_of(C))} == {later}

    class Fork(Chain):
        def head_at(self, round_number: int) -> Digest | None:
            head = super().head_at(round_number)
            return digest_of(b"other") if head is not None and round_number > SETTLED else head

    advance(node, Fork(EQUAL, later))
    assert not node[0].is_member(C)
    assert {each.round for each in node[1].proof_of(public_key_of(C))} == {SETTLED}
    restored = new()[1]
    restored.restore(decode_saved(to_msgpack(node[1].saved())))
    assert restored.saved() == node[1].saved()


def test_a_vote_at_a_head_that_was_left_is_given_anew() -> None:
    node = new()
    hear(node, Chain(EQUAL), vote(A))
    left = Chain(EQUAL, name=b"other")
    assert node[1].is_due(A, public_key_of(C), left)
    assert node[1].vote(A, public_key_of(C), Chain(EQUAL, 0), sign_as(A)) is None


def test_one_that_came_in_by_two_witnesses_is_out_when_its_entry_comes() -> None:
    """The entry is not here when the vote is restored."""
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, *(vote(each) for each in (ROOT, A, B, D)))
    roll, again = new(())
    again.restore(node[1].saved())
    roll.expel(again.expelled)
    roll.add(RollPage(MEMBERS, ()))
    assert members_of(roll) == {ROOT, A, B, D, E}


def test_what_a_part_of_the_roll_said_does_not_hold_with_all_of_it() -> None:
    """A newcomer heard the votes before it knew most of the branches."""
    more = tuple(entry(peer(100 + number), ROOT, 20 + number) for number in range(6))
    stakes = dict.fromkeys([A, B, D, E, *(peer(100 + number) for number in range(6))], 10)
    chain, votes = Chain(stakes), (vote(A), vote(B))
    newcomer = new(MEMBERS[:3])
    member = new((*MEMBERS, *more))
    for node in (newcomer, member):
        hear(node, chain, *votes)
    assert not newcomer[0].is_member(C)
    assert member[0].is_member(C)
    newcomer[0].add(RollPage((*MEMBERS, *more), ()))
    advance(newcomer, chain)
    assert newcomer[0].is_member(C)
    assert newcomer[1].digest() == member[1].digest(), "the votes stay"
    hear(newcomer, chain, *(vote(each) for each in stakes if each not in (A, B)))
    assert not newcomer[0].is_member(C)


def test_a_roll_without_the_voters_says_nothing_about_what_held() -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, *(vote(each) for each in (ROOT, A, B, D)))
    again = new((MEMBERS[2],))
    again[1].restore(node[1].saved())
    advance(again, chain)
    assert not again[0].is_member(C)


# Messages


def test_votes_and_pages_have_no_more_bytes_than_their_bounds() -> None:
    largest = vote(A, round_number=limits.ROUNDS_MAX - limits.ROUNDS_MAX % VOTE_PERIOD)
    assert len(to_msgpack(ExpulsionPage((largest,)))) <= VOTE_BYTES_MAX
    most = EXPULSION_PAGE_BYTES_MAX // VOTE_BYTES_MAX
    assert most > limits.MEMBERS_MAX, "one target has so many voters at most"
    assert len(to_msgpack(ExpulsionPage((largest,) * most))) <= limits.FRAME_MESSAGE_BYTES_MAX


def _signed_by_all() -> Sequence[ExpulsionVote]:
    return [vote(each) for each in (ROOT, A, B, D)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_change_of_a_genuine_page_puts_anybody_else_out(data: st.DataObject) -> None:
    changed = data.draw(altered([to_msgpack(ExpulsionPage(tuple(_signed_by_all())))]))
    node, chain = new(), Chain(EQUAL)
    try:
        hear(node, chain, *decode_expulsion_page(changed).votes)
    except RemoteProtocolError:
        assert node[1].digests() == []
        return
    assert node[1].expelled <= {public_key_of(C)}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_puts_nobody_else_out(data: st.DataObject) -> None:
    node, chain = new(), Chain(EQUAL)
    hear(node, chain, *_signed_by_all())
    changed = data.draw(altered([to_msgpack(node[1].saved())]))
    roll, again = new()
    try:
        again.restore(decode_saved(changed))
    except RemoteProtocolError:
        assert again.digests() == []
        return
    roll.expel(again.expelled)
    assert members_of(roll) >= {ROOT, A, B, D, E}
