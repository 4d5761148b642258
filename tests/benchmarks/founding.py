"""What does it cost to turn a large corpus into shards: time, memory, and share of the cores?

    python -m tests.benchmarks.founding --gigabytes 2
    python -m tests.benchmarks.founding --gigabytes 2 --folder /var/tmp/corpus

The text is drawn: words of two to nine letters, as often as Zipf's law says, in documents of some
2 kB, as JSON lines in files of 256 MB. A process of its own tokenises it as `gossamer start` does,
with the tokenizer of the preset. Printed are for each stage its seconds and MB/s, and at the end
the seconds of the processor, and the most memory that the process took besides the text.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gossamer.node.runs.draft import draft_of_preset
from gossamer.node.runs.founding import prepare_data
from gossamer.protocol.ids import Digest, digest_of

FILE_BYTES = 256 * 10**6
NUM_WORDS = 50_000
_LETTERS = np.array(list("etaoinshrdlucmfwygpbvkxqjz"))


def write_corpus(folder: Path, num_bytes: int, seed: int = 1) -> None:
    """Writes JSON lines of so many bytes."""
    random = np.random.default_rng(seed)
    words = np.array(
        ["".join(random.choice(_LETTERS, random.integers(2, 10))) for _ in range(NUM_WORDS)]
    )
    chances = 1.0 / np.arange(1, NUM_WORDS + 1)
    sums = np.cumsum(chances / chances.sum())
    written = number = 0
    while written < num_bytes:
        with (folder / f"{number:04}.jsonl").open("w") as file:
            while file.tell() < FILE_BYTES and written + file.tell() < num_bytes:
                drawn = words[np.searchsorted(sums, random.random(350 * 500))].reshape(500, 350)
                lines = (json.dumps({"text": " ".join(row) + "\n"}) for row in drawn)
                file.write("\n".join(lines) + "\n")
            written += file.tell()
        number += 1


def found(folder: Path, blocks: Path, preset: str) -> None:
    """Tokenises the corpus, and prints what it took."""
    files = sorted(folder.glob("*.jsonl"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stage, since, done_bytes = "", time.monotonic(), 0

    def ended() -> None:
        seconds = time.monotonic() - since
        if stage:
            rate = done_bytes / 1e6 / max(seconds, 1e-9)
            print(f"{stage:24} {seconds:8.1f} s {rate:8.1f} MB/s", flush=True)

    def progress(now: str, done: int, _total: int) -> None:
        nonlocal stage, since, done_bytes
        if now != stage:
            ended()
            stage, since = now, time.monotonic()
        done_bytes = done

    def put(data: bytes) -> Digest:
        digest = digest_of(data)
        (blocks / digest.hex()).write_bytes(data)
        return digest

    started = time.monotonic()
    data = prepare_data(draft_of_preset(preset), files, put=put, progress=progress)
    ended()
    seconds = time.monotonic() - started
    use = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024
    processor = use.ru_utime + use.ru_stime
    print(
        f"all: {seconds:.1f} s, {processor:.1f} s of the processor ({processor / seconds:.2f} "
        f"cores), {data.config.num_tokens:,} tokens, {data.config.num_shards:,} shards"
    )
    print(
        f"memory: {use.ru_maxrss * unit / 1e6:,.0f} MB at most, {before * unit / 1e6:,.0f} before"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        "tests.benchmarks.founding", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--preset", default="150m")
    parser.add_argument("--folder", type=Path, help="for corpus and shards; it is emptied")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        corpus, blocks = place / "corpus", place / "blocks"
        corpus.mkdir()
        blocks.mkdir()
        write_corpus(corpus, round(options.gigabytes * 1e9))
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=found, args=(corpus, blocks, options.preset))
        process.start()
        process.join()
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
