"""The shards of a corpus as files of one folder, for training without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.shard_index import ShardIndex
from gossamer.trainer.text.data import Tokens, load_shard
from gossamer.trainer.text.shards import Put, cut_corpus
from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.sources.corpus_files import default_files, find_files
from gossamer.trainer.text.tokenizers.tokens import TokenizerKind

Push = Callable[[int, str, int, int], None]
"""Queues a range of a shard, see `DataQueue.push`."""


@dataclass(frozen=True)
class ShardFolder:
    """The folder and what is in it."""

    folder: Path
    index: ShardIndex
    token_bytes: int

    def path_of(self, digest: bytes) -> str:
        """The file of a shard."""
        return str(self.folder / digest.hex())

    def push_shards(self, push: Push, numbers: Iterable[int]) -> None:
        """Queues whole shards."""
        for number in numbers:
            shard = self.index.shards[number]
            push(number, self.path_of(shard.digest), 0, shard.num_tokens)

    def heldout(self, vocabulary: int) -> Iterator[Tokens]:
        """The tokens of each held-out shard. Raises DataError: see `load_shard`."""
        for shard in self.index.heldout:
            yield load_shard(self.path_of(shard.digest), self.token_bytes, vocabulary)


def cut_text(
    paths: Sequence[Path], folder: Path, kind: TokenizerKind, model: ModelConfig, seed: int
) -> ShardFolder:
    """Cuts files and folders (none: Python's standard library) into shards in `folder`.

    Raises:
        CorpusError: text that cannot be read, or too little of it.
    """
    corpus = scan_corpus(find_files(paths) if paths else default_files(), seed=seed)
    cut = cut_corpus(corpus, kind, model.vocabulary, model.context, put=put_into(folder))
    return ShardFolder(folder, cut.index, cut.token_bytes)


def put_into(folder: Path) -> Put:
    """Keeps blocks as files of a folder, named by their digests in hexadecimal digits."""

    def put(data: bytes) -> Digest:
        digest = digest_of(data)
        (folder / digest.hex()).write_bytes(data)
        return digest

    return put
