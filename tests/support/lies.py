"""What a hostile member sends in place of its work, for simulations and for whole nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gossamer.protocol.codecs.chunk_values import Float32Array

Attack = Callable[[Float32Array, Float32Array, np.random.Generator], Float32Array]
"""Makes the lie (num_elements,) from the liar's own work (num_elements,), from the contributions of
the honest members (members, num_elements), and from draws."""


def alie(_own: Float32Array, others: Float32Array, _draw: np.random.Generator) -> Float32Array:
    """The honest mean less one spread (Baruch et al. 2019, arXiv 1902.06156)."""
    return np.asarray(others.mean(axis=0) - others.std(axis=0), np.float32)


NOBODY = "nobody"
"""No attack: all members are honest."""

ATTACKS: dict[str, Attack | None] = {
    NOBODY: None,
    "-10 x": lambda own, _others, _draw: -10 * own,
    "-1 x": lambda own, _others, _draw: -own,
    "noise x 100": lambda own, others, draw: (
        100 * others.std(axis=0) * draw.standard_normal(own.size, np.float32)
    ),
    "2^99": lambda own, _others, _draw: np.full_like(own, 2.0**99),
    "ALIE": alie,
    "bias": lambda _own, others, _draw: -0.5 * others.mean(axis=0),
}

MIXED = "mixed"
"""Each hostile member makes another one of the attacks, and the next one in the next round."""


def attack_of(name: str, number: int, place: int) -> Attack | None:
    """What the hostile member at a place among the hostile ones does in a round."""
    if name != MIXED:
        return ATTACKS[name]
    attacks = [attack for attack in ATTACKS.values() if attack is not None]
    return attacks[(number + 2 * place) % len(attacks)]
