"""The parts of a node that obey the owner's limits of trainer, disk and the card's power, and the
check of new limits against what the run needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio

from gossamer.node.app.owner.owner_limits import OwnerLimits
from gossamer.node.app.owner.pause_watch import PauseWatch, pause_rules
from gossamer.node.app.runtime import Runtime
from gossamer.node.base.settings.setting_values import CACHE_BYTES_MIN, gpu_memory_bytes
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.machine.capacity import device_memories, trains_on_host
from gossamer.node.machine.limit_uses import LimitUses
from gossamer.node.machine.power_limit import PowerLimit
from gossamer.node.machine.trainer import Trainer
from gossamer.node.runs.planning.least_limits import least_problems
from gossamer.node.runs.planning.needs import DAEMON_BYTES, DAEMON_BYTES_PER_PARAMETER
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.manifest import Manifest
from gossamer.trainer.ipc import messages

RESTORE_SECONDS_MAX = 5.0
"""Limit of the wait, at the end of the node, for a driver that is asked to put the power back."""

TRAINER_BYTES_MIN = 64 * 1024**2
"""A trainer with less than this cannot say why it ends."""

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
        """Bytes that cannot be removed: other files, and the blocks that stay beyond the quota."""
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
            beside = self._other_bytes + self._store.reserved_bytes
            quota = min(quota, max(0, settings.disk_max - beside))
        self._store.quota_bytes = quota


class LimitParts:
    """The parts of one node that obey its owner's limits, and the tasks in which slow ones do."""

    def __init__(
        self,
        limits: OwnerLimits,
        manifest: Manifest,
        gpus: Gpus,
        store: BlockStore,
        runtime: Runtime,
    ) -> None:
        self._limits = limits
        self._manifest = manifest
        self._gpus = gpus
        self._store = store
        self._runtime = runtime
        self.disk = DiskLimit(limits.settings, store)
        self._power = PowerLimit(gpus, limits.settings.device)
        self._changed = trio.Event()

    def join(self, pause_watch: PauseWatch, tokens_per_second: Callable[[], float]) -> None:
        """All parts obey changes from now on.

        Args:
            tokens_per_second: the speed of the trainer; 0 before it is known.
        """
        zone = self._runtime.zone
        pause_watch.disk_problem = lambda: self.disk.problem
        self._limits.check = lambda settings: self._problems(settings, tokens_per_second())
        self._limits.join(self.disk.apply)
        self._limits.join(lambda settings: pause_watch.change(pause_rules(settings, zone)))
        self._limits.join(lambda _: self._changed.set())

    def start(self, nursery: trio.Nursery, trainer: Trainer, metrics: Metrics) -> None:
        """Begins to obey where that takes longer, and to look at the use."""
        nursery.start_soon(self._run, trainer)
        if self._runtime.serves_http:  # a test in virtual time would look at this machine all along
            nursery.start_soon(
                self._limits.run, LimitUses(self._gpus, self.disk.used_bytes), metrics
            )

    async def _problems(self, settings: Settings, tokens_per_second: float) -> Sequence[str]:
        """Returns a sentence for each limit that is too low for what the run needs here."""

        def read() -> Sequence[str]:
            gpus = self._gpus.read()
            found = least_problems(
                self._manifest,
                settings,
                trains_on_host=trains_on_host(settings.device, gpus),
                disk_bytes=self.disk.least_bytes() + CACHE_BYTES_MIN,
                cards=device_memories(settings.device, gpus),
                tokens_per_second=tokens_per_second or None,
            )
            if power := self._power.problem(settings.gpu_power_watts):
                found.append(f"gpu_power: {power}")
            return found

        return await self._runtime.read_in_thread(read)

    async def _run(self, trainer: Trainer) -> None:
        """Obeys until cancelled, and then puts the card's power back."""
        try:
            while True:
                self._changed = trio.Event()
                await self._obey(trainer)
                await self._changed.wait()
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(RESTORE_SECONDS_MAX):
                await self._runtime.read_in_thread(self._power.restore)

    async def _obey(self, trainer: Trainer) -> None:
        settings, gpus, in_thread = self._limits.settings, self._gpus, self._runtime.read_in_thread
        worker = await in_thread(lambda: worker_limits(settings, self._manifest, gpus))
        await trainer.limit(worker)
        await self._runtime.run_in_thread(self._store.evict)
        problem = await in_thread(lambda: self._power.apply(settings.gpu_power_watts))
        if problem and problem != self._limits.notes.get("gpu_power"):
            log.warning("the limit of the card's power does not hold", problem=problem)
        self._limits.notes["gpu_power"] = problem


def worker_limits(settings: Settings, manifest: Manifest, gpus: Gpus) -> messages.Limits:
    """Returns the limits of a worker. It blocks while the driver of the card is asked.

    The owner's limit of memory is for daemon and trainer together: the trainer gets what the daemon
    does not take.
    """
    memory_bytes = 0
    if settings.memory_max:
        daemon = DAEMON_BYTES + DAEMON_BYTES_PER_PARAMETER * manifest.model.num_parameters
        memory_bytes = max(TRAINER_BYTES_MIN, settings.memory_max - daemon)
    card_bytes = 0
    if settings.gpu_memory:
        cards = device_memories(settings.device, gpus.read())
        if cards:  # the limit is each card's: a share is one of the smallest
            total = min(card.total_bytes for card in cards)
            card_bytes = gpu_memory_bytes(settings.gpu_memory, total)
        elif "%" not in settings.gpu_memory:
            card_bytes = gpu_memory_bytes(settings.gpu_memory, 0)
        else:
            log.warning(
                "no driver says how much memory the card has, so a share of it limits nothing: "
                "give gpu_memory as a size, such as 8GiB",
                gpu_memory=settings.gpu_memory,
            )
    return messages.Limits(
        threads=settings.threads, memory_bytes=memory_bytes, gpu_memory_bytes=card_bytes
    )
