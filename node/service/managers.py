"""The service managers: where their files lie, and the programs that obey orders.

A file of ours begins with `MARK` (launchd: names our label), so that a file of somebody else is
never written over or removed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.base.settings.default_places import user_config_folder
from gossamer.node.service.units import (
    LABEL,
    launchd_job,
    program_text,
    system_unit,
    user_unit,
)

NAME = "gossamer"

MARK = "# Written by `gossamer service install`; `systemctl edit gossamer` changes it for good.\n"

ORDER_SECONDS_MAX = 120.0
"""Limit of an order to the manager: it waits until the node has left, which may take 90 s."""

_NO_LOG = (
    "the log cannot be read. A journal that lies in memory is for root and the group "
    "systemd-journal: `sudo journalctl _SYSTEMD_USER_UNIT=gossamer.service` shows it, and with "
    "`sudo mkdir -p /var/log/journal && sudo systemctl restart systemd-journald` each user has a "
    "log on the disk from then on"
)
"""What journalctl says of it names neither the place nor what to do."""

_HIDDEN = ("/home", "/root", "/run/user")
"""Folders that the unit for all users does not see (ProtectHome)."""

_SEEDS = re.compile(r"^GOSSAMER_SEEDS=(.*)\n?", re.MULTILINE)


class ServiceError(Exception):
    """The service cannot be installed or managed; the message says why and what to do."""


def program_words() -> list[str]:
    """Returns the command that runs this Gossamer."""
    script = Path(sysconfig.get_path("scripts"), "gossamer")
    return [str(script)] if script.exists() else [sys.executable, "-m", "gossamer.node.cli"]


def is_hidden(path: str) -> bool:
    """Returns whether the unit for all users cannot see an absolute path."""
    return any(path.startswith(f"{folder}/") for folder in _HIDDEN)


def require_visible(words: Sequence[str]) -> None:
    """Raises ServiceError for a program that the unit for all users cannot see."""
    for path in (words[0], sys.executable, os.path.realpath(sys.executable)):
        if is_hidden(path):
            raise ServiceError(
                f"{path} lies in a home folder, which a service for all users does not see: "
                "install Gossamer in /opt with a Python outside of /home and /root, or leave out "
                "--system"
            )


class Systemd:
    """systemd, for all users or for the one who asks."""

    def __init__(self, *, system: bool) -> None:
        self.system = system
        config = Path("/etc") if system else user_config_folder()
        self.file = config / "systemd" / ("system" if system else "user") / f"{NAME}.service"
        """The file that makes the node a service."""
        self.environment_file = config / NAME / f"{NAME}.env"
        """Variables of the node, the addresses of `join` among them; invitations are secret."""

    def text(self, environment: Mapping[str, str]) -> str:
        """Returns the content of the file. `environment`: variables of the node."""
        words = program_words()
        make = system_unit if self.system else user_unit
        return MARK + make(program_text(words), environment)

    def install(
        self, links: Sequence[str], environment: Mapping[str, str], *, force: bool, starts: bool
    ) -> list[str]:
        """Writes the service and starts it. Returns lines for people.

        Args:
            links: where to join; empty: the run of the state directory or of the last time.
            environment: variables of the node.
            force: whether to write over a file that another program wrote.
            starts: whether to start the node now and after each boot or login.
        """
        if self.system:
            require_visible(program_words())
        _require_ours(self.file, MARK, force)
        if links:
            self._write_links(links)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, self.text(environment).encode(), mode=0o644)
        self._order("daemon-reload")
        lines = [f"written: {self.file}"]
        if starts:
            self._order("enable", NAME)
            self._order("restart", NAME)
            lines.append("started; `gossamer service status` and `gossamer service logs` show it")
            if not self.system:
                lines.append(
                    "it runs while you are logged in; with `loginctl enable-linger` from the boot "
                    "on, too"
                )
        return lines

    def _write_links(self, links: Sequence[str]) -> None:
        """Puts the links into the file of variables, and leaves what else is there."""
        line = f"GOSSAMER_SEEDS={' '.join(links)}\n"
        self.environment_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            before = self.environment_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            before = ""
        others = _SEEDS.sub("", before)
        if others and not others.endswith("\n"):
            others += "\n"
        write_atomically(self.environment_file, (others + line).encode(), mode=0o600)

    def knows_links(self) -> bool:
        """Returns whether the service has been told where to join."""
        try:
            found = _SEEDS.search(self.environment_file.read_text(encoding="utf-8"))
        except OSError:
            return False
        return found is not None and bool(found[1].strip())

    def uninstall(self) -> bool:
        """Stops the node and removes the service. Returns whether there was one."""
        if not self.file.exists():
            return False
        _require_ours(self.file, MARK, force=False)
        self._order("disable", "--now", NAME)
        self.file.unlink()
        self._order("daemon-reload")
        return True

    def remove_rest(self) -> list[str]:
        """Removes what else the service has left on this machine. Returns lines for people."""
        file = self.environment_file
        try:
            before = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        others = _SEEDS.sub("", before)
        if others.strip():
            write_atomically(file, others.encode(), mode=0o600)
            return [f"removed from {file}: the links; the variables that you wrote are left"]
        file.unlink()
        if not any(file.parent.iterdir()):
            file.parent.rmdir()
        return [f"removed: {file}"]

    def status(self) -> int:
        """Shows how the service is. Returns the status of the program that does."""
        return _shown("systemctl", *self._scope(), "status", "--no-pager", NAME)

    def logs(self, *, lines: int, follow: bool) -> int:
        """Shows the newest lines of the log, and with `follow` those that come."""
        unit = "--unit" if self.system else "--user-unit"
        wanted = ("--follow",) if follow else ("--no-pager",)
        status = _shown("journalctl", unit, NAME, "--lines", str(lines), *wanted)
        if status == 1 and not self.system:
            raise ServiceError(_NO_LOG)
        return status

    def _scope(self) -> tuple[str, ...]:
        return () if self.system else ("--user",)

    def _order(self, *words: str) -> None:
        _done("systemctl", *self._scope(), *words)


class Launchd:
    """launchd of macOS, for the user who asks. It has the methods of `Systemd`."""

    def __init__(self) -> None:
        self.file = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self.log = Path.home() / "Library" / "Logs" / "gossamer.log"
        self._links: tuple[str, ...] = ()

    def text(self, environment: Mapping[str, str]) -> str:
        words = [*program_words(), "join", *self._links]
        return launchd_job(words, environment, self.log).decode()

    def install(
        self, links: Sequence[str], environment: Mapping[str, str], *, force: bool, starts: bool
    ) -> list[str]:
        _require_ours(self.file, LABEL, force)
        self._links = tuple(links)
        if self.file.exists() and starts:
            self._unload()
        for folder in (self.file.parent, self.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        # An invitation among the links is secret.
        write_atomically(self.file, self.text(environment).encode(), mode=0o600)
        lines = [f"written: {self.file}"]
        if starts:
            _done("launchctl", "bootstrap", self._domain(), str(self.file))
            lines.append(f"started, and at each login; it writes to {self.log}")
        return lines

    def knows_links(self) -> bool:
        return False  # a new job has the links of this time

    def uninstall(self) -> bool:
        if not self.file.exists():
            return False
        _require_ours(self.file, LABEL, force=False)
        self._unload()
        self.file.unlink()
        return True

    def remove_rest(self) -> list[str]:
        if not self.log.exists():
            return []
        self.log.unlink()
        return [f"removed: {self.log}"]

    def status(self) -> int:
        return _shown("launchctl", "print", f"{self._domain()}/{LABEL}")

    def logs(self, *, lines: int, follow: bool) -> int:
        return _shown("tail", "-n", str(lines), *(("-F",) if follow else ()), str(self.log))

    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    def _unload(self) -> None:
        # A job that is not loaded is what is wanted: its status is no failure.
        _run("launchctl", "bootout", f"{self._domain()}/{LABEL}")


def manager_here(*, system: bool) -> Systemd | Launchd:
    """Returns the manager of this platform.

    Args:
        system: whether the service is one for all users of the machine.

    Raises:
        ServiceError: there is none that is known.
    """
    if sys.platform == "darwin":
        if system:
            raise ServiceError("--system is for systemd: launchd's jobs here are for one user")
        return Launchd()
    if shutil.which("systemctl") is None:
        raise ServiceError(
            "there is no systemd here: run `gossamer join` by the service manager that you have. "
            "`gossamer service install --print` shows what a unit says"
        )
    return Systemd(system=system)


def _require_ours(file: Path, mark: str, force: bool) -> None:
    """Raises ServiceError for a file that another program or a person wrote."""
    try:
        is_ours = mark.strip() in file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    if not is_ours and not force:
        raise ServiceError(
            f"{file} was not written by this command, and stays as it is: move it away, or give "
            "--force to write over it"
        )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Raises ServiceError if the program cannot be started or does not end in time."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ORDER_SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"`{' '.join(command)}` did not work: {error}") from error


def _done(*command: str) -> None:
    done = _run(*command)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        raise ServiceError(f"`{' '.join(command)}` did not work: {reason}")


def _shown(*command: str) -> int:
    """Runs a program whose output is for the person."""
    try:
        return subprocess.run(command).returncode
    except OSError as error:
        raise ServiceError(f"{command[0]} cannot be started: {error.strerror}") from error
