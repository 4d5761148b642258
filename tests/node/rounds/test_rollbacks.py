"""The rollbacks that a node keeps: damaged files, and an order that is given again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.base.ticks import DISK_LOOKS
from gossamer.node.heads.rollbacks import (
    LOOK_SECONDS,
    ORDER_SECONDS,
    ROLLBACKS_MAX,
    RollbackFiles,
    Rollbacks,
)
from gossamer.node.network.identity import Identity
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import Rollback, Signed
from tests.support.node_world import in_no_thread

RUN_ID = Digest(bytes(32))
FOUNDER = Identity.from_seed(digest_of(b"founder"))
ORDER = Rollback(digest_of(b"undone"), digest_of(b"parent"), 7)
SIGNED = seal(ORDER, FOUNDER.peer_id, RUN_ID, FOUNDER.sign)


class Gossip:
    """Notes what is published."""

    def __init__(self) -> None:
        self.published: list[Signed] = []

    def keep_posted(self, signed: Signed, _statement: Rollback) -> None:
        if signed not in self.published:
            self.published.append(signed)


class Node:
    """The founder's node, which cannot go back."""

    me = FOUNDER.peer_id
    has_gone_back = False
    spares_line = False

    def notify(self) -> None:
        """Nothing waits."""


def rollbacks_in(root: Path, keepers: Sequence[Identity] = ()) -> tuple[Rollbacks, RollbackFiles]:
    ids = frozenset(each.peer_id for each in keepers)
    files = RollbackFiles(root, RUN_ID, RollbackSigners(FOUNDER.peer_id, ids))
    return Rollbacks(files, DiskHealth()), files


def test_an_order_that_was_withdrawn_can_be_given_again(tmp_path: Path) -> None:
    known, files = rollbacks_in(tmp_path)
    gossip, node = Gossip(), Node()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.run, cast(Any, gossip), node, in_no_thread)
            for _ in range(2):
                files.write(SIGNED)
                await trio.sleep(2 * DISK_LOOKS * LOOK_SECONDS)
                assert list(known) == [ORDER]
                assert known.withdrawn is None, "the order that was given again is under way"
                await trio.sleep(ORDER_SECONDS + 2 * LOOK_SECONDS)
                assert list(known) == []
                assert not files.names()
                assert f"could not go back to round {ORDER.round}" in str(known.withdrawn)
                assert f"gossamer rollback {ORDER.round}" in str(known.withdrawn)
            assert gossip.published == []
            files.write(SIGNED)
            node.has_gone_back = True
            await trio.sleep(2 * DISK_LOOKS * LOOK_SECONDS)
            assert gossip.published == [SIGNED]
            assert known.withdrawn is None
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


def live(root: Path, gossip: Gossip, node: Node, seconds: float, heard: bool = False) -> Rollbacks:
    """One life of a node. Returns its rollbacks. `heard`: whether a peer brings the order."""
    known, _ = rollbacks_in(root)
    known.load()

    async def main() -> None:
        with trio.move_on_after(seconds):
            if heard:
                known.heard(SIGNED, ORDER)
            await known.run(cast(Any, gossip), node, in_no_thread)

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    return known


def test_an_order_of_an_earlier_life_that_was_not_told_is_withdrawn(tmp_path: Path) -> None:
    _, files = rollbacks_in(tmp_path)
    gossip, node = Gossip(), Node()
    files.write(SIGNED)
    assert list(live(tmp_path, gossip, node, ORDER_SECONDS / 2)) == [ORDER]
    assert list(live(tmp_path, gossip, node, ORDER_SECONDS - 2 * LOOK_SECONDS)) == [ORDER]
    assert list(live(tmp_path, gossip, node, ORDER_SECONDS + 3 * LOOK_SECONDS)) == []
    assert not files.names()
    assert gossip.published == []


@pytest.mark.parametrize("by_peer", [False, True])
def test_an_order_that_peers_know_is_not_withdrawn_in_a_later_life(
    tmp_path: Path, *, by_peer: bool
) -> None:
    """This node told them of it, or has lost its disk and hears its own word again."""
    _, files = rollbacks_in(tmp_path)
    node = Node()
    if not by_peer:
        files.write(SIGNED)
        node.has_gone_back = True
    live(tmp_path, Gossip(), node, 2 * LOOK_SECONDS, heard=by_peer)
    node.has_gone_back = False
    gossip = Gossip()
    assert list(live(tmp_path, gossip, node, 2 * ORDER_SECONDS)) == [ORDER]
    assert gossip.published == [SIGNED]


def test_the_time_of_an_order_begins_when_the_line_is_free(tmp_path: Path) -> None:
    known, files = rollbacks_in(tmp_path)
    node = Node()
    node.spares_line = True
    files.write(SIGNED)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.run, cast(Any, Gossip()), node, in_no_thread)
            await trio.sleep(3 * ORDER_SECONDS)
            assert list(known) == [ORDER]
            node.spares_line = False
            await trio.sleep(ORDER_SECONDS - 2 * LOOK_SECONDS)
            assert list(known) == [ORDER]
            await trio.sleep(4 * LOOK_SECONDS)
            assert list(known) == []
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


def test_a_rollback_of_an_earlier_life_is_no_warning(tmp_path: Path) -> None:
    """Each start of the rest of the run warned of rounds that this node had left long ago."""
    known, files = rollbacks_in(tmp_path)
    with capture_logs() as logs:
        known.heard(SIGNED, ORDER)
    assert [(each["log_level"], each["from_round"]) for each in logs] == [("warning", 8)]
    files.write(SIGNED)
    again, _ = rollbacks_in(tmp_path)
    with capture_logs() as logs:
        again.load()
    assert list(again) == [ORDER]
    assert [(each["log_level"], each["from_round"]) for each in logs] == [("info", 8)]


def test_a_damaged_file_is_written_anew_when_a_peer_brings_it(tmp_path: Path) -> None:
    known, files = rollbacks_in(tmp_path)
    files.write(SIGNED)
    path = tmp_path / "rollbacks" / SIGNED.digest.hex()
    path.write_bytes(b"nonsense")
    known.load()
    assert list(known) == []
    other = SimpleNamespace(
        me="another node", notify=lambda: None, has_gone_back=False, spares_line=False
    )

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.run, cast(Any, Gossip()), cast(Any, other), in_no_thread)
            assert known.heard(SIGNED, ORDER)
            await trio.sleep(2 * LOOK_SECONDS)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    again, _ = rollbacks_in(tmp_path)
    again.load()
    assert list(again) == [ORDER]


KEEPERS = [Identity.from_seed(digest_of(b"keeper", bytes([number]))) for number in range(4)]


def signed_by(keeper: Identity, statement: Rollback = ORDER) -> Signed:
    return seal(statement, keeper.peer_id, RUN_ID, keeper.sign)


def test_an_order_that_is_given_again_takes_the_place_of_a_damaged_file(tmp_path: Path) -> None:
    """It was ignored until the next start: its file has the same name."""
    known, files = rollbacks_in(tmp_path)
    files.write(SIGNED)
    (name,) = files.names()
    (tmp_path / "rollbacks" / name).write_bytes(b"damaged")
    known.load()
    assert list(known) == []
    node = Node()
    node.has_gone_back = True

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.run, cast(Any, Gossip()), node, in_no_thread)
            await trio.sleep(2 * DISK_LOOKS * LOOK_SECONDS)
            files.write(SIGNED)
            await trio.sleep(2 * DISK_LOOKS * LOOK_SECONDS)
            nursery.cancel_scope.cancel()

    with capture_logs() as logs:
        trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert list(known) == [ORDER]
    assert [each["event"] for each in logs if "left out" in each["event"]] == []


def test_a_rollback_holds_when_more_than_half_of_the_keepers_signed_the_same(
    tmp_path: Path,
) -> None:
    known, files = rollbacks_in(tmp_path, KEEPERS)
    other = Rollback(digest_of(b"another round"), ORDER.parent, ORDER.round)
    for number, statement in ((0, ORDER), (1, ORDER), (1, ORDER), (2, other)):
        known.heard(signed_by(KEEPERS[number], statement), statement)
        assert len(list(known)) == 0
    known.heard(signed_by(KEEPERS[3]), ORDER)
    assert list(known) == [ORDER]
    assert known.newest_round == ORDER.round
    for keeper in KEEPERS:
        files.write(signed_by(keeper))
    stranger = Identity.from_seed(digest_of(b"stranger"))
    files.write(signed_by(stranger))
    again, _ = rollbacks_in(tmp_path, KEEPERS)
    again.load()
    assert list(again) == [ORDER]
    assert files.authors_of(ORDER) == {keeper.peer_id for keeper in KEEPERS}


def test_a_proposal_is_told_to_people_until_enough_keepers_have_agreed(tmp_path: Path) -> None:
    known, _ = rollbacks_in(tmp_path, KEEPERS)
    assert known.proposal_from(0) is None
    known.heard(signed_by(KEEPERS[0]), ORDER)
    assert known.proposal_from(0) is not None
    assert "2 more keepers have given the order" in str(known.proposal_from(0))
    assert f"gossamer rollback {ORDER.round}" in str(known.proposal_from(0))
    known.heard(signed_by(KEEPERS[1]), ORDER)
    assert "1 more keeper has given the order" in str(known.proposal_from(0))
    known.heard(signed_by(KEEPERS[2]), ORDER)
    assert known.proposal_from(0) is None


def test_a_proposal_that_nobody_can_agree_to_any_more_is_not_told(tmp_path: Path) -> None:
    """`gossamer rollback` refuses a round that is too old."""
    known, _ = rollbacks_in(tmp_path, KEEPERS)
    known.heard(signed_by(KEEPERS[0]), ORDER)
    assert known.proposal_from(ORDER.round) is not None
    assert known.proposal_from(ORDER.round + 1) is None


def test_one_keeper_fills_no_place_of_another(tmp_path: Path) -> None:
    known, _ = rollbacks_in(tmp_path, KEEPERS)
    for number in range(ROLLBACKS_MAX + 1):
        junk = Rollback(digest_of(number.to_bytes(4, "big")), ORDER.parent, ORDER.round)
        is_taken = known.heard(signed_by(KEEPERS[0], junk), junk)
        assert is_taken == (number < ROLLBACKS_MAX)
    assert known.heard(SIGNED, ORDER)
    assert list(known) == [ORDER]


def test_a_proposal_is_told_at_once_and_the_signature_that_decides_when_its_node_went_back(
    tmp_path: Path,
) -> None:
    known, files = rollbacks_in(tmp_path, KEEPERS[:3])
    gossip, node = Gossip(), Node()
    node.me = KEEPERS[1].peer_id
    first, second = signed_by(KEEPERS[0]), signed_by(KEEPERS[1])

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.run, cast(Any, gossip), node, in_no_thread)
            known.heard(first, ORDER)
            await trio.sleep(2 * LOOK_SECONDS)
            assert gossip.published == [first]
            files.write(second)
            await trio.sleep(2 * LOOK_SECONDS)
            assert list(known) == [ORDER]
            assert gossip.published == [first]
            await trio.sleep(ORDER_SECONDS + 2 * LOOK_SECONDS)
            assert list(known) == [], "the node could not go back"
            files.write(second)
            node.has_gone_back = True
            await trio.sleep(2 * LOOK_SECONDS)
            assert gossip.published == [first, second]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


@pytest.mark.parametrize("name", ["h", "k", "o"])
def test_a_later_life_knows_which_rollback_came_last(tmp_path: Path, name: str) -> None:
    """The names of their files say nothing: that of the proposal is the first one or the last."""
    _, files = rollbacks_in(tmp_path, KEEPERS[:3])
    early = Rollback(digest_of(name.encode()), ORDER.parent, 5)
    orders = (signed_by(KEEPERS[0], early), signed_by(KEEPERS[1]), signed_by(KEEPERS[2]))
    for seconds, signed in enumerate(orders):
        files.write(signed)
        os.utime(tmp_path / "rollbacks" / signed.digest.hex(), (seconds, seconds))
    known, _ = rollbacks_in(tmp_path, KEEPERS[:3])
    known.load()
    assert known.newest_round == ORDER.round
    assert known.proposal_from(0) is None, "rounds were taken back after the proposal"
