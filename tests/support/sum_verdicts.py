"""The verdicts on sums that the nodes of a world hold."""

from __future__ import annotations

from gossamer.protocol.wire.audit_messages import SumVerdict
from tests.support.node_world import World


def verdicts_of(world: World, name: str) -> list[SumVerdict]:
    """The verdicts in a node's statement store."""
    store = world.participant(name).context.swarm.gossip.statement_store
    return [said for _, said in store.statements() if isinstance(said, SumVerdict)]
