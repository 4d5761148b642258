"""The process in which text becomes tokens, started by a node and never by people: `python -m` this
module, with a task of `preparing` in msgpack on stdin.

It puts what it makes into the store of blocks or, of an own text, into a folder that nobody is
served from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from gossamer.node.base.disk_health import DiskError, disk_error
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.peers.blocks.replication import CACHE_SHARE
from gossamer.node.runs.founding.file_names import json_for_people, unpack
from gossamer.node.runs.founding.founding import PreparedData, prepare_data
from gossamer.node.runs.founding.own_text import cut_own_text
from gossamer.node.runs.founding.preparing import (
    CorpusTask,
    Cut,
    Done,
    Outcome,
    OwnTask,
    PartTask,
    Prepared,
    Refused,
    Task,
)
from gossamer.node.runs.founding.progress import Thinned
from gossamer.node.runs.founding.rest_of_corpus import RestFile, cut_rest
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.own_data import INDEX_NAME
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ManifestError, RemoteProtocolError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.shard_index import ShardIndex
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.text.shards import Put
from gossamer.trainer.text.sources.corpus import Progress
from gossamer.trainer.text.sources.corpus_errors import BadFilesError, CorpusError

_NICE = 10
"""Niceness of the process that cuts a later part: training on the CPU comes first."""


def _keeping_put(store: BlockStore) -> Put:
    """Returns a `put` that also pins each block, because at first only the founder has it."""
    held: list[Digest] = []
    room = round(CACHE_SHARE * store.quota_bytes)

    def put(data: bytes) -> Digest:
        nonlocal room
        room -= len(data)
        if room < 0:
            raise CorpusError(
                "the corpus gives more token shards than the founder's cache may hold "
                f"({store.quota_bytes:,} bytes): give a larger --cache-bytes, or use less text "
                "(corpus.max_bytes in the manifest)"
            )
        held.append(digest_of(data))
        store.pin("founding", held)
        return store.put(data)

    return put


def _prepared(task: CorpusTask, progress: Progress) -> Prepared:
    blocks = Path(task.blocks)
    data = prepare_data(
        task.draft,
        [Path(path) for path in task.corpus],
        put=_keeping_put(BlockStore(blocks, task.cache_bytes)),
        scratch=blocks.parent,
        skip_bad=task.skip_bad,
        start_bytes=task.start_bytes,
        progress=progress,
    )
    file = RestFile(blocks.parent)
    if data.rest is None:
        file.remove()
    else:
        file.write(data.rest)
    return Prepared(
        data.config, (*data.warnings, *_warning_of_cache(data, task.cache_bytes)), data.notes
    )


def _warning_of_cache(data: PreparedData, cache_bytes: int) -> tuple[str, ...]:
    """Warns where the whole corpus, judged by its first part, will not fit the founder's cache."""
    if data.rest is None:
        return ()
    plan = data.rest.plan
    first = sum(shard.num_bytes for shard in (*data.index.shards, *data.index.heldout))
    expected = first * plan.num_bytes() / plan.num_bytes(1)
    if expected <= CACHE_SHARE * cache_bytes:
        return ()
    return (
        f"the whole corpus will give some {format_bytes(expected)} of token shards, and this "
        f"node's cache may hold {format_bytes(CACHE_SHARE * cache_bytes)} of them: it stops "
        "cutting there until other peers keep copies. To keep all here, give a larger "
        "--cache-bytes",
    )


def _cut_own(task: OwnTask, progress: Progress) -> Cut:
    folder = Path(task.folder)
    keep, put = _folder_put(folder)
    index, warnings, notes = cut_own_text(
        task.text,
        task.manifest,
        task.tokenizer_file,
        task.seed,
        put=put,
        scratch=folder,
        progress=progress,
    )
    keep(INDEX_NAME, to_msgpack(index))
    return Cut(tuple(warnings), tuple(notes))


def _cut_part(task: PartTask, progress: Progress) -> Cut:
    os.nice(_NICE)
    rest = RestFile(Path(task.root)).read()
    assert rest is not None, "the node asks for parts of the plan that it has read"
    folder = Path(task.folder)
    keep, put = _folder_put(folder)
    shards, warnings = cut_rest(
        rest,
        task.number,
        task.manifest,
        task.tokenizer_file,
        put=put,
        scratch=folder,
        progress=progress,
    )
    keep(INDEX_NAME, to_msgpack(ShardIndex(shards=shards, heldout=())))
    return Cut(tuple(warnings))


def _folder_put(folder: Path) -> tuple[Callable[[str, bytes], None], Put]:
    """Returns what keeps a file in a folder, and what keeps a shard there."""

    def keep(name: str, data: bytes) -> None:
        try:
            (folder / name).write_bytes(data)
        except OSError as error:
            raise disk_error(folder / name, len(data), error) from error

    def put(data: bytes) -> Digest:
        digest = digest_of(data)
        keep(digest.hex(), data)
        return digest

    return keep, put


def _outcome_of(task: Task, progress: Progress) -> Outcome:
    match task:
        case CorpusTask():
            return _prepared(task, progress)
        case OwnTask():
            return _cut_own(task, progress)
        case PartTask():
            return _cut_part(task, progress)


def _advice_of(task: Task) -> str:
    """Returns what to do about files and lines that cannot be used."""
    match task:
        case CorpusTask():
            return (
                "nothing was founded; to leave out every file and line that cannot be used: "
                "gossamer start --skip-bad"
            )
        case OwnTask():
            return "to leave out every file and line that cannot be used: --skip-bad"
        case PartTask():
            return (
                "mend the files, and start the node again: it goes on with this part of the corpus"
            )


def main() -> int:
    """Does the task on stdin. This is the entry point of the other process."""
    task: Task = unpack(sys.stdin.buffer.read(), Task)
    thinned = Thinned()

    def say(message: Done | Outcome) -> None:
        sys.stdout.buffer.write(json_for_people(message) + b"\n")
        sys.stdout.buffer.flush()

    def progress(stage: str, done: int, total: int) -> None:
        if thinned.is_due(stage, done, total):
            say(Done(stage, done, total))

    try:
        outcome = _outcome_of(task, progress)
    except ManifestError as error:
        say(Refused("manifest", error.problems))
    except BadFilesError as error:
        say(Refused("corpus", [*error.problems, _advice_of(task)]))
    except CorpusError as error:
        say(Refused("corpus", list(error.problems)))
    except FolderError as error:
        say(Refused("folder", error.problems))
    except RemoteProtocolError as error:
        say(Refused("corpus", [f"the run's tokenizer cannot be used: {error}"]))
    except DiskError as error:
        say(Refused("disk", [str(error)]))
    else:
        say(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
