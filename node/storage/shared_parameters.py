"""The parameters of a `distro` run between two commits: a shared step at a time.

A round of shared steps leads from the committed state to the next one by its averages, one a
step. `SharedParameters` takes each as soon as it is there, so that the peer's next gradient is
taken where all are. The sequence of averages at the commit counts: where it is another than was
taken (a step of which a better average came later) the steps are taken again, from the beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import numpy as np

from gossamer.node.base.threads import PIECE_ELEMENTS, map_pieces, num_piece_threads
from gossamer.protocol.codecs.payloads import SignPayloads
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import Manifest, OuterConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.exact_transform import chunks_of_step, grids_of, pieces_of
from gossamer.protocol.state.shared_step import shared_rate_at, shared_step, step_codec


def sign_payloads(model: ModelConfig, outer: OuterConfig) -> SignPayloads:
    """Returns the kind of payload that travels in a `distro` run."""
    return SignPayloads(step_codec(model, outer.top_k, outer.chunks_of_step))


class SharedParameters:
    """The parameters during the shared steps of a round. Methods may run in threads: one works at a
    time."""

    def __init__(self, manifest: Manifest, payloads: SignPayloads, values: FloatVector) -> None:
        """`values`: (num_parameters,), shared with the trainer, which reads where all are."""
        self.values = values
        self._inner, self._outer = manifest.inner, manifest.outer
        chunks = chunks_of_step(grids_of(manifest.model), self._outer.chunks_of_step)
        self._pieces = [pieces_of(grids, PIECE_ELEMENTS) for grids in chunks]
        self._payloads = payloads
        self._number = 0
        self._taken: list[Digest] = []
        self._working = threading.Lock()

    def begin(self, round_number: int, start: FloatVector) -> None:
        """The steps of a round begin at `start`."""
        with self._working:
            self._begin(round_number, start)

    def take(self, round_number: int, chunk: int, average: Payload) -> None:
        """The round's step, or a part of one, unless the chunks before it are not taken.
        MalformedError."""
        with self._working:
            if round_number == self._number and chunk == len(self._taken):
                self._take(average)

    def lead(
        self, round_number: int, start: FloatVector, averages: Sequence[Payload], out: FloatVector
    ) -> None:
        """Writes the parameters to which the round's averages lead from `start` to `out`, all
        (num_parameters,). Raises MalformedError."""
        with self._working:
            digests = [digest_of(average) for average in averages]
            if round_number != self._number or digests[: len(self._taken)] != self._taken:
                self._begin(round_number, start)
            for average in averages[len(self._taken) :]:
                self._take(average)
            np.copyto(out, self.values)

    def _begin(self, round_number: int, start: FloatVector) -> None:
        np.copyto(self.values, start)
        self._number, self._taken = round_number, []

    def _take(self, average: Payload) -> None:
        step, number = divmod(len(self._taken), len(self._pieces))
        place = self._outer.first_inner_step_of(self._number) + step
        shared_step(
            self._pieces[number],
            self.values,
            self._payloads.updates(average, chunk=number),
            shared_rate_at(place, self._inner),
            self._inner.weight_decay,
            self.values,
            partial(map_pieces, num_threads=num_piece_threads(self.values.size)),
        )
        self._taken.append(digest_of(average))
