"""Checks of everything that a node needs from its machine, with advice where a check fails."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gossamer.node.app.http.client import ClientError, NotRunningError, fetch_status
from gossamer.node.base.address_text import (
    HostPort,
    bind_remedy,
    parse_host_port,
    parse_link,
)
from gossamer.node.base.settings.owner_limits import with_limits
from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.base.threads import num_usable_cores
from gossamer.node.commands.machine.pause_checks import check_pauses
from gossamer.node.commands.machine.reach_check import check_reach_of_idle
from gossamer.node.commands.machine.state_checks import (
    Check,
    Level,
    check_run,
    check_state_dir,
)
from gossamer.node.commands.machine.torch_checks import check_torch
from gossamer.node.machine.capacity import host_memory_bytes
from gossamer.node.storage.disk_use import existing_parent
from gossamer.node.storage.owner_orders import read_limits
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.trainer.ipc.control_groups import group_processes

_SEED_SECONDS_MAX = 8.0
# State, optimiser and log of a small preset. With less, the first checkpoint may fail.
_DISK_BYTES_MIN = 512 * 1000**2
# The daemon takes 250 MB, torch 500 MB, and the smallest model the rest.
_MEMORY_BYTES_MIN = 1_500 * 1000**2
# This version was written later, so a clock that shows an earlier time is wrong.
_CLOCK_UNIX_SECONDS_MIN = 1_767_225_600  # 2026-01-01
# A clock that is set by the network goes back only by seconds.
_CLOCK_BACK_SECONDS_MAX = 600
_FILES_MIN = 1024
# On two cores the daemon has 35 threads and the trainer 6, and more for a moment: the daemon while
# it reads blocks, the trainer while it measures.
_PROCESSES_MIN = 64
# One of the daemon at a vector, and one of torch.
_PROCESSES_A_CORE = 2
_MULTISTREAM = b"\x13/multistream/1.0.0\n"

_CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
"""File with the congestion controls that processes without root may choose on Linux."""


def make_checks(settings: Settings, address: str | None = None) -> Iterator[Check]:
    """Makes the checks one by one, and that of a peer's address if one is given."""
    state_dir = StateDir(settings.state_dir)
    yield check_python()
    confined = settings.confine_trainer == "on"
    yield from check_torch(settings.device, confined=confined, compiling=settings.compile)
    yield check_memory()
    running = _is_running(state_dir)
    yield from check_state_dir(settings.state_dir, running)
    yield from check_run(state_dir)
    yield check_disk(settings)
    yield from check_ports(settings, running)
    yield check_files()
    if not running:  # else the node's own count as well
        yield check_processes(group_processes(), _processes_of_user_max(), num_usable_cores())
    yield check_congestion_control()
    reach = check_reach(state_dir) if running else check_reach_of_idle(settings, address)
    if reach is not None:
        yield reach
    try:
        limited = with_limits(settings, read_limits(state_dir.limits_path))
    except (StateDirError, ConfigError) as error:
        yield Check("limits", "fail", str(error))
    else:
        yield from check_pauses(limited)
    yield check_clock(time.time(), _last_written_unix_seconds(state_dir))
    if address is not None:
        yield check_seed(address)


def check_python() -> Check:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.maxsize < 2**32:
        return Check("python", "fail", text, "torch needs a 64-bit Python")
    return Check("python", "ok", text)


def check_memory() -> Check:
    memory = host_memory_bytes()
    text = f"{format_bytes(memory)} of host memory"
    if memory < _MEMORY_BYTES_MIN:
        wanted = format_bytes(_MEMORY_BYTES_MIN)
        return Check("memory", "warn", text, f"Only the smallest models fit below {wanted}")
    return Check("memory", "ok", text)


def check_disk(settings: Settings) -> Check:
    usage = shutil.disk_usage(existing_parent(settings.state_dir))
    text = f"{format_bytes(usage.free)} free"
    if usage.free < _DISK_BYTES_MIN:
        return Check("disk", "fail", text, f"Free at least {format_bytes(_DISK_BYTES_MIN)}")
    if usage.free < settings.cache_bytes + _DISK_BYTES_MIN:
        cache = format_bytes(settings.cache_bytes)
        return Check(
            "disk",
            "warn",
            f"{text}, less than the data cache may take ({cache})",
            "Free some space or give a smaller --cache-bytes",
        )
    return Check("disk", "ok", text)


def check_ports(settings: Settings, running: bool) -> Iterator[Check]:
    """Checks whether the addresses to listen on are free. A running node holds its own."""
    if running:
        yield Check("ports", "ok", "held by the running node")
        return
    for multiaddr in settings.listen:
        _, _, host, _, port = multiaddr.split("/")
        yield _check_port(HostPort(host, int(port)), "--listen")
    yield _check_port(parse_host_port(settings.api), "--api")


def _check_port(where: HostPort, flag: str) -> Check:
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)  # Linux lets two bind, but only one listen, with SO_REUSEADDR
    except OSError as error:
        return Check(
            "ports",
            "fail",
            f"{where} cannot be used: {error.strerror}",
            bind_remedy(error, flag),
        )
    return Check("ports", "ok", f"{where} for {flag} is free")


def check_files() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FILES_MIN:
        return Check("files", "warn", f"{soft} open files at most", f"ulimit -n {_FILES_MIN}")
    return Check("files", "ok", "no tight limit of open files")


def check_processes(num_free: int | None, soft: int, num_cores: int) -> Check:
    """Checks whether the system lets a node start its processes and threads.

    Args:
        num_free: what the groups of this process may still have; None without a limit.
        soft: limit of all processes and threads of this user; -1 for none.
    """
    wanted = _PROCESSES_MIN + _PROCESSES_A_CORE * num_cores
    if num_free is not None and num_free < wanted:
        return Check(
            "processes",
            "warn",
            f"this container, service or job may have {num_free} more processes and threads",
            f"A node needs some {wanted}: raise --pids-limit of a container or TasksMax= of a "
            "service",
        )
    if 0 <= soft < wanted:
        text = f"{soft} processes and threads of this user at most"
        return Check("processes", "warn", text, f"A node needs some {wanted}: ulimit -u 1024")
    return Check("processes", "ok", "no tight limit of processes")


def _processes_of_user_max() -> int:
    """Returns the limit of this user's processes and threads; -1 for none, as for root."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return -1 if os.geteuid() == 0 or soft == resource.RLIM_INFINITY else soft


def check_congestion_control(allowed: Path = _CONGESTION_CONTROLS) -> Check:
    """Checks whether connections may use BBR, which keeps its rate on long lines with losses."""
    try:
        names = allowed.read_text().split()
    except OSError:
        return Check("congestion", "ok", "this system chooses it")
    if "bbr" in names or os.geteuid() == 0:
        return Check("congestion", "ok", "BBR may be used")
    return Check(
        "congestion",
        "warn",
        f"BBR may not be used ({', '.join(names)} may)",
        "On long lines with losses it is much faster: as root, modprobe tcp_bbr, and "
        f"sysctl net.ipv4.tcp_allowed_congestion_control='{' '.join(names)} bbr'",
    )


def check_reach(state_dir: StateDir) -> Check:
    """Checks how well the running node can be reached, as its peers have shown it."""
    try:
        status = fetch_status(state_dir)
    except ClientError as error:
        return Check("reach", "warn", str(error))
    alone = bool(status.peers) and not any(peer.path for peer in status.peers)
    relayed = any(peer.path == "relayed" for peer in status.peers)
    text, _, advice = status.reach_text.partition(". ")
    level: Level = "fail" if alone else "warn" if relayed or status.reach == "strict" else "ok"
    return Check("reach", level, text, advice)


def check_clock(now_unix_seconds: float, last_written_unix_seconds: float = 0.0) -> Check:
    """Checks whether the wall clock can be right. Clocks of peers are never compared."""
    moment = _moment(now_unix_seconds)
    advice = "Set the clock: the swarm does not need it, but logs and metrics will mislead"
    if now_unix_seconds < _CLOCK_UNIX_SECONDS_MIN:
        return Check("clock", "warn", f"{moment} is in the past", advice)
    if last_written_unix_seconds - now_unix_seconds > _CLOCK_BACK_SECONDS_MAX:
        later = _moment(last_written_unix_seconds)
        return Check("clock", "warn", f"{moment}, but the state was written on {later}", advice)
    return Check("clock", "ok", moment)


def _moment(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_seconds))


def _last_written_unix_seconds(state_dir: StateDir) -> float:
    """Returns the time of a node's newest write to the directory, by this clock; 0 for none."""
    times = [0.0]
    for path in (state_dir.lock_path, state_dir.head_path, state_dir.known_peers_path):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def check_seed(text: str) -> Check:
    """Checks whether a program that speaks libp2p answers. Its peer id is checked on joining."""
    try:
        link = parse_link(text)
    except ValueError as error:
        return Check("seed", "fail", str(error))
    _, _, host, _, port, *_ = link.address.split("/")
    where = HostPort(host, int(port))
    try:
        with socket.create_connection(where, timeout=_SEED_SECONDS_MAX) as connection:
            connection.settimeout(_SEED_SECONDS_MAX)
            connection.sendall(_MULTISTREAM)
            answer = b""
            while len(answer) < len(_MULTISTREAM):
                piece = connection.recv(len(_MULTISTREAM) - len(answer))
                if not piece:
                    break
                answer += piece
    except TimeoutError:
        reason = f"{where} did not answer within {_SEED_SECONDS_MAX:g} s"
        advice = "Is the machine on, and its port open in its firewall and router?"
        return Check("seed", "fail", reason, advice)
    except OSError as error:
        reason = f"{where} cannot be reached: {error.strerror or error}"
        advice = "Is the address right, and does the seed still run? Ask for another peer's address"
        return Check("seed", "fail", reason, advice)
    if answer != _MULTISTREAM:
        advice = "The program that listens there is not a Gossamer node: check the port"
        return Check("seed", "fail", f"{where} does not speak libp2p", advice)
    return Check("seed", "ok", f"{where} answers")


def _is_running(state_dir: StateDir) -> bool:
    try:
        fetch_status(state_dir)
    except NotRunningError:
        return False
    except ClientError:
        return True
    return True
