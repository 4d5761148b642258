"""Orders to all nodes of a run, which its founder or its keepers sign on their own machines.

The state directory is read without its lock, so the node may run. It takes an order within a
second.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.node.base.settings.settings import Settings
from gossamer.node.network.identity import Identity
from gossamer.node.runs.manifest_here import manifest_here
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import Manifest


class OrderError(Exception):
    """The order cannot be given; the text says why and what to do."""


@dataclass(frozen=True)
class SignersRun:
    """The run in a state directory, as a peer sees it that signs orders."""

    manifest: Manifest
    identity: Identity
    state_dir: StateDir

    @classmethod
    def here(cls, settings: Settings) -> SignersRun:
        """Reads the state directory.

        Raises:
            StateDirError, IdentityError: there is no run, or a file of it is damaged.
        """
        state_dir = StateDir(settings.state_dir)
        manifest = manifest_here(state_dir)
        identity = Identity.load_or_create(state_dir.identity_path)
        return cls(manifest, identity, state_dir)

    def refuse(self, what: str, who: str) -> OrderError:
        """Returns the error for a node that is none of those who may give an order."""
        return OrderError(f"only {who} {what}, and this node is {self.identity.peer_id}")
