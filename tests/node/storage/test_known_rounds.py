"""What a state knows of the newest rounds while its disk does not give their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.standing import Standing
from gossamer.protocol.state.chain import Commit
from tests.support.committed_rounds import IDENTITY, Holder, small_manifest

NUM_ROUNDS = 3


def lie_silent(_head: Digest) -> Commit:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_standing_does_not_depend_on_what_the_disk_gives_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """In a run with a probation, the next state follows from it at all members alike."""
    manifest: Any = small_manifest(checkpoint_rounds=1)
    manifest = replace(manifest, rounds=replace(manifest.rounds, probation=NUM_ROUNDS))
    holder = Holder(manifest, tmp_path)
    for seed in range(NUM_ROUNDS):
        holder.commit(holder.averages(seed))
    if is_restarted:
        holder = Holder(manifest, tmp_path)
    assert holder.state.entry.round == NUM_ROUNDS
    monkeypatch.setattr(holder.chain, "commit", lie_silent)
    standing = holder.state._standing_of([PeerId(IDENTITY.peer_id)])
    assert standing == Standing([NUM_ROUNDS], NUM_ROUNDS)


def test_the_choice_of_a_head_forgets_what_it_took_from_a_record_that_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it remembers without the members of a round would stay until many rounds later."""
    holder = Holder(small_manifest(), tmp_path)
    heads = []
    for seed in range(NUM_ROUNDS):
        holder.commit(holder.averages(seed))
        heads.append(holder.state.head)
    me = PeerId(IDENTITY.peer_id)
    choice = HeadChoice(KnownRounds(holder.chain), PeerId("the founder"))
    with monkeypatch.context() as patch:
        patch.setattr(holder.chain, "commit", lie_silent)
        assert me not in choice.stakes_at(heads[1])
    assert choice.stakes_at(heads[2]).keys() == {me}  # reads all rounds on the way
    assert choice.stakes_at(heads[1]).keys() == {me}


def test_further_votes_that_the_disk_does_not_give_are_asked_for_once_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop waits for a failing disk, which takes seconds to say so."""
    holder = Holder(small_manifest(), tmp_path)
    made = holder.commit(holder.averages(0))
    rounds = KnownRounds(holder.chain)
    signers = rounds.signers_of(made.head)
    number, heads = holder.chain.joined
    holder.chain.joined = number + 1, (*heads, made.head)
    asked: list[Digest] = []

    def fail(head: Digest) -> Commit:
        asked.append(head)
        return lie_silent(head)

    with monkeypatch.context() as patch:
        patch.setattr(holder.chain, "commit", fail)
        for _ in range(3):
            assert rounds.signers_of(made.head) == signers
        assert asked == [made.head]
        holder.commit(holder.averages(1))
        for _ in range(3):
            assert rounds.signers_of(made.head) == signers
        assert asked == [made.head] * 2
    holder.commit(holder.averages(2))
    rounds.signers_of(made.head)
    assert not rounds._records[made.head].has_more_votes
