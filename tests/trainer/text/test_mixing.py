"""Several sources with weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import zstandard

from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.shard_index import ShardInfo
from gossamer.trainer.text.mixing import Mixture, Share, shares_of
from gossamer.trainer.text.shards import cut_corpus, split_documents
from gossamer.trainer.text.sources.corpus import Corpus, scan_corpus
from gossamer.trainer.text.sources.corpus_errors import CorpusError

LETTERS = "abc"


def corpus_of(
    folder: Path, num_documents: Sequence[int], weights: Sequence[float], seed: int = 1
) -> tuple[Corpus, Mixture]:
    """Sources of one letter each, in documents of 1,000 bytes that begin with a number."""
    files = []
    for letter, number in zip(LETTERS, num_documents, strict=False):
        files.append(folder / f"{letter}.jsonl")
        documents = (f"{n:06}".ljust(1_000, letter) for n in range(number))
        files[-1].write_text("".join(f'{{"text": "{document}"}}\n' for document in documents))
    names = tuple(LETTERS[: len(files)])
    mixture = Mixture(names, tuple(weights), tuple(range(len(files))))
    return scan_corpus(files, seed=seed), mixture


def letters_of(corpus: Corpus, documents: Sequence[int]) -> list[str]:
    texts = corpus.read(np.array(documents, dtype=np.int64))
    return [text.decode()[-1] for text in texts]


def parts_of(letters: Sequence[str]) -> list[float]:
    return [letters.count(letter) / len(letters) for letter in LETTERS]


def test_the_shortest_source_for_its_weight_decides_and_nothing_is_repeated(
    tmp_path: Path,
) -> None:
    corpus, mixture = corpus_of(tmp_path, (4_000, 300, 2_000), (5, 3, 2))
    split = split_documents(corpus, None, mixture)
    used = np.concatenate(split)
    assert len(used) == len(set(used.tolist())) == 1_000
    assert shares_of(corpus, used, mixture) == (
        Share("a", 0.5, 0.5, 500_000),
        Share("b", 0.3, 0.3, 300_000),
        Share("c", 0.2, 0.2, 200_000),
    )


def test_every_stretch_of_the_run_has_the_shares(tmp_path: Path) -> None:
    corpus, mixture = corpus_of(tmp_path, (4_000, 300, 2_000), (5, 3, 2))
    train, heldout = split_documents(corpus, None, mixture)
    letters = letters_of(corpus, train.tolist())
    for start in range(0, len(letters) - 100, 100):
        assert parts_of(letters[start : start + 100]) == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    assert len(heldout) > 20
    assert parts_of(letters_of(corpus, heldout.tolist())) == pytest.approx([0.5, 0.3, 0.2], abs=0.1)


def test_the_shards_have_the_shares(tmp_path: Path) -> None:
    corpus, mixture = corpus_of(tmp_path, (900, 300, 2_000), (5, 3, 2))
    blocks: dict[bytes, bytes] = {}

    def put(data: bytes) -> Digest:
        blocks[digest_of(data)] = data
        return digest_of(data)

    cut = cut_corpus(corpus, "bytes", 256, 64, put=put, mixture=mixture)

    def text_of(shards: Sequence[ShardInfo]) -> str:
        raw = (zstandard.ZstdDecompressor().decompress(blocks[shard.digest]) for shard in shards)
        return str(np.frombuffer(b"".join(raw), "<u2").astype(np.uint8).tobytes(), "ascii")

    quarter = len(cut.index.shards) // 4
    for start in range(0, 4 * quarter, quarter):
        letters = [c for c in text_of(cut.index.shards[start : start + quarter]) if c in LETTERS]
        assert parts_of(letters) == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    assert [share.reached for share in cut.shares] == pytest.approx([0.5, 0.3, 0.2])


def test_a_source_too_short_for_its_share_of_a_limit_gives_all_that_it_has(
    tmp_path: Path,
) -> None:
    corpus, mixture = corpus_of(tmp_path, (800, 100), (1, 1))
    used = np.concatenate(split_documents(corpus, 1_000_000, mixture))
    long, short = shares_of(corpus, used, mixture)
    assert (long.num_bytes, short.num_bytes) == (500_000, 100_000)
    assert short.reached == pytest.approx(1 / 6)
    assert long.is_missed
    assert short.is_missed


def test_the_mixture_depends_on_seed_texts_and_shares_only(tmp_path: Path) -> None:
    def texts(seed: int, weights: Sequence[float]) -> list[bytes]:
        corpus, mixture = corpus_of(tmp_path, (300, 300), weights, seed)
        return list(corpus.read(split_documents(corpus, None, mixture).train))

    assert texts(1, (1, 3)) == texts(1, (0.25, 0.75))
    assert texts(1, (1, 3)) != texts(2, (1, 3))
    assert len(texts(1, (1, 3))) < len(texts(1, (1, 1)))


def test_a_copy_counts_for_the_first_source(tmp_path: Path) -> None:
    for name, numbers in (("a", range(10)), ("b", range(5, 20)), ("c", range(15))):
        lines = (f'{{"text": "{n:0100}"}}\n' for n in numbers)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    files = [tmp_path / f"{name}.jsonl" for name in "abc"]
    corpus = scan_corpus(files[:2], seed=1)
    two = Mixture(("a", "b"), (1, 1), (0, 1))
    shares = shares_of(corpus, np.concatenate(split_documents(corpus, None, two)), two)
    assert [share.num_bytes for share in shares] == [1_000, 1_000]
    with pytest.raises(CorpusError, match="source c has no text that no source before it has"):
        split_documents(
            scan_corpus(files, seed=1), None, Mixture(("a", "b", "c"), (1, 1, 1), (0, 1, 2))
        )


def test_a_share_smaller_than_any_document_is_refused(tmp_path: Path) -> None:
    corpus, mixture = corpus_of(tmp_path, (100, 100), (1_000, 1))
    with pytest.raises(CorpusError, match="source b has no document short enough for its share"):
        split_documents(corpus, None, mixture)
