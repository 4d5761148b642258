"""A corpus as token shards.

- A shard is a run of tokens, little-endian uint16 (uint32 beyond 65,536 tokens), compressed with
  zstd, and named by the BLAKE3 of its compressed bytes (`data.load_shard` reads it).
- The text to train on is the stream "document, 0, document, 0, ..." cut into sequences of
  `context + 1` tokens (inputs and the target of the last one), which are then shuffled: first the
  documents, by `Corpus.keys`, then the sequences of each `SHUFFLE_BYTES` of text. A peer reads its
  shards from their beginning to their end: without that all sequences of a round would be of one
  document, and each peer would drift to another text.
- About 2 % of the text, whole documents, is held out: it has shards of its own that no peer trains
  on, the stream as it is. Copies of a document count once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

import numpy as np
import zstandard

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.limits import KIB, MIB
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from gossamer.trainer.text.mixing import Mixture, Share, mix, shares_of
from gossamer.trainer.text.sources.corpus import Corpus, IntVector, KeyVector, Progress, no_progress
from gossamer.trainer.text.sources.corpus_errors import CorpusError
from gossamer.trainer.text.tokenizers.encoders import Encoders, num_processes
from gossamer.trainer.text.tokenizers.tokens import (
    ByteTokenizer,
    TokenBytes,
    Tokenizer,
    TokenizerKind,
    TokenVector,
    estimate_tokens,
    learn_bpe,
    token_bytes_of,
)

Put = Callable[[bytes], Digest]
"""Keeps a block and returns its address."""

_Encode = Callable[[Iterator[bytes]], Iterator[tuple[list[bytes], Sequence[TokenVector]]]]

HELDOUT_FRACTION = 0.02
# 2 % of a small corpus says little, so up to a tenth of it is taken to reach this.
HELDOUT_BYTES_MIN = 64 * KIB
HELDOUT_FRACTION_MAX = 0.1
# Every peer fetches all of it to evaluate, and a mean over 4 MiB of text is sharp enough.
HELDOUT_BYTES_MAX = 4 * MIB

SHARD_TOKENS_DEFAULT = 64 * KIB
# Small corpora get smaller shards, so that eight peers can hold several different ones each.
SHARDS_WANTED = 64
SHARD_TOKENS_MIN = 4 * KIB
# Large corpora get larger shards, so that their index stays short (some 45 bytes a shard).
SHARDS_DEFAULT_MAX = 4096
# A shard's tail that is shorter than a sequence is not trained on: it should be a small part.
SHARD_SEQUENCES_MIN = 8
# Before compression. Noise, which zstd makes longer by a 256th, still fits a block.
SHARD_BYTES_MAX = limits.BLOCK_BYTES_MAX - 32 * KIB

# Of tokens in memory at once. More text than this is shuffled piece by piece.
SHUFFLE_BYTES = 64 * MIB

# A batch is the work of one core. The tokenizer's library divides larger ones among the cores, and
# takes some 30 bytes a byte of text until their tokens are copied: hence the limit.
_BATCH_BYTES_A_CORE = MIB
_BATCH_BYTES_MAX = 16 * MIB
_ZSTD_LEVEL = 3


Use = Literal["split", "train", "heldout"]
"""What documents are for: to train on and, a small part, to hold out; or all for one of the two."""


class Split(NamedTuple):
    """Numbers of documents, in the order in which they are packed."""

    train: IntVector
    heldout: IntVector


@dataclass(frozen=True)
class CutCorpus:
    """A corpus as shards, which `put` keeps."""

    tokenizer: Tokenizer
    token_bytes: TokenBytes
    index: ShardIndex
    shares: tuple[Share, ...] = ()
    """What each source of a mixture has of the text."""
    heldout_keys: KeyVector = field(default_factory=lambda: np.empty(0, np.uint64))
    """Keys of the documents that are held out, (num_heldout,)."""


def cut_corpus(
    corpus: Corpus,
    kind: TokenizerKind,
    vocabulary: int,
    context: int,
    *,
    put: Put,
    tokenizer: Tokenizer | None = None,
    max_bytes: int | None = None,
    mixture: Mixture | None = None,
    use: Use = "split",
    progress: Progress = no_progress,
) -> CutCorpus:
    """Splits a corpus, learns its tokenizer if need be, and cuts it into shards of a fitting size.

    Args:
        vocabulary: tokens of a BPE tokenizer at most.
        context: targets of a sequence.
        tokenizer: one that is there already, instead of one of `kind`.
        max_bytes, mixture, use: see `split_documents`.

    Raises:
        CorpusError: as `split_documents` and `tokenise`.
    """
    split = split_documents(corpus, max_bytes, mixture, use)
    most = split.heldout if use == "heldout" else split.train
    if tokenizer is None and kind == "bytes":
        tokenizer = ByteTokenizer()
    elif tokenizer is None:
        tokenizer = learn_bpe(corpus, most, vocabulary, progress)
    # A conversation marks the tokens that are no targets in the highest of 32 bits.
    token_bytes = 4 if corpus.chat is not None else token_bytes_of(vocabulary)
    most_bytes = int(corpus.text_bytes[most].sum(dtype=np.int64))
    num_tokens = estimate_tokens(most_bytes, len(most), kind)
    if use == "heldout":  # nobody claims parts of it, and peers evaluate on the first few shards
        num_tokens = max(num_tokens, SHARDS_WANTED * SHARD_TOKENS_DEFAULT)
    index = tokenise(
        corpus,
        split,
        tokenizer,
        token_bytes=token_bytes,
        shard_tokens=default_shard_tokens(num_tokens, token_bytes, context),
        context=context,
        put=put,
        progress=progress,
    )
    shares = () if mixture is None else shares_of(corpus, np.concatenate(split), mixture)
    return CutCorpus(tokenizer, token_bytes, index, shares, corpus.keys[split.heldout])


def split_documents(
    corpus: Corpus,
    max_bytes: int | None = None,
    mixture: Mixture | None = None,
    use: Use = "split",
) -> Split:
    """Chooses the documents that are trained on, and those that are held out. A function of the
    texts and the seed.

    Args:
        max_bytes: of text to use, as many documents of the random order as fit; None: all.
        mixture: the sources of the files, if the shares of several are given.
        use: "heldout" takes no more than `HELDOUT_BYTES_MAX`, or one document.

    Raises:
        CorpusError: fewer than two different documents where they are split, or none of a source.
    """
    order = np.argsort(corpus.keys, kind="stable").astype(np.int64)
    keys = corpus.keys[order]
    first_copy = np.ones(len(order), dtype=bool)
    first_copy[1:] = keys[1:] != keys[:-1]
    order = order[first_copy]
    if mixture is not None:
        order, max_bytes = mix(corpus, order, mixture, max_bytes), None
    sizes = corpus.text_bytes[order].astype(np.int64)
    if max_bytes is not None:
        fitting = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
        order, sizes = order[:fitting], sizes[:fitting]
    none = order[:0]
    if use == "train" and len(order):
        return Split(train=order, heldout=none)
    if use == "heldout":
        fitting = int(np.searchsorted(np.cumsum(sizes), HELDOUT_BYTES_MAX, side="right"))
        return Split(train=none, heldout=order[: max(1, fitting)])
    if len(order) < 2:
        limit = f" within {max_bytes:,} bytes" if max_bytes is not None else ""
        raise CorpusError(
            f"the corpus has only {corpus.num_bytes:,} bytes in {len(order)} different "
            f"documents{limit}; it needs two or more, one of them to hold out: name more text"
        )
    total = int(sizes.sum())
    wanted = max(HELDOUT_FRACTION * total, min(HELDOUT_BYTES_MIN, HELDOUT_FRACTION_MAX * total))
    wanted = min(wanted, HELDOUT_BYTES_MAX)
    # A document longer than that stays in training: so less than twice as much is taken.
    small = sizes <= wanted
    before = np.cumsum(sizes * small) - sizes * small
    heldout = small & (before < wanted)
    if not heldout.any():
        heldout[int(np.argmin(sizes))] = True
    return Split(train=order[~heldout], heldout=order[heldout])


def default_shard_tokens(num_tokens: int, token_bytes: TokenBytes, context: int) -> int:
    """Tokens of a shard for a corpus of about `num_tokens`: a power of two, or the most allowed."""
    size = SHARD_TOKENS_DEFAULT
    while size > SHARD_TOKENS_MIN and num_tokens < SHARDS_WANTED * size:
        size //= 2
    while size < SHARD_BYTES_MAX // token_bytes and (
        num_tokens > SHARDS_DEFAULT_MAX * size or size < SHARD_SEQUENCES_MIN * context
    ):
        size *= 2
    return min(size, SHARD_BYTES_MAX // token_bytes)


def tokenise(
    corpus: Corpus,
    split: Split,
    tokenizer: Tokenizer,
    *,
    token_bytes: TokenBytes,
    shard_tokens: int,
    context: int,
    put: Put,
    progress: Progress = no_progress,
) -> ShardIndex:
    """Cuts a corpus into shards; `SHUFFLE_BYTES` (thrice) are in memory at a time.

    Args:
        shard_tokens: of a shard at most; those to train on have as many whole sequences as fit.
        context: targets of a sequence.

    Raises:
        CorpusError: as `Corpus.read`, or more than `limits.SHARDS_MAX` shards.
    """
    if not 0 < shard_tokens <= SHARD_BYTES_MAX // token_bytes:
        raise ValueError(
            f"shards of {shard_tokens} tokens; at most {SHARD_BYTES_MAX // token_bytes}"
        )
    total = int(corpus.text_bytes[np.concatenate(split)].sum(dtype=np.int64))
    done = 0
    parts: list[tuple[ShardInfo, ...]] = []
    sequence = context + 1
    whole_sequences = max(sequence, shard_tokens - shard_tokens % sequence)
    packers: tuple[_Shuffler | _Packer, ...] = (
        _Shuffler(_Packer(whole_sequences, token_bytes, put), sequence, corpus.seed),
        _Packer(shard_tokens, token_bytes, put),
    )
    # A conversation comes with its end.
    ends = [] if corpus.chat is not None else [tokenizer.end_token]
    end = np.array(ends, dtype=np.uint32)
    with _encoding(corpus, tokenizer, total) as encode:
        for documents, packer in zip(split, packers, strict=True):
            for batch, encoded in encode(corpus.read(documents)):
                for tokens in encoded:
                    packer.add(tokens)
                    packer.add(end)
                done += sum(len(text) for text in batch)
                progress("cutting into tokens", done, total)
            parts.append(packer.finish())
    index = ShardIndex(shards=parts[0], heldout=parts[1])
    if len(index.shards) + len(index.heldout) > limits.SHARDS_MAX:
        raise _too_large(shard_tokens)
    return index


def encode_shard(tokens: TokenVector, token_bytes: TokenBytes) -> bytes:
    """Compressed bytes of a shard. `tokens` has shape (num_tokens,)."""
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return compressor.compress(tokens.astype(f"<u{token_bytes}").tobytes())


class _Packer:
    """Cuts a stream of tokens into shards."""

    def __init__(self, shard_tokens: int, token_bytes: TokenBytes, put: Put) -> None:
        self._buffer = np.empty(shard_tokens, dtype=f"<u{token_bytes}")
        self._filled = 0
        self.token_bytes = token_bytes
        self._put = put
        self._shards: list[ShardInfo] = []

    def add(self, tokens: TokenVector) -> None:
        while len(tokens):
            taken = tokens[: len(self._buffer) - self._filled]
            self._buffer[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            tokens = tokens[len(taken) :]
            if self._filled == len(self._buffer):
                self._cut()

    def _cut(self) -> None:
        if len(self._shards) == limits.SHARDS_MAX:
            raise _too_large(len(self._buffer))
        data = encode_shard(self._buffer[: self._filled], self.token_bytes)
        digest = self._put(data)
        assert digest == digest_of(data), "the store names blocks by their BLAKE3"
        self._shards.append(ShardInfo(digest, self._filled, len(data)))
        self._filled = 0

    def finish(self) -> tuple[ShardInfo, ...]:
        if self._filled:
            self._cut()
        return tuple(self._shards)


class _Shuffler:
    """Hands a stream on to a packer as sequences in random order, `SHUFFLE_BYTES` at a time."""

    def __init__(self, packer: _Packer, sequence: int, seed: int) -> None:
        """`sequence`: tokens that stay together."""
        self._packer = packer
        self._sequence = sequence
        self._random = np.random.default_rng(seed)
        self._parts: list[TokenVector] = []
        self._num_tokens = 0

    def add(self, tokens: TokenVector) -> None:
        self._parts.append(tokens.astype(f"<u{self._packer.token_bytes}"))
        self._num_tokens += len(tokens)
        if self._num_tokens * self._packer.token_bytes >= SHUFFLE_BYTES:
            self._shuffle()

    def _shuffle(self) -> None:
        """Everything but a tail that is no whole sequence."""
        # The parts are of one type (`add`), which concatenate's stub cannot know of a union.
        tokens = cast(TokenVector, np.concatenate(self._parts))
        whole = len(tokens) - len(tokens) % self._sequence
        sequences = tokens[:whole].reshape(-1, self._sequence)
        self._packer.add(self._random.permutation(sequences).ravel())
        self._parts = [tokens[whole:]]
        self._num_tokens = len(tokens) - whole

    def finish(self) -> tuple[ShardInfo, ...]:
        if self._parts:
            self._shuffle()
            self._packer.add(self._parts[0])
        return self._packer.finish()


@contextmanager
def _encoding(corpus: Corpus, tokenizer: Tokenizer, num_bytes: int) -> Iterator[_Encode]:
    """Gives what turns texts into batches of them with their tokens, with all cores if the text is
    worth it."""
    number = num_processes(num_bytes)
    if corpus.chat is None and tokenizer.elsewhere is not None and number > 1:
        with closing(Encoders(tokenizer.elsewhere, number)) as encoders:
            yield lambda texts: encoders.encode(_batches(texts, _BATCH_BYTES_A_CORE))
        return
    encode = tokenizer.encode if corpus.chat is None else corpus.chat.encode
    size = min(_BATCH_BYTES_A_CORE * (os.cpu_count() or 1), _BATCH_BYTES_MAX)
    yield lambda texts: ((batch, encode(batch)) for batch in _batches(texts, size))


def _batches(texts: Iterator[bytes], size_wanted: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= size_wanted:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _too_large(shard_tokens: int) -> CorpusError:
    return CorpusError(
        f"the corpus has more than {limits.SHARDS_MAX:,} shards of {shard_tokens:,} tokens; "
        "set max_bytes to use a part of it"
    )
