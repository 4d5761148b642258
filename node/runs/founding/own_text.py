"""The text that a peer keeps at home, in a run where every peer trains on data of its own.

Each peer cuts its own text into shards with the run's tokenizer, in a process of its own, as a
founder cuts a corpus. The shards lie in the folder `own` of the state directory (`OwnData`), and
the order in which they are read is drawn for this peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gossamer.node.base.terminal.printable import printable
from gossamer.node.runs.founding.file_names import pack
from gossamer.node.runs.founding.founding import files_of, said_of
from gossamer.node.runs.planning.draft import CorpusDraft, SourceDraft
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import ShardIndex
from gossamer.trainer.pretrained.model_files import unpack_model_files
from gossamer.trainer.pretrained.tokenizer import ImportedTokenizer
from gossamer.trainer.text.shards import Put, cut_corpus
from gossamer.trainer.text.sources.corpus import (
    DEFAULT_TEXT_FIELD,
    Progress,
    scan_corpus,
)
from gossamer.trainer.text.sources.corpus_errors import CorpusError, Skipped
from gossamer.trainer.text.tokenizers.tokens import load_tokenizer

_KEY_CONTEXT = b"gossamer own text 1:"
_SEED_CONTEXT = b"gossamer own order 1:"


class OwnText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of one peer, as its owner names it."""

    corpus: CorpusDraft
    skip_bad: bool = False
    """Whether files and lines that cannot be used are left out."""


def own_text_of(
    paths: Sequence[Path], text_field: str = DEFAULT_TEXT_FIELD, *, skip_bad: bool = False
) -> OwnText | None:
    """Returns the text in files and folders; None if none is named.

    Args:
        text_field: field of a JSON line, or column of a table, that holds it.
    """
    if not paths:
        return None
    names = tuple(str(path.absolute()) for path in paths)
    corpus = CorpusDraft(paths=names, text_field=text_field)
    return OwnText(corpus=corpus, skip_bad=skip_bad)


def founders_text(corpus: CorpusDraft, paths: Sequence[Path], skip_bad: bool = False) -> OwnText:
    """Returns the founder's own text: `paths`, or else what the manifest file names.

    Raises:
        CorpusError: there is neither.
    """
    replace = msgspec.structs.replace
    if paths:
        corpus = replace(corpus, paths=tuple(str(p.absolute()) for p in paths), sources=())
    if not corpus.paths and not corpus.sources:
        raise CorpusError(
            'with data = "own" every peer trains on text of its own: name yours with --corpus'
        )
    sources: tuple[SourceDraft, ...] = tuple(
        replace(source, path=str(Path(source.path).absolute())) for source in corpus.sources
    )
    return OwnText(corpus=replace(corpus, sources=sources), skip_bad=skip_bad)


def require_fitting(manifest: Manifest, *, has_text: bool, has_shards: bool = False) -> None:
    """Requires a text where the run wants one, and none where it does not.

    Args:
        has_shards: whether this node has cut a text before.

    Raises:
        CorpusError: it is otherwise.
    """
    name = printable(manifest.name)
    if manifest.data.own and not has_text and not has_shards:
        raise CorpusError(
            f"in the run {name} every peer trains on text of its own, which does not "
            "leave its machine: name yours, as in gossamer join ADDRESS --corpus FOLDER (or "
            "gossamer start --corpus FOLDER on the machine that founded it)"
        )
    if has_text and not manifest.data.own:
        raise CorpusError(
            f"the run {name} trains on its founder's corpus, which this node gets "
            "from other peers; text of your own is not used in it: leave out --corpus"
        )


def key_of(text: OwnText, manifest: Manifest, me: PeerId) -> bytes:
    """Returns a digest of the files (name, size, time) and of all that their shards depend on.

    Raises:
        CorpusError: files that cannot be read.
    """
    files, _ = files_of(text.corpus, (), Skipped() if text.skip_bad else None)
    stats = [(str(path), path.stat()) for path in files]
    data = manifest.data
    parts = (
        text,
        [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
        (data.tokenizer, data.tokenizer_digest, bool(data.messages), manifest.model.vocabulary),
        (manifest.model.context, own_seed(manifest, me)),
    )
    return digest_of(_KEY_CONTEXT, pack(parts))


def own_seed(manifest: Manifest, me: PeerId) -> int:
    """Returns the seed of the order in which this peer reads its text."""
    seed = manifest.seed.to_bytes(8, "big")
    return int.from_bytes(digest_of(_SEED_CONTEXT, seed, me.encode())[:7], "big")


def cut_own_text(
    text: OwnText,
    manifest: Manifest,
    tokenizer_file: bytes,
    seed: int,
    *,
    put: Put,
    scratch: Path,
    progress: Progress,
) -> tuple[ShardIndex, list[str], list[str]]:
    """Cuts a peer's text into shards, which `put` keeps. Nothing is held out.

    Args:
        tokenizer_file: the block of the run's tokenizer; empty for plain bytes.
        scratch: folder on a disk with room for what compressed files and conversations hold.

    Returns:
        The index, and sentences: warnings, and notes on what is used.

    Raises:
        MalformedError, FolderError: the tokenizer cannot be used.
        CorpusError: the text cannot be read, or there is too little of it.
    """
    data, model, draft = manifest.data, manifest.model, text.corpus
    imported = ImportedTokenizer(unpack_model_files(tokenizer_file)) if model.imported else None
    skipped = Skipped() if text.skip_bad else None
    files, mixture = files_of(draft, (), skipped)
    corpus = scan_corpus(
        files,
        seed=seed,
        text_field=draft.text_field,
        scratch=scratch,
        skipped=skipped,
        chat=imported.chat() if imported is not None and data.messages else None,
        progress=progress,
    )
    cut = cut_corpus(
        corpus,
        data.tokenizer,
        model.vocabulary,
        model.context,
        put=put,
        tokenizer=imported or load_tokenizer(data.tokenizer, tokenizer_file),
        max_bytes=draft.max_bytes or None,
        mixture=mixture,
        use="train",
        progress=progress,
    )
    num_tokens = sum(shard.num_tokens for shard in cut.index.shards)
    if num_tokens <= model.context:
        raise CorpusError(
            f"the text has {num_tokens:,} tokens, but one sequence of this run takes "
            f"{model.context + 1:,}: name more text"
        )
    notes, warnings = said_of(cut.shares, corpus.num_bytes, draft.max_bytes)
    return cut.index, [*(skipped.summary() if skipped else ()), *warnings], notes
