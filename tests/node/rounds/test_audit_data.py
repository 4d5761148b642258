"""The data on which a node audits the work of another one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from gossamer.node.peers.blocks.block_exchange import FetchError
from gossamer.node.training.audit_data import AuditData, AuditSequences
from gossamer.protocol.accounting.excerpts import Excerpt
from gossamer.protocol.accounting.partitions import Partitions
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.wire.statements import Ready, Span
from tests.support.builders import HEAD, peer

LENGTH = 17
TOKENS = 1000


@pytest.mark.parametrize(
    ("spans", "is_declared"),
    [
        ((), False),
        ((Span(0, 0, 4 * LENGTH),), False),
        ((Span(0, 0, TOKENS // 2 - 1),), False),
        ((Span(0, 0, TOKENS // 2 + LENGTH),), True),
        ((Span(0, 0, 4 * LENGTH), Span(9, 0, TOKENS)), False),
        ((Span(0, 0, 4 * LENGTH),) * 8, False),
        ((Span(0, 0, 4 * LENGTH), *(Span(1, n, n + 16) for n in range(0, 640, 20))), False),
    ],
    ids=[
        "none",
        "four sequences",
        "less than half",
        "half",
        "data that are not there",
        "repeated",
        "in pieces without a sequence",
    ],
)
def test_a_member_that_names_too_little_is_audited_on_none_of_it(
    spans: tuple[Span, ...], is_declared: bool
) -> None:
    """It could have been audited on the little that it named, and on nothing else."""
    run_data = SimpleNamespace(partitions=Partitions([2048] * 4, 1))
    nothing = cast(Any, None)
    data = AuditData(cast(Any, run_data), nothing, nothing, nothing, LENGTH)
    ready = Ready(1, 1, 5, HEAD, TOKENS, 1, 2.0, 1.0, spans)
    assert bool(data.declared(HEAD, peer(0), ready)) is is_declared


class Shards:
    """The block service and the store of a node that can get some shards, and waits for others."""

    def __init__(self, lost: Collection[Digest] = (), late: Collection[Digest] = ()) -> None:
        self._lost, self._late = lost, late
        self.pinned: list[Digest] = []

    async def fetch_checked(
        self, digests: Iterable[Digest], _sources: object, *, passes: int
    ) -> None:
        assert passes == 1
        wanted = set(digests)
        if wanted & set(self._late):
            await trio.sleep_forever()
        if missing := wanted & set(self._lost):
            raise FetchError(sorted(missing), len(wanted), "nobody has them")

    def pin(self, _name: str, digests: Iterable[Digest]) -> None:
        self.pinned = list(digests)

    def path(self, digest: Digest) -> Path:
        return Path(digest.hex())


SHARDS = tuple(
    SimpleNamespace(digest=digest_of(bytes([number])), num_tokens=2048) for number in range(4)
)
HELDOUT = SimpleNamespace(digest=digest_of(b"heldout"), num_tokens=2048)
DECLARED = (Excerpt(0, 17), Excerpt(1, 0))
OTHERS = (Excerpt(0, 34),)


def fetched(shards: Shards, patience: trio.CancelScope | None = None) -> AuditSequences:
    run_data = SimpleNamespace(shards=SHARDS, heldout=(HELDOUT,))
    swarm = SimpleNamespace(sources=lambda: ())
    each = cast(Any, shards)
    data = AuditData(cast(Any, run_data), each, each, cast(Any, swarm), LENGTH)
    return trio.run(data.fetch, DECLARED, OTHERS, patience or trio.CancelScope())


def place(shard: SimpleNamespace, start: int) -> tuple[str, int]:
    return shard.digest.hex(), start


def test_the_sequences_of_an_audit_are_in_files_that_are_here() -> None:
    shards = Shards()
    found = fetched(shards)
    assert found.places == [place(SHARDS[0], 17), place(SHARDS[1], 0), place(HELDOUT, 34)]
    assert found.num_declared == 2
    assert set(shards.pinned) == {SHARDS[0].digest, SHARDS[1].digest, HELDOUT.digest}


def test_where_one_declared_shard_cannot_be_had_held_out_text_is_left() -> None:
    """A member could otherwise give out the few shards that it trained on."""
    found = fetched(Shards(lost=[SHARDS[1].digest]))
    assert found == ([place(HELDOUT, 34)], 0)


def test_declared_shards_that_come_slowly_are_waited_for_while_there_is_patience() -> None:
    patience = trio.CancelScope()
    patience.cancel()
    assert fetched(Shards(late=[SHARDS[1].digest]), patience) == ([place(HELDOUT, 34)], 0)


def test_where_held_out_text_cannot_be_had_the_declared_sequences_are_left() -> None:
    found = fetched(Shards(lost=[HELDOUT.digest]))
    assert found == ([place(SHARDS[0], 17), place(SHARDS[1], 0)], 2)


def test_where_nothing_can_be_had_nothing_is_left() -> None:
    digests = [SHARDS[0].digest, HELDOUT.digest]
    assert fetched(Shards(lost=digests)) == ([], 0)
