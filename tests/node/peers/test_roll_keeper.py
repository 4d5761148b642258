"""A member stays one though its entry was replaced by one that counts no more."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from gossamer.node.base.disk_health import DiskError, DiskHealth, write_atomically
from gossamer.node.network.identity import Identity, verify
from gossamer.node.peers.members import roll_keeper
from gossamer.node.peers.members.members_words import WORD_SECONDS, MembersWords
from gossamer.node.peers.members.own_entries import OTHERS_MAX, WITNESSES_MAX, OwnEntries
from gossamer.node.peers.members.roll_keeper import (
    INTRODUCE_AGAIN_SECONDS,
    RECONCILE_SECONDS,
    REFUSED_SECONDS,
    RollKeeper,
)
from gossamer.node.storage import admission_files
from gossamer.node.storage.admission_files import RollFile
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.wire.invitation_messages import (
    CLAIM_BYTES_MAX,
    Entry,
    RollPage,
    Welcomed,
    decode_claim,
    proof_bytes,
)
from tests.fuzz.scripted import ME, ROGUE, Offences, ScriptedTransport

RUN_ID = digest_of(b"a run with a hostile witness")
NOW = 1_700_000_000
EXPIRES = NOW + 1000
ROOT, A, W, W2 = (Identity.from_seed(bytes([number]) * 32) for number in (50, 51, 52, 53))


def new_roll() -> Roll:
    return Roll(RUN_ID, [ROOT.peer_id], verify)


def entry(
    newcomer: Identity, number: int, witness: Identity, seconds: int, slots: int = 1
) -> Entry:
    """An entry by an invitation of the root, which no roll has looked at."""
    secret = bytes([number]) * 32
    one_time = Identity.from_seed(secret)
    key = public_key_of(one_time.peer_id)
    by = new_roll().certify(ROOT.peer_id, key, slots, EXPIRES, 0, ROOT.sign)
    me = public_key_of(newcomer.peer_id)
    proof = one_time.sign(proof_bytes(RUN_ID, me))
    blank = Entry(by, me, proof, public_key_of(witness.peer_id), seconds, b"")
    return replace(blank, signature=witness.sign(blank.signing_bytes(RUN_ID)))


def copied(original: Entry, witness: Identity, seconds: int) -> Entry:
    """What a hostile witness makes of an entry that stands in the roll."""
    blank = replace(
        original, witness=public_key_of(witness.peer_id), unix_seconds=seconds, signature=b""
    )
    return replace(blank, signature=witness.sign(blank.signing_bytes(RUN_ID)))


FIRST = (entry(A, 1, ROOT, NOW, 2), entry(W, 1, ROOT, NOW + 100, 2))
MINE = entry(ME, 2, ROOT, NOW + 500)
COPY = copied(MINE, W, NOW + 200)
LOST_SLOT = entry(W2, 1, A, NOW + 50, 2)
"""It takes the slot of W, so the copy counts no more."""


def keeper(folder: Path, roll: Roll, kept: tuple[Entry, ...] = ()) -> RollKeeper:
    return RollKeeper(
        roll, ScriptedTransport(), ME, Offences(), RollFile(folder), kept,  # type: ignore[arg-type]
        lambda: EXPIRES + 1, random.Random(0),
    )  # fmt: skip


def attacked(roll: Roll) -> Roll:
    """A roll after both steps: the members of it have forgotten this node."""
    roll.add(RollPage((*FIRST, MINE), ()))
    assert roll.is_member(ME.peer_id)
    roll.add(RollPage((COPY,), ()))
    assert roll.entry(ME.peer_id) == COPY
    roll.add(RollPage((LOST_SLOT,), ()))
    assert not roll.was_member(ME.peer_id)
    return roll


def test_a_claim_brings_a_member_back_whose_copied_entry_counts_no_more(tmp_path: Path) -> None:
    """Its invitation has expired, so nobody can let it in again."""
    roll, others = new_roll(), attacked(new_roll())
    roll.add(RollPage((*FIRST, MINE), ()))
    made = keeper(tmp_path, roll)
    made._heard(ROOT.peer_id, to_msgpack(RollPage((COPY,), ())))
    assert roll.entry(ME.peer_id) == COPY
    made._heard(ROOT.peer_id, to_msgpack(RollPage((LOST_SLOT,), ())))
    assert roll.entry(ME.peer_id) == MINE, "it comes back by itself where it kept its entry"
    shown = to_msgpack(made._own.claim(roll))
    assert len(shown) <= CLAIM_BYTES_MAX
    other = RollKeeper(
        others, ScriptedTransport(), ROOT, Offences(), RollFile(tmp_path), (),  # type: ignore[arg-type]
        lambda: EXPIRES + 1, random.Random(0),
    )  # fmt: skip
    assert other._answer(ME.peer_id, decode_claim(shown)).is_admitted
    assert others.is_member(ME.peer_id)


def test_an_introduction_takes_the_kept_entry_again_after_a_restart(tmp_path: Path) -> None:
    roll = new_roll()
    roll.add(RollPage((*FIRST, MINE), ()))
    made = keeper(tmp_path, roll)
    made._heard(ROOT.peer_id, to_msgpack(RollPage((COPY,), ())))
    page = made._page()
    assert MINE in page.entries, "the disk has both"
    again = new_roll()
    again.add(page)
    made = keeper(tmp_path, again, tuple(each for each in page.entries if each == MINE))
    again.add(RollPage((LOST_SLOT,), ()))
    assert not again.was_member(ME.peer_id)

    async def run() -> None:
        await made.introduce(ROGUE.peer_id)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert again.is_member(ME.peer_id)


def test_many_copies_do_not_push_out_the_original() -> None:
    roll = new_roll()
    own = OwnEntries(ME.peer_id, [MINE])
    for number in range(2 * OTHERS_MAX):
        witness = Identity.from_seed(bytes([100 + number % 90, number // 90]) * 16)
        own._keep([copied(MINE, witness, NOW + 400 - number)])
        own._keep([entry(witness, 3, ROOT, NOW + number, 64)])
    missing = own.missing_in(roll)
    assert MINE in missing
    assert len(missing) <= WITNESSES_MAX + OTHERS_MAX
    assert len(own.claim(roll).entries) <= 16
    assert MINE in own.claim(roll).entries


def test_a_root_has_no_entry_to_show(tmp_path: Path) -> None:
    roll = new_roll()
    assert not keeper(tmp_path, roll)._own.claim(roll).entries


def test_a_member_that_others_refuse_has_a_problem_until_one_lets_it_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roll = new_roll()
    roll.add(RollPage((*FIRST, MINE), ()))
    made = keeper(tmp_path, roll)
    answer = Welcomed(False, "it was put out\x1b[2J", (), ())

    async def answers(*_: object) -> Welcomed:
        return answer

    monkeypatch.setattr(roll_keeper, "ask_to_come_in", answers)

    async def run() -> None:
        nonlocal answer
        await made.introduce(ROOT.peer_id)
        assert made.problem is None, "one member's word, and another may take it for one"
        await trio.sleep(REFUSED_SECONDS)
        assert made.problem is not None
        assert "it was put out" in made.problem
        assert "\x1b" not in made.problem
        await trio.sleep(INTRODUCE_AGAIN_SECONDS)
        answer = Welcomed(True, "", (), ())
        await made.introduce(ROOT.peer_id)
        assert made.problem is None

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def introduced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: dict[Identity, str],
    seconds: float = 2 * INTRODUCE_AGAIN_SECONDS,
) -> list[str | None]:
    """The problems that a node shows while it is introduced to members again and again.

    Args:
        words: what each member says at first: an empty text takes this node for a member.
    """
    roll = new_roll()
    roll.add(RollPage((*FIRST, MINE), ()))
    made = keeper(tmp_path, roll)
    by_peer = {member.peer_id: reason for member, reason in words.items()}

    async def answers(_transport: object, peer: PeerId, _claim: object) -> Welcomed:
        return Welcomed(not by_peer[peer], by_peer[peer], (), ())

    monkeypatch.setattr(roll_keeper, "ask_to_come_in", answers)
    found: list[str | None] = []

    async def run() -> None:
        while trio.current_time() < seconds:
            for peer in by_peer:
                await made.introduce(peer)
                found.append(made.problem)
            await trio.sleep(RECONCILE_SECONDS)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    return found


def test_a_member_that_was_put_out_too_is_no_comfort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that were put out take each other for members; the problem does not come and go."""
    found = introduced(tmp_path, monkeypatch, {ROOT: "it was put out", A: ""})
    first = next(index for index, problem in enumerate(found) if problem)
    assert first <= 2 * REFUSED_SECONDS / RECONCILE_SECONDS + 2
    assert all("it was put out" in str(problem) for problem in found[first:])


def test_one_member_alone_makes_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {A: "it was put out", W: ""}
    assert set(introduced(tmp_path, monkeypatch, words)) == {None}
    # A root decides, as it may put out everybody.
    assert set(introduced(tmp_path, monkeypatch, words | {ROOT: ""})) == {None}


def test_a_refusal_that_is_not_repeated_is_forgotten(tmp_path: Path) -> None:
    roll = new_roll()
    roll.add(RollPage((*FIRST, MINE), ()))
    words = MembersWords(roll)
    words.note(ROOT.peer_id, "it was put out", 0.0)
    words.note(A.peer_id, "", 0.0)
    assert words.refusal(WORD_SECONDS - 1, REFUSED_SECONDS) == "it was put out"
    assert words.refusal(WORD_SECONDS, REFUSED_SECONDS) is None


def test_a_member_that_hears_of_its_own_revocation_has_a_problem_at_once(tmp_path: Path) -> None:
    roll = new_roll()
    roll.add(RollPage((*FIRST, MINE), ()))
    made = keeper(tmp_path, roll)
    revocation = roll.revoke(ROOT.peer_id, public_key_of(ME.peer_id), ROOT.sign)
    roll.add(RollPage((), (revocation,)))

    async def run() -> None:
        assert "was put out of the run" in str(made.problem)
        assert "was revoked" in str(made.problem), "by what"
        assert "Ask for a new invitation" in str(made.problem), "and what its owner can do"

    trio.run(run)


def test_a_revocation_that_the_disk_refuses_once_is_on_it_before_its_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roll = Roll(RUN_ID, [ME.peer_id], verify)
    health = DiskHealth()
    file = RollFile(tmp_path, health)
    made = RollKeeper(
        roll, ScriptedTransport(), ME, Offences(), file, (),  # type: ignore[arg-type]
        lambda: NOW, random.Random(0),
    )  # fmt: skip
    target = public_key_of(A.peer_id)
    file.order(roll.revoke(ME.peer_id, target, ME.sign))
    write, is_full = write_atomically, True

    def refusing(path: Path, data: bytes) -> None:
        if is_full:
            raise DiskError("no space left on device")
        write(path, data)

    monkeypatch.setattr(admission_files, "write_atomically", refusing)

    async def run_here(work: Callable[[], object]) -> object:
        return work()

    trio.run(made._look, run_here)
    assert file.read() is None
    assert len(file.orders()) == 1, "a node that ends now finds the order again"
    assert health.problem is not None
    is_full = False
    trio.run(made._look, run_here)
    page = RollFile(tmp_path).read()  # as a restart does
    assert page is not None
    assert [each.target for each in page.revocations] == [target]
    assert file.orders() == {}
    assert health.problem is None
