import pytest
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import StreamClosed
from gossamer.protocol import limits
from gossamer.protocol.errors import OversizedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.framing import PREFIX_BYTES


class Loop:
    """A stream that hears itself."""

    peer_id = PeerId("echo")
    protocol = "/test/1"

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        for part in parts:
            self.data += part

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        if len(self.data) < num_bytes:
            raise StreamClosed("the stream ended")
        piece = self.data[:num_bytes]
        del self.data[:num_bytes]
        return piece

    async def close(self) -> None: ...

    async def reset(self) -> None: ...


def test_frames_follow_each_other() -> None:
    async def main() -> None:
        stream = Loop()
        await send_frame(stream, b"first")
        await send_frame(stream, b"", b"pay", bytearray(b"lo"), memoryview(b"ad"))
        assert bytes(stream.data[:13]) == b"\0\0\0\x05\0\0\0\0first"
        assert tuple(map(bytes, await receive_frame(stream))) == (b"first", b"")
        assert tuple(map(bytes, await receive_frame(stream))) == (b"", b"payload")
        with pytest.raises(StreamClosed):
            await receive_frame(stream)

    trio.run(main)


def test_lengths_are_bytes_also_for_buffers_of_wider_items() -> None:
    async def main() -> None:
        stream = Loop()
        await send_frame(stream, b"m", memoryview(bytes(16)).cast("I"))
        assert bytes(stream.data[:8]) == bytes([0, 0, 0, 1, 0, 0, 0, 16])

    trio.run(main)


@pytest.mark.parametrize(
    ("message_bytes", "payload_bytes"),
    [(limits.FRAME_MESSAGE_BYTES_MAX + 1, 0), (0, limits.BLOCK_BYTES_MAX + 1)],
)
def test_an_oversized_frame_is_refused_before_it_is_read(
    message_bytes: int, payload_bytes: int
) -> None:
    async def main() -> None:
        prefix = message_bytes.to_bytes(4, "big") + payload_bytes.to_bytes(4, "big")
        stream = Loop(prefix + b"more")
        with pytest.raises(OversizedError):
            await receive_frame(stream)
        assert stream.data == b"more"

    trio.run(main)


def test_a_protocol_can_ask_for_smaller_frames() -> None:
    async def main() -> None:
        stream = Loop()
        await send_frame(stream, b"message", b"payload")
        frame = await receive_frame(stream, message_bytes_max=7, payload_bytes_max=7)
        assert tuple(map(bytes, frame)) == (b"message", b"payload")
        await send_frame(stream, b"message", b"payload")
        with pytest.raises(OversizedError):
            await receive_frame(stream, message_bytes_max=7, payload_bytes_max=0)

    trio.run(main)


@pytest.mark.parametrize("num_bytes", range(PREFIX_BYTES + 4))
def test_a_frame_that_is_cut_is_a_closed_stream(num_bytes: int) -> None:
    async def main() -> None:
        whole = Loop()
        await send_frame(whole, b"ab", b"cd")
        with pytest.raises(StreamClosed):
            await receive_frame(Loop(bytes(whole.data[:num_bytes])))

    trio.run(main)
