"""A run that begins with the weights of a Hugging Face folder: its draft, and its first state."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from gossamer.node.runs.draft import (
    Draft,
    TokenizerDraft,
    default_chunk_elements_of,
    draft_of_preset,
)
from gossamer.node.runs.founding import FoundedRun
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_blocks import write_state
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import Digest
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, index_of
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.pretrained.folder import Pretrained

LEARNING_RATE_SHARE = 0.1
"""Part of a preset's inner learning rate for weights that are trained already. The presets' rates
are for a cold start, with which such a model would forget what it knows. This is a rule of thumb
and was not tuned."""


def draft_for(pretrained: Pretrained, preset: str | None) -> tuple[Draft, str]:
    """The draft of a run that goes on with these weights, and the preset that it follows.

    Without a name that is the largest preset no larger than the model. It has a tenth of the
    preset's inner learning rate, and no rounds of few steps in front, which DiLoCo needs from a
    cold start only (arXiv 2311.08105 began with trained weights and had none).

    Raises:
        ManifestError: there is no such preset, or values are not allowed.
    """
    model = pretrained.model
    name = preset or _preset_below(model)
    draft = draft_of_preset(name)
    rate = LEARNING_RATE_SHARE * draft.inner.learning_rate
    context = min(draft.model.context, model.context)
    draft = msgspec.structs.replace(
        draft,
        model=msgspec.structs.replace(draft.model, context=context),
        inner=msgspec.structs.replace(draft.inner, learning_rate=rate),
        outer=msgspec.structs.replace(draft.outer, warmup_rounds=0),
    )
    return with_pretrained(draft, pretrained), name


def with_pretrained(draft: Draft, pretrained: Pretrained) -> Draft:
    """A draft with the shape and the tokenizer of the folder; of its own model only `context`
    stays, the length of training sequences.

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
    model = msgspec.structs.replace(theirs, context=context)
    outer = draft.outer
    # A number that the founder did not choose follows the model's size.
    if outer.chunk_elements == default_chunk_elements_of(draft.model, outer, draft):
        chunk_elements = default_chunk_elements_of(model, outer, draft)
        outer = msgspec.structs.replace(outer, chunk_elements=chunk_elements)
    return msgspec.structs.replace(
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
    store = BlockStore(blocks, cache_bytes)
    plan = ChunkPlan(parameters.size, manifest.outer.chunk_elements)
    momentum = np.zeros_like(parameters)
    index = index_of(parameters, momentum, plan)
    # A state may be larger than the cache, which would otherwise drop the corpus for it.
    data = [manifest.data.index_digest, manifest.data.tokenizer_digest]
    data += [shard.digest for shard in (*founded.index.shards, *founded.index.heldout)]
    state = [index.digest, *index.parameters, *index.momentum]
    store.pin("founding", [Digest(digest) for digest in (*data, *state)])
    write_state(store, plan, parameters, momentum, index, Ledger())
