"""Founding a run on this machine: the corpus into shards, the genesis, the signed manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog
import trio
from msgspec.structs import replace

from gossamer.node.base.roles import Found
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.threads import run_abandonable
from gossamer.node.machine.capacity import device_memories, free_memory_bytes
from gossamer.node.machine.trainer import TrainerFailedError
from gossamer.node.machine.trainer_exit import TrainerExit
from gossamer.node.machine.trainer_process import TrainerProcess
from gossamer.node.network.identity import Identity
from gossamer.node.runs.founding.founding import risk_of, sign_manifest
from gossamer.node.runs.founding.importing import (
    draft_for,
    with_pretrained,
    write_frozen,
    write_genesis,
)
from gossamer.node.runs.founding.own_text import OwnText, founders_text
from gossamer.node.runs.founding.preparing import prepare_elsewhere
from gossamer.node.runs.founding.progress import ProgressBars
from gossamer.node.runs.planning.device_fit import device_fits, require_fit
from gossamer.node.runs.planning.draft import Draft, draft_of_preset
from gossamer.node.runs.planning.manifest_file import read_manifest_file
from gossamer.node.runs.planning.needs import needs_of, require_disk, require_memory
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.telemetry.gpus import Gpus
from gossamer.protocol.manifest import SignedManifest
from gossamer.protocol.state.digest import FloatVector
from gossamer.trainer.ipc import messages
from gossamer.trainer.presets.table import DEFAULT_PRESET, PRESETS
from gossamer.trainer.pretrained.folder import Pretrained, open_pretrained

log = structlog.get_logger("node")

Tell = Callable[[str], None]
"""Takes a word for people on what is done."""


async def found_here(
    role: Found, identity: Identity, blocks: Path, settings: Settings, tell: Tell
) -> tuple[SignedManifest, OwnText | None]:
    """Tokenises the corpus, draws or reads the initial weights and signs the manifest.

    Where every peer trains on its own text, the founder's is returned, and is not read here.

    Weights that were read lie in `blocks` as the run's first state when this returns; drawn ones do
    not, because every peer can draw them. All blocks of the run survive a power cut from then on:
    at first nobody else has them.

    Args:
        tell: is told how far the founding is.

    Raises:
        ManifestError, CorpusError, FolderError: the choices cannot be trained; one sentence a
            mistake.
        TooLargeError: the model does not fit into this machine.
        TrainerFailedError: the trainer could not draw the initial weights.
        DiskError: the disk does not take the blocks.
    """
    founded = await _founded(role, identity, blocks, settings, tell)
    tell("waiting for the disk")
    await run_abandonable(lambda: BlockStore(blocks, settings.cache_bytes, read_only=True).sync())
    return founded


async def _founded(
    role: Found, identity: Identity, blocks: Path, settings: Settings, tell: Tell
) -> tuple[SignedManifest, OwnText | None]:
    """Does what `found_here` says. What it has written need not be durable."""
    pretrained = None
    if role.init_from is not None:
        pretrained = await trio.to_thread.run_sync(open_pretrained, role.init_from)
    draft = await _draft_of(role, pretrained)
    is_own = draft.data == "own"
    own_text = founders_text(draft.corpus, role.corpus, role.skip_bad) if is_own else None
    num_parameters = draft.model.num_parameters
    log.info(
        f"founding {draft.name}: {num_parameters:,} parameters",
        fields={"event": "founding", "name": draft.name, "parameters": num_parameters},
    )
    if (risk := risk_of(draft)) is not None:
        log.warning(risk)
    needs = needs_of(
        draft, trains_on_host=True, cache_bytes=settings.cache_bytes, moments=settings.moments
    )
    require_memory(draft, needs, free_memory_bytes())  # the initial weights are drawn on the CPU
    await run_abandonable(lambda: require_disk(draft, needs, settings.state_dir))
    cards = await run_abandonable(lambda: device_memories(settings.device, Gpus().read()))
    for fit in device_fits(draft, cards, settings.moments):
        log.info(require_fit(draft, fit).text)
    with ProgressBars(tell) as bars:
        data = await prepare_elsewhere(
            draft,
            role.corpus,
            blocks,
            settings.cache_bytes,
            bars.show,
            skip_bad=role.skip_bad,
            start_bytes=role.start_bytes,
        )
    for note in data.notes:
        log.info(note)
    for warning in data.warnings:
        log.warning(warning)
    lora = draft.model.lora
    if pretrained is not None and lora:
        tell("storing the weights that stay as they are")
        data = await trio.to_thread.run_sync(
            lambda: write_frozen(
                data, pretrained.weights.read(), lora, blocks, settings.cache_bytes
            )
        )
    if pretrained is None or lora:
        tell("drawing the initial weights")
        parameters = await initial_parameters(draft, settings)
        return sign_manifest(draft, data, parameters, identity=identity).signed, own_text
    tell("reading the initial weights")
    parameters = await trio.to_thread.run_sync(pretrained.weights.read)
    founded = sign_manifest(draft, data, parameters, identity=identity)
    await trio.to_thread.run_sync(write_genesis, founded, parameters, blocks, settings.cache_bytes)
    return founded.signed, own_text


async def _draft_of(role: Found, pretrained: Pretrained | None) -> Draft:
    """Returns the draft of a manifest file or a preset, with what the command line changes.

    Raises:
        ManifestError: the choices are not allowed.
    """
    draft = await _described(role, pretrained)
    if role.own:
        draft = replace(draft, data="own")
    if role.heldout:
        heldout = tuple(str(path.absolute()) for path in role.heldout)
        draft = replace(draft, corpus=replace(draft.corpus, heldout=heldout))
    if role.messages:
        draft = replace(draft, corpus=replace(draft.corpus, format="messages"))
    return draft


async def _described(role: Found, pretrained: Pretrained | None) -> Draft:
    """Returns the draft of a manifest file or a preset, with the model of a folder if one is given.

    Raises:
        ManifestError: the choices are not allowed.
    """
    if role.manifest_file is not None:
        file, from_weights = role.manifest_file, pretrained is not None
        draft = await trio.to_thread.run_sync(
            lambda: read_manifest_file(file, from_weights=from_weights)
        )
        return draft if pretrained is None else with_pretrained(draft, pretrained)
    if pretrained is None:
        preset = role.preset or DEFAULT_PRESET
        draft = draft_of_preset(preset, optimizer=role.optimizer)
        log.info(
            f"the settings of the preset {preset} {PRESETS[preset].origin}",
            fields={"event": "preset", "preset": preset, "settings": PRESETS[preset].origin},
        )
        return draft
    draft, preset = draft_for(pretrained, role.preset, role.optimizer)
    log.info(
        f"the model comes from {pretrained.folder}, the settings from the preset {preset} with a "
        "tenth of its learning rate, which was not tuned: watch the first rounds",
        fields={"event": "pretrained", "folder": str(pretrained.folder), "preset": preset},
        learning_rate=draft.inner.learning_rate,
        context=draft.model.context,
    )
    return draft


async def initial_parameters(draft: Draft, settings: Settings) -> FloatVector:
    """Returns the initial weights of the draft's seed, (num_parameters,), from a trainer process.

    Raises:
        TrainerFailedError: the process died.
    """
    process = TrainerProcess(draft.model.num_parameters)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(process.run)
            await process.send(
                messages.Configure(
                    model=draft.model,
                    inner=draft.inner,
                    device="cpu",
                    limits=messages.Limits(threads=settings.threads),
                    seed=draft.seed,
                    base_fd=process.vectors.base_fd,
                    pseudo_gradient_fd=process.vectors.pseudo_gradient_fd,
                    token_bytes=2,
                )
            )
            await process.send(messages.Genesis())
            async for event in process.events:
                if isinstance(event, TrainerExit):
                    raise TrainerFailedError(f"no initial weights: {event.description}")
                if isinstance(event, messages.GenesisDone):
                    break
            await process.close()
        return np.array(process.vectors.base)
    finally:
        process.vectors.release()
