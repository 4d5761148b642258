"""The configuration of a trainer, by the run's manifest and the owner's settings."""

from __future__ import annotations

from gossamer.node.base.settings import Settings
from gossamer.node.machine.trainer_process import TrainerProcess
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.sync_modes import SYNC_MODES
from gossamer.trainer.ipc import messages


def shared_steps_of(manifest: Manifest) -> messages.SharedSteps | None:
    """Returns how a run's shared steps are made; None if peers take steps of their own."""
    if not SYNC_MODES[manifest.sync].shares_steps:
        return None
    outer = manifest.outer
    return messages.SharedSteps(
        top_k=outer.top_k, chunks=outer.chunks_of_step, lookahead=outer.lookahead
    )


def configuration_of(
    manifest: Manifest,
    settings: Settings,
    process: TrainerProcess,
    optimizer_path: str,
    tokenizer_path: str,
) -> messages.Configure:
    """Returns the first message to each worker of a process."""
    return messages.Configure(
        model=manifest.model,
        inner=manifest.inner,
        device=settings.device,
        limits=messages.Limits(threads=settings.threads),
        seed=manifest.seed,
        base_fd=process.base_fd,
        pseudo_gradient_fd=process.pseudo_gradient_fd,
        audited_fd=process.audited_fd,
        token_bytes=manifest.data.token_bytes,
        optimizer_path=optimizer_path,
        micro_batch=settings.micro_batch,
        moments=settings.moments,
        compiling=settings.compile,
        mixing=manifest.outer.mixing,
        shared_steps=shared_steps_of(manifest),
        tokenizer=manifest.data.tokenizer,
        tokenizer_path=tokenizer_path,
    )
