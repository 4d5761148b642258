"""DiLoCo on a model so small that a test can train it: multinomial regression, in numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.robust_average import robust_weights

Float64Array = npt.NDArray[np.float64]
Aggregate = Callable[[Sequence[Float32Array], Sequence[int]], Float32Array]
Attack = Callable[[Float64Array, Float64Array, np.random.Generator], Float64Array]
"""Function from (own work, the honest members' work, draws) to what a liar sends. The work is
(num_parameters,) and (members, num_parameters)."""

HONEST_OF_EIGHT = (0, 2, 3, 5, 7)
_CLASSES, _FEATURES, _EXAMPLES, _BATCH = 10, 60, 400, 32
_ROUNDS, _INNER_RATE, _OUTER_RATE = 15, 0.3, 0.9


def _softmax(scores: Float64Array) -> Float64Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Float64Array = powers / powers.sum(axis=1, keepdims=True)
    return result


def loss_after(
    aggregate: Aggregate,
    attack: Attack | None = None,
    members: Sequence[int] = tuple(range(8)),
    steps: Sequence[int] = (20,) * 8,
) -> float:
    """The held-out loss, in nats an example, after 15 rounds.

    Args:
        attack: what the members do that are not in `HONEST_OF_EIGHT`; they claim twice the tokens.
        steps: inner steps of each of the eight in a round.
    """
    draw = np.random.default_rng(0)
    truth = draw.standard_normal((_FEATURES, _CLASSES))
    inputs = draw.standard_normal((9, _EXAMPLES, _FEATURES))
    labels = np.array([[draw.choice(_CLASSES, p=p) for p in _softmax(x @ truth)] for x in inputs])
    parameters = np.zeros((_FEATURES, _CLASSES))

    def work(member: int) -> Float64Array:
        local = parameters.copy()
        for _ in range(steps[member]):
            batch = draw.integers(_EXAMPLES, size=_BATCH)
            errors = _softmax(inputs[member, batch] @ local)
            errors[np.arange(_BATCH), labels[member, batch]] -= 1
            local -= _INNER_RATE * inputs[member, batch].T @ errors / _BATCH
        return (parameters - local).reshape(-1)

    for _ in range(_ROUNDS):
        sent, tokens = [work(member) for member in members], [steps[m] for m in members]
        if attack is not None:
            honest = np.stack([sent[members.index(m)] for m in HONEST_OF_EIGHT])
            for place in set(range(len(members))) - {members.index(m) for m in HONEST_OF_EIGHT}:
                sent[place] = attack(sent[place], honest, draw)
                tokens[place] *= 2
        average = aggregate([each.astype(np.float32) for each in sent], robust_weights(tokens))
        parameters -= _OUTER_RATE * average.astype(np.float64).reshape(parameters.shape)
    scores = _softmax(inputs[8] @ parameters)[np.arange(_EXAMPLES), labels[8]]
    return float(-np.log(np.maximum(scores, 1e-300)).mean())
