"""Compiles the layers behind the training, and switches to them when they are ready.

    eager      training begins at once, with torch's own kernels
    compiling  when a step of the present size went through, a process of its own compiles for that
               size (`ahead`), beside the training
               (a process that may not use the card cannot: then the trainer compiles, in one step)
    compiled   the trainer takes the compiled parts, which it finds in torch's cache
    off        the compiler failed, or is not wanted: eager to the end of the process

A pass of another size is eager, and is compiled in its turn. Compiled and eager passes have the
same gradients but for rounding, as passes of different sizes have.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec
import torch

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.compiling.ahead import Order, reason_of
from gossamer.trainer.compiling.parts import Backend, bytes_to_compile, compile_parts
from gossamer.trainer.ipc.choices import CompileChoice
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.device import Device
from gossamer.trainer.resources.passes import Pass

SECONDS_MAX = 900.0
"""Time of one compilation. It took 21 to 25 s on an H200 and 76 s on two busy cores."""

NOTE_NAME = "compiling"
"""Name of the note beside the optimiser's file."""

TRIES_MAX = 4
"""Compilations of a process's life. The size of a pass changes a few times, downwards, until it
fits."""

COMMAND = (sys.executable, "-m", "gossamer.trainer.compiling.ahead")

_REASON_BYTES_MAX = 4096
"""Of the end of what a failed compilation wrote."""

log = logging.getLogger(__name__)


class Compiler:
    """Compiles the parts of one model's passes. Not for use from several threads."""

    def __init__(
        self,
        decoder: Decoder,
        device: Device,
        model: ModelConfig,
        choice: CompileChoice,
        backend: Backend = "inductor",
        note: Path | None = None,
    ) -> None:
        """
        Args:
            note: file that is there while this process compiles by itself, because none that it
                starts can use the device; None where one can. A process that finds such a file does
                not compile: the one before it ended there.
            choice: with `auto` it compiles on cards whose kernels torch's compiler writes.
            backend: torch's name of the compiler; another one than its own needs no process.
        """
        self._decoder, self._device, self._model = decoder, device, model
        self._backend = backend
        self._is_on = choice == "on" or (choice == "auto" and device.is_compiled_for)
        self._note, self._is_noted = note, False
        if self._is_on and note is not None and _ended_at(note):
            self._turn_off("the trainer ended when it compiled them the last time")
        self._num_tries = 0
        self._size: Pass | None = None
        """The size that is being compiled, or was last."""
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._started = 0.0

    @property
    def is_in_use(self) -> bool:
        """Whether passes of some size are compiled."""
        return self._decoder.compiled is not None

    def look(self, size: Pass | None) -> None:
        """Called between steps: begins to compile, or switches to what is ready.

        Args:
            size: of the passes, if a whole step went through with it; else None.
        """
        if self._is_noted and size is not None:
            self._forget_note()  # a whole step went through
        if not self._is_on or size is None:
            return
        if self._process is not None:
            self._look_at_process(self._process)
        elif size != self._size:
            self._begin(size)

    def gave_up(self, error: Exception) -> bool:
        """A pass failed, and not for want of memory. Returns whether compiled parts were in use: it
        is worth another try without them."""
        if not self.is_in_use:
            return False
        self._turn_off(reason_of(error))
        return True

    def close(self) -> None:
        """Ends the process that compiles. May be called from any thread, and twice."""
        if self._is_noted:
            self._forget_note()
        process, output = self._process, self._output
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if output is not None:
            output.close()

    def _begin(self, size: Pass) -> None:
        if self._num_tries >= TRIES_MAX:
            self._turn_off(f"the size of a pass changed {TRIES_MAX} times")
            return
        self._num_tries += 1
        self._size = size
        self._decoder.compiled = None
        # One thread for the compiler, in this process as well: the machine's owner and the daemon
        # come first. With more, torch leaves the kernels to processes, and where those cannot use
        # the card none is made.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        if self._backend != "inductor" or self._note is not None:
            self._switch_here()
            return
        needed = bytes_to_compile(self._model, self._device, size)
        free = self._device.free_bytes_of_others()
        if free is not None and free < needed:
            self._turn_off(
                f"compiling needs {needed / 1e9:.1f} GB beside the training, and "
                f"{free / 1e9:.1f} GB are free"
            )
            return
        order = Order(
            model=self._model,
            device=str(self._device.torch_device),
            sequences=size.sequences,
            checkpointing=size.checkpointing,
            loss_rows=self._decoder.loss_rows,
            threads=torch.get_num_threads(),
        )
        self._started = time.monotonic()
        try:
            # It is read when the process has ended.
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._output,
            )
        except OSError as error:  # a full disk, too many processes
            self.close()
            self._turn_off(f"the compiler cannot be started: {error}")
            return
        assert self._process.stdin is not None
        # A process that is gone already is found so at the next look.
        with suppress(OSError), self._process.stdin as stdin:
            stdin.write(msgspec.json.encode(order))

    def _look_at_process(self, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        seconds = time.monotonic() - self._started
        if code is None and seconds <= SECONDS_MAX:
            return
        reason = "" if code is None else self._reason()
        self.close()
        self._process = self._output = None
        if code is None:
            self._turn_off(f"the compiler was not done after {SECONDS_MAX:.0f} s")
        elif code != 0:
            self._turn_off(reason or f"the compiler ended with status {code}")
        else:
            log.info("layers are compiled from now on, after %.0f s beside the training", seconds)
            self._switch()

    def _switch(self) -> None:
        assert self._size is not None
        try:
            self._decoder.compiled = compile_parts(self._model, self._size, self._backend)
        except RuntimeError as error:  # a Python that the compiler is not for yet
            self._turn_off(reason_of(error))

    def _switch_here(self) -> None:
        if self._note is not None:
            try:
                self._note.write_text(torch.__version__)
            except OSError as error:
                self._turn_off(f"{self._note} cannot be written: {error}")
                return
            self._is_noted = True
        log.info("layers are compiled in the next step, which takes longer")
        self._switch()

    def _forget_note(self) -> None:
        self._is_noted = False
        if self._note is not None:
            with suppress(OSError):
                self._note.unlink(missing_ok=True)

    def _turn_off(self, reason: str) -> None:
        self._is_on = False
        self._decoder.compiled = None
        if self._is_noted:
            self._forget_note()
        log.warning("layers are not compiled, training goes on without: %s", reason)

    def _reason(self) -> str:
        """The last line that the process wrote."""
        if self._output is None:
            return ""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _REASON_BYTES_MAX))
        lines = self._output.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _ended_at(note: Path) -> bool:
    """Whether a process with this torch left the note."""
    try:
        return note.read_text(errors="replace") == torch.__version__
    except OSError:
        return False
