"""Bans of networks from which one banned key after another has come.

A new key costs nothing in an open run, so a ban of a key alone ends with the next key. Addresses of
many networks are dear. But one address may be that of a whole house, and one network that of many.

Rules
-----
- A key that is banned for what it did itself counts for the network from which it was connected,
  once, until `FORGET_SECONDS` after its newest ban. So one bad key bans no network, however often
  it is banned.
- At `KEYS_MAX` keys the network is banned for `BAN_SECONDS`. Each further ban is twice as long, up
  to `BAN_SECONDS_MAX`, and needs as many keys again. After `FORGET_SECONDS` without a ban the next
  one counts as the first.
- At most `NETWORKS_MAX` networks are remembered. A new one replaces that with the fewest keys among
  those that are not banned, or the one whose ban ends first.

The caller decides what a ban of a network means: peers with standing are not refused for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gossamer.protocol.ids import PeerId

KEYS_MAX = 4
"""A household with several machines that break down alike has fewer. An attacker needs ten offences
of the lightest kind or three of the worst for each."""

BAN_SECONDS = 600.0
"""Length of the first ban. A new key behind an address that somebody else has spoilt waits so long,
or finds another way in."""

BAN_SECONDS_MAX = 6 * 3600.0

FORGET_SECONDS = 6 * 3600.0
"""Most bans of a key last an hour at most."""

NETWORKS_MAX = 1024
"""Networks that are remembered, with at most `KEYS_MAX` keys each: some 500 kB."""

_DOUBLINGS_MAX = 10


@dataclass
class _Conduct:
    keys: dict[PeerId, float] = field(default_factory=dict)
    """Time until which each banned key counts."""
    num_bans: int = 0
    until_seconds: float = 0.0
    """End of the newest ban."""

    def forget(self, now: float) -> None:
        self.keys = {key: until for key, until in self.keys.items() if until > now}
        if now > self.until_seconds + FORGET_SECONDS:
            self.num_bans = 0


class NetworkBans:
    """The bans of networks of one node. Events carry the local clock in seconds."""

    def __init__(self) -> None:
        self._conduct: dict[str, _Conduct] = {}

    def key_banned(self, now: float, network: str, key: PeerId, seconds: float) -> float | None:
        """A key of a network is banned for some seconds. Returns the length of the network's ban
        that follows from it; None: no ban follows."""
        conduct = self._conduct.get(network)
        if conduct is None:
            if len(self._conduct) >= NETWORKS_MAX:
                self._make_room(now)
            conduct = self._conduct[network] = _Conduct()
        conduct.forget(now)
        if now < conduct.until_seconds:
            return None
        conduct.keys[key] = now + seconds + FORGET_SECONDS
        if len(conduct.keys) < KEYS_MAX:
            return None
        conduct.keys.clear()
        conduct.num_bans += 1
        doublings = min(conduct.num_bans - 1, _DOUBLINGS_MAX)
        length = min(BAN_SECONDS * float(2**doublings), BAN_SECONDS_MAX)
        conduct.until_seconds = now + length
        return length

    def is_banned(self, now: float, network: str) -> bool:
        """Returns whether a ban of a network holds now."""
        conduct = self._conduct.get(network)
        return conduct is not None and now < conduct.until_seconds

    def _make_room(self, now: float) -> None:
        def worth(network: str) -> tuple[float, int, str]:
            conduct = self._conduct[network]
            conduct.forget(now)
            return (max(0.0, conduct.until_seconds - now), len(conduct.keys), network)

        del self._conduct[min(self._conduct, key=worth)]
