"""The bytes of records that peers may make a node keep."""

from __future__ import annotations

from gossamer.node.heads.side_records import RecordLimits, RecordQuota
from gossamer.protocol.ids import digest_of
from tests.support.builders import peer

LIMITS = RecordLimits(peer=1000, total=2500)


def head(number: int) -> bytes:
    return digest_of(number.to_bytes(4, "big"))


def bring(quota: RecordQuota, author: int, first: int, num_records: int) -> int:
    """A peer brings records of 100 bytes; says how many were taken."""
    taken = 0
    for number in range(first, first + num_records):
        if quota.admits(peer(author), 100):
            quota.note(digest_of(number.to_bytes(4, "big")), peer(author), 100)
            taken += 1
    return taken


def test_each_peer_and_all_together_have_a_bound() -> None:
    quota = RecordQuota(LIMITS)
    assert [bring(quota, author, 100 * author, 50) for author in range(4)] == [10, 10, 5, 0]
    assert not quota.has_room(1)


def test_each_peer_pays_for_what_it_adds_to_a_record() -> None:
    quota = RecordQuota(LIMITS)
    record = digest_of(b"record")
    quota.note(record, peer(1), 600)
    quota.note(record, peer(2), 300)
    assert not quota.admits(peer(1), 401)
    assert quota.admits(peer(1), 400)
    assert not quota.admits(peer(2), 701)
    assert quota.admits(peer(2), 700)
    quota.keep(lambda each: each == record)
    assert not quota.admits(peer(1), 401)
    quota.keep(lambda each: False)
    assert quota.admits(peer(1), 1000)


def test_room_comes_back_with_what_is_forgotten() -> None:
    quota = RecordQuota(LIMITS)
    assert bring(quota, 1, 0, 10) == 10
    assert bring(quota, 1, 10, 1) == 0
    kept = {head(number) for number in range(4)}
    quota.keep(lambda each: each in kept)
    assert head(0) in quota
    assert head(9) not in quota
    assert bring(quota, 1, 10, 10) == 6
