"""What a state knows of the newest rounds while its disk does not give their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gossamer.node.storage.known_rounds import KnownRounds
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.head_choice import HeadChoice
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
