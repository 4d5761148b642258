"""The ring's order knows who is linked to whom."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.rounds import ring_order as ring_order_module
from gossamer.protocol.rounds.ring_order import (
    PAIRS_PER_RELAY_MAX,
    RELAY_COST,
    UNREACHABLE_COST,
    Links,
    Standpoint,
    chunk_starters,
    encode_links,
    linked_members,
    rank_order,
    ring_order,
)
from tests.support.builders import HEAD, peers

NO_LINK = bytes(limits.LINK_BYTES)
"""The links of a peer that says that it is connected, and to no peer of the ring."""

Pairs: TypeAlias = AbstractSet[tuple[int, int]]


def said_by(num_peers: int, pairs: Pairs, relayed: Pairs = frozenset()) -> dict[PeerId, bytes]:
    """Returns the links that each peer lists, if these pairs are connected, or through a relay."""
    names = peers(num_peers)

    def others(place: int, among: Pairs) -> list[PeerId]:
        return [names[n] for n in range(num_peers) if tuple(sorted((place, n))) in among]

    return {
        name: encode_links(others(place, pairs), others(place, relayed)) or NO_LINK
        for place, name in enumerate(names)
    }


def with_public(num_public: int, num_private: int) -> dict[PeerId, bytes]:
    """Connects every peer to the public peers, which relay between the private ones."""
    size = num_public + num_private
    pairs = {(one, other) for one in range(num_public) for other in range(one + 1, size)}
    return said_by(size, pairs, set(itertools.combinations(range(size), 2)) - pairs)


def cost_of(said: dict[PeerId, bytes], attempt: int = 0) -> int:
    order = ring_order(HEAD, attempt, said)
    assert sorted(order) == sorted(said)
    return Links(order, said).total(range(len(order)))


def test_where_all_are_linked_or_say_nothing_the_order_is_by_rank() -> None:
    pairs = {(one, other) for one in range(5) for other in range(one + 1, 5)}
    for said in (said_by(5, pairs), dict.fromkeys(peers(5), b"")):
        assert ring_order(HEAD, 3, said) == rank_order(HEAD, 3, said)


@pytest.mark.parametrize("num_pairs", [1, 2, 3, 8, 20])
def test_as_many_public_as_private_peers_alternate(num_pairs: int) -> None:
    for attempt in range(5):
        assert cost_of(with_public(num_pairs, num_pairs), attempt) == 0


@pytest.mark.parametrize(("num_public", "num_private"), [(1, 2), (1, 3), (2, 3), (4, 7)])
def test_without_such_an_order_the_fewest_links_are_relayed(
    num_public: int, num_private: int
) -> None:
    assert cost_of(with_public(num_public, num_private)) == num_private - num_public


def test_one_sided_claims_make_no_link() -> None:
    """A peer cannot bring itself next to another one by listing it."""
    said = with_public(2, 2)
    liar, victim = peers(4)[2:]
    said[liar] = encode_links([*peers(2), victim])
    order = ring_order(HEAD, 0, said)
    place = order.index(liar)
    assert victim not in (order[place - 1], order[(place + 1) % 4])


def _least(said: dict[PeerId, bytes]) -> int:
    names = rank_order(HEAD, 0, said)
    links = Links(names, said)
    orders = itertools.permutations(range(1, len(names)))
    return min(links.total((0, *order)) for order in orders)


@given(st.integers(4, 7), st.floats(0, 1), st.randoms(use_true_random=False))
def test_a_linked_order_is_found_if_there_is_one(
    num_peers: int, density: float, randomness: random.Random
) -> None:
    pairs = {
        (one, other)
        for one in range(num_peers)
        for other in range(one + 1, num_peers)
        if randomness.random() < density
    }
    said = said_by(num_peers, pairs)
    least = _least(said)
    assert (cost_of(said) == 0) == (least == 0)


def test_a_peer_that_is_linked_to_no_member_is_left_out() -> None:
    pairs: Pairs = {(0, 1), (0, 2), (1, 2)}
    said = said_by(4, pairs)
    assert sorted(linked_members(HEAD, 0, said)) == sorted(peers(3))


def test_of_two_halves_that_are_not_linked_one_goes_on() -> None:
    pairs: Pairs = {(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)}
    kept = linked_members(HEAD, 0, said_by(6, pairs))
    assert cost_of(kept) < UNREACHABLE_COST
    assert kept.keys() <= set(peers(3)) or kept.keys() <= set(peers(6)[3:])


@pytest.mark.parametrize(("num_honest", "num_invented"), [(1, 8), (3, 4), (3, 8), (8, 9), (8, 40)])
@pytest.mark.parametrize("lists_organiser", [False, True])
def test_invented_peers_that_list_each_other_only_put_no_member_out(
    num_honest: int, num_invented: int, lists_organiser: bool
) -> None:
    everybody = peers(num_honest + num_invented)
    honest, invented = everybody[:num_honest], everybody[num_honest:]
    for organiser in honest:
        liked = {*invented, organiser} if lists_organiser else {*invented}
        said = {peer: encode_links({*everybody} - {peer}) for peer in honest}
        said |= {peer: encode_links(liked - {peer}) for peer in invented}
        standpoint = Standpoint(organiser, frozenset(honest))
        assert linked_members(HEAD, 0, said, standpoint).keys() >= {*honest}


@pytest.mark.parametrize(("num_honest", "num_rogue"), [(3, 4), (8, 12)])
def test_connected_peers_that_list_each_other_only_put_no_member_out(
    num_honest: int, num_rogue: int
) -> None:
    everybody = peers(num_honest + num_rogue)
    honest, rogues = everybody[:num_honest], everybody[num_honest:]
    said = {peer: encode_links({*everybody} - {peer}) for peer in honest}
    said |= {peer: encode_links({*rogues} - {peer}) for peer in rogues}
    for organiser in honest:
        standpoint = Standpoint(organiser, frozenset(everybody))
        assert linked_members(HEAD, 0, said, standpoint).keys() == {*honest}


def test_links_to_strangers_do_not_count() -> None:
    """Two rogues are connected to the organiser, and list strangers so as to have more links."""
    everybody = peers(14)
    honest, rogues, strangers = everybody[:4], everybody[4:6], everybody[6:]
    organiser = honest[0]
    said = {peer: encode_links({*everybody} - {peer}) for peer in honest}
    said |= {peer: encode_links({organiser, *rogues, *strangers} - {peer}) for peer in rogues}
    said |= {peer: encode_links({*rogues, *strangers} - {peer}) for peer in strangers}
    standpoint = Standpoint(organiser, frozenset({*honest, *rogues}))
    assert linked_members(HEAD, 0, said, standpoint).keys() >= {*honest}


def test_a_stranger_that_has_neighbours_stays() -> None:
    """A newcomer that is still connecting to the others."""
    said = said_by(4, {(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)})
    organiser, *others = peers(4)
    standpoint = Standpoint(organiser, frozenset(others[:2]))
    assert linked_members(HEAD, 0, said, standpoint).keys() == said.keys()


def test_very_many_peers_without_a_link_are_left_out_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everybody = peers(limits.RING_MEMBERS_MAX)
    honest = everybody[:8]
    said = {peer: encode_links({*everybody} - {peer}) for peer in honest}
    said |= dict.fromkeys(everybody[8:], NO_LINK)
    num_orders = 0

    def counted(*given: Any) -> list[PeerId]:
        nonlocal num_orders
        num_orders += 1
        return real(*given)

    real = ring_order_module.ring_order
    monkeypatch.setattr(ring_order_module, "ring_order", counted)
    for standpoint in (None, Standpoint(honest[0], frozenset(honest))):
        assert linked_members(HEAD, 0, said, standpoint).keys() == {*honest}
    assert num_orders <= 4


def test_very_many_peers_with_the_same_few_neighbours_are_left_out_in_few_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look for an order takes tens of milliseconds, and nothing else is done meanwhile."""
    hubs, num_peers = 3, 60
    pairs = {(one, other) for one in range(hubs) for other in range(one + 1, num_peers)}
    said = said_by(num_peers, pairs)
    looks: list[int] = []

    def counting(head: bytes, attempt: int, said: dict[PeerId, bytes]) -> list[PeerId]:
        looks.append(len(said))
        return ring_order(head, attempt, said)

    monkeypatch.setattr(ring_order_module, "ring_order", counting)
    kept = linked_members(HEAD, 0, said, Standpoint(peers(1)[0], peers(num_peers)))
    assert len(kept) == 2 * hubs, "a peer between each two of those that all are connected to"
    assert len(looks) <= 20


def test_the_first_links_of_very_many_are_listed() -> None:
    listed = encode_links(peers(limits.RING_MEMBERS_MAX + 5))
    assert len(listed) == limits.LINKS_BYTES_MAX
    assert listed == encode_links(reversed(peers(limits.RING_MEMBERS_MAX + 5)))


def test_a_pair_costs_more_if_it_has_no_connection_even_if_a_member_could_relay() -> None:
    """No ring begins with a dial."""
    said = said_by(4, {(0, 1), (0, 2), (0, 3)}, {(1, 2)})
    links = Links(peers(4), said)
    assert [links.cost(1, 0), links.cost(1, 2), links.cost(1, 3)] == [
        0,
        RELAY_COST,
        UNREACHABLE_COST,
    ]


@pytest.mark.parametrize(
    ("num_public", "num_private", "num_in_ring"),
    [(1, 2, 3), (1, 3, 4), (1, 4, 4), (1, 7, 4), (2, 6, 8), (2, 9, 8), (3, 3, 6)],
)
def test_no_member_relays_between_more_than_two_pairs(
    num_public: int, num_private: int, num_in_ring: int
) -> None:
    said = with_public(num_public, num_private)
    for attempt in range(5):
        kept = linked_members(HEAD, attempt, said)
        assert len(kept) == num_in_ring
        assert set(peers(num_public)) <= kept.keys()
        assert cost_of(kept, attempt) <= PAIRS_PER_RELAY_MAX * num_public


def test_members_sit_out_in_turn() -> None:
    said = with_public(1, 4)
    head, seen = HEAD, Counter[PeerId]()
    for _ in range(40):
        seen.update(list(linked_members(head, 0, said)))
        head = digest_of(head)
    (public,) = peers(1)
    assert seen[public] == 40
    assert all(20 <= seen[each] < 40 for each in said if each != public)


def test_it_is_also_the_turn_of_those_that_have_more_links_than_others() -> None:
    """Three homes of two each, one of a single peer, and one public peer that relays."""
    homes = {(1, 2), (3, 4), (5, 6)}
    pairs = {(0, other) for other in range(1, 8)} | homes
    said = said_by(8, pairs, set(itertools.combinations(range(8), 2)) - pairs)
    head, seen = HEAD, Counter[PeerId]()
    for _ in range(60):
        kept = linked_members(head, 0, said)
        assert cost_of(kept) <= PAIRS_PER_RELAY_MAX
        seen.update(list(kept))
        head = digest_of(head)
    assert len(seen) == 8
    assert min(seen.values()) >= 20


def relay_load(num_members: int, start: int, over_relay: AbstractSet[int]) -> int:
    """How often a chunk crosses a relay's line, if it begins at this position.

    Args:
        over_relay: positions from which the line to the next member is such a line.
    """
    finisher = start - 1
    hops = num_members - 1
    sums = [(start + hop) % num_members for hop in range(hops)]
    averages = [(finisher + hop) % num_members for hop in range(hops)]
    return sum(place in over_relay for place in sums + averages)


@pytest.mark.parametrize(("num_public", "num_private"), [(1, 2), (1, 3), (2, 5), (2, 6), (3, 6)])
def test_chunks_begin_where_they_cross_the_relays_lines_least_often(
    num_public: int, num_private: int
) -> None:
    said = with_public(num_public, num_private)
    size = len(said)
    for attempt in range(5):
        order = ring_order(HEAD, attempt, said)
        links = Links(order, said)
        relayed = {place for place in range(size) if links.cost(place, (place + 1) % size)}
        assert relayed
        if num_public == 1:  # the relay is known, so its own part counts
            relayed.add(order.index(peers(1)[0]))
        loads = [relay_load(size, place, relayed) for place in range(size)]
        starters = chunk_starters(order, said)
        assert {loads[place] for place in starters} == {min(loads)}
        assert len(starters) == loads.count(min(loads))


def test_a_public_member_and_three_strict_ones_have_two_members_that_start_chunks() -> None:
    """Each chunk crosses the relay's line 4 times, and not 4.5 times as with all four."""
    said = with_public(1, 3)
    order = ring_order(HEAD, 0, said)
    relay = order.index(peers(1)[0])
    assert {(place - relay) % 4 for place in chunk_starters(order, said)} == {2, 3}


@pytest.mark.parametrize("num_members", [1, 2, 3, 8])
def test_without_a_relay_all_members_start_chunks(num_members: int) -> None:
    said = said_by(num_members, set(itertools.combinations(range(num_members), 2)))
    assert chunk_starters(list(said), said) == tuple(range(num_members))


def test_a_relay_that_is_no_member_has_room() -> None:
    """A node that is paused relays as well, and nothing is known of its line."""
    everybody = set(itertools.combinations(range(3), 2))
    assert len(linked_members(HEAD, 0, said_by(3, set(), everybody))) == 3
