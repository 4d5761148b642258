"""What the status page says of a node that has a problem, and of a name as long as allowed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gossamer.node.telemetry.status import PauseStatus
from tests.browser.conftest import BUSY, Looks, Node
from tests.browser.test_page import (
    complaints,
    is_hidden,
    opened,
    require_accessible,
    text_of,
    until,
)

FULL = "the disk is full: 4,096 bytes did not fit"


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_problem_of_a_node_that_trains_is_shown_once(
    window: Any, address: str, node: Node, looks: Looks, axe: str, colours: str
) -> None:
    looks(360, colours)
    opened(window, address)
    assert is_hidden(window, "problem")
    node.now = msgspec.structs.replace(BUSY, problem=FULL)
    until(lambda: text_of(window, "problem") == FULL, "the problem")
    assert FULL in text_of(window, "heard")
    assert text_of(window, "doing").startswith("Training")
    require_accessible(window, axe)
    for is_said_already in (
        msgspec.structs.replace(BUSY, phase="failed", problem=FULL),
        msgspec.structs.replace(BUSY, put_out=FULL, problem=FULL),
    ):
        node.now = is_said_already
        until(lambda: text_of(window, "doing-more") == FULL, "the problem in its place")
        assert is_hidden(window, "problem")
        assert text_of(window, "heard").count(FULL) == 1
    assert complaints(window) == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_node_that_was_put_out_is_never_shown_as_one_that_is_well(
    window: Any, address: str, node: Node, looks: Looks, axe: str, colours: str
) -> None:
    looks(360, colours)
    node.now = msgspec.structs.replace(BUSY, put_out=FULL, problem=FULL)
    opened(window, address)
    until(lambda: text_of(window, "phase") == "put out", "the words beside the title")
    assert "bad" in pill_kinds(window, "#phase")
    assert pill_kinds(window, "#peers tr:first-child .pill") == pill_kinds(window, "#phase")
    assert window.title.startswith("put out")
    require_accessible(window, axe)
    node.now = BUSY
    until(lambda: text_of(window, "phase") == BUSY.phase, "the phase again")
    assert "good" in pill_kinds(window, "#phase")
    assert complaints(window) == []


def pill_kinds(window: Any, selector: str) -> list[str]:
    """The classes of a mark, of which one chooses its colour."""
    kinds: str = window.find_element("css selector", selector).get_attribute("class")
    return kinds.split()


def test_every_cause_of_a_pause_is_shown(window: Any, address: str, node: Node) -> None:
    disk = PauseStatus(reason="disk", text=FULL)
    hours = PauseStatus(reason="schedule", resumes_at="2026-11-29T22:00:00+00:00")
    node.now = msgspec.structs.replace(
        BUSY, phase="paused", paused_reason="schedule", resumes_at=None, pauses=(hours, disk)
    )
    opened(window, address)
    facts = text_of(window, "node-facts")
    assert "What keeps it from training" in facts
    assert f"disk: {FULL}" in facts
    assert "schedule, until" in facts
    node.now = msgspec.structs.replace(node.now, pauses=(hours,))
    until(lambda: FULL not in text_of(window, "node-facts"), "one cause, which stands above")
    assert "keeps it from training" not in text_of(window, "node-facts")
    assert complaints(window) == []


def test_a_rollback_is_not_laid_to_the_founder_alone(window: Any, address: str, node: Node) -> None:
    """More than half of the keepers take rounds back, too."""
    node.now = msgspec.structs.replace(BUSY, rolled_back_to=1200)
    opened(window, address)
    assert "by the founder or the keepers: the run went on after round 1,200" in text_of(
        window, "node-facts"
    )


def test_an_open_proposal_of_a_keeper_is_shown(window: Any, address: str, node: Node) -> None:
    proposal = "a keeper wants to take back all rounds after 1200"
    node.now = msgspec.structs.replace(BUSY, rollback_proposal=proposal)
    opened(window, address)
    assert proposal in text_of(window, "node-facts")


def test_an_order_that_was_given_up_is_shown(window: Any, address: str, node: Node) -> None:
    withdrawn = "this node could not go back to round 1200"
    node.now = msgspec.structs.replace(BUSY, rollback_withdrawn=withdrawn)
    opened(window, address)
    assert withdrawn in text_of(window, "node-facts")


def test_the_longest_name_of_a_member_leaves_the_peers_on_the_page(
    window: Any, address: str, node: Node, looks: Looks
) -> None:
    looks(1200, "light")
    first, *others = BUSY.peers
    long_named = msgspec.structs.replace(first, name="W" * 32, team="M" * 32)
    node.now = msgspec.structs.replace(BUSY, peers=(long_named, *others))
    opened(window, address)
    until(lambda: "WWWW" in text_of(window, "peers"), "the name")
    outside = window.execute_script(
        "const edge = document.querySelector('section.wide').getBoundingClientRect().right;"
        "return [...document.querySelectorAll('.peers th, .peers td')]"
        ".filter(each => each.getBoundingClientRect().right > edge)"
        ".map(each => each.textContent)"
    )
    assert outside == []


def test_what_was_measured_of_an_earlier_state_says_so(
    window: Any, address: str, node: Node
) -> None:
    node.now = msgspec.structs.replace(BUSY, heldout_round=40, heldout_bits_per_byte=0.9)
    opened(window, address)
    until(lambda: "1.456" in text_of(window, "swarm-facts"), "the loss")
    assert "round 40)" not in text_of(window, "swarm-facts")
    assert text_of(window, "heldout-now") == "1.456"
    node.now = msgspec.structs.replace(node.now, heldout_round=32)
    until(lambda: "1.456 (round 32)" in text_of(window, "swarm-facts"), "the round of the loss")
    assert "0.900 (round 32)" in text_of(window, "swarm-facts")
    assert text_of(window, "heldout-now") == "1.456 (round 32)"
    assert complaints(window) == []


def test_the_speed_of_the_swarm_is_of_those_that_train(
    window: Any, address: str, node: Node
) -> None:
    opened(window, address)
    until(lambda: "16.1 k tokens/s" in text_of(window, "swarm-facts"), "the speed of both")
    node.now = msgspec.structs.replace(BUSY, phase="paused", paused_reason="user")
    until(lambda: "8,831 tokens/s" in text_of(window, "swarm-facts"), "the speed of one")
    assert "Speed in training" in text_of(window, "node-facts")


def test_rounds_that_a_newcomer_fetched_say_nothing_of_the_time_left(
    window: Any, address: str, node: Node
) -> None:
    """It gets thousands of rounds within seconds, and trains the next one as slowly as others."""
    syncing = msgspec.structs.replace(BUSY, phase="syncing", round=0, last_round=None)
    node.now = syncing
    opened(window, address)
    until(lambda: "100 rounds" in text_of(window, "swarm-facts"), "the first state")
    node.now = msgspec.structs.replace(BUSY, last_round=None)
    until(lambda: "60 rounds" in text_of(window, "swarm-facts"), "the state of the others")
    assert "about" not in text_of(window, "swarm-facts")
    node.now = msgspec.structs.replace(BUSY, last_round=None, round=41)
    until(lambda: "59 rounds, about" in text_of(window, "swarm-facts"), "a round of its own")
    assert complaints(window) == []
