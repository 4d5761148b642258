"""The client of a running daemon, which `gossamer status`, `page` and the orders use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlencode

import msgspec

from gossamer.node.base.address_text import HostPort, parse_host_port
from gossamer.node.base.local_http import AnswerError, ask
from gossamer.node.base.pausing import LEAVING_CODE
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.printable import printable
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.node.telemetry.status import Status, decode_status

Order = Literal["pause", "resume", "finish", "leave"]


class _Taken(msgspec.Struct, frozen=True):
    """The answer to an order that is taken."""

    problem: str = ""


# The daemon answers within 100 ms. A machine that swaps may need longer.
TIMEOUT_SECONDS = 10.0
# 1,024 peers of about 2 KiB each.
_ANSWER_BYTES_MAX = 8 * 1024 * 1024

# A sentence for each of the limits.
_REASON_BYTES_MAX = 4096

_NOT_IN_ORDER = (
    "the last node did not end in order. Start it again; it goes on from its newest state"
)

_READ_ONLY = (
    "no node runs on {}, and its disk is read-only, so that the last node could not remove its "
    "address. Mount it for writing again, and start the node: it goes on from what is on the disk"
)


class ClientError(Exception):
    """The daemon did not answer as it should; the message says why and what to do."""


class NotRunningError(ClientError):
    """No daemon runs on the state directory."""


class StartingError(ClientError):
    """A daemon runs on the state directory and cannot answer yet; the message says what it does."""


def fetch_status(state_dir: StateDir) -> Status:
    """Returns the status of the running daemon. Each socket operation has `TIMEOUT_SECONDS`.

    Raises:
        NotRunningError: no daemon runs on this directory.
        StartingError: one runs, and cannot answer yet.
        ClientError: a daemon runs, but it did not answer as it should.
    """
    data = _ask(state_dir, "GET", "/api/status", _token_or_none(state_dir))
    try:
        return decode_status(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(
            f"the daemon of {state_dir.root} sent an answer that is not a status ({error}): "
            "does it run another version of Gossamer?"
        ) from error


def give_order(
    state_dir: StateDir, order: Order, options: Mapping[str, int] = MappingProxyType({})
) -> str:
    """Gives an order to the running daemon. Returns when the daemon has accepted.

    Args:
        options: of the order: for a pause `seconds` and `after_round` (0 or 1).

    Returns:
        The reason why the disk of the node does not take the order, or what the node writes when it
        leaves; empty if it does.

    Raises:
        NotRunningError, ClientError: as `fetch_status`.
    """
    query = f"?{urlencode(options)}" if options else ""
    return _problem_of(_ask(state_dir, "POST", f"/api/{order}{query}", _token_of(state_dir)))


def change_limits(state_dir: StateDir, changes: Mapping[str, str]) -> str:
    """Asks the running daemon to change the owner's limits. Returns when they hold: the reason why
    they will not hold over a restart, or an empty text if they will.

    Raises:
        ConfigError: the daemon refuses a change; its sentences say why.
        NotRunningError, ClientError: as `fetch_status`.
    """
    path = f"/api/limits?{urlencode(changes)}"
    return _problem_of(_ask(state_dir, "POST", path, _token_of(state_dir)))


def until_end(problem: str) -> str:
    """Returns the sentence for an order that the disk of its node does not take."""
    return printable(
        "It holds until this node ends. After a restart it holds only if the disk takes it until "
        f"then, which the node tries again and again: {problem}"
    )


def until_written(problem: str) -> str:
    """Returns the sentence for an order to leave, where the disk of the node takes nothing."""
    return printable(
        "What its disk has not taken is lost here when it ends, unless the disk takes it until "
        f"then: {problem}"
    )


def _problem_of(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_Taken).problem
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""  # the order is taken, whatever a daemon of another version says about it


def _token_of(state_dir: StateDir) -> str:
    try:
        return DaemonFiles(state_dir).read_token()
    except StateDirError as error:
        _address_of(state_dir)  # of a node that is not there at all, that is the better word
        raise ClientError(str(error)) from error


def _token_or_none(state_dir: StateDir) -> str:
    """Returns the secret, with which a request waits behind nobody else's; empty for a user who may
    not read it. What is read needs none."""
    try:
        return _token_of(state_dir)
    except ClientError:
        return ""


def page_link(state_dir: StateDir) -> str:
    """Returns the link to the page of the running daemon, with the secret that lets it steer.

    The secret stands behind `#`: a browser keeps that part to itself and sends it nowhere.

    Raises:
        NotRunningError, StartingError, ClientError: as `fetch_status`.
    """
    _ask(state_dir, "GET", "/livez")
    return f"http://{_address_of(state_dir)}/#token={_token_of(state_dir)}"


def _address_of(state_dir: StateDir) -> HostPort:
    """Returns where the daemon of a state directory answers."""
    files = DaemonFiles(state_dir)
    try:
        address = files.read_api()
        if address is None:
            if (does := files.read_starting()) is not None:
                raise StartingError(f"the node on {state_dir.root} is starting: {does}")
            address = files.read_api()  # it may have begun to answer between the two looks
    except StateDirError as error:
        raise ClientError(str(error)) from error
    if address is None:
        raise NotRunningError(
            f"no node runs on {state_dir.root}. Start one with `gossamer start` or "
            "`gossamer join`, or name its --state-dir"
        )
    # Another node may listen there by now. A lock that this user may not open tells nothing.
    if os.access(state_dir.lock_path, os.R_OK) and not state_dir.is_in_use():
        raise NotRunningError(
            _READ_ONLY.format(state_dir.root)
            if state_dir.is_read_only()
            else f"no node runs on {state_dir.root}: {_NOT_IN_ORDER}"
        )
    try:
        return _reachable(parse_host_port(address))
    except ValueError as error:
        raise ClientError(f"{state_dir.api_path} is damaged: {error}") from error


def _ask(state_dir: StateDir, method: str, path: str, token: str = "") -> bytes:
    where = _address_of(state_dir)
    headers = {"X-Gossamer": "1", "Connection": "close"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        code, data = ask(
            where,
            method,
            path,
            headers,
            timeout_seconds=TIMEOUT_SECONDS,
            body_bytes_max=_ANSWER_BYTES_MAX,
        )
    except ConnectionRefusedError as error:
        raise NotRunningError(_why_nothing_listens(state_dir, where)) from error
    except TimeoutError as error:
        obeys = ". It obeys the order when it goes on" if method == "POST" else ""
        raise ClientError(
            f"the daemon at {where} did not answer within {TIMEOUT_SECONDS:g} s: it hangs, or the "
            f"machine is overloaded{obeys}"
        ) from error
    except (OSError, AnswerError) as error:
        raise ClientError(
            f"the connection to the daemon at {where} broke: {error or repr(error)}"
        ) from error
    if code == 400 and path.startswith("/api/limits"):
        text = data[:_REASON_BYTES_MAX].decode("utf-8", errors="replace").strip()
        raise ConfigError(text.splitlines() or ["the daemon refuses it"])
    if code == LEAVING_CODE:
        raise ClientError(
            f"the node on {state_dir.root} is leaving, and nothing takes that back. Start it again "
            "when it has ended"
        )
    if code >= 300:
        reason = data[:300].decode("utf-8", errors="replace").strip()
        what = path.partition("?")[0]
        raise ClientError(f"the program at {where} refused {what}: {code} {reason}")
    if len(data) > _ANSWER_BYTES_MAX:
        raise ClientError(f"the program at {where} sent more than {_ANSWER_BYTES_MAX:,} bytes")
    return data


def _why_nothing_listens(state_dir: StateDir, where: HostPort) -> str:
    """Returns the sentence on a daemon whose port is closed although it left its address."""
    if state_dir.is_in_use():  # it closes its port before it lets the directory go
        return f"the node on {state_dir.root} is ending, and takes no more orders"
    if DaemonFiles(state_dir).read_api() is None:
        return f"no node runs on {state_dir.root}: it has just ended in order"
    if state_dir.is_read_only():
        return _READ_ONLY.format(state_dir.root)
    return (
        f"no node runs on {state_dir.root}: nothing listens on {where} any more, and "
        f"{_NOT_IN_ORDER}"
    )


def _reachable(where: HostPort) -> HostPort:
    """Returns the loopback address for a wildcard, which a client cannot connect to."""
    return HostPort({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(where.host, where.host), where.port)
