"""Tokenising the corpus in another process, whose memory goes back to the system.

The daemon may hold four times the state and little more, but learning a vocabulary takes hundreds
of MB for any size of model. So founding starts this module with `python -m` (`main` below). The
process reads a `_Task` in msgpack from stdin, puts the blocks into the store, and writes lines of
JSON to stdout: progress, and at the end the outcome.
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
from gossamer.node.peers.replication import CACHE_SHARE
from gossamer.node.runs.draft import Draft
from gossamer.node.runs.founding import PreparedData, prepare_data
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import DataConfig
from gossamer.protocol.shard_index import decode_index
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.text.corpus import CorpusError, Progress
from gossamer.trainer.text.shards import Put

LINE_BYTES_MAX = 1024 * 1024
"""Limit of a line. The longest one lists the problems of a corpus, at most a dozen sentences."""

ERRORS_KEPT = 20
_PROGRESS_STEPS = 200


class PreparingError(Exception):
    """The other process did not prepare the corpus; the text says why."""


class _Task(msgspec.Struct, frozen=True):
    draft: Draft
    corpus: tuple[str, ...]


class _Progress(msgspec.Struct, frozen=True, tag="progress"):
    stage: str
    done: int
    total: int


class _Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    config: DataConfig


class _Refused(msgspec.Struct, frozen=True, tag="refused"):
    kind: str
    problems: list[str]


_line_decoder: msgspec.json.Decoder[_Progress | _Prepared | _Refused] = msgspec.json.Decoder(
    _Progress | _Prepared | _Refused
)


async def prepare_elsewhere(
    draft: Draft, corpus: Sequence[Path], blocks: Path, cache_bytes: int, progress: Progress
) -> PreparedData:
    """Runs `founding.prepare_data` in another process, the only user of the block store meanwhile.

    Raises:
        ManifestError, CorpusError, FolderError: as `prepare_data`.
        DiskError: the disk takes no more.
        PreparingError: the process died.

    Cancelled: the process is killed.
    """
    task = msgspec.msgpack.encode(_Task(draft, tuple(str(path.absolute()) for path in corpus)))
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", __name__, str(blocks), str(cache_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    outcome: _Prepared | _Refused | None = None
    errors: deque[str] = deque(maxlen=ERRORS_KEPT)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_errors, process, errors)
            await process.stdin.send_all(task)
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
    store = BlockStore(blocks, cache_bytes, read_only=True)
    return PreparedData(
        outcome.config, decode_index(store.get(Digest(outcome.config.index_digest)))
    )


def _error_of(refused: _Refused) -> Exception:
    match refused.kind:
        case "manifest":
            return ManifestError(refused.problems)
        case "corpus":
            return CorpusError(refused.problems)
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


def main() -> int:
    """Prepares the data of the task on stdin. This is the entry point of the other process."""
    blocks, cache_bytes = Path(sys.argv[1]), int(sys.argv[2])
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Task)
    shown: dict[str, int] = {}

    def say(message: _Progress | _Prepared | _Refused) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def progress(stage: str, done: int, total: int) -> None:
        step = _PROGRESS_STEPS * done // max(1, total)
        if shown.get(stage) != step:
            shown[stage] = step
            say(_Progress(stage, done, total))

    try:
        corpus = [Path(path) for path in task.corpus]
        put = _keeping_put(BlockStore(blocks, cache_bytes))
        data = prepare_data(task.draft, corpus, put=put, progress=progress)
    except ManifestError as error:
        say(_Refused("manifest", error.problems))
    except CorpusError as error:
        say(_Refused("corpus", list(error.problems)))
    except FolderError as error:
        say(_Refused("folder", error.problems))
    except DiskError as error:
        say(_Refused("disk", [str(error)]))
    else:
        say(_Prepared(data.config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
