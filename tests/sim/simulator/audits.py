"""Audits of sums in a world whose members are all honest: nobody may be blamed, whatever fails.

A node keeps one chunk of a round for the round's auditor. Here each peer keeps what it did to the
sums of all chunks, and each chunk of each committed header is added up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Signer
from gossamer.protocol.rounds.inventory import Average, SumStep
from gossamer.protocol.rounds.ring.ring_signatures import SignedAverages
from gossamer.protocol.rounds.ring.sum_way import AddedAgain, ReplacedSum, SumWay
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Header
from gossamer.protocol.state.digest import FloatVector
from tests.sim.simulator.modes import ELEMENTS
from tests.sim.simulator.signatures import sign_as, verify

if TYPE_CHECKING:
    from tests.sim.simulator.world import World


class Audits:
    """What the peers of a world kept of their rings."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps: dict[tuple[bytes, PeerId], list[tuple[SumStep, ...]]] = {}
        self._rings: dict[bytes, Ring] = {}

    def keep(self, peer: PeerId, machine: Round, header: Header) -> None:
        """A round is committed, perhaps by others, whose ring this peer followed last."""
        ring = machine.ring
        if ring is None or ring.ring_id != header.ring_id:
            return
        self._rings[ring.ring_id] = ring
        chunks = range(self._world.scenario.num_chunks)
        self._steps.setdefault((ring.ring_id, peer), [machine.steps_of(each) for each in chunks])

    def check(
        self,
        header: Header,
        averages: list[Average],
        pendings: dict[int, FloatVector],
        *,
        is_whole: bool,
    ) -> None:
        """Adds up all chunks of a committed round.

        Args:
            pendings: what each member offered, by ring position.
            is_whole: whether no member was accused, or died.
        """
        payloads = self._world.mode.payloads
        if isinstance(payloads, RecordPayloads):
            return
        ring = self._rings[header.ring_id]
        me = ring.members[0]
        signed = SignedAverages(Signer(me, self._world.run_id, sign_as(me)), ring, verify, payloads)
        tokens = [ring.weights[member] for member in ring.members]
        for chunk, average in enumerate(averages):
            way = self._way(signed, chunk, average)
            if way is None:
                assert not is_whole, "a member that lived cannot open a chunk"
                self._world.count("audits without a member")
                continue
            again = AddedAgain(payloads, tokens, ELEMENTS)
            part = slice(chunk * ELEMENTS, (chunk + 1) * ELEMENTS)
            try:
                for hop in way.hops:
                    if not hop.is_copy:
                        opened = self._world.mode.opened(pendings[hop.position][part])
                        again.add(hop, opened)
                again.finish(average.finisher, average.mask, average.digest)
            except ReplacedSum as error:
                raise AssertionError(f"chunk {chunk}: an honest member is blamed") from error
            self._world.count("sums added up again")
            self._world.count("sums that were passed on as they were", _has_copy(way))

    def _way(self, signed: SignedAverages, chunk: int, average: Average) -> SumWay | None:
        """The way of a sum; None if a member on it has kept nothing."""
        way = SumWay(signed, chunk, average.finisher, average.mask)
        while (position := way.asked) is not None:
            kept = self._steps.get((signed.ring.ring_id, signed.ring.members[position]))
            if kept is None:
                return None
            assert way.said(kept[chunk]), f"member {position} cannot explain a sum of chunk {chunk}"
        return way


def _has_copy(way: SumWay) -> bool:
    return any(hop.is_copy for hop in way.hops)
