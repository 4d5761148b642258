"""Attacks of a rogue on streams: bytes that are no frames, questions that make no sense,
silence."""

from __future__ import annotations

import struct
from contextlib import suppress

import trio

from gossamer.node.network.transport import Stream, TransportError
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_request
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, ChainRequest
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL, Hello
from gossamer.protocol.wire.run_messages import RUN_PROTOCOL
from gossamer.protocol.wire.statements import Signed
from tests.rogue.rogue import Rogue, encode, frame

PROTOCOLS = (STATEMENTS_PROTOCOL, BLOCKS_PROTOCOL, CHAIN_PROTOCOL, RUN_PROTOCOL, RING_PROTOCOL)

TIMES = 4
"""Often enough for a ban by anything that weighs as much as it should."""

HOLD_SECONDS = 3.0


async def oversized_frames(rogue: Rogue, victims: list[PeerId]) -> None:
    """Prefixes that promise up to 4 GiB."""
    for victim in victims:
        for protocol in PROTOCOLS * TIMES:
            for lengths in ((2**32 - 1, 0), (0, 2**32 - 1), (2**31, 2**31), (512 * 1024 + 1, 0)):
                await rogue.say(struct.pack(">II", *lengths), victim=victim, protocol=protocol)


async def nested_frames(rogue: Rogue, victims: list[PeerId]) -> None:
    """MessagePack that goes a hundred thousand arrays deep, or as deep as the limit lets it."""
    for victim in victims:
        for protocol in PROTOCOLS * TIMES:
            for nested in (
                b"\x91" * 100_000,
                b"\x91" * 60,
                b"\x81\xa0" * 30,
                b"\xdd\xff\xff\xff\xff",
            ):
                await rogue.say(frame(nested), victim=victim, protocol=protocol)


async def random_frames(rogue: Rogue, victims: list[PeerId]) -> None:
    for victim in victims:
        for protocol in PROTOCOLS * TIMES:
            noise = rogue.noise(rogue.random.randrange(1, 200))
            await rogue.say(noise, victim=victim, protocol=protocol, reads=False)
            await rogue.say(frame(noise[:60], noise), victim=victim, protocol=protocol)


async def truncated_frames(rogue: Rogue, victims: list[PeerId]) -> None:
    """The beginning of something good, and then the end of the stream: no offence by itself."""
    for victim in victims:
        for protocol, question in _questions().items():
            for stop in range(0, len(question), max(1, len(question) // 7)):
                await rogue.say(question[:stop], victim=victim, protocol=protocol, reads=False)


async def wrong_questions(rogue: Rogue, victims: list[PeerId]) -> None:
    """Well-formed, and of values that no node asks for."""
    wrong: dict[str, list[bytes]] = {
        STATEMENTS_PROTOCOL: [frame(b"", bytes(33)), frame(b"", bytes(1))],
        BLOCKS_PROTOCOL: [frame(encode([bytes(5)])), frame(encode([1])), frame(encode([b"", 2]))],
        CHAIN_PROTOCOL: [
            frame(encode(ChainRequest(bytes(31), 0))),
            frame(encode([bytes(32), float("nan")])),
            frame(encode([bytes(32), 2**64 - 1])),
        ],
        RING_PROTOCOL: [
            frame(encode(["token", 0, b"\x01", None])),
            frame(encode(["hello", ["x", b"", b""]])),
            frame(encode(["hello", [rogue.me, rogue.noise(50), bytes(64)]])),
        ],
    }
    for victim in victims:
        for _ in range(TIMES):
            for protocol, questions in wrong.items():
                for question in questions:
                    await rogue.say(question, victim=victim, protocol=protocol)


async def streams_never_written(rogue: Rogue, victims: list[PeerId]) -> None:
    """It opens as many streams as it gets, and says not a word on them."""
    streams: list[Stream] = []
    for victim in victims:
        for _ in range(20):
            for protocol in PROTOCOLS:
                with suppress(TransportError):
                    streams.append(await rogue.transport.open_stream(victim, protocol))
    await trio.sleep(HOLD_SECONDS)
    for stream in streams:
        await stream.reset()


async def streams_never_read(rogue: Rogue, victims: list[PeerId]) -> None:
    """Questions with long answers, as many as fit, and does not read the answers."""
    assert rogue.manifest is not None
    block = encode_request(Digest(rogue.manifest.data.index_digest))
    streams: list[Stream] = []
    for victim in victims:
        for protocol, question in {
            **_questions(),
            BLOCKS_PROTOCOL: frame(block) * 500,
            CHAIN_PROTOCOL: frame(encode(ChainRequest((await rogue.head(victim)).head, 0))) * 50,
        }.items():
            for _ in range(4):
                with suppress(TransportError):
                    stream = await rogue.transport.open_stream(victim, protocol)
                    streams.append(stream)
                    with trio.move_on_after(1.0):
                        await stream.send(question)
    await trio.sleep(HOLD_SECONDS)
    for stream in streams:
        await stream.reset()


def _questions() -> dict[str, bytes]:
    """A good question on each protocol."""
    no_peer = Signed("12D3KooW", b"", bytes(64))
    return {
        STATEMENTS_PROTOCOL: frame(b"", bytes(32)),
        BLOCKS_PROTOCOL: frame(encode_request(Digest(bytes(32)))),
        CHAIN_PROTOCOL: frame(encode(ChainRequest(bytes(32), 0))),
        RUN_PROTOCOL: frame(),
        RING_PROTOCOL: frame(encode(Hello(no_peer))),
    }
