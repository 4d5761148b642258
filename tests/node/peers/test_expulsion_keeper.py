"""What a node signs: no more than a voter's votes, each once, and every target in its turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from gossamer.node.base.disk_health import DiskError, write_atomically
from gossamer.node.network.identity import Identity, verify
from gossamer.node.peers.members.expulsion_keeper import LOOK_SECONDS, ExpulsionKeeper
from gossamer.node.peers.members.introductions import claim_of
from gossamer.node.storage import admission_files
from gossamer.node.storage.admission_files import ExpulsionFile
from gossamer.protocol.ids import Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members.expulsion_count import VOTE_ROUNDS
from gossamer.protocol.policy.members.expulsions import CONFIRM_ROUNDS
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.wire.expulsion_messages import (
    VOTE_PERIOD,
    VOTES_MAX,
    ExpulsionVote,
    SavedExpulsions,
    decode_expulsion_page,
)
from gossamer.protocol.wire.invitation_messages import Invitation, RollPage
from tests.fuzz.scripted import ME, Offences, ScriptedTransport

RUN_ID = digest_of(b"a run by invitation")
NOW = 1_700_000_000
NUM_OUT = VOTES_MAX + 4


class Standings:
    """A chain on which ME alone has stake."""

    settled_round = 4 * VOTE_PERIOD

    def head_at(self, round_number: int) -> Digest | None:
        is_here = self.settled_round - VOTE_ROUNDS <= round_number <= self.settled_round
        return digest_of(b"%d" % round_number) if is_here else None

    def stakes_at(self, _head: Digest) -> dict[PeerId, int]:
        return {ME.peer_id: 10}


class Listening(ScriptedTransport):
    """Keeps what is published."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.votes: list[ExpulsionVote] = []

    async def publish(self, topic: str, data: bytes) -> None:
        self.votes += decode_expulsion_page(data).votes
        await trio.lowlevel.checkpoint()


def grown(roll: Roll) -> list[bytes]:
    """Members that came in, by their keys."""
    keys = []
    for number in range(NUM_OUT):
        newcomer = Identity.from_seed(bytes([number + 1]) * 32)
        secret = bytes([number + 101]) * 32
        key = public_key_of(Identity.from_seed(secret).peer_id)
        by = roll.certify(ME.peer_id, key, 1, NOW + 1000, 0, ME.sign)
        claim = claim_of(Invitation(secret, by, (), ()), RUN_ID, newcomer.peer_id)
        entry = roll.let_in(claim, newcomer.peer_id, ME.peer_id, NOW, ME.sign)
        assert entry is not None
        roll.add(RollPage((entry,), ()))
        keys.append(entry.newcomer)
    return keys


def keeper(folder: Path) -> tuple[ExpulsionKeeper, Listening, Standings, list[bytes]]:
    roll, transport, standings = Roll(RUN_ID, [ME.peer_id], verify), Listening(), Standings()
    offences = Offences()
    made = ExpulsionKeeper(
        roll,
        transport,
        ME,
        offences,  # type: ignore[arg-type]
        ExpulsionFile(folder),
    )
    keys = grown(roll)
    made.standings = standings
    return made, transport, standings, keys


def test_each_that_is_out_is_confirmed_in_its_turn_and_none_twice_at_one_head(
    tmp_path: Path,
) -> None:
    made, transport, standings, keys = keeper(tmp_path)
    proofs = []
    for key in keys:
        vote = made.expulsions.vote(ME.peer_id, key, standings, ME.sign)
        assert vote is not None
        proofs.append((vote,))
    made.expulsions.restore(SavedExpulsions((), tuple(proofs)))
    assert made.expulsions.expelled == {*keys}

    async def look() -> set[bytes]:
        transport.votes.clear()
        await made._vote([])
        assert len({vote.target for vote in transport.votes}) == len(transport.votes)
        return {vote.target for vote in transport.votes}

    async def story() -> None:
        assert await look() == set()
        standings.settled_round += CONFIRM_ROUNDS
        first = await look()
        assert len(first) == VOTES_MAX
        assert await look() == set()
        # Others' votes made these proofs newer, so the rest comes next.
        standings.settled_round += VOTE_PERIOD
        newer = []
        for key in sorted(first):
            vote = made.expulsions.vote(ME.peer_id, key, standings, ME.sign)
            assert vote is not None
            newer.append((vote,))
        made.expulsions.restore(SavedExpulsions((), tuple(newer)))
        assert await look() == {*keys} - first
        assert await look() == set()

    trio.run(story)


def test_a_wish_is_signed_once_and_renewed(tmp_path: Path) -> None:
    made, transport, standings, keys = keeper(tmp_path)

    async def story() -> None:
        for _ in range(3):
            await made._vote([keys[0], digest_of(b"nobody")])
        assert [vote.target for vote in transport.votes] == [keys[0]]
        for _ in range(8):
            standings.settled_round += VOTE_PERIOD
            await made._vote([keys[0]])
        rounds = [vote.round for vote in transport.votes]
        assert rounds == [4 * VOTE_PERIOD, 8 * VOTE_PERIOD, 12 * VOTE_PERIOD]
        # Nothing goes out for one that a revocation has put out meanwhile.
        roll = made._roll
        roll.add(RollPage((), (roll.revoke(ME.peer_id, keys[0], ME.sign),)))
        standings.settled_round += 8 * VOTE_PERIOD
        await made._vote([keys[0]])
        assert len(transport.votes) == 3

    trio.run(story)


def test_votes_are_counted_again_when_the_roll_has_changed(tmp_path: Path) -> None:
    """No round has come, but the roll has: votes of one branch hold no more."""
    made, _, standings, keys = keeper(tmp_path)
    made._advance()
    vote = made.expulsions.vote(ME.peer_id, keys[0], standings, ME.sign)
    assert vote is not None
    made.expulsions.restore(SavedExpulsions((), ((vote,),)))
    made._advance()
    assert made.expulsions.expelled == {keys[0]}, "nothing has changed"
    key = public_key_of(Identity.from_seed(bytes([250]) * 32).peer_id)
    made._roll.add(RollPage((), (made._roll.revoke(ME.peer_id, key, ME.sign),)))
    made._advance()
    assert not made.expulsions.expelled


def test_votes_that_the_disk_refuses_once_are_on_it_after_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, _, keys = keeper(tmp_path)
    made._file.wish(keys[0])
    write, refused = write_atomically, 0

    def refusing(path: Path, data: bytes) -> None:
        nonlocal refused
        if refused == 0:
            refused += 1
            raise DiskError("no space left on device")
        write(path, data)

    monkeypatch.setattr(admission_files, "write_atomically", refusing)

    async def run_here(work: Callable[[], object]) -> object:
        await trio.lowlevel.checkpoint()
        return work()

    async def story() -> None:
        with trio.move_on_after(3.5 * LOOK_SECONDS):
            await made.run(run_here)  # type: ignore[arg-type]

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert refused == 1
    saved = ExpulsionFile(tmp_path).read()  # as a restart does
    assert saved is not None
    assert saved.votes
    assert saved == made.expulsions.saved()
