from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from gossamer.node.base.settings.settings import Settings
from gossamer.node.commands.machine.pause_checks import check_pauses
from gossamer.node.commands.machine.state_checks import Check
from gossamer.node.machine.machine_use import Idle, MachineUse

NOON = datetime(2026, 11, 25, 12).timestamp()
PLAIN = Settings(state_dir=Path("/nowhere"))


def checks(
    settings: Settings,
    *,
    battery: bool | None = None,
    programs: tuple[str, ...] = (),
    idle: Idle | None = None,
    sees: bool = True,
    metered: bool | None = None,
    platform: str = "linux",
) -> list[tuple[str, str, str]]:
    use = MachineUse(
        lambda: battery,
        lambda _names: programs,
        lambda: idle,
        lambda: sees,
        is_metered=lambda: metered,
    )
    found: list[Check] = list(check_pauses(settings, use, lambda: NOON, platform))
    assert all(bool(check.advice) == (check.level == "warn") for check in found)
    return [(check.name, check.level, check.text) for check in found]


def test_a_desktop_without_settings_has_nothing_to_say() -> None:
    assert checks(PLAIN) == []


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        ("22:00-07:00", "22:00-07:00: a node does not train now, it resumes at 22:00"),
        ("sat 22:00-07:00", "sat 22:00-07:00: a node does not train now, it resumes at Sat 22:00"),
        ("08:00-17:00", "08:00-17:00: a node trains now"),
    ],
)
def test_hours(hours: str, text: str) -> None:
    assert checks(replace(PLAIN, work_hours=hours)) == [("hours", "ok", text)]


@pytest.mark.parametrize(
    ("on_battery", "setting", "text"),
    [
        (True, "off", "the machine runs on it: a node does not train now"),
        (False, "off", "the machine is plugged in; without that a node pauses"),
        (True, "on", "a node trains on the battery, too"),
    ],
)
def test_a_laptop(on_battery: bool, setting: str, text: str) -> None:
    settings = replace(PLAIN, on_battery=setting)
    assert checks(settings, battery=on_battery) == [("battery", "ok", text)]


@pytest.mark.parametrize(
    ("metered", "setting", "platform", "text"),
    [
        (True, "off", "linux", "it is metered: a node does not work now"),
        (False, "off", "linux", "it is not metered; where it is, a node pauses"),
        (True, "on", "linux", "it is metered, and a node works all the same"),
        (
            None,
            "off",
            "darwin",
            "this system does not tell whether it is metered: a node works always",
        ),
    ],
)
def test_a_line(metered: bool | None, setting: str, platform: str, text: str) -> None:
    settings = replace(PLAIN, on_metered=setting)
    assert checks(settings, metered=metered, platform=platform) == [("line", "ok", text)]


def test_programs() -> None:
    settings = replace(PLAIN, pause_for=("game", "blender"))
    assert checks(settings) == [("programs", "ok", "none of game, blender runs")]
    (running,) = checks(settings, programs=("game",))
    assert running == ("programs", "ok", "game: a node does not train now")
    (hidden,) = checks(settings, sees=False)
    assert hidden[:2] == ("programs", "warn")
    (seen,) = checks(settings, programs=("game",), sees=False)
    assert seen == running


def test_use_of_the_machine() -> None:
    settings = replace(PLAIN, only_when_idle=300)
    (unknown,) = checks(settings)
    assert unknown[:2] == ("idle", "warn")
    (used,) = checks(settings, idle=Idle(2.4, "xprintidle"))
    text = "nobody has used the machine for 2s of 5min (xprintidle): a node does not train now"
    assert used == ("idle", "ok", text)
    (idle,) = checks(settings, idle=Idle(300, "systemd-logind"))
    assert idle[2].endswith("a node trains now")


def test_readers_that_fail_are_warnings() -> None:
    def fails(*_names: Sequence[str]) -> None:
        raise OSError("the kernel does not say")

    use = MachineUse(fails, fails, fails, is_metered=fails)  # type: ignore[arg-type]
    settings = replace(PLAIN, pause_for=("game",), only_when_idle=300)
    found = list(check_pauses(settings, use, lambda: NOON))
    assert [check.level for check in found] == ["warn"] * 4
    assert all("the kernel does not say" in check.text for check in found)
