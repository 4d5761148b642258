"""From text to token shards and back.

- Tokenizers: plain `bytes` (a token is a byte, 256 in all) or `bpe` (byte-level byte-pair encoding
  learnt from the training text). In both, token 0 ends a document: text has no byte 0, and the BPE
  vocabulary begins with ``<|endoftext|>``, which text that merely spells it never becomes.
- A shard is a run of tokens, little-endian uint16 (uint32 beyond 65,536 tokens), compressed with
  zstd, and named by the BLAKE3 of its compressed bytes. Shards of one kind laid end to end are the
  stream "document, 0, document, 0, ..."; only the last may be shorter than the others.
- Documents are in the order of `Corpus.keys`, so shards are samples of one distribution (i.i.d.).
- About 2 % of the text, whole documents, is held out: it has shards of its own that nobody trains
  on. Copies of a document count once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import zstandard
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.limits import KIB, MIB
from gossamer.protocol.manifest import ShardIndex, ShardInfo
from gossamer.trainer.corpus import Corpus, CorpusError, IntVector, Progress, no_progress

TokenizerKind = Literal["bytes", "bpe"]
TokenBytes = Literal[2, 4]
TokenVector = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Put = Callable[[bytes], Digest]
"""Keeps a block and returns its address."""

END_OF_DOCUMENT = 0
END_OF_DOCUMENT_TEXT = "<|endoftext|>"
BYTES_VOCABULARY = 256
# 256 bytes and the end of a document; every token beyond them is learnt.
BPE_VOCABULARY_MIN = 257

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
# Before compression. Half a block: even noise, which zstd makes a little longer, fits a block.
SHARD_BYTES_MAX = limits.BLOCK_BYTES_MAX // 2
# English text has some 4 bytes a BPE token; only the shards' size depends on this guess.
BPE_BYTES_PER_TOKEN = 4

# Merges learnt from more text are the same, and the words counted have to fit in memory.
BPE_TRAINING_BYTES_MAX = 256 * MIB
# The library gathers 256 pieces before it looks at them.
_BPE_TRAINING_PIECE_CHARACTERS = 64 * KIB
# An encoding takes some 100 bytes a token until it is copied out.
_ENCODE_CHARACTERS = MIB
_ENCODE_BATCH_BYTES = MIB
_ZSTD_LEVEL = 3
# A million merges of ordinary length.
TOKENIZER_BYTES_MAX = limits.BLOCK_BYTES_MAX


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def kind(self) -> TokenizerKind: ...

    @property
    def vocabulary(self) -> int:
        """Every token is below this."""

    @property
    def file(self) -> bytes:
        """What another peer needs to build the same tokenizer (nothing for `bytes`)."""

    def encode(self, texts: Sequence[bytes]) -> list[TokenVector]:
        """Tokens of UTF-8 texts, without an end of document. Shapes: (num_tokens,) each."""

    def decode(self, tokens: TokenVector) -> str:
        """Text of tokens; ends of documents are left out, cut characters become U+FFFD."""


class ByteTokenizer:
    """A token is a byte of UTF-8."""

    kind: TokenizerKind = "bytes"
    vocabulary = BYTES_VOCABULARY
    file = b""

    def encode(self, texts: Sequence[bytes]) -> list[TokenVector]:
        """As `Tokenizer.encode`."""
        return [np.frombuffer(text, dtype=np.uint8).astype(np.uint16) for text in texts]

    def decode(self, tokens: TokenVector) -> str:
        """As `Tokenizer.decode`."""
        kept = tokens[tokens != END_OF_DOCUMENT]
        return kept.astype(np.uint8).tobytes().decode(errors="replace")


class BpeTokenizer:
    """Byte-level BPE; `file` is a ``tokenizer.json`` of the `tokenizers` library."""

    kind: TokenizerKind = "bpe"

    def __init__(self, file: bytes) -> None:
        """
        Raises:
            MalformedError: not such a file, or one whose token 0 does not end a document.
        """
        if len(file) > TOKENIZER_BYTES_MAX:
            raise MalformedError(f"tokenizer of {len(file)} bytes; {TOKENIZER_BYTES_MAX} is the limit")
        try:
            self._tokenizer = HuggingFaceTokenizer.from_str(file.decode())
        except Exception as error:  # the library raises nothing more precise
            raise MalformedError(f"not a tokenizer file: {error}") from error
        if self._tokenizer.token_to_id(END_OF_DOCUMENT_TEXT) != END_OF_DOCUMENT:
            raise MalformedError(f"tokenizer whose token 0 is not {END_OF_DOCUMENT_TEXT}")
        # Text that spells a special token is text. The file format does not keep this setting.
        self._tokenizer.encode_special_tokens = True
        self.file = file
        self.vocabulary = int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, texts: Sequence[bytes]) -> list[TokenVector]:
        """As `Tokenizer.encode`."""
        pieces = [_cut(text.decode(), _ENCODE_CHARACTERS) for text in texts]
        flat = [piece for of_text in pieces for piece in of_text]
        encodings = iter(self._tokenizer.encode_batch_fast(flat))
        return [
            np.concatenate(
                [np.zeros(0, np.uint32)]
                + [np.array(next(encodings).ids, dtype=np.uint32) for _ in of_text]
            )
            for of_text in pieces
        ]

    def decode(self, tokens: TokenVector) -> str:
        """As `Tokenizer.decode`."""
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True))


def load_tokenizer(kind: TokenizerKind, file: bytes) -> Tokenizer:
    """The tokenizer of a run.

    Raises:
        MalformedError: `file` is not what `kind` needs.
    """
    if kind == "bpe":
        return BpeTokenizer(file)
    if file:
        raise MalformedError("plain bytes have no tokenizer file")
    return ByteTokenizer()


def learn_bpe(
    corpus: Corpus, documents: IntVector, vocabulary: int, progress: Progress = no_progress
) -> BpeTokenizer:
    """Byte-level BPE learnt from some documents (the first `BPE_TRAINING_BYTES_MAX` of them).

    A small corpus may have too few pairs to reach `vocabulary`; then the result has fewer tokens.

    Raises:
        CorpusError: as `Corpus.read`.
    """
    if vocabulary < BPE_VOCABULARY_MIN:
        raise ValueError(f"a BPE vocabulary of {vocabulary}; at least {BPE_VOCABULARY_MIN} are needed")
    ends = np.cumsum(corpus.text_bytes[documents], dtype=np.int64)
    sample = documents[: max(1, int(np.searchsorted(ends, BPE_TRAINING_BYTES_MAX, side="right")))]
    total = int(ends[len(sample) - 1])

    def pieces() -> Iterator[str]:
        for text, end in zip(corpus.read(sample), ends, strict=False):
            yield from _cut(text.decode(), _BPE_TRAINING_PIECE_CHARACTERS)
            progress("learning the vocabulary", int(end), total)

    tokenizer = HuggingFaceTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # The library's type stubs know its classes but not their keyword arguments.
    trainer_type: Any = trainers.BpeTrainer
    trainer = trainer_type(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[END_OF_DOCUMENT_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces(), trainer)
    return BpeTokenizer(tokenizer.to_str().encode())


class Split(NamedTuple):
    """Numbers of documents, in the order in which they are packed."""

    train: IntVector
    heldout: IntVector


def split_documents(corpus: Corpus, max_bytes: int | None = None) -> Split:
    """Which documents are trained on and which are held out. A function of the texts and the seed.

    Args:
        max_bytes: Use no more text than this: as many documents of the random order as fit.

    Raises:
        CorpusError: fewer than two different documents.
    """
    order = np.argsort(corpus.keys, kind="stable").astype(np.int64)
    keys = corpus.keys[order]
    first_copy = np.ones(len(order), dtype=bool)
    first_copy[1:] = keys[1:] != keys[:-1]
    order = order[first_copy]
    sizes = corpus.text_bytes[order].astype(np.int64)
    if max_bytes is not None:
        fitting = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
        order, sizes = order[:fitting], sizes[:fitting]
    if len(order) < 2:
        limit = f" within {max_bytes:,} bytes" if max_bytes is not None else ""
        raise CorpusError(
            [
                f"the corpus has only {corpus.num_bytes:,} bytes in {len(order)} different "
                f"documents{limit}; it needs two or more, one of them to hold out: name more text"
            ]
        )
    total = int(sizes.sum())
    wanted = max(HELDOUT_FRACTION * total, min(HELDOUT_BYTES_MIN, HELDOUT_FRACTION_MAX * total))
    wanted = min(wanted, HELDOUT_BYTES_MAX)
    # A document longer than all that is wanted stays in training: so at most twice as much is taken.
    small = sizes <= wanted
    before = np.cumsum(sizes * small) - sizes * small
    heldout = small & (before < wanted)
    if not heldout.any():
        heldout[int(np.argmin(sizes))] = True
    return Split(train=order[~heldout], heldout=order[heldout])


def token_bytes_of(vocabulary: int) -> TokenBytes:
    """Width of a token in a shard."""
    return 2 if vocabulary <= 65_536 else 4


def estimate_tokens(num_bytes: int, num_documents: int, kind: TokenizerKind) -> int:
    """Tokens of some text: exact for plain bytes, a guess for BPE."""
    return num_bytes // (1 if kind == "bytes" else BPE_BYTES_PER_TOKEN) + num_documents


def default_shard_tokens(num_tokens: int, token_bytes: TokenBytes) -> int:
    """Tokens of a shard for a corpus of about `num_tokens`, a power of two.

    65,536, but less where that would give under 64 shards and more where it would give over 4,096.
    """
    size = SHARD_TOKENS_DEFAULT
    while size > SHARD_TOKENS_MIN and num_tokens < SHARDS_WANTED * size:
        size //= 2
    while size < SHARD_BYTES_MAX // token_bytes and num_tokens > SHARDS_DEFAULT_MAX * size:
        size *= 2
    return size


def tokenise(
    corpus: Corpus,
    split: Split,
    tokenizer: Tokenizer,
    *,
    token_bytes: TokenBytes,
    shard_tokens: int,
    put: Put,
    progress: Progress = no_progress,
) -> ShardIndex:
    """Cut a corpus into shards and `put` each; a few MiB are in memory at a time.

    Raises:
        CorpusError: as `Corpus.read`, or more than `limits.SHARDS_MAX` shards.
    """
    if not 0 < shard_tokens <= SHARD_BYTES_MAX // token_bytes:
        raise ValueError(f"shards of {shard_tokens} tokens; at most {SHARD_BYTES_MAX // token_bytes}")
    total = int(corpus.text_bytes[np.concatenate(split)].sum(dtype=np.int64))
    done = 0
    parts: list[tuple[ShardInfo, ...]] = []
    for documents in split:
        packer = _Packer(shard_tokens, token_bytes, put)
        for batch in _batches(corpus.read(documents)):
            for tokens in tokenizer.encode(batch):
                packer.add_document(tokens)
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


def decode_shard(data: bytes, token_bytes: TokenBytes, vocabulary: int) -> TokenVector:
    """Tokens of a shard, shape (num_tokens,); never allocates more than a shard may have.

    Raises:
        MalformedError: not a shard, too many tokens, or a token outside the vocabulary.
    """
    try:
        num_bytes = zstandard.get_frame_parameters(data).content_size
        if num_bytes % token_bytes or not 0 < num_bytes <= limits.SHARD_TOKENS_MAX * token_bytes:
            raise MalformedError("shard of a length that is not allowed")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=num_bytes)
    except zstandard.ZstdError as error:
        raise MalformedError(f"not a shard: {error}") from error
    tokens: TokenVector = np.frombuffer(raw, dtype=f"<u{token_bytes}")
    if int(tokens.max()) >= vocabulary:
        raise MalformedError(f"shard with token {int(tokens.max())} of a vocabulary of {vocabulary}")
    return tokens


class _Packer:
    """Lays documents end to end and cuts the stream into shards."""

    def __init__(self, shard_tokens: int, token_bytes: TokenBytes, put: Put) -> None:
        self._buffer = np.empty(shard_tokens, dtype=f"<u{token_bytes}")
        self._filled = 0
        self._token_bytes = token_bytes
        self._put = put
        self._shards: list[ShardInfo] = []

    def add_document(self, tokens: TokenVector) -> None:
        self._add(tokens)
        self._add(np.array([END_OF_DOCUMENT], dtype=np.uint16))

    def _add(self, tokens: TokenVector) -> None:
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
        data = encode_shard(self._buffer[: self._filled], self._token_bytes)
        digest = self._put(data)
        assert digest == digest_of(data), "the store names blocks by their BLAKE3"
        self._shards.append(ShardInfo(digest, self._filled, len(data)))
        self._filled = 0

    def finish(self) -> tuple[ShardInfo, ...]:
        if self._filled:
            self._cut()
        return tuple(self._shards)


def _batches(texts: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _ENCODE_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _cut(text: str, characters: int) -> list[str]:
    """Pieces of a text of at most so many characters, at ends of lines where there are any."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > characters:
        end = text.rfind("\n", start, start + characters) + 1 or start + characters
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return pieces


def _too_large(shard_tokens: int) -> CorpusError:
    return CorpusError(
        [
            f"the corpus has more than {limits.SHARDS_MAX:,} shards of {shard_tokens:,} tokens; "
            "set max_bytes to use a part of it"
        ]
    )
