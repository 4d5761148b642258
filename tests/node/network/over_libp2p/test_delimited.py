"""Messages with a length in front, as libp2p's own protocols write them."""

from __future__ import annotations

import pytest
import trio
from libp2p.utils import encode_varint_prefixed

from gossamer.node.network.over_libp2p.delimited import read_delimited
from gossamer.protocol.errors import OversizedError

BYTES_MAX = 300


def read(data: bytes) -> tuple[bytes, bytes]:
    """Returns the message at the beginning of some bytes, and the rest of these."""
    left = bytearray(data)

    async def receive(num_bytes: int) -> bytes:
        taken = bytes(left[:num_bytes])
        del left[:num_bytes]
        return taken

    async def main() -> bytes:
        return await read_delimited(receive, BYTES_MAX, "a message")

    return trio.run(main), bytes(left)


@pytest.mark.parametrize("size", [0, 1, 127, 128, BYTES_MAX])
def test_a_message_is_read_and_nothing_behind_it(size: int) -> None:
    assert read(encode_varint_prefixed(b"x" * size) + b"next") == (b"x" * size, b"next")


@pytest.mark.parametrize(
    "data", [encode_varint_prefixed(b"x" * (BYTES_MAX + 1)), b"\xff" * 64, b"\x80" * 64]
)
def test_a_length_beyond_the_bound_or_without_an_end_is_refused(data: bytes) -> None:
    with pytest.raises(OversizedError, match="a message of"):
        read(data)
