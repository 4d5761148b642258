"""This node's own text as shards: those that it has, or new ones of a text that it is given."""

from __future__ import annotations

import shutil

import structlog

from gossamer.node.base.threads import RunInThread
from gossamer.node.runs.own_text import OwnText, key_of, own_seed, require_fitting
from gossamer.node.runs.preparing import cut_elsewhere
from gossamer.node.runs.progress import ProgressBars
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.own_data import OwnData
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Manifest

log = structlog.get_logger("data")


async def open_own_data(
    manifest: Manifest,
    text: OwnText | None,
    me: PeerId,
    state_dir: StateDir,
    tokenizer_file: bytes,
    run_in_thread: RunInThread,
) -> OwnData:
    """Returns this node's shards, which are cut anew if `text` is another one than before.

    Args:
        text: None goes on with the shards that are here.
        tokenizer_file: the block of the run's tokenizer; empty for plain bytes.

    Raises:
        CorpusError, FolderError: there is no text, or it cannot be used.
        DiskError: the disk does not take it.
        PreparingError: the process that cuts it died.
        StateDirError: what is here is damaged.

    Cancelled: the shards that there were stay in use.
    """
    data = OwnData(state_dir.own_path)
    if text is None:
        require_fitting(manifest, has_text=False, has_shards=await run_in_thread(data.open))
        return data
    key = await run_in_thread(lambda: key_of(text, manifest, me))
    if await run_in_thread(data.whole_key) == key:
        log.info("this node's own text is the one that it had", position=data.position)
        return data
    folder = await run_in_thread(lambda: data.folder_for(key))
    with ProgressBars(
        lambda does: DaemonFiles(state_dir).write_starting(f"it cuts its own text: {does}")
    ) as bars:
        warnings, notes = await cut_elsewhere(
            text, manifest, tokenizer_file, own_seed(manifest, me), folder, bars.show
        )
    for note in notes:
        log.info(note)
    for warning in warnings:
        log.warning(warning)
    for scratch in ("tmp", "cache"):
        shutil.rmtree(folder / scratch, ignore_errors=True)
    await run_in_thread(lambda: data.begin(key))
    num_tokens = sum(shard.num_tokens for shard in data.shards)
    log.info(
        f"this node trains on {num_tokens:,} tokens of its own text, which stays here",
        fields={"event": "own text", "tokens": num_tokens},
    )
    return data
