"""The text of `losses.py`: the same documents for all arms, mixed, or sorted by topic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gossamer.node.runs.planning.draft import Draft
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from gossamer.trainer.text.shard_folder import put_into
from gossamer.trainer.text.shards import Split, split_documents, tokenise
from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.sources.corpus_files import default_files, find_files
from gossamer.trainer.text.tokenizers.tokens import ByteTokenizer
from tests.benchmarks._parity_training import Text, prepare_text

TOPIC_SHARD_TOKENS = 65_536


@dataclass(frozen=True)
class Dealt:
    """Text and who trains on which of its shards."""

    text: Text
    shards: tuple[tuple[int, ...], ...]
    """Shard numbers of each worker."""


def mixed(draft: Draft, folder: Path, num_workers: int) -> Dealt:
    """Worker w of k has shards w, w + k, w + 2k ... of the shuffled text."""
    text = prepare_text(draft, folder)
    numbers = range(len(text.index.shards))
    return Dealt(text, tuple(tuple(numbers[w::num_workers]) for w in range(num_workers)))


def by_topic(draft: Draft, folder: Path, num_workers: int) -> Dealt:
    """The documents of `mixed`, the same ones held out, but each worker has its own kind of them.

    Files are taken in the order of their paths, so neighbours are of one package, and cut into
    equal parts: worker w has the w-th. Within a part they are shuffled as always. For a byte-level
    tokenizer.
    """
    assert draft.tokenizer.kind == "bytes"
    text = prepare_text(draft, folder)
    paths = [Path(path) for path in draft.corpus.paths]
    corpus = scan_corpus(find_files(paths) if paths else default_files(), seed=draft.seed)
    train = split_documents(corpus, draft.corpus.max_bytes or None).train
    sizes = corpus.text_bytes.astype(np.int64)
    by_path = train[np.argsort(corpus.file_numbers[train], kind="stable")]
    before = np.cumsum(sizes[by_path]) - sizes[by_path]
    topic_of = np.zeros(len(sizes), np.int64)
    topic_of[by_path] = before * num_workers // int(sizes[train].sum())

    shards: list[ShardInfo] = []
    of_worker: list[tuple[int, ...]] = []
    for topic in range(num_workers):
        index = tokenise(
            corpus,
            Split(train=train[topic_of[train] == topic], heldout=train[:0]),
            ByteTokenizer(),
            token_bytes=2,
            shard_tokens=TOPIC_SHARD_TOKENS,
            context=draft.model.context,
            put=put_into(folder),
        )
        of_worker.append(tuple(range(len(shards), len(shards) + len(index.shards))))
        shards += index.shards
    index = ShardIndex(shards=tuple(shards), heldout=text.index.heldout)
    return Dealt(replace(text, index=index), tuple(of_worker))
