"""The links of a `gossamer join`, taken together."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from gossamer.node.base.address_text import Link, parse_link
from gossamer.node.base.settings.settings import ConfigError
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.wire.invitation_messages import Invitation, decode_invitation


class Links(NamedTuple):
    """The content of the links of one command line."""

    addresses: tuple[str, ...]
    run_id: str | None = None
    """In hex; None if no link has one."""
    head: str | None = None
    """In hex."""
    invitation: bytes | None = None
    """An encoded `Invitation`."""


def parse_links(texts: tuple[str, ...]) -> Links:
    """Parses links. Returns their addresses, and what they agree on.

    Raises:
        ConfigError: a link is not valid, or the run ids differ; it names every mistake.
    """
    problems: list[str] = []
    links: list[Link] = []
    invitations: list[Invitation] = []
    for text in texts:
        try:
            link = parse_link(text)
            if link.invitation is not None:
                invitations.append(_invitation(link.invitation))
        except ValueError as error:
            problems.append(str(error))
        else:
            links.append(link)
    for what, found in (("runs", _all(links, "run_id")), ("heads", _all(links, "head"))):
        if len(found) > 1:
            named = " and ".join(each[:10] for each in found)
            problems.append(f"the links name different {what} ({named}): a node joins one run")
    if len(invitations) > 1:
        problems.append(f"{len(invitations)} invitations are given: a node uses one")
    if problems:
        raise ConfigError(problems)
    addresses = [link.address for link in links]
    for invitation in invitations:
        addresses += [parse_link(address).address for address in invitation.addresses]
    return Links(
        tuple(dict.fromkeys(addresses)),
        next(iter(_all(links, "run_id")), None),
        next(iter(_all(links, "head")), None),
        to_msgpack(invitations[0]) if invitations else None,
    )


def invitation_text(invitation: Invitation) -> str:
    """Returns an invitation as the last part of a link."""
    return base64.urlsafe_b64encode(to_msgpack(invitation)).decode().rstrip("=")


def _invitation(text: str) -> Invitation:
    """Raises ValueError for a text that is no invitation; the message is for people."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        invitation = decode_invitation(data)
        for address in invitation.addresses:
            parse_link(address)
    except (binascii.Error, RemoteProtocolError, ValueError) as error:
        raise ValueError(
            f"the invitation behind the run is damaged ({error}): copy the whole text that "
            "`gossamer invite` printed"
        ) from None
    return invitation


def _all(links: list[Link], field: str) -> list[str]:
    return sorted({value for link in links if (value := getattr(link, field)) is not None})
