"""Whose request an HTTP server answers, and when, if more come than it has time for.

Symptom: any program of this machine can ask the status page without end. Of 200 clients 128 had
requests that waited, so no connection was left for the node's owner: `gossamer status` and `pause`
came to nothing for as long as the others asked.

Rules
-----
- A request with the secret of the state directory is its owner's, and is answered at once.
- All other requests share a rate. A request beyond it waits for its turn.
- Of these others `IN_WORK_MAX` wait or are answered at a time. A further one is refused at once,
  and its connection ends. So most connections belong to nobody's waiting request, and give way to
  the owner's.
"""

from __future__ import annotations

import hmac

import trio
from starlette.datastructures import Headers

from gossamer.protocol.policy.conduct.throttle import Rate, Throttle

IN_WORK_MAX = 32
"""Requests of others that wait or are answered at a time: a quarter of the connections. A page asks
six times at once."""


class Turns:
    """The turns of the requests to one server."""

    def __init__(self, rate: Rate, token: str) -> None:
        """
        Args:
            rate: of the requests of all others together.
            token: the secret that the owner's requests bring.
        """
        self._throttle = Throttle(rate)
        self._token = token
        self._num_in_work = 0

    def is_owner(self, headers: Headers) -> bool:
        """Returns whether a request brings the owner's secret."""
        return brings_token(headers, self._token)

    @property
    def is_full(self) -> bool:
        """Whether no further request of others may wait."""
        return self._num_in_work >= IN_WORK_MAX

    async def __aenter__(self) -> None:
        """Waits for the turn of a request, which is in work until the block ends."""
        self._num_in_work += 1
        try:
            await trio.sleep(self._throttle.take(trio.current_time()))
        except BaseException:
            self._num_in_work -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._num_in_work -= 1


def brings_token(headers: Headers, token: str) -> bool:
    """Returns whether a request brings the secret of the state directory."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    is_right = hmac.compare_digest(given.strip().encode(), token.encode())
    return is_right and kind.lower() == "bearer"
