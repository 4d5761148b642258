"""The tables of states: each names what its machine does, no more and no less.

The transitions that are taken are recorded while the stories of the other test modules run, and in
some simulated worlds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import chain
from types import ModuleType

import pytest

from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.rounds.actions import Computed
from gossamer.protocol.rounds.commit import Commitment
from gossamer.protocol.rounds.inventory import ArrivedSum, Chunk
from gossamer.protocol.rounds.states import TABLES, Table
from tests.protocol.rounds import test_commit, test_roster, test_round
from tests.protocol.rounds.ring import test_ring
from tests.sim.simulator.world import simulate
from tests.support.builders import peers, ring_of

STORIES = (test_commit, test_ring, test_roster, test_round)
NUM_WORLDS = 8
"""Worlds without rare faults already contain every transition that the stories leave out."""

A, B, *_ = peers(4)


def states_of(table: Table[str, str]) -> set[str]:
    """Every state that the table names."""
    sources = {state for state, _ in table.transitions}
    return {table.initial, *sources, *table.transitions.values()}


def stories(module: ModuleType) -> Iterator[Callable[[], None]]:
    """The tests of a module that need no arguments."""
    for name, function in sorted(vars(module).items()):
        if name.startswith("test_") and not inspect.signature(function).parameters:
            yield function


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_state_can_be_reached(table: Table[str, str]) -> None:
    reached, grew = {table.initial}, True
    while grew:
        following = {to for (state, _), to in table.transitions.items() if state in reached}
        grew = not following <= reached
        reached |= following
    assert reached == states_of(table)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_an_event_that_the_table_does_not_have_raises(table: Table[str, str]) -> None:
    events = {event for _, event in table.transitions}
    illegal = {(s, e) for s in states_of(table) for e in events} - table.transitions.keys()
    assert illegal, "a table that allows everything says nothing"
    for state, event in sorted(illegal):
        with pytest.raises(LocalProtocolError, match=f"{table.name}: event '{event}'"):
            table.after(state, event)


def test_a_chunk_keeps_its_state_after_an_illegal_event() -> None:
    chunk = Chunk()
    for illegal in (chunk.finish, chunk.reject, chunk.release, lambda: chunk.pass_on(A)):
        with pytest.raises(LocalProtocolError):
            illegal()
    assert chunk == Chunk()
    chunk.add(None)
    with pytest.raises(LocalProtocolError):
        chunk.add(ArrivedSum(A, 1, b"sum"))
    assert (chunk.sum_state, chunk.contributing_mask) == ("adding", 0)


def test_a_decided_header_cannot_be_voted_on_again() -> None:
    alone = ring_of([A])
    commitment = Commitment(alone, A)
    test_commit.propose(commitment, A, test_commit.HEADER)
    assert commitment.result() is not None
    with pytest.raises(LocalProtocolError):
        commitment.propose(1.0, test_commit.OTHER_HEADER, frozenset())
    assert commitment.state == "decided"
    assert commitment.header == test_commit.HEADER


def test_the_outer_step_is_taken_once_for_the_same_averages() -> None:
    round_, ring_id = test_round.in_ring()
    test_round.voting(round_, ring_id)
    followed = round_._followed
    assert followed is not None
    with pytest.raises(LocalProtocolError):
        followed.event(9.0, Computed(followed._generation, digest_of(b"other state")))
    assert round_.state == "voting"


def test_every_transition_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[str, str, str]] = set()
    after = Table.after

    def recording(self: Table[str, str], state: str, event: str) -> str:
        following = after(self, state, event)
        taken.add((self.name, state, event))
        return following

    monkeypatch.setattr(Table, "after", recording)
    for story in chain.from_iterable(map(stories, STORIES)):
        story()
    for seed in range(NUM_WORLDS):
        simulate(seed)
    assert {(table.name, *key) for table in TABLES for key in table.transitions} - taken == set()
