"""The states of the machines of a round, with every transition between them.

Each machine has one table. A key is a state and an event, and the value is the state that follows.
A machine changes its state only through `Table.after`, so a transition that is missing here cannot
happen: the machine raises and keeps its state. The diagrams of the documentation are generated from
the same tables. The pattern is that of h11 (`h11/_state.py`).

Facts that do not decide which events are allowed are not states. Examples are whether a peer is out
of the ring (`ring.ring_members`) and how fast a link is (`ring.link_rates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from gossamer.protocol.errors import LocalProtocolError

State = TypeVar("State", bound=str)
Event = TypeVar("Event", bound=str)


@dataclass(frozen=True)
class Table(Generic[State, Event]):
    """All transitions of one machine."""

    name: str
    """The machine's name, for error messages and for the diagram."""
    initial: State
    transitions: Mapping[tuple[State, Event], State]

    def rows(self) -> list[tuple[str, str, str]]:
        """State, event and following state of every transition, for the diagrams."""
        return [(state, event, following) for (state, event), following in self.transitions.items()]

    def after(self, state: State, event: Event) -> State:
        """The state that follows.

        Raises:
            LocalProtocolError: the table has no such transition.
        """
        following = self.transitions.get((state, event))
        if following is None:
            raise LocalProtocolError(f"{self.name}: event '{event}' in state '{state}'")
        return following


RoundPhase = Literal["gathering", "following", "committed"]
RoundEvent = Literal["ring followed", "ring void", "ring committed"]

ROUND: Table[RoundPhase, RoundEvent] = Table(
    "round",
    "gathering",
    {
        ("gathering", "ring followed"): "following",
        # A preferred roster for the same head replaces the ring.
        ("following", "ring followed"): "following",
        # This peer is out of the ring, and no living member could tell it of a commit.
        ("following", "ring void"): "gathering",
        ("following", "ring committed"): "committed",
    },
)
"""One round as one peer sees it (`round.Round`)."""


RingState = Literal["reducing", "computing", "voting", "committed"]
RingTransition = Literal["averages complete", "step taken", "quorum", "commit received"]

RING: Table[RingState, RingTransition] = Table(
    "followed ring",
    "reducing",
    {
        ("reducing", "averages complete"): "computing",
        # A better average arrived, so the outer step is taken again.
        ("computing", "averages complete"): "computing",
        ("voting", "averages complete"): "computing",
        ("computing", "step taken"): "voting",
        ("voting", "quorum"): "committed",
        ("voting", "commit received"): "committed",
    },
)
"""One ring that a peer follows (`followed_ring.FollowedRing`)."""


GatheringState = Literal["open", "yielding", "overruling", "awaiting commit"]
GatheringEvent = Literal[
    "ring elsewhere", "patience over", "ring gone", "members went on", "no commit"
]

GATHERING: Table[GatheringState, GatheringEvent] = Table(
    "gathering",
    "open",
    {
        # A ring without this peer is at work on the same head.
        ("open", "ring elsewhere"): "yielding",
        ("awaiting commit", "ring elsewhere"): "yielding",
        # The ring took too long: this peer organises one without the members of that ring.
        ("yielding", "patience over"): "overruling",
        ("yielding", "ring gone"): "open",
        ("overruling", "ring gone"): "open",
        # The members of the ring left this head, so they probably committed the ring.
        ("yielding", "members went on"): "awaiting commit",
        ("overruling", "members went on"): "awaiting commit",
        ("awaiting commit", "no commit"): "open",
    },
)
"""Whether a peer may organise a ring or waits for another one (`gathering`)."""


SumState = Literal["absent", "adding", "passed on", "finishing", "released"]
SumEvent = Literal["add", "pass on", "finish", "reject", "return", "release"]

CHUNK: Table[SumState, SumEvent] = Table(
    "chunk",
    "absent",
    {
        ("absent", "add"): "adding",
        # A better partial sum of the same chunk arrived.
        ("passed on", "add"): "adding",
        ("adding", "pass on"): "passed on",
        # The receiver was removed, or a better sum that holds this member's part arrived.
        ("passed on", "pass on"): "passed on",
        # The contributors cover all members that are believed living.
        ("adding", "finish"): "finishing",
        ("passed on", "finish"): "finishing",
        # The payload to add to was malformed. An earlier copy stays what it was.
        ("adding", "reject"): "absent",
        ("adding", "return"): "passed on",
        # The copy is of no use any more: the average is here, or this member is out of the ring.
        ("adding", "release"): "released",
        ("passed on", "release"): "released",
        ("finishing", "release"): "released",
    },
)
"""The partial sum of one chunk at one member (`ring.RingReduce`). The average of the chunk may come
in any of these states."""


CommitState = Literal["undecided", "voted", "decided"]
CommitEvent = Literal["vote", "quorum"]

COMMIT: Table[CommitState, CommitEvent] = Table(
    "commit",
    "undecided",
    {
        ("undecided", "vote"): "voted",
        # A better average or a removed member changes the vote.
        ("voted", "vote"): "voted",
        ("voted", "quorum"): "decided",
    },
)
"""The agreement on one header (`commit.Commitment`)."""

TABLES = (ROUND, GATHERING, RING, CHUNK, COMMIT)
"""Every table, in the order in which a round meets its machine."""
