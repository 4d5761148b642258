"""A large corpus, part by part: a run begins with the first part, and the others come later.

- The files are cut into sections: runs of bytes of a plain file, which begin and end at lines, or a
  packed file as a whole. The sections are put in random order by the run's seed, so that each part,
  and the text that is held out of the first one, is a sample of the whole corpus.
- The first part has so many bytes as the founder wants to wait for. Each further part is as large
  as all before it together, up to `PART_BYTES_MAX`: the second one comes soon, and later ones cost
  few statements.
- Text is held out of the first part only. A later part leaves out copies of what is held out. Of
  other copies one counts within a part, and others may be in other parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from gossamer.protocol.limits import DATA_PARTS_MAX, KIB, MIB
from gossamer.protocol.shard_index import ShardInfo
from gossamer.trainer.text.corpus import Corpus, KeyVector, Progress, Section, no_progress
from gossamer.trainer.text.corpus_errors import CorpusError
from gossamer.trainer.text.shards import Put, Split, default_shard_tokens, split_documents, tokenise
from gossamer.trainer.text.tokens import TokenBytes, Tokenizer
from gossamer.trainer.text.unpacking import form_of

PART_BYTES_MAX = 512 * MIB
"""Bytes of a later part: some minutes of cutting, which a crash repeats. A corpus that would have
more than half of `DATA_PARTS_MAX` such parts has larger ones."""

SECTION_BYTES_MAX = 8 * MIB
"""Bytes of one section, so that the first part comes from 32 places of the corpus or more."""

SECTION_BYTES_MIN = 16 * KIB
"""Shorter sections would cut many a document in two."""

_SECTIONS_A_PART = 32
"""Sections of a small first part."""

_SECTIONS_MAX = 128 * 1024
"""Sections of a corpus in all: their list is read again for each part. Some 4 MB."""


class CorpusPlan(msgspec.Struct, frozen=True):
    """The files of a corpus, and how they are cut into parts. A function of files and seed."""

    files: tuple[str, ...]
    sections: tuple[tuple[int, int, int], ...]
    """(number of the file, first byte, end) of each section, in the order of the parts."""
    ends: tuple[int, ...]
    """Number of the section after the last one of each part."""

    @property
    def num_parts(self) -> int:
        """Parts, with the first one."""
        return len(self.ends)

    def part(self, number: int) -> list[Section]:
        """The sections of a part; 0 is the first one."""
        begin = self.ends[number - 1] if number else 0
        return [
            Section(Path(self.files[file]), start, stop)
            for file, start, stop in self.sections[begin : self.ends[number]]
        ]

    def num_bytes(self, num_parts: int | None = None) -> int:
        """Returns the bytes of the first parts, as files have them; None: of all."""
        end = self.ends[-1] if num_parts is None else self.ends[num_parts - 1]
        return sum(stop - start for _, start, stop in self.sections[:end])


def plan_parts(
    files: Sequence[Path], seed: int, start_bytes: int, max_bytes: int | None = None
) -> CorpusPlan | None:
    """Plans the parts of a corpus; None if it is one part, because there is not much more text.

    Args:
        start_bytes: of the first part.
        max_bytes: of files to use; None: all.

    Raises:
        CorpusError: a file cannot be read.
    """
    try:
        sizes = [path.stat().st_size for path in files]
    except OSError:
        return None  # the scan names every such file
    total = sum(sizes) if max_bytes is None else min(max_bytes, sum(sizes))
    if total < 2 * start_bytes:
        return None
    section_bytes = max(
        min(max(start_bytes // _SECTIONS_A_PART, SECTION_BYTES_MIN), SECTION_BYTES_MAX),
        sum(sizes) // _SECTIONS_MAX,
    )
    sections: list[tuple[int, int, int]] = []
    for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
        step = size if form_of(path).is_packed else section_bytes
        sections += [(number, at, min(at + step, size)) for at in range(0, size, max(1, step))]
    order = np.random.default_rng(seed).permutation(len(sections))
    ends: list[int] = []
    chosen: list[tuple[int, int, int]] = []
    done = before = 0
    part_max = max(PART_BYTES_MAX, 2 * total // DATA_PARTS_MAX)
    for place in order:
        _, start, stop = section = sections[int(place)]
        chosen.append(section)
        done += stop - start
        wanted = min(before, part_max) if ends else start_bytes
        if done - before >= wanted or done >= total:
            ends.append(len(chosen))
            before = done
        if done >= total:
            break
    if len(ends) < 2:
        return None
    return CorpusPlan(tuple(str(path) for path in files), tuple(chosen), tuple(ends))


@dataclass(frozen=True)
class PartWish:
    """What a later part has in common with the first one."""

    token_bytes: TokenBytes
    context: int
    expected_tokens: int
    """Tokens of the whole corpus, as estimated from the first part."""
    heldout_keys: KeyVector
    """Keys of the documents that are held out, (num_heldout,)."""


def cut_part(
    corpus: Corpus,
    wish: PartWish,
    tokenizer: Tokenizer,
    *,
    put: Put,
    progress: Progress = no_progress,
) -> tuple[ShardInfo, ...]:
    """Cuts a later part into shards, which `put` keeps.

    Raises:
        CorpusError: as `tokenise`, or the part has no text but what is held out.
    """
    order = split_documents(corpus, use="train").train
    train = order[~np.isin(corpus.keys[order], wish.heldout_keys)]
    if not len(train):
        raise CorpusError(["a part of the corpus has no text but copies of what is held out"])
    index = tokenise(
        corpus,
        Split(train=train, heldout=train[:0]),
        tokenizer,
        token_bytes=wish.token_bytes,
        shard_tokens=default_shard_tokens(wish.expected_tokens, wish.token_bytes, wish.context),
        context=wish.context,
        put=put,
        progress=progress,
    )
    return index.shards
