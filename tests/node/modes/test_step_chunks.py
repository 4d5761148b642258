"""A peer's part in a shared step of several chunks: it is in all of them, or in none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from gossamer.node.modes.ring_steps import RingParts
from gossamer.node.modes.shared_steps import STEP_SECONDS_MAX, SharedStepRunner, StepTiming
from gossamer.node.storage.state.shared_parameters import sign_payloads
from gossamer.protocol.codecs.contributions import add_record, split
from gossamer.protocol.codecs.record_tree import root_over
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from tests.support.node_world import MODEL, every_place, in_no_thread

ME, OTHER = PeerId("me"), PeerId("other")
STEPS, CHUNKS, STEP_TOKENS = 3, 2, 10
PAYLOADS = sign_payloads(MODEL, OuterConfig(
    inner_steps=STEPS, learning_rate=0.1, momentum=0.0, warmup_rounds=0, warmup_inner_steps=1,
    codec="fp32", chunk_elements=1024, top_k=4, step_chunks=CHUNKS,
))  # fmt: skip


def update_of(sign: bool) -> bytes:
    places = np.array(every_place(PAYLOADS.coder))
    return PAYLOADS.coder.encode(SignUpdate(places, np.full(len(places), sign)))


MINE, NOT_MINE = update_of(True), update_of(False)


class Steps:
    """A `SharedStepRunner` of two, me at the second place."""

    def __init__(self, payloads: SignPayloads = PAYLOADS) -> None:
        self.payloads = payloads
        self.timing = StepTiming()
        self.signed: list[tuple[int, Digest]] = []
        """The steps that this peer signed, and their roots."""
        self.told: list[bool] = []
        self.took: list[int] = []
        self.averages: dict[int, bytes] = {}
        plan = SimpleNamespace(num_chunks=STEPS * CHUNKS)
        committed = SimpleNamespace(
            begin_steps=lambda *_: None,
            take_step=lambda _number, chunk, _average: self.took.append(chunk),
            sync_sets=SimpleNamespace(whole=SimpleNamespace(plan=plan)),
        )
        machine = SimpleNamespace(
            number=1,
            average_of=lambda _, chunk: self.averages.get(chunk),
            signed_averages_of=lambda _ring: SimpleNamespace(sign_step=self.sign),
        )
        self.runner = SharedStepRunner(
            ME,
            cast(Any, committed),
            payloads,
            cast(Any, SimpleNamespace(share=self.share)),
            cast(Round, machine),
            self.timing,
            in_no_thread,
        )
        self.ring = self.runner.follow(self.ring_named("ring"))

    @staticmethod
    def ring_named(name: str) -> Ring:
        ready = SimpleNamespace(tokens=STEPS * STEP_TOKENS)
        ring_id: Digest = digest_of(name.encode())
        ring = SimpleNamespace(ring_id=ring_id, members=(OTHER, ME), ready=(ready, ready))
        return cast(Ring, cast(Any, ring))

    def sign(self, step: int, root: Digest) -> bytes:
        self.signed.append((step, root))
        return bytes(64)

    async def share(self, *, taken: bool) -> None:
        await trio.lowlevel.checkpoint()
        self.told.append(taken)

    async def part_in(self, chunk: int, others: bytes | None = None) -> bytes:
        """Returns what this peer gives to a chunk, or to what another one has given (`others`:
        empty if that one abstained)."""
        partial_sum = None
        if others is not None:
            parts = PAYLOADS.coder.cut(others) if others else (b"",) * CHUNKS
            blocks = self.payloads.signed_blocks(parts, lambda _root: bytes(64))
            partial_sum = add_record(None, 0, blocks[chunk % CHUNKS])
        await self.ring.due(chunk, partial_sum)
        (record,) = split(self.ring.add(chunk, None, 0), None, 2048)
        return bytes(record.block)

    async def gives_its_part(self) -> None:
        """The trainer offers an update, and both chunks of the first step have their parts."""
        self.runner.offered(MINE)
        for chunk in (0, 1):
            await self.part_in(chunk)

    async def average_comes(self, chunk: int, *, with_mine: bool, of_other: bool = True) -> None:
        """An average comes, and is taken."""
        mine = PAYLOADS.coder.cut(MINE) if with_mine else (b"",) * CHUNKS
        others = PAYLOADS.coder.cut(NOT_MINE) if of_other else (b"",) * CHUNKS
        blocks = [
            self.payloads.signed_blocks(parts, lambda _root: bytes(64))[chunk % CHUNKS]
            for parts in (others, mine)
        ]
        self.averages[chunk] = add_record(add_record(None, 0, blocks[0]), 1, blocks[1])
        self.runner.notify()
        await trio.testing.wait_all_tasks_blocked()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.runner.run)
            yield
            self.runner.close()


def in_virtual_time(
    story: Callable[[Steps], Awaitable[None]], payloads: SignPayloads = PAYLOADS
) -> None:
    async def main() -> None:
        steps = Steps(payloads)
        async with steps.running():
            await story(steps)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def parts_at_the_end(steps: Steps, num_out: int, *, has_left_out: bool) -> list[RingParts]:
    tokens = num_out * STEP_TOKENS // CHUNKS
    return [RingParts(steps.ring.ring_id, tokens, has_left_out=has_left_out)]


def test_each_chunk_has_its_part_of_one_update() -> None:
    async def story(steps: Steps) -> None:
        steps.runner.offered(MINE)
        parts = [await steps.part_in(chunk) for chunk in (1, 0)]  # in whatever order they are due
        assert b"".join(reversed(parts)) == MINE
        steps.runner.offered(NOT_MINE)  # too late for this step
        assert await steps.part_in(0) == parts[1]

    in_virtual_time(story)


def test_the_trainer_goes_on_when_all_chunks_of_its_step_are_taken() -> None:
    async def story(steps: Steps) -> None:
        await steps.gives_its_part()
        await steps.average_comes(1, with_mine=True)
        assert steps.took == []  # in order
        await steps.average_comes(0, with_mine=True)
        assert (steps.took, steps.told) == ([0, 1], [True])
        assert not steps.runner.has_offer

    in_virtual_time(story)


def test_a_peer_that_is_late_for_one_chunk_abstains_in_the_whole_step() -> None:
    async def story(steps: Steps) -> None:
        assert await steps.part_in(0, NOT_MINE) == b""  # after its patience
        steps.runner.offered(MINE)
        assert await steps.part_in(1) == b""
        for chunk in (0, 1):
            await steps.average_comes(chunk, with_mine=False)
        assert steps.told == []  # the offer is good for the next step
        assert await steps.part_in(2) == PAYLOADS.coder.cut(MINE)[0]

    in_virtual_time(story)


def test_a_sum_without_any_part_says_nothing_of_the_time_of_a_step() -> None:
    """Otherwise members that wait too little take each other for fast ones."""

    async def story(steps: Steps) -> None:
        began = trio.current_time()
        assert await steps.part_in(0, b"") == b""
        assert trio.current_time() - began == STEP_SECONDS_MAX
        assert steps.timing.step_seconds == 0.0

    in_virtual_time(story)


def test_after_a_step_without_any_part_its_time_is_not_known_any_more() -> None:
    async def story(steps: Steps) -> None:
        steps.timing.took(0.1)
        assert await steps.part_in(0) == b""
        for chunk in (0, 1):
            await steps.average_comes(chunk, of_other=False, with_mine=False)
        began = trio.current_time()
        assert await steps.part_in(2) == b""
        assert trio.current_time() - began == STEP_SECONDS_MAX, "it waits once more in this round"
        for chunk in (2, 3):
            await steps.average_comes(chunk, of_other=False, with_mine=False)
        began = trio.current_time()
        assert await steps.part_in(4) == b""
        assert trio.current_time() == began, "a trainer that hangs holds up no further step"

    in_virtual_time(story)


def test_an_update_that_waits_for_its_step_is_in_all_chunks_of_the_next() -> None:
    async def story(steps: Steps) -> None:
        given: dict[int, bytes] = {}

        async def give(chunk: int) -> None:
            given[chunk] = await steps.part_in(chunk, NOT_MINE)

        async with trio.open_nursery() as nursery:
            for chunk in (3, 2):
                nursery.start_soon(give, chunk)
            await trio.testing.wait_all_tasks_blocked()
            assert given == {}  # their step is not the next one
            for chunk in (0, 1):
                await steps.average_comes(chunk, with_mine=False)
            assert given == {}
            steps.runner.offered(MINE)
        assert b"".join(given[chunk] for chunk in (2, 3)) == MINE

    in_virtual_time(story)


@pytest.mark.parametrize("chunk_with_mine", [0, 1])
def test_a_part_of_which_one_chunk_is_taken_counts_as_taken(chunk_with_mine: int) -> None:
    """It would else be counted twice in that chunk."""

    async def story(steps: Steps) -> None:
        await steps.gives_its_part()
        for chunk in (0, 1):
            await steps.average_comes(chunk, with_mine=chunk == chunk_with_mine)
        assert steps.told == [True]
        steps.runner.close()
        # A header credits at most what left the momentum: that of both chunks.
        assert await steps.runner.settle(None) == parts_at_the_end(steps, 2, has_left_out=False)

    in_virtual_time(story)


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("num_taken", [0, 1])
def test_the_end_of_a_round_in_the_middle_of_a_step(num_taken: int, is_committed: bool) -> None:
    async def story(steps: Steps) -> None:
        await steps.gives_its_part()
        for chunk in range(num_taken):
            await steps.average_comes(chunk, with_mine=False)
        assert steps.told == []
        steps.runner.close()
        for chunk in range(num_taken, STEPS * CHUNKS):
            await steps.average_comes(chunk, with_mine=False)
        averages = [steps.averages[chunk] for chunk in range(STEPS * CHUNKS)]
        parts = await steps.runner.settle(averages if is_committed else None)
        # Nothing is known of the chunk that was not taken: rather lost than counted twice.
        assert steps.told == [not is_committed]
        expected = (0, True) if is_committed else (2, False)
        assert parts == parts_at_the_end(steps, expected[0], has_left_out=expected[1])

    in_virtual_time(story)


SIGNED = SignPayloads(PAYLOADS.coder, are_signed=True)


def signed_root(chunk: int, block: bytes) -> Digest:
    """The root that the signature of a block stands under."""
    size = len(block) - 64 - 32  # two chunks have a path of one digest
    return root_over(chunk % CHUNKS, block[:size], block[size + 64 :])


def test_a_peer_signs_one_root_for_a_step_whatever_comes_when() -> None:
    """Two would be a proof against it. Here a step goes on while its second chunk is asked for."""

    async def story(steps: Steps) -> None:
        given = {}
        steps.runner.offered(MINE)
        given[0] = await steps.part_in(0)
        for chunk in (0, 1):
            await steps.average_comes(chunk, with_mine=chunk == 0)
        given[2] = await steps.part_in(2, NOT_MINE)  # it abstains after its patience
        given[1] = await steps.part_in(1)  # its average is taken
        steps.runner.offered(MINE)
        given[3] = await steps.part_in(3)
        steps.runner.close()
        given[5] = await steps.part_in(5)
        given[4] = await steps.part_in(4)
        assert [step for step, _ in steps.signed] == [0, 1, 2]
        for chunk, block in given.items():
            assert signed_root(chunk, block) == dict(steps.signed)[chunk // CHUNKS]
        sizes = [len(given[chunk]) - 96 for chunk in range(STEPS * CHUNKS)]
        assert sizes == [*map(len, PAYLOADS.coder.cut(MINE)), 0, 0, 0, 0]

    in_virtual_time(story, SIGNED)


def test_a_ring_that_becomes_void_in_the_middle_of_a_step() -> None:
    async def story(steps: Steps) -> None:
        await steps.gives_its_part()
        await steps.average_comes(0, with_mine=True)
        void, steps.averages = steps.ring, {}
        steps.ring = steps.runner.follow(Steps.ring_named("another ring"))
        assert b"".join([await steps.part_in(chunk) for chunk in (0, 1)]) == MINE
        for chunk in (0, 1):
            await steps.average_comes(chunk, with_mine=True)
        assert steps.told == [True]
        steps.runner.close()
        # If the void ring is committed after all, the momentum is dropped: it still had the part.
        first, second = await steps.runner.settle(None)
        assert first == RingParts(void.ring_id, 0, has_left_out=True)
        assert second == RingParts(steps.ring.ring_id, STEP_TOKENS, has_left_out=False)

    in_virtual_time(story)
