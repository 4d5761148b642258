"""A view of a run from outside: what one of its peers tells, for somebody who does not join.

A watcher asks a peer for its statements and for the newest commit records, and for nothing else: no
block of model or corpus, and no membership. It checks what it can check without the chain before
those records: signatures, rosters and votes. So a peer cannot invent rounds of others. It can hide
newer rounds, or show a branch that the run has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from gossamer.node.network.frames import ask
from gossamer.node.network.identity import verify
from gossamer.node.network.transport import Transport
from gossamer.node.peers.members.run_exchange import admits
from gossamer.node.peers.statements.store_comparison import (
    STATEMENTS_PROTOCOL,
    decode_statement_store,
)
from gossamer.node.storage.state.next_state import payloads_for, ring_rules_of
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.rounds.commit_proof import open_commit, open_ring
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.state.commit_records import decode_commit
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, ChainRequest, decode_chain_reply
from gossamer.protocol.wire.envelopes import open_signed
from gossamer.protocol.wire.statements import Announce

ROUNDS_MAX = 32
"""Newest rounds that are asked for: enough for a trend, and one reply has twice as many."""

REQUEST_SECONDS = 15.0
"""Limit of one question: some hundred KiB over a bad line."""


@dataclass(frozen=True)
class WatchedRound:
    """One committed round, from its record."""

    number: int
    members: tuple[PeerId, ...]
    """Those whose work the round took."""
    tokens: int
    tokens_total: int
    """Tokens of the run up to and with this round."""
    loss: float | None
    """Mean training loss that these members say, weighted by their tokens, nats per token."""


@dataclass(frozen=True)
class View:
    """The account that a peer gives of its run at one moment."""

    peers: dict[PeerId, Announce] = field(default_factory=dict)
    """Announcements by peer, sorted."""
    rounds: tuple[WatchedRound, ...] = ()
    """The newest ones, oldest first."""


Show = Callable[[Manifest, View | None, str], None]
"""Shows the run, the newest view of it, and why there is no newer one; empty if there is."""

Tell = Callable[[str], None]
"""Tells a person what the watcher waits for, before there is anything to show."""


class Watcher:
    """Looks at one run through its peers."""

    def __init__(self, transport: Transport, manifest: Manifest) -> None:
        self._transport = transport
        self._manifest = manifest
        self._rules = ring_rules_of(manifest, payloads_for(manifest))
        self._bounds = WorkBounds(manifest)

    async def look(self, peer: PeerId) -> View:
        """Asks a connected peer.

        Raises:
            TransportError: it cannot be reached.
            trio.TooSlowError: it does not answer.
            RemoteProtocolError: its answer is not valid.
        """
        with trio.fail_after(REQUEST_SECONDS):
            peers = await self._announces(peer)
        mine = peers.get(peer)
        if mine is None or mine.round == 0:
            return View(peers)
        request = ChainRequest(mine.head, max(0, mine.round - ROUNDS_MAX))
        with trio.fail_after(REQUEST_SECONDS):
            rounds = await self._rounds(peer, request)
        return View(peers, tuple(rounds))

    async def _announces(self, peer: PeerId) -> dict[PeerId, Announce]:
        message = await ask(self._transport, peer, STATEMENTS_PROTOCOL, b"", REQUEST_SECONDS)
        found: dict[PeerId, Announce] = {}
        for signed in decode_statement_store(message):
            statement = open_signed(signed, self._manifest.run_id, verify)
            author = PeerId(signed.author)
            if isinstance(statement, Announce) and admits(self._manifest, author):
                found[author] = statement
            await trio.lowlevel.checkpoint()  # the peer chose how many there are
        return dict(sorted(found.items()))

    async def _rounds(self, peer: PeerId, request: ChainRequest) -> list[WatchedRound]:
        encoded = to_msgpack(request)
        message = await ask(self._transport, peer, CHAIN_PROTOCOL, encoded, REQUEST_SECONDS)
        rounds: list[WatchedRound] = []
        parent: Digest | None = None
        for record in decode_chain_reply(message):
            commit = decode_commit(record)
            header = open_commit(commit, self._manifest.run_id, verify, self._rules)
            self._bounds.check_header(header)
            if parent is not None and header.parent != parent:
                raise MalformedError("chain whose rounds do not follow each other")
            parent = header.digest
            given = {PeerId(each.peer_id): each.tokens for each in header.members if each.tokens}
            rounds.append(
                WatchedRound(
                    header.round,
                    tuple(given),
                    header.tokens,
                    header.tokens_total,
                    self._loss(commit, given),
                )
            )
            await trio.lowlevel.checkpoint()
        return rounds[-ROUNDS_MAX:]

    def _loss(self, commit: Commit, given: dict[PeerId, int]) -> float | None:
        # The signatures were checked with the record.
        ring = open_ring(commit, self._manifest.run_id, lambda *_: True, self._rules)
        losses = [
            (ready.loss, given[PeerId(member)])
            for member, ready in zip(ring.members, ring.ready, strict=True)
            if PeerId(member) in given
        ]
        return mean_of(losses)


def mean_of(weighted: Sequence[tuple[float, int]]) -> float | None:
    """Returns the mean of values by their weights; None without weight."""
    weight = sum(tokens for _, tokens in weighted)
    return sum(value * tokens for value, tokens in weighted) / weight if weight else None
