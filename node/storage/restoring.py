"""Rebuilds the newest state that the disk holds, after a start or a failed change of state."""

from __future__ import annotations

import structlog

from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.state_blocks import CannotRebuildError
from gossamer.protocol.ids import Digest, short

log = structlog.get_logger("state")


def restore(committed: CommittedState) -> bool:
    """Rebuilds the newest state that the disk holds. Returns False if there is none at all."""
    newest = committed.head_on_disk()
    heads = committed.chain.heads_by_weight()
    if newest is not None and newest in committed.chain:
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

    Returns:
        False if no checkpoint on the way to it is whole. Then the present state is unchanged.
    """
    chain = committed.chain
    path = chain.path_between(chain.genesis, head)
    if path is None:
        return False
    for base in [*reversed(path), chain.genesis]:
        if not committed.blocks.has_state(base):
            continue
        is_loaded = False
        try:
            committed.load_checkpoint(base)
            is_loaded = True
            if base in path:
                committed.keep_older(path[: path.index(base)][::-1])
            for step in chain.path_between(base, head) or []:
                committed.replay(step)
        except CannotRebuildError as error:
            log.warning("the newest state on disk is not complete", problem=str(error))
        if is_loaded:
            return True
    return False
