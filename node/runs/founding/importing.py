"""A run that begins with the weights of a Hugging Face folder: its draft, and its first state."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from gossamer.node.runs.founding.founding import FoundedRun, PreparedData
from gossamer.node.runs.planning.draft import (
    Draft,
    TokenizerDraft,
    default_chunk_elements_of,
    default_step_chunks_of,
    draft_of_preset,
)
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state.state_blocks import StateVectors, write_state
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.manifest import DataConfig, InnerOptimizer
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.shard_index import ShardIndex
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, index_of
from gossamer.protocol.state.frozen_weights import blocks_of
from gossamer.trainer.presets.modes import default_optimizer
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.pretrained.folder import Pretrained

LEARNING_RATE_SHARE = 0.1
"""Part of a preset's inner learning rate for weights that are trained already. The presets' rates
are for a cold start, with which such a model would forget what it knows. This is a rule of thumb
and was not tuned."""


def draft_for(
    pretrained: Pretrained, preset: str | None, optimizer: InnerOptimizer | None = None
) -> tuple[Draft, str]:
    """The draft of a run that goes on with these weights, and the preset that it follows.

    Without a name that is the largest preset no larger than the model. It has a tenth of the
    preset's inner learning rate, and no rounds of few steps in front, which DiLoCo needs from a
    cold start only (arXiv 2311.08105 began with trained weights and had none). Its optimiser is
    that of trained weights, if none is named.

    Raises:
        ManifestError: there is no such preset, or values are not allowed.
    """
    model = pretrained.model
    name = preset or _preset_below(model)
    draft = draft_of_preset(
        name, optimizer=optimizer or default_optimizer("diloco", from_weights=True)
    )
    rate = LEARNING_RATE_SHARE * draft.inner.learning_rate
    context = min(draft.model.context, model.context)
    draft = replace(
        draft,
        model=replace(draft.model, context=context),
        inner=replace(draft.inner, learning_rate=rate),
        outer=replace(draft.outer, warmup_rounds=0),
    )
    return with_pretrained(draft, pretrained), name


def with_pretrained(draft: Draft, pretrained: Pretrained) -> Draft:
    """A draft with the shape and the tokenizer of the folder; of its own model only `context`
    stays, the length of training sequences, and `lora`. The weights that adapters leave as they are
    have the folder's own type, if nobody chose one: bf16 where all of it is, else fp32.

    Raises:
        ManifestError: the model was not made for sequences of that length.
    """
    theirs, context = pretrained.model, draft.model.context
    if context > theirs.context:
        raise ManifestError(
            [
                f"model.context is {context}; allowed: 8 to {theirs.context}, the longest that the "
                f"model in {pretrained.folder} was made for"
            ]
        )
    lora = draft.model.lora
    if lora and not lora.weights:
        is_half = all(stored.dtype == "BF16" for _, stored in pretrained.weights.tensors)
        lora = replace(lora, weights="bf16" if is_half else "fp32")
    model = replace(theirs, context=context, lora=lora)
    outer = draft.outer
    # A number that the founder did not choose follows the model's size.
    if outer.chunk_elements == default_chunk_elements_of(draft.model, outer, draft):
        chunk_elements = default_chunk_elements_of(model, outer, draft)
        outer = replace(outer, chunk_elements=chunk_elements)
    if outer.step_chunks == default_step_chunks_of(draft.model, outer, draft):
        outer = replace(outer, step_chunks=default_step_chunks_of(model, outer, draft))
    return replace(
        draft,
        model=model,
        outer=outer,
        tokenizer=TokenizerDraft(kind="files", vocabulary=model.vocabulary),
        init_from=str(pretrained.folder.absolute()),
    )


def _preset_below(model: ModelConfig) -> str:
    """The largest preset that has no more parameters than the model, or else the smallest."""
    smaller = [
        name
        for name, preset in PRESETS.items()
        if preset.model.num_parameters <= model.num_parameters
    ]
    return (smaller or list(PRESETS))[-1 if smaller else 0]


def write_genesis(
    founded: FoundedRun, parameters: FloatVector, blocks: Path, cache_bytes: int
) -> None:
    """Writes the first state of a run as blocks, where the node finds it like any checkpoint.

    The manifest names its digest, so a peer that fetches these blocks knows that they are it. Call
    it before the manifest is written: a state directory with a manifest has its first state.

    Args:
        parameters: (num_parameters,), the weights that the manifest was signed with.

    Raises:
        DiskError: the disk does not take it.
    """
    manifest = founded.manifest
    plan = ChunkPlan(parameters.size, manifest.outer.chunk_elements)
    momentum = np.zeros_like(parameters)
    index = index_of(parameters, momentum, plan)
    store = _store_with(manifest.data, founded.index, blocks, cache_bytes)
    state = [index.digest, *index.parameters, *index.momentum]
    store.pin("state", [Digest(digest) for digest in state])
    write_state(store, plan, StateVectors(parameters, momentum, index), Ledger())


def write_frozen(
    data: PreparedData, weights: FloatVector, lora: LoraConfig, blocks: Path, cache_bytes: int
) -> PreparedData:
    """Writes the weights that adapters leave as they are as blocks, and returns the data of the run
    with their digest.

    Args:
        weights: (num_parameters,) of the whole model.

    Raises:
        DiskError: the disk does not take it.
    """
    store = _store_with(data.config, data.index, blocks, cache_bytes)
    written: list[Digest] = []
    for block in blocks_of(weights, lora):
        written.append(digest_of(block))
        store.pin("frozen", written)
        store.put(block)
    frozen = store.put(to_msgpack(tuple(written)))
    return dataclasses.replace(data, config=replace(data.config, frozen_digest=frozen))


def _store_with(data: DataConfig, index: ShardIndex, blocks: Path, cache_bytes: int) -> BlockStore:
    """Opens the store of blocks. What is put may be larger than the cache, which would otherwise
    drop the corpus for it."""
    store = BlockStore(blocks, cache_bytes)
    digests = [data.index_digest, data.tokenizer_digest, data.frozen_digest or b""]
    digests += [shard.digest for shard in (*index.shards, *index.heldout)]
    store.pin("founding", [Digest(digest) for digest in digests if digest])
    return store
