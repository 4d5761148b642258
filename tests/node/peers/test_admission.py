"""Which peers without a connection to this node count as ready, and may be in a ring with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossamer.node.peers.admission import FAR_MAX, Admission
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.wire.statements import Ready
from tests.support.builders import manifest, peers, ready, ring_of

ME, CONNECTED, *OTHERS = peers(3 * FAR_MAX)
MEMBERS, STRANGERS = OTHERS[:4], OTHERS[4:]


def admission() -> Admission:
    """That of a node with one connection. `MEMBERS` have standing."""
    run = manifest()
    parts = (
        SimpleNamespace(peer_id=ME, peers=lambda: [CONNECTED]),
        None,
        None,
        SimpleNamespace(is_banned=lambda _peer: False),
        SimpleNamespace(admits=lambda _peer: True),
        None,
    )
    made = Admission(run, *cast(Any, parts))
    made.has_standing = {CONNECTED, *MEMBERS}.__contains__
    return made


def is_ready(node: Admission, peer: PeerId) -> bool:
    return node.admits(peer, ready(root=bytes(32), commitment=bytes(32), spans=()))


def ring_with(members: list[PeerId]) -> Ring:
    roots = dict.fromkeys(members, bytes(32))
    return ring_of(members, roots=roots, spans=dict.fromkeys(members, ()), commitment=bytes(32))


def is_ring(node: Admission, members: list[PeerId]) -> bool:
    ring = ring_with(members)
    return node.admits_ring(ring.organiser, ring.roster)


def test_few_strangers_without_a_connection_count_as_ready() -> None:
    node = admission()
    assert is_ready(node, CONNECTED)
    assert [is_ready(node, peer) for peer in STRANGERS].count(True) == FAR_MAX


def test_strangers_keep_no_member_without_a_connection_from_being_ready() -> None:
    """Identities cost nothing, and these say that they are ready before any member can be."""
    node = admission()
    for peer in STRANGERS:
        is_ready(node, peer)
    assert all(is_ready(node, peer) for peer in MEMBERS)


def test_a_ring_has_few_strangers_without_a_connection_beside_its_members() -> None:
    node = admission()
    assert is_ring(node, [ME, CONNECTED, *MEMBERS, *STRANGERS[:FAR_MAX]])
    assert not is_ring(node, [ME, CONNECTED, *MEMBERS, *STRANGERS[: FAR_MAX + 1]])


def test_work_of_a_ring_that_was_checked_when_it_came_is_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A roster of 434 bytes names 40 such members by gossip, and their work took 7 ms each time."""
    node = admission()
    ring = ring_with([ME, CONNECTED, *MEMBERS])
    checked: list[Ready] = []
    monkeypatch.setattr(node._bounds, "_check_ready", checked.append)
    node.is_stored = {member.digest for member in ring.roster.members[2:]}.__contains__
    assert node.admits_ring(ring.organiser, ring.roster)
    assert len(checked) == 2


def test_a_ring_of_an_organiser_that_sits_out_is_joined_where_another_member_follows_it() -> None:
    """What members remember differs. A ring that one of them refuses stands still for the others,
    and they put that one out."""
    node = admission()
    ring = ring_with([ME, CONNECTED, *MEMBERS, STRANGERS[0]])
    follower, spoiler = [each for each in MEMBERS if each != ring.organiser][:2]
    for peer in (ring.organiser, ring.organiser, spoiler, spoiler):
        node.partners.conduct.unsettled(1, peer)
    node.partners.begin_round(2)
    assert node.partners.sits_out(ring.organiser)
    joined = {
        peer: node.admits_ring(ring.organiser, ring.roster, peer)
        for peer in (None, ring.organiser, spoiler, STRANGERS[0], follower)
    }
    assert joined == {
        None: False,
        ring.organiser: False,
        spoiler: False,
        STRANGERS[0]: False,
        follower: True,
    }
