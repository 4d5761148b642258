"""Chains of certificates: who comes in, who does not, and that all rolls become the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members import roll as roll_module
from gossamer.protocol.policy.members.revocations import REVOCATIONS_MAX
from gossamer.protocol.policy.members.roll import (
    NO_PAGE,
    STRANGERS,
    NotWelcomeError,
    Roll,
)
from gossamer.protocol.policy.members.roll_order import SPONSORED_MAX
from gossamer.protocol.wire.invitation_messages import (
    DEPTH_MAX,
    Certificate,
    Claim,
    Entry,
    Revocation,
    RollPage,
    decode_page,
    proof_bytes,
)
from tests.support.builders import RUN_ID, members_of, peer, sign_as, verify
from tests.support.mutations import altered

ROOT, A, B, C, D, E = (peer(number) for number in range(6))
NOW = 1_700_000_000
WEEK = 7 * 86_400


def one_time(number: int) -> PeerId:
    return peer(1000 + number)


def new_roll(roots: Sequence[PeerId] = (ROOT,), run_id: Digest = RUN_ID) -> Roll:
    return Roll(run_id, roots, verify)


def certificate(
    sponsor: PeerId,
    number: int,
    *,
    slots: int = 1,
    depth: int = 0,
    expires: int = NOW + WEEK,
    run_id: Digest = RUN_ID,
) -> Certificate:
    """A certificate that no roll has looked at."""
    blank = Certificate(
        public_key_of(sponsor), public_key_of(one_time(number)), slots, expires, depth, b""
    )
    return replace(blank, signature=sign_as(sponsor)(blank.signing_bytes(run_id)))


def proof(newcomer: PeerId, number: int, run_id: Digest = RUN_ID) -> bytes:
    return sign_as(one_time(number))(proof_bytes(run_id, public_key_of(newcomer)))


def claim(newcomer: PeerId, number: int, by: Certificate, *above: Entry) -> Claim:
    return Claim(above, by, proof(newcomer, number))


def entry(
    newcomer: PeerId, number: int, by: Certificate, *, witness: PeerId = ROOT, seconds: int = NOW
) -> Entry:
    """An entry that no roll has looked at."""
    blank = Entry(
        by, public_key_of(newcomer), proof(newcomer, number), public_key_of(witness), seconds, b""
    )
    return replace(blank, signature=sign_as(witness)(blank.signing_bytes(RUN_ID)))


def come_in(
    roll: Roll, newcomer: PeerId, number: int, by: Certificate, *, now: int = NOW,
    witness: PeerId = ROOT,
) -> Entry:  # fmt: skip
    """A newcomer is let in by the witness whose roll this is."""
    made = roll.let_in(claim(newcomer, number, by), newcomer, witness, now, sign_as(witness))
    assert made is not None
    roll.add(RollPage((made,), ()))
    return made


def revocation(revoker: PeerId, target: PeerId) -> RollPage:
    blank = Revocation(public_key_of(revoker), public_key_of(target), b"")
    signature = sign_as(revoker)(blank.signing_bytes(RUN_ID))
    return RollPage((), (replace(blank, signature=signature),))


def three_levels(roll: Roll) -> None:
    """ROOT lets in A, A lets in B, and B lets in C."""
    come_in(roll, A, 1, certificate(ROOT, 1, depth=2))
    come_in(roll, B, 2, certificate(A, 2, depth=1))
    come_in(roll, C, 3, certificate(B, 3))


# Coming in


def test_a_newcomer_comes_in_by_a_chain_though_all_above_it_are_away() -> None:
    roll = new_roll()
    three_levels(roll)
    assert members_of(roll) == {ROOT, A, B, C}
    assert roll.sponsors(C) == (A, B)
    assert roll.branch_of(C) == A
    assert roll.branch_of(ROOT) == ROOT
    assert {roll.branch_of(peer(number)) for number in range(3000, 3010)} == {STRANGERS}
    assert roll.below(A) == {B, C}
    assert roll.below(ROOT) == frozenset()
    elsewhere = new_roll()
    elsewhere.add(RollPage(roll.chain_of(C), ()))
    assert elsewhere.is_member(C)


def test_a_certificate_and_its_proof_have_some_250_bytes() -> None:
    made = come_in(new_roll(), A, 1, certificate(ROOT, 1))
    assert len(to_msgpack(made.certificate)) + len(made.proof) + len(made.newcomer) < 260
    assert len(to_msgpack(made)) < 360


def test_one_invitation_with_one_slot_lets_in_one_identity() -> None:
    roll = new_roll()
    by = certificate(ROOT, 1)
    come_in(roll, A, 1, by)
    for number in range(100):
        with pytest.raises(NotWelcomeError, match="used up"):
            come_in(roll, peer(2000 + number), 1, by, now=NOW + number)
    assert members_of(roll) == {ROOT, A}


def test_whoever_is_in_stays_in_when_others_come_by_the_same_invitation() -> None:
    """The witness of the second has a clock far behind: the first one's place is not taken."""
    roll = new_roll()
    by = certificate(ROOT, 1, slots=2)
    come_in(roll, B, 1, by, now=NOW)
    come_in(roll, A, 1, by, now=NOW - 5000)
    first = roll.entry(B)
    second = roll.entry(A)
    assert first is not None
    assert second is not None
    assert second.unix_seconds == first.unix_seconds + 1


def test_a_witness_that_dates_an_entry_ahead_closes_no_invitation() -> None:
    """The first one of a group comes in at the last second of the invitation, by its witness."""
    roll = new_roll()
    come_in(roll, B, 9, certificate(ROOT, 9))
    by = certificate(ROOT, 1, slots=10)
    roll.add(RollPage((entry(A, 1, by, witness=B, seconds=NOW + WEEK),), ()))
    group = [peer(200 + number) for number in range(9)]
    for newcomer in group:
        come_in(roll, newcomer, 1, by, now=NOW + 60)
    assert members_of(roll) == {ROOT, A, B, *group}
    with pytest.raises(NotWelcomeError, match="used up"):
        come_in(roll, C, 1, by, now=NOW + 60)


def test_nobody_comes_in_before_its_sponsor_and_its_witness() -> None:
    """Their own entries are of a later time than the invitation is good for."""
    roll = new_roll()
    come_in(roll, A, 1, certificate(ROOT, 1, depth=1), now=NOW + 10)
    with pytest.raises(NotWelcomeError, match="expired"):
        come_in(roll, B, 2, certificate(A, 2, expires=NOW + 10), now=NOW)
    by = certificate(ROOT, 3, expires=NOW + 10)
    with pytest.raises(NotWelcomeError, match="expired"):
        come_in(roll, B, 3, by, now=NOW, witness=A)
    come_in(roll, B, 3, by, now=NOW)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_chain_that_is_too_deep_lets_nobody_in(depth: int) -> None:
    roll = new_roll()
    come_in(roll, A, 1, certificate(ROOT, 1, depth=depth))
    with pytest.raises(NotWelcomeError, match="so deep"):
        come_in(roll, B, 2, certificate(A, 2, depth=depth))


def test_a_chain_has_four_entries_at_most() -> None:
    roll = new_roll()
    sponsor = ROOT
    for depth, newcomer in zip(range(DEPTH_MAX - 1, -1, -1), (A, B, C, D), strict=True):
        come_in(roll, newcomer, depth, certificate(sponsor, depth, depth=depth))
        sponsor = newcomer
    assert len(roll.chain_of(D)) == DEPTH_MAX
    assert not roll.levels_below(D)
    with pytest.raises(NotWelcomeError, match="so deep"):
        come_in(roll, E, 9, certificate(D, 9))


def test_an_invitation_that_has_expired_lets_nobody_in_and_takes_nobody_out() -> None:
    roll = new_roll()
    by = certificate(ROOT, 1, slots=2, expires=NOW + 10)
    come_in(roll, A, 1, by, now=NOW + 10)
    with pytest.raises(NotWelcomeError, match="expired"):
        come_in(roll, B, 1, by, now=NOW + 11)
    later = new_roll()
    later.add(roll.page())
    assert later.is_member(A)


def test_a_chain_of_another_run_is_refused() -> None:
    other = digest_of(b"another run")
    roll = new_roll()
    with pytest.raises(ForgedError, match="of this run"):
        come_in(roll, A, 1, certificate(ROOT, 1, run_id=other))
    by = certificate(ROOT, 1)
    elsewhere = Claim((), by, proof(A, 1, other))
    with pytest.raises(ForgedError, match="secret"):
        roll.let_in(elsewhere, A, ROOT, NOW, sign_as(ROOT))


def test_a_claim_of_another_newcomer_lets_nobody_in() -> None:
    with pytest.raises(ForgedError, match="secret"):
        new_roll().let_in(claim(A, 1, certificate(ROOT, 1)), B, ROOT, NOW, sign_as(ROOT))


def test_who_is_no_member_lets_nobody_in() -> None:
    roll = new_roll()
    with pytest.raises(NotWelcomeError, match="not known as a member"):
        come_in(roll, B, 1, certificate(A, 1))
    with pytest.raises(NotWelcomeError, match="may invite nobody"):
        roll.certify(A, public_key_of(one_time(1)), 1, NOW, 0, sign_as(A))
    # Two strangers that vouch for each other, and one that is its own witness.
    for sponsor, newcomer, witness in ((A, B, B), (B, A, A), (ROOT, A, A), (ROOT, A, B)):
        made = entry(newcomer, 1, certificate(sponsor, 1), witness=witness)
        assert not roll.add(RollPage((made,), ()))
    assert members_of(roll) == {ROOT}


def test_one_member_cannot_fill_the_run() -> None:
    roll = new_roll()
    come_in(roll, A, 1, certificate(ROOT, 1, depth=1))
    for number in range(SPONSORED_MAX):
        come_in(roll, peer(2000 + number), 2, certificate(A, 2, slots=64))
    with pytest.raises(NotWelcomeError, match="as one member may let in"):
        come_in(roll, B, 3, certificate(A, 3))


def test_one_member_does_not_put_out_others_by_members_below_those_that_it_let_in() -> None:
    """It witnesses them all at times before those of the honest ones."""
    roll = new_roll()
    come_in(roll, A, 1, certificate(ROOT, 1, depth=2))
    come_in(roll, B, 2, certificate(ROOT, 2), now=NOW + 86_400)
    forged: list[Entry] = []
    for branch in range(16):
        middle = peer(2000 + branch)
        into = certificate(A, 50 + branch, depth=1)
        forged.append(entry(middle, 50 + branch, into, witness=A, seconds=NOW + 1))
        by = certificate(middle, 100 + branch, slots=SPONSORED_MAX)
        forged += [
            entry(peer(3000 + 100 * branch + number), 100 + branch, by, witness=A, seconds=NOW + 2)
            for number in range(SPONSORED_MAX)
        ]
    roll.add(RollPage(tuple(forged), ()))
    assert roll.is_member(B)
    assert len(roll.below(A)) == SPONSORED_MAX
    roll.add(revocation(ROOT, A))
    assert members_of(roll) == {ROOT, B}


def test_a_run_has_as_many_members_as_its_nodes_remember() -> None:
    roll = new_roll()
    made = [
        entry(peer(2000 + number), number, certificate(ROOT, number), seconds=NOW + number)
        for number in range(limits.MEMBERS_MAX + 5)
    ]
    roll.add(RollPage(tuple(made), ()))
    assert len(members_of(roll)) == limits.MEMBERS_MAX
    assert roll.is_member(peer(2000))
    assert not roll.is_member(peer(2000 + limits.MEMBERS_MAX))


# Going


@pytest.mark.parametrize("revoker", [ROOT, A, B])
def test_those_above_put_out_a_member_and_all_below_it(revoker: PeerId) -> None:
    roll = new_roll()
    three_levels(roll)
    target = B if revoker != B else C
    changes = roll.add(revocation(revoker, target))
    gone = {B, C} if target == B else {C}
    assert changes.gone == gone
    assert members_of(roll) == {ROOT, A, B, C} - gone
    assert roll.was_member(C), "its name in old headers stays good"


@pytest.mark.parametrize(("revoker", "target"), [(C, B), (B, A), (A, ROOT), (D, A), (E, A)])
def test_nobody_else_puts_out_a_member(revoker: PeerId, target: PeerId) -> None:
    roll = new_roll()
    three_levels(roll)
    come_in(roll, D, 4, certificate(ROOT, 4, depth=1))
    roll.add(revocation(revoker, target))
    assert members_of(roll) == {ROOT, A, B, C, D}


def test_a_revoked_invitation_lets_nobody_in_and_puts_out_whom_it_let_in() -> None:
    roll = new_roll()
    by = certificate(ROOT, 1, slots=3)
    come_in(roll, A, 1, by)
    roll.add(revocation(ROOT, one_time(1)))
    assert members_of(roll) == {ROOT}
    with pytest.raises(NotWelcomeError, match="revoked"):
        come_in(roll, B, 1, by)
    with pytest.raises(NotWelcomeError, match=r"put out \(the invitation.* was revoked\)"):
        come_in(roll, A, 2, certificate(ROOT, 2))


def test_an_invitation_of_a_member_that_was_put_out_is_void() -> None:
    roll = new_roll()
    come_in(roll, A, 1, certificate(ROOT, 1, depth=1))
    roll.add(revocation(ROOT, A))
    with pytest.raises(NotWelcomeError, match="put out"):
        come_in(roll, B, 2, certificate(A, 2))


def test_what_a_member_witnessed_stays_when_it_is_put_out() -> None:
    roll = new_roll()
    come_in(roll, A, 1, certificate(ROOT, 1))
    come_in(roll, B, 2, certificate(ROOT, 2), witness=A)
    roll.add(revocation(ROOT, A))
    assert members_of(roll) == {ROOT, B}


def test_the_revocations_of_one_member_are_bounded() -> None:
    roll = new_roll()
    come_in(roll, A, 1, certificate(ROOT, 1))
    targets = sorted((peer(3000 + number) for number in range(100)), key=public_key_of)
    for target in random.Random(1).sample(targets, len(targets)):
        roll.add(revocation(A, target))
    kept = [each.target for each in roll.page().revocations]
    assert kept == [public_key_of(each) for each in targets[:REVOCATIONS_MAX]]


# Forgeries


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_change_of_a_genuine_page_lets_anybody_else_in(data: st.DataObject) -> None:
    genuine = new_roll()
    three_levels(genuine)
    genuine.add(revocation(A, B))
    changed = data.draw(altered([to_msgpack(genuine.page())]))
    roll = new_roll()
    try:
        roll.add(decode_page(changed))
    except RemoteProtocolError:
        assert members_of(roll) == {ROOT}
        return
    assert members_of(roll) <= {ROOT, A, B, C}
    for one in roll.page().entries:
        assert one in genuine.page().entries
    for revoked in roll.page().revocations:
        assert revoked in genuine.page().revocations


@pytest.mark.parametrize(
    "change",
    [
        {"slots": 2}, {"depth": 3}, {"expires_unix_seconds": NOW + 2 * WEEK},
        {"sponsor": public_key_of(E)}, {"key": public_key_of(one_time(5))},
    ],
)  # fmt: skip
def test_nobody_changes_a_certificate(change: dict[str, object]) -> None:
    by = replace(certificate(ROOT, 1, depth=1), **change)
    with pytest.raises((ForgedError, NotWelcomeError)):
        come_in(new_roll(), A, 1, by)


def test_invented_entries_do_not_have_the_whole_roll_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anybody can make up entries, sixteen in a claim. A roll of a thousand is counted in 2 ms."""
    roll = new_roll()
    three_levels(roll)
    counted: list[int] = []
    monkeypatch.setattr(roll_module, "count", lambda *_: counted.append(1))
    by_strangers = entry(D, 4, certificate(E, 4), witness=E)
    below_them = entry(A, 5, certificate(D, 5), witness=E)
    of_a_member = entry(D, 4, certificate(E, 4), witness=A)
    seen_by_a_stranger = entry(D, 6, certificate(A, 6), witness=E)
    for invented in (by_strangers, below_them, of_a_member, seen_by_a_stranger):
        assert not roll.add(RollPage((by_strangers, invented), ()))
    forged = replace(entry(D, 7, certificate(A, 7, depth=9), witness=A), signature=bytes(64))
    with pytest.raises(ForgedError):
        roll.add(RollPage((forged,), ()))
    assert not counted


def test_a_forged_entry_does_not_take_the_place_of_a_genuine_one() -> None:
    """It names an earlier time, and its witness did not sign it."""
    roll = new_roll()
    by = certificate(ROOT, 1)
    come_in(roll, A, 1, by)
    forged = replace(entry(B, 1, by, seconds=NOW - 5), signature=bytes(64))
    with pytest.raises(ForgedError, match="witness"):
        roll.add(RollPage((forged,), ()))
    assert members_of(roll) == {ROOT, A}


# All rolls become the same


def exchange(one: Roll, other: Roll) -> None:
    """One takes what it lacks from the other, as over the wire."""
    held = set(one.digests())
    wanted = {each for each in other.digests() if each not in held}
    one.add(decode_page(to_msgpack(other.pieces(wanted))))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, RollPage]]:
    """Newcomers of few certificates come to three members that are cut off from each other, at
    times that do not fit; members are put out meanwhile."""
    sponsors = {1: (ROOT, 2, 2), 2: (A, 1, 1), 3: (A, 2, 1), 4: (B, 1, 0), 5: (ROOT, 1, 1)}
    history = []
    for _ in range(draw(st.integers(1, 14))):
        where = draw(st.integers(0, 2))
        if draw(st.integers(0, 5)) == 0:
            page = revocation(draw(st.sampled_from([ROOT, A, B, D])), peer(draw(st.integers(1, 8))))
        else:
            number = draw(st.sampled_from(sorted(sponsors)))
            sponsor, slots, depth = sponsors[number]
            newcomer = peer(draw(st.integers(1, 8)))
            made = entry(
                newcomer,
                number,
                certificate(sponsor, number, slots=slots, depth=depth),
                witness=draw(st.sampled_from([ROOT, A, B, C])),
                seconds=NOW + draw(st.integers(0, 6)),
            )
            page = RollPage((made,), ())
        history.append((where, page))
    return history


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_members_that_saw_different_newcomers_agree_after_comparing(
    history: list[tuple[int, RollPage]], dice: random.Random
) -> None:
    rolls = [new_roll() for _ in range(3)]
    for where, page in history:
        rolls[where].add(page)
        if dice.random() < 0.2:
            exchange(*dice.sample(rolls, 2))
    # Each pass settles at least the first entry of the order that they do not share.
    for _ in range(len(history) + 1):
        for one in rolls:
            for other in rolls:
                if one is not other:
                    exchange(one, other)
    assert len({roll.digest() for roll in rolls}) == 1
    assert len({members_of(roll) for roll in rolls}) == 1
    for number, slots in ((1, 2), (2, 1), (3, 2), (4, 1), (5, 1)):
        assert len(rolls[0].of_certificate(public_key_of(one_time(number)))) <= slots
    again = new_roll()
    again.add(decode_page(to_msgpack(rolls[0].page())))
    assert again.digest() == rolls[0].digest(), "a restart changes nothing"


def test_two_members_that_filled_one_slot_keep_the_earlier_newcomer() -> None:
    by = certificate(ROOT, 1, depth=1)
    first, second = new_roll(), new_roll()
    come_in(first, A, 1, by, now=NOW + 3)
    come_in(second, B, 1, by, now=NOW + 4)
    come_in(second, C, 2, certificate(B, 2), now=NOW + 5)
    exchange(second, first)
    assert members_of(second) == {ROOT, A}, "those that B let in go with it"
    exchange(first, second)
    assert members_of(first) == {ROOT, A}


def test_equal_rolls_have_nothing_to_tell_each_other() -> None:
    one, other = new_roll(), new_roll()
    three_levels(one)
    exchange(other, one)
    assert one.digest() == other.digest()
    assert one.pieces(frozenset()) == NO_PAGE
    assert not other.add(one.page())
