"""Several sources of text, each with its share of the run.

- A share is of the bytes of text, and weights are divided by their sum.
- Nothing is repeated. Without a limit of the text, the source that is shortest for its weight is
  used up, and of the others documents are left out. With a limit, a source that is too short for
  its share of it gives all that it has, and the others no more than their own: then the reached
  shares differ, as `shares_of` says.
- Documents of a source come in random order, by their keys, and the sources evenly: every stretch
  of the run has the same shares. A document that two sources have counts for the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.trainer.text.sources.corpus import Corpus, IntVector
from gossamer.trainer.text.sources.corpus_errors import CorpusError, first_of

# Documents are not cut to fit a share, so that it is missed by a part of one.
SHARE_TOLERANCE = 0.005


@dataclass(frozen=True)
class Mixture:
    """The sources of a corpus. `names` and `weights` have one element a source."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    """Above zero; only what they are to each other counts."""
    file_sources: tuple[int, ...]
    """The number of the source of each file of the corpus."""

    @property
    def wanted(self) -> tuple[float, ...]:
        """The share of each source; together 1."""
        return tuple(weight / sum(self.weights) for weight in self.weights)


class Share(NamedTuple):
    """The share of a source in the text that is used."""

    name: str
    wanted: float
    reached: float
    num_bytes: int

    @property
    def is_missed(self) -> bool:
        return abs(self.reached - self.wanted) > SHARE_TOLERANCE


def mix(corpus: Corpus, documents: IntVector, mixture: Mixture, max_bytes: int | None) -> IntVector:
    """Returns those of the different documents that are used, in the order of the run.

    Args:
        documents: numbers of documents in random order, none of which is a copy.
        max_bytes: limit of the text; None: as much as there is in the wanted shares.

    Raises:
        CorpusError: a source has nothing that can be used.
    """
    sources = _sources_of(corpus, documents, mixture)
    parts = [documents[sources == number] for number in range(len(mixture.names))]
    sizes = [corpus.text_bytes[part].astype(np.int64) for part in parts]
    available = [int(of_source.sum()) for of_source in sizes]
    targets = targets_of(available, mixture.wanted, max_bytes)
    problems: list[str] = []
    places: list[npt.NDArray[np.float64]] = []
    for number, (name, target) in enumerate(zip(mixture.names, targets, strict=True)):
        ends = np.cumsum(sizes[number])
        num_fitting = int(np.searchsorted(ends, target, side="right"))
        parts[number] = parts[number][:num_fitting]
        ends, lengths = ends[:num_fitting], sizes[number][:num_fitting]
        if num_fitting:
            places.append((ends - lengths / 2) / ends[-1])
        else:
            problems.append(_nothing_of(name, available[number], target))
    if problems:
        raise CorpusError(*first_of(problems))
    chosen = np.concatenate(parts)
    order = np.lexsort((corpus.keys[chosen], np.concatenate(places)))
    return chosen[order]


def shares_of(corpus: Corpus, documents: IntVector, mixture: Mixture) -> tuple[Share, ...]:
    """Returns what each source has of the documents that are used."""
    sources = _sources_of(corpus, documents, mixture)
    sizes = corpus.text_bytes[documents].astype(np.int64)
    num_bytes = [int(sizes[sources == number].sum()) for number in range(len(mixture.names))]
    total = max(1, sum(num_bytes))
    return tuple(
        Share(name, wanted, num / total, num)
        for name, wanted, num in zip(mixture.names, mixture.wanted, num_bytes, strict=True)
    )


def _sources_of(corpus: Corpus, documents: IntVector, mixture: Mixture) -> IntVector:
    of_files = np.array(mixture.file_sources, dtype=np.int64)
    sources: IntVector = of_files[corpus.file_numbers[documents]]
    return sources


def targets_of(
    available: Sequence[int], wanted: Sequence[float], max_bytes: int | None
) -> list[int]:
    """The bytes that each source may give."""
    if max_bytes is not None:
        return [int(share * max_bytes) for share in wanted]
    total = min(num / share for num, share in zip(available, wanted, strict=True))
    # To the nearest: the source that decides the total is used to its end.
    return [round(share * total) for share in wanted]


def _nothing_of(name: str, available: int, target: int) -> str:
    if not available:
        return (
            f"corpus source {name} has no text that no source before it has; leave it out, or name "
            "other files"
        )
    return (
        f"corpus source {name} has no document short enough for its share, {target:,} bytes; raise "
        "its weight or corpus.max_bytes, or name more text for the other sources"
    )
