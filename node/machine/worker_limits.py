"""The part of the owner's limits that is the trainer's."""

from __future__ import annotations

from gossamer.node.base.setting_values import gpu_memory_bytes
from gossamer.node.base.settings import Settings
from gossamer.node.machine.capacity import training_gpus
from gossamer.node.telemetry.gpus import Gpus
from gossamer.protocol.manifest import Manifest
from gossamer.trainer.ipc import messages

DAEMON_BYTES = 150 * 1000**2
"""A daemon without a model (130 MB measured)."""

DAEMON_BYTES_PER_PARAMETER = 32
"""Six fp32 vectors of the state and of its successor, and the buffers of a ring."""

TRAINER_BYTES_MIN = 64 * 1024**2
"""A trainer with less than this cannot say why it ends."""


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
        cards = training_gpus(settings.device, gpus.read())
        if cards:  # the limit is each card's: a share is one of the smallest
            total = min(gpu.memory_total_bytes for gpu in cards)
            card_bytes = gpu_memory_bytes(settings.gpu_memory, total)
        elif "%" not in settings.gpu_memory:
            card_bytes = gpu_memory_bytes(settings.gpu_memory, 0)
    return messages.Limits(
        threads=settings.threads, memory_bytes=memory_bytes, gpu_memory_bytes=card_bytes
    )
