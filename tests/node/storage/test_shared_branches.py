"""Shared steps of a node that leaves its branch for another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.node.storage.state.state_blocks import StateVectors, WholeState
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.state.chain import Member
from tests.support.committed_rounds import IDENTITY, TOKENS, Averages, Holder
from tests.support.node_world import every_place, found


def holder(root: Path) -> Holder:
    signed, _ = found(IDENTITY, codec="distro", checkpoint_rounds=1)
    return Holder(decode_manifest(signed.manifest), root)


def averages(node: Holder, seed: int) -> Averages:
    """The shared steps of a round with one member."""
    payloads = node.state.payloads
    assert isinstance(payloads, SignPayloads)
    draw = np.random.default_rng(seed)
    places = np.array(every_place(payloads.coder), np.int64)
    number = node.state.entry.round + 1
    steps: list[Payload] = []
    for _ in range(node.state.sync_sets.of_round(number).plan.num_chunks):
        update = SignUpdate(places, draw.random(len(places)) < 0.5)
        steps.append(add_record(None, 0, payloads.coder.encode(update)))
    members = (Member(IDENTITY.peer_id, TOKENS, 1.0),)
    return Averages(steps, [1 for _ in steps], members)


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Holder, Holder]:
    """Two nodes on two branches of one round each. The first one has the state of the second
    one's branch on its disk."""
    mine, other = holder(tmp_path / "mine"), holder(tmp_path / "other")
    mine.commit(averages(mine, 1))
    theirs = other.commit(averages(other, 2))
    state = other.state
    assert state.index is not None
    mine.learn(theirs)
    vectors = StateVectors(state.parameters, state.momentum, state.index)
    for digest in WholeState(state.entry, vectors, state.ledger).digests:
        mine.store.put(other.store.get(digest))
    return mine, other


def test_a_round_that_began_on_the_branch_that_was_left_does_not_go_on(
    nodes: tuple[Holder, Holder],
) -> None:
    mine, other = nodes
    mine.state.begin_steps(2)
    mine.state.load_checkpoint(other.state.head)
    following = averages(other, 3)
    assert mine.take_step(following) == other.take_step(following)


def test_the_trainer_sees_the_state_that_was_loaded(nodes: tuple[Holder, Holder]) -> None:
    mine, other = nodes
    mine.state.load_checkpoint(other.state.head)
    shared_parameters = mine.state.shared_parameters
    assert shared_parameters is not None
    assert (shared_parameters.values == other.state.parameters).all()
