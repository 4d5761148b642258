"""The configuration of a trainer, by the run's manifest and the owner's settings, and the files
that it reads by path: blocks, named by their digests."""

from __future__ import annotations

import structlog

from gossamer.node.base.settings.settings import Settings
from gossamer.node.machine.shared_vectors import SharedVectors
from gossamer.node.storage.block_files import path_of
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.state.frozen_weights import decode_list
from gossamer.protocol.sync_modes import SYNC_MODES
from gossamer.trainer.ipc import messages

log = structlog.get_logger("trainer")


def shared_steps_of(manifest: Manifest) -> messages.SharedSteps | None:
    """Returns how a run's shared steps are made; None if peers take steps of their own."""
    if not SYNC_MODES[manifest.sync].shares_steps:
        return None
    outer = manifest.outer
    return messages.SharedSteps(
        top_k=outer.top_k, chunks=outer.chunks_of_step, lookahead=outer.lookahead
    )


def frozen_paths(manifest: Manifest, settings: Settings) -> tuple[str, ...]:
    """Returns the files of the weights that adapters leave as they are; none if their list cannot
    be read, which the worker tells when it is to use them."""
    blocks = StateDir(settings.state_dir).blocks_path
    assert manifest.data.frozen_digest
    path = path_of(blocks, Digest(manifest.data.frozen_digest))
    try:
        digests = decode_list(path.read_bytes(), manifest.model)
    except (OSError, MalformedError) as error:
        log.error("the list of the run's frozen weights cannot be read", error=str(error))
        return ()
    return tuple(str(path_of(blocks, digest)) for digest in digests)


def configuration_of(
    manifest: Manifest, settings: Settings, vectors: SharedVectors, optimizer_path: str
) -> messages.Configure:
    """Returns the first message to each worker that gets these vectors."""
    blocks, tokenizer = StateDir(settings.state_dir).blocks_path, manifest.data.tokenizer_digest
    return messages.Configure(
        model=manifest.model,
        inner=manifest.inner,
        device=settings.device,
        limits=messages.Limits(threads=settings.threads),
        seed=manifest.seed,
        base_fd=vectors.base_fd,
        pseudo_gradient_fd=vectors.pseudo_gradient_fd,
        audited_fd=vectors.audited_fd,
        token_bytes=manifest.data.token_bytes,
        optimizer_path=optimizer_path,
        micro_batch=settings.micro_batch,
        moments=settings.moments,
        compiling=settings.compile,
        mixing=manifest.outer.mixing,
        shared_steps=shared_steps_of(manifest),
        tokenizer=manifest.data.tokenizer,
        tokenizer_path=str(path_of(blocks, Digest(tokenizer))) if tokenizer else "",
    )
