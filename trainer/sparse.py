"""What one peer of a `sparse` run carries from round to round: SparseLoCo's error feedback (arXiv
2508.15706, algorithm 1).

    e = e + delta               after the inner steps
    d = Q(topk(e))              what is sent
    e = beta * (e - d)          once a round has taken it

`delta` is the pseudo-gradient. Top-k, quantisation and the bytes are the codec's, the step of the
swarm is `outer.descend`. A part that missed its round stays in `e` whole. `e` is the peer's own, so
nobody else has to get its bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ERROR_DECAY = 0.95
"""SparseLoCo's beta."""

OUTER_RATE = 1.0
"""SparseLoCo's alpha."""


def settle(
    error: NDArray[np.float32], taken: NDArray[np.float32], decay: float = ERROR_DECAY
) -> None:
    """A round took `taken`, as everybody decodes it: `error` becomes `decay * (error - taken)`, in
    place; both are (num_elements,)."""
    np.subtract(error, taken, out=error)
    np.multiply(error, np.float32(decay), out=error)
