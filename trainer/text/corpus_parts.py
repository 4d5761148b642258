"""A large corpus, part by part: a run begins with the first part, and the others come later.

- The files are cut into sections: runs of bytes, which begin and end at lines, or groups of rows of
  a table. The sections are put in random order by the run's seed, so that each part, and the text
  that is held out of the first one, is a sample of the whole corpus.
- A compressed file is read forward: its sections keep their order, and each part reads it from its
  beginning again. So its sections grow with the text before them, by a quarter: in all, it is
  unpacked about four times.
- Sources with weights (`mixing`) each give sections as long as their shares allow. The place of a
  section is the part of its source's chosen text that lies before its middle, so that each part
  has the shares.
- The first part has so many bytes as the founder wants to wait for. Each further part is as large
  as all before it together, up to `PART_BYTES_MAX`: the second one comes soon, and later ones cost
  few statements.
- Text is held out of the first part only. A later part leaves out copies of what is held out. Of
  other copies one counts within a part, and others may be in other parts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from gossamer.protocol.limits import DATA_PARTS_MAX, KIB, MIB
from gossamer.protocol.shard_index import ShardInfo
from gossamer.trainer.text.mixing import Mixture, targets_of
from gossamer.trainer.text.shards import Put, Split, default_shard_tokens, split_documents, tokenise
from gossamer.trainer.text.sources.corpus import (
    DEFAULT_TEXT_FIELD,
    Corpus,
    KeyVector,
    Progress,
    Section,
    no_progress,
)
from gossamer.trainer.text.sources.corpus_errors import NoTextError
from gossamer.trainer.text.sources.estimates import measured, text_share
from gossamer.trainer.text.sources.unpacking import form_of
from gossamer.trainer.text.tokenizers.tokens import TokenBytes, Tokenizer

_T = TypeVar("_T")

PART_BYTES_MAX = 512 * MIB
"""Bytes of a later part: some minutes of cutting, which a crash repeats. A corpus that would have
more than half of `DATA_PARTS_MAX` such parts has larger ones."""

SECTION_BYTES_MAX = 8 * MIB
"""Bytes of one section, so that the first part comes from 32 places of the corpus or more."""

SECTION_BYTES_MIN = 16 * KIB
"""Shorter sections would cut many a document in two."""

_SECTIONS_A_PART = 32
"""Sections of a small first part, or of each source in it."""

_SECTIONS_MAX = 128 * 1024
"""Sections of a corpus in all: their list is read again for each part. Some 4 MB."""

_GROWTH = 4
"""A section of a compressed file has at least a `_GROWTH`th of the text before it."""

_GROWTH_MIXED = 16
"""The same where sources have weights: a long section of one source disturbs the shares of a part.
The file is then unpacked sixteen times in all: gzip takes 0.003 seconds of a core for a megabyte
each time, and cutting some 0.12."""


class CorpusPlan(msgspec.Struct, frozen=True):
    """The files of a corpus, and how they are cut into parts. A function of files and seed."""

    files: tuple[str, ...]
    sections: tuple[tuple[int, int, int], ...]
    """(number of the file, first byte, end) of each section, in the order of the parts. Bytes are
    those of the text of a packed file, as it was estimated."""
    ends: tuple[int, ...]
    """Number of the section after the last one of each part."""
    sizes: tuple[int, ...]
    """Bytes of each file, of packed ones as estimated."""
    groups: tuple[int, ...]
    """Groups of rows of each file that is a table; 0 of others."""
    sources: tuple[int, ...] = ()
    """The number of the source of each file, if they have weights."""
    names: tuple[str, ...] = ()
    """Of the sources."""
    targets: tuple[int, ...] = ()
    """Bytes of text that each source gives in all."""

    @property
    def num_parts(self) -> int:
        """With the first one."""
        return len(self.ends)

    def part(self, number: int) -> list[Section]:
        """The sections of a part; 0 is the first one. Those of a compressed file are one."""
        return [section for _, section in self._part(number)]

    def _part(self, number: int) -> list[tuple[int, Section]]:
        begin = self.ends[number - 1] if number else 0
        there: list[tuple[int, int, int]] = []
        places: dict[int, int] = {}
        for file, start, stop in self.sections[begin : self.ends[number]]:
            if form_of(Path(self.files[file])).packing:
                if file in places:
                    there[places[file]] = (file, there[places[file]][1], stop)
                    continue
                places[file] = len(there)
            there.append((file, start, stop))
        return [(file, self._section(file, start, stop)) for file, start, stop in there]

    def _section(self, file: int, start: int, stop: int) -> Section:
        path, size, groups = Path(self.files[file]), self.sizes[file], self.groups[file]
        if not form_of(path).is_packed:
            return Section(path, start, stop)
        if not groups:
            return Section(path, start, sys.maxsize if stop == size else stop)
        if (start, stop) == (0, size):
            return Section(path, 0, sys.maxsize)
        return Section(path, start, stop, (-(-start * groups // size), -(-stop * groups // size)))

    def mixture(self) -> Mixture | None:
        """Returns the sources of the sections of the first part, with what each gives in all; None
        if they have no weights."""
        if not self.targets:
            return None
        of_sections = tuple(self.sources[file] for file, _ in self._part(0))
        return Mixture(self.names, tuple(map(float, self.targets)), of_sections)

    def num_bytes(self, num_parts: int | None = None) -> int:
        """Returns the bytes of the first parts, of packed files as estimated; None: of all."""
        end = self.ends[-1] if num_parts is None else self.ends[num_parts - 1]
        return sum(stop - start for _, start, stop in self.sections[:end])

    def without(self, number: int) -> CorpusPlan:
        """Returns the plan without a later part that turned out to have no text."""
        begin, end = self.ends[number - 1], self.ends[number]
        return msgspec.structs.replace(
            self,
            sections=self.sections[:begin] + self.sections[end:],
            ends=self.ends[:number] + tuple(each - end + begin for each in self.ends[number + 1 :]),
        )


def plan_parts(
    files: Sequence[Path],
    seed: int,
    start_bytes: int,
    max_bytes: int | None = None,
    *,
    text_field: str = DEFAULT_TEXT_FIELD,
    mixture: Mixture | None = None,
) -> CorpusPlan | None:
    """Plans the parts of a corpus; None if it is one part, because there is not much more text.

    Args:
        start_bytes: of the first part.
        max_bytes: of files to use, or with a mixture of text; None: all.
        mixture: the sources of the files, if the shares of several are given.

    Raises:
        CorpusError: a source has nothing to use.
    """
    try:
        found = [measured(path, text_field) for path in files]
    except OSError:
        return None  # the scan names every such file
    sizes, groups = tuple(size for size, _ in found), tuple(number for _, number in found)
    sources = (0,) * len(files) if mixture is None else mixture.file_sources
    wanted = (1.0,) if mixture is None else mixture.wanted
    densities = [1.0]
    if mixture is not None:
        of_sources = [_of_source(n, files, sources) for n in range(len(wanted))]
        densities = [text_share(there, text_field) for there in of_sources]
    targets = _targets(densities, sizes, sources, wanted, max_bytes)
    if sum(targets) < 2 * start_bytes or not all(targets):
        return None
    growth = _GROWTH if mixture is None else _GROWTH_MIXED
    random = np.random.default_rng(seed)
    placed: list[_Placed] = []
    for source, (share, target) in enumerate(zip(wanted, targets, strict=True)):
        section_bytes = _section_bytes(round(share * start_bytes), sum(sizes))
        sections = [
            (file, start, stop)
            for file, (path, size, number) in enumerate(zip(files, sizes, groups, strict=True))
            if sources[file] == source
            for start, stop in _sections(path, size, number, section_bytes, growth)
        ]
        order = _in_order(random.permutation(len(sections)), sections, files)
        placed += _placed(
            (sections[each] for each in order), source, densities[source], target, groups
        )
    if mixture is not None:
        placed.sort()
    ends = _ends([each.text for each in placed], start_bytes, sum(targets))
    if len(ends) < 2:
        return None
    chosen = tuple(each.section for each in placed)
    plan = CorpusPlan(tuple(map(str, files)), chosen, ends, sizes, groups)
    if mixture is None:
        return plan
    return msgspec.structs.replace(
        plan, sources=sources, names=mixture.names, targets=tuple(targets)
    )


def _targets(
    densities: Sequence[float],
    sizes: Sequence[int],
    sources: Sequence[int],
    wanted: Sequence[float],
    max_bytes: int | None,
) -> list[int]:
    """Returns the bytes of text that each source gives. `densities`: text in a byte of files."""
    available = [
        round(density * sum(_of_source(number, sizes, sources)))
        for number, density in enumerate(densities)
    ]
    targets = targets_of(available, wanted, max_bytes)
    return [min(each) for each in zip(targets, available, strict=True)]


class _Placed(NamedTuple):
    """A section with its place in the run, 0 to 1."""

    place: float
    source: int
    section: tuple[int, int, int]
    text: float
    """Bytes of text, as estimated."""


def _placed(
    sections: Iterable[tuple[int, int, int]],
    source: int,
    density: float,
    target: int,
    groups: Sequence[int],
) -> Iterator[_Placed]:
    """Yields the sections of a source, up to the text that it gives."""
    given = 0.0
    for file, start, stop in sections:
        if not groups[file]:  # lines end anywhere, and groups of rows are whole
            stop = min(stop, start + max(1, math.ceil((target - given) / density)))
        section = file, start, stop
        text = density * (stop - start)
        yield _Placed((given + text / 2) / target, source, section, text)
        given += text
        if given >= target:
            return


def _of_source(source: int, each: Sequence[_T], sources: Sequence[int]) -> list[_T]:
    """Returns what belongs to the files of one source."""
    return [one for one, of in zip(each, sources, strict=True) if of == source]


def _ends(texts: Sequence[float], start_bytes: int, total: int) -> tuple[int, ...]:
    """Returns the number of the section after the last one of each part. `texts`: bytes of each."""
    ends: list[int] = []
    done = before = 0.0
    part_max = max(PART_BYTES_MAX, 2 * total // DATA_PARTS_MAX)
    for number, text in enumerate(texts, 1):
        done += text
        wanted = min(before, part_max) if ends else start_bytes
        if done - before >= wanted or number == len(texts):
            ends.append(number)
            before = done
    return tuple(ends)


def _section_bytes(first_bytes: int, corpus_bytes: int) -> int:
    """Returns the length of a source's sections, of which so many bytes are in the first part."""
    several = max(first_bytes // _SECTIONS_A_PART, SECTION_BYTES_MIN)
    return max(min(several, SECTION_BYTES_MAX), corpus_bytes // _SECTIONS_MAX)


def _sections(
    path: Path, size: int, groups: int, section_bytes: int, growth: int
) -> Iterator[tuple[int, int]]:
    """Yields (first byte, end) of the sections of a file."""
    if groups:
        each = max(1, -(-section_bytes * groups // size))
        bounds = [size * number // groups for number in range(0, groups, each)]
        yield from pairwise(sorted({*bounds, size}))
        return
    start = 0
    while start < size:
        step = section_bytes
        if form_of(path).packing:
            step = max(step, start // growth)
            if size - start < 2 * step:
                step = size - start
        yield start, min(start + step, size)
        start += step


def _in_order(
    order: npt.NDArray[np.int64], sections: Sequence[tuple[int, int, int]], files: Sequence[Path]
) -> list[int]:
    """Returns a random order in which the sections of each compressed file come forward."""
    places = [int(place) for place in order]
    of_files: dict[int, list[int]] = {}
    for place in sorted(places):
        of_files.setdefault(sections[place][0], []).append(place)
    nexts = {file: iter(there) for file, there in of_files.items() if form_of(files[file]).packing}
    return [
        next(nexts[file]) if (file := sections[place][0]) in nexts else place for place in places
    ]


@dataclass(frozen=True)
class PartWish:
    """The settings that a later part has in common with the first one."""

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
        CorpusError: as `tokenise`.
        NoTextError: the part has no text but what is held out.
    """
    order = split_documents(corpus, use="train").train
    train = order[~np.isin(corpus.keys[order], wish.heldout_keys)]
    if not len(train):
        raise NoTextError("a part of the corpus has no text but copies of what is held out")
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
