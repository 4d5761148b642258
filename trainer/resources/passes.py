"""The size of a forward and backward pass: estimated, tried, made smaller, and remembered.

The sizes are a list, from the one that needs the most memory to the one that needs the least. It
begins with what fits by the estimate (`memory_estimate`), and every failure for want of memory goes
one place down. A size that a whole step went through with is proven.

A file beside the optimiser's keeps the size over restarts of the process. A restart begins with
the proven size, and goes one place up from it only with a reason:

- more memory is free than when the larger size failed, or
- the larger size never failed, or
- it failed once, by the end of the process. That may have had another cause, and is tried once
  more.

So a restart costs at most one failed attempt. The file is written before a size that is not proven
is tried, because the system may end a process that takes too much memory (a CPU's, or an Apple
GPU's) without a word. A process that finds such a note goes on one place further down.

The size is this machine's own affair: peers with different sizes get the same sums but for
rounding.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc.choices import MomentChoice, MomentFormat
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.resources.device import Device
from gossamer.trainer.resources.memory_estimate import (
    FLOAT_BYTES,
    Training,
    fitting_moments,
    logits_max_of,
    moment_elements,
    sizes_from,
)

FILE_NAME = "pass"
"""Name of the file beside the optimiser's."""

_FILE_BYTES_MAX = 4096
"""A note has some 200 bytes. A larger file is another program's."""

_MORE_MEMORY = 1.1
"""Factor by which more memory must be free than at a failure before the same size is tried again.
Less is what other programs take and give back from minute to minute."""

log = logging.getLogger(__name__)


class Pass(NamedTuple):
    """One forward and backward pass."""

    sequences: int
    checkpointing: bool = False
    """Whether the layers compute their activations twice, see `Decoder.checkpointing`."""

    @property
    def rank(self) -> tuple[bool, int]:
        """Place among the sizes: a larger one is used where there is the memory for it."""
        return not self.checkpointing, self.sequences


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the file."""

    key: str
    """Digest of all that the sizes depend on."""
    sequences: int
    checkpointing: bool
    is_proven: bool
    failed_free_bytes: int
    """Free memory when the next larger size failed; 0 if it did not."""
    free_bytes: int
    """Free memory when this size was chosen; 0 if that is not known."""
    deaths: int
    """Processes that ended in a try of the next larger size, or of this one if it `has_grown`."""
    has_grown: bool
    """Whether a process went up to this size from a smaller one that was proven."""


class Passes:
    """Says how many sequences go through the model at once, and learns from failures.

    It has more than 12 attributes: what the size depends on, and what the file and the failures
    have taught.
    """

    def __init__(
        self,
        device: Device,
        model: ModelConfig,
        num_sequences: int,
        wanted: int = 0,
        path: Path | None = None,
    ) -> None:
        """
        Args:
            num_sequences: sequences of a step.
            wanted: sequences of a pass to begin with; 0 begins with what fits by the estimate.
            path: file that keeps the size over restarts; None keeps it nowhere.
        """
        self._device, self._num_sequences, self._wanted = device, num_sequences, wanted
        self._training = training_on(device, model)
        self._path = path
        key = (device.name, device.precision, str(torch.__version__), num_sequences, wanted)
        self._key = digest_of(msgspec.json.encode(model), msgspec.json.encode(key)).hex()
        self._note_before: _Note | None = None
        """The contents of the file at the start."""
        self._sizes: list[Pass] = []
        """From the one that needs the most memory; empty until the first use, when the vectors of
        the training lie in the device's memory."""
        self._place = 0
        self._is_proven = self._has_grown = False
        self._has_worked = False
        """Whether a step of this process went through with the present size."""
        self._free_bytes = self._failed_free_bytes = self._deaths = 0

    @property
    def present(self) -> Pass:
        """The size to use now."""
        if not self._sizes:
            self._choose()
        return self._sizes[self._place]

    @property
    def proven(self) -> Pass | None:
        """That size, if a whole step went through with it in this process; else None."""
        return self._sizes[self._place] if self._has_worked else None

    def begins(self) -> None:
        """A pass of the present size begins."""
        self.present  # noqa: B018  the first use chooses
        if not self._is_proven:
            self._write()

    def worked(self) -> None:
        """A whole step went through with the present size."""
        self._has_worked = True
        if not self._is_proven:
            self._is_proven = True
            if self._has_grown:
                self._failed_free_bytes, self._deaths, self._has_grown = 0, 0, False
            self._write()

    def failed(self, num_sequences: int) -> bool:
        """Memory ran out in a step of so many sequences. False if nothing smaller is left."""
        present = self.present
        used = min(present.sequences, num_sequences)
        smaller = (
            place
            for place in range(self._place + 1, len(self._sizes))
            if self._sizes[place].sequences < used
            or self._sizes[place].checkpointing > present.checkpointing
        )
        place = next(smaller, None)
        if place is None:
            return False
        self._failed_free_bytes, self._deaths = self._free_bytes or 1, 0
        self._place, self._is_proven, self._has_grown = place, False, False
        self._has_worked = False
        return True

    @property
    def numbers(self) -> str:
        """For people: what the smallest pass needs beside parameters and optimiser, and what is
        there."""
        is_whole_step = self._num_sequences == 1
        need = self._training.pass_bytes(1, checkpointing=True, is_whole_step=is_whole_step)
        free = f"{self._free_bytes / 1e9:.1f} GB" if self._free_bytes else "an unknown part"
        return f"at least {need / 1e9:.1f} GB are needed for it, and {free} of the memory was free"

    def withdraw(self) -> None:
        """The process is ended in order: a try that is under way says nothing about memory. What
        was known before it is put back."""
        if not self._sizes or self._is_proven or self._path is None:
            return
        if self._note_before is None:
            self._path.unlink(missing_ok=True)
        else:
            self._path.write_bytes(msgspec.json.encode(self._note_before))

    def _choose(self) -> None:
        free_bytes = self._device.free_bytes()
        self._free_bytes = free_bytes or 0
        self._sizes = self._sizes_for(free_bytes)
        self._note_before = note = self._read()
        if note is None:
            return
        self._failed_free_bytes, self._deaths = note.failed_free_bytes, note.deaths
        last = len(self._sizes) - 1
        noted = Pass(note.sequences, note.checkpointing)
        not_larger = (n for n, size in enumerate(self._sizes) if size.rank <= noted.rank)
        self._place = next(not_larger, last)
        if not note.is_proven:
            self._failed_free_bytes, self._deaths = note.free_bytes or 1, 1
            if note.has_grown:
                self._deaths += note.deaths
            self._place = min(self._place + 1, last)
        elif self._place > 0 and self._may_grow(note):
            self._place, self._has_grown = self._place - 1, True
        else:
            self._is_proven = self._sizes[self._place] == noted

    def _may_grow(self, note: _Note) -> bool:
        has_more = self._free_bytes > _MORE_MEMORY * note.failed_free_bytes
        return note.failed_free_bytes == 0 or has_more or note.deaths == 1

    def _sizes_for(self, free_bytes: int | None) -> list[Pass]:
        """First the sizes without checkpointing that are worth it, then those with it."""
        device, context = self._device, self._training.model.context
        num_sequences = self._num_sequences
        if self._wanted:
            most = min(self._wanted, num_sequences)
        elif free_bytes is None:
            most = device.micro_batch_of(num_sequences, context)
        else:
            most = device.micro_batch_max(num_sequences, context)
        plain = checkpointed = most
        if free_bytes is not None:
            plain, checkpointed = (
                self._training.largest_pass(
                    free_bytes, most, num_sequences, checkpointing=checkpointing
                )
                for checkpointing in (False, True)
            )
        if self._wanted:
            plain, checkpointed = most if plain == most else 0, most
        few = min(most, device.micro_batch_min(num_sequences, context))
        return [
            *(Pass(size) for size in sizes_from(plain) if size >= few),
            # Even where nothing fits by the estimate, one sequence is tried.
            *(Pass(size, checkpointing=True) for size in sizes_from(checkpointed or 1)),
        ]

    def _read(self) -> _Note | None:
        if self._path is None:
            return None
        try:
            with open(self._path, "rb") as file:
                note = msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=_Note)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # also of bytes that are no text
            log.warning("the size of a pass is found anew, %s is of no use: %s", self._path, error)
            return None
        return note if note.key == self._key else None

    def _write(self) -> None:
        if self._path is None:
            return
        note = _Note(
            key=self._key,
            sequences=self.present.sequences,
            checkpointing=self.present.checkpointing,
            is_proven=self._is_proven,
            failed_free_bytes=self._failed_free_bytes,
            free_bytes=self._free_bytes,
            deaths=self._deaths,
            has_grown=self._has_grown,
        )
        temporary = self._path.with_name(self._path.name + ".new")
        try:
            # Without a flush to the disk: it has to outlive the process only. After a power cut the
            # size is found anew.
            temporary.write_bytes(msgspec.json.encode(note))
            os.replace(temporary, self._path)
        except OSError as error:
            log.warning("%s cannot be written: %s; a restart tries sizes anew", self._path, error)


def passes_of(config: TrainerConfig, device: Device, rank: int = 0) -> Passes:
    """The passes of a trainer's device, whose size is kept beside the optimiser's file.

    Args:
        rank: of the device, of several that train together.
    """
    path = None
    if config.optimizer_path:
        name = f"{FILE_NAME}-{rank}" if rank else FILE_NAME
        path = Path(config.optimizer_path).with_name(name)
    num_sequences = config.inner.sequences_per_step
    return Passes(device, config.model, num_sequences, config.micro_batch, path)


def training_on(device: Device, model: ModelConfig) -> Training:
    """The training of a model on a device, as far as its passes depend on it: the moments are
    AdamW's."""
    return Training(
        model,
        half=device.is_half,
        residual_bytes=device.residual_dtype.itemsize,
        logits_max=logits_max_of(device.torch_device.type),
    )


def moment_format_on(
    device: Device, model: ModelConfig, inner: InnerConfig, choice: MomentChoice
) -> MomentFormat:
    """What an optimiser keeps its moments in, beside parameters that lie on the device already.

    A CPU, or a device whose memory is not known, has fp32 unless its owner says otherwise.
    """
    if choice != "auto":
        return choice
    free_bytes = device.free_bytes()
    if device.torch_device.type == "cpu" or free_bytes is None:
        return "fp32"
    training = replace(training_on(device, model), moment_elements=moment_elements(model, inner))
    num_sequences = inner.sequences_per_step
    few_sequences = device.micro_batch_min(num_sequences, model.context)
    free_bytes += FLOAT_BYTES * model.num_parameters
    return fitting_moments(training, free_bytes, num_sequences, few_sequences)
