"""The shards of a fixed corpus stay the same: a run that is founded again has the same data.

The digests are of the tokens, so that another version of zstd does not change them. They were
written down before text could be compressed, come from several sources, or use all cores.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard
from blake3 import blake3

from gossamer.protocol.ids import Digest, digest_of
from gossamer.trainer.text.shards import cut_corpus
from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.sources.corpus_files import find_files
from gossamer.trainer.text.tokenizers.tokens import TokenizerKind


def write_corpus(folder: Path) -> None:
    """Some 6 MB: short and long text files, JSON lines, a line of 2.5 MB, copies, accents."""
    random = np.random.default_rng(18)
    letters = np.array(list("etaoinshrdluéü"))
    words = ["".join(random.choice(letters, size=random.integers(1, 9))) for _ in range(3000)]

    def text(num_words: int) -> str:
        drawn = [words[int(n)] for n in random.zipf(1.3, num_words) % len(words)]
        lines = [" ".join(drawn[start : start + 11]) for start in range(0, len(drawn), 11)]
        return "\n".join(lines) + "\n"

    (folder / "deep").mkdir(parents=True)
    for number in range(40):
        (folder / "deep" / f"{number:02}.md").write_text(text(1_000))
    (folder / "long.txt").write_text(text(400_000))
    (folder / "copy.md").write_bytes((folder / "deep" / "07.md").read_bytes())
    lines = [json.dumps({"text": text(300), "id": n}) for n in range(300)]
    lines.insert(150, json.dumps({"text": text(500_000)}))
    (folder / "lines.jsonl").write_text("\n\n".join(lines))


@pytest.fixture(scope="module")
def fixed_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the corpus, which is only read."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


def shards_digest(folder: Path, kind: TokenizerKind, vocabulary: int) -> str:
    """BLAKE3 of the tokenizer and of each shard's length and tokens."""
    blocks: dict[bytes, bytes] = {}

    def put(data: bytes) -> Digest:
        digest = digest_of(data)
        blocks[digest] = data
        return digest

    corpus = scan_corpus(find_files([folder]), seed=7)
    cut = cut_corpus(corpus, kind, vocabulary, 64, put=put)
    hasher = blake3(cut.tokenizer.file)
    for shard in (*cut.index.shards, *cut.index.heldout):
        hasher.update(shard.num_tokens.to_bytes(8, "little"))
        hasher.update(zstandard.ZstdDecompressor().decompress(blocks[shard.digest]))
    return hasher.hexdigest(16)


@pytest.mark.parametrize("num_cores", [1, 2, 64])
@pytest.mark.parametrize(
    ("kind", "vocabulary", "digest"),
    [
        ("bytes", 256, "c1094710d409fbfb9eb60c0c1a6d4c6d"),
        ("bpe", 700, "33730591f6e5e59ad6b3036fe0dc2103"),
    ],
)
def test_shards_of_a_fixed_corpus_do_not_change(
    fixed_corpus: Path,
    kind: TokenizerKind,
    vocabulary: int,
    digest: str,
    num_cores: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: num_cores)
    assert shards_digest(fixed_corpus, kind, vocabulary) == digest
