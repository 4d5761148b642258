"""The owner's limit of the power of the card that trains, set through the driver.

The limit is the card's, and outlives a process. So the node notes what it found, and puts it back
when the owner takes the limit away, and when the node ends.
"""

from __future__ import annotations

from gossamer.node.machine.capacity import training_gpu
from gossamer.node.telemetry.gpus import Gpus


class PowerLimit:
    """The power of one card. Calls block for milliseconds, and may hang with a broken driver."""

    def __init__(self, gpus: Gpus, device: str) -> None:
        """`device`: the setting of the trainer's device."""
        self._gpus = gpus
        self._device = device
        self._found: tuple[int, float] | None = None
        """Index of the card that was changed, and its limit before."""

    def problem(self, watts: int) -> str:
        """Returns why the card cannot have such a limit, with the least that it can; else empty."""
        gpu = training_gpu(self._device, self._gpus.read())
        if gpu is None or not watts or gpu.power_limit_min_watts is None:
            return ""
        if watts < gpu.power_limit_min_watts:
            return (
                f"{watts} W are too few: {gpu.name} takes {gpu.power_limit_min_watts:g} W or more"
            )
        return ""

    def apply(self, watts: int) -> str:
        """Sets the limit, or with 0 what was found. Returns why it does not hold; else empty."""
        if not watts:
            return self.restore()
        gpu = training_gpu(self._device, self._gpus.read())
        if gpu is None:
            return "there is no NVIDIA card that trains here"
        if gpu.power_limit_watts is not None and gpu.power_limit_watts <= watts:
            return ""  # the owner or another program holds it lower already
        problem = self._gpus.set_power_limit(gpu.index, watts)
        if not problem and self._found is None and gpu.power_limit_watts is not None:
            self._found = gpu.index, gpu.power_limit_watts
        return problem

    def restore(self) -> str:
        """Puts back what was found. Returns why that failed; else empty."""
        if self._found is None:
            return ""
        (index, watts), self._found = self._found, None
        return self._gpus.set_power_limit(index, watts)
