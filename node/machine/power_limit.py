"""The owner's limit of the power of each card that trains, set through the driver.

The limit is the card's, and outlives a process. So the node notes what it found, and puts it back
when the owner takes the limit away, and when the node ends.
"""

from __future__ import annotations

from gossamer.node.machine.capacity import training_gpus
from gossamer.node.telemetry.gpus import Gpu, Gpus


class PowerLimit:
    """The power of the cards. Calls block for milliseconds, and may hang with a broken driver."""

    def __init__(self, gpus: Gpus, device: str) -> None:
        """`device`: the setting of the trainer's device."""
        self._gpus = gpus
        self._device = device
        self._found: dict[int, float] = {}
        """The limits before, by the indices of the cards that were changed."""

    def problem(self, watts: int) -> str:
        """Returns why a card cannot have such a limit, with the least that it can; else empty."""
        for gpu in training_gpus(self._device, self._gpus.read()) if watts else []:
            if gpu.power_limit_min_watts is not None and watts < gpu.power_limit_min_watts:
                return (
                    f"{watts} W are too few: {gpu.name} takes {gpu.power_limit_min_watts:g} W or "
                    "more"
                )
        return ""

    def apply(self, watts: int) -> str:
        """Sets the limit of each card, or with 0 what was found. Returns why it does not hold; else
        empty."""
        if not watts:
            return self.restore()
        gpus = training_gpus(self._device, self._gpus.read())
        if not gpus:
            return "there is no NVIDIA card that trains here"
        problems = [self._apply(watts, gpu) for gpu in gpus]
        return "; ".join(filter(None, problems))

    def _apply(self, watts: int, gpu: Gpu) -> str:
        wanted: float = watts
        found = self._found.get(gpu.index, gpu.power_limit_watts)
        if found is not None:
            # The owner or another program may hold it lower. What the card has now may be this
            # node's own, lower limit of before.
            wanted = min(wanted, found)
        if gpu.power_limit_watts == wanted:
            return ""
        problem = self._gpus.set_power_limit(gpu.index, wanted)
        if not problem and found is not None:
            self._found[gpu.index] = found
        return problem

    def restore(self) -> str:
        """Puts back what was found. Returns why that failed; else empty."""
        found, self._found = self._found, {}
        problems = [self._gpus.set_power_limit(index, watts) for index, watts in found.items()]
        return "; ".join(filter(None, problems))
