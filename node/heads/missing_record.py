"""The meaning of a missing record of the chain for the run, in words for people.

A node whose disk lost the record of an old round has the newest state all the same, and goes on
from it. A newcomer cannot follow the chain over the missing record, and this node cannot make the
record again. So a member that has it has to bring it. Or the record goes behind a signed checkpoint
of the chain, as all old records do in time. The founder's node alone can sign one by itself, see
`CheckpointKeeper`.
"""

from __future__ import annotations

from gossamer.node.heads.rollbacks import Rollbacks
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.heads.chain_checkpoint import signing_depth
from gossamer.protocol.policy.heads.chain_summary import CHECKPOINT_PERIOD
from gossamer.protocol.standing import STANDING_ROUNDS


def first_checkpoint_behind(gap: int) -> int:
    """Returns the first round whose checkpoint the founder's node alone can sign over a missing
    record. After a rollback to an earlier round none is signed: `CheckpointKeeper`."""
    return -(-(gap + STANDING_ROUNDS) // CHECKPOINT_PERIOD) * CHECKPOINT_PERIOD


def missing_record_text(
    committed: CommittedState, manifest: Manifest, me: PeerId, rollbacks: Rollbacks
) -> str | None:
    """Returns what the owner should know of a record that is missing on the way to the committed
    head; None if none is."""
    gap = committed.chain.gap_before(committed.head) if committed.is_loaded else None
    if gap is None:
        return None
    text = (
        f"the record of round {gap} is damaged or missing on this disk: the model and its training "
        "are not affected, but newcomers cannot join until a member that has the record connects"
    )
    first_signed = first_checkpoint_behind(gap)
    if me != manifest.founder:
        return text
    if any(each.round < first_signed for each in rollbacks):
        return (
            f"{text}. If there is no such member, `gossamer export` writes the model, and "
            "a new run can begin with it (`gossamer start --init-from FOLDER`)"
        )
    at_round = first_signed + signing_depth(manifest.rounds.checkpoint_rounds)
    if committed.entry.round < at_round:
        return f"{text}, or this node comes to round {at_round} by its own work"
    return f"{text}, or this node signs a checkpoint of the chain, within a minute if it is alone"
