"""Founding a run: text becomes shards, and a draft becomes a signed manifest.

Everything here is synchronous and may take minutes: call it before the daemon's tasks start, or in
a thread. The stored blocks are content-addressed, so an interrupted founding can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.network.identity import Identity
from gossamer.node.runs.founding.rest_of_corpus import RestOfCorpus
from gossamer.node.runs.planning.draft import CorpusDraft, Draft, manifest_of, problems_of_draft
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import (
    DataConfig,
    Manifest,
    SignedManifest,
    encode_manifest,
    signing_bytes,
)
from gossamer.protocol.manifest_checks import require_valid
from gossamer.protocol.shard_index import ShardIndex
from gossamer.protocol.state.digest import FloatVector, genesis_digest_of
from gossamer.trainer.pretrained.tokenizer import tokenizer_of
from gossamer.trainer.text.corpus_parts import CorpusPlan, plan_parts
from gossamer.trainer.text.mixing import Mixture, Share
from gossamer.trainer.text.sampling import sample_texts
from gossamer.trainer.text.shards import CutCorpus, Put, cut_corpus
from gossamer.trainer.text.sources.corpus import Corpus, Progress, Section, no_progress, scan_corpus
from gossamer.trainer.text.sources.corpus_errors import CorpusError, NoTextError, Skipped
from gossamer.trainer.text.sources.corpus_files import default_files, find_files
from gossamer.trainer.text.tokenizers.tokens import (
    BPE_TRAINING_BYTES_MAX,
    Tokenizer,
    learn_bpe_from,
)


@dataclass(frozen=True)
class PreparedData:
    """The data section of the manifest, and the index that it points to."""

    config: DataConfig
    index: ShardIndex
    warnings: tuple[str, ...] = ()
    """Sentences about what of the corpus is not used as it was asked for."""
    notes: tuple[str, ...] = ()
    """Sentences about what is used."""
    rest: RestOfCorpus | None = None
    """The part that is cut and added after the run has begun."""


@dataclass(frozen=True)
class FoundedRun:
    """A run that is ready to start."""

    signed: SignedManifest
    manifest: Manifest
    index: ShardIndex


def prepare_data(
    draft: Draft,
    corpus: Sequence[Path],
    *,
    put: Put,
    scratch: Path | None = None,
    skip_bad: bool = False,
    start_bytes: int | None = None,
    progress: Progress = no_progress,
) -> PreparedData:
    """Tokenises the corpus and stores its shards, its index and its tokenizer with `put`; of an
    imported model all its small files.

    Args:
        scratch: folder on a disk with room for what compressed files and Parquet hold; None: the
            system's own.
        skip_bad: whether files and lines that cannot be used are left out.
        start_bytes: a corpus of twice as many bytes or more is planned in parts, and only the first
            one, of so many bytes, is prepared; all of it if that has no text, because lines are
            too long. None: all of it. So is held-out text.

    Raises:
        ManifestError: values of the draft are not allowed.
        FolderError: the imported model's tokenizer cannot be used.
        BadFilesError: files or lines cannot be used, and `skip_bad` is false.
        CorpusError: the text cannot be read, or there is too little of it.
    """
    if problems := problems_of_draft(draft) + _problems_of_data(draft):
        raise ManifestError(problems)
    is_own, text_field = draft.data == "own", draft.corpus.text_field
    imported = tokenizer_of(Path(draft.init_from), draft.model) if draft.init_from else None
    skipped = Skipped() if skip_bad else None
    if is_own:
        files, mixture = find_files([Path(path) for path in draft.corpus.heldout], skipped), None
    else:
        files, mixture = files_of(draft.corpus, corpus, skipped)
    plan = None
    if start_bytes is not None and not is_own:
        max_bytes = draft.corpus.max_bytes or None
        plan = plan_parts(
            files, draft.seed, start_bytes, max_bytes, text_field=text_field, mixture=mixture
        )
    scan = partial(
        scan_corpus,
        seed=draft.seed,
        text_field=text_field,
        scratch=scratch,
        skipped=skipped,
        chat=imported.chat() if imported and draft.corpus.format == "messages" else None,
        progress=progress,
    )
    text, plan = _scanned(scan, files, plan, skipped)
    cut = _cut(draft, text, imported, mixture, plan, put=put, progress=progress)
    config = _config_of(draft, cut, put, grows=plan is not None)
    _require_enough(config, draft)
    notes, warnings = _said_of_text(draft.corpus, text, cut, plan)
    summary = skipped.summary() if skipped else ()
    rest = None if plan is None else _rest_of(plan, draft, cut, skip_bad=skip_bad)
    return PreparedData(config, cut.index, (*summary, *warnings), tuple(notes), rest)


def _scanned(
    scan: Callable[[Sequence[Path] | Sequence[Section]], Corpus],
    files: Sequence[Path],
    plan: CorpusPlan | None,
    skipped: Skipped | None,
) -> tuple[Corpus, CorpusPlan | None]:
    """Returns the text of the first part, with the plan, or all text where there is no plan that
    can be followed."""
    if plan is None:
        return scan(files), None
    try:
        return scan(plan.part(0)), plan
    except NoTextError:
        if skipped is not None and skipped.summary():
            raise
    # No line begins in the sections of the first part: lines are too long for parts.
    return scan(files), None


def _cut(
    draft: Draft,
    text: Corpus,
    tokenizer: Tokenizer | None,
    mixture: Mixture | None,
    plan: CorpusPlan | None,
    *,
    put: Put,
    progress: Progress,
) -> CutCorpus:
    """Cuts the text into shards. `tokenizer`: the imported model's; None: the run has its own."""
    if plan is not None and tokenizer is None and draft.tokenizer.kind == "bpe":
        tokenizer = _tokenizer_of_all_parts(plan, draft, text.num_bytes, progress)
    is_whole_corpus = plan is None and draft.data != "own"
    return cut_corpus(
        text,
        draft.tokenizer.kind,
        draft.tokenizer.vocabulary,
        draft.model.context,
        put=put,
        tokenizer=tokenizer,
        max_bytes=(draft.corpus.max_bytes or None) if is_whole_corpus else None,
        mixture=mixture if plan is None else plan.mixture(),
        use="heldout" if draft.data == "own" else "split",
        progress=progress,
    )


def _tokenizer_of_all_parts(
    plan: CorpusPlan, draft: Draft, first_bytes: int, progress: Progress
) -> Tokenizer:
    """Learns a vocabulary from a sample of all parts.

    Args:
        first_bytes: bytes of text in the first part. The sample has as many, or as many as are
            learnt from.
    """
    num_bytes = min(first_bytes, BPE_TRAINING_BYTES_MAX)
    share = num_bytes / first_bytes * plan.num_bytes(1) / plan.num_bytes()
    sample = sample_texts(plan, draft.corpus.text_field, draft.seed, share)
    return learn_bpe_from(sample, num_bytes, draft.tokenizer.vocabulary, progress)


def _said_of_text(
    draft: CorpusDraft, text: Corpus, cut: CutCorpus, plan: CorpusPlan | None
) -> tuple[list[str], list[str]]:
    """Returns notes and warnings on what of the corpus is used, and when."""
    if plan is None:
        return said_of(cut.shares, text.num_bytes, draft.max_bytes)
    num_bytes, shares = text.num_bytes, cut.shares
    if plan.targets:
        num_bytes, shares = sum(plan.targets), _shares_of_plan(plan, draft)
    notes, warnings = said_of(shares, num_bytes, draft.max_bytes)
    notes.append(
        f"the run begins with {format_bytes(plan.num_bytes(1))} of its corpus of "
        f"{format_bytes(plan.num_bytes())}; this node cuts and adds the rest meanwhile, and the "
        "files of the corpus have to stay where they are until then"
    )
    return notes, warnings


def _rest_of(plan: CorpusPlan, draft: Draft, cut: CutCorpus, *, skip_bad: bool) -> RestOfCorpus:
    return RestOfCorpus(
        plan,
        text_field=draft.corpus.text_field,
        seed=draft.seed,
        heldout_keys=cut.heldout_keys.astype("<u8").tobytes(),
        skip_bad=skip_bad,
    )


def _shares_of_plan(plan: CorpusPlan, draft: CorpusDraft) -> tuple[Share, ...]:
    """Returns what each source is planned to have of the whole text."""
    weights = [source.weight for source in draft.sources]
    return tuple(
        Share(name, weight / sum(weights), target / sum(plan.targets), target)
        for name, weight, target in zip(plan.names, weights, plan.targets, strict=True)
    )


def _config_of(draft: Draft, cut: CutCorpus, put: Put, *, grows: bool) -> DataConfig:
    """Returns the manifest's section of the data, whose blocks are stored with `put`."""
    return DataConfig(
        tokenizer=draft.tokenizer.kind,
        tokenizer_digest=put(cut.tokenizer.file) if cut.tokenizer.file else b"",
        token_bytes=cut.token_bytes,
        index_digest=put(to_msgpack(cut.index)),
        num_shards=len(cut.index.shards),
        num_tokens=sum(shard.num_tokens for shard in cut.index.shards),
        heldout_tokens=sum(shard.num_tokens for shard in cut.index.heldout),
        own=True if draft.data == "own" else msgspec.UNSET,
        messages=True if draft.corpus.format == "messages" else msgspec.UNSET,
        grows=grows or msgspec.UNSET,
    )


def sign_manifest(
    draft: Draft,
    data: PreparedData,
    genesis_parameters: FloatVector,
    *,
    identity: Identity,
    created_unix_seconds: int | None = None,
) -> FoundedRun:
    """Returns the manifest of a run whose data is stored, signed by its founder.

    The manifest always allows the founder to join.

    Args:
        genesis_parameters: initial weights, fp32, shape (num_parameters,).

    Raises:
        ManifestError: values of the draft are not allowed.
    """
    assert genesis_parameters.shape == (draft.model.num_parameters,)
    if draft.admission == "allow":
        allowed = tuple(sorted({*draft.allowed, identity.peer_id}))
        draft = msgspec.structs.replace(draft, allowed=allowed)
    now = int(time.time()) if created_unix_seconds is None else created_unix_seconds
    manifest = require_valid(
        manifest_of(
            draft,
            founder=identity.peer_id,
            created_unix_seconds=now,
            data=data.config,
            genesis_digest=genesis_digest_of(genesis_parameters, draft.outer.chunk_elements),
        )
    )
    encoded = encode_manifest(manifest)
    signature = identity.sign(signing_bytes(digest_of(encoded)))
    return FoundedRun(SignedManifest(manifest=encoded, signature=signature), manifest, data.index)


def risk_of(draft: Draft) -> str | None:
    """Says for people what every stranger could do to a run that is founded so; None: no more than
    a bounded part of an average."""
    if draft.admission != "open" or draft.trust == "open":
        return None
    return (
        "every peer may join this run, and each of its members can replace the model. Among people "
        'who do not know each other set trust = "open" or admission = "invite" in the manifest: '
        "`gossamer init`"
    )


def _problems_of_data(draft: Draft) -> list[str]:
    """Returns a sentence for each thing that is missing in all that the founder gave."""
    problems: list[str] = []
    if draft.data == "own" and not draft.corpus.heldout:
        problems.append(
            'with data = "own" no peer shares its text, so name some that all peers get, to '
            "compare losses on and to learn a tokenizer from: --heldout FILE, or corpus.heldout"
        )
    if draft.data != "own" and draft.corpus.heldout:
        problems.append(
            'corpus.heldout is for data = "own"; a shared corpus has a part of itself held out'
        )
    return problems + problems_without_model(draft, "gossamer start")


def problems_without_model(draft: Draft, command: str) -> list[str]:
    """Returns a sentence for each choice that needs a model to begin with, if there is none.

    Args:
        command: that takes the model.
    """
    problems: list[str] = []
    if draft.corpus.format == "messages" and not draft.init_from:
        problems.append(
            'corpus.format is "messages"; the chat template of a model says how conversations are '
            f"written: {command} --init-from FOLDER"
        )
    if draft.model.lora and not draft.init_from:
        problems.append(
            "model.lora is set, and there is no model whose weights the adapters belong to: "
            f"{command} --init-from FOLDER"
        )
    return problems


def files_of(
    draft: CorpusDraft, corpus: Sequence[Path], skipped: Skipped | None
) -> tuple[list[Path], Mixture | None]:
    """Returns the files of the corpus, and the mixture if the draft has sources that are used."""
    if corpus or not draft.sources:
        paths = list(corpus) or [Path(path) for path in draft.paths]
        return (find_files(paths, skipped) if paths else default_files()), None
    found: dict[Path, int] = {}
    for number, source in enumerate(draft.sources):
        for path in find_files([Path(source.path)], skipped):
            found.setdefault(path, number)
    sources = draft.sources
    mixture = Mixture(
        names=tuple(source.path for source in sources),
        weights=tuple(source.weight for source in sources),
        file_sources=tuple(found.values()),
    )
    return list(found), mixture


def said_of(shares: Sequence[Share], num_bytes: int, max_bytes: int) -> tuple[list[str], list[str]]:
    """Returns sentences about shares that are as wanted, and about those that are not."""
    notes: list[str] = []
    warnings: list[str] = []
    for share in shares:
        sentence = (
            f"corpus source {share.name}: {share.reached:.1%} of the text, {share.num_bytes:,} "
            "bytes"
        )
        if share.is_missed:
            warnings.append(f"{sentence}; its weight wants {share.wanted:.1%}: {_reason_of(share)}")
        else:
            notes.append(sentence)
    used = sum(share.num_bytes for share in shares)
    if shares and not max_bytes and used < num_bytes:
        notes.append(
            f"of the {num_bytes:,} bytes of all sources {used:,} are used: one source has no more "
            "for its share; corpus.max_bytes takes more of the others, in other shares"
        )
    return notes, warnings


def _reason_of(share: Share) -> str:
    if share.reached < share.wanted:
        return "it has no more of it (in whole documents), and nothing is repeated"
    return "another source has too little, and nothing is repeated"


def _require_enough(data: DataConfig, draft: Draft) -> None:
    """Requires text for one inner step, and held-out text for one sequence."""
    context = draft.model.context
    step_tokens = draft.inner.sequences_per_step * context + 1
    problems: list[str] = []
    if data.num_tokens < step_tokens and not data.own:
        problems.append(
            f"the corpus has {data.num_tokens:,} tokens to train on, but one inner step takes "
            f"{step_tokens:,}; name more text, or lower inner.sequences_per_step or model.context"
        )
    if data.heldout_tokens < context + 1:
        problems.append(
            f"the held-out part of the corpus has {data.heldout_tokens:,} tokens, but one sequence "
            f"takes {context + 1:,}; name more text, or lower model.context"
        )
    if problems:
        raise CorpusError(*problems)
