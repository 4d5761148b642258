"""Which requests may give the node an order.

Other users and programs of this machine, and a reverse proxy on it, come from loopback too. So an
order needs the secret that the daemon left in its state directory, where only its own user can
read it (`Authorization: Bearer ...`). Where the endpoint listens on an address of this machine,
requests of this machine come from that address. A request that a proxy passed on, as its headers or
its Host show, does not count as one from this machine, whatever it brings.

The node's own page gives orders as well. A browser writes on each of its requests which page it
comes from, and a script cannot change that. So a request of another page is refused, whatever
secret it brings.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gossamer.node.app.http.http_turns import brings_token
from gossamer.node.base.pausing import PAUSE_SECONDS_MAX

_PAUSE_SECONDS = re.compile(r"[1-9][0-9]{0,9}")

CONTROL_HEADER = "x-gossamer"
LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
# What proxies add to a request that they pass on (RFC 7239, RFC 9110 and the usage before them).
_PROXY_HEADERS = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
)


def refuse_order(request: Request, token: str) -> Response | None:
    """The answer to a request whose order is not taken; None if it is. `token`: the secret that it
    needs."""
    if request.client is None or not _is_this_machine(request, request.client.host):
        return PlainTextResponse("orders are accepted only from this machine\n", status_code=403)
    host = host_of(request.headers.get("host", ""))
    is_here = host in LOOPBACK_NAMES or _is_this_machine(request, host)
    if not is_here or any(name in request.headers for name in _PROXY_HEADERS):
        return PlainTextResponse(
            "orders are accepted only from this machine, and not through a proxy\n",
            status_code=403,
        )
    if request.headers.get(CONTROL_HEADER) != "1":
        return PlainTextResponse(
            "orders come from commands such as `gossamer pause` or from the node's own page: "
            "header X-Gossamer: 1 is missing\n",
            status_code=403,
        )
    if not _is_own_page(request):
        return PlainTextResponse(
            "orders are not accepted from another page than the node's own\n", status_code=403
        )
    if not brings_token(request.headers, token):
        return PlainTextResponse(
            "orders need the token of the state directory: use `gossamer pause` and its like, "
            "or the link of `gossamer page`, as the user who runs the node\n",
            status_code=401,
            headers={"www-authenticate": "Bearer"},
        )
    return None


def _is_own_page(request: Request) -> bool:
    """Whether a request comes from the page of this endpoint, or from no page at all."""
    sites = request.headers.getlist("sec-fetch-site")  # W3C Fetch Metadata
    own = f"http://{request.headers.get('host', '')}".lower()
    origins = request.headers.getlist("origin")
    return all(site == "same-origin" for site in sites) and all(
        origin.lower() == own for origin in origins
    )


def parse_pause(query: Mapping[str, str]) -> tuple[int | None, bool]:
    """Returns the seconds of a pause, None for no end, and whether the present round is finished
    first.

    Raises:
        ValueError: the query has something else; the message is for people.
    """
    if unknown := sorted(set(query) - {"seconds", "after_round"}):
        raise ValueError(f"a pause has `seconds` and `after_round`, and no {', '.join(unknown)}")
    text, after_round = query.get("seconds"), query.get("after_round", "0")
    if text is not None and not (_PAUSE_SECONDS.fullmatch(text) and int(text) <= PAUSE_SECONDS_MAX):
        raise ValueError(f"`seconds` of a pause is a whole number from 1 to {PAUSE_SECONDS_MAX}")
    if after_round not in ("0", "1"):
        raise ValueError("`after_round` of a pause is 0 or 1")
    return None if text is None else int(text), after_round == "1"


def host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") <= 1:
        host = host.partition(":")[0]
    return host.rstrip(".")


def _is_this_machine(request: Request, host: str) -> bool:
    """Whether an address is one of loopback, or the one at which the request came in.

    A connection from a machine to an address of its own comes from that address. No other machine
    can open one from there: the answers to it would not leave this one.
    """
    address = address_of(host)
    server, _ = request.scope.get("server") or (None, None)
    return address is not None and (address.is_loopback or address == address_of(server or ""))


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the address that a text is, IPv4 if it only stands in one of IPv6; None for a
    name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
