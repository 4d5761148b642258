"""Addresses as people write them: HOST:PORT, addresses to listen on, and links to peers.

They are checked here without libp2p, so that a typing error is found before anything starts. The
link that a founder gives to others is a dialable address with the run's id behind a `#`, and where
they are known, a settled head and an invitation::

    /ip4/192.0.2.7/tcp/4610/p2p/12D3KooW...#RUN
    /ip4/192.0.2.7/tcp/4610/p2p/12D3KooW...#RUN@HEAD
    /ip4/192.0.2.7/tcp/4610/p2p/12D3KooW...#RUN@HEAD.INVITATION

RUN and HEAD have 64 hexadecimal digits, INVITATION is base64url. Without a run id, the node joins
the run of the peer at that address.
"""

from __future__ import annotations

import errno
import ipaddress
import re
from typing import NamedTuple

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, PeerId, public_key_of

_HEX = rf"[0-9a-fA-F]{{{2 * DIGEST_BYTES}}}"
_FRAGMENT = re.compile(rf"({_HEX})(?:@({_HEX}))?(?:\.([A-Za-z0-9_-]{{1,8192}}))?")
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


class HostPort(NamedTuple):
    """A host name or address, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def bind_remedy(error: OSError, option: str) -> str:
    """Returns a sentence on what to do where an address cannot be listened on.

    Args:
        option: that names the address, such as `--listen`.
    """
    if error.errno == errno.EADDRNOTAVAIL:
        return f"This machine has no such address: give {option} one of its own"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"The system keeps this port for root: give {option} one from 1024 on"
    return (
        f"Give {option} another port (0 picks a free one), or stop the program that listens there"
    )


class Link(NamedTuple):
    """The address of a peer and, as far as the link has them, what follows the `#`."""

    address: str
    run_id: str | None
    """In hex."""
    head: str | None = None
    """In hex: a head of the run that is not undone any more."""
    invitation: str | None = None
    """In base64url."""

    def __str__(self) -> str:
        head = f"@{self.head}" if self.head else ""
        invitation = f".{self.invitation}" if self.invitation else ""
        return f"{self.address}#{self.run_id}{head}{invitation}" if self.run_id else self.address


def parse_host_port(text: str) -> HostPort:
    """Parses `HOST:PORT` or `[IPv6]:PORT`.

    Raises:
        ValueError: the text is neither; the message is for people.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: put an IPv6 address in brackets, as in [::1]:4611")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:4611")
    if not is_host(host):
        raise ValueError(f"{text!r}: {host!r} is no name and no address of a host")
    return HostPort(host, int(port))


def is_host(text: str) -> bool:
    """Returns whether a text is the name or the address of a host."""
    if HOST_NAME.fullmatch(text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def parse_listen(text: str) -> str:
    """Checks an address to listen on, `/ip4/.../tcp/PORT` or `/ip6/...`, and returns it.

    Raises:
        ValueError: the text is no such address; the message is for people.
    """
    parts = text.split("/")
    example = "/ip4/0.0.0.0/tcp/4610"
    if len(parts) != 5 or parts[0] or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp":
        raise ValueError(f"{text!r} is not an address to listen on; write it as {example}")
    _check_endpoint(text, parts[1], parts[2], parts[4], is_dialled=False)
    return text


def parse_announced(text: str) -> str:
    """Checks an address that others are told: `/ip4|ip6|dns|dns4|dns6/HOST/tcp/PORT`; returns it.

    Raises:
        ValueError: the text is no such address; the message is for people.
    """
    parts = text.split("/")
    if len(parts) != 5 or parts[0] or parts[3] != "tcp":
        raise ValueError(
            f"{text!r} is not an address to announce; write it as /ip4/192.0.2.7/tcp/4610 or "
            "/dns/node.example.org/tcp/4610, without a peer id"
        )
    _check_endpoint(text, parts[1], parts[2], parts[4])
    return text


def parse_link(text: str) -> Link:
    """Parses the address of a peer, with or without what follows a `#`.

    Raises:
        ValueError: the address, its peer id or what follows is not valid; the message is for
            people.
    """
    address, hash_sign, fragment = text.strip().partition("#")
    run_id = head = invitation = None
    if hash_sign:
        match = _FRAGMENT.fullmatch(fragment)
        if match is None:
            raise ValueError(
                f"{text!r}: the part after # must be a run id of {2 * DIGEST_BYTES} hexadecimal "
                "digits, and may have @HEAD and an invitation behind it; copy the whole link that "
                "`gossamer start` or `gossamer invite` printed"
            )
        run_id, head, invitation = match[1].lower(), match[2], match[3]
    if len(address) > limits.ADDRESS_CHARACTERS_MAX:
        raise ValueError(f"an address of {len(address)} characters is too long")
    parts = address.split("/")
    example = "/ip4/192.0.2.7/tcp/4610/p2p/12D3KooW..."
    if len(parts) != 7 or parts[0] or parts[3] != "tcp" or parts[5] != "p2p":
        raise ValueError(
            f"{text!r} is not a peer's address; it looks like {example}. "
            "Copy the whole address that `gossamer start` or `gossamer status` shows"
        )
    _check_endpoint(address, parts[1], parts[2], parts[4])
    try:
        public_key_of(PeerId(parts[6]))
    except MalformedError as error:
        raise ValueError(
            f"{text!r}: {parts[6]!r} is not a peer id ({error}); check the end of the address"
        ) from None
    return Link(address, run_id, head.lower() if head else None, invitation)


def is_without_peer(text: str) -> bool:
    """Returns whether a text is a dialable address that names no peer, as people pass it on by
    word."""
    try:
        parse_announced(text.strip())
    except ValueError:
        return False
    return True


def _check_endpoint(text: str, kind: str, host: str, port: str, *, is_dialled: bool = True) -> None:
    if kind in ("ip4", "ip6"):
        version = {"ip4": ipaddress.IPv4Address, "ip6": ipaddress.IPv6Address}[kind]
        try:
            version(host)
        except ValueError:
            raise ValueError(f"{text!r}: {host!r} is not an {kind} address") from None
    elif kind not in ("dns", "dns4", "dns6") or not HOST_NAME.fullmatch(host):
        raise ValueError(f"{text!r}: begin with /ip4/ADDRESS, /ip6/ADDRESS or /dns/NAME")
    port_min = 1 if is_dialled else 0
    if not port.isascii() or not port.isdigit() or not port_min <= int(port) <= 65_535:
        raise ValueError(f"{text!r}: {port!r} is not a TCP port ({port_min} to 65535)")
    if is_dialled and host in ("0.0.0.0", "::"):
        raise ValueError(f"{text!r}: {host} means every address of a machine; name one of them")
