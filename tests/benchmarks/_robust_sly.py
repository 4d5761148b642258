"""A liar that knows how agreement is measured, for the table of robust averages."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from gossamer.protocol.codecs.chunk_values import Float32Array

ALLIES = 3
"""Honest members that a liar agrees with. Together with two other liars they are most of the others
in a ring of eight."""

_COSINE = 0.02
"""The agreement with each of them."""


def sly(_own: Float32Array, others: Float32Array, _draw: np.random.Generator) -> Float32Array:
    """The opposite of the honest mean, (num_elements,), with the least added that makes it agree
    with three honest members, at the median length of these.

    Liars that send it agree with each other, so each of them agrees with most of the others.

    Args:
        others: the honest members' contributions to one chunk, (members, num_elements).
    """
    honest = others.astype(np.float64)
    lengths = np.linalg.norm(honest, axis=1)
    length = float(np.median(lengths))
    if not lengths.all():
        return np.asarray(-others.mean(axis=0), np.float32)
    directions = honest / lengths[:, None]
    opposite = -honest.mean(axis=0)
    wanted = _COSINE * length
    additions = []
    for allies in combinations(range(len(honest)), ALLIES):
        chosen = directions[list(allies)]
        amounts = np.linalg.lstsq(chosen @ chosen.T, wanted - chosen @ opposite, rcond=None)[0]
        additions.append(amounts @ chosen)
    lie = opposite + min(additions, key=np.linalg.norm)
    return np.asarray(lie * (length / np.linalg.norm(lie)), np.float32)
