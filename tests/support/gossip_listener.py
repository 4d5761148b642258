"""A `GossipListener` for tests of the parts below the swarm."""

from __future__ import annotations

from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import Announce, Signed, Statement


class OpenListener:
    """Admits every peer and statement, and fails at an offence. Subclasses do something with what
    they hear."""

    def is_welcome(self, author: PeerId) -> bool:
        return True

    def admits(self, author: PeerId, statement: Statement) -> bool:
        return True

    def heard_statement(self, signed: Signed, statement: Statement) -> bool:
        return True

    def verified(self, signed: Signed, statement: Statement) -> None:
        pass

    def heard_commit(self, commit: Commit) -> bool:
        return True

    def heard_own(self, announce: Announce) -> None:
        pass

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        raise AssertionError(f"{peer} broke the protocol: {error}")

    def is_apart(self) -> bool:
        return False

    def is_member(self, peer: PeerId) -> bool:
        return True
