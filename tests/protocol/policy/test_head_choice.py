"""The choice of a head: who weighs what where two chains part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.heads.head_choice import UNDO_ROUNDS_MAX, HeadChoice, is_most_of
from gossamer.protocol.standing import STANDING_ROUNDS
from tests.support.builders import peers

GENESIS = digest_of(b"genesis")
FOUNDER, B, C, D, E = peers(5)
INVENTED = peers(260)[5:]


class Rounds:
    """Rounds that are known, each with the tokens of its signers."""

    def __init__(self) -> None:
        self._rounds: dict[Digest, tuple[Digest, dict[PeerId, int]]] = {}
        self.unheard: dict[Digest, set[PeerId]] = {}
        """Signers of rounds whose votes are not here yet."""
        self.asked: list[Digest] = []
        """The rounds whose signers were asked for."""
        self.num_reshaped = 0

    def parent_of(self, head: Digest, /) -> Digest:
        return GENESIS if head == GENESIS else self._rounds[head][0]

    def round_of(self, head: Digest, /) -> int:
        return 0 if head == GENESIS else self.round_of(self.parent_of(head)) + 1

    def tokens_total_of(self, head: Digest, /) -> int:
        if head == GENESIS:
            return 0
        return self.tokens_total_of(self.parent_of(head)) + sum(self._rounds[head][1].values())

    def credits_of(self, head: Digest, /) -> Mapping[PeerId, int]:
        return self._rounds[head][1]

    def signers_of(self, head: Digest, /) -> frozenset[PeerId]:
        self.asked.append(head)
        return frozenset(self._rounds[head][1]) - self.unheard.get(head, set())

    def move(self, head: Digest, parent: Digest) -> None:
        """A round follows another one from now on."""
        self._rounds[head] = (parent, self._rounds[head][1])
        self.num_reshaped += 1

    def add(self, parent: Digest, credits: dict[PeerId, int], count: int = 1) -> Digest:
        for _ in range(count):
            name = len(self._rounds).to_bytes(4, "big")
            head = digest_of(b"round", name)
            self._rounds[head] = (parent, credits)
            parent = head
        return parent


def world() -> tuple[Rounds, HeadChoice]:
    rounds = Rounds()
    return rounds, HeadChoice(rounds, FOUNDER)


def wins(choice: HeadChoice, head: Digest, mine: Digest) -> bool:
    """Returns whether a peer at `mine` leaves it for a head, if it knows no third one."""
    return choice.may_undo(mine, head) and choice.best([mine, head]) == head


def each(*members: PeerId, tokens: int = 100) -> dict[PeerId, int]:
    return dict.fromkeys(members, tokens)


# Stake


def test_at_the_beginning_the_founder_has_the_only_stake() -> None:
    _, choice = world()
    assert choice.stakes_at(GENESIS) == {FOUNDER: 1}


def test_stake_is_the_work_that_the_newest_rounds_took() -> None:
    rounds, choice = world()
    first = rounds.add(GENESIS, each(FOUNDER, B, C))
    assert choice.stakes_at(first) == each(FOUNDER, B, C)
    later = rounds.add(first, each(B, C), STANDING_ROUNDS)
    assert choice.stakes_at(later) == each(B, C, tokens=100 * STANDING_ROUNDS)


def test_a_claim_far_above_the_others_gives_no_more_stake_than_the_median_member() -> None:
    rounds, choice = world()
    head = rounds.add(GENESIS, {**each(B, C, D), E: 10**12})
    assert choice.stakes_at(head) == each(B, C, D, E)


def test_a_peer_that_made_rounds_alone_has_no_more_stake_than_the_median_peer() -> None:
    rounds, choice = world()
    head = rounds.add(GENESIS, each(B, C, D))
    head = rounds.add(head, each(E), 20)
    assert choice.stakes_at(head)[E] == 100


# Support


def test_invented_members_weigh_nothing() -> None:
    """A header of 255 members that nobody knows loses to one honest member."""
    rounds, choice = world()
    fork = rounds.add(GENESIS, each(FOUNDER, B, C, D))
    honest = rounds.add(fork, each(B))
    forged = rounds.add(fork, each(*INVENTED, tokens=10**12), UNDO_ROUNDS_MAX)
    assert wins(choice, honest, forged)
    assert not wins(choice, forged, honest)
    assert choice.best([honest, forged]) == honest


def test_a_fork_from_the_beginning_undoes_nothing() -> None:
    rounds, choice = world()
    honest = rounds.add(GENESIS, each(FOUNDER, B, C, D), 20)
    forged = rounds.add(GENESIS, each(E, *INVENTED, tokens=10**12), 40)
    assert not wins(choice, forged, honest)
    assert wins(choice, honest, forged)


def test_votes_that_come_later_count_and_other_chains_are_not_read_again() -> None:
    rounds, choice = world()
    fork = rounds.add(GENESIS, each(FOUNDER, B, C, D))
    late = rounds.add(fork, each(FOUNDER, B, C, D))
    rounds.unheard[late] = {FOUNDER, C, D}
    honest = rounds.add(late, each(B))
    lone = rounds.add(fork, each(E, B, tokens=10**6), 30)
    assert choice.best([honest, lone]) == lone, "one signer each, and more tokens"
    rounds.unheard.clear()
    assert choice.best([honest, lone]) == lone, "nobody has said so"
    choice.forget_signers([late])
    rounds.asked.clear()
    assert choice.best([honest, lone]) == honest
    assert {*rounds.asked} == {late, honest}
    choice.forget_signers([digest_of(b"forgotten")])
    assert choice.best([honest, lone]) == honest


def test_a_member_counts_once_however_many_rounds_it_makes() -> None:
    rounds, choice = world()
    fork = rounds.add(GENESIS, each(FOUNDER, B, C))
    slow = rounds.add(fork, each(B, C))
    quick = rounds.add(fork, each(FOUNDER), 10)
    assert wins(choice, slow, quick)
    assert not wins(choice, quick, slow)


def test_with_equal_support_more_tokens_win_and_then_the_lower_digest() -> None:
    rounds, choice = world()
    fork = rounds.add(GENESIS, each(B, C))
    one, other = rounds.add(fork, each(B)), rounds.add(fork, each(C))
    low, high = sorted([one, other])
    assert wins(choice, low, high)
    assert not wins(choice, high, low)
    more = rounds.add(fork, each(C, tokens=101))
    assert wins(choice, more, low)


def test_a_minority_undoes_no_more_than_the_limit() -> None:
    rounds, choice = world()
    fork = rounds.add(GENESIS, each(FOUNDER, B, C, D, E))
    mine = rounds.add(fork, each(FOUNDER), UNDO_ROUNDS_MAX)
    some = rounds.add(fork, each(B, C))
    most = rounds.add(fork, each(B, C, D))
    assert wins(choice, some, mine)
    mine = rounds.add(mine, each(FOUNDER))
    assert not wins(choice, some, mine)
    assert wins(choice, most, mine), "more than half of the stake: this peer was cut off"


def test_two_that_went_apart_for_long_join_again() -> None:
    rounds, choice = world()
    fork = rounds.add(GENESIS, each(FOUNDER, B))
    mine = rounds.add(fork, each(FOUNDER), 10 * UNDO_ROUNDS_MAX)
    theirs = rounds.add(fork, each(B), 10 * UNDO_ROUNDS_MAX + 1)
    assert wins(choice, theirs, mine)
    assert not wins(choice, mine, theirs)


# Chains that go on from this peer's head


def test_those_that_went_on_are_followed_at_once_if_they_are_no_fewer() -> None:
    rounds, choice = world()
    mine = rounds.add(GENESIS, each(FOUNDER, B, C))
    head = rounds.add(mine, each(B, C))
    assert choice.counts(head, mine, [FOUNDER], was_time=False)
    equal = rounds.add(mine, each(B))
    assert choice.counts(equal, mine, [FOUNDER], was_time=False)


def test_a_minority_that_went_on_is_followed_when_it_was_time() -> None:
    rounds, choice = world()
    mine = rounds.add(GENESIS, each(FOUNDER, B, C))
    head = rounds.add(mine, each(B))
    at_work = [FOUNDER, C]
    assert not choice.counts(head, mine, at_work, was_time=False)
    assert choice.counts(head, mine, at_work, was_time=True)


def test_strangers_are_followed_only_while_no_member_is_at_work() -> None:
    rounds, choice = world()
    mine = rounds.add(GENESIS, each(FOUNDER, B))
    head = rounds.add(mine, each(*INVENTED))
    for at_work, follows in (([FOUNDER], False), ([E, B], False), ([E], True), ([], True)):
        assert choice.counts(head, mine, at_work, was_time=True) is follows


def test_the_ring_that_went_on_without_this_peer_is_followed() -> None:
    """Otherwise newcomers whom the only member's line is too slow for would stay newcomers."""
    rounds, choice = world()
    mine = rounds.add(GENESIS, each(FOUNDER))
    head = rounds.add(mine, each(B, C, D))
    assert not choice.counts(head, mine, [FOUNDER], was_time=True)
    assert choice.counts(head, mine, [FOUNDER], was_time=False, is_of_my_ring=True)


def test_members_that_are_doubted_hold_nobody_back_from_the_half_that_committed() -> None:
    rounds, choice = world()
    mine = rounds.add(GENESIS, each(FOUNDER, B, C))
    head, at_work = rounds.add(mine, each(B)), [FOUNDER, C]
    assert choice.counts(head, mine, at_work, was_time=False, doubted=[C])
    assert not choice.counts(head, mine, [*at_work, D], was_time=False, doubted=[D])
    of_strangers = rounds.add(mine, each(*INVENTED))
    assert not choice.counts(of_strangers, mine, [C], was_time=True, doubted=[C])


def test_members_that_signed_a_better_head_will_not_sign_the_round_of_a_ring() -> None:
    rounds, choice = world()
    mine = rounds.add(GENESIS, each(FOUNDER, B, C))
    weights = {FOUNDER: 30, B: 20, D: 5}
    better = rounds.add(mine, each(B))
    assert choice.attainable(mine, better, weights) == (100, 300 + 35)
    beside = rounds.add(GENESIS, each(B))
    whole = choice.attainable(mine, beside, weights)
    assert whole == (200, 300 + 55), "that one parted before the round"


def test_nothing_is_remembered_of_rounds_that_have_another_way_to_the_beginning() -> None:
    questions: list[Callable[[HeadChoice, Digest, Digest], object]] = [
        lambda choice, left, right: choice.fork_of(left, right),
        lambda choice, left, right: choice.anchor_of(right, left),
        lambda choice, _, right: dict(choice.stakes_at(right)),
        lambda choice, left, right: choice.best([left, right]),
    ]
    for asks in questions:
        rounds, choice = world()
        left = rounds.add(GENESIS, each(FOUNDER))
        right = rounds.add(rounds.add(left, each(FOUNDER)), each(B, tokens=10**6))
        before = asks(choice, left, right)
        rounds.move(right, rounds.add(GENESIS, each(C)))
        after = asks(choice, left, right)
        assert after == asks(HeadChoice(rounds, FOUNDER), left, right)
        assert after != before


def test_one_other_member_is_not_most_of_a_ring() -> None:
    assert [is_most_of(1, members) for members in (2, 3)] == [False, False]
    assert [is_most_of(2, members) for members in (3, 4, 5)] == [True, True, False]


def test_rounds_of_strangers_behind_those_of_members_are_another_question() -> None:
    """A peer that is behind goes to the members' newest round, whatever is heaped upon it."""
    rounds, choice = world()
    mine = rounds.add(GENESIS, each(FOUNDER, B))
    members = rounds.add(mine, each(FOUNDER, C), 3)
    forged = rounds.add(members, each(*INVENTED), 5)
    assert choice.anchor_of(forged, mine) == members
    assert choice.anchor_of(members, mine) == members
    assert choice.anchor_of(forged, members) == forged, "nobody with stake has signed it"
    branch = rounds.add(GENESIS, each(FOUNDER))
    assert choice.anchor_of(forged, branch) == forged, "of two branches all rounds count"


# Any tree


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.dictionaries(st.sampled_from(peers(5)), st.integers(1, 9))
        ),
        max_size=14,
    )
)
def test_all_peers_choose_alike_and_none_is_moved_back(
    made: list[tuple[int, dict[PeerId, int]]],
) -> None:
    rounds, choice = world()
    heads = [GENESIS]
    for place, credits in made:
        heads.append(rounds.add(heads[place % len(heads)], credits or each(B, tokens=1)))
    best = choice.best(heads)
    assert best == choice.best(list(reversed(heads)))
    assert best == choice.best([*heads, best])
    for one in heads:
        assert one == best or best == choice.best([*heads, one])
        assert choice.fork_of(one, best) != best or one == best, "it ends where nothing follows"


def test_three_heads_of_which_each_wins_over_the_next_have_one_winner() -> None:
    """Two heads part late, where stake decides, and the third one parts early, where tokens do."""
    rounds, choice = world()
    late = rounds.add(GENESIS, {**each(FOUNDER, B, C), D: 1})
    third = rounds.add(GENESIS, each(FOUNDER, tokens=350))
    light = rounds.add(late, each(B, tokens=10))
    heavy = rounds.add(late, each(D, tokens=100))
    assert choice.best([light, heavy]) == light
    assert choice.best([heavy, third]) == heavy
    assert choice.best([third, light]) == third
    assert len({choice.best(order) for order in permutations([light, heavy, third])}) == 1


def test_the_fork_with_a_head_that_grows_is_not_looked_for_from_the_beginning() -> None:
    rounds, choice = world()
    pinned = rounds.add(GENESIS, each(FOUNDER))
    side = rounds.add(pinned, each(B), 3)
    head = rounds.add(pinned, each(FOUNDER), 40)
    assert choice.fork_of(side, head) == choice.fork_of(pinned, head) == pinned
    asked: list[Digest] = []
    parent_of = rounds.parent_of

    def counted(one: Digest, /) -> Digest:
        asked.append(one)
        return parent_of(one)

    rounds.parent_of = counted  # type: ignore[method-assign]
    for _ in range(5):
        head = rounds.add(head, each(FOUNDER))
        assert choice.fork_of(side, head) == choice.fork_of(pinned, head) == pinned
    assert len(asked) <= 5 * 2
    assert choice.fork_of(head, head) == head
    assert choice.fork_of(rounds.add(head, each(B)), head) == head


# Branches of an invite-only run


def test_the_identities_of_one_sponsor_do_not_outvote_the_others() -> None:
    """Twenty nodes came in through E. Four others came in by themselves."""
    rounds = Rounds()
    below, honest = INVENTED[:20], (FOUNDER, B, C, D)
    branches = {**dict.fromkeys(below, E), E: E}
    choice = HeadChoice(rounds, FOUNDER, lambda peer: branches.get(peer, peer))
    fork = rounds.add(GENESIS, each(*honest, E, *below))
    theirs = rounds.add(fork, each(E, *below), 3)
    ours = rounds.add(fork, each(*honest[:2]))
    assert HeadChoice(rounds, FOUNDER).best([theirs, ours]) == theirs, "without caps they win"
    assert choice.best([theirs, ours]) == ours
    assert choice.weight(fork, theirs).support <= choice.stake_of(fork, (*honest, E, *below)) / 4


def test_with_fewer_than_four_branches_all_stake_counts() -> None:
    rounds = Rounds()
    choice = HeadChoice(rounds, FOUNDER, lambda peer: E if peer == D else peer)
    fork = rounds.add(GENESIS, each(FOUNDER, D, E))
    assert choice.stake_of(fork, (D, E)) == 200
    assert choice.may_undo(rounds.add(fork, each(FOUNDER), UNDO_ROUNDS_MAX + 1), fork) is False
