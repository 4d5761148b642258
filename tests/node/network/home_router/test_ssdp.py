"""Answers to the search for a router. That they come from it is tested in a home."""

from __future__ import annotations

import pytest

from gossamer.node.network.home_router.default_gateway import Gateway
from gossamer.node.network.home_router.gateway_http import Place
from gossamer.node.network.home_router.ssdp import location_of, place_of

DEVICE = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
HOME = Gateway("192.168.1.1", "192.168.1.10")
URL = "http://192.168.1.1:5000/rootDesc.xml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"HTTP/1.1 200 OK\r\nST: {DEVICE}\r\nLOCATION: {URL}\r\n\r\n", URL),
        (f"HTTP/1.0 200\nst:{DEVICE}\nLocation:{URL}", URL),
        (f"HTTP/1.1 200 OK\r\nLocation: {URL}\r\nLocation: http://x/\r\nST: {DEVICE}", URL),
        (f"HTTP/1.1 200 OK\r\nST: upnp:rootdevice\r\nLOCATION: {URL}\r\n\r\n", None),
        (f"HTTP/1.1 200 OK\r\nLOCATION: {URL}\r\n\r\n", None),
        (f"HTTP/1.1 200 OK\r\nST: {DEVICE}\r\n\r\n", None),
        (f"NOTIFY * HTTP/1.1\r\nST: {DEVICE}\r\nLOCATION: {URL}\r\n\r\n", None),
        (f"HTTP/1.1 404 No\r\nST: {DEVICE}\r\nLOCATION: {URL}\r\n\r\n", None),
        ("HTTP/1.1 200 OK\r\n" + "A: b\r\n" * 300 + f"ST: {DEVICE}\r\nLOCATION: {URL}", None),
        ("", None),
        ("\xff\0\r\n" * 100, None),
    ],
)
def test_an_answer_tells_where_the_description_is(text: str, expected: str | None) -> None:
    assert location_of(text.encode("latin-1"), (DEVICE,)) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (URL, Place(HOME.host, 5000, "/rootDesc.xml")),
        ("http://192.168.1.1", Place(HOME.host, 80, "/")),
        ("HTTP://192.168.1.1:80/a?b#c", Place(HOME.host, 80, "/a?b")),
        ("http://127.0.0.1:5000/", None),
        ("http://192.168.1.10:5000/", None),
        ("http://192.168.1.2/", None),
        ("http://239.255.255.250/", None),
        ("http://0300.0250.1.1/", None),
        ("http://3232235777/", None),
        ("http://192.168.1.1%2f@127.0.0.1/", None),
        ("http://192.168.1.1@127.0.0.1/", None),
        ("http://x@192.168.1.1/", None),
        ("http://[::ffff:192.168.1.1]/", None),
        ("http://192.168.1.1:5000/a b", None),
        ("http://192.168.1.1:5000/ä", None),
        ("http://192.168.1.1:x/", None),
        ("/rootDesc.xml", None),
        ("", None),
    ],
)
def test_a_description_is_at_the_gateway(url: str, expected: Place | None) -> None:
    assert place_of(url, "", HOME) == expected
