"""Which requests may give the node an order.

Other users and programs of this machine, and a reverse proxy on it, come from loopback too. So an
order needs the secret that the daemon left in its state directory, where only its own user can
read it (`Authorization: Bearer ...`). A request that a proxy passed on, as its headers or its Host
show, does not count as one from this machine, whatever it brings.
"""

from __future__ import annotations

import hmac
import ipaddress

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

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
    if request.client is None or not _is_loopback(request.client.host):
        return PlainTextResponse("orders are accepted only from this machine\n", status_code=403)
    host = host_of(request.headers.get("host", ""))
    is_here = host in LOOPBACK_NAMES or _is_loopback(host)
    if not is_here or any(name in request.headers for name in _PROXY_HEADERS):
        return PlainTextResponse(
            "orders are accepted only from this machine, and not through a proxy\n",
            status_code=403,
        )
    if request.headers.get(CONTROL_HEADER) != "1" or "origin" in request.headers:
        return PlainTextResponse(
            "orders come from `gossamer pause | resume | leave`: header X-Gossamer: 1 is missing\n",
            status_code=403,
        )
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    is_right = hmac.compare_digest(given.strip().encode(), token.encode())
    if kind.lower() != "bearer" or not is_right:
        return PlainTextResponse(
            "orders need the token of the state directory: use `gossamer pause | resume | leave` "
            "as the user who runs the node\n",
            status_code=401,
            headers={"www-authenticate": "Bearer"},
        )
    return None


def host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") <= 1:
        host = host.partition(":")[0]
    return host.rstrip(".")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
