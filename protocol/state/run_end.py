"""Place of a run in its schedule, and the end of the run.

A run without `inner.schedule` counts the inner steps that its rounds plan, and ends with the round
that completes `inner.total_steps` (`Manifest.last_round`).

A run with it counts the tokens that its chain credits to all peers (`Header.tokens_total`): a
round in which slow devices did a third of their steps moves the schedule by a third. The learning
rate rises during the first `warmup_tokens`, stays, and falls during the last `cooldown_tokens` of
`total_tokens` (WSD, MiniCPM, arXiv 2404.06395). The first head at which the chain has
`total_tokens` is the final one: no round follows it.

The founder can name another total and another cool-down by a signed statement (`Extension`). Of
several the one with the highest number holds, and an equal number is decided by the totals, so that
all peers agree. Nothing but the learning rate of a peer's own steps and the end of the run depends
on it: the state that a committed round leads to is the same for a peer that has not heard of it.
"""

from __future__ import annotations

import math

import msgspec

from gossamer.protocol.errors import ImplausibleError
from gossamer.protocol.manifest import (
    InnerConfig,
    Manifest,
    OuterConfig,
    TokenSchedule,
    last_round_of,
)
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.wire.statements import Extension, version_of


class SchedulePlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Place of a round in a schedule of tokens."""

    schedule: TokenSchedule
    tokens_before: int
    """Tokens of all peers before the round, by the chain."""
    tokens_per_step: int
    """Tokens of all peers while this peer does one inner step."""

    def learning_rate(self, step: float, inner: InnerConfig) -> float:
        """The learning rate of the round's inner step `step` (counts from 0). Where not all tokens
        of a step are trained on, it counts as a part of one.

        A step counts with its own tokens, so that the first one of the run has a rate above 0. The
        cool-down has the form 1 - sqrt, which ended lower than a line (arXiv 2405.18392, section
        3), and ends at `final_fraction`.
        """
        schedule = self.schedule
        tokens = self.tokens_before + round((step + 1) * self.tokens_per_step)
        if tokens < schedule.warmup_tokens:
            return inner.learning_rate * tokens / schedule.warmup_tokens
        fallen = tokens - schedule.cooldown_start
        if fallen <= 0:
            return inner.learning_rate
        progress = min(fallen / schedule.cooldown_tokens, 1.0) if schedule.cooldown_tokens else 1.0
        left = 1.0 - math.sqrt(progress)
        return inner.learning_rate * (inner.final_fraction + (1.0 - inner.final_fraction) * left)


class RunEnd:
    """Knows when one run is over, and its schedule where that counts tokens."""

    def __init__(self, model: ModelConfig, inner: InnerConfig, outer: OuterConfig) -> None:
        self._inner = inner
        self._last_round = last_round_of(inner, outer)
        self._step_tokens = inner.sequences_per_step * model.context
        self.newest: Extension | None = None
        """The founder's extension that holds; None without one."""

    @property
    def schedule(self) -> TokenSchedule | None:
        """The schedule as it holds now; None for a run that counts planned steps."""
        started = self._inner.schedule
        if not started:
            return None
        if self.newest is None:
            return started
        return TokenSchedule(
            warmup_tokens=started.warmup_tokens,
            total_tokens=self.newest.total_tokens,
            cooldown_tokens=self.newest.cooldown_tokens,
        )

    @property
    def final_tokens(self) -> int | None:
        """Tokens in the chain with which the run is over; None if no number of tokens ends it."""
        schedule = self.schedule
        return schedule.total_tokens if schedule is not None and self._inner.ends else None

    def is_over_after(self, round_number: int, tokens_total: int) -> bool:
        """Returns whether no round follows a head.

        Args:
            round_number: of the head; 0 is the genesis state.
            tokens_total: tokens in its chain.
        """
        last, tokens = self._last_round, self.final_tokens
        if tokens is not None:
            return tokens_total >= tokens
        return last is not None and round_number >= last

    def extend(self, extension: Extension) -> bool:
        """Takes a checked extension by the founder. Returns whether it holds from now on."""
        newest = self.newest
        if newest is not None and version_of(extension) <= version_of(newest):
            return False
        self.newest = extension
        return True

    def place_of(
        self, tokens_total: int, num_contributors: int, tokens_ahead: int = 0
    ) -> SchedulePlace | None:
        """Returns the place of the round after a head; None for a run that counts planned steps.

        Args:
            tokens_total: tokens in the chain of the head.
            num_contributors: members of whose work the head's round took tokens; 0 at the genesis
                state. As many are supposed to train in the next round.
            tokens_ahead: tokens that rounds between the head and this round are supposed to have.
        """
        schedule = self.schedule
        if schedule is None:
            return None
        return SchedulePlace(
            schedule=schedule,
            tokens_before=tokens_total + tokens_ahead,
            tokens_per_step=self._step_tokens * max(1, num_contributors),
        )


def check_extension(extension: Extension, manifest: Manifest) -> None:
    """Raises ImplausibleError for an extension that this run cannot have."""
    schedule = manifest.inner.schedule
    if not schedule:
        raise ImplausibleError("an extension of a run that counts planned steps")
    if schedule.warmup_tokens + extension.cooldown_tokens > extension.total_tokens:
        raise ImplausibleError("an extension whose warm-up and cool-down are longer than the run")
