"""Measurements of an inner step besides its loss."""

from __future__ import annotations

import math

import msgspec


class StepTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds of an inner step by what they went into, see `StepClock`. What is left of
    `Step.seconds` went into small things."""

    data: float = 0.0
    """Cutting the batch, also reading and unpacking a shard for it."""
    forward: float = 0.0
    """Forward passes, with the copy of the batch to the device."""
    backward: float = 0.0
    optimizer: float = 0.0
    """Norm, clipping and update. On a card it is that of the step before."""
    handover: float = 0.0
    """Taking over states, and handing over the work, since the step before. Between rounds it is
    no part of `Step.seconds`."""


def bits_per_byte(loss: float, tokens: int, text_bytes: int) -> float | None:
    """Returns a loss in bits for each byte of text, which does not depend on the tokenizer; None if
    the loss is not finite or the bytes are not known.

    All tokens count above the line, those that end a document among them, and below it only text
    (as in The Pile, arXiv 2101.00027, section 3.1).

    Args:
        loss: nats per token.
        tokens: tokens that it is the mean of.
        text_bytes: UTF-8 bytes of the text that these tokens stand for; 0: not known.
    """
    if not text_bytes or not math.isfinite(loss):
        return None
    return loss * tokens / (math.log(2) * text_bytes)
