import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import (
    PeerId,
    digest_of,
    peer_id_from_public_key,
    public_key_of,
    short,
)

# The Ed25519 key of the libp2p peer-ids specification's test vectors.
SPEC_KEY = bytes.fromhex("1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
SPEC_PEER_ID = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"


def test_digest_is_blake3_of_the_concatenation() -> None:
    # BLAKE3's published value for the empty input.
    empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert digest_of().hex() == empty
    assert digest_of(b"ab", bytearray(b"c"), memoryview(b"d")) == digest_of(b"abcd")


@given(st.binary(min_size=32, max_size=32))
def test_peer_id_holds_its_key(public_key: bytes) -> None:
    peer_id = peer_id_from_public_key(public_key)
    assert peer_id.startswith("12D3KooW")
    assert public_key_of(peer_id) == public_key


@pytest.mark.parametrize("public_key", [b"", bytes(31), bytes(33)])
def test_a_key_has_32_bytes(public_key: bytes) -> None:
    with pytest.raises(MalformedError, match="32 bytes"):
        peer_id_from_public_key(public_key)


@given(st.text(max_size=80))
def test_text_is_a_peer_id_or_malformed(text: str) -> None:
    try:
        public_key = public_key_of(PeerId(text))
    except MalformedError:
        return
    assert peer_id_from_public_key(public_key) == text


@pytest.mark.parametrize(
    ("public_key", "peer_id"),
    [
        (SPEC_KEY, SPEC_PEER_ID),
        (  # the key of 32 zero bytes, as go-libp2p and py-libp2p write it
            bytes.fromhex("3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"),
            "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN",
        ),
    ],
)
def test_peer_id_is_libp2ps(public_key: bytes, peer_id: str) -> None:
    assert peer_id_from_public_key(public_key) == peer_id
    assert public_key_of(PeerId(peer_id)) == public_key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        SPEC_PEER_ID[:-1],
        SPEC_PEER_ID + "1",
        "1" + SPEC_PEER_ID,
        SPEC_PEER_ID.replace("B", "0"),  # not a base58 character
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",  # hash of an RSA key
        "1" * 10_000,
        "é" * 52,
    ],
)
def test_other_text_is_malformed(text: str) -> None:
    with pytest.raises(MalformedError, match="peer id"):
        public_key_of(PeerId(text))


def test_short_tells_identifiers_apart() -> None:
    assert short(PeerId(SPEC_PEER_ID)) == "o7R3pq"
    assert short(bytes.fromhex("00112233445566")) == "0011223344"
