"""The parts of a node that are built from the run's data index."""

from __future__ import annotations

from gossamer.node.app.core import Core, NodeInputs
from gossamer.node.app.own_data import open_own_data
from gossamer.node.machine.trainer import Trainer
from gossamer.node.peers.block_exchange import BlockService
from gossamer.node.rounds.model_samples import ModelSamples, sample_task
from gossamer.node.runs.own_text import OwnText
from gossamer.node.storage.samples_file import SamplesFile
from gossamer.node.training.audit_data import AuditData
from gossamer.node.training.data_feed import DataFeed
from gossamer.node.training.feed import Feed
from gossamer.node.training.own_feed import OwnFeed
from gossamer.protocol.accounting.partitions import shards_per_partition
from gossamer.protocol.policy.audits import has_audits
from gossamer.protocol.shard_index import ShardIndex


async def build_feed(
    node: NodeInputs,
    core: Core,
    blocks: BlockService,
    index: ShardIndex,
    own_text: OwnText | None,
) -> Feed:
    """Returns what gives the trainer its data.

    Args:
        own_text: see `Node.run`, which names the errors as well.
    """
    if not node.manifest.data.own:
        per_partition = shards_per_partition(node.manifest)
        return DataFeed(index, node.store, blocks, core.swarm, core.committed, per_partition)
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
    node: NodeInputs, core: Core, blocks: BlockService, index: ShardIndex
) -> AuditData | None:
    """Returns what fetches the data of audits; None in a run without audits."""
    if not has_audits(node.manifest):
        return None
    per_partition, length = shards_per_partition(node.manifest), node.manifest.model.context + 1
    return AuditData(index, node.store, blocks, core.swarm, per_partition, length)


def build_samples(node: NodeInputs, trainer: Trainer) -> ModelSamples:
    """Returns what has the trainer continue the owner's prompts."""
    settings = node.settings
    task = sample_task(settings.sample_prompts, node.manifest.data, node.store.path)
    file = SamplesFile(node.state_dir.samples_path, node.manifest.run_id)
    return ModelSamples(task, settings.sample_rounds, trainer, file, node.runtime.run_in_thread)
