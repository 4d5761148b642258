"""The node around one round (`RoundHost`) where all members are honest, for tests of drivers."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from gossamer.node.network.identity import verify
from gossamer.node.network.transport import Stream, StreamClosed
from gossamer.node.rounds.ring_chunks import Receiver, serve_ring
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import Observation
from gossamer.protocol.wire.envelopes import open_signed
from gossamer.protocol.wire.statements import Equivocation, Roster, Signed


class HonestRound:
    """A host without a clock that stops, limits and offences. Subclasses have the work."""

    def awake_since(self, seconds: float) -> float:
        return trio.current_time() - seconds

    def observed(self, observation: Observation) -> None:
        pass

    def contradicted(self, proof: Equivocation) -> None:
        raise AssertionError(f"{proof.first.author} has signed two averages of one chunk")

    def upload_limit(self) -> float:
        return math.inf

    def transferred(self, num_bytes: int, seconds: float) -> None:
        pass

    def changed(self) -> None:
        pass


async def serve_ring_of(
    stream: Stream, run_id: Digest, driver: Callable[[], RoundDriver | None]
) -> None:
    """Serves a member's stream of a ring, as a node does.

    Args:
        driver: returns the driver of the present round; None: there is none yet.
    """

    async def greeted(_peer: PeerId, envelope: Signed) -> Receiver | None:
        statement = open_signed(envelope, run_id, verify)
        assert isinstance(statement, Roster)
        of_round = driver()
        return None if of_round is None else await of_round.greeted(envelope, statement)

    try:
        await serve_ring(stream, greeted)
    except StreamClosed:
        await stream.reset()
