"""A router's service for forwarded ports (UPnP Internet Gateway Device, versions 1 and 2).

A description of the router names its services and where each takes orders. Orders are SOAP. All of
it is XML from a machine of the home, and read as such: it has a bound of its size and of its depth,
and no document type, so no entities. An order goes to the default gateway or nowhere (`place_of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from xml.etree import ElementTree
from xml.parsers import expat

from gossamer.node.network.home_router.default_gateway import Gateway
from gossamer.node.network.home_router.gateway_http import ExchangeError, Place, get, post
from gossamer.node.network.home_router.ssdp import Found, place_of, search

_SCHEMA = "urn:schemas-upnp-org"

CONNECTION_KINDS = (
    f"{_SCHEMA}:service:WANIPConnection:2",
    f"{_SCHEMA}:service:WANIPConnection:1",
    f"{_SCHEMA}:service:WANPPPConnection:1",
)
"""Services that forward ports. They take the same orders."""

SEARCH_TARGETS = (
    (
        f"{_SCHEMA}:device:InternetGatewayDevice:2",
        f"{_SCHEMA}:device:InternetGatewayDevice:1",
        *CONNECTION_KINDS,
    ),
    ("upnp:rootdevice",),
)
"""What is searched for, one after the other. Some routers answer only to the second."""

SERVICES_MAX = 4
"""Services of one description that are asked. A router with several lines to its provider has one
for each, and uses one."""

DEPTH_MAX = 32
"""Of elements in elements: a router's service is 11 deep."""

_CODE_DIGITS_MAX = 3
"""Of the number of an error of UPnP."""

_OK = 200


class RouterError(Exception):
    """The router does not do it; the text says why, for people."""


class RefusedError(RouterError):
    """The router answers with an error of UPnP."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text or 'the router refuses'} ({code})")
        self.code = code


class XmlError(Exception):
    """A text is no XML of a router."""


@dataclass(frozen=True)
class Connection:
    """A router's service for one of its lines to the outside. All calls block for
    `gateway_http.EXCHANGE_SECONDS_MAX` at most, and raise RouterError."""

    kind: str
    """One of `CONNECTION_KINDS`."""
    place: Place
    own_host: str
    """The address of this machine that ports are forwarded to."""
    deadline: float
    """Of all calls together, a time of `time.monotonic`."""

    def outer_host(self) -> str:
        """What the router says to be its address outside: any text."""
        return self._ordered("GetExternalIPAddress").get("NewExternalIPAddress", "")

    def add(self, outer_port: int, port: int, text: str, lease_seconds: int) -> None:
        """Forwards an outer TCP port to one of this machine. The order of the values is the
        standard's, which some routers insist on.

        Args:
            text: for people who look at the router's list.
            lease_seconds: 0 stands for a mapping without an end.
        """
        self._ordered(
            "AddPortMapping",
            NewRemoteHost="",
            NewExternalPort=str(outer_port),
            NewProtocol="TCP",
            NewInternalPort=str(port),
            NewInternalClient=self.own_host,
            NewEnabled="1",
            NewPortMappingDescription=text,
            NewLeaseDuration=str(lease_seconds),
        )

    def delete(self, outer_port: int) -> None:
        """Ends the forwarding of an outer TCP port."""
        self._ordered(
            "DeletePortMapping",
            NewRemoteHost="",
            NewExternalPort=str(outer_port),
            NewProtocol="TCP",
        )

    def _ordered(self, action: str, **values: str) -> dict[str, str]:
        """Gives an order. Returns the values of the answer."""
        headers = [
            ("Content-Type", 'text/xml; charset="utf-8"'),
            ("SOAPAction", f'"{self.kind}#{action}"'),
        ]
        try:
            answer = post(self.place, headers, _envelope(self.kind, action, values), self.deadline)
            told = {_name(each): (each.text or "").strip() for each in parsed(answer.body).iter()}
        except ExchangeError as error:
            raise RouterError(str(error)) from error
        except XmlError:
            raise RouterError("its answer makes no sense") from None
        if "errorCode" in told:
            code = told["errorCode"]
            is_number = code.isascii() and code.isdecimal() and len(code) <= _CODE_DIGITS_MAX
            raise RefusedError(int(code) if is_number else 0, told.get("errorDescription", ""))
        if answer.status != _OK:
            raise RouterError(f"it answers with status {answer.status}")
        return told


def connections(gateway: Gateway, deadline: float) -> Iterator[Connection]:
    """Searches for the gateway's services for forwarded ports, those of one description first.

    Args:
        deadline: time of `time.monotonic` for the search and for all orders to the services.

    Raises:
        RouterError: the gateway does not answer the search.
        SearchError: the search cannot be sent.
    """
    found = Found()
    for targets in SEARCH_TARGETS:
        found = search(gateway, targets, deadline)
        if found.places:
            break
    if not found.places:
        text = "no router answers UPnP: it has none, or it is switched off"
        if found.stranger:
            text += f" ({found.stranger} answers, but {gateway.host} is this machine's router)"
        raise RouterError(text)
    for place in found.places:
        try:
            answer = get(place, deadline)
            if answer.status == _OK:
                yield from described(answer.body, place, gateway, deadline)
        except (ExchangeError, XmlError):
            continue


def described(body: bytes, place: Place, gateway: Gateway, deadline: float) -> list[Connection]:
    """The services in a description, the newest kind first. Those that take their orders at
    another machine are left out. Raises XmlError.

    Args:
        place: where the description is.
    """
    base = f"http://{place.host}:{place.port}{place.target}"
    root = parsed(body)
    told_base = [(each.text or "").strip() for each in root.iter() if _name(each) == "URLBase"]
    base = next(filter(None, told_base), base)
    found = []
    for element in root.iter():
        if _name(element) == "service":
            values = {_name(each): (each.text or "").strip() for each in element}
            kind, control = values.get("serviceType", ""), values.get("controlURL", "")
            where = place_of(control, base, gateway) if control else None
            if kind in CONNECTION_KINDS and where is not None:
                found.append(Connection(kind, where, gateway.own_host, deadline))
    return sorted(found, key=lambda each: CONNECTION_KINDS.index(each.kind))[:SERVICES_MAX]


def parsed(body: bytes) -> ElementTree.Element:
    """The tree of an XML document without a document type.

    Its bytes are read as Latin-1 whatever they are, as all names and values that are used are
    ASCII: a router that writes its own name in a wrong encoding works all the same.

    Raises:
        XmlError: it is none, or its elements are deeper than `DEPTH_MAX`.
    """
    builder, depth = ElementTree.TreeBuilder(), 0
    parser = expat.ParserCreate("iso-8859-1")

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEPTH_MAX:
            raise XmlError(f"more than {DEPTH_MAX} elements in each other")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def refuse(*_doctype: str | bool | None) -> None:
        raise XmlError("a document type")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, refuse
    try:
        parser.Parse(body.removeprefix(b"\xef\xbb\xbf").strip(b"\0\t\r\n "), True)
    except expat.ExpatError as error:
        raise XmlError(str(error)) from error
    return builder.close()


def _name(element: ElementTree.Element) -> str:
    """An element's name without the prefix of its namespace."""
    return element.tag.rpartition(":")[2]


def _envelope(kind: str, action: str, values: dict[str, str]) -> bytes:
    inside = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in values.items())
    return (
        '<?xml version="1.0"?>\r\n'
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
        's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>'
        f'<u:{action} xmlns:u="{kind}">{inside}</u:{action}>'
        "</s:Body></s:Envelope>\r\n"
    ).encode("ascii")
