"""The signed checkpoints of one node while its roll changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.heads.checkpoint_keeper import CheckpointKeeper
from gossamer.node.network.identity import Identity
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.peers.chain.chain_checkpoints import ChainCheckpoints, Pending
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.chain_checkpoint import (
    ChainCheckpoint,
    OpenedCheckpoint,
    checkpoint_of,
    claimed_by,
    signing_bytes,
)
from gossamer.protocol.policy.heads.chain_summary import (
    CHECKPOINT_PERIOD,
    NO_SUMMARY,
    ChainSummary,
    extended,
)
from gossamer.protocol.wire.checkpoint_messages import CheckpointSignature, SignedCheckpoint
from tests.fuzz.scripted import ScriptedTransport
from tests.support.builders import manifest
from tests.support.committed_rounds import IDENTITY
from tests.support.long_chains import TOKENS, rounds_after

RUN = replace(manifest(), founder=IDENTITY.peer_id)
IDENTITIES = [IDENTITY, *(Identity.from_seed(bytes([number]) * 32) for number in range(1, 8))]
PEERS = [identity.peer_id for identity in IDENTITIES]


def checkpoint(first: int, end: int, period: int) -> tuple[ChainCheckpoint, ChainSummary]:
    """One at which the peers from `first` on have equal stakes."""
    members = PEERS[first:end]
    rounds = rounds_after(members, period * CHECKPOINT_PERIOD, RUN.run_id)
    headers = [header for _, header in rounds]
    summary = extended(NO_SUMMARY, headers)
    stakes = dict.fromkeys(members, TOKENS)
    made = checkpoint_of(headers[-1], stakes, summary, stakes)
    return made, summary


def signed(made: ChainCheckpoint, first: int, end: int) -> SignedCheckpoint:
    message = signing_bytes(RUN.run_id, made.digest)
    signatures = (
        CheckpointSignature(each.peer_id, each.sign(message)) for each in IDENTITIES[first:end]
    )
    return SignedCheckpoint(to_msgpack(made), tuple(signatures))


def pending(made: ChainCheckpoint, summary: ChainSummary, first: int, end: int) -> Pending:
    signatures = signed(made, first, end).signatures
    return Pending(made, summary, {PeerId(each.author): each for each in signatures})


def test_a_path_that_the_roll_does_not_prove_any_more_ends_nothing(tmp_path: Path) -> None:
    """Entries of three signers stop counting. The path is served as before, and goes on when the
    entries count again."""
    branches = {each: each for each in PEERS}
    made = ChainCheckpoints(
        RUN, ScriptedTransport(), tmp_path, DiskHealth(), branches.__getitem__, lambda _: None,
        lambda *_: None, Uploads(),
    )  # fmt: skip
    one, summary = checkpoint(0, 7, 1)
    made.take_path([claimed_by(signed(one, 0, 4), RUN.run_id)], summary)
    made.pending = pending(*checkpoint(4, 8, 2), 4, 8)
    branches.update(dict.fromkeys(PEERS[1:4], PEERS[1]))
    assert not made.take_if_proven()
    assert made.last_round == CHECKPOINT_PERIOD
    branches.update({each: each for each in PEERS})
    made.pending = pending(*checkpoint(1, 8, 2), 1, 8)
    assert made.take_if_proven()
    assert made.last_round == 2 * CHECKPOINT_PERIOD


def test_a_checkpoint_up_to_the_path_that_came_meanwhile_is_not_taken(tmp_path: Path) -> None:
    made = ChainCheckpoints(
        RUN, ScriptedTransport(), tmp_path, DiskHealth(), None, lambda _: None, lambda *_: None,
        Uploads(),
    )  # fmt: skip
    one, summary = checkpoint(0, 7, 1)
    later, later_summary = checkpoint(0, 7, 2)
    made.pending = pending(one, summary, 0, 4)
    made.take_path([claimed_by(signed(later, 0, 4), RUN.run_id)], later_summary)
    assert not made.take_if_proven()
    assert made.last_round == 2 * CHECKPOINT_PERIOD
    assert made.pending is None


def test_a_path_that_is_older_than_one_that_came_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the newest one when the peer was asked for its summary."""
    one, summary = checkpoint(0, 7, 1)
    later, later_summary = checkpoint(0, 7, 2)
    made = ChainCheckpoints(
        RUN, ScriptedTransport(), tmp_path, DiskHealth(), None, lambda _: None, lambda *_: None,
        Uploads(),
    )  # fmt: skip

    async def ask_path(_peer: PeerId) -> list[OpenedCheckpoint]:
        return [claimed_by(signed(one, 0, 4), RUN.run_id)]

    async def ask_summary(_peer: PeerId, _digest: Digest) -> ChainSummary:
        made.take_path([claimed_by(signed(later, 0, 4), RUN.run_id)], later_summary)
        return summary

    monkeypatch.setattr(made, "ask_path", ask_path)
    monkeypatch.setattr(made, "ask_summary", ask_summary)
    committed = SimpleNamespace(head=one.head)
    keeper = CheckpointKeeper(
        RUN, IDENTITY, ScriptedTransport(), committed, None, [],  # type: ignore[arg-type]
        made, lambda *_: None,
    )  # fmt: skip
    monkeypatch.setattr(keeper, "_ancestor", lambda head, _round: head)
    assert not trio.run(keeper._take_path_of, PEERS[1])
    assert made.last_round == 2 * CHECKPOINT_PERIOD
