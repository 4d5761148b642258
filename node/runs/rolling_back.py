"""Taking rounds of a run back, from what lies in the founder's state directory.

The directory is read without its lock, so the node may run. It takes the rollback within a second.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.node.base.settings import Settings
from gossamer.node.heads.rollbacks import RollbackFiles
from gossamer.node.network.identity import Identity
from gossamer.node.peers.run_exchange import open_signed_manifest
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.restoring import open_read_only, rebuild
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.chain_checkpoint import signing_depth
from gossamer.protocol.wire.statements import Rollback, seal


class RollbackError(Exception):
    """The rounds cannot be taken back; the text says why and what to do."""


@dataclass(frozen=True)
class Plan:
    """The rounds that a rollback takes back."""

    statement: Rollback
    newest_round: int
    tokens: int
    """Contributed tokens that are lost to the run."""


class FoundersRun:
    """The run in a state directory, as its founder sees it."""

    def __init__(
        self, manifest: Manifest, identity: Identity, state_dir: StateDir, cache_bytes: int
    ) -> None:
        """
        Raises:
            RollbackError: this node did not found the run.
        """
        self.manifest = manifest
        self._identity = identity
        self._state_dir = state_dir
        self._cache_bytes = cache_bytes
        if identity.peer_id != manifest.founder:
            raise RollbackError(
                f"only the founder takes rounds back: that is {manifest.founder}, and this node is "
                f"{identity.peer_id}"
            )

    @classmethod
    def here(cls, settings: Settings) -> FoundersRun:
        """Reads the state directory.

        Raises:
            RollbackError: there is no run, or this node did not found it.
            StateDirError, IdentityError: a file of it is damaged.
        """
        state_dir = StateDir(settings.state_dir)
        signed = state_dir.read_manifest()
        if signed is None:
            raise RollbackError(f"there is no run in {state_dir.root}: name its --state-dir")
        identity = Identity.load_or_create(state_dir.identity_path)
        return cls(open_signed_manifest(signed), identity, state_dir, settings.cache_bytes)

    def plan(self, round_number: int) -> Plan:
        """Returns what a rollback to the state after a round takes back.

        The state is rebuilt from this disk, so that at least one node can serve it.

        Raises:
            RollbackError: there is no such round, or its state cannot be rebuilt.
            MemoryError: this machine has too little memory to rebuild a state beside the node's.
        """
        newest = self._state_dir.newest_head()
        committed, _ = open_read_only(self.manifest, self._state_dir, self._cache_bytes)
        chain = committed.chain
        path = [] if newest is None else chain.path_between(chain.root, newest) or []
        heads = [chain.root, *path]
        first = chain.entry(chain.root).round
        newest_round = first + len(path)
        if not 0 <= round_number < newest_round:
            raise RollbackError(
                f"round {round_number} is none to go back to: the newest round here is "
                f"{newest_round}"
            )
        oldest_round = newest_round - signing_depth(self.manifest.rounds.checkpoint_rounds)
        if round_number < max(first, oldest_round):
            raise RollbackError(
                f"round {round_number} is too old to go back to: members have signed that it "
                f"stays. Name a round from {max(first, oldest_round)} on"
            )
        target, undone = heads[round_number - first], heads[round_number - first + 1]
        if not rebuild(committed, target) or committed.head != target:
            raise RollbackError(self._why_not(committed, heads, round_number))
        total = chain.entry(heads[-1]).tokens_total - chain.entry(target).tokens_total
        return Plan(Rollback(undone, target, round_number), newest_round, total)

    def roll_back(self, plan: Plan) -> None:
        """Leaves a signed rollback for the node. Raises DiskError."""
        signed = seal(
            plan.statement, self._identity.peer_id, self.manifest.run_id, self._identity.sign
        )
        self._files().write(signed)

    def _files(self) -> RollbackFiles:
        founder = PeerId(self.manifest.founder)
        return RollbackFiles(self._state_dir.root, self.manifest.run_id, founder)

    @staticmethod
    def _why_not(committed: CommittedState, heads: list[Digest], round_number: int) -> str:
        first = committed.chain.entry(heads[0]).round
        whole = [
            first + place for place, head in enumerate(heads) if committed.blocks.has_state(head)
        ]
        problem = f"the state after round {round_number} cannot be rebuilt from this disk"
        if not whole:
            return f"{problem}: it holds no whole state. Start the node, and try again"
        return (
            f"{problem}: its oldest whole state is that after round {whole[0]}. Name a round from "
            f"{whole[0]} on"
        )
