"""Taking rounds of a run back, from what lies in the state directory of a peer that may sign it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.node.heads.missing_record import first_checkpoint_behind
from gossamer.node.heads.rollbacks import RollbackFiles
from gossamer.node.runs.governance.signed_orders import OrderError, SignersRun
from gossamer.node.runs.rounds_here import rounds_here, spans_text, way_to
from gossamer.node.storage.state.restoring import open_read_only, rebuild
from gossamer.protocol.policy.heads.chain_checkpoint import signing_depth
from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import Rollback


@dataclass(frozen=True)
class Plan:
    """The rounds that a rollback takes back."""

    statement: Rollback
    newest_round: int
    tokens: int
    """Contributed tokens that are lost to the run."""
    missing: int
    """Keepers that still have to sign it after this node; 0: it holds."""
    warning: str
    """What else it costs, for people; empty if nothing."""


class RollbackDesk:
    """Plans and signs rollbacks of the run in a state directory."""

    def __init__(self, run: SignersRun, cache_bytes: int) -> None:
        """
        Raises:
            OrderError: this node neither founded the run nor is one of its keepers.
        """
        self.manifest = run.manifest
        self._identity = run.identity
        self._state_dir = run.state_dir
        self._cache_bytes = cache_bytes
        signers = RollbackSigners.of(run.manifest)
        if run.identity.peer_id not in signers:
            who = f"the founder ({signers.founder})"
            if signers.keepers:
                who += f" or more than half of the keepers ({', '.join(sorted(signers.keepers))})"
            raise run.refuse("takes rounds back", who)
        self._files = RollbackFiles(run.state_dir.root, run.manifest.run_id, signers)

    def plan(self, round_number: int) -> Plan:
        """Returns what a rollback to the state after a round takes back.

        The state is rebuilt from this disk, so that at least one node can serve it.

        Raises:
            OrderError: there is no such round, or its state cannot be rebuilt.
        """
        try:
            return self._plan(round_number)
        except MemoryError as error:
            raise OrderError(
                f"too little memory is free here to rebuild the state of round {round_number} "
                "beside that of the node: end the node with gossamer leave, give the order again, "
                "and start the node"
            ) from error

    def _plan(self, round_number: int) -> Plan:
        newest = self._state_dir.newest_head()
        committed, _ = open_read_only(self.manifest, self._state_dir, self._cache_bytes)
        chain = committed.chain
        heads = way_to(committed, newest)
        gap = None if newest is None else chain.gap_before(newest)
        first = chain.entry(heads[0]).round
        newest_round = chain.entry(heads[-1]).round
        if not 0 <= round_number < newest_round:
            raise OrderError(
                f"round {round_number} is none to go back to: the newest round here is "
                f"{newest_round}"
            )
        signed_rounds = signing_depth(self.manifest.rounds.checkpoint_rounds)
        oldest_round = max(first, newest_round - signed_rounds)
        place = max(0, round_number - first)
        target, undone = heads[place], heads[place + 1 :][:1]
        problem = ""
        if gap is not None and round_number < first:
            problem = f"is none to go back to: the record of round {gap} is missing on this disk"
        elif round_number < oldest_round:
            problem = "is too old to go back to: members have signed that it stays"
        elif not rebuild(committed, target) or committed.head != target:
            problem = "is none to go back to: its state cannot be rebuilt from this disk"
        if problem:
            here = rounds_here(committed, heads[:-1])
            possible = [each for each in here if each >= oldest_round]
            what = _what_to_name(possible, newest_round - 1)
            raise OrderError(f"round {round_number} {problem}. {what}")
        total = chain.entry(heads[-1]).tokens_total - chain.entry(target).tokens_total
        statement = Rollback(undone[0], target, round_number)
        authors = self._files.authors_of(statement) | {self._identity.peer_id}
        missing = self._files.signers.missing(authors)
        return Plan(statement, newest_round, total, missing, _warning(gap, round_number))

    def roll_back(self, plan: Plan) -> None:
        """Leaves a signed rollback for the node. Raises DiskError."""
        signed = seal(
            plan.statement, self._identity.peer_id, self.manifest.run_id, self._identity.sign
        )
        self._files.write(signed)


def _warning(gap: int | None, round_number: int) -> str:
    """Says what a rollback costs where the record of a round is missing on this disk."""
    if gap is None or round_number >= first_checkpoint_behind(gap):
        return ""
    return (
        f"The record of round {gap} is missing on this disk, and after this rollback no checkpoint "
        "of the chain can be signed that stands for it: newcomers can join no more, unless a "
        "member brings the record."
    )


def _what_to_name(possible: Sequence[int], newest_round: int) -> str:
    """Says what to do about a rollback that is refused.

    Args:
        possible: the rounds to which this disk can go back, the oldest first.
        newest_round: the newest round to which a rollback may go.
    """
    if not possible:
        return "This disk has no other state to go back to: start the node, and try again"
    return f"Name {spans_text(possible, newest_round)}"
