"""Long chains of headers without work, which are quick to make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.state.chain import Commit, Header, Member, encode_header
from gossamer.protocol.wire.statements import Signed

TOKENS = 10
"""Tokens of each member in each round."""


def rounds_after(
    members: Sequence[PeerId],
    num_rounds: int,
    parent: Digest,
    *,
    round_number: int = 0,
    tokens_total: int = 0,
    run_id: Digest | None = None,
) -> Iterator[tuple[Commit, Header]]:
    """Rounds of the same members that follow a head, each with a vote of every member that nobody
    has signed: the store leaves checking to its caller.

    Args:
        round_number: of the parent.
        tokens_total: of its chain.
        run_id: by default the parent, which is then the run's beginning.
    """
    run_id = parent if run_id is None else run_id
    roster = Signed(members[0], bytes(260 * len(members)), bytes(64))
    votes = tuple(Signed(peer, bytes(70), bytes(64)) for peer in members)
    for number in range(round_number + 1, round_number + num_rounds + 1):
        tokens_total += TOKENS * len(members)
        header = Header(
            version=limits.PROTOCOL_VERSION,
            run_id=run_id,
            round=number,
            parent=parent,
            ring_id=bytes(32),
            members=tuple(Member(peer, TOKENS, 1.0) for peer in members),
            tokens_total=tokens_total,
            update_digest=bytes(32),
            state_digest=bytes(32),
            ledger_digest=bytes(32),
            spans=(),
        )
        encoded = encode_header(header)
        yield Commit(encoded, roster, votes), header
        parent = header.digest
