"""Tokenising text in another process, whose memory goes back to the system.

The daemon may hold four times the state and little more, but learning a vocabulary takes hundreds
of MB for any size of model. So founding starts another process (`preparing_process`), and so does a
node that cuts a text of its own. The process reads a task in msgpack from stdin, and writes lines
of JSON to stdout: progress, and at the end the outcome.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.runs.founding.file_names import pack
from gossamer.node.runs.founding.founding import PreparedData
from gossamer.node.runs.founding.own_text import OwnText
from gossamer.node.runs.planning.draft import Draft
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import DataConfig, Manifest
from gossamer.protocol.shard_index import decode_index
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.text.sources.corpus import Progress
from gossamer.trainer.text.sources.corpus_errors import CorpusError

LINE_BYTES_MAX = 1024 * 1024
"""Limit of a line. The longest one has a sentence for each source, `SOURCES_MAX` at most."""

ERRORS_KEPT = 20

_PROCESS = "gossamer.node.runs.founding.preparing_process"
_CONFINED = "gossamer.node.runs.founding.cut_confined"
"""Entry of a process that first gives up the network, and ends in `main` of the other one."""


class PreparingError(Exception):
    """The other process did not prepare the corpus; the text says why."""


class CorpusTask(msgspec.Struct, frozen=True, tag="corpus"):
    """A founder's corpus."""

    draft: Draft
    corpus: tuple[str, ...]
    skip_bad: bool
    start_bytes: int | None
    blocks: str
    cache_bytes: int


class OwnTask(msgspec.Struct, frozen=True, tag="own"):
    """A peer's own text."""

    text: OwnText
    manifest: Manifest
    tokenizer_file: bytes
    seed: int
    folder: str


class PartTask(msgspec.Struct, frozen=True, tag="part"):
    """A later part of a founder's corpus."""

    root: str
    """State directory with the plan."""
    number: int
    manifest: Manifest
    tokenizer_file: bytes
    folder: str


Task = CorpusTask | OwnTask | PartTask


class Done(msgspec.Struct, frozen=True, tag="progress"):
    stage: str
    done: int
    total: int


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    config: DataConfig
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """Shards and their index lie in the task's folder. Sentences: warnings, and notes on what is
    used."""

    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    kind: str
    problems: list[str]


Outcome = Prepared | Cut | Refused

_line_decoder: msgspec.json.Decoder[Done | Outcome] = msgspec.json.Decoder(Done | Outcome)


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
    task = CorpusTask(draft, paths, skip_bad, start_bytes, str(blocks), cache_bytes)
    outcome = await _do_elsewhere([_PROCESS], task, progress)
    assert isinstance(outcome, Prepared)
    store = BlockStore(blocks, cache_bytes, read_only=True)
    return PreparedData(
        outcome.config,
        decode_index(store.get(Digest(outcome.config.index_digest))),
        outcome.warnings,
        outcome.notes,
    )


async def cut_elsewhere(task: OwnTask | PartTask, progress: Progress) -> Cut:
    """Runs `own_text.cut_own_text` or `rest_of_corpus.cut_rest` in another process. That of a later
    part takes what others leave of the processor.

    Raises:
        CorpusError, FolderError: as these.
        DiskError: the disk takes no more.
        PreparingError: the process died.

    Cancelled: the process is killed.
    """
    module = [_CONFINED, task.folder] if isinstance(task, OwnTask) else [_PROCESS]
    outcome = await _do_elsewhere(module, task, progress)
    assert isinstance(outcome, Cut)
    return outcome


async def _do_elsewhere(module: Sequence[str], task: Task, progress: Progress) -> Prepared | Cut:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", *module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    outcome: Outcome | None = None
    errors: deque[str] = deque(maxlen=ERRORS_KEPT)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_errors, process, errors)
            await process.stdin.send_all(pack(task))
            await process.stdin.aclose()
            buffer = bytearray()
            async for data in process.stdout:
                buffer += data
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                for line in lines:
                    message = _line_decoder.decode(line)
                    if isinstance(message, Done):
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
    if isinstance(outcome, Refused):
        raise _error_of(outcome)
    return outcome


def _error_of(refused: Refused) -> Exception:
    match refused.kind:
        case "manifest":
            return ManifestError(refused.problems)
        case "corpus":
            return CorpusError(*refused.problems)
        case "folder":
            return FolderError(*refused.problems)
        case _:
            return DiskError("\n".join(refused.problems))


async def _keep_errors(process: trio.Process, errors: deque[str]) -> None:
    assert process.stderr is not None
    async for data in process.stderr:
        errors.extend(line for line in data.decode("utf-8", "replace").split("\n") if line.strip())
