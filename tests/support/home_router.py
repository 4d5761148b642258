"""A home's router that speaks UPnP, as a web server of the test (see `home_network`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from tests.support.home_network import Asked, page

DEVICE = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
IP_CONNECTION = "urn:schemas-upnp-org:service:WANIPConnection:1"
COMMON = "urn:schemas-upnp-org:service:WANCommonInterfaceConfig:1"

DESCRIPTION = "/rootDesc.xml"
CONTROL = "/ctl/IPConn"

OUTSIDE = "8.8.8.8"


def service(kind: str, control: str) -> str:
    return (
        f"<service><serviceType>{kind}</serviceType><serviceId>urn:upnp-org:serviceId:1</serviceId>"
        f"<controlURL>{escape(control)}</controlURL><eventSubURL>/evt</eventSubURL>"
        "<SCPDURL>/scpd.xml</SCPDURL></service>"
    )


def description(*services: str, base: str = "") -> str:
    """The description of a router with services, in devices within devices as the standard has
    them (UPnP-gw-InternetGatewayDevice-v1, section 2)."""
    url_base = f"<URLBase>{escape(base)}</URLBase>" if base else ""
    return (
        '<?xml version="1.0"?>\n<root xmlns="urn:schemas-upnp-org:device-1-0">'
        f"<specVersion><major>1</major><minor>0</minor></specVersion>{url_base}"
        f"<device><deviceType>{DEVICE}</deviceType><friendlyName>Router</friendlyName><deviceList>"
        "<device><deviceType>urn:schemas-upnp-org:device:WANDevice:1</deviceType><serviceList>"
        f"{service(COMMON, '/ctl/CmnIfCfg')}</serviceList><deviceList><device>"
        "<deviceType>urn:schemas-upnp-org:device:WANConnectionDevice:1</deviceType>"
        f"<serviceList>{''.join(services)}</serviceList>"
        "</device></deviceList></device></deviceList></device></root>"
    )


@dataclass
class HomeRouter:
    """Forwards ports for those who ask; the answer to each request of a `WebServer`."""

    outer: str = OUTSIDE
    taken: set[int] = field(default_factory=set)
    """Outer ports that another machine has."""
    is_permanent: bool = False
    """Whether it knows mappings without an end alone."""
    services: tuple[str, ...] = (service(IP_CONNECTION, CONTROL),)
    base: str = ""
    mapped: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    """Inner address, inner port and lease of each outer port."""

    def __call__(self, asked: Asked) -> Iterator[bytes]:
        if asked.method == "GET":
            is_there = asked.target == DESCRIPTION
            return page(description(*self.services, base=self.base)) if is_there else self._absent()
        action = asked.headers.get("soapaction", "").strip('"').rpartition("#")[2]
        match action:
            case "GetExternalIPAddress":
                return self._said(action, NewExternalIPAddress=self.outer)
            case "GetStatusInfo":
                return self._said(action, NewConnectionStatus="Connected", NewUptime="60")
            case "AddPortMapping":
                return self._add(asked.body)
            case "DeletePortMapping":
                return self._delete(asked.body)
        return self._fault(401, "Invalid Action")

    def _add(self, body: str) -> Iterator[bytes]:
        outer, lease = int(value(body, "NewExternalPort")), int(value(body, "NewLeaseDuration"))
        if self.is_permanent and lease:
            return self._fault(725, "OnlyPermanentLeasesSupported")
        if outer in self.taken:
            return self._fault(718, "ConflictInMappingEntry")
        assert value(body, "NewProtocol") == "TCP"
        assert value(body, "NewEnabled") == "1"
        inner = value(body, "NewInternalClient"), int(value(body, "NewInternalPort"))
        self.mapped[outer] = (*inner, lease)
        return self._said("AddPortMapping")

    def _delete(self, body: str) -> Iterator[bytes]:
        if self.mapped.pop(int(value(body, "NewExternalPort")), None) is None:
            return self._fault(714, "NoSuchEntryInArray")
        return self._said("DeletePortMapping")

    @staticmethod
    def _said(action: str, **values: str) -> Iterator[bytes]:
        inside = "".join(f"<{name}>{escape(each)}</{name}>" for name, each in values.items())
        said = f'<u:{action}Response xmlns:u="{IP_CONNECTION}">{inside}</u:{action}Response>'
        return page(envelope(said))

    @staticmethod
    def _fault(code: int, text: str) -> Iterator[bytes]:
        error = f"<errorCode>{code}</errorCode><errorDescription>{text}</errorDescription>"
        said = (
            "<s:Fault><faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring><detail>"
            f'<UPnPError xmlns="urn:schemas-upnp-org:control-1-0">{error}</UPnPError></detail>'
            "</s:Fault>"
        )
        return page(envelope(said), "500 Internal Server Error")

    @staticmethod
    def _absent() -> Iterator[bytes]:
        return page("", "404 Not Found")


def envelope(body: str) -> str:
    return (
        '<?xml version="1.0"?>\n<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" '
        's:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/">'
        f"<s:Body>{body}</s:Body></s:Envelope>\n"
    )


def value(body: str, name: str) -> str:
    """What an element of a request holds."""
    found = re.search(f"<{name}>([^<]*)</{name}>", body)
    assert found is not None, name
    return found[1]
