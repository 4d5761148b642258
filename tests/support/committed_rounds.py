"""Committed rounds without a swarm: one state makes them, and others take them over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from gossamer.node.network.identity import Identity
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state.restoring import restore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import Manifest, decode_manifest
from gossamer.protocol.rounds.commit import Proposal
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.rounds.roster import Ring, RingRules, make_roster, open_roster
from gossamer.protocol.state.chain import (
    ChunkAverage,
    Commit,
    Header,
    Member,
    UpdateIndex,
    mask_bytes,
)
from gossamer.protocol.state.digest import genesis_digest_of
from gossamer.protocol.wire.envelopes import seal
from tests.support.builders import ready
from tests.support.node_world import found, initial_weights

IDENTITY = Identity.from_seed(bytes(32))
TOKENS = 100
"""Tokens of the only member of each round."""


def small_manifest(num_layers: int = 2, checkpoint_rounds: int = 3) -> Manifest:
    """Some thousand parameters in a few chunks."""
    signed, _ = found(IDENTITY, checkpoint_rounds=checkpoint_rounds)
    manifest = decode_manifest(signed.manifest)
    change = msgspec.structs.replace
    model = change(manifest.model, num_layers=num_layers)
    outer = change(manifest.outer, warmup_rounds=0)
    weights = initial_weights(manifest.seed, model.num_parameters)
    genesis = genesis_digest_of(weights, outer.chunk_elements)
    return change(manifest, model=model, outer=outer, genesis_digest=genesis)


@dataclass(frozen=True)
class Averages:
    """The result of a ring with one member: the encoded averages of all chunks."""

    averages: list[Payload]
    masks: list[int]
    members: tuple[Member, ...]


def lone_ring(run_id: Digest, head: Digest, round_number: int, rules: RingRules) -> Ring:
    """The ring of a member that is ready and alone."""
    work = ready(head=head, round=round_number, tokens=TOKENS, norm=1.0, spans=())
    mine = seal(work, IDENTITY.peer_id, run_id, IDENTITY.sign)
    roster = make_roster(head, round_number, 0, {IDENTITY.peer_id: mine}, rules)
    envelope = seal(roster, IDENTITY.peer_id, run_id, IDENTITY.sign)
    return open_roster(envelope, roster, run_id, lambda *_: True, rules)


@dataclass(frozen=True)
class MadeRound:
    """A committed round, and the blocks that another state needs to replay it."""

    commit: Commit
    header: Header
    update: UpdateIndex
    averages: Averages

    @property
    def head(self) -> Digest:
        return self.header.digest

    @property
    def blocks(self) -> list[Payload]:
        return [to_msgpack(self.update), *self.averages.averages]


class Holder:
    """A committed state with its store and chain: the newest that its directory has."""

    def __init__(self, manifest: Manifest, root: Path, quota_bytes: int = 2**30) -> None:
        root.mkdir(parents=True, exist_ok=True)
        size = manifest.model.num_parameters
        initial = initial_weights(manifest.seed, size)
        state_dir = StateDir(root)
        self.manifest = manifest
        self.store = BlockStore(state_dir.blocks_path, quota_bytes)
        genesis = Digest(manifest.genesis_digest)
        self.chain = ChainStore(state_dir.chain_path, manifest.run_id, genesis)
        self.state = CommittedState(
            manifest, np.zeros(size, np.float32), self.store, self.chain, state_dir
        )
        if not restore(self.state):
            self.state.set_genesis(initial)

    def averages(self, seed: int) -> Averages:
        """The averages of a ring whose only member did some work."""
        payloads = self.state.payloads
        assert isinstance(payloads, SumPayloads)
        plan = self.state.sync_sets.whole.plan
        work = initial_weights(1000 + seed, plan.num_elements)
        chunks = range(plan.num_chunks)
        averages = [payloads.coder.encode(work[plan.range_of(chunk)]) for chunk in chunks]
        members = (Member(IDENTITY.peer_id, TOKENS, 1.0),)
        return Averages(averages, [1 for _ in chunks], members)

    def take_step(
        self,
        averages: Averages,
        parent: Digest | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Digest | None:
        """The outer step of a ring's driver, from a head: the present one by default."""
        return self.state.compute(
            self.state.head if parent is None else parent,
            averages.averages,
            averages.masks,
            averages.members,
            is_wanted,
        )

    def commit(self, averages: Averages) -> MadeRound:
        """Takes the outer step and installs it as the next round."""
        digest = self.take_step(averages)
        assert digest is not None
        made = self.proposed(averages, digest)
        self.install(made)
        return made

    def install(self, made: MadeRound) -> None:
        """Makes the round whose outer step was taken the committed one."""
        proposal = Proposal(made.header, made.update, self.state.ledger)
        self.state.install(made.commit, proposal, made.averages.averages)

    def proposed(self, averages: Averages, state_digest: Digest) -> MadeRound:
        """The round that follows from averages, which lead to this state."""
        entry = self.state.entry
        run_id, rules = self.manifest.run_id, self.state.ring_rules
        ring = lone_ring(run_id, entry.head, entry.round + 1, rules)
        update = UpdateIndex(
            "fp32",
            tuple(
                ChunkAverage(digest_of(average), mask_bytes(mask, 1))
                for average, mask in zip(averages.averages, averages.masks, strict=True)
            ),
        )
        header = Header(
            limits.PROTOCOL_VERSION,
            run_id,
            entry.round + 1,
            entry.head,
            ring.ring_id,
            averages.members,
            entry.tokens_total + TOKENS,
            update.digest,
            state_digest,
            Ledger().digest,
            (),
        )
        return MadeRound(Commit(to_msgpack(header), ring.envelope, ()), header, update, averages)

    def learn(self, made: MadeRound) -> None:
        """The record and the blocks of a round that others committed."""
        for block in made.blocks:
            self.store.put(block)
        self.chain.add(made.commit, made.header)

    def assert_whole(self) -> None:
        """The vectors are those that the head's state digest names."""
        state = self.state
        assert state.index is not None
        assert state.index.digest == state.entry.state_digest
        plan = state.plan
        for vector, digests in (
            (state.parameters, state.index.parameters),
            (state.momentum, state.index.momentum),
        ):
            for chunk, digest in enumerate(digests):
                content = vector[plan.range_of(chunk)].astype("<f4").tobytes()
                assert digest_of(content) == digest, f"chunk {chunk} is torn"
