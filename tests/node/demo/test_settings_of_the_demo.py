"""A person's own settings and the nodes of `gossamer demo`."""

from pathlib import Path

import pytest

from gossamer.node.base.settings.default_places import default_config_file
from gossamer.node.base.settings.settings import load_settings
from gossamer.node.demo.story import without_own_settings


def test_no_setting_of_a_person_reaches_the_nodes_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gossamer.node.base.settings.default_places.platformdirs.user_config_path",
        lambda name: tmp_path / name,
    )
    file = default_config_file()
    file.parent.mkdir()
    file.write_text('work_hours = "22:00-07:00"\n')
    persons = {"GOSSAMER_THREADS": "3", "HOME": "/home/someone"}
    assert load_settings({}, persons).work_hours
    environment = persons | without_own_settings(persons)
    assert environment["HOME"] == "/home/someone"
    settings = load_settings({}, environment)
    assert not settings.work_hours
    assert settings.threads == 0
