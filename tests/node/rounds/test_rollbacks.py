"""The rollbacks that a node keeps: damaged files, and an order that is given again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import MockClock

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.heads.rollbacks import LOOK_SECONDS, ORDER_SECONDS, RollbackFiles, Rollbacks
from gossamer.node.network.identity import Identity
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.wire.statements import Rollback, Signed, seal
from tests.support.node_world import in_no_thread

RUN_ID = Digest(bytes(32))
FOUNDER = Identity.from_seed(digest_of(b"founder"))
ORDER = Rollback(digest_of(b"undone"), digest_of(b"parent"), 7)
SIGNED = seal(ORDER, FOUNDER.peer_id, RUN_ID, FOUNDER.sign)


class Gossip:
    """Notes what is published, and has room for all of it."""

    def __init__(self) -> None:
        self.published: list[Signed] = []
        self.statement_store = SimpleNamespace(has=lambda _digest: True)

    def publish(self, signed: Signed, _statement: Rollback) -> None:
        self.published.append(signed)


class Node:
    """The founder's node, which cannot go back."""

    me = FOUNDER.peer_id
    has_gone_back = False

    def notify(self) -> None:
        """Nothing waits."""


def rollbacks_in(root: Path) -> tuple[Rollbacks, RollbackFiles]:
    files = RollbackFiles(root, RUN_ID, FOUNDER.peer_id)
    return Rollbacks(files, DiskHealth()), files


def test_an_order_that_was_withdrawn_can_be_given_again(tmp_path: Path) -> None:
    known, files = rollbacks_in(tmp_path)
    gossip, node = Gossip(), Node()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(known.run, cast(Any, gossip), node, in_no_thread)
            for _ in range(2):
                files.write(SIGNED)
                await trio.sleep(2 * LOOK_SECONDS)
                assert list(known) == [ORDER]
                await trio.sleep(ORDER_SECONDS + 2 * LOOK_SECONDS)
                assert list(known) == []
                assert not files.names()
            assert gossip.published == []
            files.write(SIGNED)
            node.has_gone_back = True
            await trio.sleep(2 * LOOK_SECONDS)
            assert gossip.published == [SIGNED]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


def test_a_damaged_file_is_written_anew_when_a_peer_brings_it(tmp_path: Path) -> None:
    known, files = rollbacks_in(tmp_path)
    files.write(SIGNED)
    path = tmp_path / "rollbacks" / SIGNED.digest.hex()
    path.write_bytes(b"nonsense")
    known.load()
    assert list(known) == []
    other = SimpleNamespace(me="another node", notify=lambda: None, has_gone_back=False)

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
