"""The order of a ring: the first one by rank in which all neighbours are linked.

In a ring each member sends to its successor. Two members behind routers may have no connection with
each other, although both have one with a third member. So each peer lists in its `Ready` the peers
that it is connected to, and those that are neighbours only where nothing else is left: another peer
relays to them, or there was trouble between the two (`policy.conduct.ring_conduct`). The members of
a roster are ordered by a rule that everybody can check:

1. The *rank order* of a head and an attempt is sorted by ``blake3(head, attempt, peer id)``. If all
   its neighbours (the last and the first included) are linked, it is the order.
2. Otherwise a depth-first search begins at the first member by rank and goes on to the linked
   member that has the fewest links to members not yet placed, then to the first by rank. It ends
   with the first order whose neighbours are all linked.
3. If there is none within `SEARCH_STEPS_MAX` steps, the order is improved by reversals from the
   search's greedy order until no reversal lowers its cost: `RELAY_COST` for a pair with a relay or
   with trouble between them, and `UNREACHABLE_COST` for a pair without a connection. No ring begins
   with a dial.

Two members are linked if neither says otherwise: a member that lists no links says nothing.

A relay sends what it relays over its own line, beside its own part. With `PAIRS_PER_RELAY_MAX`
pairs a round takes about three times as long. Of members whose pairs no relay has room for, one
sits out in each round, another one each time, and its work is carried (`linked_members`).

Who is left out is the organiser's choice, which nobody checks. To it the others are strangers
unless it has met them (`Standpoint`), and strangers are left out before others are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId, digest_of

SEARCH_STEPS_MAX = 4096
"""Members that the search places, dead ends included: some 10 ms. With a third of the members
behind routers the search needs hardly more steps than there are members."""

PAIRS_PER_RELAY_MAX = 2
"""Neighbours in a ring between which one member relays: its line then carries three links."""

SURPLUS_PER_LOOK = 4
"""Of so many pairs apart one member goes before the next look for an order. A member that goes
leaves one pair less apart, or two where a relay has no room. Each look takes some 40 ms with 256
members, and one owner may have 250 peers that are connected to the same three."""

RELAY_COST = 1
UNREACHABLE_COST = limits.RING_MEMBERS_MAX + 1
"""Cost of a pair that cannot be linked: more than all other pairs of a ring can cost together."""


class Standpoint(NamedTuple):
    """The peer that makes a ring, and the peers that are no strangers to it.

    Identities cost nothing, and a peer may say what it likes of its links. So one owner can be more
    ready peers than all others are, and these may list each other only. A peer is a *stranger* if
    the organiser has not met it, or if one of the two says that they are not connected.
    """

    me: PeerId
    met: Collection[PeerId]
    """Peers that it is connected to, or was in a ring with."""


def rank(head: bytes, attempt: int, peer_id: PeerId | str) -> Digest:
    """The place of a peer among others for one attempt of the round after `head`."""
    return digest_of(b"gossamer rank:", head, attempt.to_bytes(4, "big"), peer_id.encode())


def rank_order(head: bytes, attempt: int, peers: Iterable[PeerId]) -> list[PeerId]:
    """Peers by rank, the organiser of the attempt first."""
    return sorted(peers, key=lambda peer: rank(head, attempt, peer))


def encode_links(linked: Iterable[PeerId], relayed: Iterable[PeerId] = ()) -> bytes:
    """Returns the list of a `Ready` of its author's connections: `limits.LINK_BYTES` of each peer,
    sorted.

    At most `limits.RING_MEMBERS_MAX` peers are named, the first ones by those bytes.

    Args:
        linked: peers connected without a relay.
        relayed: peers connected through one, and those with which there was trouble.
    """
    names = {_linked_name(peer) for peer in linked} | {_relayed_name(peer) for peer in relayed}
    return b"".join(sorted(names)[: limits.RING_MEMBERS_MAX])


def _linked_name(peer: PeerId) -> bytes:
    return digest_of(b"gossamer link:", peer.encode())[: limits.LINK_BYTES]


def _relayed_name(peer: PeerId) -> bytes:
    return digest_of(b"gossamer relayed link:", peer.encode())[: limits.LINK_BYTES]


class Links:
    """The links between some peers, as their `Ready` list them. Peers have numbers here."""

    def __init__(self, peers: Sequence[PeerId], said: Mapping[PeerId, bytes]) -> None:
        """
        Args:
            peers: whose position is the number of a peer.
            said: `Ready.links` of each.
        """
        self.num_peers = len(peers)
        everybody = (1 << self.num_peers) - 1
        linked_names = [_linked_name(peer) for peer in peers]
        relayed_names = [_relayed_name(peer) for peer in peers]
        linked, connected = [], []
        for place, peer in enumerate(peers):
            links = said[peer]
            listed = {
                links[i : i + limits.LINK_BYTES] for i in range(0, len(links), limits.LINK_BYTES)
            }
            mask = _mask_of(linked_names, listed) if listed else everybody
            linked.append(mask & ~(1 << place))
            connected.append((mask | _mask_of(relayed_names, listed)) & ~(1 << place))
        self.of = _mutual(linked)
        """Bit mask of the peers that each peer is linked to."""
        self.connected = _mutual(connected)
        """Bit mask of the peers that each peer is connected to, with or without a relay."""

    def cost(self, one: int, other: int) -> int:
        """Returns the cost of a pair of neighbours; 0 if they are linked."""
        if self.of[one] >> other & 1 or one == other:
            return 0
        return RELAY_COST if self.connected[one] >> other & 1 else UNREACHABLE_COST

    def total(self, order: Sequence[int]) -> int:
        """Returns the cost of all pairs of a ring together."""
        return sum(self.cost(order[place - 1], order[place]) for place in range(len(order)))


def ring_order(head: bytes, attempt: int, said: Mapping[PeerId, bytes]) -> list[PeerId]:
    """The members of a roster in ring order.

    Args:
        said: `Ready.links` of each member.
    """
    peers = rank_order(head, attempt, said)
    if not any(said.values()):
        return peers
    links = Links(peers, said)
    order = list(range(len(peers)))
    if links.total(order):
        order = _search(links)
    return [peers[number] for number in order]


def chunk_starters(members: Sequence[PeerId], said: Mapping[PeerId, bytes]) -> tuple[int, ...]:
    """Positions of the members that start the chunks of a ring: chunk c begins at
    ``starters[c mod len(starters)]``.

    A relay's line is the slowest of a ring, because it carries what the relay passes on beside its
    own part. A chunk that begins at position p crosses each line twice, as a sum and as an average,
    with two exceptions: its sum does not cross the line from p - 1 to p, and its average does not
    cross the line from p - 2 to p - 1. So the members start chunks behind whom these two lines are
    a relay's most often. Without relays all members start chunks.

    Args:
        members: in ring order.
        said: `Ready.links` of each.
    """
    num_members = len(members)
    places = range(num_members)
    if not any(said.values()):
        return tuple(places)
    links = Links(members, said)
    crosses_relay = [False for _ in places]
    """Of the line from each position to the next one. A relay's own part crosses its line as well,
    where only one member can be the relay."""
    for place in places:
        after = (place + 1) % num_members
        if links.cost(place, after) != RELAY_COST:
            continue
        crosses_relay[place] = True
        relays = links.of[place] & links.of[after]
        if relays.bit_count() == 1:
            crosses_relay[relays.bit_length() - 1] = True
    spared = [
        crosses_relay[(place - 1) % num_members] + crosses_relay[(place - 2) % num_members]
        for place in places
    ]
    return tuple(place for place in places if spared[place] == max(spared))


def _mask_of(names: Sequence[bytes], listed: Collection[bytes]) -> int:
    return sum(1 << number for number, name in enumerate(names) if name in listed)


def _mutual(masks: Sequence[int]) -> list[int]:
    """What both sides say."""
    return [
        mask & sum(1 << other for other in range(len(masks)) if masks[other] >> place & 1)
        for place, mask in enumerate(masks)
    ]


def linked_members(
    head: bytes,
    attempt: int,
    said: Mapping[PeerId, bytes],
    standpoint: Standpoint | None = None,
) -> dict[PeerId, bytes]:
    """The ready peers that can be in one ring.

    A peer is left out if no order gives it neighbours that it is connected to, or if the members
    have no room to relay to its neighbours. The organiser itself stays: invented peers that list
    each other only, and are the majority, would put it out of each of its rings.

    Args:
        said: `Ready.links` of each.
        standpoint: of the organiser; None: nobody is a stranger.
    """
    kept = dict(said)
    while len(kept) > 1 and any(kept.values()):
        order = ring_order(head, attempt, kept)
        links = Links(order, kept)
        pairs = _pairs_apart(links)
        apart = {number for pair in pairs for number in pair}
        if not apart:
            break
        if standpoint is not None and standpoint.me in kept:
            apart.discard(order.index(standpoint.me))
        num_surplus = max(1, len(pairs) // SURPLUS_PER_LOOK)
        for peer in _next_to_go(head, attempt, order, links, apart, num_surplus, standpoint):
            del kept[peer]
    return kept


def _next_to_go(
    head: bytes,
    attempt: int,
    order: Sequence[PeerId],
    links: Links,
    apart: Collection[int],
    num_surplus: int,
    standpoint: Standpoint | None,
) -> list[PeerId]:
    """Of members that no order has room for, those that go first.

    These are the strangers among them. With these go all strangers that fewer than two members are
    connected to, not counting strangers, and else all members of which that is true, as long as two
    stay: to look for an order takes milliseconds, and there may be hundreds of such peers. Then it
    is the one with the fewest links to members that are no strangers, of equal ones the last one by
    rank, so that it is another one's turn in the next round; `num_surplus` of equal ones go at
    once.
    """
    known = _known(order, links, standpoint)
    me = None if standpoint is None else standpoint.me
    ends = {
        number
        for number, peer in enumerate(order)
        if (links.connected[number] & known).bit_count() < 2 and peer != me
    }
    strangers = {number for number in range(len(order)) if not known >> number & 1}
    if not strangers.isdisjoint(apart):
        return [order[number] for number in strangers & (ends | {*apart})]
    if 0 < len(ends) <= len(order) - 2:
        return [order[number] for number in ends]
    num_links = {number: (links.of[number] & known).bit_count() for number in apart}
    fewest = min(num_links.values())
    lonely = [order[number] for number in apart if num_links[number] == fewest]
    return rank_order(head, attempt, lonely)[-num_surplus:]


def _known(order: Sequence[PeerId], links: Links, standpoint: Standpoint | None) -> int:
    """Bit mask of the members that are no strangers to the organiser."""
    if standpoint is None or standpoint.me not in order:
        return (1 << len(order)) - 1
    mine = order.index(standpoint.me)
    return sum(
        1 << number
        for number, peer in enumerate(order)
        if number == mine
        or (peer in standpoint.met and links.cost(mine, number) < UNREACHABLE_COST)
    )


def _pairs_apart(links: Links) -> list[tuple[int, int]]:
    """The neighbours of a ring without a connection; if all have one, those without room for a
    relay: each pair takes a place of the member that has most, of those that are linked to both."""
    places = range(links.num_peers)
    pairs = [((place - 1) % links.num_peers, place) for place in places]
    apart = [pair for pair in pairs if links.cost(*pair) == UNREACHABLE_COST]
    if apart:
        return apart
    room = dict.fromkeys(places, PAIRS_PER_RELAY_MAX)
    relayed = [pair for pair in pairs if links.cost(*pair)]
    relays = {pair: list(_numbers(links.of[pair[0]] & links.of[pair[1]])) for pair in relayed}
    for pair in sorted(relayed, key=lambda pair: len(relays[pair])):
        if not relays[pair]:
            continue  # the relay is no member, and nothing is known of its line
        relay = max(relays[pair], key=lambda number: room[number])
        if room[relay]:
            room[relay] -= 1
        else:
            apart.append(pair)
    return apart


def _search(links: Links) -> list[int]:
    """The order of the depth-first search, or of the reversals if it finds none."""
    path = [0]
    everybody = (1 << links.num_peers) - 1
    choices = [_choices(links, 0, everybody & ~1)]
    free = everybody & ~1
    longest = path.copy()
    may_be_ring = all(mask.bit_count() >= 2 for mask in links.of)
    for _ in range(SEARCH_STEPS_MAX):
        if not free and links.of[path[-1]] & 1:
            return path
        if choices[-1] and free:
            number = choices[-1].pop()
            path.append(number)
            free &= ~(1 << number)
            choices.append(_choices(links, number, free))
            if len(path) > len(longest):
                longest = path.copy()
            continue
        if not may_be_ring or len(path) == 1:
            break
        choices.pop()
        free |= 1 << path.pop()
    return _improved(links, longest)


def _choices(links: Links, number: int, free: int) -> list[int]:
    """Linked members that are not placed; the best choice is the last one."""
    return sorted(
        _numbers(links.of[number] & free),
        key=lambda other: ((links.of[other] & free).bit_count(), other),
    )[::-1]


def _numbers(mask: int) -> Iterable[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _improved(links: Links, placed: Collection[int]) -> list[int]:
    """An order that begins with the placed members, after all reversals that lower its cost."""
    order = [*placed, *(number for number in range(links.num_peers) if number not in placed)]
    size = len(order)
    has_improved = True
    while has_improved:
        has_improved = False
        for start in range(size - 1):
            for stop in range(start + 1, size):
                before, first = order[start - 1], order[start]
                last, after = order[stop], order[(stop + 1) % size]
                if first == after or before == last:
                    continue  # the whole ring reversed is the same ring
                old = links.cost(before, first) + links.cost(last, after)
                if old and links.cost(before, last) + links.cost(first, after) < old:
                    order[start : stop + 1] = order[start : stop + 1][::-1]
                    has_improved = True
    return order
