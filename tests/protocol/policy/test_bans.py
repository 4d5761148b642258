"""Scores, bans and their end, and that the table stays small."""

from __future__ import annotations

import math

import pytest

from gossamer.node.telemetry.metric_labels import OFFENCE_REASONS
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.bans import (
    BAN_SCORE,
    BAN_SECONDS,
    BAN_SECONDS_MAX,
    FORGET_SECONDS,
    FORGIVE_SECONDS,
    PEERS_MAX,
    SHORTEST_BANS,
    WEIGHTS,
    Ban,
    Bans,
)

ROGUE, OTHER = PeerId("rogue"), PeerId("other")


def offend_until_banned(bans: Bans, now: float, peer: PeerId = ROGUE) -> Ban:
    for _ in range(100):
        ban = bans.offence(now, peer, "forged")
        if ban is not None:
            return ban
    raise AssertionError("never banned")


def offences_until_banned(bans: Bans, now: float, peer: PeerId) -> int:
    return next(number for number in range(1, 100) if bans.offence(now, peer, "forged"))


def test_repeated_offences_ban_and_the_ban_ends_by_itself() -> None:
    bans = Bans()
    needed = math.ceil(BAN_SCORE / WEIGHTS["malformed"])
    results = [bans.offence(5.0, ROGUE, "malformed") for _ in range(needed)]
    assert results == [None] * (needed - 1) + [Ban(BAN_SECONDS, 1)]
    assert bans.is_banned(5.0, ROGUE)
    assert bans.num_banned(5.0) == 1
    assert not bans.is_banned(5.0, OTHER)
    assert bans.is_banned(5.0 + BAN_SECONDS - 0.1, ROGUE)
    assert not bans.is_banned(5.0 + BAN_SECONDS, ROGUE)
    assert bans.num_banned(5.0 + BAN_SECONDS) == 0
    needed = math.ceil(BAN_SCORE / WEIGHTS["version"])
    results = [bans.offence(5.0 + BAN_SECONDS, ROGUE, "version") for _ in range(needed)]
    assert results == [None] * (needed - 1) + [Ban(2 * BAN_SECONDS, 2)], "it begins anew"


def test_how_long_a_ban_still_lasts() -> None:
    bans = Bans()
    assert bans.seconds_left(5.0, ROGUE) == 0.0
    offend_until_banned(bans, 5.0)
    assert bans.seconds_left(5.0, ROGUE) == BAN_SECONDS
    assert bans.seconds_left(4.0 + BAN_SECONDS, ROGUE) == 1.0
    assert bans.seconds_left(6.0 + BAN_SECONDS, ROGUE) == 0.0


def test_one_offence_never_bans_unless_it_is_proven() -> None:
    assert list(SHORTEST_BANS) == ["equivocation"]
    for reason in {*OFFENCE_REASONS} - {*SHORTEST_BANS, "replaced"}:
        assert Bans().offence(0.0, ROGUE, reason) is None
    found = Bans().offence(0.0, ROGUE, "replaced")  # what this peer has computed itself
    assert found is not None
    assert found.seconds == BAN_SECONDS


def test_an_offence_now_and_then_is_forgiven() -> None:
    bans = Bans()
    every = FORGIVE_SECONDS * WEIGHTS["malformed"]
    assert not any(bans.offence(every * number, ROGUE, "malformed") for number in range(1000))


def test_what_an_honest_peer_may_come_to_weighs_little() -> None:
    honest = {"unproven", "version"}
    worst = max(WEIGHTS[reason] for reason in honest)
    assert worst * 4 <= min(WEIGHTS[reason] for reason in ("forged", "malformed", "implausible"))
    assert worst * 9 < BAN_SCORE


def test_bans_grow_and_are_forgotten() -> None:
    bans = Bans()
    now = 0.0
    lengths = []
    for _ in range(9):
        ban = offend_until_banned(bans, now)
        lengths.append(ban.seconds)
        now += ban.seconds
    assert lengths[:3] == [BAN_SECONDS, 2 * BAN_SECONDS, 4 * BAN_SECONDS]
    assert lengths[-1] == lengths[-2] == BAN_SECONDS_MAX
    assert offend_until_banned(bans, now + FORGET_SECONDS + 1.0) == Ban(BAN_SECONDS, 1)


def test_offences_during_a_ban_do_not_lengthen_it() -> None:
    bans = Bans()
    offend_until_banned(bans, 0.0)
    assert not any(bans.offence(BAN_SECONDS / 2, ROGUE, "forged") for _ in range(100))
    assert not bans.is_banned(BAN_SECONDS, ROGUE)


def test_a_flood_of_identities_frees_no_peer_and_fills_no_table() -> None:
    bans = Bans()
    offend_until_banned(bans, 0.0)
    bans.offence(0.0, OTHER, "forged")
    for number in range(3 * PEERS_MAX):
        bans.offence(1.0, PeerId(f"peer {number}"), "unproven")
        assert len(bans._conduct) <= PEERS_MAX
    assert bans.is_banned(1.0, ROGUE)
    fresh = PeerId("fresh")
    assert offences_until_banned(bans, 1.0, OTHER) < offences_until_banned(bans, 1.0, fresh)


def test_what_is_forgiven_makes_room_for_what_is_not() -> None:
    bans = Bans()
    for number in range(PEERS_MAX - 1):
        for _ in range(2):
            bans.offence(0.0, PeerId(f"long ago {number}"), "forged")
    now = 2 * WEIGHTS["forged"] * FORGIVE_SECONDS
    bans.offence(now, OTHER, "forged")
    fresh = PeerId("fresh")
    of_fresh = offences_until_banned(bans, now, fresh)
    assert offences_until_banned(bans, now, OTHER) < of_fresh


@pytest.mark.parametrize("kind", [RemoteProtocolError, *RemoteProtocolError.__subclasses__()])
def test_every_reason_has_a_weight_and_a_label(kind: type[RemoteProtocolError]) -> None:
    assert kind.reason in WEIGHTS
    assert kind.reason in OFFENCE_REASONS


def test_what_a_peer_passes_on_and_cannot_check_never_bans_it() -> None:
    bans = Bans()
    assert all(bans.offence(0.0, OTHER, "claimed") is None for _ in range(1000))
