"""Are the tokens of published tokenizers those of the `tokenizers` library, and what do they cost?

    python -m tests.benchmarks.published_tokenizers --texts FOLDER tokenizer.json ...

Each file is given to `TextEncoder`, as `gossamer start --init-from` does, and to the library. The
texts are all UTF-8 files below the folders, and texts of random characters from all of Unicode. A
text counts as different if one token differs, once with special tokens as text and once not.

Columns:
    words       whether the text is cut here (`word_cuts`), or by the library
    CPU s       processor seconds for all texts: here, and the library's
    different   texts with other tokens than the library's
    bytes       texts whose length is not the sum of their tokens' lengths (`token_lengths`); a
                tokenizer with a normal form (NFC) changes texts, and others have no such lengths
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from gossamer.trainer.text.tokenizers.token_lengths import lengths_of_file
from gossamer.trainer.text.tokenizers.words import (
    EncoderFile,
    TextEncoder,
    Tokens,
    encode_pieces,
)

RANDOM_TEXTS = 400
RANDOM_CHARACTERS_MAX = 400

# Case, marks and joiners that change what stands before them, and what ends a word.
_TROUBLESOME = "\n\t '\u017f\u0130\u0301\u200d"


def files_of(folder: Path) -> Iterator[bytes]:
    """All UTF-8 files below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            text = path.read_bytes()
            try:
                text.decode()
            except UnicodeDecodeError:
                continue
            yield text


def random_texts(seed: int) -> Iterator[bytes]:
    """Texts of characters from all of Unicode; frequent scripts are frequent."""
    randomness = random.Random(seed)
    scripts = (range(1, 0x80), range(0x80, 0x3000), range(0x3000, 0xD800), range(0xE000, 0x110000))
    for _ in range(RANDOM_TEXTS):
        characters = [
            chr(randomness.choice(randomness.choice(scripts)))
            if randomness.random() < 0.8
            else randomness.choice(_TROUBLESOME)
            for _ in range(randomness.randrange(1, RANDOM_CHARACTERS_MAX))
        ]
        yield "".join(characters).encode()


def timed(encode: Callable[[], list[Tokens]]) -> tuple[list[Tokens], float]:
    """The tokens of all texts, and processor seconds."""
    before = time.process_time()
    return encode(), time.process_time() - before


def row_of(path: Path, texts: list[bytes]) -> list[str]:
    """One row of the table."""
    content = path.read_bytes()
    different, num_tokens, seconds, library_seconds = 0, 0, 0.0, 0.0
    for specials_are_text in (False, True):
        file = EncoderFile(content, specials_are_text)
        tokenizer = file.open()
        encoder = TextEncoder(tokenizer, file)
        ours, seconds = timed(partial(encoder.encode, texts))
        theirs, library_seconds = timed(partial(encode_pieces, tokenizer, texts))
        different += sum(not np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
        num_tokens = sum(map(len, theirs))
    num_rows = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    lengths = lengths_of_file(content, num_rows)
    if lengths is None:
        wrong = "none"
    else:
        pairs = zip(theirs, texts, strict=True)
        wrong = str(sum(int(lengths[tokens].sum()) != len(text) for tokens, text in pairs))
    return [
        path.parent.name,
        "here" if encoder.words is not None else "library",
        f"{num_tokens:,}",
        f"{seconds:.1f}, {library_seconds:.1f}",
        str(different),
        wrong,
    ]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizers", nargs="+", type=Path)
    parser.add_argument("--texts", required=True, type=Path, action="append")
    parser.add_argument("--seed", default=1, type=int)
    options = parser.parse_args()
    texts = [text for folder in options.texts for text in files_of(folder)]
    texts += random_texts(options.seed)
    console = Console()
    console.print(f"{len(texts):,} texts, {sum(map(len, texts)):,} bytes")
    table = Table("tokenizer", "words", "tokens", "CPU s", "different", "bytes")
    for path in options.tokenizers:
        table.add_row(*row_of(path, texts))
    console.print(table)


if __name__ == "__main__":
    main()
