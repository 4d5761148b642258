"""`gossamer service`: the files that it writes, and what it asks the managers to do."""

import json
import os
import plistlib
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.node.base.settings.default_places import default_config_file
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.cli import main, run_command
from gossamer.node.commands.machine import service
from gossamer.node.service import managers
from gossamer.node.service.managers import Launchd, ServiceError, Systemd, manager_here
from gossamer.node.service.units import (
    DOCKER_VARIABLE,
    LAUNCHD_VARIABLE,
    program_text,
    system_unit,
    user_unit,
)
from gossamer.node.storage.state_dir import StateDir

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
LINK = f"/ip4/192.0.2.7/tcp/4610/p2p/{PEER}#{'ab' * 32}"


class Machine:
    """A home folder, and programs of a service manager that note what they are asked."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._notes = root / "asked"
        self._programs = root / "bin"
        self._programs.mkdir()
        self.state = root / "state"
        for name in ("systemctl", "journalctl", "launchctl", "tail"):
            self.program(name)
        monkeypatch.setenv("PATH", f"{self._programs}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(root))
        monkeypatch.setattr(
            "platformdirs.user_config_path",
            lambda name="": root / "config" / name,
        )
        monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def program(self, name: str, *, says: str = "", status: int = 0) -> None:
        path = self._programs / name
        path.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"with open({str(self._notes)!r}, 'a') as notes:\n"
            f"    notes.write(json.dumps([{name!r}, *sys.argv[1:]]) + '\\n')\n"
            f"print({says!r}, file=sys.stderr)\nsys.exit({status})\n"
        )
        path.chmod(0o755)

    def asked(self) -> list[str]:
        """What the programs were asked since the last look, one command line each."""
        if not self._notes.exists():
            return []
        lines = [shlex.join(json.loads(line)) for line in self._notes.read_text().splitlines()]
        self._notes.unlink()
        return lines

    def gossamer(self, *arguments: str) -> int:
        where = ("--state-dir", str(self.state)) if arguments[1] == "install" else ()
        return run_command([*arguments, *where])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_service_is_installed_shown_and_removed(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert machine.gossamer("service", "install", LINK) == 0
    assert machine.asked() == [
        "systemctl --user daemon-reload",
        "systemctl --user enable gossamer",
        "systemctl --user restart gossamer",
    ]
    unit = machine.root / "config/systemd/user/gossamer.service"
    assert f"Environment=GOSSAMER_STATE_DIR={machine.state}" in unit.read_text()
    variables = machine.root / "config/gossamer/gossamer.env"
    assert variables.read_text() == f"GOSSAMER_SEEDS={LINK}\n"
    assert stat.S_IMODE(variables.stat().st_mode) == 0o600  # it may hold an invitation
    assert "ab" * 32 not in unit.read_text()
    assert "enable-linger" in capfd.readouterr().out

    assert machine.gossamer("service", "status") == 0
    assert machine.gossamer("service", "logs", "--lines", "7", "--follow") == 0
    assert machine.asked() == [
        "systemctl --user status --no-pager gossamer",
        "journalctl --user-unit gossamer --lines 7 --follow",
    ]
    assert machine.gossamer("service", "uninstall") == 0
    assert machine.asked() == [
        "systemctl --user disable --now gossamer",
        "systemctl --user daemon-reload",
    ]
    assert not unit.exists()
    assert variables.exists()
    assert machine.gossamer("service", "uninstall") == 1
    assert "there is no service" in capfd.readouterr().err


def test_a_log_that_a_user_may_not_read_is_said_with_what_to_do(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    machine.program("journalctl", says="No journal files were opened", status=1)
    assert machine.gossamer("service", "logs") == 1
    told = capfd.readouterr().err
    assert "No journal files were opened" in told
    assert "`sudo journalctl _SYSTEMD_USER_UNIT=gossamer.service` shows it" in told


def test_a_second_install_keeps_the_links_and_the_other_variables(machine: Machine) -> None:
    variables = machine.root / "config/gossamer/gossamer.env"
    variables.parent.mkdir(parents=True)
    variables.write_text("GOSSAMER_THREADS=2\nGOSSAMER_SEEDS=/old\nGOSSAMER_LAN=off")
    assert machine.gossamer("service", "install", LINK, "--no-start") == 0
    assert machine.asked() == ["systemctl --user daemon-reload"]
    expected = f"GOSSAMER_THREADS=2\nGOSSAMER_LAN=off\nGOSSAMER_SEEDS={LINK}\n"
    assert variables.read_text() == expected
    assert machine.gossamer("service", "install") == 0
    assert variables.read_text() == expected


def test_uninstall_leaves_no_invitation(machine: Machine) -> None:
    """A reinstalled service goes on with its links; `gossamer uninstall` removes them."""
    manager = Systemd(system=True)
    manager.environment_file = variables = machine.root / "etc/gossamer/gossamer.env"
    assert manager.remove_rest() == []
    variables.parent.mkdir(parents=True)
    variables.write_text(f"GOSSAMER_THREADS=2\nGOSSAMER_SEEDS={LINK}\n")
    (told,) = manager.remove_rest()
    assert variables.read_text() == "GOSSAMER_THREADS=2\n"
    assert stat.S_IMODE(variables.stat().st_mode) == 0o600
    assert f"removed from {variables}: the links" in told
    variables.write_text(f"GOSSAMER_SEEDS={LINK}\n")
    assert manager.remove_rest() == [f"removed: {variables}"]
    assert not variables.parent.exists()


def test_uninstall_removes_the_log_of_launchd(machine: Machine) -> None:
    job = Launchd()
    assert job.remove_rest() == []
    job.log.parent.mkdir(parents=True)
    job.log.write_text("a line\n")
    assert job.remove_rest() == [f"removed: {job.log}"]
    assert not job.log.exists()


def test_a_service_needs_a_run_or_a_link(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.gossamer("service", "install") == 2
    assert "name the link of one" in capsys.readouterr().err
    assert machine.gossamer("service", "install", "somewhere") == 2
    assert machine.asked() == []
    machine.state.mkdir()
    StateDir(machine.state).manifest_path.write_bytes(b"a run")
    assert machine.gossamer("service", "install") == 0


def test_a_file_of_somebody_else_stays(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = machine.root / "config/systemd/user/gossamer.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    for command in (("service", "install", LINK), ("service", "uninstall")):
        assert machine.gossamer(*command) == 1
        assert "was not written by this command" in capsys.readouterr().err
    assert unit.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert machine.asked() == []
    assert machine.gossamer("service", "install", LINK, "--force") == 0
    assert "Type=notify" in unit.read_text()


def test_a_node_that_runs_by_hand_is_stopped_first(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    with StateDir(machine.state).locked():
        assert machine.gossamer("service", "install", LINK) == 1
        assert "stop it first (`gossamer leave`)" in capsys.readouterr().err
        assert machine.asked() == []
    assert not StateDir(machine.state).is_in_use()
    assert machine.gossamer("service", "install", LINK) == 0
    with StateDir(machine.state).locked():  # the service itself: it is started again
        assert machine.gossamer("service", "install", LINK) == 0


def test_a_manager_that_refuses_is_quoted(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.program("systemctl", says="Failed to connect to bus", status=1)
    assert machine.gossamer("service", "install", LINK) == 1
    error = capsys.readouterr().err
    assert "`systemctl --user daemon-reload` did not work: Failed to connect to bus" in error


def test_settings_of_the_shell_are_told_to_be_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GOSSAMER_THREADS", "2")
    config = machine.root / "my own.toml"
    config.write_text("log_steps = 5\n")
    monkeypatch.setenv("GOSSAMER_CONFIG", str(config))
    assert machine.gossamer("service", "install", LINK) == 0
    assert "do not hold in the service: GOSSAMER_THREADS;" in capsys.readouterr().out
    unit = (machine.root / "config/systemd/user/gossamer.service").read_text()
    assert f'Environment="GOSSAMER_CONFIG={config}"\n' in unit


def test_the_service_for_all_users_is_roots(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["service", "install", "--system", LINK]) == 2
    assert "only root" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert run_command(["service", "install", LINK, "--state-dir", str(machine.state)]) == 2
    assert "has its state in /var/lib/gossamer" in capsys.readouterr().err
    assert machine.asked() == []


def test_the_service_for_all_users_needs_a_program_that_it_sees(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Systemd(system=True)
    assert str(manager.file) == "/etc/systemd/system/gossamer.service"
    manager.file = machine.root / "gossamer.service"
    manager.environment_file = machine.root / "etc/gossamer.env"
    monkeypatch.setattr(managers, "program_words", lambda: ["/home/anna/venv/bin/gossamer"])
    with pytest.raises(ServiceError, match="/home/anna/venv/bin/gossamer lies in a home folder"):
        manager.install([LINK], {}, force=False, starts=True)
    assert not manager.file.exists()
    monkeypatch.setattr(managers, "program_words", lambda: ["/opt/gossamer/bin/gossamer"])
    monkeypatch.setattr(sys, "executable", "/opt/gossamer/bin/python")
    manager.install([LINK], {}, force=False, starts=True)
    assert machine.asked() == [
        "systemctl daemon-reload",
        "systemctl enable gossamer",
        "systemctl restart gossamer",
    ]
    assert manager.file.read_text().endswith(system_unit("/opt/gossamer/bin/gossamer", {}))


def test_no_service_manager(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(ServiceError, match="there is no systemd here"):
        manager_here(system=False)


@pytest.mark.parametrize("scope", ["user", "system"])
def test_systemd_accepts_the_units_whatever_the_paths(scope: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt install systemd)")
    folder = tmp_path / "100%h my $HOME"
    folder.mkdir()
    program = folder / "gossamer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    make = user_unit if scope == "user" else system_unit
    unit = tmp_path / "gossamer.service"
    unit.write_text(make(program_text([str(program)]), {"GOSSAMER_STATE_DIR": f"{folder}/s"}))
    done = subprocess.run(
        [analyze, f"--{scope}", "verify", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_units_have_a_watchdog_and_leave_the_machine_to_its_owner() -> None:
    for text in (user_unit("/bin/true", {}), system_unit("/bin/true", {})):
        for line in (
            "Type=notify",
            "WatchdogSec=120",
            "CPUWeight=20",
            "IOWeight=20",
            "MemoryHigh=80%",
            "RestartPreventExitStatus=2",
        ):
            assert f"\n{line}\n" in text


def test_launchd_gets_a_job(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "getuid", lambda: 501)
    assert machine.gossamer("service", "install", LINK) == 0
    file = machine.root / "Library/LaunchAgents/org.gossamer.node.plist"
    assert machine.asked() == [f"launchctl bootstrap gui/501 {file}"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    job = plistlib.loads(file.read_bytes())
    assert job["ProgramArguments"][-2:] == ["join", LINK]
    assert job["EnvironmentVariables"] == {
        "GOSSAMER_STATE_DIR": str(machine.state),
        LAUNCHD_VARIABLE: "org.gossamer.node",
    }
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert machine.gossamer("service", "install", LINK) == 0  # anew
    assert machine.gossamer("service", "logs") == 0
    assert machine.gossamer("service", "status") == 0
    assert machine.gossamer("service", "uninstall") == 0
    assert machine.asked() == [
        "launchctl bootout gui/501/org.gossamer.node",
        f"launchctl bootstrap gui/501 {file}",
        f"tail -n 50 {machine.root}/Library/Logs/gossamer.log",
        "launchctl print gui/501/org.gossamer.node",
        "launchctl bootout gui/501/org.gossamer.node",
    ]
    assert not file.exists()
    with pytest.raises(ServiceError, match="one user"):
        manager_here(system=True)


@pytest.mark.parametrize(
    ("starter", "its_variable"), [("launchd", LAUNCHD_VARIABLE), ("Docker", DOCKER_VARIABLE)]
)
def test_what_starts_after_each_error_does_not_start_again_what_would_fail_again(
    starter: str,
    its_variable: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable, status in ((None, 2), (its_variable, 0)):
        if variable:
            monkeypatch.setenv(variable, "org.gossamer.node")
        with pytest.raises(SystemExit) as ended:
            main(["start", "--device", "gpu"])
        assert ended.value.code == status
        assert (f"{starter} does not start it again" in capsys.readouterr().err) == (status == 0)
    with pytest.raises(SystemExit) as ended:
        main(["status", "--state-dir", "/none"])  # this may pass
    assert ended.value.code == 1


def test_a_job_of_somebody_else_stays(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    job = Launchd()
    job.file.parent.mkdir(parents=True)
    job.file.write_text("<plist/>")
    with pytest.raises(ServiceError, match="was not written by this command"):
        job.install([LINK], {}, force=False, starts=True)
    assert job.file.read_text() == "<plist/>"


def test_no_more_lines_than_a_person_reads(machine: Machine) -> None:
    with pytest.raises(ConfigError, match="--lines"):
        service.logs(lines=service.LINES_MAX + 1)


def test_root_is_told_where_the_settings_of_the_service_for_all_users_are(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service sees no home folder, and so not the file that `gossamer config edit` makes."""
    manager = Systemd(system=True)
    manager.file = machine.root / "gossamer.service"
    manager.environment_file = machine.root / "etc/gossamer.env"
    monkeypatch.setattr(managers, "program_words", lambda: ["/opt/gossamer/bin/gossamer"])
    monkeypatch.setattr(sys, "executable", "/opt/gossamer/bin/python")
    monkeypatch.setattr(service, "manager_here", lambda system: manager)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("GOSSAMER_STATE_DIR", raising=False)
    monkeypatch.setenv("GOSSAMER_THREADS", "2")
    own = default_config_file()
    own.parent.mkdir(parents=True)
    own.write_text("log_steps = 5\n")
    assert run_command(["service", "install", LINK]) == 0
    out = capsys.readouterr().out
    assert f"GOSSAMER_THREADS; put them into {manager.environment_file}" in out
    assert f"{own} does not hold in the service" in out

    command = ["service", "install", LINK, "--config"]
    named = machine.root / "gossamer.toml"
    named.write_text("log_steps = 5\n")
    assert run_command([*command, str(named)]) == 0
    assert f"Environment=GOSSAMER_CONFIG={named}\n" in manager.file.read_text()
    assert "does not hold in the service, which" not in capsys.readouterr().out
    monkeypatch.setattr(managers, "_HIDDEN", (str(machine.root),))
    assert run_command([*command, str(named)]) == 2
    assert "lies in a home folder" in capsys.readouterr().err
