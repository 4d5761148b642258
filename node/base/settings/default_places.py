"""Where the state and the settings lie if nobody says where."""

from __future__ import annotations

from pathlib import Path

import platformdirs


class NoHomeError(ValueError):
    """A path needs the home folder of the user, who has none; the message is for people."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} lies in a home folder, and this user has none: set HOME, or give --state-dir "
            "and --config paths that begin with /"
        )


def default_state_dir() -> Path:
    """Returns the default directory of the state (`~/.local/state/gossamer` on Linux).
    NoHomeError."""
    try:
        return platformdirs.user_state_path("gossamer")
    except RuntimeError as error:
        raise NoHomeError("the state directory") from error


def default_config_file() -> Path:
    """Returns the file that is read where none is named (`~/.config/gossamer/config.toml` on
    Linux). NoHomeError."""
    return user_config_folder("gossamer") / "config.toml"


def user_config_folder(program: str = "") -> Path:
    """Returns the folder with the settings of a program, or of all of them. NoHomeError."""
    try:
        return platformdirs.user_config_path(program)
    except RuntimeError as error:
        raise NoHomeError("the config file") from error


def expanded(path: str | Path) -> Path:
    """Returns an absolute path; `~` stands for the home folder. NoHomeError."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise NoHomeError(str(path)) from error


def without_home(path: Path) -> str:
    """Returns a path with `~` for the home folder. NoHomeError."""
    return str(path).replace(str(expanded("~")), "~", 1)
