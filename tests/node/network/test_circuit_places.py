"""Who gets a circuit through this node when its places are short."""

from __future__ import annotations

from contextlib import suppress

import pytest

from gossamer.node.network.circuit_places import (
    CIRCUITS_MAX,
    CIRCUITS_PER_PAIR_MAX,
    IDLE_SECONDS,
    NETWORK_RATE,
    TARGET_RATE,
    Circuit,
    CircuitPlaces,
)
from gossamer.node.network.places import NoPlaceError
from gossamer.protocol.ids import PeerId


class World:
    """The circuits of a relay, and those that ended for others, in their order."""

    def __init__(self) -> None:
        self.places = CircuitPlaces()
        self.ended: list[Circuit] = []

    def take(self, now: float, caller: str, target: str, network: str) -> Circuit:
        circuit = Circuit(
            PeerId(caller), PeerId(target), network, now, lambda: self.ended.append(circuit)
        )
        self.places.take(now, circuit)
        return circuit

    def fill(self, num_networks: int, per_caller: int = 1) -> list[Circuit]:
        """Takes all places, in turn for callers of so many networks."""
        return [
            self.take(0.0, f"caller {number // per_caller}", f"target {number}",
                      f"network {number % num_networks}")
            for number in range(CIRCUITS_MAX)
        ]  # fmt: skip


def test_no_circuit_ends_while_a_place_is_free() -> None:
    world = World()
    world.fill(1)
    assert (world.ended, len(world.places.taken)) == ([], CIRCUITS_MAX)


def test_a_further_circuit_of_a_pair_ends_its_oldest_in_whatever_direction() -> None:
    world = World()
    first = world.take(0.0, "a", "b", "x")
    for number in range(1, CIRCUITS_PER_PAIR_MAX):
        world.take(float(number), "a", "b", "x")
    world.take(9.0, "a", "c", "x")
    assert world.ended == []
    world.take(10.0, "b", "a", "y")
    assert world.ended == [first]


def test_what_has_carried_nothing_for_long_ends_first() -> None:
    world = World()
    circuits = world.fill(CIRCUITS_MAX)
    for circuit in circuits:
        circuit.moved_seconds = 50.0
    circuits[7].moved_seconds = 5.0
    circuits[9].moved_seconds = 3.0
    with pytest.raises(NoPlaceError, match=f"carries {CIRCUITS_MAX} circuits already"):
        world.take(3.0 + IDLE_SECONDS, "a", "b", "another")
    world.take(4.0 + IDLE_SECONDS, "a", "b", "another")
    assert world.ended == [circuits[9]]


def test_the_oldest_of_the_network_that_has_the_most_gives_way_however_busy_it_is() -> None:
    world = World()
    honest = [world.take(0.0, f"honest {number}", "x", f"home {number}") for number in range(6)]
    crowd = [
        world.take(1.0, f"rogue {number}", f"accomplice {number}", "crowd")
        for number in range(CIRCUITS_MAX - len(honest))
    ]
    crowd[0].moved_seconds = 9.0
    for number in range(3):
        world.take(10.0, f"late {number}", "x", f"late home {number}")
    assert world.ended == crowd[:3]


def test_networks_that_have_hardly_more_do_not_push_each_other_out() -> None:
    world = World()
    world.fill(2)
    with pytest.raises(NoPlaceError):
        world.take(1.0, "caller", "target", "network 1")
    assert world.ended == []


def test_within_one_network_the_caller_that_has_the_most_gives_way() -> None:
    world = World()
    circuits = world.fill(1, per_caller=8)
    world.take(1.0, "neighbour", "target", "network 0")
    assert world.ended == [circuits[0]]


def test_a_caller_of_another_network_does_not_give_way_for_having_many() -> None:
    world = World()
    for number in range(CIRCUITS_MAX):
        network = f"network {number % 2}"
        caller = "busy" if number % 2 else f"caller {number}"
        world.take(0.0, caller, f"target {number}", network)
    with pytest.raises(NoPlaceError):
        world.take(1.0, "fresh", "target", "network 0")


def test_a_place_is_free_when_its_circuit_has_ended() -> None:
    world = World()
    circuits = world.fill(CIRCUITS_MAX)
    world.places.leave(circuits[3])
    world.places.leave(circuits[3])  # also when it was ended for another one
    world.take(1.0, "a", "b", "another")
    assert len(world.places.taken) == CIRCUITS_MAX


def test_callers_of_one_network_begin_circuits_at_a_bounded_rate() -> None:
    """They end their own circuits at once, so that they always have a place."""
    world = World()

    def begins(now: float, number: int, network: str) -> bool:
        try:
            circuit = world.take(now, f"rogue {number}", f"target {number}", network)
        except NoPlaceError:
            return False
        world.places.leave(circuit)
        return True

    num_begun = sum(begins(tick / 100, tick % 200, "crowd") for tick in range(1000))
    assert num_begun <= NETWORK_RATE.burst + 10 * NETWORK_RATE.per_second
    assert begins(10.0, 7, "home")


def test_circuits_to_one_target_begin_at_a_bounded_rate() -> None:
    world = World()
    num_begun = 0
    for tick in range(1000):
        with suppress(NoPlaceError):
            network = f"network {tick % 100}"
            world.places.leave(world.take(tick / 100, f"rogue {tick}", "victim", network))
            num_begun += 1
    assert TARGET_RATE.burst < num_begun <= TARGET_RATE.burst + 10 * TARGET_RATE.per_second
    world.take(10.0, "a", "another", "network 1")
