"""Descriptions and answers of a router: what is read, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gossamer.node.network.home_router.default_gateway import Gateway
from gossamer.node.network.home_router.gateway_http import Place
from gossamer.node.network.home_router.igd import (
    CONNECTION_KINDS,
    DEPTH_MAX,
    SERVICES_MAX,
    Connection,
    RefusedError,
    RouterError,
    XmlError,
    described,
    parsed,
)
from tests.support.home_network import Asked, WebServer, page
from tests.support.home_router import CONTROL, description, envelope, service

V2, V1, PPP = CONNECTION_KINDS
HOME = Gateway("192.168.1.1", "192.168.1.10")
PLACE = Place(HOME.host, 5000, "/desc/root.xml")


def _targets(text: str | bytes) -> list[tuple[str, int, str]]:
    body = text.encode() if isinstance(text, str) else text
    found = described(body, PLACE, HOME, time.monotonic())
    assert all(each.place.host == HOME.host for each in found)
    assert all(each.own_host == HOME.own_host for each in found)
    return [(each.kind, each.place.port, each.place.target) for each in found]


@pytest.mark.parametrize(
    ("control", "base", "port", "target"),
    [
        ("/ctl/IPConn", "", 5000, "/ctl/IPConn"),
        ("ctl/IPConn", "", 5000, "/desc/ctl/IPConn"),
        ("/ctl?service=1&x=2", "", 5000, "/ctl?service=1&x=2"),
        ("http://192.168.1.1/ctl", "", 80, "/ctl"),
        ("http://192.168.1.1:49000/ctl", "", 49000, "/ctl"),
        ("/ctl", "http://192.168.1.1:2869/", 2869, "/ctl"),
        ("ctl", "http://192.168.1.1:2869", 2869, "/ctl"),
        ("  /ctl\n", "", 5000, "/ctl"),
    ],
)
def test_a_service_takes_orders_where_its_description_says(
    control: str, base: str, port: int, target: str
) -> None:
    assert _targets(description(service(V1, control), base=base)) == [(V1, port, target)]


@pytest.mark.parametrize(
    ("control", "base"),
    [
        ("http://127.0.0.1:8080/", ""),
        ("http://192.168.1.2:5000/ctl", ""),
        ("http://192.168.1.1.evil.example/ctl", ""),
        ("http://192.168.1.1@10.0.0.7/ctl", ""),
        ("http://router.home/ctl", ""),
        ("https://192.168.1.1/ctl", ""),
        ("//127.0.0.1/ctl", ""),
        ("file:///etc/passwd", ""),
        ("http://192.168.1.1:0/ctl", ""),
        ("http://192.168.1.1:65536/ctl", ""),
        ("http://[::1/ctl", ""),
        ("/ctl HTTP/1.1&#13;&#10;X: y", ""),
        ("/" + "x" * 2000, ""),
        ("", ""),
        ("/ctl", "http://127.0.0.1:8080/"),
        ("/ctl", "ftp://192.168.1.1/"),
    ],
)
def test_a_service_elsewhere_is_left_out(control: str, base: str) -> None:
    honest = service(PPP, f"http://{HOME.host}:5000/ppp")
    assert _targets(description(service(V1, control), honest, base=base)) == [(PPP, 5000, "/ppp")]


def test_the_newest_kind_comes_first_and_others_not_at_all() -> None:
    strange = "urn:schemas-upnp-org:service:Layer3Forwarding:1"
    kinds = [PPP, strange, V1, V2]
    text = description(*[service(kind, f"/{number}") for number, kind in enumerate(kinds)])
    assert _targets(text) == [(V2, 5000, "/3"), (V1, 5000, "/2"), (PPP, 5000, "/0")]
    many = description(*[service(V1, f"/{number}") for number in range(1000)])
    assert _targets(many) == [(V1, 5000, f"/{number}") for number in range(SERVICES_MAX)]


def test_small_faults_of_a_description_do_no_harm() -> None:
    text = description(service(V1, "/ctl")).encode()
    told = [(V1, 5000, "/ctl")]
    assert _targets(b"\xef\xbb\xbf\r\n" + text + b"\0\r\n") == told
    assert _targets(text.replace(b"Router", b"Caf\xe9 \xff")) == told
    prefixed = text.replace(b"<service>", b"<d:service>").replace(b"</service>", b"</d:service>")
    assert _targets(prefixed) == told


LAUGHS = '<!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><r>&b;</r>'


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        LAUGHS.encode("utf-16"),
        '<!DOCTYPE r SYSTEM "http://127.0.0.1:8080/r.dtd"><r/>',
        "<r>&a;</r>",
        "<r>",
        "",
        "plain",
        "\0",
        "<r/><r/>",
        "<a>" * (DEPTH_MAX + 1) + "</a>" * (DEPTH_MAX + 1),
    ],
)
def test_what_is_no_plain_xml_is_refused(text: str | bytes) -> None:
    with pytest.raises(XmlError):
        parsed(text.encode() if isinstance(text, str) else text)


def test_elements_may_be_so_deep() -> None:
    assert len(list(parsed(b"<a>" * DEPTH_MAX + b"</a>" * DEPTH_MAX).iter())) == DEPTH_MAX


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        ("200 OK", "<r>", "makes no sense"),
        ("200 OK", "", "makes no sense"),
        ("302 Found", envelope(""), "status 302"),
        ("500 Internal Server Error", envelope("<s:Fault/>"), "status 500"),
        ("200 OK", envelope("<errorCode>718</errorCode>"), r"the router refuses \(718\)"),
        ("500 Error", envelope(f"<errorCode>{'9' * 9000}</errorCode>"), r"refuses \(0\)"),
        ("500 Error", envelope("<errorCode>²</errorCode>"), r"refuses \(0\)"),
    ],
)
def test_an_order_that_fails_is_told(status: str, body: str, problem: str) -> None:
    def answer(_asked: Asked) -> Iterator[bytes]:
        return page(body, status)

    with WebServer(answer).running() as server:
        place = Place(server.host, server.port, CONTROL)
        router = Connection(V1, place, HOME.own_host, time.monotonic() + 10.0)
        with pytest.raises(RouterError, match=problem) as raised:
            router.add(4610, 4610, "text", 0)
    assert isinstance(raised.value, RefusedError) == ("refuses" in problem)


def test_an_order_is_what_the_standard_says() -> None:
    done = envelope("<u:AddPortMappingResponse/>")
    with WebServer(lambda _asked: page(done)).running() as server:
        place = Place(server.host, server.port, CONTROL)
        Connection(V2, place, HOME.own_host, time.monotonic() + 10.0).add(1, 2, "a<b&c", 3)
    [asked] = server.asked
    assert (asked.method, asked.target) == ("POST", CONTROL)
    assert asked.headers["soapaction"] == f'"{V2}#AddPortMapping"'
    assert asked.headers["host"] == f"{server.host}:{server.port}"
    assert [(each.tag, each.text) for each in parsed(asked.body.encode())[0][0]] == [
        ("NewRemoteHost", None),
        ("NewExternalPort", "1"),
        ("NewProtocol", "TCP"),
        ("NewInternalPort", "2"),
        ("NewInternalClient", HOME.own_host),
        ("NewEnabled", "1"),
        ("NewPortMappingDescription", "a<b&c"),
        ("NewLeaseDuration", "3"),
    ]
