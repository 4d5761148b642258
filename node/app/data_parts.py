"""The parts of a node that are built from the run's data index, and this node's own text."""

from __future__ import annotations

import shutil

import structlog

from gossamer.node.app.core import Core
from gossamer.node.app.runtime import NodeInputs
from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer import Trainer
from gossamer.node.peers.blocks.block_exchange import BlockService
from gossamer.node.rounds.evaluation import ModelSamples, sample_task
from gossamer.node.runs.founding.own_text import OwnText, key_of, own_seed, require_fitting
from gossamer.node.runs.founding.preparing import OwnTask, cut_elsewhere
from gossamer.node.runs.founding.progress import ProgressBars
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.own_data import OwnData
from gossamer.node.storage.owner_files import SamplesFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.training.audit_data import AuditData
from gossamer.node.training.data_feed import DataFeed
from gossamer.node.training.feed import Feed
from gossamer.node.training.own_feed import OwnFeed
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.auditing.audits import has_audits

log = structlog.get_logger("data")


async def build_feed(
    node: NodeInputs,
    core: Core,
    blocks: BlockService,
    run_data: RunData,
    own_text: OwnText | None,
) -> Feed:
    """Returns what gives the trainer its data.

    Args:
        own_text: see `Node.run`, which names the errors as well.
    """
    if not node.manifest.data.own:
        return DataFeed(run_data, node.store, blocks, core.swarm, core.committed)
    data = await open_own_data(
        node.manifest,
        own_text,
        node.identity.peer_id,
        node.state_dir,
        core.run_blocks.tokenizer_file(),
        node.runtime.run_in_thread,
    )
    return OwnFeed(data, node.state_dir.health, node.runtime.run_in_thread)


def build_audit_data(
    node: NodeInputs, core: Core, blocks: BlockService, run_data: RunData
) -> AuditData | None:
    """Returns what fetches the data of audits; None in a run without audits."""
    if not has_audits(node.manifest):
        return None
    length = node.manifest.model.context + 1
    return AuditData(run_data, node.store, blocks, core.swarm, length)


def build_samples(node: NodeInputs, trainer: Trainer) -> ModelSamples:
    """Returns what has the trainer continue the owner's prompts."""
    settings = node.settings
    task = sample_task(settings.sample_prompts, node.manifest.data, node.store.path)
    file = SamplesFile(node.state_dir.samples_path, node.manifest.run_id)
    return ModelSamples(task, settings.sample_rounds, trainer, file, node.runtime.run_in_thread)


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
        task = OwnTask(text, manifest, tokenizer_file, own_seed(manifest, me), str(folder))
        cut = await cut_elsewhere(task, bars.show)
    for note in cut.notes:
        log.info(note)
    for warning in cut.warnings:
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
