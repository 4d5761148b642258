"""Outer learning rate and momentum that a run sets itself.

The published 0.7/0.9 is right for a run that is under way and wrong for a cold start, and the best
momentum differs with H, with the number of peers and over the run. What an outer step should do is
visible in the run: the averaged pseudo-gradient of a round says whether the last steps went too
far. `agreement` is the cosine between it and the momentum, the direction of the last steps. It is
high when the swarm wants to go on the same way (the steps were too short), and low when it wants to
go back. The rule turns one knob, the *gain*, the factor by which a lasting direction is amplified:

    gain' = gain * (1 + SPEED * (agreement - NOISE_SHARE * expected))        within 1 to GAIN_MAX
    learning rate = 1,  momentum = 1 - 1 / gain

With gain 1 this is plain averaging, with which every run begins. The rounds of a warm-up, which are
short, are plain averages too, and the rule begins after them: let loose on them (H=4, held-out loss
of tests/benchmarks/losses.py --small, one seed) it went to a gain of 3.9 within ten rounds, and the
run ended at 1.928 nats, where plain averaging there and momentum 0.8 later had 1.584.

(This is hypergradient descent, Baydin et al., arXiv 1703.04782, in its multiplicative form, on the
outer step. With learning rate 1, Nesterov's method removes what the peers have fully worked off in
a round, whatever its momentum.)

*Expected* is the agreement that says nothing: AdamW's own momentum lasts over the end of a round,
so neighbouring pseudo-gradients would be alike even if all gradients were noise, by 0.76 with H=4
and by 0.31 with H=20 (measured in a warm-up with H=4, from the 20th round on: 0.65 to 0.8). With
white noise through a first moment of decay b, whose values are b**k alike k steps apart, rounds of
H steps that follow each other have the correlation

    r = b * ((1 - b**H) / (1 - b))**2  /  (H + 2 * sum of (H - k) * b**k over k from 1 to H - 1)

and b**H times less with every round between. `expected_agreement` sums that up for a momentum.

All peers get the same numbers: the inputs are the averaged chunks and the momentum of the committed
state, and everything is a fixed sequence of IEEE 754 operations in float64.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from gossamer.protocol.state import FloatVector

GAIN_MAX = 10.0
"""Momentum 0.9: the largest that is in use anywhere."""

SPEED = 1.0
"""How fast the gain follows: at most twofold a round. Not tuned."""

NOISE_SHARE = 0.5
"""Of the expected agreement that is asked for. All of it would be right if each round were to lower
the loss at once as far as it can; what pays in the long run is to go further than that (the
short-horizon bias of such rules: Wu et al., arXiv 1803.02021). In the setting above, warm start,
H=20 (one seed): 1.627 nats with all of it, 1.578 with half, where the gain finds its way to 5; the
best constant step that was tried, 1.0/0.8 with the gain 5, had 1.584. From a cold start it is the
other way round: 1.667 with all, 1.730 with half. So it is no default for cold starts yet."""

_NEGLIGIBLE = 1e-12
"""Powers of beta1 below this do not matter, and there may be 100,000 of them."""

_LANES = 4096
"""Running sums of an inner product: element i goes to lane i mod `_LANES`."""


class OuterTuning(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the rule carries from round to round, beside the committed vectors."""

    gain: float = 1.0

    @property
    def rates(self) -> tuple[float, float]:
        """(outer learning rate, momentum)"""
        return (1.0, 1.0 - 1.0 / self.gain)

    def after(self, agreement: float, expected: float) -> OuterTuning:
        """The tuning of the round whose average agrees so with the momentum before it."""
        gain = self.gain * (1.0 + SPEED * (agreement - NOISE_SHARE * expected))
        return OuterTuning(min(max(gain, 1.0), GAIN_MAX))


def agreement(average: FloatVector, momentum: FloatVector) -> float:
    """Cosine between two vectors, both (num_elements,); 0 if one of them is zero."""
    squares = inner_product(average, average) * inner_product(momentum, momentum)
    if not 0.0 < squares < math.inf:
        return 0.0
    return inner_product(average, momentum) / math.sqrt(squares)


def expected_agreement(inner_steps: int, beta1: float, momentum: float) -> float:
    """`agreement` of rounds of noise.

    Args:
        inner_steps: H, 1 or more.
        beta1: decay of AdamW's first moment.
        momentum: of the outer step, below 1.
    """
    power, variance = 1.0, float(inner_steps)
    for k in range(1, inner_steps):  # not `**`, whose last bit is the machine's
        power *= beta1
        if power < _NEGLIGIBLE:
            break
        variance += 2.0 * (inner_steps - k) * power
    across = power * beta1 if power >= _NEGLIGIBLE else 0.0
    reach = (1.0 - across) / (1.0 - beta1)
    neighbours = beta1 * reach * reach / variance
    with_all = neighbours / (1.0 - momentum * across)
    of_momentum = (1.0 + 2.0 * momentum * with_all) / (1.0 - momentum * momentum)
    return with_all / math.sqrt(of_momentum)


def inner_product(a: FloatVector, b: FloatVector) -> float:
    """The sum of products, the same bits on every machine.

    A product of two fp32 is exact in float64. The lanes are added up one row after the other, each
    addition rounded by itself, and the sum of the lanes is rounded once.
    """
    lanes = np.zeros(_LANES)
    for start in range(0, len(a), _LANES):
        left = a[start : start + _LANES].astype(np.float64)
        left *= b[start : start + _LANES]
        lanes[: len(left)] += left
    return math.fsum(lanes)
