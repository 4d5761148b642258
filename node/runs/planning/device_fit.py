"""Whether a run's model can be trained in the memory of this machine's card, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.machine.capacity import DeviceMemory
from gossamer.node.runs.planning.draft import Draft
from gossamer.node.runs.planning.needs import TooLargeError
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.sync_modes import SYNC_MODES
from gossamer.trainer.ipc.choices import MomentChoice, MomentFormat
from gossamer.trainer.resources.memory_estimate import (
    GPU_FEW_TOKENS,
    GPU_TOKENS_MAX,
    HALF_BYTES,
    Training,
    fitting_moments,
    moment_elements,
)

DRIVER_BYTES = 300 * 1000**2
"""Memory of a card that a process takes before its first tensor: the driver's context and the
libraries' kernels. Published figures are 300 to 500 MB; it was not measured here."""


@dataclass(frozen=True)
class DeviceFit:
    """How a model fits into a card. Estimates are a little less than the truth."""

    memory: DeviceMemory
    vectors_bytes: int
    """Parameters and what the optimiser keeps."""
    least_bytes: int
    """Vectors, with moments in as little as the owner lets them be, gradient, and a pass of one
    sequence."""
    sequences: int
    """Sequences of a pass that fit; 0 if not one does."""
    sequences_per_step: int
    checkpointing: bool
    """Whether they fit only if activations are computed twice, which costs a third of the speed."""
    moment_format: MomentFormat
    """What the optimiser keeps its moments in."""

    @property
    def text(self) -> str:
        """One line for people."""
        card = f"{printable(self.memory.name)}: {format_bytes(self.memory.free_bytes)}"
        twice = ", with activations computed twice" if self.checkpointing else ""
        less = "" if self.moment_format == "fp32" else f", with moments in {self.moment_format}"
        return (
            f"{card} of {format_bytes(self.memory.total_bytes)} are free, at least "
            f"{format_bytes(self.least_bytes)} are needed; {self.sequences} of "
            f"{self.sequences_per_step} sequences at once fit{twice}{less}"
        )


def device_fits(
    run: Manifest | Draft, cards: Sequence[DeviceMemory], moments: MomentChoice = "auto"
) -> list[DeviceFit]:
    """Returns how the run's model fits into each of the cards that train as one. Only the first has
    the optimiser. Cards beyond the sequences of a step have no work, and are left out.

    Args:
        moments: the owner's choice of what the optimiser keeps its moments in.
    """
    useful = cards[: run.inner.sequences_per_step]
    return [
        device_fit(run, card, moments, holds_moments=number == 0)
        for number, card in enumerate(useful)
    ]


def device_fit(
    run: Manifest | Draft,
    memory: DeviceMemory,
    moments: MomentChoice = "auto",
    *,
    holds_moments: bool = True,
) -> DeviceFit:
    """Returns how the run's model fits into a card with so much free memory.

    Matrix products and the sums between the layers are taken to be in bf16, as on all but old
    cards.

    Args:
        moments: the owner's choice of what the optimiser keeps its moments in.
        holds_moments: whether the optimiser is on this card.
    """
    num_sequences, context = run.inner.sequences_per_step, run.model.context
    most = max(1, min(num_sequences, GPU_TOKENS_MAX // context))
    few = min(num_sequences, -(-GPU_FEW_TOKENS // context))
    free = memory.free_bytes - DRIVER_BYTES
    shares_steps = SYNC_MODES[run.sync].shares_steps
    elements = moment_elements(run.model, run.inner, shares_steps=shares_steps)
    training = smallest = Training(
        run.model,
        half=True,
        residual_bytes=HALF_BYTES,
        moment_elements=elements if holds_moments else 0,
    )
    if holds_moments and not shares_steps:  # the momentum of shared steps is always in fp32
        chosen = moments
        if chosen == "auto":
            chosen = fitting_moments(training, free, num_sequences, few)
        training = replace(training, moment_format=chosen)
        smallest = replace(training, moment_format="8bit") if moments == "auto" else training
    free -= training.vectors_bytes
    plain, twice = (
        training.largest_pass(free, most, num_sequences, checkpointing=checkpointing)
        for checkpointing in (False, True)
    )
    is_plain = plain >= min(most, few)
    least = training.pass_bytes(1, checkpointing=True, is_whole_step=num_sequences == 1)
    return DeviceFit(
        memory=memory,
        vectors_bytes=training.vectors_bytes,
        least_bytes=DRIVER_BYTES + smallest.vectors_bytes + least,
        sequences=plain if is_plain else twice,
        sequences_per_step=num_sequences,
        checkpointing=not is_plain,
        moment_format=training.moment_format,
    )


def require_fit(run: Manifest | Draft, fit: DeviceFit) -> DeviceFit:
    """Returns the fit. Raises TooLargeError if not even one sequence fits."""
    if fit.sequences:
        return fit
    raise TooLargeError(
        f"the run {printable(run.name)} has {run.model.num_parameters:,} parameters and needs at "
        f"least {format_bytes(fit.least_bytes)} on {printable(fit.memory.name)} "
        f"({format_bytes(fit.vectors_bytes)} of it for parameters and optimiser), of whose "
        f"{format_bytes(fit.memory.total_bytes)} {format_bytes(fit.memory.free_bytes)} are free. "
        "Each card has to hold all parameters: a model is not split over several. Stop what else "
        "uses the card, choose another --device, or take a smaller model"
    )
