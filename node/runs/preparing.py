"""Tokenising text in another process, whose memory goes back to the system.

The daemon may hold four times the state and little more, but learning a vocabulary takes hundreds
of MB for any size of model. So founding starts this module with `python -m` (`main` below), and so
does a node that cuts a text of its own. The process reads a task in msgpack from stdin, puts what
it makes into the store of blocks or, of an own text, into a folder that nobody is served from, and
writes lines of JSON to stdout: progress, and at the end the outcome.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import trio

from gossamer.node.base.disk_health import DiskError, disk_error
from gossamer.node.base.units import format_bytes
from gossamer.node.peers.replication import CACHE_SHARE
from gossamer.node.runs.draft import Draft
from gossamer.node.runs.founding import PreparedData, prepare_data
from gossamer.node.runs.own_text import OwnText, cut_own_text
from gossamer.node.runs.progress import Thinned
from gossamer.node.runs.rest_of_corpus import RestFile, cut_rest
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.own_data import INDEX_NAME
from gossamer.protocol.errors import ManifestError, RemoteProtocolError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import DataConfig, Manifest
from gossamer.protocol.shard_index import ShardIndex, decode_index, encode_index
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.text.corpus import Progress
from gossamer.trainer.text.corpus_errors import BadFilesError, CorpusError
from gossamer.trainer.text.shards import Put

LINE_BYTES_MAX = 1024 * 1024
"""Limit of a line. The longest one has a sentence for each source, `SOURCES_MAX` at most."""

ERRORS_KEPT = 20

_NICE = 10
"""Niceness of the process that cuts a later part: training on the CPU comes first."""

_SKIP_BAD = (
    "nothing was founded; to leave out every file and line that cannot be used: "
    "gossamer start --skip-bad"
)
_CONFINED = "gossamer.node.runs.cut_confined"
"""Entry of a process that first gives up the network, and ends in `main`."""

_MEND = "mend the files, and start the node again: it goes on with this part of the corpus"
_SKIP_BAD_OF_OWN = "to leave out every file and line that cannot be used: --skip-bad"


class PreparingError(Exception):
    """The other process did not prepare the corpus; the text says why."""


class _Task(msgspec.Struct, frozen=True, tag="corpus"):
    """A founder's corpus."""

    draft: Draft
    corpus: tuple[str, ...]
    skip_bad: bool
    start_bytes: int | None
    blocks: str
    cache_bytes: int


class _OwnTask(msgspec.Struct, frozen=True, tag="own"):
    """A peer's own text."""

    text: OwnText
    manifest: Manifest
    tokenizer_file: bytes
    seed: int
    folder: str


class _PartTask(msgspec.Struct, frozen=True, tag="part"):
    """A later part of a founder's corpus."""

    root: str
    """State directory with the plan."""
    number: int
    manifest: Manifest
    tokenizer_file: bytes
    folder: str


class _Progress(msgspec.Struct, frozen=True, tag="progress"):
    stage: str
    done: int
    total: int


class _Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    config: DataConfig
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


class _CutOwn(msgspec.Struct, frozen=True, tag="own"):
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


class _CutPart(msgspec.Struct, frozen=True, tag="part"):
    warnings: tuple[str, ...]


class _Refused(msgspec.Struct, frozen=True, tag="refused"):
    kind: str
    problems: list[str]


_Outcome = _Prepared | _CutOwn | _CutPart | _Refused

_line_decoder: msgspec.json.Decoder[_Progress | _Outcome] = msgspec.json.Decoder(
    _Progress | _Outcome
)


async def prepare_elsewhere(
    draft: Draft,
    corpus: Sequence[Path],
    blocks: Path,
    cache_bytes: int,
    progress: Progress,
    *,
    skip_bad: bool = False,
    start_bytes: int | None = None,
) -> PreparedData:
    """Runs `founding.prepare_data` in another process, the only user of the block store meanwhile.

    If the corpus has a rest, its plan lies beside the blocks when this returns.

    Raises:
        ManifestError, CorpusError, FolderError: as `prepare_data`.
        DiskError: the disk takes no more.
        PreparingError: the process died.

    Cancelled: the process is killed.
    """
    paths = tuple(str(path.absolute()) for path in corpus)
    task = _Task(draft, paths, skip_bad, start_bytes, str(blocks), cache_bytes)
    outcome = await _do_elsewhere([__name__], task, progress)
    assert isinstance(outcome, _Prepared)
    store = BlockStore(blocks, cache_bytes, read_only=True)
    return PreparedData(
        outcome.config,
        decode_index(store.get(Digest(outcome.config.index_digest))),
        outcome.warnings,
        outcome.notes,
    )


async def cut_elsewhere(
    text: OwnText,
    manifest: Manifest,
    tokenizer_file: bytes,
    seed: int,
    folder: Path,
    progress: Progress,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Runs `own_text.cut_own_text` in another process, which leaves shards and index in `folder`.

    Returns:
        Sentences: warnings, and notes on what is used.

    Raises:
        CorpusError, FolderError: as `cut_own_text`.
        DiskError: the disk takes no more.
        PreparingError: the process died.

    Cancelled: the process is killed.
    """
    task = _OwnTask(text, manifest, tokenizer_file, seed, str(folder))
    outcome = await _do_elsewhere([_CONFINED, str(folder)], task, progress)
    assert isinstance(outcome, _CutOwn)
    return outcome.warnings, outcome.notes


async def cut_part_elsewhere(
    root: Path,
    number: int,
    manifest: Manifest,
    tokenizer_file: bytes,
    folder: Path,
    progress: Progress,
) -> tuple[str, ...]:
    """Runs `rest_of_corpus.cut_rest` in another process, which leaves shards and index in `folder`.
    It takes what others leave of the processor.

    Args:
        root: state directory of the founder.

    Returns:
        Sentences: warnings.

    Raises:
        CorpusError, FolderError: as `cut_rest`.
        DiskError: the disk takes no more.
        PreparingError: the process died.

    Cancelled: the process is killed.
    """
    task = _PartTask(str(root), number, manifest, tokenizer_file, str(folder))
    outcome = await _do_elsewhere([__name__], task, progress)
    assert isinstance(outcome, _CutPart)
    return outcome.warnings


async def _do_elsewhere(
    module: Sequence[str], task: _Task | _OwnTask | _PartTask, progress: Progress
) -> _Prepared | _CutOwn | _CutPart:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", *module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    outcome: _Outcome | None = None
    errors: deque[str] = deque(maxlen=ERRORS_KEPT)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_errors, process, errors)
            await process.stdin.send_all(msgspec.msgpack.encode(task))
            await process.stdin.aclose()
            buffer = bytearray()
            async for data in process.stdout:
                buffer += data
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                for line in lines:
                    message = _line_decoder.decode(line)
                    if isinstance(message, _Progress):
                        progress(message.stage, message.done, message.total)
                    else:
                        outcome = message
                if len(buffer) > LINE_BYTES_MAX:
                    raise PreparingError("the preparing process wrote a line that is too long")
            await process.wait()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
    if outcome is None:
        raise PreparingError(
            f"preparing the corpus ended with exit status {process.returncode}"
            + (f": {errors[-1]}" if errors else "")
            + "; if memory is short, use a smaller corpus or the tokenizer of plain bytes"
        )
    if isinstance(outcome, _Refused):
        raise _error_of(outcome)
    return outcome


def _error_of(refused: _Refused) -> Exception:
    match refused.kind:
        case "manifest":
            return ManifestError(refused.problems)
        case "corpus":
            return CorpusError.of_shown(refused.problems)
        case "folder":
            return FolderError(refused.problems)
        case _:
            return DiskError("\n".join(refused.problems))


async def _keep_errors(process: trio.Process, errors: deque[str]) -> None:
    assert process.stderr is not None
    async for data in process.stderr:
        errors.extend(line for line in data.decode("utf-8", "replace").split("\n") if line.strip())


def _keeping_put(store: BlockStore) -> Put:
    """Returns a `put` that also pins each block, because at first only the founder has it."""
    held: list[Digest] = []
    room = round(CACHE_SHARE * store.quota_bytes)

    def put(data: bytes) -> Digest:
        nonlocal room
        room -= len(data)
        if room < 0:
            raise CorpusError(
                [
                    "the corpus gives more token shards than the founder's cache may hold "
                    f"({store.quota_bytes:,} bytes): give a larger --cache-bytes, or use less text "
                    "(corpus.max_bytes in the manifest)"
                ]
            )
        held.append(digest_of(data))
        store.pin("founding", held)
        return store.put(data)

    return put


def _prepared(task: _Task, progress: Progress) -> _Prepared:
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
    return _Prepared(
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


def _cut_own(task: _OwnTask, progress: Progress) -> _CutOwn:
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
    keep(INDEX_NAME, encode_index(index))
    return _CutOwn(tuple(warnings), tuple(notes))


def _cut_part(task: _PartTask, progress: Progress) -> _CutPart:
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
    keep(INDEX_NAME, encode_index(ShardIndex(shards=shards, heldout=())))
    return _CutPart(tuple(warnings))


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


def _outcome_of(task: _Task | _OwnTask | _PartTask, progress: Progress) -> _Outcome:
    match task:
        case _Task():
            return _prepared(task, progress)
        case _OwnTask():
            return _cut_own(task, progress)
        case _PartTask():
            return _cut_part(task, progress)


def _advice_of(task: _Task | _OwnTask | _PartTask) -> tuple[str, ...]:
    """Returns what to do about files and lines that cannot be used."""
    match task:
        case _Task():
            return (_SKIP_BAD,)
        case _OwnTask():
            return (_SKIP_BAD_OF_OWN,)
        case _PartTask():
            return (_MEND,)


def main() -> int:
    """Does the task on stdin. This is the entry point of the other process."""
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Task | _OwnTask | _PartTask)
    thinned = Thinned()

    def say(message: _Progress | _Outcome) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def progress(stage: str, done: int, total: int) -> None:
        if thinned.is_due(stage, done, total):
            say(_Progress(stage, done, total))

    try:
        outcome = _outcome_of(task, progress)
    except ManifestError as error:
        say(_Refused("manifest", error.problems))
    except BadFilesError as error:
        say(_Refused("corpus", [*error.problems, *_advice_of(task)]))
    except CorpusError as error:
        say(_Refused("corpus", list(error.problems)))
    except FolderError as error:
        say(_Refused("folder", error.problems))
    except RemoteProtocolError as error:
        say(_Refused("corpus", [f"the run's tokenizer cannot be used: {error}"]))
    except DiskError as error:
        say(_Refused("disk", [str(error)]))
    else:
        say(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
