"""The momenta that a trainer may go on from, and the messages to the trainer about its parts when
its round ends.

Rule by rule; `test_carried_momentum` has whole nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.modes.carried_momentum import RINGS_MAX, CarriedMomentum
from gossamer.node.modes.ring_steps import RingParts, RingSteps
from gossamer.node.modes.shared_steps import SharedStepRunner, StepTiming
from gossamer.node.rounds.settlement import WorkSaver
from gossamer.node.storage.state.shared_parameters import sign_payloads
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.trainer.ipc.messages import Place
from tests.support.node_world import MODEL, every_place, in_no_thread

ME, OTHER = PeerId("me"), PeerId("other")
STALE_ROUNDS = 3


def digest(name: str) -> Digest:
    return digest_of(name.encode())


class Chain:
    """Heads "0", "1", ... with the ring of each; `mine` are the rounds that credit me."""

    def __init__(self, length: int, mine: Sequence[int] = (), fork: int | None = None) -> None:
        """`fork`: the round after which a branch has left this chain; None: there is none. Of the
        heads of that branch nothing else is known."""
        self.length, self.mine, self.fork = length, mine, fork
        self.unreadable: int | None = None

    def path_between(self, ancestor: Digest, head: Digest) -> list[Digest] | None:
        heads = [digest(str(number)) for number in range(self.length + 1)]
        if ancestor not in heads:
            return None
        return heads[heads.index(ancestor) + 1 : heads.index(head) + 1]

    def only_in(self, head: Digest, other: Digest) -> list[Digest]:
        heads = [digest(str(number)) for number in range(self.length + 1)]
        common = heads.index(other) if other in heads else self.fork
        assert common is not None
        return heads[common + 1 : heads.index(head) + 1][::-1]

    def header(self, head: Digest) -> object:
        number = next(n for n in range(self.length + 1) if digest(str(n)) == head)
        if number == self.unreadable:
            raise CannotRebuildError("gone")
        members = [SimpleNamespace(peer_id=OTHER, tokens=5)]
        # A member of a ring that abstains has no tokens.
        members.append(SimpleNamespace(peer_id=ME, tokens=7 if number in self.mine else 0))
        return SimpleNamespace(round=number, ring_id=digest(f"ring {number}"), members=members)


class Node:
    """The part of a node that a momentum needs, at the newest head of a chain."""

    def __init__(self, chain: Chain, loaded: Place | None) -> None:
        self.told: list[object] = []
        self.trainer = SimpleNamespace(
            lives=1,
            loaded_momentum=loaded,
            keep_momentum=self.keep,
            save=self.save,
            is_saved=self.is_saved,
            save_seconds=0.0,
        )
        self.committed = SimpleNamespace(is_loaded=True)
        self.become(chain)

    def momentum(self) -> CarriedMomentum:
        """Returns the momentum of a new life of the node."""
        committed, trainer = cast(Any, self.committed), cast(Any, self.trainer)
        return CarriedMomentum(ME, committed, trainer, STALE_ROUNDS, in_no_thread)

    def become(self, chain: Chain) -> None:
        self.committed.chain, self.committed.blocks = chain, SimpleNamespace(header=chain.header)
        self.committed.head = digest(str(chain.length))

    async def keep(self, *, keep: bool) -> None:
        self.told.append(keep)

    async def is_saved(self) -> None:
        pass

    async def save(self, place: Place) -> None:
        self.told.append(place)


def all_out(name: str) -> RingParts:
    """Parts of a ring whose parts of this peer are all out of the momentum."""
    return RingParts(digest(name), 7, has_left_out=False)


def settled(node: Node, carried: CarriedMomentum) -> Place:
    return trio.run(carried.settle)


@pytest.mark.parametrize(
    ("chain", "place", "is_kept"),
    [
        (Chain(2), Place(digest("2")), True),
        (Chain(2, mine=[1, 2]), Place(digest("2")), True),
        (Chain(2 + STALE_ROUNDS), Place(digest("2")), True),
        (Chain(3 + STALE_ROUNDS), Place(digest("2")), False),
        (Chain(3, mine=[3]), Place(digest("2")), False),
        (Chain(3, mine=[3]), Place(digest("2"), (digest("ring 3"),)), True),
        (Chain(4, mine=[3, 4]), Place(digest("2"), (digest("ring 3"),)), False),
        (Chain(2), Place(digest("of another branch")), False),
    ],
    ids=[
        "same head", "taken before", "others' rounds", "stale", "taken since", "its own ring",
        "its own ring, and one more", "another branch",
    ],
)  # fmt: skip
def test_it_is_kept_where_nothing_of_it_was_taken(
    chain: Chain, place: Place, is_kept: bool
) -> None:
    node = Node(chain, place)
    carried = node.momentum()
    place_now = settled(node, carried)
    assert node.told == [is_kept]
    assert place_now.head == digest(str(chain.length))
    settled(node, carried)
    assert len(node.told) == (2 if is_kept else 1)


def test_what_cannot_be_known_drops_it() -> None:
    chain = Chain(3)
    chain.unreadable = 3
    node = Node(chain, Place(digest("2")))
    settled(node, node.momentum())
    assert node.told == [False]


def test_a_ring_of_an_earlier_life_that_is_committed_later_drops_it() -> None:
    node = Node(Chain(2), Place(digest("2")))
    carried = node.momentum()
    settled(node, carried)
    carried.had_parts_in([all_out("a ring that came to nothing")])
    node.become(Chain(3, mine=[3]))
    settled(node, carried)
    assert node.told == [True, False]


def test_after_a_ring_of_this_life_nothing_is_asked_any_more() -> None:
    node = Node(Chain(2), Place(digest("2")))
    carried = node.momentum()
    settled(node, carried)
    carried.had_parts_in([all_out("ring 3")])
    node.become(Chain(3, mine=[3]))
    settled(node, carried)
    node.become(Chain(4, mine=[3, 4]))
    settled(node, carried)
    assert node.told == [True, True]


def test_a_new_trainer_has_no_part_in_the_rings_of_the_one_before() -> None:
    node = Node(Chain(2), None)
    carried = node.momentum()
    settled(node, carried)
    carried.had_parts_in([all_out("ring 3")])
    assert settled(node, carried) == Place(digest("2"), (digest("ring 3"),))
    node.trainer.lives, node.trainer.loaded_momentum = 2, Place(digest("2"))
    node.become(Chain(3, mine=[3]))
    settled(node, carried)
    assert node.told == [False]


def test_its_place_names_the_rings_on_its_head() -> None:
    node = Node(Chain(2), Place(digest("2"), (digest("saved"),)))
    carried = node.momentum()
    settled(node, carried)
    rings = [all_out(f"missed {number}") for number in range(RINGS_MAX + 1)]
    carried.had_parts_in([*rings, RingParts(digest("with doubts"), 0, has_left_out=True)])
    names = [ring.ring_id for ring in rings[1:]]
    assert settled(node, carried) == Place(digest("2"), (digest("saved"), *names))
    node.become(Chain(3))
    assert settled(node, carried) == Place(digest("3"))


@pytest.mark.parametrize(
    ("ring", "tokens", "is_kept"),
    [("ring 3", 7, True), ("ring 3", 6, False), ("another", 0, True), ("ring 4", 0, True)],
    ids=["no more than is out", "more", "not in the chain", "without a part"],
)
def test_a_round_that_took_what_was_left_out_here_drops_it(
    ring: str, tokens: int, is_kept: bool
) -> None:
    node = Node(Chain(2), None)
    carried = node.momentum()
    settled(node, carried)
    carried.had_parts_in([RingParts(digest(ring), tokens, has_left_out=True)])
    settled(node, carried)
    assert node.told == []
    node.become(Chain(4, mine=[3]))
    settled(node, carried)
    assert node.told == ([] if is_kept else [False])
    settled(node, carried)
    assert len(node.told) == (not is_kept), "it was asked again"


def at_a_branch(node: Node, carried: CarriedMomentum) -> None:
    """Parts were left out of ring 3 here, and another ring's round 3 was committed."""
    settled(node, carried)
    carried.had_parts_in([RingParts(digest("ring 3"), 6, has_left_out=True)])
    members = [SimpleNamespace(peer_id=ME, tokens=7)]
    node.committed.chain = SimpleNamespace(path_between=lambda *_: [digest("3 of the branch")])
    node.committed.blocks.header = lambda _: SimpleNamespace(
        round=3, ring_id=digest("another ring"), members=members
    )
    node.committed.head = digest("3 of the branch")
    settled(node, carried)
    assert node.told == []


@pytest.mark.parametrize(
    ("mine", "is_kept"), [([3], False), ([], True)], ids=["more than is out", "nothing"]
)
def test_a_branch_left_for_the_round_that_took_what_was_left_out_drops_it(
    mine: Sequence[int], is_kept: bool
) -> None:
    """Also where rounds of the other branch were committed here in between."""
    node = Node(Chain(2), None)
    carried = node.momentum()
    at_a_branch(node, carried)
    node.become(Chain(4, mine=mine, fork=2))
    settled(node, carried)
    assert node.told == ([] if is_kept else [False])


def test_a_long_branch_may_have_taken_what_was_left_out() -> None:
    node = Node(Chain(2), None)
    carried = node.momentum()
    at_a_branch(node, carried)
    node.become(Chain(3 + STALE_ROUNDS, fork=2))
    settled(node, carried)
    assert node.told == [False]


def test_a_header_that_cannot_be_read_may_have_taken_what_was_left_out() -> None:
    node = Node(Chain(2), None)
    carried = node.momentum()
    settled(node, carried)
    carried.had_parts_in([RingParts(digest("ring 3"), 7, has_left_out=True)])
    node.become(Chain(3))
    node.committed.chain.unreadable = 3
    settled(node, carried)
    assert node.told == [False]


def test_what_was_taken_meanwhile_is_known_before_the_file_says_so() -> None:
    node = Node(Chain(3, mine=[3]), Place(digest("2")))

    async def main() -> None:
        work = SimpleNamespace(must_save=False, save=lambda: None)
        trainings = SimpleNamespace(work=work, trainer=node.trainer, run_in_thread=in_no_thread)
        saver = WorkSaver(
            cast(Any, node.committed),
            cast(Any, trainings),
            cast(Any, SimpleNamespace(place=node.momentum().settle)),
            DiskHealth(),
            trio.lowlevel.checkpoint,
        )
        await saver.save(now=True)

    trio.run(main)
    assert node.told == [False, Place(digest("3"))]


# What a trainer is told when a round ends

STEPS, STEP_TOKENS = 3, 10
PAYLOADS = sign_payloads(MODEL, OuterConfig(
    inner_steps=STEPS, learning_rate=0.1, momentum=0.0, warmup_rounds=0, warmup_inner_steps=1,
    codec="fp32", chunk_elements=1024, top_k=4,
))  # fmt: skip


def part_of(sign: bool) -> bytes:
    places = every_place(PAYLOADS.coder)
    return PAYLOADS.coder.encode(SignUpdate(np.array(places), np.full(len(places), sign)))


OUT = RingParts(digest("ring"), STEP_TOKENS, has_left_out=False)
LEFT_OUT = RingParts(digest("ring"), 0, has_left_out=True)
MINE, NOT_MINE = part_of(True), part_of(False)


class RoundOfSteps:
    """A `SharedStepRunner` of two, me at the second place, whose first part is given to step 0."""

    def __init__(self, num_averages: int = 0, mine: bytes = MINE) -> None:
        self.told: list[bool] = []
        self.averages = [add_record(add_record(None, 0, NOT_MINE), 1, mine)]
        self.averages += [add_record(None, 0, NOT_MINE)] * (STEPS - 1)
        self.num_averages = num_averages
        self.while_taking: Callable[[], None] = lambda: None
        self.before_its_end: Callable[[], None] = lambda: None
        committed = SimpleNamespace(
            begin_steps=lambda *_: None,
            take_step=lambda *_: self.while_taking(),
            sync_sets=SimpleNamespace(whole=SimpleNamespace(plan=SimpleNamespace(num_chunks=3))),
        )
        trainer = SimpleNamespace(share=self.share)
        machine = SimpleNamespace(number=1, average_of=self.average_of)
        self.shared = SharedStepRunner(
            ME,
            cast(Any, committed),
            PAYLOADS,
            cast(Any, trainer),
            cast(Round, machine),
            StepTiming(),
            in_no_thread,
        )

    def average_of(self, _ring_id: Digest, step: int) -> bytes | None:
        return self.averages[step] if step < self.num_averages else None

    def follow(self, name: str) -> RingSteps:
        ready = SimpleNamespace(tokens=STEPS * STEP_TOKENS)
        ring = SimpleNamespace(ring_id=digest(name), members=(OTHER, ME), ready=(ready, ready))
        return self.shared.follow(cast(Ring, cast(Any, ring)))

    def follow_another(self) -> None:
        """None of this round's averages comes."""
        self.num_averages = 0
        self.follow("another ring")

    async def share(self, *, taken: bool) -> None:
        await trio.lowlevel.checkpoint()
        self.told.append(taken)

    def ends(self, *, is_committed: bool, gives: bool = True) -> list[RingParts]:
        """Returns this peer's parts in each ring at the end of the round."""

        async def main() -> list[RingParts]:
            steps = self.follow("ring")
            if gives:
                self.shared.offered(MINE)
                await steps.due(0, None)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.shared.run)
                await trio.testing.wait_all_tasks_blocked()
                self.before_its_end()
                self.shared.close()
                return await self.shared.settle(self.averages if is_committed else None)

        return trio.run(main)


def test_a_part_is_told_of_once() -> None:
    one = RoundOfSteps(num_averages=2)
    assert one.ends(is_committed=False) == [OUT]
    assert one.told == [True]


def test_a_part_in_a_step_that_was_not_seen_is_taken_if_the_commit_has_it() -> None:
    one = RoundOfSteps()
    assert one.ends(is_committed=True) == [OUT]
    assert one.told == [True]
    other = RoundOfSteps(mine=b"")
    assert other.ends(is_committed=True) == [LEFT_OUT]
    assert other.told == [False]


def test_a_part_that_was_left_out_of_a_step_stays() -> None:
    one = RoundOfSteps(num_averages=2, mine=b"")
    assert one.ends(is_committed=False) == [LEFT_OUT]
    assert one.told == [False]


@pytest.mark.parametrize("num_averages", [0, 1])
def test_a_part_in_a_ring_that_became_void_stays(num_averages: int) -> None:
    one = RoundOfSteps(num_averages)
    if num_averages:
        one.while_taking = one.follow_another
    else:
        one.before_its_end = one.follow_another
    assert one.ends(is_committed=False) == [LEFT_OUT]
    assert one.told == []


def test_a_part_of_which_nothing_is_known_is_rather_lost_than_sent_twice() -> None:
    one = RoundOfSteps()
    assert one.ends(is_committed=False) == [OUT]
    assert one.told == [True]


def test_a_trainer_that_gave_nothing_is_told_nothing() -> None:
    one = RoundOfSteps(num_averages=2, mine=b"")
    assert one.ends(is_committed=False, gives=False) == []
    assert one.told == []


def test_the_end_of_the_round_does_not_swallow_word_of_a_part() -> None:
    one = RoundOfSteps(num_averages=1)
    one.while_taking = one.shared.close
    one.ends(is_committed=False)
    assert one.told == [True]
