"""The limits that an owner sets, as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.base.settings.owner_limits import (
    SCHEDULE,
    SETTING_OF,
    changed,
    check_change,
    rule_text,
    with_limits,
)
from gossamer.node.base.settings.setting_values import gpu_memory_bytes
from gossamer.node.base.settings.settings import ConfigError, Settings

SETTINGS = Settings(state_dir=Path("/nowhere"), up_limit=("20",), threads=4)


def test_a_limit_goes_before_the_setting_and_default_goes_back() -> None:
    kept = changed({}, {"upload": "10", "memory": "8GiB"})
    settings = with_limits(SETTINGS, kept)
    assert settings.up_limit == ("10",)
    assert settings.memory_max == 8 * 1024**3
    assert settings.threads == 4
    assert with_limits(SETTINGS, changed(kept, {"upload": "default"})).up_limit == ("20",)


@pytest.mark.parametrize("name", SETTING_OF)
def test_every_limit_can_be_taken_away(name: str) -> None:
    settings = with_limits(SETTINGS, {name: "off"})
    assert not getattr(settings, SETTING_OF[name])


def test_a_limit_may_depend_on_the_time_of_the_day() -> None:
    assert with_limits(SETTINGS, {"upload": "5@18:00-23:00,20"}).up_limit == ("5@18:00-23:00", "20")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("uplaod", "10", "did you mean upload"),
        ("up_limit", "10", "did you mean upload\\?"),
        ("bandwidth", "10", "did you mean upload or download\\?"),
        ("ram", "8GiB", "did you mean memory\\?"),
        ("sleep", "10", "the limits are upload, download"),
        ("upload", "fast", "upload: 'fast' is not a limit"),
        ("upload", "none", "upload: write upload=off to take the limit away, or upload=default"),
        ("memory", "none", "memory: write memory=off"),
        ("memory", "3", "at least"),
        ("gpu_memory", "120%", "not a share"),
        ("gpu_power", "3", "watts are too few"),
        ("gpu_temperature", "20", "degrees are too few"),
        ("threads", "-1", "not allowed"),
        ("upload", "1" * 1100, "characters"),
        ("work_hours", "22-7", "write them as 22:00-07:00"),
        ("only_when_idle", "soon", "no duration"),
        ("on_battery", "maybe", "not one of on, off"),
        ("pause_for", "/usr/bin/game", "without its path"),
        ("work_hour", "22:00-07:00", "did you mean work_hours"),
    ],
)
def test_what_is_no_limit_is_said(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_change(name, text)


def test_the_schedule_is_written_as_it_is_set() -> None:
    given = Settings(state_dir=Path("/nowhere"), only_when_idle=90, on_battery="on")
    wanted = {
        "work_hours": "mon-fri 22:00-07:00, sat 00:00-24:00",
        "pause_for": "blender, Google Chrome",
        "on_metered": "on",
    }
    settings = with_limits(given, changed({}, wanted))
    shown = {name: rule_text(settings, name) for name in SCHEDULE}
    assert shown == {**wanted, "only_when_idle": "90s", "on_battery": "on"}
    assert with_limits(given, shown) == settings
    nothing = with_limits(settings, dict.fromkeys(SCHEDULE, "off"))
    assert nothing == Settings(state_dir=given.state_dir)
    assert {rule_text(nothing, name) for name in SCHEDULE} == {"off"}
    unlimited = with_limits(settings, dict.fromkeys(SETTING_OF, "off"))
    assert not any(getattr(unlimited, setting) for setting in SETTING_OF.values())


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        changed({}, {"uplaod": "1", "disk": "much"})
    assert len(caught.value.problems) == 2


def test_memory_of_a_card_is_a_share_or_a_size() -> None:
    assert gpu_memory_bytes("50%", 80) == 40
    assert gpu_memory_bytes("8GiB", 80) == 8 * 1024**3
    assert gpu_memory_bytes("", 80) == 80


def test_what_is_kept_and_no_value_any_more_is_told_with_the_remedy() -> None:
    """An earlier version may have taken it."""
    with pytest.raises(ConfigError) as caught:
        with_limits(SETTINGS, {"memory": "99999999999GiB", "upload": "10", "gpu_power": "1"})
    memory, power = caught.value.problems
    assert memory.startswith("memory: ")
    assert "`gossamer limits set memory=default`" in memory
    assert power.startswith("gpu_power: ")
    assert "gpu_power=default" in power
    with pytest.raises(ConfigError, match="gossamer schedule set work_hours=default"):
        with_limits(SETTINGS, {"work_hours": "never"})
