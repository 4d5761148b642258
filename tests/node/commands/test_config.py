"""`gossamer config show | check | edit`, and completion."""

import io
import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gossamer.node.base.settings.config_text import new_file_text, toml_value
from gossamer.node.base.settings.default_places import default_config_file
from gossamer.node.base.settings.settings import (
    ConfigError,
    Settings,
    load_settings,
    read_config_file,
    source_settings,
)
from gossamer.node.cli import run_command
from gossamer.node.command_table import app
from gossamer.node.storage.owner_orders import write_limits
from gossamer.node.storage.state_dir import StateDir


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's own configuration folder; the config file of the platform lies below it."""
    monkeypatch.setattr(
        "gossamer.node.base.settings.default_places.platformdirs.user_config_path",
        lambda name: tmp_path / "config" / name,
    )
    return tmp_path


def write_config(text: str) -> Path:
    file = default_config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def editor(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Makes a line of Python the editor; `path` is the file that it is given."""
    script = f"import sys, pathlib; path = pathlib.Path(sys.argv[1]); {program}"
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{sys.executable} -c '{script}'")


# Sources


def test_the_platforms_own_file_is_read_without_being_named(home: Path) -> None:
    assert load_settings({}, {}).threads == 0
    write_config("threads = 3\n")
    assert load_settings({}, {}).threads == 3
    assert load_settings({}, {"GOSSAMER_THREADS": "5"}).threads == 5


def test_a_named_file_takes_the_place_of_the_platforms_own(home: Path) -> None:
    write_config("threads = 3\n")
    other = home / "other.toml"
    other.write_text('device = "cpu"\n')
    for settings in (
        load_settings({}, {}, other),
        load_settings({}, {"GOSSAMER_CONFIG": str(other)}),
        load_settings({"device": "cpu"}, {}, Path("/dev/null")),
    ):
        assert (settings.threads, settings.device) == (0, "cpu")


def test_mistakes_of_the_platforms_own_file_are_told(home: Path) -> None:
    file = write_config("thread = 3\n")
    with pytest.raises(ConfigError, match="did you mean threads"):
        load_settings({}, {})
    file.unlink()
    file.mkdir()
    with pytest.raises(ConfigError, match="--config /dev/null does without it"):
        load_settings({}, {})


def test_each_setting_has_the_place_that_it_comes_from(home: Path) -> None:
    file = write_config("threads = 3\nlog_steps = 5\n")
    _, places = source_settings({"device": "cpu"}, {"GOSSAMER_THREADS": "5"})
    assert places == {
        "device": "--device",
        "threads": "GOSSAMER_THREADS",
        "log_steps": f"{file}: log_steps",
    }


# show, check


def test_show_has_value_and_source_of_every_setting(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config('only_when_idle = "5min"\npause_for = ["game", "a\\"b"]\n')
    monkeypatch.setenv("GOSSAMER_THREADS", "5")
    assert run_command(["config", "show", "--json"]) == 0
    rows = {each["setting"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(Settings.__struct_fields__)
    assert rows["threads"] == {"setting": "threads", "value": 5, "source": "GOSSAMER_THREADS"}
    assert rows["device"] == {"setting": "device", "value": "auto", "source": "default"}
    assert rows["pause_for"]["source"] == f"{file}: pause_for"
    # What it prints is a config file that says the same.
    assert run_command(["config", "show"]) == 0
    shown = home / "shown.toml"
    shown.write_text(capsys.readouterr().out)
    assert tomllib.loads(shown.read_text()) == {
        "only_when_idle": "300s",
        "pause_for": ["game", 'a"b'],
        "threads": 5,
    }
    assert load_settings({}, {}, shown) == load_settings({}, {"GOSSAMER_THREADS": "5"})
    assert run_command(["config", "show", "--changed"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_show_has_what_the_owner_set_on_the_node_before_the_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(f'state_dir = "{home}"\nthreads = 3\nup_limit = "50"\n')
    write_limits(
        StateDir(home).limits_path, {"threads": "7", "work_hours": "22:00-07:00", "upload": "off"}
    )
    assert run_command(["config", "show", "--json"]) == 0
    rows = {each["setting"]: each for each in json.loads(capsys.readouterr().out)}
    by_limits = f"gossamer limits set, instead of {file}: "
    assert (rows["threads"]["value"], rows["threads"]["source"]) == (7, by_limits + "threads")
    assert (rows["up_limit"]["value"], rows["up_limit"]["source"]) == ([], by_limits + "up_limit")
    assert rows["work_hours"]["value"] == "22:00-07:00"
    assert rows["work_hours"]["source"] == "gossamer schedule set"
    assert run_command(["config", "show", "--changed"]) == 0
    assert "threads = 7 " in capsys.readouterr().out


def test_show_names_a_file_of_limits_that_cannot_be_used(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(f'state_dir = "{home}"\n')
    path = StateDir(home).limits_path
    path.write_text("no JSON")
    assert run_command(["config", "show"]) == 2
    assert f"{path} with the limits" in capsys.readouterr().err


def test_show_hides_the_secret_of_a_webhook(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config('notices = ["desktop", "https://chat.example.org/hooks/s3cret?key=t0ken"]\n')
    for arguments in (["config", "show"], ["config", "show", "--json"]):
        assert run_command(arguments) == 0
        shown = capsys.readouterr().out
        assert "https://chat.example.org/..." in shown
        assert "s3cret" not in shown
        assert "t0ken" not in shown


def test_check_tells_each_mistake_and_ends_with_status_2(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["config", "check"]) == 0
    assert "there is no" in capsys.readouterr().out
    file = write_config('thread = 3\ndevice = "gpu"\n')
    monkeypatch.setenv("GOSSAMER_DEVISE", "cpu")
    for arguments in (["config", "check"], ["config", "check", str(file)]):
        assert run_command(arguments) == 2
        mistakes = capsys.readouterr().err
        assert "GOSSAMER_DEVISE: is no setting; did you mean GOSSAMER_DEVICE?" in mistakes
        assert f"{file}: thread: no such setting; did you mean threads?" in mistakes
        assert f"{file}: device: 'gpu' is not a device" in mistakes
    monkeypatch.delenv("GOSSAMER_DEVISE")
    file.write_text("threads = 3\n")
    assert run_command(["config", "check"]) == 0
    assert f"no mistakes; 1 set in {file}; 0 set elsewhere" in capsys.readouterr().out


def test_check_finds_mistakes_of_the_file_that_a_variable_of_this_shell_overrides(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config("threads = 99999\n")
    monkeypatch.setenv("GOSSAMER_THREADS", "1")
    monkeypatch.setenv("GOSSAMER_DEVICE", "gpu")
    assert run_command(["config", "check"]) == 2
    mistakes = capsys.readouterr().err
    assert f"{file}: threads: 99999" in mistakes
    assert "GOSSAMER_DEVICE: 'gpu' is not a device" in mistakes


# edit


def test_the_new_file_has_every_setting_at_its_default(tmp_path: Path) -> None:
    lines = new_file_text().splitlines()
    settings = [line[2:] for line in lines if " = " in line]
    assert [line.split(" = ")[0] for line in settings] == list(Settings.__struct_fields__)
    file = tmp_path / "all.toml"
    # Only what has no value by default cannot be written as a setting.
    file.write_text("\n".join(line for line in settings if line != 'work_hours = ""'))
    assert read_config_file(file) == []
    assert load_settings({}, {}, file) == load_settings({}, {})


def test_edit_makes_a_file_for_its_owner_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor(monkeypatch, 'path.write_text(path.read_text() + "threads = 3\\n")')
    assert run_command(["config", "edit"]) == 0
    file = default_config_file()
    assert load_settings({}, {}).threads == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("text", ["threads = ", "thread = 3\\n", "threads = 1.5\\n"])
def test_edit_refuses_a_file_with_mistakes_and_loses_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = write_config("threads = 3\n")
    editor(monkeypatch, f'path.write_text("{text}")')
    assert run_command(["config", "edit"]) == 2
    draft = file.with_name("config.toml.draft")
    assert f"{file} is as it was; your text is kept in {draft}" in capsys.readouterr().err
    assert file.read_text() == "threads = 3\n"
    # The next edit goes on with the text, and not with the file.
    editor(monkeypatch, 'path.write_text("# mended: " + path.read_text())')
    assert run_command(["config", "edit"]) == 0
    assert file.read_text().startswith("# mended: threa")
    assert not draft.exists()


def test_edit_ends_with_the_input_at_the_question(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ended(io.StringIO):
        def isatty(self) -> bool:
            return True

    file = write_config("threads = 3\n")
    editor(monkeypatch, 'path.write_text("threads = ")')
    monkeypatch.setattr("sys.stdin", Ended())
    assert run_command(["config", "edit"]) == 2
    assert "your text is kept in" in capsys.readouterr().err
    assert file.read_text() == "threads = 3\n"


def test_edit_does_not_overwrite_what_another_program_wrote_meanwhile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_config("threads = 3\n")
    editor(
        monkeypatch,
        'path.write_text("threads = 4\\n"); '
        'path.with_name("config.toml").write_text("threads = 5\\n")',
    )
    assert run_command(["config", "edit"]) == 2
    assert file.read_text() == "threads = 5\n"
    assert file.with_name("config.toml.draft").read_text() == "threads = 4\n"


def test_edit_follows_a_link_and_keeps_the_mode(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = home / "dotfiles.toml"
    real.write_text("threads = 3\n")
    real.chmod(0o640)
    file = default_config_file()
    file.parent.mkdir(parents=True)
    file.symlink_to(real)
    editor(monkeypatch, 'path.write_text("threads = 4\\n")')
    assert run_command(["config", "edit"]) == 0
    assert file.is_symlink()
    assert real.read_text() == "threads = 4\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_an_editor_that_fails_changes_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config("threads = 3\n")
    editor(monkeypatch, "sys.exit(3)")
    assert run_command(["config", "edit"]) == 2
    assert "ended with status 3" in capsys.readouterr().err
    monkeypatch.setenv("EDITOR", "/none/editor")
    assert run_command(["config", "edit"]) == 2
    assert "cannot be started: No such file" in capsys.readouterr().err
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]
    # What was typed before the editor failed is kept.
    editor(monkeypatch, 'path.write_text("threads = 4\\n"); sys.exit(3)')
    assert run_command(["config", "edit"]) == 2
    assert file.with_name("config.toml.draft").read_text() == "threads = 4\n"
    # Of a new file nothing is left.
    file.with_name("config.toml.draft").unlink()
    file.unlink()
    editor(monkeypatch, "sys.exit(3)")
    assert run_command(["config", "edit"]) == 2
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("command", ['"vi', "vi '"])
def test_an_editor_that_is_no_command_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", command)
    assert run_command(["config", "edit"]) == 2
    assert "EDITOR is no command: no closing quotation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("status --state-dir NEW", 1, "no node runs on"),
        ("limits --state-dir NEW", 0, ""),
        ("config show --state-dir NEW", 0, ""),
        ("reset --yes --state-dir NEW", 0, ""),
        ("status", 2, "HOME"),
        ("limits", 2, "HOME"),
        ("reset --yes", 2, "HOME"),
        ("config edit", 2, "HOME"),
        ("limits --state-dir ~/node", 2, "HOME"),
        ("limits --state-dir NEW --config ~/node.toml", 2, "HOME"),
        ("status --state-dir NEW --config ~/node.toml", 2, "HOME"),
    ],
)
def test_a_user_without_a_home_folder(line: str, status: int, told: str, tmp_path: Path) -> None:
    """As in a container whose user has a number and no name."""
    words = line.replace("NEW", str(tmp_path / "new")).split()
    program = (
        "import pwd, sys\n"
        "def no_entry(user): raise KeyError(user)\n"
        "pwd.getpwuid = no_entry\n"
        "from gossamer.node.cli import main\n"
        f"main({words!r})\n"
    )
    homes = {"HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "USERPROFILE"}
    environment = {name: text for name, text in os.environ.items() if name not in homes}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("value", "text"), [("a\x7f\n", '"a\\u007f\\n"'), (3, "3"), (("a", "b"), '["a", "b"]')]
)
def test_values_are_toml(value: str | int | tuple[str, ...], text: str) -> None:
    assert toml_value(value) == text
    expected = list(value) if isinstance(value, tuple) else value
    assert tomllib.loads(f"key = {text}") == {"key": expected}


# Completion


def test_completion_knows_the_commands_and_the_shell_takes_it(tmp_path: Path) -> None:
    script = app.generate_completion(shell="bash")
    for word in ("rollback", "config", "--state-dir", "edit"):
        assert word in script
    file = tmp_path / "gossamer"
    file.write_text(script)
    assert subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True).stderr == ""


def test_completion_is_installed_for_the_shell_of_the_person(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gossamer.node.cli", "--install-completion", "--shell", "bash"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    scripts = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("rollback" in path.read_text() for path in scripts), scripts
