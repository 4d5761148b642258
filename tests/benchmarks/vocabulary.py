"""How well does a vocabulary fit the later parts of a corpus: learnt from the first part, or from a
sample of all?

    python -m tests.benchmarks.vocabulary
    python -m tests.benchmarks.vocabulary --megabytes 24 --start-after 8 --vocabulary 16384

The corpus has kinds of text that differ: the sources of Python's standard library, then C headers,
manual pages and documentation, as far as this machine has them, each cut to --megabytes. It lies
there as the files that they are, and as one compressed file in that order. Each vocabulary is
learnt from as many bytes. Printed are for both the seconds of the processor that the learning took,
and the bytes of text in a token for the first part, for later ones, and for each kind.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gossamer.protocol.limits import MIB
from gossamer.trainer.text.corpus_parts import CorpusPlan, plan_parts
from gossamer.trainer.text.sampling import sample_texts
from gossamer.trainer.text.shards import split_documents
from gossamer.trainer.text.sources.corpus import Corpus, scan_corpus
from gossamer.trainer.text.sources.corpus_files import default_files
from gossamer.trainer.text.tokenizers.tokens import BpeTokenizer, learn_bpe, learn_bpe_from

SEED = 1
KINDS = {
    "headers": ("/usr/include", ".h"),
    "manuals": ("/usr/share/man", ".gz"),
    "documents": ("/usr/share/doc", ""),
}
_BATCH_BYTES = MIB


def texts_of(kind: str) -> Iterator[bytes]:
    """Yields the texts of a kind in the order of their names, each once."""
    if kind == "python":
        paths: Iterable[Path] = default_files()
    else:
        folder, suffix = KINDS[kind]
        paths = (path for path in sorted(Path(folder).rglob(f"*{suffix}")) if path.is_file())
    seen: set[bytes] = set()
    for path in paths:
        try:
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            data.decode()
        except (OSError, UnicodeDecodeError, EOFError):
            continue
        if data and b"\0" not in data and data not in seen:
            seen.add(data)
            yield data


def write_corpus(folder: Path, max_bytes: int) -> dict[str, int]:
    """Writes the files of all kinds. Returns the bytes of each."""
    sizes: dict[str, int] = {}
    for number, kind in enumerate(("python", *KINDS)):
        place, sizes[kind] = folder / f"{number}-{kind}", 0
        place.mkdir(parents=True)
        for of_kind, data in enumerate(texts_of(kind)):
            (place / f"{of_kind:05}.txt").write_bytes(data)
            sizes[kind] += len(data)
            if sizes[kind] >= max_bytes:
                break
    return sizes


def bytes_per_token(tokenizer: BpeTokenizer, texts: Iterable[bytes]) -> float:
    num_bytes = num_tokens = 0
    batch: list[bytes] = []
    for text in texts:
        batch.append(text)
        num_bytes += len(text)
        if sum(map(len, batch)) >= _BATCH_BYTES:
            num_tokens += sum(map(len, tokenizer.encode(batch)))
            batch = []
    num_tokens += sum(map(len, tokenizer.encode(batch)))
    return num_bytes / max(1, num_tokens)


def part_of(plan: CorpusPlan, number: int) -> Corpus:
    return scan_corpus(plan.part(number), seed=SEED)


def texts_of_part(plan: CorpusPlan, number: int) -> Iterator[bytes]:
    corpus = part_of(plan, number)
    return corpus.read(np.arange(len(corpus.keys)))


def compare(name: str, files: Sequence[Path], folder: Path, start: int, vocabulary: int) -> None:
    plan = plan_parts(files, SEED, start)
    if plan is None:
        raise SystemExit("the corpus is too small for a first part of this size")
    first = part_of(plan, 0)
    train = split_documents(first).train
    share = plan.num_bytes(1) / plan.num_bytes()
    for how in ("first part", "sample of all"):
        began = time.process_time()
        if how == "first part":
            tokenizer = learn_bpe(first, train, vocabulary)
        else:
            texts = sample_texts(plan, "text", SEED, share)
            tokenizer = learn_bpe_from(texts, first.num_bytes, vocabulary)
        seconds = time.process_time() - began
        later = (text for n in range(1, plan.num_parts) for text in texts_of_part(plan, n))
        found = {
            "first part": bytes_per_token(tokenizer, texts_of_part(plan, 0)),
            "later parts": bytes_per_token(tokenizer, later),
        }
        for place in sorted(folder.iterdir()):
            texts = (path.read_bytes() for path in sorted(place.iterdir()))
            found[place.name] = bytes_per_token(tokenizer, texts)
        told = ", ".join(f"{what} {value:.3f}" for what, value in found.items())
        print(
            f"{name}, {plan.num_parts} parts, learnt from {how} ({seconds:.1f} s of the "
            f"processor): {told}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        "tests.benchmarks.vocabulary", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--megabytes", type=int, default=24, help="of each kind of text")
    parser.add_argument("--start-after", type=int, default=8, help="MiB of the first part")
    parser.add_argument("--vocabulary", type=int, default=16_384)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp())
    try:
        folder = place / "files"
        sizes = write_corpus(folder, options.megabytes * 10**6)
        print("bytes of each kind:", ", ".join(f"{kind} {n:,}" for kind, n in sizes.items()))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        start = options.start_after * MIB
        compare("files", files, folder, start, options.vocabulary)
        packed = place / "all.txt.gz"
        with gzip.open(packed, "wb", compresslevel=6) as stream:
            for path in files:
                stream.write(path.read_bytes())
        compare("one .gz", [packed], folder, start, options.vocabulary)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
