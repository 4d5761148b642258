"""What does it cost to turn a large corpus into shards: time, memory, and share of the cores?

    python -m tests.benchmarks.founding --gigabytes 2
    python -m tests.benchmarks.founding --gigabytes 2 --folder /var/tmp/corpus

    python -m tests.benchmarks.founding --gigabytes 1 --text library --start-after 256

With `--start-after` (in MiB) the run begins with so much of the corpus, and the rest is cut part by
part, each in a process of its own, as a founder's node does it. Printed is when the run could have
begun, and for each part its seconds, its rate and its memory.

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
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np

from gossamer.node.runs.founding.founding import prepare_data
from gossamer.node.runs.founding.rest_of_corpus import RestOfCorpus, cut_rest
from gossamer.node.runs.planning.draft import draft_of_preset, manifest_of
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.limits import MIB
from gossamer.protocol.manifest import DataConfig
from gossamer.trainer.text.sources.corpus_files import default_files

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


def write_library(folder: Path, num_bytes: int) -> None:
    """Writes so many bytes of the sources of Python's standard library, of every file as many
    copies as it takes. Each has a line of its own, so that none counts as a copy."""
    sources = default_files()
    written = copy = 0
    while written < num_bytes:
        for number, source in enumerate(sources):
            data = f"# Copy {copy} of file {number}\n".encode() + source.read_bytes()
            (folder / f"{copy:04}-{number:04}.py").write_bytes(data)
            written += len(data)
            if written >= num_bytes:
                break
        copy += 1


def found_in_parts(folder: Path, blocks: Path, preset: str, start_bytes: int) -> None:
    """Cuts the corpus as a founder's node does, and prints what each part took."""
    draft = draft_of_preset(preset)
    files = sorted(folder.iterdir())

    def put(data: bytes) -> Digest:
        digest = digest_of(data)
        (blocks / digest.hex()).write_bytes(data)
        return digest

    def say(number: int, num_bytes: int, seconds: float, tokens: int, shards: int) -> None:
        use = resource.getrusage(resource.RUSAGE_SELF)
        unit = 1 if sys.platform == "darwin" else 1024
        processor = use.ru_utime + use.ru_stime
        print(
            f"part {number}: {num_bytes / 1e6:8.1f} MB {seconds:8.1f} s "
            f"{num_bytes / 1e6 / seconds:6.1f} MB/s {processor:8.1f} s of the processor, "
            f"{tokens:,} tokens, {shards:,} shards, {use.ru_maxrss * unit / 1e6:,.0f} MB at most",
            flush=True,
        )

    def first(answers: Connection) -> None:
        started = time.monotonic()
        data = prepare_data(draft, files, put=put, start_bytes=start_bytes)
        config = data.config
        seconds = time.monotonic() - started
        size = sum(path.stat().st_size for path in files)
        num_bytes = size if data.rest is None else data.rest.plan.num_bytes(1)
        say(1, num_bytes, seconds, config.num_tokens, config.num_shards)
        answers.send(msgspec.msgpack.encode((config, data.rest)))

    def later(rest: RestOfCorpus, config: DataConfig, number: int) -> None:
        started = time.monotonic()
        zeros = bytes(32)
        manifest = manifest_of(
            draft,
            founder=PeerId(""),
            created_unix_seconds=0,
            data=config,
            genesis_digest=Digest(zeros),
        )
        digest = config.tokenizer_digest
        tokenizer_file = (blocks / digest.hex()).read_bytes() if digest else b""
        shards, _ = cut_rest(rest, number, manifest, tokenizer_file, put=put, scratch=blocks)
        num_bytes = rest.plan.num_bytes(number + 1) - rest.plan.num_bytes(number)
        tokens = sum(shard.num_tokens for shard in shards)
        say(number + 1, num_bytes, time.monotonic() - started, tokens, len(shards))

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=first, args=(sender,))
    process.start()
    answer = receiver.recv()
    process.join()
    config, rest = msgspec.msgpack.decode(answer, type=tuple[DataConfig, RestOfCorpus | None])
    for number in range(1, 1 if rest is None else rest.plan.num_parts):
        process = context.Process(target=later, args=(rest, config, number))
        process.start()
        process.join()


def found(folder: Path, blocks: Path, preset: str) -> None:
    """Tokenises the corpus, and prints what it took."""
    files = sorted(folder.iterdir())
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
    parser.add_argument("--text", choices=["drawn", "library"], default="drawn")
    parser.add_argument("--start-after", type=int, help="MiB of the first part")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        corpus, blocks = place / "corpus", place / "blocks"
        corpus.mkdir()
        blocks.mkdir()
        write = write_library if options.text == "library" else write_corpus
        write(corpus, round(options.gigabytes * 1e9))
        if options.start_after is not None:
            found_in_parts(corpus, blocks, options.preset, options.start_after * MIB)
            return
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=found, args=(corpus, blocks, options.preset))
        process.start()
        process.join()
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
