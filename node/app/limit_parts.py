"""The parts of a node that obey the owner's limits of trainer, disk and the card's power, and the
check of new limits against what the run needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from gossamer.node.app.owner_limits import OwnerLimits
from gossamer.node.base.setting_values import CACHE_BYTES_MIN
from gossamer.node.base.settings import Settings
from gossamer.node.base.threads import RunInThread
from gossamer.node.base.units import format_bytes
from gossamer.node.machine.capacity import device_memory, trains_on_host
from gossamer.node.machine.power_limit import PowerLimit
from gossamer.node.machine.trainer import Trainer
from gossamer.node.machine.worker_limits import worker_limits
from gossamer.node.runs.least_limits import least_problems
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.telemetry.gpus import Gpus
from gossamer.protocol.manifest import Manifest

RESTORE_SECONDS_MAX = 5.0
"""Limit of the wait, at the end of the node, for a driver that is asked to put the power back."""

log = structlog.get_logger("node")


class DiskLimit:
    """The owner's limit of the whole state directory: blocks get what other files leave."""

    def __init__(self, settings: Settings, store: BlockStore) -> None:
        self._settings = settings
        self._store = store
        self._other_bytes = 0

    def measured(self, other_bytes: int) -> None:
        """Notes the size of all files besides the blocks."""
        self._other_bytes = other_bytes
        self._obey()

    def apply(self, settings: Settings) -> None:
        """Other limits hold from now on."""
        self._settings = settings
        self._obey()

    def used_bytes(self) -> int:
        """Size of the whole state directory."""
        return self._store.used_bytes() + self._other_bytes

    def least_bytes(self) -> int:
        """What cannot be removed: other files, and the blocks that stay beyond the quota."""
        return self._store.pinned_bytes() + self._other_bytes

    @property
    def problem(self) -> str:
        """Why there is no room for the run; empty if there is."""
        most, least = self._settings.disk_max, self.least_bytes()
        if not most or least <= most:
            return ""
        return (
            f"the run needs {format_bytes(least)} of the disk, and its owner's limit is "
            f"{format_bytes(most)}"
        )

    def _obey(self) -> None:
        settings = self._settings
        quota = settings.cache_bytes
        if settings.disk_max:
            quota = min(quota, max(0, settings.disk_max - self._other_bytes))
        self._store.quota_bytes = quota


class LimitParts:
    """The parts of one node that obey its owner's limits, and the tasks in which slow ones do."""

    def __init__(
        self, limits: OwnerLimits, manifest: Manifest, gpus: Gpus, read_in_thread: RunInThread
    ) -> None:
        """`read_in_thread`: leaves a thread to itself when it is cancelled."""
        self._limits = limits
        self._manifest = manifest
        self._gpus = gpus
        self._read_in_thread = read_in_thread
        self._power = PowerLimit(gpus, limits.settings.device)
        self._changed = trio.Event()

    def check(
        self, disk: DiskLimit, tokens_per_second: Callable[[], float]
    ) -> Callable[[Settings], Sequence[str]]:
        """Returns the check of new limits against what the run needs on this machine."""

        def problems(settings: Settings) -> Sequence[str]:
            gpus = self._gpus.read()
            found = least_problems(
                self._manifest,
                settings,
                trains_on_host=trains_on_host(settings.device, gpus),
                disk_bytes=disk.least_bytes() + CACHE_BYTES_MIN,
                card=device_memory(settings.device, gpus),
                tokens_per_second=tokens_per_second() or None,
            )
            if power := self._power.problem(settings.gpu_power_watts):
                found.append(f"gpu_power: {power}")
            return found

        return problems

    def apply(self, _settings: Settings) -> None:
        """Other limits hold from now on: `run` does what takes longer."""
        self._changed.set()

    async def run(self, trainer: Trainer, store: BlockStore, run_in_thread: RunInThread) -> None:
        """Obeys until cancelled, and then puts the card's power back."""
        try:
            while True:
                self._changed = trio.Event()
                await self._obey(trainer, store, run_in_thread)
                await self._changed.wait()
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(RESTORE_SECONDS_MAX):
                await self._read_in_thread(self._power.restore)

    async def _obey(self, trainer: Trainer, store: BlockStore, run_in_thread: RunInThread) -> None:
        settings, gpus = self._limits.settings, self._gpus
        worker = await self._read_in_thread(lambda: worker_limits(settings, self._manifest, gpus))
        await trainer.limit(worker)
        await run_in_thread(store.evict)
        problem = await self._read_in_thread(lambda: self._power.apply(settings.gpu_power_watts))
        if problem and problem != self._limits.notes.get("gpu_power"):
            log.warning("the limit of the card's power does not hold", problem=problem)
        self._limits.notes["gpu_power"] = problem
