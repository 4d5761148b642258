"""Tokenizers: text to tokens and back.

Plain `bytes` (a token is a byte, 256 in all), `bpe` (byte-level byte-pair encoding learnt from the
training text), or `files`, the tokenizer of an imported model (`trainer.pretrained.tokenizer`). In
the first two, token 0 ends a document: text has no byte 0 (see `corpus`), and the BPE
vocabulary begins with ``<|endoftext|>``, which text that merely spells it never becomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.limits import KIB, MIB
from gossamer.trainer.text.sources.corpus import Corpus, IntVector, Progress, no_progress
from gossamer.trainer.text.tokenizers.words import EncoderFile, TextEncoder, pieces_of

TokenizerKind = Literal["bytes", "bpe", "files"]
TokenBytes = Literal[2, 4]
TokenVector = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

END_OF_DOCUMENT = 0
END_OF_DOCUMENT_TEXT = "<|endoftext|>"
BYTES_VOCABULARY = 256
# 256 bytes and the end of a document; every token beyond them is learnt.
BPE_VOCABULARY_MIN = 257
# English text has some 4 bytes a BPE token; only the size of shards depends on this guess.
BPE_BYTES_PER_TOKEN = 4

# Merges learnt from more text are the same, and the words counted have to fit in memory.
BPE_TRAINING_BYTES_MAX = 256 * MIB
# The library gathers 256 pieces before it looks at them.
_BPE_TRAINING_PIECE_CHARACTERS = 64 * KIB
# It travels as one block.
TOKENIZER_BYTES_MAX = limits.BLOCK_BYTES_MAX


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def kind(self) -> TokenizerKind: ...

    @property
    def vocabulary(self) -> int:
        """Every token is below this."""

    @property
    def end_token(self) -> int:
        """The token that ends a document."""

    @property
    def file(self) -> bytes:
        """The file that another peer needs to build the same tokenizer (nothing for `bytes`)."""

    @property
    def elsewhere(self) -> EncoderFile | None:
        """What another process needs to encode texts as this does; None: this process uses all
        cores, or needs none."""

    def encode(self, texts: Sequence[bytes]) -> list[TokenVector]:
        """Tokens of UTF-8 texts, without the end of the document. Shapes: (num_tokens,) each."""

    def decode(self, tokens: TokenVector) -> str:
        """Text of tokens; ends of documents are left out, cut characters become U+FFFD."""


class ByteTokenizer:
    """A token is a byte of UTF-8. See `Tokenizer`."""

    kind: TokenizerKind = "bytes"
    end_token = END_OF_DOCUMENT
    vocabulary = BYTES_VOCABULARY
    file = b""
    elsewhere = None

    def encode(self, texts: Sequence[bytes]) -> list[TokenVector]:
        return [np.frombuffer(text, dtype=np.uint8).astype(np.uint16) for text in texts]

    def decode(self, tokens: TokenVector) -> str:
        kept = tokens[tokens != END_OF_DOCUMENT].astype(np.uint8)
        return str(kept.tobytes(), "utf-8", "replace")


class FileTokenizer:
    """What tokenizers with a ``tokenizer.json`` of the `tokenizers` library have in common; see
    `Tokenizer`."""

    def __init__(self, tokenizer: HuggingFaceTokenizer, file: EncoderFile) -> None:
        """`tokenizer`: what `file` opened."""
        self._tokenizer = tokenizer
        self._encoder = TextEncoder(tokenizer, file)
        self.elsewhere = file if self._encoder.words is not None else None

    def encode(self, texts: Sequence[bytes]) -> list[TokenVector]:
        return [*self._encoder.encode(texts)]

    def decode(self, tokens: TokenVector) -> str:
        text: str = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
        return text


class BpeTokenizer(FileTokenizer):
    """Byte-level BPE; `file` is a ``tokenizer.json`` of the `tokenizers` library."""

    kind: TokenizerKind = "bpe"
    end_token = END_OF_DOCUMENT

    def __init__(self, file: bytes) -> None:
        """
        Raises:
            MalformedError: not such a file, or one whose token 0 does not end a document.
        """
        if len(file) > TOKENIZER_BYTES_MAX:
            raise MalformedError(
                f"tokenizer of {len(file)} bytes; {TOKENIZER_BYTES_MAX} is the limit"
            )
        # Text that spells a special token is text.
        encoder_file = EncoderFile(file, specials_are_text=True)
        try:
            tokenizer = encoder_file.open()
        except Exception as error:  # the library raises nothing more precise
            raise MalformedError(f"not a tokenizer file: {error}") from error
        if tokenizer.token_to_id(END_OF_DOCUMENT_TEXT) != END_OF_DOCUMENT:
            raise MalformedError(f"tokenizer whose token 0 is not {END_OF_DOCUMENT_TEXT}")
        self.file = file
        self.vocabulary = int(tokenizer.get_vocab_size(with_added_tokens=True))
        super().__init__(tokenizer, encoder_file)


def load_tokenizer(kind: TokenizerKind, file: bytes) -> Tokenizer:
    """The tokenizer of a run that learnt its own, or that has plain bytes.

    Raises:
        MalformedError: `file` is not what `kind` needs.
    """
    if kind == "files":
        raise MalformedError("the tokenizer of an imported model is one of its files")
    if kind == "bpe":
        return BpeTokenizer(file)
    if file:
        raise MalformedError("plain bytes have no tokenizer file")
    return ByteTokenizer()


def learn_bpe(
    corpus: Corpus, documents: IntVector, vocabulary: int, progress: Progress = no_progress
) -> BpeTokenizer:
    """Byte-level BPE learnt from some documents, the first `BPE_TRAINING_BYTES_MAX` of them. Errors
    as `Corpus.read`."""
    ends = np.cumsum(corpus.text_bytes[documents], dtype=np.int64)
    sample = documents[: max(1, int(np.searchsorted(ends, BPE_TRAINING_BYTES_MAX, side="right")))]
    return learn_bpe_from(corpus.read(sample), int(ends[len(sample) - 1]), vocabulary, progress)


def learn_bpe_from(
    texts: Iterable[bytes], num_bytes: int, vocabulary: int, progress: Progress = no_progress
) -> BpeTokenizer:
    """Byte-level BPE learnt from all of some texts in UTF-8, of about `num_bytes`.

    A small corpus may have too few pairs to reach `vocabulary`; then the result has fewer tokens.
    """
    if vocabulary < BPE_VOCABULARY_MIN:
        raise ValueError(
            f"a BPE vocabulary of {vocabulary}; at least {BPE_VOCABULARY_MIN} are needed"
        )
    done = 0

    def pieces() -> Iterator[str]:
        nonlocal done
        for text in texts:
            yield from pieces_of(text.decode(), _BPE_TRAINING_PIECE_CHARACTERS)
            done += len(text)
            progress("learning the vocabulary", min(done, num_bytes), num_bytes)

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


def token_bytes_of(vocabulary: int) -> TokenBytes:
    """Width of a token in a shard."""
    return 2 if vocabulary <= 65_536 else 4


def estimate_tokens(num_bytes: int, num_documents: int, kind: TokenizerKind) -> int:
    """Tokens of some text: exact for plain bytes, a guess for others."""
    return num_bytes // (1 if kind == "bytes" else BPE_BYTES_PER_TOKEN) + num_documents
