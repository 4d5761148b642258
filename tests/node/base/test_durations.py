import pytest

from gossamer.node.base.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5min", 300), ("30m", 1800), (" 2 H ", 7200), ("1d", 86_400)],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text, 1, 86_400) == seconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no duration; write it as 90s, 30min, 2h or 7d"),
        ("2", "is no duration"),
        ("1.5h", "is no duration"),
        ("-2h", "is no duration"),
        ("2 weeks", "is no duration"),
        ("\u0662h", "is no duration"),
        ("0s", "0s is not allowed: 1s to 1d"),
        ("25h", "25h is not allowed: 1s to 1d"),
    ],
)
def test_what_is_no_duration(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_duration(text, 1, 86_400)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (300, "5min"), (7200, "2h"), (172_800, "2d")]
)
def test_a_duration_in_its_largest_unit(seconds: int, text: str) -> None:
    assert format_duration(seconds) == text
