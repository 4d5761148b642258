"""Long chains of headers without work, which are quick to make, and their folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.wire.envelopes import ring_id_of
from gossamer.protocol.wire.statements import Ready, Roster, Signed, Vote

TOKENS = 10
"""Tokens of each member in each round."""


CHAIN_RUN = digest_of(b"run")
"""The run of the chains that lie in folders."""


def open_chain(
    directory: Path, *, read_only: bool = False, pinned_head: Digest | None = None
) -> ChainStore:
    """Opens the folder of a chain of `CHAIN_RUN`."""
    return ChainStore(
        directory, CHAIN_RUN, Digest(bytes(32)), read_only=read_only, pinned_head=pinned_head
    )


def write_chain(directory: Path, rounds: Iterable[tuple[Commit, Header]]) -> ChainStore:
    """Writes rounds of `CHAIN_RUN` into a folder, and returns its store."""
    store = open_chain(directory)
    for commit, header in rounds:
        store.add(commit, header)
    return store


def rounds_after(
    members: Sequence[PeerId],
    num_rounds: int,
    parent: Digest,
    *,
    round_number: int = 0,
    tokens_total: int = 0,
    run_id: Digest | None = None,
    says_all: bool = False,
) -> Iterator[tuple[Commit, Header]]:
    """Rounds of the same members that follow a head, each with a vote of every member that nobody
    has signed: the store leaves checking to its caller.

    Args:
        round_number: of the parent.
        tokens_total: of its chain.
        run_id: by default the parent, which is then the run's beginning.
        says_all: whether roster and votes are what members of such rounds would sign, as records in
            compact form need it; otherwise they are as many zeros, in half of the time.
    """
    run_id = parent if run_id is None else run_id
    roster = Signed(members[0], bytes(260 * len(members)), bytes(64))
    votes = tuple(Signed(peer, bytes(70), bytes(64)) for peer in members)
    ring_id = Digest(bytes(32))
    for number in range(round_number + 1, round_number + num_rounds + 1):
        tokens_total += TOKENS * len(members)
        if says_all:
            roster = _roster(members, number, parent)
            ring_id = ring_id_of(roster)
        header = Header(
            version=limits.PROTOCOL_VERSION,
            run_id=run_id,
            round=number,
            parent=parent,
            ring_id=ring_id,
            members=tuple(Member(peer, TOKENS, 1.0) for peer in members),
            tokens_total=tokens_total,
            update_digest=bytes(32),
            state_digest=bytes(32),
            ledger_digest=bytes(32),
            spans=(),
        )
        encoded = to_msgpack(header)
        if says_all:
            vote = to_msgpack(Vote(ring_id, 1, digest_of(encoded), ()))
            votes = tuple(Signed(peer, vote, bytes(64)) for peer in sorted(members))
        yield Commit(encoded, roster, votes), header
        parent = header.digest


def _roster(members: Sequence[PeerId], number: int, parent: Digest) -> Signed:
    ready = Ready(1_760_000_000 * 10**9, number, number, parent, TOKENS, 500, 2.5, 1.0, ())
    payload = to_msgpack(ready)
    readies = tuple(Signed(peer, payload, bytes(64)) for peer in members)
    return Signed(
        members[0], to_msgpack(Roster(number, parent, 0, readies, "fp32", 1024)), bytes(64)
    )
