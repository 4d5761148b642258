"""Rebuilds the newest state that the disk holds, after a start or a failed change of state."""

from __future__ import annotations

import numpy as np
import structlog

from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest, short
from gossamer.protocol.manifest import Manifest

log = structlog.get_logger("state")


def open_read_only(
    manifest: Manifest, state_dir: StateDir, cache_bytes: int
) -> tuple[CommittedState, BlockStore]:
    """Opens a state directory without its lock, so that a running daemon can go on. No state is
    loaded yet."""
    # The blocks after the records: a daemon writes them in the other order.
    genesis_state = Digest(manifest.genesis_digest)
    chain = ChainStore(state_dir.chain_path, manifest.run_id, genesis_state, read_only=True)
    store = BlockStore(state_dir.blocks_path, cache_bytes, read_only=True)
    parameters = np.zeros(manifest.model.num_parameters, dtype=np.float32)
    return CommittedState(manifest, parameters, store, chain, state_dir, read_only=True), store


def restore(committed: CommittedState) -> bool:
    """Rebuilds the newest state that the disk holds. Returns False if there is none at all."""
    newest, chain = committed.head_on_disk(), committed.chain
    behind = [head for head in chain.tips() if chain.gap_before(head) is not None]
    # A stable order: of rounds with the same tokens those with a whole way come first.
    heads = sorted(
        [*chain.heads_by_weight(), *sorted(behind)],
        key=lambda head: chain.entry(head).tokens_total,
        reverse=True,
    )
    if newest is not None and newest in chain:
        heads.insert(0, newest)
    found = any(rebuild(committed, head) for head in heads)
    if newest is not None and committed.head != newest:
        log.warning(
            "the disk does not hold all of the newest committed state any more. Peers are asked "
            "for it; without peers the node goes on from an older state",
            wanted=short(newest),
            found_round=committed.entry.round,
        )
    return found


def rebuild(committed: CommittedState, head: Digest) -> bool:
    """Rebuilds the state of a head, or of the newest round before it that the disk holds.

    A damaged record is a gap in the way to the head. The states that lie behind it are as good as
    without it.

    Returns:
        False if no checkpoint on the way to it is whole. Then the present state is unchanged.
    """
    chain = committed.chain
    path = chain.path_between(chain.root, head)
    has_gap = path is None
    if path is None:
        path = [each for each in chain.ancestors(head, len(chain)) if each in chain][::-1]
    bases = [*reversed(path), *(() if has_gap else (chain.root,))]
    for number, base in enumerate(bases):
        if not committed.blocks.has_state(base):
            continue
        is_loaded = False
        try:
            committed.load_checkpoint(base)
            is_loaded = True
            committed.keep_older(bases[number + 1 :])
            for step in chain.path_between(base, head) or []:
                committed.replay(step)
        except CannotRebuildError as error:
            # Usual after a life that ended while it fetched rounds: `restore` says what is lost.
            log.info(
                "a state on this disk is not complete: the node goes on from an older one, and "
                "asks peers for the rest",
                problem=str(error),
            )
        if is_loaded:
            return True
    return False
