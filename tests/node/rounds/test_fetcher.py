"""Which heads are fetched, and when a fetch ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from gossamer.node.base.orders import Orders
from gossamer.node.heads.branches import RingAtWork
from gossamer.node.heads.fetcher import LOOK_SECONDS, HeadFetcher
from gossamer.protocol.ids import Digest, digest_of
from tests.support.builders import peer
from tests.support.memory_transport import run_simulated

HEAD, RING = digest_of(b"head"), RingAtWork(digest_of(b"ring"), None)


class Fetches:
    """A node that hears of one head, which has stake behind it and never arrives."""

    def __init__(self) -> None:
        self.begun: list[Digest] = []
        self.ended: list[Digest] = []
        self.counting: list[Digest] = []
        self.avoided: list[Digest] = []
        self.is_reached = False
        heads: Any = SimpleNamespace(
            wanted=lambda: [] if self.counting else [HEAD],
            signers_of=lambda _head: frozenset({peer(1)}),
            counts_at_once=lambda _head: True,
            note_counting=self.counting.append,
            branches=SimpleNamespace(
                is_by_way_of=lambda ring, head: (ring, head) == (RING, HEAD),
                is_reached=lambda _head: self.is_reached,
            ),
            avoid=self.avoided.append,
        )
        swarm: Any = SimpleNamespace(sources=list)
        sync: Any = SimpleNamespace(fetch=self._fetch)
        self.fetcher = HeadFetcher(heads, sync, swarm, Orders())

    async def _fetch(self, head: Digest, _sources: object) -> None:
        self.begun.append(head)
        try:
            await trio.sleep_forever()
        finally:
            self.ended.append(head)

    def run(self, seconds: float) -> None:
        """Looks for so long; the head is reached in another way in the middle of it."""

        async def main() -> None:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.fetcher.run)
                    await trio.sleep(seconds / 2)
                    assert not self.ended
                    self.is_reached = True
                    await trio.sleep(seconds / 4)
                    assert self.ended == self.begun
                    assert not self.fetcher.is_at_work

        run_simulated(main)


def test_a_fetch_ends_when_the_head_is_reached_in_another_way() -> None:
    fetches = Fetches()
    fetches.run(8 * LOOK_SECONDS)
    assert fetches.begun == [HEAD]
    assert not fetches.avoided


def test_the_round_of_a_ring_that_is_being_finished_counts_and_is_not_fetched() -> None:
    fetches = Fetches()
    fetches.fetcher.finishing_ring = lambda: RING
    fetches.run(8 * LOOK_SECONDS)
    assert not fetches.begun
    assert HEAD in fetches.counting


def test_the_round_of_another_ring_is_fetched_meanwhile() -> None:
    fetches = Fetches()
    fetches.fetcher.finishing_ring = lambda: RingAtWork(digest_of(b"another ring"), None)
    fetches.run(8 * LOOK_SECONDS)
    assert fetches.begun == [HEAD]
