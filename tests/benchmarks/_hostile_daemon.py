"""A real daemon that does harm in one way, for `attacked_daemons`.

    python -m tests.benchmarks._hostile_daemon KIND PYTHON -m gossamer.node.cli join ADDRESS ...

It is the daemon that a person would start, with one method changed. KIND is a name of `KINDS`,
whose arguments follow after colons:

    accuse:PEER                     accuses that member in every ring
    leave_out:HOW:PEER:LIARS        leaves that member out; HOW is a class of `test_left_out`, and
                                    LIARS are all that do so, with commas
    replace:WHERE:ME                replaces the records of others; WHERE is sums or averages
    spoil:WHERE:ME                  passes on records of others that cannot be decoded
    turn:WHERE:ME, silence:WHERE:ME do so with the parts of others in shared steps
    rate:ME                         says a rate of its links that they do not have
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from gossamer.node.cli import main
from gossamer.node.machine.trainer_client import TrainerClient
from gossamer.node.modes.ring_steps import Part, RingSteps
from gossamer.node.rounds import opening
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring.link_rates import RingLinkRates
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.statements import Accusation
from gossamer.trainer.ipc import messages
from tests.rogue import test_false_rate, test_left_out, test_open_steps, test_set_audits

CLAIM = 10
"""Times the tokens that it trained on, which is below the bound of the plausible."""

HUGE = 2.0**63
"""Nearly the largest magnitude that a node's own work may have."""

_for_good = ExitStack()
"""Holds the contexts in which this daemon lies: nobody leaves them."""

_collect, _train, _begin_ring = TrainerClient.collect, TrainerClient.train, RoundDriver.begin_ring


def _with_work(change: Callable[[FloatVector], FloatVector]) -> None:
    async def collect(self: TrainerClient) -> bool:
        is_good = await _collect(self)
        if is_good:
            self.pending[:] = change(self.pending)
        return is_good

    TrainerClient.collect = collect  # type: ignore[method-assign]


def _noise(pending: FloatVector) -> FloatVector:
    draw = np.random.default_rng()
    spread = np.float32(100) * pending.std()
    noise: FloatVector = spread * draw.standard_normal(pending.size, np.float32)
    return noise


def _claim() -> None:
    async def train(self: TrainerClient, *arguments: Any, **others: Any) -> messages.Finished:
        finished = await _train(self, *arguments, **others)
        return msgspec.structs.replace(finished, tokens=CLAIM * finished.tokens)

    TrainerClient.train = train  # type: ignore[method-assign]
    _with_work(lambda pending: -pending)


def _accuse(victim: PeerId) -> None:
    def begin_ring(self: RoundDriver, ring: Ring) -> None:
        _begin_ring(self, ring)
        if victim in ring.members:
            said = self.machine._signer.seal(Accusation(ring.ring_id, victim, "silent"))
            self.publish(said.signed, said.statement)

    RoundDriver.begin_ring = begin_ring  # type: ignore[method-assign]


def _leave_out(how: str, victim: str, liars: str) -> None:
    base = getattr(test_left_out, how)
    others = frozenset(map(PeerId, liars.split(",")))
    made = type(how, (base,), {"victim": PeerId(victim), "liars": others})
    opening.Round = made  # type: ignore[attr-defined,assignment]


def _false_rate(me: str) -> None:
    RingLinkRates.to_say = test_false_rate.lying(PeerId(me))  # type: ignore[method-assign]


def _against() -> None:
    decide = RingSteps.decide

    def turned(self: RingSteps, chunk: int, update: bytes | None) -> Part:
        if update is not None:
            coder = self._payloads.coder
            honest = coder.decode(update)
            update = coder.encode(replace(honest, is_positive=~honest.is_positive))
        return decide(self, chunk, update)

    RingSteps.decide = turned  # type: ignore[method-assign]


def _inside(
    lies: Callable[[PeerId, str], AbstractContextManager[None]],
) -> Callable[[str, str], None]:
    """A kind that lies, to the end of the daemon, as a test of whole nodes does."""

    def begin(where: str, me: str) -> None:
        _for_good.enter_context(lies(PeerId(me), where))

    return begin


KINDS: Mapping[str, Callable[..., None]] = {
    "opposite": lambda: _with_work(lambda pending: np.float32(-10) * pending),
    "noise": lambda: _with_work(_noise),
    "huge": lambda: _with_work(lambda pending: np.full_like(pending, HUGE)),
    "claim": _claim,
    "accuse": lambda victim: _accuse(PeerId(victim)),
    "leave_out": _leave_out,
    "replace": _inside(test_set_audits.liar),
    "spoil": _inside(test_set_audits.spoiler),
    "turn": _inside(test_open_steps.replacing),
    "silence": _inside(test_open_steps.silencing),
    "against": _against,
    "rate": _false_rate,
}


if __name__ == "__main__":
    given, *command = sys.argv[1:]
    kind, *arguments = given.split(":")
    KINDS[kind](*arguments)
    main(command[command.index("gossamer.node.cli") + 1 :])
