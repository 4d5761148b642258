"""The sync modes: what peers exchange in a round, and what a run of each mode may have.

    diloco    whole pseudo-gradients, and an outer step with their mean
    sparse    the largest values of pseudo-gradients, and an outer step with their mean
    distro    the strongest signs of each step's gradients, and no step of a peer's own

All code that only has to know what a mode allows asks `SYNC_MODES`, so a new mode is a row here and
not a branch in each of these places. `protocol.codecs.payloads` has what travels in each mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

SyncMode = Literal["diloco", "sparse", "distro"]


class ModeRules(NamedTuple):
    """The features that a run of one mode has, or may have."""

    shares_steps: bool
    """Whether all peers take every step together. Then a chunk is a step, members train inside the
    ring, and a trainer keeps one momentum. Otherwise a peer takes steps of its own, and a round
    averages what they came to."""
    may_have_fragments: bool
    """Whether groups of layers may be averaged at different times (`outer.fragments`)."""
    may_choose_momentum: bool
    """Whether the outer momentum may follow from the work (`outer.displacement`)."""
    may_have_adapters: bool
    """Whether the parameters may be adapters of a model that stays as it is (`model.lora`)."""


SYNC_MODES: Mapping[SyncMode, ModeRules] = {
    "diloco": ModeRules(
        shares_steps=False,
        may_have_fragments=True,
        may_choose_momentum=True,
        may_have_adapters=True,
    ),
    "sparse": ModeRules(
        shares_steps=False,
        may_have_fragments=False,
        may_choose_momentum=False,
        may_have_adapters=True,
    ),
    "distro": ModeRules(
        shares_steps=True,
        may_have_fragments=False,
        may_choose_momentum=False,
        may_have_adapters=False,
    ),
}
