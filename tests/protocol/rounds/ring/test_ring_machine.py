"""Chunks, averages and accusations in every order that links and gossip allow.

A link keeps the order of what is sent on it; everything else may overtake everything else. For any
order, members that hold each other to be in have the same averages in the end, each with all of
them in it, no member is in a sum twice, and none finishes a chunk twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.rounds.actions import (
    Contradicted,
    Contribute,
    FinishAverage,
    RingAction,
    Send,
)
from gossamer.protocol.rounds.inventory import ArrivedSum, Average, Inventory, Payload
from gossamer.protocol.rounds.ring.ring import RingReduce
from gossamer.protocol.rounds.ring.ring_members import Accusations
from tests.support.builders import peers

STEPS_MAX = 20_000
"""Upper bound on the steps until nothing is left to do: some hundred are enough for six members and
four chunks."""

Choice: TypeAlias = st.SearchStrategy[int]
choices: Choice = st.integers(0, 10_000)
"""Index of the chosen one of several things, modulo their number."""


def digest_of_sum(payload: Payload) -> Digest:
    """A sum is a byte a part, its member's position, in the order of adding."""
    return digest_of(payload)


@dataclass
class Link:
    """The link from one member to another. A member that opens it in the middle of a ring waits for
    the inventory."""

    asks_first: bool
    frames: deque[Send] = field(default_factory=deque)
    inventory: Inventory | None = None


class Member:
    """One member: its machines, and what is to be done for them."""

    def __init__(
        self, members: list[PeerId], me: PeerId, num_chunks: int, starters: list[int]
    ) -> None:
        self.me = me
        self.position = members.index(me)
        self.alive = True
        self.ring = RingReduce(
            members, me, num_chunks, starters, lambda *_: me.encode(), lambda *_: b""
        )
        self.accusations = Accusations(members, me)
        self.tasks: list[Contribute | FinishAverage] = []
        self.links: dict[PeerId, Link] = {}
        self.to_hear: list[tuple[PeerId, PeerId]] = []
        """Accusations as (author, accused) that the member has yet to hear, in any order."""

    @property
    def is_in(self) -> bool:
        return self.alive and self.me not in self.accusations.out


class RingMachine(RuleBasedStateMachine):
    """All members of one ring."""

    @initialize(
        num_members=st.integers(2, 6),
        num_chunks=st.integers(1, 4),
        num_faults=st.integers(0, 6),
        order=st.integers(0, 2**32),
    )
    def begin(self, num_members: int, num_chunks: int, num_faults: int, order: int) -> None:
        """Begins a ring with few faults: with many, no member would be left to make a mistake."""
        names = peers(num_members)
        self.num_faults = num_faults
        self.random = Random(order)
        starters = sorted(
            self.random.sample(range(num_members), self.random.randint(1, num_members))
        )
        self.members = {name: Member(names, name, num_chunks, starters) for name in names}
        for member in self.members.values():
            self.do(member, member.ring.start())

    # What members do

    def do(self, member: Member, actions: list[RingAction]) -> None:
        for action in actions:
            assert not isinstance(action, Contradicted), "a member finished a chunk twice"
            if isinstance(action, Send):
                link = member.links.setdefault(action.peer, Link(bool(member.accusations.out)))
                link.frames.append(action)
            else:
                member.tasks.append(action)

    def compute(self, member: Member, task: Contribute | FinishAverage) -> None:
        payload = task.payload
        if isinstance(task, Contribute):
            before = b"" if payload is None else bytes(payload)
            total = before + bytes([member.position])
            self.do(member, member.ring.contributed(task.chunk, total))
            return
        assert payload is not None
        self.check_sum(bytes(payload), task.mask)
        digest = digest_of_sum(payload)
        self.do(member, member.ring.average_finished(task.chunk, payload, digest))

    def accuse(self, member: Member, author: PeerId, accused: PeerId) -> None:
        """A member hears an accusation, and does what `followed_ring` does."""
        if member.accusations.accuse(author, accused):
            self.do(member, member.ring.member_removed(accused))
            if accused == member.me != author:
                self.publish(member, member.me)
                member.accusations.accuse(member.me, member.me)
        for peer in member.accusations.to_repeat():
            member.accusations.accuse(member.me, peer)
            self.publish(member, peer)

    def publish(self, author: Member, accused: PeerId) -> None:
        for other in self.members.values():
            if other is not author:
                other.to_hear.append((author.me, accused))

    def accuse_successor(self, member: Member) -> None:
        successor = member.ring.successor
        assert successor is not None
        self.publish(member, successor)
        self.accuse(member, member.me, successor)

    def deliver(self, source: Member, target: Member) -> None:
        link = source.links[target.me]
        if link.asks_first and link.inventory is None:
            link.inventory = target.ring.inventory()
            return
        frame = link.frames.popleft()
        if link.inventory is not None and not link.inventory.wants(
            frame.chunk, frame.mask, frame.digest
        ):
            return
        chunk, mask, payload = frame.chunk, frame.mask, frame.payload
        if frame.finisher is None:
            arrived = ArrivedSum(source.me, mask, payload)
            actions = target.ring.partial_sum_received(chunk, arrived)
        else:
            digest = digest_of_sum(payload)
            average = Average(mask, digest, frame.finisher, payload, frame.signature)
            actions = target.ring.average_received(source.me, chunk, average)
        self.do(target, actions)

    # What may happen next

    def busy(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive and member.tasks]

    def deaf(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive and member.to_hear]

    def full(self) -> list[tuple[Member, Member]]:
        return [
            (source, self.members[peer])
            for source in self.members.values()
            for peer, link in source.links.items()
            if link.frames and self.members[peer].alive
        ]

    @precondition(lambda self: self.busy())
    @rule(which=choices, task=choices)
    def a_member_computes(self, which: int, task: int) -> None:
        busy = self.busy()
        member = busy[which % len(busy)]
        self.compute(member, member.tasks.pop(task % len(member.tasks)))

    @precondition(lambda self: self.full())
    @rule(which=choices)
    def a_frame_arrives(self, which: int) -> None:
        full = self.full()
        self.deliver(*full[which % len(full)])

    @precondition(lambda self: self.deaf())
    @rule(which=choices, statement=choices)
    def a_member_hears_an_accusation(self, which: int, statement: int) -> None:
        deaf = self.deaf()
        member = deaf[which % len(deaf)]
        self.accuse(member, *member.to_hear.pop(statement % len(member.to_hear)))

    @precondition(lambda self: self.num_faults)
    @rule(which=choices, loses_frames=st.booleans())
    def a_member_is_mistaken(self, which: int, loses_frames: bool) -> None:
        """A member gives up its successor although nothing is wrong, with or without the frames on
        the way."""
        suspicious = [m for m in self.members.values() if m.is_in and m.ring.successor is not None]
        if not suspicious:
            return
        self.num_faults -= 1
        member = suspicious[which % len(suspicious)]
        successor = member.ring.successor
        assert successor is not None
        if loses_frames:
            member.links.pop(successor, None)
        self.accuse_successor(member)

    @precondition(lambda self: self.num_faults)
    @rule(which=choices, num_sent=choices)
    def a_member_dies(self, which: int, num_sent: int) -> None:
        """A member dies. The first frames that it had sent on each link may still arrive."""
        living = [member for member in self.members.values() if member.alive]
        if len(living) == 1:
            return
        self.num_faults -= 1
        member = living[which % len(living)]
        member.alive = False
        for link in member.links.values():
            while len(link.frames) > num_sent % (len(link.frames) + 1):
                link.frames.pop()

    @rule()
    def nothing_happens(self) -> None:
        """There may be nothing left to happen."""

    # What must hold

    def check_sum(self, payload: bytes, mask: int) -> None:
        assert len(set(payload)) == len(payload), "a member is in a sum twice"
        assert sum(1 << position for position in payload) == mask

    @invariant()
    def sums_hold_those_that_they_name(self) -> None:
        for member in getattr(self, "members", {}).values():
            for chunk in member.ring._chunks:
                if chunk.copy is not None and chunk.sum_state != "finishing":
                    self.check_sum(bytes(chunk.copy), chunk.copy_mask)
                if chunk.average is not None:
                    self.check_sum(bytes(chunk.average.payload), chunk.average.mask)

    def teardown(self) -> None:
        """Everything that is on its way arrives; the dead are found by those before them."""
        for _ in range(STEPS_MAX if hasattr(self, "members") else 0):
            if not self.step():
                break
        else:
            raise AssertionError("it does not come to rest")
        left = [member for member in self.members.values() if member.is_in]
        averages = {
            member.me: [(average.mask, average.digest) for average in member.ring.averages]
            for member in left
        }
        for member in left:
            for other in left:
                # Two that accused each other at once both go on, each without the other.
                if other.me not in member.accusations.out:
                    assert averages[member.me] == averages[other.me]
                    assert all(mask >> other.position & 1 for mask, _ in averages[member.me])

    def step(self) -> bool:
        """One of the things that are left to do; False if there is nothing."""
        random = self.random
        ways = [way for way in (self.deaf(), self.busy(), self.full()) if way]
        if not ways:
            for member in self.members.values():
                successor = member.ring.successor
                if member.is_in and successor is not None and not self.members[successor].alive:
                    self.accuse_successor(member)
                    return True
            return False
        match random.choice(random.choice(ways)):
            case (Member() as source, Member() as target):
                self.deliver(source, target)
            case Member() as member if member.to_hear and random.random() < 0.5:
                self.accuse(member, *member.to_hear.pop(random.randrange(len(member.to_hear))))
            case Member() as member if member.tasks:
                self.compute(member, member.tasks.pop(random.randrange(len(member.tasks))))
        return True


RingMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestRing = RingMachine.TestCase
