"""The budget for dials that lead nowhere."""

from __future__ import annotations

import ipaddress

import pytest

from gossamer.node.network.dial_guard import (
    CROSSING,
    ELSEWHERE,
    NEAR,
    DialBudget,
    DialGuard,
    DialRates,
    DialRefusedError,
)
from gossamer.node.network.reachability import Neighbourhood
from gossamer.protocol.policy.conduct.throttle import THROTTLES_MAX

VICTIM = "198.51.100.7"
ATTACKER = "203.0.113.9"


def dials(budget: DialBudget, host: str, seconds: int) -> int:
    """Dials that a peer gets by asking ten times a second."""
    return sum(budget.try_take(tenth / 10, host) for tenth in range(10 * seconds))


@pytest.mark.parametrize("rates", [ELSEWHERE, NEAR, CROSSING])
def test_one_host_has_its_bound(rates: DialRates) -> None:
    bound = rates.host.burst + 100 * rates.host.per_second
    assert bound - 2 <= dials(DialBudget(rates), VICTIM, 100) <= bound


def test_one_network_has_its_bound() -> None:
    budget = DialBudget(ELSEWHERE)
    taken = sum(budget.try_take(0.0, f"198.51.100.{host}") for host in range(256))
    assert taken == ELSEWHERE.network.burst
    assert budget.try_take(0.0, "198.51.101.1")
    taken = sum(budget.try_take(0.0, f"2001:db8:1:2::{host:x}") for host in range(256))
    assert taken == ELSEWHERE.network.burst
    assert budget.try_take(0.0, "2001:db8:1:3::1")


def test_all_together_have_a_bound() -> None:
    budget = DialBudget(ELSEWHERE)
    taken = sum(budget.try_take(0.0, f"198.{net}.100.7") for net in range(256))
    assert taken == ELSEWHERE.total.burst


def test_other_spellings_of_a_host_share_its_bound() -> None:
    budget = DialBudget(ELSEWHERE)
    for spelling in (VICTIM, "::ffff:198.51.100.7", "64:ff9b::c633:6407", "2002:c633:6407::1"):
        assert sum(budget.try_take(0.0, spelling) for _ in range(4)) == 4
    for spelling in (VICTIM, "::ffff:c633:6407", "2002:c633:6407:1::2"):
        assert not budget.try_take(0.0, spelling)


def test_names_of_one_domain_share_its_bound() -> None:
    """Their servers are asked for each of them."""
    budget = DialBudget(ELSEWHERE)
    taken = sum(budget.try_take(0.0, f"host-{number}.Example.org.") for number in range(99))
    assert taken == ELSEWHERE.network.burst


def test_what_is_refused_costs_the_others_nothing() -> None:
    budget = DialBudget(ELSEWHERE)
    for _ in range(1000):
        budget.try_take(0.0, VICTIM)
    left = sum(budget.try_take(0.0, f"198.{net}.100.7") for net in range(256))
    assert left == ELSEWHERE.total.burst - ELSEWHERE.host.burst


def test_what_is_given_back_is_there_again_and_no_more() -> None:
    budget = DialBudget(ELSEWHERE)
    while budget.try_take(0.0, VICTIM):
        pass
    budget.give_back(0.0, VICTIM)
    assert budget.try_take(0.0, VICTIM)
    assert not budget.try_take(0.0, VICTIM)
    for _ in range(100):
        budget.give_back(0.0, ATTACKER)
    assert dials(budget, ATTACKER, 3) == ELSEWHERE.host.burst


@pytest.mark.parametrize("rates", [ELSEWHERE, NEAR, CROSSING])
def test_buckets_are_bounded(rates: DialRates) -> None:
    budget = DialBudget(rates)
    first = int(ipaddress.ip_address("11.0.0.0"))
    for second in range(300):
        for number in range(40):
            host = ipaddress.ip_address(first + 256 * (40 * second + number))
            budget.try_take(float(second), str(host))
            assert len(budget._hosts) <= THROTTLES_MAX
            assert len(budget._networks) <= THROTTLES_MAX


HOME = Neighbourhood(frozenset(), (ipaddress.ip_network("192.168.1.0/24"),))


class _World:
    """A guard with a clock that stands still."""

    def __init__(self) -> None:
        self.guard = DialGuard(lambda: 0.0)

    def fill(self, host: str, num_dials: int = 1000) -> int:
        """Dials until there is no permission; says how many there were."""
        for count in range(num_dials):
            try:
                self.guard.permit(HOME).take(host)
            except DialRefusedError:
                return count
        return num_dials


def test_a_dial_that_leads_to_its_peer_costs_nothing() -> None:
    world = _World()
    for _ in range(1000):
        permit = world.guard.permit(HOME)
        permit.take(VICTIM)
        permit.proven(VICTIM)
    assert world.fill(VICTIM) == ELSEWHERE.host.burst


def test_an_attacker_that_answers_itself_does_not_pay_for_the_third_party_that_it_names() -> None:
    """Its name resolves to both, or it names both for a crossing."""

    world, num_refused = _World(), 0
    for _ in range(100):
        permit = world.guard.permit(HOME)
        permit.take("attacker.example")
        try:
            permit.take(VICTIM)
        except DialRefusedError:
            num_refused += 1
        permit.take(ATTACKER)
        permit.proven("attacker.example", ATTACKER)
    assert num_refused == 100 - ELSEWHERE.host.burst


def test_a_dial_that_never_left_this_machine_costs_nothing() -> None:
    world = _World()
    for _ in range(1000):
        permit = world.guard.permit(HOME)
        permit.take(VICTIM)
        permit.unused(VICTIM)
    assert world.fill(VICTIM) == ELSEWHERE.host.burst


def test_own_networks_crossings_and_others_have_budgets_of_their_own() -> None:
    world = _World()
    assert world.fill("192.168.1.7") == NEAR.host.burst
    assert world.fill(VICTIM) == ELSEWHERE.host.burst
    permit = world.guard.permit_to_cross(HOME)
    for _ in range(int(CROSSING.host.burst)):
        permit.take(VICTIM)
    with pytest.raises(DialRefusedError, match="later"):
        permit.take(VICTIM)


def test_no_permit_covers_an_address_that_the_rules_exclude() -> None:
    guard = _World().guard
    for permit in (guard.permit(HOME), guard.permit_to_cross(HOME)):
        for host in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"):
            with pytest.raises(DialRefusedError, match="a peer may not make this node dial it"):
                permit.take(host)


def test_what_the_owner_typed_is_known_by_host_and_port() -> None:
    guard = _World().guard
    guard.note_typed("10.0.0.1", 4610)
    assert guard.is_typed("10.0.0.1", 4610)
    assert not guard.is_typed("10.0.0.1", 22)
