"""A round of shared steps (`distro`) for `_ring_gossamer`: the payloads, and a member's part.

Every step is a chunk, and a member's signs are there at once: only what travels is measured, not
how steps wait for each other.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from gossamer.node.modes.ring_steps import SignStep
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.sign_codec import TILE_COEFFICIENTS_MAX, SignCodec, SignUpdate
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Trust
from gossamer.protocol.rounds.ring.sum_way import StepPart
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan

STEPS = 50
"""Inner steps of a round: the default of `distro`."""

TOP_K = 4
"""Coefficients that are sent of each chunk's 4096, as in the deployment of DisTrO."""

PLAN = ChunkPlan(STEPS, 1)


def payloads_of(num_elements: int, trust: Trust) -> SignPayloads:
    """Payloads for a model whose tensors are all cut into whole tiles."""
    num_tiles = max(1, num_elements // TILE_COEFFICIENTS_MAX)
    coder = StepCodec([SignCodec([(num_tiles, TILE_COEFFICIENTS_MAX)], TOP_K)])
    return SignPayloads(coder, are_signed=trust == "open")


class Signs(StepPart):
    """One member's parts of all steps (a `Contribution`): any coefficients, any signs."""

    def __init__(self, payloads: SignPayloads, ring: Ring, me: PeerId, sign_step: SignStep) -> None:
        position = ring.members.index(me)
        coder = payloads.coder
        ((num_tiles, _),) = coder.coders[0].shapes
        firsts = TILE_COEFFICIENTS_MAX * np.arange(num_tiles)
        places = (firsts[:, np.newaxis] + 7 * np.arange(TOP_K)).reshape(-1)
        draw = np.random.default_rng(position)
        update = SignUpdate(places, draw.random(places.size) < 0.5)
        self._signs, self._position = coder.encode(update), position
        self._payloads, self._sign_step = payloads, sign_step
        super().__init__(self._signs, position)

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """See `Contribution`."""
        (block,) = self._payloads.signed_blocks([self._signs], partial(self._sign_step, chunk))
        return add_record(payload, self._position, block)

    async def due(self, chunk: int, partial_sum: Buffer | None) -> None:
        """See `Contribution`."""
