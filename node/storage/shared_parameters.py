"""The parameters of a `distro` run between two commits: a shared step at a time.

A round of shared steps leads from the committed state to the next one by its averages, one a
step. `SharedParameters` takes each as soon as it is there, so that the peer's next gradient is
taken where all are. The sequence of averages at the commit counts: where it is another than was
taken (a step of which a better average came later) the steps are taken again, from the beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from gossamer.node.base.threads import num_usable_cores
from gossamer.protocol.codecs.payloads import SignPayloads
from gossamer.protocol.codecs.sign_codec import SignCodec
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import Manifest, OuterConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.exact_transform import grids_of, pieces_of
from gossamer.protocol.state.shared_step import Apply, shapes_of, shared_rate_at, shared_step

PIECE_ELEMENTS = 2**18
"""Parameters that one thread steps at a time: some 10 MB in all, near the caches, and milliseconds
between two looks at the interpreter's lock."""

THREADS_MAX = 16
"""Threads of a step at most. Beyond that the memory's speed limits it, and others want cores."""


@contextmanager
def _threads(num_elements: int) -> Iterator[Apply]:
    """Yields a `map` in as many threads as there are cores and `PIECE_ELEMENTS` for. They live for
    one step, which takes much longer than to start them; a smaller model's would not."""
    num_threads = min(num_usable_cores(), THREADS_MAX, num_elements // PIECE_ELEMENTS)
    if num_threads <= 1:
        yield map
        return
    with ThreadPoolExecutor(num_threads, "shared-step") as pool:
        yield pool.map


def sign_payloads(model: ModelConfig, outer: OuterConfig) -> SignPayloads:
    """Returns the kind of payload that travels in a `distro` run."""
    return SignPayloads(SignCodec(shapes_of(grids_of(model)), outer.top_k))


class SharedParameters:
    """The parameters during the shared steps of a round. Methods may run in threads: one works at a
    time."""

    def __init__(self, manifest: Manifest, payloads: SignPayloads, values: FloatVector) -> None:
        """`values`: (num_parameters,), shared with the trainer, which reads where all are."""
        self.values = values
        self._inner, self._outer = manifest.inner, manifest.outer
        self._pieces = pieces_of(grids_of(manifest.model), PIECE_ELEMENTS)
        self._payloads = payloads
        self._number = 0
        self._taken: list[Digest] = []
        self._working = threading.Lock()

    def begin(self, round_number: int, start: FloatVector) -> None:
        """The steps of a round begin at `start`."""
        with self._working:
            self._begin(round_number, start)

    def take(self, round_number: int, step: int, average: Payload) -> None:
        """The round's step, unless the steps before it are not taken. MalformedError."""
        with self._working:
            if round_number == self._number and step == len(self._taken):
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
        place = self._outer.first_inner_step_of(self._number) + len(self._taken)
        with _threads(self.values.size) as apply:
            shared_step(
                self._pieces,
                self.values,
                self._payloads.updates(average),
                shared_rate_at(place, self._inner),
                self._inner.weight_decay,
                self.values,
                apply,
            )
        self._taken.append(digest_of(average))
