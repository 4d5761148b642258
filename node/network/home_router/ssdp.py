"""The search for a router's descriptions (SSDP, UPnP Device Architecture 1.1, section 1.3).

Everybody in the home hears the search, and any machine can answer it. Only what comes from the
default gateway and leads to it is used. A machine of the home can write the gateway's address into
an answer of its own; what that makes this node do is to ask the gateway itself.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urljoin, urlsplit

from gossamer.node.network.home_router.default_gateway import Gateway
from gossamer.node.network.home_router.gateway_http import Place

GROUP = ("239.255.255.250", 1900)
"""Where UPnP devices hear searches."""

SEARCHES_MAX = 2
"""Times that a search is sent while nothing is found, because datagrams get lost."""

WAIT_SECONDS = 1.0
"""After each time. It is what the search says to devices, too (MX): each picks a moment in it."""

LOCATIONS_MAX = 8
"""Descriptions that a search finds. A router has one, or one for each version of its device."""

TARGET_CHARACTERS_MAX = 1024
"""Of a path with its query. Routers have some tens."""

_ANSWER_BYTES_MAX = 2048
"""Of a datagram: what is longer did not fit a frame of Ethernet, and loses its end."""

_LINES_MAX = 64
"""Of an answer. The standard has some ten."""

_HOPS = 2
"""Those of the standard. The router itself is one away."""

_TARGET = re.compile(r"[\x21-\x7e]+")
"""What may stand in the first line of a request (RFC 9112, section 3.2)."""


class SearchError(Exception):
    """The search cannot be sent; the text says why, for people."""


@dataclass
class Found:
    """What a search finds."""

    places: list[Place] = field(default_factory=list)
    """Descriptions at the gateway, as they came."""
    stranger: str = ""
    """The address of a machine that answered and is not the gateway; empty if none did."""


def search(gateway: Gateway, targets: tuple[str, ...], deadline: float) -> Found:
    """Searches for devices and services, for `SEARCHES_MAX` times `WAIT_SECONDS` at most.

    Args:
        targets: their names ("ST").
        deadline: time of `time.monotonic` at which it ends in any case.

    Raises:
        SearchError: see there.
    """
    found = Found()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.bind((gateway.own_host, 0))
            own = socket.inet_aton(gateway.own_host)
            line.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
            line.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _HOPS)
            for _ in range(SEARCHES_MAX):
                if found.places:
                    break
                for target in targets:
                    line.sendto(_question(target), GROUP)
                _hear(line, gateway, targets, found, min(deadline, time.monotonic() + WAIT_SECONDS))
        except OSError as error:
            raise SearchError(error.strerror or type(error).__name__) from error
    return found


def place_of(text: str, base: str, gateway: Gateway) -> Place | None:
    """Where a URL of a router leads; None if that is not the gateway itself, or no URL.

    Args:
        base: the URL that a relative one belongs to (RFC 3986, section 5).
    """
    try:
        parts: SplitResult = urlsplit(urljoin(base, text.strip()))
        port = 80 if parts.port is None else parts.port
    except ValueError:
        return None
    if parts.scheme != "http" or parts.hostname != gateway.host or "@" in parts.netloc or not port:
        return None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if len(target) > TARGET_CHARACTERS_MAX or not _TARGET.fullmatch(target):
        return None
    return Place(gateway.host, port, target)


def location_of(data: bytes, targets: tuple[str, ...]) -> str | None:
    """The description's URL in an answer to a search for targets; None if it is no such answer."""
    first, *lines = data.decode("latin-1").splitlines()[:_LINES_MAX] or [""]
    if not re.match(r"HTTP/1\.[01] 200\b", first):
        return None
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    return headers.get("location") if headers.get("st") in targets else None


def _question(target: str) -> bytes:
    lines = [
        "M-SEARCH * HTTP/1.1",
        f"HOST: {GROUP[0]}:{GROUP[1]}",
        'MAN: "ssdp:discover"',
        f"MX: {WAIT_SECONDS:.0f}",
        f"ST: {target}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _hear(
    line: socket.socket, gateway: Gateway, targets: tuple[str, ...], found: Found, until: float
) -> None:
    """Takes answers for a time. Those of other machines only cost this time."""
    while len(found.places) < LOCATIONS_MAX and (left := until - time.monotonic()) > 0:
        line.settimeout(left)
        try:
            data, (host, _) = line.recvfrom(_ANSWER_BYTES_MAX)
        except TimeoutError:
            return
        location = location_of(data, targets)
        if location is None:
            continue
        if host != gateway.host:
            found.stranger = found.stranger or host
            continue
        place = place_of(location, "", gateway)
        if place is not None and place not in found.places:
            found.places.append(place)
