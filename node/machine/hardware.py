"""This machine's capacity, as the node announces it."""

from __future__ import annotations

import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.capacity import measure_capacity
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.telemetry.gpus import Gpus
from gossamer.protocol.wire.statements import Capacity
from gossamer.trainer.ipc import messages
from gossamer.trainer.resources.device_names import ALL


class Hardware:
    """Holds what was measured at the start, the trainer's real device, and the measured speeds.

    GPUs are read in a thread, because a broken driver may hang.
    """

    def __init__(
        self, device: str, gpus: Gpus, speed: SpeedMeter, run_in_thread: RunInThread
    ) -> None:
        """
        Args:
            device: setting of the trainer's device; a guess until the trainer says which it is.
        """
        self._device = device
        self._gpus = gpus
        self._speed = speed
        self._run_in_thread = run_in_thread
        self._measured: Capacity | None = None
        self._configured: messages.Configured | None = None
        """The newest trainer's report of its device."""
        self._is_configured = trio.Event()
        """The event of the next report. It is replaced when `run` takes a report over."""

    async def measure(self) -> None:
        """Measures the machine. Call once, before `capacity` and `run`."""
        self._measured = await self._run_in_thread(
            lambda: measure_capacity(self._device, self._gpus.read())
        )

    async def run(self) -> None:
        """Takes over the devices that trainers found, until cancelled."""
        while True:
            await self._is_configured.wait()
            self._is_configured = trio.Event()
            self._measured = await self._run_in_thread(self._measure_configured)

    def capacity(self) -> Capacity:
        """Returns the capacity with the speeds measured so far."""
        assert self._measured is not None
        return self._speed.put_into(self._measured)

    def missed_gpu(self, configured: messages.Configured) -> str | None:
        """The GPU that the driver has and this trainer did not find, although the choice was its
        own. Ask before `trainer_configured`."""
        measured = self._measured
        if self._device not in ("auto", ALL) or configured.device != "cpu" or measured is None:
            return None
        return measured.device if measured.device_kind in ("cuda", "rocm") else None

    def trainer_configured(self, configured: messages.Configured) -> None:
        """Notes the device that the trainer found; `run` takes it over."""
        self._configured = configured
        self._is_configured.set()

    def _measure_configured(self) -> Capacity:
        configured = self._configured
        assert configured is not None
        return measure_capacity(configured.device, self._gpus.read(), configured.device_name)
