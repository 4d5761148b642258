"""The words of a peer on a stream: frames in their order, some of them damaged."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import DIGEST_BYTES
from gossamer.protocol.wire.framing import encode_prefix
from tests.support.mutations import anything, damaged


def frame(message: bytes, payload: bytes = b"") -> bytes:
    return encode_prefix(len(message), len(payload)) + message + payload


@st.composite
def conversations(draw: st.DrawFn, frames: list[tuple[bytes, bytes]]) -> bytes:
    """The frames in their order, some of them damaged, and perhaps damaged once more as a whole. A
    message that is no digest is msgpack."""
    said = b""
    for message, payload in frames:
        if message and draw(st.booleans()):
            is_packed = len(message) != DIGEST_BYTES
            message = draw(anything([message]) if is_packed else damaged([message]))[:4000]
        if payload and draw(st.booleans()):
            payload = draw(damaged([payload]))[:4000]
        said += frame(message, payload)
    return draw(damaged([said])) if draw(st.booleans()) else said


def check_decoder(decoder: Callable[[bytes], object], example: bytes, data: st.DataObject) -> None:
    """Checks that a decoder takes the example, and takes or refuses anything else with a reason."""
    decoder(example)
    try:
        decoder(data.draw(anything([example])))
    except RemoteProtocolError as error:
        assert error.reason  # noqa: PT017  (what is caught is the point of the test)
