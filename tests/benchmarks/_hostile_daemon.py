"""A real daemon that does harm in one way, for `attacked_daemons`.

    python -m tests.benchmarks._hostile_daemon KIND PYTHON -m gossamer.node.cli join ADDRESS ...

It is the daemon that a person would start, with one method changed. KIND is a name of `KINDS`, or
`accuse:PEER`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from gossamer.node.cli import main
from gossamer.node.machine.trainer_client import TrainerClient
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.statements import Accusation
from gossamer.trainer.ipc import messages

CLAIM = 10
"""Times the tokens that it trained on, which is below the bound of the plausible."""

HUGE = 2.0**63
"""Nearly the largest magnitude that a node's own work may have."""

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
            said = self.machine._self.seal(Accusation(ring.ring_id, victim, "silent"))
            self.publish(said.signed, said.statement)

    RoundDriver.begin_ring = begin_ring  # type: ignore[method-assign]


KINDS: Mapping[str, Callable[[], None]] = {
    "opposite": lambda: _with_work(lambda pending: np.float32(-10) * pending),
    "noise": lambda: _with_work(_noise),
    "huge": lambda: _with_work(lambda pending: np.full_like(pending, HUGE)),
    "claim": _claim,
}


if __name__ == "__main__":
    kind, *command = sys.argv[1:]
    if kind.startswith("accuse:"):
        _accuse(PeerId(kind.removeprefix("accuse:")))
    else:
        KINDS[kind]()
    main(command[command.index("gossamer.node.cli") + 1 :])
