"""This machine's capacity, as the node announces it."""

from __future__ import annotations

from gossamer.node.machine.capacity import measure_capacity, with_trainer_device
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.telemetry.gpus import Gpus
from gossamer.protocol.wire.statements import Capacity
from gossamer.trainer.ipc import messages


class Hardware:
    """Holds what was measured at the start, the trainer's real device, and the measured speeds."""

    def __init__(self, device: str, gpus: Gpus, speed: SpeedMeter) -> None:
        """
        Args:
            device: setting of the trainer's device; `auto` until the trainer says which it is.
        """
        self._gpus = gpus
        self._speed = speed
        self._measured = measure_capacity(device, gpus.read())

    def capacity(self) -> Capacity:
        """Returns the capacity with the speeds measured so far."""
        return self._speed.put_into(self._measured)

    def trainer_configured(self, configured: messages.Configured) -> None:
        """Takes over the device that the trainer found."""
        self._measured = with_trainer_device(
            self._measured, configured.device, configured.device_name, self._gpus.read()
        )
