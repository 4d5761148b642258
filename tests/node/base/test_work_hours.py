from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gossamer.node.base.work_hours import parse_work_hours

BERLIN = ZoneInfo("Europe/Berlin")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # its summer time is half an hour
KATHMANDU = ZoneInfo("Asia/Kathmandu")  # 5:45 h before UTC
EVENING = "22:00-07:00"
WEEKEND = "mon-fri 22:00-07:00, sat-sun 00:00-24:00"


def unix(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def shown(unix_seconds: float, zone: ZoneInfo = BERLIN) -> str:
    return datetime.fromtimestamp(unix_seconds, zone).isoformat(timespec="minutes")


@pytest.mark.parametrize(
    ("hours", "moment", "holds"),
    [
        (EVENING, "2026-11-25T21:59:59", False),
        (EVENING, "2026-11-25T22:00:00", True),
        (EVENING, "2026-11-26T06:59:59", True),
        (EVENING, "2026-11-26T07:00:00", False),
        ("7:30-12:00", "2026-11-25T07:30:00", True),
        ("00:00-24:00", "2026-11-25T23:59:59", True),
        (WEEKEND, "2026-11-27T12:00:00", False),  # a Friday
        (WEEKEND, "2026-11-28T12:00:00", True),
        (WEEKEND, "2026-11-29T23:59:00", True),
        (WEEKEND, "2026-11-30T00:00:00", False),  # a Monday; its night begins at 22:00
        # The night of Friday goes on into Saturday, and that of Sunday into Monday.
        ("fri 22:00-07:00", "2026-11-28T06:00:00", True),
        ("fri 22:00-07:00", "2026-11-27T06:00:00", False),
        ("sun 22:00-07:00", "2026-11-30T06:00:00", True),
        ("MON Wed 08:00-09:00", "2026-11-25T08:30:00", True),
        ("mon wed 08:00-09:00", "2026-11-24T08:30:00", False),
        ("sat-mon 08:00-09:00", "2026-11-30T08:30:00", True),
        ("sat-mon 08:00-09:00", "2026-12-01T08:30:00", False),
        ("08:00-09:00, 20:00-21:00", "2026-11-25T20:30:00", True),
    ],
)
def test_hours_of_the_week(hours: str, moment: str, holds: bool) -> None:
    assert parse_work_hours(hours).holds(unix(moment), BERLIN) is holds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "are no hours; write them as 22:00-07:00"),
        ("22-7", "are no hours"),
        ("22:00-07:00,", "are no hours"),
        ("mon-fri", "are no hours"),
        ("22:00-07:00 mon", "are no hours"),
        ("24:00-07:00", "names no time of the day"),
        ("22:00-24:01", "names no time of the day"),
        ("22:60-07:00", "names no time of the day"),
        ("22:00-22:00", "the whole day is 00:00-24:00"),
        ("monday 22:00-07:00", "monday is no day; the days are mon, tue"),
        ("mon- 22:00-07:00", "mon- is no day"),
        (", ".join(["22:00-07:00"] * 33), "33 groups"),
    ],
)
def test_what_is_no_hours(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_work_hours(text)


@pytest.mark.parametrize(
    ("hours", "moment", "start"),
    [
        (EVENING, "2026-11-25T07:00:00", "2026-11-25T22:00+01:00"),
        (EVENING, "2026-11-25T21:59:59", "2026-11-25T22:00+01:00"),
        ("22:07-23:00", "2026-11-25T12:03:30", "2026-11-25T22:07+01:00"),
        (WEEKEND, "2026-11-27T12:00:00", "2026-11-27T22:00+01:00"),
        # The whole week round: Monday's hours have just ended, and the next are in seven days.
        ("mon 08:00-09:00", "2026-11-23T09:00:00", "2026-11-30T08:00+01:00"),
    ],
)
def test_the_next_start(hours: str, moment: str, start: str) -> None:
    assert shown(parse_work_hours(hours).next_start(unix(moment), BERLIN)) == start


def test_the_next_start_within_the_hours_is_now() -> None:
    now = unix("2026-11-25T23:00:30")
    assert parse_work_hours(EVENING).next_start(now, BERLIN) == now


@pytest.mark.parametrize(
    ("hours", "zone", "moment", "start"),
    [
        # Berlin, 29 March 2026: at 02:00 the clock is set to 03:00. 02:30 does not exist.
        ("02:30-06:00", BERLIN, "2026-03-28T12:00:00", "2026-03-29T03:00+02:00"),
        ("22:00-07:00", BERLIN, "2026-03-29T12:00:00", "2026-03-29T22:00+02:00"),
        # This week's hours are left out with the hour that does not exist.
        ("sun 02:10-02:50", BERLIN, "2026-03-22T03:00:00", "2026-04-05T02:10+02:00"),
        # 25 October: at 03:00 it is set to 02:00. 02:30 comes twice, and the first one counts.
        ("02:30-06:00", BERLIN, "2026-10-24T12:00:00", "2026-10-25T02:30+02:00"),
        ("sun 12:00-13:00", BERLIN, "2026-10-24T12:00:00", "2026-10-25T12:00+01:00"),
        # Half an hour, and an offset that is no whole hour.
        ("01:45-06:00", LORD_HOWE, "2026-04-04T12:00:00", "2026-04-05T01:45+11:00"),
        ("22:07-23:00", KATHMANDU, "2026-04-04T12:00:00", "2026-04-04T22:07+05:45"),
    ],
)
def test_nights_in_which_the_clock_is_set(
    hours: str, zone: ZoneInfo, moment: str, start: str
) -> None:
    assert shown(parse_work_hours(hours).next_start(unix(moment, zone), zone), zone) == start


def test_the_hour_that_comes_twice() -> None:
    """The hours are those on the wall: they end at the first 02:30, and begin again at 02:00."""
    hours = parse_work_hours("22:00-02:30")
    first, second = unix("2026-10-25T02:40:00"), unix("2026-10-25T02:10:00", fold=1)
    assert not hours.holds(first, BERLIN)
    assert hours.holds(second, BERLIN)
    assert shown(hours.next_start(first, BERLIN)) == "2026-10-25T02:00+01:00"
    assert hours.next_start(first, BERLIN) == unix("2026-10-25T02:00:00", fold=1)


def test_a_night_is_an_hour_shorter_in_spring_and_longer_in_autumn() -> None:
    hours = parse_work_hours(EVENING)

    def length(day: str) -> int:
        start = unix(f"{day}T12:00:00")
        return sum(hours.holds(start + 60 * minute, BERLIN) for minute in range(24 * 60 + 60))

    assert length("2026-03-28") == 8 * 60
    assert length("2026-10-24") == 10 * 60


@pytest.mark.parametrize("zone", [BERLIN, LORD_HOWE, KATHMANDU])
@pytest.mark.parametrize("day", ["2026-03-28", "2026-10-24", "2026-04-04", "2026-10-03"])
def test_the_next_start_is_the_first_minute_that_holds(zone: ZoneInfo, day: str) -> None:
    hours = parse_work_hours("01:20-01:40, 02:05-02:10, 02:50-03:20")
    start = unix(f"{day}T12:00:00", zone)
    holding = [m for m in range(24 * 60 + 2000) if hours.holds(start + 60 * m, zone)]
    for minute in range(0, 24 * 60, 7):
        first = next(each for each in holding if each >= minute)
        assert first < minute + 2000
        assert hours.next_start(start + 60 * minute, zone) == start + 60 * first
