"""A systemd that runs here beside the machine's own, as a machine with nothing else on it.

    with LiveSystemd(folder) as systemd:
        systemd.run(systemd.program, "service", "install", "--system", link)
        systemd.show("ActiveState")

It is process 1 of namespaces of its own: processes, mounts, cgroups. It shares the network with the
test. What it writes below /etc, /opt and /var/lib lies in memory and goes with it. This Gossamer is
below /opt there, with a Python outside of all home folders, as its sandboxed service wants it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import TracebackType

import gossamer.node

BOOT_SECONDS = 30.0
STOP_SECONDS = 120.0
"""Longest order: a unit may take its `TimeoutStopSec` to stop."""

LOG = Path("/run/gossamer.log")
"""The service's log, in its namespaces: there is no journal."""

DROP_IN = Path("/run/systemd/system/gossamer.service.d/here.conf")

_NAMESPACES = ["--pid", "--fork", "--mount", "--uts", "--ipc", "--cgroup", "--kill-child"]
_TARGETS = ("basic", "multi-user", "network", "network-online", "shutdown", "sysinit")

_BOOT = """\
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
for folder in /etc /opt /var/lib; do
    mkdir -p /run/over$folder/upper /run/over$folder/work
    mount -t overlay overlay $folder \\
        -o lowerdir=$folder,upperdir=/run/over$folder/upper,workdir=/run/over$folder/work
done
rm -rf /etc/systemd/system /etc/gossamer /opt/gossamer
mkdir -p /etc/systemd/system /run/units
mkdir -p /opt/gossamer/python /opt/gossamer/tree /opt/gossamer/packages /opt/gossamer/sources
mount --bind {prefix} /opt/gossamer/python
mount --bind {tree} /opt/gossamer/tree
mount --bind {packages} /opt/gossamer/packages
ln -s ../tree /opt/gossamer/sources/gossamer
# Services have folders of their own there (PrivateTmp), which stay when systemd is killed.
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /var/tmp
export LD_LIBRARY_PATH=/opt/gossamer/python/lib
/opt/gossamer/python/bin/python3 -m venv --without-pip /opt/gossamer/venv
for site in /opt/gossamer/venv/lib/python3*/site-packages; do
    echo /opt/gossamer/sources > $site/gossamer.pth
    echo "import site; site.addsitedir('/opt/gossamer/packages')" >> $site/gossamer.pth
done
cat > /opt/gossamer/venv/bin/gossamer <<'END'
#!/opt/gossamer/venv/bin/python
import sys
from gossamer.node.cli import main
sys.exit(main())
END
chmod +x /opt/gossamer/venv/bin/gossamer
for target in {targets}; do
    echo [Unit] > /run/units/$target.target
done
printf '[Unit]\\nAllowIsolate=yes\\n' > /run/units/default.target
export container=other SYSTEMD_UNIT_PATH=/run/units:/run/systemd/system:/etc/systemd/system
exec {systemd} --system --log-target=console --show-status=no
"""


class SystemdUnavailable(Exception):
    """This machine cannot run a systemd of its own; the text says why and what to do."""


class LiveSystemd:
    """Use as a context, which ends the systemd and all its services.

    Raises:
        SystemdUnavailable: on entering.
    """

    program = "/opt/gossamer/venv/bin/gossamer"

    def __init__(self, folder: Path) -> None:
        """`folder`: for what it logs."""
        self._log = folder / "systemd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LiveSystemd:
        systemd = shutil.which("systemd", path="/lib/systemd:/usr/lib/systemd")
        if os.geteuid() != 0 or systemd is None or shutil.which("unshare") is None:
            raise SystemdUnavailable("it needs root and Debian's packages systemd and util-linux")
        boot = _BOOT.format(
            prefix=shlex.quote(sys.base_prefix),
            tree=shlex.quote(str(Path(gossamer.node.__file__).parents[1])),
            packages=shlex.quote(sysconfig.get_path("purelib")),
            targets=" ".join(_TARGETS),
            systemd=systemd,
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", *_NAMESPACES, "bash", "-c", boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + BOOT_SECONDS
        while self._state() not in ("running", "degraded"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise SystemdUnavailable(f"it did not start here: {self._log.read_text()[-2000:]}")
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command beside the services, to its end."""
        return subprocess.run(
            [*self._inside(), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STOP_SECONDS,
        )

    def show(self, name: str) -> str:
        """A property of the node's service, as `systemctl show` prints it."""
        return self.run("systemctl", "show", "gossamer", "--value", "-p", name).stdout.strip()

    def add(self, text: str) -> None:
        """Adds lines to the service, as `systemctl edit` does."""
        path = self._root / DROP_IN.relative_to("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)
        self.run("systemctl", "daemon-reload")

    def log(self) -> str:
        """What the service has written."""
        path = self._root / LOG.relative_to("/")
        return path.read_text() if path.exists() else ""

    def write(self, path: Path, text: str) -> None:
        """Writes a file of the machine."""
        (self._root / path.relative_to("/")).write_text(text)

    @property
    def _root(self) -> Path:
        return Path("/proc", str(self._first()), "root")

    def _first(self) -> int | None:
        """The id of its process 1 outside of its namespace."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        numbers = children.read_text().split() if children.exists() else []
        return int(numbers[0]) if numbers else None

    def _inside(self) -> list[str]:
        return ["nsenter", "-t", str(self._first()), "-m", "-p", "-u", "-i", "-C"]

    def _state(self) -> str:
        if self._first() is None:
            return ""
        return self.run("systemctl", "is-system-running").stdout.strip()
