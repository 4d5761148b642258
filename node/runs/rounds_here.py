"""The rounds on a disk, and those whose states it can rebuild, for people who named another one."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.ids import Digest

SPANS_MAX = 4
"""Spans of rounds that a message names, the newest ones: more of them nobody reads."""


def way_to(committed: CommittedState, newest: Digest | None) -> list[Digest]:
    """Returns the heads on the way to the newest one, from the beginning of the kept chain on, or
    those after a record that the disk lost: no round before is known to be on the way."""
    chain = committed.chain
    if newest is None:
        return [chain.root]
    if chain.gap_before(newest) is not None:
        return chain.pieces_to(newest)[-1]
    return [chain.root, *(chain.path_between(chain.root, newest) or [])]


def rounds_here(committed: CommittedState, heads: Sequence[Digest]) -> list[int]:
    """Returns the rounds whose states can be rebuilt from this disk. Blocks that are here count as
    undamaged: they are not read.

    Args:
        heads: one way of the chain, the oldest first.
    """
    blocks = committed.blocks
    found: list[int] = []
    is_here = False
    for head in heads:
        is_here = blocks.has_state(head) or (is_here and blocks.has_averages(head))
        if is_here:
            found.append(committed.chain.entry(head).round)
    return found


def spans_text(rounds: Sequence[int], newest_round: int) -> str:
    """Returns what to name instead, such as "a round from 20 on".

    Args:
        rounds: one or more, the oldest first.
        newest_round: the newest one that can be named.
    """
    spans: list[tuple[int, int]] = []
    for each in rounds:
        if spans and spans[-1][1] == each - 1:
            spans[-1] = (spans[-1][0], each)
        else:
            spans.append((each, each))
    if len(spans) == 1 and spans[0][1] == newest_round:
        return f"a round from {spans[0][0]} on"
    texts = [f"{one} to {last}" if last > one else str(one) for one, last in spans[-SPANS_MAX:]]
    return f"one of these rounds: {', '.join(texts)}"
