import pytest

from gossamer.protocol import limits
from gossamer.protocol.errors import OversizedError
from gossamer.protocol.wire.framing import PREFIX_BYTES, decode_prefix, encode_prefix


def test_prefix_is_two_big_endian_lengths() -> None:
    assert encode_prefix(5, 0x01020304 % limits.BLOCK_BYTES_MAX) == bytes.fromhex(
        "0000000500020304"
    )
    assert decode_prefix(bytes.fromhex("0000000500020304")) == (5, 0x020304)


def test_largest_frame_passes_both_ways() -> None:
    largest = (limits.FRAME_MESSAGE_BYTES_MAX, limits.BLOCK_BYTES_MAX)
    prefix = encode_prefix(*largest)
    assert len(prefix) == PREFIX_BYTES
    assert decode_prefix(prefix) == largest


@pytest.mark.parametrize(
    ("message_bytes", "payload_bytes"),
    [
        (limits.FRAME_MESSAGE_BYTES_MAX + 1, 0),
        (0, limits.BLOCK_BYTES_MAX + 1),
        (2**32 - 1, 2**32 - 1),
    ],
)
def test_a_frame_over_the_limits_is_refused(message_bytes: int, payload_bytes: int) -> None:
    with pytest.raises(ValueError, match="over the limits"):
        encode_prefix(message_bytes, payload_bytes)
    raw = message_bytes.to_bytes(4, "big") + payload_bytes.to_bytes(4, "big")
    with pytest.raises(OversizedError):
        decode_prefix(raw)


def test_a_protocol_can_ask_for_less() -> None:
    prefix = encode_prefix(64, 100)
    assert decode_prefix(prefix, message_bytes_max=64, payload_bytes_max=100) == (64, 100)
    with pytest.raises(OversizedError, match="message of 64"):
        decode_prefix(prefix, message_bytes_max=63)
    with pytest.raises(OversizedError, match="payload of 100"):
        decode_prefix(prefix, payload_bytes_max=99)
