"""The parameters of a `distro` run between two commits: a shared step at a time.

A round of shared steps leads from the committed state to the next one by its averages, one a
step. `SharedParameters` takes each as soon as it is there, so that the peer's next gradient is
taken where all are. The sequence of averages at the commit counts: where it is another than was
taken (a step of which a better average came later) the steps are taken again, from the beginning.

Where members do not trust each other, those whose signs do not agree have no part in a step
(`protocol.state.sign_agreement`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from gossamer.node.base.threads import PIECE_ELEMENTS, map_pieces, num_piece_threads
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import Manifest, OuterConfig, Trust
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.standing import Standing
from gossamer.protocol.state.apply import Apply
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.exact_transform import chunks_of_step, grids_of, pieces_of
from gossamer.protocol.state.shared_step import shared_rate_at, shared_step, step_codec
from gossamer.protocol.state.sign_agreement import SignAgreement, heard_updates

NO_ROUND = 0
"""Number where no round has begun: the run's first round is round 1."""


def sign_payloads(model: ModelConfig, outer: OuterConfig, trust: Trust = "members") -> SignPayloads:
    """Returns the kind of payload that travels in a `distro` run."""
    coder = step_codec(model, outer.top_k, outer.chunks_of_step)
    return SignPayloads(coder, are_signed=trust == "open")


class SharedParameters:
    """The parameters during the shared steps of a round.

    Used by one thread at a time: the lock is the committed state's.
    """

    def __init__(self, manifest: Manifest, payloads: SignPayloads, values: FloatVector) -> None:
        """`values`: (num_parameters,), shared with the trainer, which reads where all are."""
        self.values = values
        self._inner, self._outer = manifest.inner, manifest.outer
        chunks = chunks_of_step(grids_of(manifest.model), self._outer.chunks_of_step)
        self._pieces = [pieces_of(grids, PIECE_ELEMENTS) for grids in chunks]
        self._payloads = payloads
        self._number = NO_ROUND
        self._standing: Standing | None = None
        self._taken: list[Digest] = []
        self._agreements: list[SignAgreement] = []
        """Of each chunk of a step, over the steps that are taken; none where members trust each
        other."""
        self.left_out: Counter[int] = Counter()
        """Chunks of the taken steps in which a member had no part because its signs do not agree
        with the others', by its ring position."""

    def begin(
        self, round_number: int, start: FloatVector, standing: Standing | None = None
    ) -> None:
        """The steps of a round begin at `start`.

        Args:
            standing: of the ring's members, in a run with a probation.
        """
        np.copyto(self.values, start)
        self._number, self._standing, self._taken = round_number, standing, []
        self.left_out = Counter()
        if self._payloads.are_signed:
            self._agreements = [SignAgreement() for _ in self._pieces]

    def take(self, round_number: int, chunk: int, average: Payload) -> None:
        """The round's step, or a part of one, unless the chunks before it are not taken.
        MalformedError."""
        if round_number == self._number and chunk == len(self._taken):
            self._take(average)

    def lead(
        self,
        round_number: int,
        start: FloatVector,
        averages: Sequence[Payload],
        out: FloatVector,
        standing: Standing | None = None,
    ) -> None:
        """Writes the parameters to which the round's averages lead from `start` to `out`, all
        (num_parameters,). Raises MalformedError.

        Args:
            standing: see `begin`.
        """
        digests = [digest_of(average) for average in averages]
        is_same_round = (round_number, standing) == (self._number, self._standing)
        if not is_same_round or digests[: len(self._taken)] != self._taken:
            self.begin(round_number, start, standing)
        for average in averages[len(self._taken) :]:
            self._take(average)
        np.copyto(out, self.values)

    def _take(self, average: Payload) -> None:
        step, number = divmod(len(self._taken), len(self._pieces))
        place = self._outer.first_inner_step_of(self._number) + step
        apply = partial(map_pieces, num_threads=num_piece_threads(self.values.size))
        updates = self._payloads.updates(average, chunk=number)
        if self._agreements:
            updates = self._agreeing(updates, number, place, apply)
        shared_step(
            self._pieces[number],
            self.values,
            list(updates.values()),
            shared_rate_at(place, self._inner),
            self._inner.weight_decay,
            self.values,
            apply,
        )
        self._taken.append(digest_of(average))

    def _agreeing(
        self, updates: dict[int, SignUpdate], number: int, place: int, apply: Apply
    ) -> dict[int, SignUpdate]:
        """The updates of the members that have a part in a step, by ring position."""
        heard, judges = heard_updates(updates, self._standing, place)
        agreement = self._agreements[number]
        agreement.took(updates, [grid.tensor.range for grid in self._pieces[number]], apply)
        left_out = agreement.left_out(heard, judges)
        self.left_out.update(left_out)
        return {position: each for position, each in heard.items() if position not in left_out}
