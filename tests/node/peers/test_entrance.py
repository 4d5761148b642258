"""A node looks at the roll on its disk before it takes part in a run by invitation."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.network.identity import Identity
from gossamer.node.peers.members.entrance import Entrance, roll_of
from gossamer.node.peers.members.introductions import claim_of
from gossamer.node.peers.members.run_exchange import NotAdmittedError
from gossamer.node.storage.admission_files import RollFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import public_key_of
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.wire.invitation_messages import Entry, Invitation, RollPage
from tests.fuzz.scripted import ME, Offences, ScriptedTransport
from tests.support.builders import manifest, members_of, peer
from tests.support.node_world import in_no_thread

NOW = 1_700_000_000
ROOT = Identity.from_seed(bytes([5]) * 32)
WITNESS = Identity.from_seed(bytes([6]) * 32)
OTHER = Identity.from_seed(bytes([7]) * 32)
RUN = replace(manifest(), founder=ROOT.peer_id, admission="invite")


def come_in(roll: Roll, newcomer: Identity, number: int, witness: Identity) -> Entry:
    secret = bytes([number]) * 32
    key = public_key_of(Identity.from_seed(secret).peer_id)
    by = roll.certify(ROOT.peer_id, key, 1, NOW + 1000, 0, ROOT.sign)
    claim = claim_of(Invitation(secret, by, (), ()), RUN.run_id, newcomer.peer_id)
    entry = roll.let_in(claim, newcomer.peer_id, witness.peer_id, NOW, witness.sign)
    assert entry is not None
    roll.add(RollPage((entry,), ()))
    return entry


def members() -> tuple[Roll, Entry]:
    """A roll with this node on it, and its entry, which another newcomer has witnessed."""
    roll = roll_of(RUN)
    come_in(roll, WITNESS, 70, ROOT)
    return roll, come_in(roll, ME, 71, WITNESS)


def entrance(root: Path, page: RollPage | None) -> Entrance:
    if page is not None:
        RollFile(root).write(page)
    return Entrance(
        RUN, ME, ScriptedTransport(), StateDir(root), Offences(), lambda: NOW  # type: ignore[arg-type]
    )  # fmt: skip


async def run_for_a_moment(opened: Entrance) -> None:
    """Runs an entrance until it has had its first look at the disk."""
    with trio.move_on_after(0.5):
        await opened.run(in_no_thread)


def test_a_member_takes_part(tmp_path: Path) -> None:
    roll, _ = members()
    opened = entrance(tmp_path, roll.page())
    assert opened.roll is not None
    assert members_of(opened.roll) == {ROOT.peer_id, WITNESS.peer_id, ME.peer_id}
    assert opened.admits(WITNESS.peer_id)
    assert not opened.admits(peer(1))
    opened.require_known([peer(1)])  # its entry may be gone by now


@pytest.mark.parametrize("page", [None, RollPage((), ())])
def test_a_node_that_nobody_let_in_says_so(tmp_path: Path, page: RollPage | None) -> None:
    with pytest.raises(NotAdmittedError, match="gossamer invite"):
        entrance(tmp_path, page)


def test_a_node_that_was_put_out_says_so(tmp_path: Path) -> None:
    roll, _ = members()
    order = roll.revoke(ROOT.peer_id, public_key_of(ME.peer_id), ROOT.sign)
    roll.add(RollPage((), (order,)))
    with pytest.raises(NotAdmittedError, match="put out"):
        entrance(tmp_path, roll.page())


def test_a_node_whose_entry_does_not_count_goes_on_and_asks_again(tmp_path: Path) -> None:
    """Its witness lost its slot."""
    _, own = members()
    opened = entrance(tmp_path, RollPage((own,), ()))
    assert opened.roll is not None
    assert members_of(opened.roll) == {ROOT.peer_id}


def test_a_node_with_a_damaged_roll_goes_on(tmp_path: Path) -> None:
    RollFile(tmp_path).path.write_bytes(b"damaged")
    opened = entrance(tmp_path, None)
    assert opened.roll is not None
    assert members_of(opened.roll) == {ROOT.peer_id}


@pytest.mark.parametrize("damage", ["rubbish", "a bit", "lost", "none"])
def test_a_damaged_roll_is_read_from_its_copy(tmp_path: Path, damage: str) -> None:
    """A founder that was alone let in again whom it had put out."""
    roll, _ = members()
    come_in(roll, OTHER, 72, ROOT)
    order = roll.revoke(ROOT.peer_id, public_key_of(OTHER.peer_id), ROOT.sign)
    roll.add(RollPage((), (order,)))
    RollFile(tmp_path).write(roll.page())
    path = RollFile(tmp_path).path
    whole = path.read_bytes()
    match damage:
        case "rubbish":
            path.write_bytes(b"damaged")
        case "a bit":
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # of the last signature
        case "lost":
            path.unlink()
    opened = entrance(tmp_path, None)
    assert opened.roll is not None
    assert members_of(opened.roll) == {ROOT.peer_id, WITNESS.peer_id, ME.peer_id}
    assert opened.roll.was_member(OTHER.peer_id)
    trio.run(run_for_a_moment, opened)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("is_there", [True, False])
def test_the_copy_of_a_roll_is_written_again(tmp_path: Path, is_there: bool) -> None:
    """Also the first time, where an earlier version has written the roll."""
    roll, _ = members()
    RollFile(tmp_path).write(roll.page())
    path = RollFile(tmp_path).copy_path
    whole = path.read_bytes()
    path.unlink()
    if is_there:
        path.write_bytes(b"damaged")
    opened = entrance(tmp_path, None)
    assert opened.roll is not None
    assert members_of(opened.roll) == {ROOT.peer_id, WITNESS.peer_id, ME.peer_id}
    trio.run(run_for_a_moment, opened)
    assert path.read_bytes() == whole


def test_headers_of_a_run_with_a_list_name_only_its_peers(tmp_path: Path) -> None:
    run = replace(RUN, admission="allow", allowed=(ME.peer_id,))
    opened = Entrance(
        run, ME, ScriptedTransport(), StateDir(tmp_path), Offences(), lambda: NOW  # type: ignore[arg-type]
    )  # fmt: skip
    opened.require_known([ME.peer_id])
    with pytest.raises(ForgedError, match="does not admit"):
        opened.require_known([ME.peer_id, peer(1)])
