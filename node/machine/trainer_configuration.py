"""What a run's manifest and the owner's settings make of a trainer."""

from __future__ import annotations

from gossamer.node.base.settings import Settings
from gossamer.node.machine.trainer_process import TrainerProcess
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.sync_modes import SYNC_MODES
from gossamer.trainer.ipc import messages


def configuration_of(
    manifest: Manifest,
    settings: Settings,
    process: TrainerProcess,
    optimizer_path: str,
    tokenizer_path: str,
) -> messages.Configure:
    """Returns the first message to each worker of a process."""
    shared_steps = None
    if SYNC_MODES[manifest.sync].shares_steps:
        outer = manifest.outer
        shared_steps = messages.SharedSteps(
            top_k=outer.top_k, chunks=outer.chunks_of_step, lookahead=outer.lookahead
        )
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
        shared_steps=shared_steps,
        tokenizer=manifest.data.tokenizer,
        tokenizer_path=tokenizer_path,
    )
