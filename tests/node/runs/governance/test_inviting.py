"""Invitations, members and revocations from what lies in a state directory."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.durations import parse_duration
from gossamer.node.base.settings.links import Links, invitation_text, parse_links
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.cli import run_command
from gossamer.node.commands.members import invitations
from gossamer.node.commands.members.invitations import invite
from gossamer.node.commands.options import StateOptions
from gossamer.node.network.identity import Identity, verify
from gossamer.node.peers.members.introductions import claim_of
from gossamer.node.runs.governance.inviting import (
    EXPIRES_SECONDS_MAX,
    InvitationError,
    InviteOnlyRun,
)
from gossamer.node.storage import order_lock
from gossamer.node.storage.admission_files import RollFile, read_pinned_head, write_pinned_head
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.node.telemetry.status import Status
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import PeerId, digest_of, public_key_of
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from gossamer.protocol.policy.members.revocations import REVOCATIONS_MAX
from gossamer.protocol.policy.members.roll import NO_PAGE, Roll
from gossamer.protocol.wire.invitation_messages import Revocation, RollPage
from tests.support.builders import manifest

NOW = 1_700_000_000
NEWCOMER = Identity.from_seed(bytes([9]) * 32)
FRIEND = Identity.from_seed(bytes([8]) * 32)


def founded(root: Path, admission: str = "invite") -> StateDir:
    """A state directory of a founder."""
    state_dir = StateDir(root)
    root.mkdir()
    identity = Identity.load_or_create(state_dir.identity_path)
    run = replace(
        manifest(), founder=identity.peer_id, admission=admission, allowed=(FRIEND.peer_id,)
    )
    signature = identity.sign(signing_bytes(run.run_id))
    state_dir.write_manifest(SignedManifest(manifest=encode_manifest(run), signature=signature))
    return state_dir


def let_in(state_dir: StateDir, newcomer: Identity, slots: int = 1) -> InviteOnlyRun:
    """A newcomer comes in by a new invitation; the roll is on the disk."""
    run = InviteOnlyRun.here(state_dir)
    invitation = run.invite(slots, NOW + 100, None, ())
    claim = claim_of(invitation, run.manifest.run_id, newcomer.peer_id)
    witness = run.identity
    entry = run.roll.let_in(claim, newcomer.peer_id, witness.peer_id, NOW, witness.sign)
    assert entry is not None
    run.roll.add(RollPage((entry,), ()))
    run.file.write(run.roll.page())
    return InviteOnlyRun.here(state_dir)


def test_an_invitation_is_one_text_that_a_newcomer_can_use(tmp_path: Path) -> None:
    run = InviteOnlyRun.here(founded(tmp_path / "a"))
    me = run.identity.peer_id
    addresses = [f"/ip4/192.0.2.{number}/tcp/4610/p2p/{FRIEND.peer_id}" for number in range(1, 9)]
    invitation = run.invite(3, NOW, 0, addresses)
    own = f"/ip4/192.0.2.77/tcp/4610/p2p/{me}"
    run_id = run.manifest.run_id.hex()
    text = f"{own}#{run_id}@{'cd' * 32}.{invitation_text(invitation)}"
    assert len(text.split()) == 1
    assert len(text) < 1200
    links = parse_links((text,))
    assert links == Links((own, *addresses[:4]), run_id, "cd" * 32, to_msgpack(invitation))
    with pytest.raises(ConfigError, match="2 invitations"):
        parse_links((text, text))
    with pytest.raises(ConfigError, match=r"is damaged \(it is no invitation: .*truncated\)"):
        parse_links((text[:-5],))


def test_members_are_listed_with_those_who_let_them_in(tmp_path: Path) -> None:
    run = let_in(founded(tmp_path / "a"), NEWCOMER)
    roots, rows = run.members()[:2], run.members()[2:]
    assert {row.peer_id for row in roots} == {run.identity.peer_id, FRIEND.peer_id}
    assert all(row.sponsor is None for row in roots)
    assert [(row.peer_id, row.sponsor, row.is_in) for row in rows] == [
        (NEWCOMER.peer_id, run.identity.peer_id, True)
    ]


@pytest.mark.parametrize("by_invitation", [False, True])
def test_a_revocation_is_left_for_the_node(tmp_path: Path, by_invitation: bool) -> None:
    state_dir = founded(tmp_path / "a")
    run = let_in(state_dir, NEWCOMER)
    row = run.members()[-1]
    named = row.invitation if by_invitation else row.peer_id
    assert named is not None
    assert run.revoke(named[-8:]) == [NEWCOMER.peer_id]
    file = RollFile(state_dir.root)
    left = file.orders()
    orders = list(left.values())
    assert [order.target for order in orders] == [public_key_of(named)]
    file.remove_orders(left)
    assert file.orders() == {}
    run.roll.add(RollPage((), tuple(orders)))
    assert not run.roll.is_member(NEWCOMER.peer_id)


def test_what_cannot_be_revoked_is_said(tmp_path: Path) -> None:
    state_dir = founded(tmp_path / "a")
    run = let_in(state_dir, NEWCOMER)
    with pytest.raises(InvitationError, match="a root of the run"):
        run.revoke(FRIEND.peer_id)
    with pytest.raises(InvitationError, match="no member"):
        run.revoke("nobody")
    with pytest.raises(InvitationError, match="no member"):
        run.revoke(NEWCOMER.peer_id[-3:])  # too short to mean anybody
    theirs = InviteOnlyRun(run.manifest, NEWCOMER, run.roll, run.file)
    with pytest.raises(InvitationError, match="did not come in through this node"):
        theirs.revoke(NEWCOMER.peer_id)


def test_a_sponsor_at_the_bound_of_revocations_is_told_so_and_nobody_comes_back(
    tmp_path: Path,
) -> None:
    run, people = sponsor_of_many(tmp_path / "a")
    *out, last = people
    for each in out[:8]:
        run.revoke(each.peer_id)
    taken = run.file.orders()
    run.roll.add(RollPage((), tuple(taken.values())))
    run.file.remove_orders(taken)
    for each in out[8:]:
        run.revoke(each.peer_id)  # these wait for the node, and count too
    with pytest.raises(InvitationError, match="ask a root") as refused:
        run.revoke(last.peer_id)
    assert FRIEND.peer_id in str(refused.value)
    run.revoke(out[0].peer_id)  # it counts already
    run.roll.add(RollPage((), tuple(run.file.orders().values())))
    assert not any(run.roll.is_member(each.peer_id) for each in out)
    assert run.roll.is_member(last.peer_id)
    root = Identity.load_or_create(StateDir(tmp_path / "a").identity_path)
    InviteOnlyRun(run.manifest, root, run.roll, run.file).revoke(last.peer_id)


def sponsor_of_many(root: Path) -> tuple[InviteOnlyRun, list[Identity]]:
    """A sponsor that is no root, and one more newcomer of its own than it may put out."""
    roots = let_in(founded(root), NEWCOMER)
    run = InviteOnlyRun(roots.manifest, NEWCOMER, roots.roll, roots.file)
    invitation = run.invite(REVOCATIONS_MAX + 1, NOW + 100, 0, ())
    people = [Identity.from_seed(bytes([50 + each]) * 32) for each in range(REVOCATIONS_MAX + 1)]
    for newcomer in people:
        claim = claim_of(invitation, run.manifest.run_id, newcomer.peer_id)
        me = NEWCOMER.peer_id
        entry = run.roll.let_in(claim, newcomer.peer_id, me, NOW, NEWCOMER.sign)
        assert entry is not None
        run.roll.add(RollPage((entry,), ()))
    run.file.write(run.roll.page())
    return run, people


def beside(run: InviteOnlyRun) -> InviteOnlyRun:
    """What another command reads of the same state directory."""
    roll = Roll(run.manifest.run_id, (PeerId(run.manifest.founder), FRIEND.peer_id), verify)
    roll.add(run.file.read() or NO_PAGE)
    return InviteOnlyRun(run.manifest, run.identity, roll, run.file)


def test_of_two_revocations_at_once_one_hears_of_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, people = sponsor_of_many(tmp_path / "a")
    *out, one, other = people
    for each in out:
        run.revoke(each.peer_id)
    both_have_counted = threading.Barrier(2)

    def orders(self: RollFile) -> dict[Path, Revocation]:
        found = read_orders(self)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_have_counted.wait(0.5)  # broken where the second one has to wait for the first
        return found

    read_orders = RollFile.orders
    monkeypatch.setattr(RollFile, "orders", orders)
    problems: list[str] = []

    def revoke(command: InviteOnlyRun, target: Identity) -> None:
        try:
            command.revoke(target.peer_id)
        except InvitationError as error:
            problems.append(str(error))

    threads = [
        threading.Thread(target=revoke, args=(beside(run), target)) for target in (one, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_orders(run.file)) == REVOCATIONS_MAX
    (problem,) = problems
    assert "ask a root" in problem


def test_revocations_that_the_node_takes_meanwhile_count(tmp_path: Path) -> None:
    run, people = sponsor_of_many(tmp_path / "a")
    *out, last = people
    command = beside(run)
    for each in out:
        run.revoke(each.peer_id)
    taken = run.file.orders()
    run.roll.add(RollPage((), tuple(taken.values())))
    run.file.write(run.roll.page())
    run.file.remove_orders(taken)
    with pytest.raises(InvitationError, match="ask a root"):
        command.revoke(last.peer_id)
    assert not run.file.orders()


def test_a_command_does_not_wait_for_another_one_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_lock, "LOCK_SECONDS_MAX", 0.05)
    run, people = sponsor_of_many(tmp_path / "a")
    with (
        run.file.ordering(),
        pytest.raises(DiskError, match="another command gives an order"),
    ):
        run.revoke(people[0].peer_id)
    run.revoke(people[0].peer_id)
    assert len(run.file.orders()) == 1


def test_who_may_not_invite_is_told_why(tmp_path: Path) -> None:
    state_dir = founded(tmp_path / "a")
    run = InviteOnlyRun.here(state_dir)
    with pytest.raises(InvitationError, match="--slots 65"):
        run.invite(65, NOW, None, ())
    for depth in (-1, 4):
        with pytest.raises(InvitationError, match=f"^--depth {depth} is not allowed: 0 to 3$"):
            run.invite(1, NOW, depth, ())
    stranger = InviteOnlyRun(run.manifest, NEWCOMER, run.roll, run.file)
    with pytest.raises(InvitationError, match="may invite nobody"):
        stranger.invite(1, NOW, None, ())
    with pytest.raises(InvitationError, match='admission = "allow"'):
        InviteOnlyRun.here(founded(tmp_path / "b", "allow"))
    with pytest.raises(StateDirError, match="no run"):
        InviteOnlyRun.here(StateDir(tmp_path / "c"))
    run.file.path.write_bytes(b"damaged")
    with pytest.raises(InvitationError, match="start the node"):
        InviteOnlyRun.here(state_dir)


def test_a_node_that_was_put_out_makes_no_invitation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own roll need not say so: the members show a node that is out no newer one."""
    state_dir = founded(tmp_path / "a")
    reason = "the members of the run do not take this node for one: it was put out"
    status = Status(
        peer_id=NEWCOMER.peer_id,
        run_id=None,
        version="0",
        addresses=(f"/ip4/192.0.2.7/tcp/4610/p2p/{NEWCOMER.peer_id}",),
        phase="training",
        put_out=reason,
    )
    monkeypatch.setattr(invitations, "fetch_status", lambda _state_dir: status)
    command = ["invite", "--state-dir", str(state_dir.root)]
    assert run_command(command) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert reason in said.err
    monkeypatch.setattr(
        invitations, "fetch_status", lambda _state_dir: replace(status, put_out=None)
    )
    assert run_command(command) == 0


def test_a_proof_has_the_witnesses_that_a_stranger_lacks(tmp_path: Path) -> None:
    """The newcomer's witness came in by another one, whose witness came in by a third."""
    run = InviteOnlyRun.here(founded(tmp_path / "a"))
    roll, witness = run.roll, run.identity
    people = [Identity.from_seed(bytes([20 + number]) * 32) for number in range(20)]
    for number, newcomer in enumerate(people):
        secret = run.invite(1, NOW + 100, 0, ())
        claim = claim_of(secret, roll.run_id, newcomer.peer_id)
        entry = roll.let_in(claim, newcomer.peer_id, witness.peer_id, NOW, witness.sign)
        assert entry is not None
        roll.add(RollPage((entry,), ()))
        witness = newcomer
        proof = roll.proof_of(newcomer.peer_id)
        assert len(proof) == min(number + 1, 16)
        if number < 16:
            elsewhere = Roll(roll.run_id, [run.identity.peer_id], verify)
            elsewhere.add(RollPage(proof, ()))
            assert elsewhere.is_member(newcomer.peer_id)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("12h", 43_200), ("7d", 604_800)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text, 1, EXPIRES_SECONDS_MAX) == seconds


@pytest.mark.parametrize("text", ["", "7", "0d", "366d", "-1d", "7 weeks", "1.5d"])
def test_durations_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--expires"):
        invite(expires=text, options=StateOptions(state_dir=tmp_path))


def test_a_pinned_head_is_kept(tmp_path: Path) -> None:
    assert read_pinned_head(tmp_path) is None
    head = digest_of(b"a head")
    write_pinned_head(tmp_path, head)
    assert read_pinned_head(tmp_path) == head
    (tmp_path / "pinned_head").write_bytes(b"\xff" * 64)
    assert read_pinned_head(tmp_path) is None


def test_the_commands_show_what_they_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_dir = founded(tmp_path / "a")
    run = let_in(state_dir, NEWCOMER)
    where = ("--state-dir", str(state_dir.root))
    assert run_command(["members", *where]) == 0
    shown = capsys.readouterr().out
    for peer in (run.identity.peer_id, FRIEND.peer_id, NEWCOMER.peer_id):
        assert peer in shown
    assert run_command(["revoke", NEWCOMER.peer_id[-8:], "--yes", *where]) == 0
    assert NEWCOMER.peer_id in capsys.readouterr().out
    assert run_command(["revoke", "nobody", *where]) == 2
    assert "`gossamer members` lists them" in capsys.readouterr().err
    assert run_command(["invite", *where]) == 1
    assert "no node runs" in capsys.readouterr().err


def test_one_that_is_out_already_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was told that nobody has come in by it."""
    state_dir = founded(tmp_path / "a")
    run = let_in(state_dir, NEWCOMER)
    command = ["revoke", NEWCOMER.peer_id, "--yes", "--state-dir", str(state_dir.root)]
    assert run_command(command) == 0
    assert f"Put out: {NEWCOMER.peer_id}\n" in capsys.readouterr().out
    run.roll.add(RollPage((), tuple(run.file.orders().values())))
    run.file.write(run.roll.page())
    assert run_command(command) == 0
    assert f"Out already: {NEWCOMER.peer_id}\n" in capsys.readouterr().out


def test_a_revocation_asks_and_says_who_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = founded(tmp_path / "a")
    run = let_in(state_dir, NEWCOMER)
    command = ["revoke", NEWCOMER.peer_id[-8:], "--state-dir", str(state_dir.root)]
    assert run_command(command) == 2
    told = capsys.readouterr()
    assert "nobody is at the terminal to ask: give --yes" in told.err
    assert run.file.orders() == {}

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, status in (("\n", 1), ("n\n", 1), ("", 1), ("y\n", 0)):
        assert run.file.orders() == {}
        shown = Terminal()
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        monkeypatch.setattr(sys, "stdout", shown)
        assert run_command(command) == status
        before, _, after = shown.getvalue().partition("[y/N]")
        assert NEWCOMER.peer_id in before
        assert "for good" in before
        assert (f"Put out: {NEWCOMER.peer_id}" in after) == (status == 0)
    assert len(run.file.orders()) == 1
