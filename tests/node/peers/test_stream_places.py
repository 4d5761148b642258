"""The places for streams on which blocks are served: who gets one, and who gives way."""

from __future__ import annotations

import pytest

from gossamer.node.network.places import NoPlaceError
from gossamer.node.peers.blocks.stream_places import STALLED_SECONDS, ServedStream, StreamPlaces
from gossamer.protocol.ids import PeerId

PLACES = 8
OF_A_KIND = 6


class Streams:
    """A node with eight places, and the streams that ended for others."""

    def __init__(self) -> None:
        self.places = StreamPlaces(PLACES)
        self.ended: list[ServedStream] = []

    def take(
        self, peer: str, network: str, *, is_member: bool = False, now: float = 0.0
    ) -> ServedStream:
        stream = ServedStream(PeerId(peer), network, is_member, lambda: self.ended.append(stream))
        self.places.take(now, stream)
        return stream


def test_nobody_gives_way_while_places_are_free() -> None:
    streams = Streams()
    for _ in range(OF_A_KIND):
        streams.take("greedy", "one")
    for number in range(PLACES - OF_A_KIND):
        streams.take(f"member {number}", "two", is_member=True)
    assert not streams.ended
    assert len(streams.places.taken) == PLACES


def test_a_peer_gives_way_to_another_one_of_its_network_and_not_to_itself() -> None:
    streams = Streams()
    taken = [streams.take("greedy", "one") for _ in range(OF_A_KIND)]
    with pytest.raises(NoPlaceError):
        streams.take("greedy", "one")
    for _ in range(3):
        streams.take("newcomer", "one")
    with pytest.raises(NoPlaceError):  # each has half of the places
        streams.take("newcomer", "one")
    assert streams.ended == taken[:3]


def test_many_identities_of_one_network_give_way_to_another_network() -> None:
    streams = Streams()
    taken = [streams.take(f"many {number}", "one") for number in range(OF_A_KIND)]
    with pytest.raises(NoPlaceError):
        streams.take("neighbour", "one")
    newcomer = streams.take("newcomer", "two")
    assert streams.ended == taken[:1]
    with pytest.raises(NoPlaceError):
        streams.take("many 0", "one")
    assert newcomer in streams.places.taken


def test_a_stalled_stream_gives_way_first() -> None:
    streams = Streams()
    taken = [streams.take(f"peer {number}", f"network {number}") for number in range(OF_A_KIND)]
    with taken[4].waiting(1.0), taken[3].waiting(0.0), taken[5].waiting(STALLED_SECONDS):
        with pytest.raises(NoPlaceError):
            streams.take("early", "network 9", now=STALLED_SECONDS)
        streams.take("late", "network 9", now=STALLED_SECONDS + 1.5)
        streams.take("later", "network 8", now=STALLED_SECONDS + 1.5)
    assert streams.ended == [taken[3], taken[4]]
    with pytest.raises(NoPlaceError):  # nobody keeps this node waiting any more
        streams.take("latest", "network 7", now=10 * STALLED_SECONDS)


def test_members_and_strangers_leave_places_to_each_other() -> None:
    streams = Streams()
    members = [streams.take("member", "one", is_member=True) for _ in range(OF_A_KIND)]
    with pytest.raises(NoPlaceError):
        streams.take("member", "one", is_member=True)
    for _ in range(PLACES - OF_A_KIND):
        streams.take("stranger", "two")
    assert not streams.ended
    for member in members[:4]:
        streams.places.leave(member)
    taken = [streams.take("stranger", "two") for _ in range(4)]
    streams.take("member", "one", is_member=True)  # strangers have more places than are theirs
    assert len(streams.ended) == 1
    assert streams.ended[0].peer == "stranger"
    assert taken[0] in streams.places.taken
