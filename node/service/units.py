"""The files that make a node a service: a systemd unit for all users or for one, and a launchd job.

`deploy/gossamer.service` is `system_unit` for the program in /opt (tested).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

LABEL = "org.gossamer.node"
"""Name of the launchd job."""

LAUNCHD_VARIABLE = "LAUNCHD_JOB_OF_GOSSAMER"
"""Variable of launchd's job alone."""

DOCKER_VARIABLE = "DOCKER_SERVICE_OF_GOSSAMER"
"""Variable of the services of `deploy/compose.yaml` alone."""

ENDLESS_STARTERS = {LAUNCHD_VARIABLE: "launchd", DOCKER_VARIABLE: "Docker"}
"""Programs that start a node again after each status but 0. A node that has the variable of one
ends with 0 where it would fail again (status 2)."""

WATCHDOG_SECONDS = 120
"""An event loop that did nothing for so long hangs. It answers within 100 ms (measured); a machine
that swaps may take some seconds."""

LAUNCHD_THROTTLE_SECONDS = 60
"""Time between two starts."""

_SERVICE = """\
[Unit]
Description=Gossamer: volunteer compute for a shared training run
{after}
[Service]
# The node says itself when it has its ports, and what it does (systemctl status). A watchdog starts
# it again if its event loop hangs. The log then has the place.
Type=notify
WatchdogSec={watchdog}
{environment}ExecStart={program} join $GOSSAMER_SEEDS

# 2 is what would fail again until somebody changes something: a setting, a link, a damaged file, or
# the list of a run that does not admit this node.
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=2

# SIGTERM goes to the daemon alone: it ends its round, which takes up to 20 s, stays up to 30 s more
# while no other peer has that round, and then writes its state. What is left after the time is
# killed; nothing committed is lost by that.
KillMode=mixed
TimeoutStopSec=90
# Out of memory, the kernel kills the trainer, and the daemon starts it again: systemd need not stop
# both.
OOMPolicy=continue
# What the machine does for its owner goes first: a fifth of the usual share where others want
# processor or disk, all of it where nobody does. Above MemoryHigh the node is slowed down and gives
# back caches. `systemctl edit gossamer` changes them.
CPUWeight=20
IOWeight=20
MemoryHigh=80%
# A few hundred connections, and the blocks that are being sent.
LimitNOFILE=65536
# A core would hold the identity's key, and all vectors of the model.
LimitCORE=0
UMask=0077
"""

_FOR_ALL_USERS = """\
# The state directory holds the identity's key.
DynamicUser=yes
StateDirectory=gossamer
StateDirectoryMode=0700

CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateMounts=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RemoveIPC=yes
"""

_SANDBOX = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
# Netlink is how the addresses of the machine's own interfaces are read.
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
# The trainer confines itself further, with seccomp and Landlock.
SystemCallFilter=@system-service seccomp
SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self
"""

_LEFT_OUT_FOR_ALL = """\
# Left out: PrivateDevices and DevicePolicy=closed, which hide the GPU; MemoryDenyWriteExecute,
# because torch and CUDA compile kernels while they run; ProcSubset=pid, because /proc/meminfo says
# how much memory there is. The devices of NVIDIA are open to all users; for AMD's add with
# `systemctl edit`: SupplementaryGroups=render video
"""

_LEFT_OUT_FOR_ONE = """\
# Left out: what a user's own manager may not do, such as ProtectSystem and an empty set of
# capabilities. The unit for all users (`gossamer service install --system`) has it.
"""


def system_unit(program: str, environment: Mapping[str, str]) -> str:
    """Returns the unit of a node that runs for all users of the machine, from its boot.

    Args:
        program: the words that run Gossamer, quoted for systemd.
        environment: variables besides those of the unit itself.
    """
    lines = "EnvironmentFile=-/etc/gossamer/gossamer.env\n"
    lines += "Environment=GOSSAMER_STATE_DIR=%S/gossamer\n" + _environment(environment)
    after = "Wants=network-online.target\nAfter=network-online.target\n"
    return "\n".join(
        [
            _service(program, lines, after),
            _FOR_ALL_USERS.rstrip("\n"),
            _SANDBOX + _LEFT_OUT_FOR_ALL,
            "[Install]\nWantedBy=multi-user.target\n",
        ]
    )


def user_unit(program: str, environment: Mapping[str, str]) -> str:
    """Returns the unit of a node that runs for one user; see `system_unit`."""
    lines = "EnvironmentFile=-%E/gossamer/gossamer.env\n" + _environment(environment)
    return "\n".join(
        [
            _service(program, lines, ""),
            _SANDBOX + _LEFT_OUT_FOR_ONE,
            "[Install]\nWantedBy=default.target\n",
        ]
    )


def _service(program: str, environment: str, after: str) -> str:
    return _SERVICE.format(
        program=program, environment=environment, after=after, watchdog=WATCHDOG_SECONDS
    )


def _environment(variables: Mapping[str, str]) -> str:
    return "".join(f"Environment={_word(f'{key}={value}')}\n" for key, value in variables.items())


def _word(text: str) -> str:
    """Returns a word as a unit writes it, in which systemd replaces nothing (systemd.syntax(7))."""
    text = text.replace("%", "%%")
    if text and all(character.isalnum() or character in "-_./=:%@+," for character in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def program_text(words: Sequence[str]) -> str:
    """Returns the command of `ExecStart`."""
    # In the first word no variables are replaced, so a `$` there stays single.
    return " ".join([_word(words[0]), *(_word(word.replace("$", "$$")) for word in words[1:])])


def launchd_job(words: Sequence[str], environment: Mapping[str, str], log: Path) -> bytes:
    """Returns the job of a node that runs for one user of a Mac.

    Args:
        words: the command with its arguments.
        log: file that gets what the node writes.
    """
    import plistlib  # here: errors read ENDLESS_STARTERS, and plistlib loads XML parsers

    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(words),
            "EnvironmentVariables": {**environment, LAUNCHD_VARIABLE: LABEL},
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": LAUNCHD_THROTTLE_SECONDS,
            "ExitTimeOut": 90,
            "ProcessType": "Background",
            "LowPriorityIO": True,
            "Nice": 10,
            "Umask": 0o077,
            "StandardOutPath": str(log),
            "StandardErrorPath": str(log),
        }
    )
