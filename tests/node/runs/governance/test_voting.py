"""Orders to vote, from what lies in a state directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gossamer.node.cli import run_command
from gossamer.node.network.identity import Identity, verify
from gossamer.node.runs.governance.inviting import InvitationError, InviteOnlyRun
from gossamer.node.runs.governance.voting import OpenVote, VotingDesk, in_words
from gossamer.node.storage.admission_files import ExpulsionFile, TooManyWishesError
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members.expulsion_count import Tally
from gossamer.protocol.policy.members.expulsions import Expulsions
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.wire.expulsion_messages import VOTES_MAX, ExpulsionVote, SavedExpulsions
from tests.node.runs.governance.test_inviting import NEWCOMER, founded, let_in

OTHER = Identity.from_seed(bytes([7]) * 32)


def joined(root: Path) -> tuple[StateDir, PeerId]:
    """The state directory of a member that a founder let in beside NEWCOMER and OTHER."""
    founder = founded(root / "founder")
    mine = StateDir(root / "mine")
    mine.root.mkdir()
    me = Identity.load_or_create(mine.identity_path)
    for newcomer in (me, NEWCOMER, OTHER):
        run = let_in(founder, newcomer)
    signed = founder.read_manifest()
    assert signed is not None
    mine.write_manifest(signed)
    (mine.root / "roll").write_bytes(run.file.path.read_bytes())
    return mine, me.peer_id


def vote_of(roll: Roll, voter: Identity, target: PeerId) -> ExpulsionVote:
    head = digest_of(b"a head")
    blank = ExpulsionVote(public_key_of(voter.peer_id), public_key_of(target), 16, head, b"")
    fields = (blank.voter, blank.target, blank.round, blank.head)
    return ExpulsionVote(*fields, voter.sign(blank.signing_bytes(roll.run_id)))


def test_one_that_is_not_above_a_member_votes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, me = joined(tmp_path)
    where = ("--state-dir", str(mine.root))
    assert run_command(["revoke", NEWCOMER.peer_id[-8:], *where]) == 0
    said = capsys.readouterr().out
    assert "did not come in through this node, which votes that it goes" in said
    assert "votes count from round 32 on" in said
    file = ExpulsionFile(mine.root)
    assert file.wishes() == [public_key_of(NEWCOMER.peer_id)]
    assert run_command(["members", *where]) == 0
    said = capsys.readouterr().out
    assert f"To put out {NEWCOMER.peer_id}" in said
    assert "This node votes for it." in said
    assert run_command(["revoke", me, *where]) == 2
    assert "this node itself" in capsys.readouterr().err
    assert run_command(["revoke", NEWCOMER.peer_id, "--withdraw", *where]) == 0
    assert file.wishes() == []
    capsys.readouterr()
    assert run_command(["revoke", NEWCOMER.peer_id, "--withdraw", *where]) == 2
    assert "does not vote on" in capsys.readouterr().err


def test_who_is_out_by_a_vote_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, _ = joined(tmp_path)
    roll = InviteOnlyRun.here(mine).roll
    file = ExpulsionFile(mine.root)
    put_out = vote_of(roll, OTHER, NEWCOMER.peer_id)
    file.write(SavedExpulsions((), ((put_out,),)))
    run = InviteOnlyRun.here(mine)
    assert not run.roll.is_member(NEWCOMER.peer_id)
    assert run_command(["members", "--state-dir", str(mine.root)]) == 0
    assert "out by vote" in capsys.readouterr().out
    with pytest.raises(InvitationError, match="nobody is in"):
        VotingDesk(run, mine).vote(NEWCOMER.peer_id)
    file.path.write_bytes(b"damaged")
    with pytest.raises(InvitationError, match="start the node"):
        InviteOnlyRun.here(mine)


def test_a_root_and_one_above_revoke_without_a_vote(tmp_path: Path) -> None:
    founder = founded(tmp_path / "a")
    run = let_in(founder, NEWCOMER)
    assert run.may_revoke(NEWCOMER.peer_id)
    row = run.members()[-1]
    assert row.invitation is not None
    theirs = InviteOnlyRun(run.manifest, NEWCOMER, run.roll, run.file)
    let_in(founder, OTHER)
    assert not theirs.may_revoke(row.invitation), "it came in by that invitation"


def test_an_operator_has_as_many_votes_as_the_others_keep(tmp_path: Path) -> None:
    file = ExpulsionFile(tmp_path)
    keys = [digest_of(b"%d" % number) for number in range(VOTES_MAX + 1)]
    for key in keys[:-1]:
        file.wish(key)
    file.wish(keys[0])
    with pytest.raises(TooManyWishesError):
        file.wish(keys[-1])
    (file.voted_path / "nonsense").write_bytes(b"")
    (file.voted_path / "abcd").write_bytes(b"")
    assert file.wishes() == sorted(keys[:-1])
    assert file.withdraw(keys[0])
    assert not file.withdraw(keys[0])
    file.wish(keys[-1])
    assert keys[-1] in file.wishes()


def test_a_vote_that_the_disk_does_not_let_go_is_not_said_to_be_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _ = joined(tmp_path)
    where = ("--state-dir", str(mine.root))
    assert run_command(["revoke", NEWCOMER.peer_id, *where]) == 0
    capsys.readouterr()

    def refuse(path: object, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as read_only:
        read_only.setattr(os, "unlink", refuse)
        assert run_command(["revoke", NEWCOMER.peer_id, "--withdraw", *where]) == 1
    said = capsys.readouterr()
    assert "the disk is read-only" in said.err
    assert "no more" not in said.out
    assert ExpulsionFile(mine.root).wishes()


def test_a_damaged_file_of_votes_is_said(tmp_path: Path) -> None:
    file = ExpulsionFile(tmp_path)
    assert file.read() is None
    roll = Roll(digest_of(b"run"), [OTHER.peer_id], verify)
    saved = SavedExpulsions((vote_of(roll, OTHER, NEWCOMER.peer_id),), ())
    file.save(saved)
    assert file.read() == saved
    again = Expulsions(roll, verify)
    again.restore(saved)
    assert again.saved() == saved
    file.path.write_bytes(file.path.read_bytes()[:-1])
    with pytest.raises(MalformedError, match="expulsions is damaged"):
        file.read()


def test_how_far_a_vote_is_in_words() -> None:
    def words(tally: Tally | None) -> str:
        return in_words(OpenVote(NEWCOMER.peer_id, tally, is_wished=False))

    three = frozenset({NEWCOMER.peer_id, OTHER.peer_id, PeerId("third")})
    assert words(Tally(three, 30, 60, 5)) == (
        "3 of 5 needed; they have 50 % of the standing, and two thirds decide"
    )
    assert "only a root or a sponsor" in words(Tally(three, 30, 60, None))
    assert "fewer than three branches" in words(Tally(three, 0, 0, None))
    assert words(None) == "votes count from round 32 on"
