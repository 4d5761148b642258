"""The end of a trainer's life in words."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

_VMSTAT = Path("/proc/vmstat")


def kernel_memory_kills() -> int | None:
    """Processes that this kernel has killed for lack of memory; None where it does not say."""
    try:
        for line in _VMSTAT.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


@dataclass(frozen=True)
class TrainerExit:
    """The end of a worker's life."""

    code: int | None = None
    """Exit code, or None if a signal ended it, or it could not be started."""
    signal: int | None = None
    """Number of the signal that ended it, or None."""
    wanted: bool = False
    """Whether `close` or a cancellation ended the worker."""
    failure: str = ""
    """The reason of its Failed message, or why it was ended or could not be started; or empty."""
    stderr: tuple[str, ...] = ()
    """Its last lines on stderr, a bounded number."""
    hung: bool = False
    """Whether it was ended because it gave no sign of life, or none of progress."""
    out_of_memory: bool | None = None
    """Whether the kernel killed some process for lack of memory meanwhile; None if not known."""

    @property
    def reason(self) -> str:
        """The label of this end in the metrics."""
        if self.hung:
            return "hung"
        return "killed" if self.signal is not None and not self.failure else "failed"

    @property
    def description(self) -> str:
        """One sentence for people."""
        if self.hung:
            return f"the trainer hung: {self.failure}"
        if self.failure:
            return f"the trainer failed: {self.failure}"
        if self.signal is not None:
            return f"the trainer was {self._ended_by}"
        last = f": {self.stderr[-1]}" if self.code and self.stderr else ""
        return f"the trainer exited with code {self.code}{last}"

    def remedies(self, device: str) -> str:
        """Returns what to do about a trainer that ends so each time, for people.

        Args:
            device: the device that it trained on, or that it was to take.
        """
        on_host = device == "cpu"
        if self._lacked_memory:
            smaller = ", and so does --micro-batch 1" if on_host else ""
            return f"A run with a smaller model takes less{smaller}. `gossamer resume` tries again"
        without = "" if on_host else ", --device cpu trains without it"
        return f"`gossamer doctor` checks the device{without}, `gossamer resume` tries again"

    @property
    def _lacked_memory(self) -> bool:
        """Whether the system had too little memory for it, as far as anything tells."""
        is_killed = self.signal == signal.SIGKILL and not (self.hung or self.failure)
        return is_killed and self.out_of_memory is not False

    @property
    def _ended_by(self) -> str:
        assert self.signal is not None
        known = self.signal in set(signal.Signals)
        name = signal.Signals(self.signal).name if known else f"signal {self.signal}"
        if self.signal != signal.SIGKILL or self.wanted:
            return f"ended by {name}"
        advice = "Stop what else uses the memory, or use a machine with more"
        if self.out_of_memory:
            return f"killed by the system ({name}), which ran out of memory. {advice}"
        if self.out_of_memory is None:
            return f"killed ({name}), by a person or for want of memory. {advice}"
        return f"killed ({name}), not by the kernel: by a person, or by a guard like systemd-oomd"
