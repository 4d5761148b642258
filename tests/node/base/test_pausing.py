from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gossamer.node.base.orders import Orders
from gossamer.node.base.pausing import (
    Hold,
    PauseRules,
    Reading,
    UserPause,
    is_over,
    resumes_at,
)
from gossamer.node.base.work_hours import parse_work_hours

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 11, 25, 12, tzinfo=BERLIN).timestamp()
TEN = NOON + 10 * 3600
HOURS = parse_work_hours("22:00-07:00")


def orders_of(user_pause: UserPause | None, *others: Hold) -> Orders:
    orders = Orders()
    orders.user_pause, orders.others = user_pause, others
    return orders


def test_outside_of_the_hours_the_node_is_held_until_they_begin() -> None:
    rules = PauseRules(HOURS, BERLIN)
    assert rules.holds(Reading(NOON)) == (Hold("schedule", resumes_at=TEN),)
    assert rules.holds(Reading(TEN)) == ()
    assert PauseRules().holds(Reading(NOON)) == ()


def test_a_metered_line_holds_the_node_and_its_bytes() -> None:
    metered = Reading(NOON, is_metered=True)
    holds = PauseRules().holds(metered)
    assert holds == (Hold("metered", "the line is metered"),)
    assert PauseRules(runs_on_metered=True).holds(metered) == ()
    assert PauseRules().holds(Reading(NOON, is_metered=None)) == ()
    assert orders_of(None, *holds).spares_line
    assert not orders_of(UserPause(), Hold("battery")).spares_line


def test_the_owners_word_is_shown_first_and_each_hold_ends_by_itself() -> None:
    orders = orders_of(UserPause(), Hold("schedule", resumes_at=TEN))
    assert [hold.reason for hold in orders.holds] == ["user", "schedule"]
    orders.user_pause = None
    assert orders.hold == Hold("schedule", resumes_at=TEN)
    orders.others = ()
    assert not orders.pause
    assert not orders.wants_device


def test_a_pause_after_the_round_lets_the_round_end() -> None:
    orders = orders_of(UserPause(after_round=True))
    assert orders.hold == Hold("user")  # there is no round to finish
    orders.is_in_round = True
    assert not orders.wants_device
    assert orders.holds == (Hold("user", after_round=True),)
    orders.others = (Hold("schedule"),)
    assert orders.hold == Hold("schedule")
    orders.is_in_round = False
    assert orders.hold == Hold("user")


@pytest.mark.parametrize(
    ("ends", "last"),
    [((), None), ((TEN,), TEN), ((TEN, TEN + 5), TEN + 5), ((TEN, None), None), ((None,), None)],
)
def test_a_node_goes_on_when_the_last_cause_has_ended(
    ends: tuple[float | None, ...], last: float | None
) -> None:
    assert resumes_at([Hold("schedule", resumes_at=end) for end in ends]) == last


@pytest.mark.parametrize(
    ("now", "since", "over"),
    [
        (NOON, 7199, False),
        (NOON + 7200, 7200, True),
        (NOON + 7200, 10, True),  # the machine slept, or its clock was set forward
        (NOON - 86_400, 7199, False),  # its clock was set back: the length counts
        (NOON - 86_400, 7200, True),
    ],
)
def test_a_pause_of_two_hours(now: float, since: float, over: bool) -> None:
    assert is_over(UserPause(NOON + 7200, 7200), now, since) is over
    assert not is_over(UserPause(), now, since)


@pytest.mark.parametrize(
    ("rules", "reading", "reason"),
    [
        (PauseRules(), Reading(NOON, is_on_battery=True), "battery"),
        (PauseRules(runs_on_battery=True), Reading(NOON, is_on_battery=True), None),
        (PauseRules(), Reading(NOON, is_on_battery=False), None),
        (PauseRules(), Reading(NOON, is_on_battery=None), None),
        (PauseRules(pause_for=("blender",)), Reading(NOON, programs=("blender",)), "process"),
        (PauseRules(pause_for=("blender",)), Reading(NOON), None),
        (PauseRules(idle_seconds=300), Reading(NOON, idle_seconds=299), "idle"),
        (PauseRules(idle_seconds=300), Reading(NOON, idle_seconds=300), None),
        (PauseRules(idle_seconds=300), Reading(NOON, idle_seconds=None), None),
        (PauseRules(), Reading(NOON, idle_seconds=0), None),
    ],
)
def test_what_the_owner_does_with_the_machine(
    rules: PauseRules, reading: Reading, reason: str | None
) -> None:
    assert [hold.reason for hold in rules.holds(reading)] == ([reason] if reason else [])


def test_holds_name_the_programs() -> None:
    rules = PauseRules(pause_for=("blender", "game"))
    both = rules.holds(Reading(NOON, programs=("blender", "game")))
    assert [hold.text for hold in both] == ["blender, game run"]
