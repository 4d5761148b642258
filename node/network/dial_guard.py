"""The door for every dial that peers may provoke: the rules of addresses, and the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from gossamer.node.network.dial_budget import CROSSING, ELSEWHERE, NEAR, DialBudget
from gossamer.node.network.reachability import Neighbourhood

TYPED_MAX = 1024
"""Addresses of the owner that are known: the links of some joins. Later ones are judged like those
of peers when they are announced."""


class DialRefusedError(OSError):
    """A dial that does not happen; the text says why."""


class Permit:
    """The permission for the dials of one attempt to reach a peer."""

    def __init__(
        self,
        neighbourhood: Neighbourhood,
        budget_of: Callable[[str], DialBudget],
        clock: Callable[[], float],
    ) -> None:
        self._neighbourhood = neighbourhood
        self._budget_of = budget_of
        self._clock = clock
        self._taken: Counter[str] = Counter()

    def take(self, host: str) -> None:
        """Call it right before each dial of an IP address, and before a name is resolved.

        Raises:
            DialRefusedError: the host must not be dialled, or not now.
        """
        reason = self._neighbourhood.why_not(host)
        if reason:
            raise DialRefusedError(f"a peer may not make this node dial it: {reason}")
        if not self._budget_of(host).try_take(self._clock(), host):
            raise DialRefusedError(
                f"too many dials to {host} or its network have led nowhere; it is dialled later"
            )
        self._taken[host] += 1

    def unused(self, host: str) -> None:
        """The last dial of a host never left this machine."""
        if self._taken[host]:
            self._taken[host] -= 1
            self._budget_of(host).give_back(self._clock(), host)

    def proven(self, *hosts: str) -> None:
        """The peer itself answered at these hosts. Others that were tried stay paid for: a peer may
        name a third party beside its own address."""
        for host in hosts:
            while self._taken[host]:
                self.unused(host)


class DialGuard:
    """Gives permits, and knows the addresses that the owner typed."""

    def __init__(self, clock: Callable[[], float], typed: Iterable[tuple[str, int]] = ()) -> None:
        """
        Args:
            typed: hosts and ports that the owner of this machine gave.
        """
        self._clock = clock
        self._typed: set[tuple[str, int]] = set()
        self._elsewhere = DialBudget(ELSEWHERE)
        self._near = DialBudget(NEAR)
        self._crossing = DialBudget(CROSSING)
        for host, port in typed:
            self.note_typed(host, port)

    def note_typed(self, host: str, port: int) -> None:
        """The owner of this machine gave this address: it is dialled whatever it is."""
        if len(self._typed) < TYPED_MAX:
            self._typed.add((host, port))

    def is_typed(self, host: str, port: int) -> bool:
        """Returns whether the owner gave this address."""
        return (host, port) in self._typed

    def permit(self, neighbourhood: Neighbourhood) -> Permit:
        """Returns the permit for addresses that a peer announced.

        Args:
            neighbourhood: of this machine, as it is now.
        """

        def budget_of(host: str) -> DialBudget:
            return self._near if neighbourhood.is_near(host) else self._elsewhere

        return Permit(neighbourhood, budget_of, self._clock)

    def permit_to_cross(self, neighbourhood: Neighbourhood) -> Permit:
        """Returns the permit for addresses that a peer named for a crossing of both routers."""
        return Permit(neighbourhood, lambda _host: self._crossing, self._clock)
