"""The founder's word on the end of a run: what a node takes, keeps, tells, and refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.heads.extensions import LOOK_SECONDS, ExtensionFile, Extensions
from gossamer.node.network.identity import Identity
from gossamer.node.peers.admission import Admission
from gossamer.node.runs.governance.extending import FoundersSchedule
from gossamer.node.runs.governance.signed_orders import OrderError, SignersRun
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, ImplausibleError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Manifest, TokenSchedule
from gossamer.protocol.state.run_end import RunEnd
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import Extension, Signed, Statement
from tests.support.builders import manifest
from tests.support.node_world import in_no_thread

replace = msgspec.structs.replace
FOUNDER, OTHER = (Identity.from_seed(digest_of(name)) for name in (b"founder", b"other"))
WSD = TokenSchedule(warmup_tokens=100, total_tokens=10_000, cooldown_tokens=2_000)


def run_of(name: str = "mine") -> Manifest:
    example = manifest()
    inner = replace(example.inner, schedule=WSD, ends=True)
    return replace(example, name=name, founder=FOUNDER.peer_id, inner=inner)


RUN = run_of()


def signed(
    number: int, total: int = 20_000, identity: Identity = FOUNDER, run: Manifest = RUN
) -> Signed:
    return seal(Extension(number, total, 2_000), identity.peer_id, run.run_id, identity.sign)


class Gossip:
    """Notes what is published."""

    def __init__(self) -> None:
        self.published: list[Signed] = []

    def keep_posted(self, signed: Signed, _statement: Extension) -> None:
        if signed not in self.published:
            self.published.append(signed)


class Node:
    """One life of a node, as far as extensions go."""

    def __init__(self, root: Path) -> None:
        self.file = ExtensionFile(root, RUN)
        self.end = RunEnd(RUN.model, RUN.inner, RUN.outer)
        self.extensions = Extensions(self.file, self.end, DiskHealth())
        self.extensions.load()
        self.gossip = Gossip()
        self.news = 0

    def _notify(self) -> None:
        self.news += 1

    async def run(self) -> None:
        await self.extensions.run(cast(Any, self.gossip), self._notify, in_no_thread)

    def heard(self, envelope: Signed) -> bool:
        statement = msgspec.msgpack.decode(envelope.payload, type=Extension)
        return self.extensions.heard(envelope, statement)


def test_an_order_is_taken_told_once_and_outlives_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.end.final_tokens == 10_000

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run)
            await trio.sleep(2 * LOOK_SECONDS)
            node.file.write(signed(1))
            await trio.sleep(5 * LOOK_SECONDS)
            assert node.end.final_tokens == 20_000
            assert node.gossip.published == [signed(1)]
            assert node.news == 1
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert Node(tmp_path).end.final_tokens == 20_000


def test_what_a_peer_brings_is_kept_and_an_older_one_comes_too_late(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run)
            assert node.heard(signed(2, 30_000))
            assert not node.heard(signed(1, 50_000)), "a replayed older one"
            await trio.sleep(2 * LOOK_SECONDS)
            node.file.write(signed(1, 50_000))  # of a founder that lost its disk
            await trio.sleep(3 * LOOK_SECONDS)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert node.end.final_tokens == 30_000
    assert node.file.read() == (signed(2, 30_000), Extension(2, 30_000, 2_000))


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        to_msgpack(signed(1, identity=OTHER)),
        to_msgpack(signed(1, run=run_of("another"))),
        to_msgpack(signed(1, total=2_050)),
        to_msgpack(replace(signed(1), signature=bytes(64))),
    ],
    ids=["damaged", "wrong key", "other run", "no room for the cool-down", "no signature"],
)
def test_a_file_that_the_founder_did_not_leave_is_left_out(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "extension").write_bytes(data)
    node = Node(tmp_path)
    assert node.end.final_tokens == 10_000

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run)
            await trio.sleep(2 * LOOK_SECONDS)
            assert node.gossip.published == []
            assert node.heard(signed(1))
            await trio.sleep(2 * LOOK_SECONDS)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert Node(tmp_path).end.final_tokens == 20_000, "it was not written anew"


def admits(run: Manifest, author: Identity, statement: Statement) -> bool:
    """Whether a node of a run takes a statement; the author is banned and not connected."""
    offences = SimpleNamespace(is_banned=lambda _peer: True)
    transport = SimpleNamespace(peer_id=OTHER.peer_id, peers=list)
    parts = (transport, None, None, offences, None, None)
    return Admission(run, *cast(Any, parts)).admits(author.peer_id, statement)


def test_only_the_founder_of_a_run_that_counts_tokens_is_heard() -> None:
    extension = Extension(1, 20_000, 2_000)
    assert admits(RUN, FOUNDER, extension)
    with pytest.raises(ForgedError, match="not the founder"):
        admits(RUN, OTHER, extension)
    with pytest.raises(ImplausibleError, match="longer than the run"):
        admits(RUN, FOUNDER, Extension(1, 2_050, 2_000))
    planned = replace(RUN, inner=replace(RUN.inner, schedule=msgspec.UNSET))
    with pytest.raises(ImplausibleError, match="planned steps"):
        admits(planned, FOUNDER, extension)


def founders(root: Path, run: Manifest = RUN, identity: Identity = FOUNDER) -> FoundersSchedule:
    return FoundersSchedule(SignersRun(run, identity, StateDir(root)))


def test_the_founder_sets_the_end_and_begins_the_cool_down(tmp_path: Path) -> None:
    longer = founders(tmp_path).plan(50_000, None)
    assert longer.statement == Extension(1, 50_000, 2_000)
    founders(tmp_path).extend(longer)
    again = founders(tmp_path)
    assert again.schedule == replace(WSD, total_tokens=50_000)
    assert again.plan(60_000, 30_000).statement == Extension(2, 60_000, 30_000)
    after_warmup = WSD.warmup_tokens + 5_000
    assert again.plan(None, 5_000).statement == Extension(2, after_warmup, 5_000)
    assert Node(tmp_path).end.final_tokens == 50_000


def test_of_two_orders_at_once_the_later_one_is_refused(tmp_path: Path) -> None:
    """Both would have the same number, and the larger totals would hold without a word."""
    one, other = founders(tmp_path), founders(tmp_path)
    longer, shorter = one.plan(50_000, None), other.plan(40_000, None)
    one.extend(longer)
    with pytest.raises(OrderError, match="another order has set the end of the run meanwhile"):
        other.extend(shorter)
    assert founders(tmp_path).schedule.total_tokens == 50_000
    again = founders(tmp_path)
    again.extend(again.plan(40_000, None))
    assert founders(tmp_path).schedule.total_tokens == 40_000


def test_the_founder_is_told_what_is_not_possible(tmp_path: Path) -> None:
    with pytest.raises(OrderError, match="only the founder"):
        founders(tmp_path, identity=OTHER)
    planned = replace(RUN, inner=replace(RUN.inner, schedule=msgspec.UNSET))
    with pytest.raises(OrderError, match="counts planned steps"):
        founders(tmp_path, planned)
    mine = founders(tmp_path)
    for total, cooldown, problem in (
        (1_000, 2_000, "a cool-down of 2,000 tokens in a run of 1,000"),
        (1_000, -1, "a cool-down of -1"),
        (2**60, None, "72,057,594,037,927,936 at most"),
        (0, 0, "too near"),
        (2_050, 2_000, "longer than the run"),
    ):
        with pytest.raises(OrderError, match=problem):
            mine.plan(total, cooldown)
    (tmp_path / "extension").write_bytes(b"nonsense")
    with pytest.raises(OrderError, match="is damaged"):
        founders(tmp_path)
