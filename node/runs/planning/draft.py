"""A founder's choices for a run, before its data and its genesis state exist."""

from __future__ import annotations

import json
import math
from typing import Literal

import msgspec

from gossamer.node.storage.state.shared_parameters import sign_payloads
from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import payloads_of
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import DIGEST_BYTES, PeerId, peer_id_from_public_key
from gossamer.protocol.manifest import (
    DataConfig,
    InnerConfig,
    InnerOptimizer,
    Manifest,
    OuterConfig,
    RoundConfig,
    Trust,
)
from gossamer.protocol.manifest_checks import problems_of, problems_of_model, step_chunks_max
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.chunk_plan import default_chunk_elements
from gossamer.protocol.sync_modes import SYNC_MODES, SyncMode
from gossamer.trainer.presets.modes import adapted
from gossamer.trainer.presets.table import DEFAULT_PRESET, PRESETS
from gossamer.trainer.text.shards import SHARD_BYTES_MAX, SHARD_SEQUENCES_MIN
from gossamer.trainer.text.sources.corpus import DEFAULT_TEXT_FIELD
from gossamer.trainer.text.tokenizers.tokens import (
    BPE_VOCABULARY_MIN,
    BYTES_VOCABULARY,
    TokenizerKind,
    token_bytes_of,
)

VOCABULARY_MAX = 2**20
DEFAULT_RUN_NAME = "gossamer"
DEFAULT_SEED = 1

DISTRO_MEMBERS_MIN = 8
"""Every run must have room for this many peers."""

DISTRO_MEMBERS_WANTED = 64
"""A run whose founder does not choose `outer.step_chunks` has room for this many peers. Each chunk
of a step costs a task and some hundred bytes of the round's index, so there are no more than that
needs."""

Admission = Literal["open", "allow", "invite"]


DataPlace = Literal["shared", "own"]
"""The text that peers train on: the founder's, or each its own."""

TextFormat = Literal["text", "messages"]
"""What the text is: plain text, or conversations."""

SOURCES_MAX = 64
"""Each is a line of the log when the run is founded."""


class SourceDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several sources of text."""

    path: str
    """File, folder or pattern."""
    weight: float = 1.0
    """Its share of the text, beside the weights of the others."""


class CorpusDraft(msgspec.Struct, frozen=True, kw_only=True):
    """The text to train on."""

    paths: tuple[str, ...] = ()
    """Files, folders and patterns. Empty means the sources of Python's standard library."""
    sources: tuple[SourceDraft, ...] = ()
    """Several sources with weights, instead of `paths`."""
    text_field: str = DEFAULT_TEXT_FIELD
    """Field of a JSON line, or column of a table, that holds the text."""
    max_bytes: int = 0
    """Limit of the text, in bytes; 0 means all of it."""
    format: TextFormat = "text"
    heldout: tuple[str, ...] = ()
    """Files, folders and patterns that all peers get, where each trains on its own text."""


class TokenizerDraft(msgspec.Struct, frozen=True, kw_only=True):
    """The kind and size of the tokenizer."""

    kind: TokenizerKind
    vocabulary: int


class ScheduleDraft(msgspec.Struct, frozen=True, kw_only=True):
    """How learning rate and end of the run are counted: the schedule of `InnerConfig` as a manifest
    file has it."""

    kind: Literal["cosine", "wsd"] = "cosine"
    """`cosine` counts planned steps; `wsd` counts the tokens of all peers."""
    warmup_tokens: int = 0
    total_tokens: int = 0
    cooldown_tokens: int = 0


def schedule_of(inner: InnerConfig) -> ScheduleDraft:
    """Returns the schedule of a draft or a preset."""
    if not (schedule := inner.schedule):
        return ScheduleDraft()
    return ScheduleDraft(kind="wsd", **msgspec.structs.asdict(schedule))


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a founder may choose. `model.vocabulary` equals `tokenizer.vocabulary`.

    It has more than 12 attributes: each is a choice.
    """

    name: str
    seed: int
    sync: SyncMode
    trust: Trust
    admission: Admission
    allowed: tuple[str, ...]
    """Peer ids, besides the founder's, that may join when `admission` is `allow`, and that may join
    and invite when it is `invite`."""
    data: DataPlace = "shared"
    corpus: CorpusDraft
    tokenizer: TokenizerDraft
    model: ModelConfig
    inner: InnerConfig
    outer: OuterConfig
    rounds: RoundConfig
    init_from: str = ""
    """Folder of a model whose weights and tokenizer the run begins with; empty for none. It is no
    key of a manifest file: `gossamer start --init-from` says it."""


def draft_of_preset(
    preset: str = DEFAULT_PRESET,
    *,
    name: str = DEFAULT_RUN_NAME,
    optimizer: InnerOptimizer | None = None,
) -> Draft:
    """Returns a draft with a preset's values on the default corpus.

    Args:
        optimizer: inner optimiser, which has an outer step of its own; None: the default.

    Raises:
        ManifestError: there is no such preset.
    """
    if preset not in PRESETS:
        raise ManifestError([unknown_preset(preset)])
    sync: SyncMode = "diloco"
    chosen = adapted(PRESETS[preset], sync, optimizer)
    return Draft(
        name=name,
        seed=DEFAULT_SEED,
        sync=sync,
        trust="members",
        admission="open",
        allowed=(),
        corpus=CorpusDraft(),
        tokenizer=TokenizerDraft(kind=chosen.tokenizer, vocabulary=chosen.model.vocabulary),
        model=chosen.model,
        inner=chosen.inner,
        outer=chosen.outer,
        rounds=chosen.rounds,
    )


def manifest_of(
    draft: Draft,
    *,
    founder: PeerId,
    created_unix_seconds: int,
    data: DataConfig,
    genesis_digest: bytes,
) -> Manifest:
    """Returns the manifest of a draft whose data and genesis state exist, without checking it."""
    return Manifest(
        version=limits.PROTOCOL_VERSION,
        name=draft.name,
        founder=founder,
        created_unix_seconds=created_unix_seconds,
        sync=draft.sync,
        model=draft.model,
        inner=draft.inner,
        outer=draft.outer,
        rounds=draft.rounds,
        data=data,
        seed=draft.seed,
        genesis_digest=genesis_digest,
        admission=draft.admission,
        allowed=draft.allowed,
        trust=draft.trust,
    )


def problems_of_draft(draft: Draft) -> list[str]:
    """Returns one sentence for each value that is not allowed, by the manifest's rules and more."""
    problems = problems_of(_probe(draft))
    # Reported below with the file's key, tokenizer.vocabulary, and the tokenizer's limits.
    found = [problem for problem in problems if not problem.startswith("model.vocabulary ")]
    found += _tokenizer_problems(draft)
    if 0 < draft.inner.total_steps < draft.inner.warmup_steps:
        found.append(
            f"inner.warmup_steps is {draft.inner.warmup_steps}; allowed: at most inner.total_steps "
            f"({draft.inner.total_steps})"
        )
    if not found:
        found += _message_problems(draft)
    return found + _corpus_problems(draft.corpus)


def _tokenizer_problems(draft: Draft) -> list[str]:
    found: list[str] = []
    vocabulary = draft.tokenizer.vocabulary
    if draft.tokenizer.kind == "bytes" and vocabulary != BYTES_VOCABULARY:
        found.append(
            f'tokenizer.vocabulary is {vocabulary}; allowed for "bytes": {BYTES_VOCABULARY}'
        )
    elif draft.tokenizer.kind == "bpe" and not BPE_VOCABULARY_MIN <= vocabulary <= VOCABULARY_MAX:
        found.append(
            f'tokenizer.vocabulary is {vocabulary}; allowed for "bpe": '
            f"{BPE_VOCABULARY_MIN} to {VOCABULARY_MAX}"
        )
    elif draft.tokenizer.kind == "files" and not 2 <= vocabulary <= VOCABULARY_MAX:
        found.append(f"the model has {vocabulary} tokens; allowed: 2 to {VOCABULARY_MAX}")
    context_max = SHARD_BYTES_MAX // token_bytes_of(vocabulary) // SHARD_SEQUENCES_MIN
    if context_max < draft.model.context <= 2**20:
        found.append(f"model.context is {draft.model.context}; allowed: 8 to {context_max}")
    return found


def _message_problems(draft: Draft) -> list[str]:
    """What is wrong if the parts of too few peers fit one message. The draft has no other
    problem."""
    if SYNC_MODES[draft.sync].shares_steps:
        members_max = sign_payloads(draft.model, draft.outer, draft.trust).members_max(1)
        if members_max < DISTRO_MEMBERS_MIN:
            return [
                f"outer.top_k is {draft.outer.top_k}; with a model of this size the parts of only "
                f"{members_max} peers fit one message, and {DISTRO_MEMBERS_MIN} must fit: choose "
                "less, or more outer.step_chunks"
            ]
    elif draft.trust == "open":
        elements_max = open_chunk_elements_max(draft.sync, draft.outer)
        if draft.outer.chunk_elements > elements_max:
            return [
                f'outer.chunk_elements is {draft.outer.chunk_elements}; with trust = "open" and '
                f"these codec settings at most {elements_max}, so that the records of "
                f"{limits.OPEN_MEMBERS_MIN} peers fit one message"
            ]
    return []


def _corpus_problems(corpus: CorpusDraft) -> list[str]:
    found: list[str] = []
    if corpus.max_bytes < 0:
        found.append(f"corpus.max_bytes is {corpus.max_bytes}; allowed: 0 (all) or more")
    if not corpus.text_field:
        found.append("corpus.text_field is empty; allowed: the name of a field")
    if "" in corpus.heldout:
        found.append("corpus.heldout has an empty path; allowed: files and folders")
    if "" in corpus.paths:
        found.append("corpus.paths has an empty path; allowed: files and folders")
    if corpus.paths and corpus.sources:
        found.append("corpus.paths and corpus.sources exclude each other; name every path once")
    if len(corpus.sources) > SOURCES_MAX:
        found.append(
            f"corpus.sources has {len(corpus.sources)} entries; allowed: {SOURCES_MAX} at most"
        )
    for source in corpus.sources[:SOURCES_MAX]:
        if not source.path:
            found.append("corpus.sources has an empty path; allowed: a file or a folder")
        if not 0 < source.weight < math.inf:
            found.append(
                f"corpus.sources gives {source.path} the weight {source.weight}; allowed: a number "
                "above 0"
            )
    return found


def _probe(draft: Draft) -> Manifest:
    """Returns a manifest with well-formed data and genesis, to check everything else."""
    data = DataConfig(
        tokenizer=draft.tokenizer.kind,
        tokenizer_digest=bytes(DIGEST_BYTES),
        token_bytes=token_bytes_of(draft.tokenizer.vocabulary),
        index_digest=bytes(DIGEST_BYTES),
        num_shards=1,
        num_tokens=1,
        heldout_tokens=1,
        frozen_digest=bytes(DIGEST_BYTES) if draft.model.lora else msgspec.UNSET,
    )
    return manifest_of(
        draft,
        founder=peer_id_from_public_key(bytes(32)),
        created_unix_seconds=0,
        data=data,
        genesis_digest=bytes(DIGEST_BYTES),
    )


def default_chunk_elements_of(model: ModelConfig, outer: OuterConfig, run: Draft | Manifest) -> int:
    """Returns the size of the chunks of a run in which nobody chose one.

    Args:
        run: says `sync` and `trust`.
    """
    fragments = min(max(1, outer.fragments), model.num_layers)
    elements = default_chunk_elements(model.num_parameters // fragments)
    is_of_records = run.trust == "open" and not SYNC_MODES[run.sync].shares_steps
    if is_of_records and 1 <= outer.top_k <= 4096:
        elements = min(elements, open_chunk_elements_max(run.sync, outer))
    return elements


def default_step_chunks_of(
    model: ModelConfig, outer: OuterConfig, run: Draft | Manifest
) -> int | msgspec.UnsetType:
    """Returns the number of chunks of a shared step in a run in which nobody chose one: the least
    with which `DISTRO_MEMBERS_WANTED` members fit a ring.

    UNSET for one, in other modes, and for values that the manifest's rules refuse.

    Args:
        run: says `sync` and `trust`.
    """
    if not SYNC_MODES[run.sync].shares_steps or not 1 <= outer.top_k <= 4096:
        return msgspec.UNSET
    if problems_of_model(model):
        return msgspec.UNSET
    num_chunks, most = 1, step_chunks_max(model, outer)
    while num_chunks < most:
        cut = msgspec.structs.replace(outer, step_chunks=num_chunks)
        payloads = sign_payloads(model, cut, run.trust)
        if payloads.members_max(1) >= DISTRO_MEMBERS_WANTED:
            break
        # As many as chunks of the same size would need, and then one more at a time.
        wanted = DISTRO_MEMBERS_WANTED * payloads.coder.encoded_bytes // limits.BLOCK_BYTES_MAX
        num_chunks = min(max(num_chunks + 1, wanted), most)
    return num_chunks if num_chunks > 1 else msgspec.UNSET


def open_chunk_elements_max(sync: SyncMode, outer: OuterConfig) -> int:
    """Returns the most elements of a chunk with which a ring of signed records has room for enough
    members."""
    payloads = payloads_of(sync, outer, "open")
    assert isinstance(payloads, RecordPayloads)
    return payloads.elements_max(limits.OPEN_MEMBERS_MIN)


def unknown_preset(preset: str) -> str:
    """Returns the sentence for a preset that does not exist."""
    return f"preset is {json.dumps(preset, ensure_ascii=False)}; allowed: {preset_names()}"


def preset_names() -> str:
    """Returns the names of all presets, for people."""
    return ", ".join(json.dumps(name) for name in PRESETS)
