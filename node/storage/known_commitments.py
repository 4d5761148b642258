"""The commitments that members of committed rounds have signed in their `Ready`
(`policy.sum_audits`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from gossamer.node.storage.chain_store import ChainStore
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.audits import MEMORY_ROUNDS
from gossamer.protocol.wire.envelopes import decode_statement
from gossamer.protocol.wire.statements import Ready, Roster


class KnownCommitments:
    """Those of the rounds of a chain store. They are read when they are asked for, and those of the
    newest `MEMORY_ROUNDS` remembered: no verdict is on an older round."""

    def __init__(self, chain: ChainStore) -> None:
        self._chain = chain
        self._known: OrderedDict[Digest, Mapping[PeerId, bytes]] = OrderedDict()

    def of(self, head: Digest) -> Mapping[PeerId, bytes]:
        """Returns the commitment of each member of a known round; none if its record cannot be read
        now."""
        if head not in self._known:
            try:
                found = _commitments_in(self._chain.commit(head).roster.payload)
            except (KeyError, OSError, RemoteProtocolError):
                return {}
            self._known[head] = found
            if len(self._known) > MEMORY_ROUNDS:
                self._known.popitem(last=False)
        return self._known[head]


def _commitments_in(payload: bytes) -> dict[PeerId, bytes]:
    """The commitments in a roster. The record was checked before it was kept."""
    roster = decode_statement(payload)
    assert isinstance(roster, Roster)
    said = {PeerId(each.author): decode_statement(each.payload) for each in roster.members}
    return {peer: ready.commitment for peer, ready in said.items() if isinstance(ready, Ready)}
