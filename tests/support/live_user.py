"""A person who is logged in on the machine of a `LiveSystemd`: a user with a manager of its own.

    user = LiveUser(systemd)
    user.run(systemd.program, "service", "install", link)
    user.keep_journal()
    user.run(systemd.program, "service", "logs")

Nothing of logind runs there. The manager lies in the slice of its user, as logind puts it: by that
the journal knows whose lines it has.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.live_systemd import LiveSystemd

_UID = 4242
_NAME = "volunteer"
_HOME = Path("/var/lib", _NAME)
_RUNTIME = Path("/run", _NAME)
_UNITS = _HOME / ".config/systemd/user"
_DROP_IN = _UNITS / "gossamer.service.d" / "here.conf"

_MANAGER = f"""\
[Service]
Type=notify
User={_NAME}
Slice=user-{_UID}.slice
Delegate=yes
RuntimeDirectory={_NAME}
StateDirectory={_NAME}
Environment=HOME={_HOME} XDG_RUNTIME_DIR={_RUNTIME} SYSTEMD_UNIT_PATH={_UNITS}:/run/units
ExecStart=/lib/systemd/systemd --user
"""

_JOURNAL = """\
[Service]
Type=notify
ExecStart=/lib/systemd/systemd-journald
"""

_LOG_IN = f"""\
set -e
echo {_NAME}:x:{_UID}:{_UID}::{_HOME}:/bin/sh >> /etc/passwd
echo {_NAME}:x:{_UID}: >> /etc/group
mount -t tmpfs tmpfs /var/log
mkdir -p /var/log/journal
printf '[Journal]\\nReadKMsg=no\\n' > /etc/systemd/journald.conf
systemctl daemon-reload
systemctl start journal user@{_UID}
"""


class LiveUser:
    """Logs in, and begins a journal that lies in memory, where only root may read it."""

    def __init__(self, systemd: LiveSystemd) -> None:
        self._systemd = systemd
        systemd.write(Path(f"/run/units/user@{_UID}.service"), _MANAGER)
        systemd.write(Path("/run/units/journal.service"), _JOURNAL)
        done = systemd.run("sh", "-c", _LOG_IN)
        assert done.returncode == 0, done.stderr

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as this user, to its end."""
        variables = [f"HOME={_HOME}", f"XDG_RUNTIME_DIR={_RUNTIME}", "PATH=/usr/bin:/bin"]
        # The interpreter of the tests is not the machine's own.
        variables.append("LD_LIBRARY_PATH=/opt/gossamer/python/lib")
        become = ("setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups")
        return self._systemd.run(*become, "env", "-i", *variables, *command)

    def show(self, name: str) -> str:
        """A property of the node's service, as `systemctl show` prints it."""
        shown = self.run("systemctl", "--user", "show", "gossamer", "--value", "-p", name)
        return shown.stdout.strip()

    def add(self, text: str) -> None:
        """Adds lines to the service, as `systemctl --user edit` does."""
        self.run("mkdir", "-p", str(_DROP_IN.parent))
        self._systemd.write(_DROP_IN, text)
        self.run("systemctl", "--user", "daemon-reload")

    def keep_journal(self) -> None:
        """From now on the journal lies on the disk, with a file for each user."""
        self._systemd.run("journalctl", "--flush")
