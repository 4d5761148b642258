"""A swarm of `distro` in one process, whose members may offer what they like."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.sign_codec import SignCodec, SignUpdate
from gossamer.protocol.state.exact_transform import grids_of
from gossamer.protocol.state.shared_step import shapes_of, shared_rate_at, shared_step
from gossamer.protocol.state.sign_agreement import SignAgreement
from gossamer.trainer.distro.shared_trainer import SharedTrainer
from gossamer.trainer.ipc.messages import SharedSteps, TrainerConfig
from gossamer.trainer.presets.preset import Preset
from tests.support.local_rounds import begin


def dense(update: SignUpdate, codec: SignCodec) -> Float32Array:
    """(num_coefficients,): 1 or -1 where an update has a sign, else 0."""
    signs = np.zeros(sum(tiles * size for tiles, size in codec.shapes), np.float32)
    signs[update.places] = np.where(update.is_positive, np.float32(1), np.float32(-1))
    return signs


def strongest(values: Float32Array, codec: SignCodec) -> SignUpdate:
    """The update that the codec has for (num_coefficients,) values: of each tile the k of largest
    magnitude, and the first ones of equals."""
    places: list[np.ndarray] = []
    first = 0
    for num_tiles, coefficients in codec.shapes:
        stop = first + num_tiles * coefficients
        tiles = np.abs(values[first:stop]).reshape(num_tiles, coefficients)
        order = np.argsort(-tiles, axis=1, kind="stable")[:, : min(codec.k, coefficients)]
        starts = first + coefficients * np.arange(num_tiles)[:, np.newaxis]
        places.append((np.sort(order, axis=1) + starts).reshape(-1))
        first = stop
    chosen = np.concatenate(places)
    return SignUpdate(chosen, values[chosen] >= 0)


class SharedSwarm:
    """The parameters that all members share, (num_parameters,), and the members' trainers."""

    def __init__(self, run: Preset, token_bytes: int, num_peers: int, seed: int) -> None:
        self._inner = run.inner
        self._grids = grids_of(run.model)
        self.codec = SignCodec(shapes_of(self._grids), run.outer.top_k)
        self.parameters = np.zeros(run.model.num_parameters, np.float32)
        config = TrainerConfig(
            model=run.model, inner=run.inner, seed=seed, token_bytes=token_bytes, device="cpu"
        )
        steps = SharedSteps(top_k=run.outer.top_k, lookahead=run.outer.lookahead)
        self.trainers = [
            SharedTrainer(config, self.parameters, np.zeros_like(self.parameters), steps=steps)
            for _ in range(num_peers)
        ]
        self.trainers[0].genesis()

    def begin(self, members: Sequence[int], num_steps: int) -> None:
        """Begins a round that has all steps."""
        for member in members:
            begin(self.trainers[member], 1, 0, num_steps, math.inf)

    def offers(self, members: Sequence[int]) -> dict[int, SignUpdate]:
        """What each member has for the next step."""
        offered = {}
        for member in members:
            trainer = self.trainers[member]
            assert trainer.step() is not None, "the corpus is too small for so many steps"
            offer = trainer.offer()
            assert offer is not None, "a momentum out of range"
            offered[member] = self.codec.decode(offer.update)
        return offered

    def take_step(
        self, step: int, offered: Mapping[int, SignUpdate], agreement: SignAgreement | None
    ) -> None:
        """The run's step of that number; all members learn that their offers were taken.

        Args:
            agreement: of the members in the steps of this round, which leaves some out; None: every
                part counts.
        """
        rate, weight_decay = shared_rate_at(step, self._inner), self._inner.weight_decay
        left_out: Collection[int] = ()
        if agreement is not None:
            agreement.took(offered, [grid.tensor.range for grid in self._grids])
            left_out = agreement.left_out(offered, [*offered])
        updates = [each for member, each in offered.items() if member not in left_out]
        shared_step(self._grids, self.parameters, updates, rate, weight_decay, self.parameters)
        for member in offered:
            self.trainers[member].share(taken=True)
