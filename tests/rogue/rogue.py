"""A peer that speaks libp2p and the handshake properly, and then says what it should not.

It runs over any `Transport`. It asks for what it knows like any peer: the manifest from the run
protocol, statements from a statement store. `catalogue` has its attacks; each begins with a new
`Rogue`, that is with an identity that is not banned yet.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Stream, Transport, TransportError
from gossamer.node.peers.statements.gossip import topics_of
from gossamer.node.peers.statements.store_comparison import (
    STATEMENTS_PROTOCOL,
    decode_statement_store,
)
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Manifest, decode_manifest
from gossamer.protocol.policy.auditing.sum_audits import has_roots, has_sum_audits
from gossamer.protocol.policy.conduct.gossip_quota import ASKER_RATE
from gossamer.protocol.policy.conduct.throttle import Throttle
from gossamer.protocol.wire.average_signatures import FinishedAverage, PassedSum
from gossamer.protocol.wire.envelopes import open_signed, ring_id_of, seal, signing_bytes
from gossamer.protocol.wire.framing import PREFIX_BYTES, encode_prefix
from gossamer.protocol.wire.run_messages import RUN_PROTOCOL, decode_signed_manifest
from gossamer.protocol.wire.statements import (
    Announce,
    Capacity,
    Ready,
    Roster,
    Signed,
    Statement,
)
from tests.support.node_world import World

ASK_SECONDS = 5.0
_ASKING_RATE = replace(ASKER_RATE, burst=ASKER_RATE.burst - 2)
SAID_MAX = 16
"""Bound on its own statements in its statement store."""
CAPACITY = Capacity("rogue", "cpu", 0, 2**30, 1, 1000.0, 1e6)

encode = msgspec.msgpack.encode


def frame(message: bytes = b"", payload: bytes = b"") -> bytes:
    return encode_prefix(len(message), len(payload)) + message + payload


@dataclass
class Rogue:
    """One identity, connected to the victims."""

    transport: Transport
    identity: Identity
    random: random.Random
    manifest: Manifest | None = None
    _sequence: int = 0
    _asking: dict[PeerId, Throttle] = field(default_factory=dict)
    _said: deque[Signed] = field(default_factory=partial(deque, maxlen=SAID_MAX))
    addresses: dict[PeerId, str] = field(default_factory=dict)
    """Addresses of the victims, where an attack dials by itself."""
    strangers: list[Identity] = field(default_factory=list)
    """Identities of its own that never connect."""

    def __post_init__(self) -> None:
        # So that its peers hand on to it what they hear, and take it for one of them.
        self.transport.handle(STATEMENTS_PROTOCOL, self._serve_statements)
        self.strangers = [
            Identity.from_seed(digest_of(self.identity.peer_id.encode(), bytes([number])))
            for number in range(64)
        ]

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id

    @property
    def has_roots(self) -> bool:
        """Whether members of this run sign roots over their work."""
        return self.manifest is not None and has_roots(self.manifest)

    @property
    def has_sum_audits(self) -> bool:
        """Whether members of this run sign commitments to secrets."""
        return self.manifest is not None and has_sum_audits(self.manifest)

    @property
    def run_id(self) -> Digest:
        assert self.manifest is not None
        return self.manifest.run_id

    # What any peer may ask

    async def learn_run(self, victim: PeerId) -> None:
        stream = await self.transport.open_stream(victim, RUN_PROTOCOL)
        await send_frame(stream, b"")
        _, payload = await receive_frame(stream)
        await stream.reset()
        self.manifest = decode_manifest(decode_signed_manifest(payload).manifest)
        for topic in self.topics():
            self.transport.subscribe(topic, lambda _author, _data: True)

    def topics(self) -> tuple[str, str]:
        """The topics of announcements, and of everything else."""
        return topics_of(self.run_id)

    async def statement_store(self, victim: PeerId) -> list[tuple[Signed, Statement]]:
        """Returns the statements in a victim's statement store. It asks as often as it is answered:
        a stream that is refused would end most attacks. Two questions may arrive closer together
        than they were asked, so it has a little less in hand than the victim grants."""
        asking = self._asking.setdefault(victim, Throttle(_ASKING_RATE))
        await trio.sleep(asking.take(trio.current_time()))
        stream = await self.transport.open_stream(victim, STATEMENTS_PROTOCOL)
        await send_frame(stream, b"")
        message, _ = await receive_frame(stream)
        await stream.reset()
        return [
            (signed, open_signed(signed, self.run_id, lambda *_: True))
            for signed in decode_statement_store(message)
        ]

    async def head(self, victim: PeerId) -> Announce:
        """Returns a victim's announcement, which has its head."""
        with trio.fail_after(ASK_SECONDS):
            while True:
                for signed, statement in await self.statement_store(victim):
                    if signed.author == victim and isinstance(statement, Announce):
                        return statement
                await trio.sleep(0.1)

    async def _serve_statements(self, stream: Stream) -> None:
        """Serves the rogue's last statements to peers that did not hear them by gossip."""
        await receive_frame(stream)
        await send_frame(stream, encode(list(self._said)))
        await stream.close()

    # What it says

    async def say(self, *pieces: bytes, victim: PeerId, protocol: str, reads: bool = True) -> bytes:
        """Opens a stream, says these bytes, and returns what comes until the stream ends."""
        answer = bytearray()
        with trio.move_on_after(ASK_SECONDS), suppress(TransportError):
            stream = await self.transport.open_stream(victim, protocol)
            try:
                for piece in pieces:
                    await stream.send(piece)
                while reads:
                    answer += await stream.receive_exactly(1)
            finally:
                with trio.CancelScope(shield=True):
                    await stream.reset()
        return bytes(answer)

    def sealed(self, statement: Statement, run_id: Digest | None = None) -> Signed:
        return seal(statement, self.me, run_id or self.run_id, self.identity.sign)

    def average_signature(
        self, roster: Signed, chunk: int, contributors: bytes, digest: Digest
    ) -> bytes:
        """Its signature under an average that it says it has finished, in a ring that it is in."""
        return self._chunk_signature(FinishedAverage, roster, chunk, contributors, digest)

    def sum_signature(
        self, roster: Signed, chunk: int, contributors: bytes, digest: Digest
    ) -> bytes:
        """Its signature under a partial sum that it says it passes on, in a ring that it is in."""
        return self._chunk_signature(PassedSum, roster, chunk, contributors, digest)

    def _chunk_signature(
        self,
        kind: type[FinishedAverage | PassedSum],
        roster: Signed,
        chunk: int,
        contributors: bytes,
        digest: Digest,
    ) -> bytes:
        statement = open_signed(roster, self.run_id, lambda *_: True)
        assert isinstance(statement, Roster)
        (own,) = (each for each in statement.members if each.author == self.me)
        ready = open_signed(own, self.run_id, lambda *_: True)
        assert isinstance(ready, Ready)
        number = ready.incarnation, ready.sequence
        signed = kind(*number, ring_id_of(roster), chunk, contributors, digest)
        return self.identity.sign(signing_bytes(self.run_id, to_msgpack(signed)))

    async def gossip(self, statement: Statement | Signed) -> None:
        signed = statement if isinstance(statement, Signed) else self.sealed(statement)
        self._said.append(signed)
        members, rounds = self.topics()
        topic = members if isinstance(statement, Announce) else rounds
        await self.publish(topic, b"\x00" + to_msgpack(signed))

    async def publish(self, topic: str, data: bytes) -> None:
        await self.transport.publish(topic, data)
        await trio.lowlevel.checkpoint()

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def announce(self, like: Announce, **changes: object) -> Announce:
        """An announcement of its own that differs from another's in what is said here."""
        own = {
            "incarnation": 2**40,
            "sequence": self._next_sequence(),
            "claims": (),
            "addresses": (),
            "capacity": CAPACITY,
        }
        return msgspec.structs.replace(like, **{**own, **changes})

    def ready(self, like: Announce, **changes: object) -> Ready:
        """Ready for the round after a victim's head."""
        fields: dict[str, object] = {
            "incarnation": 2**40,
            "sequence": self._next_sequence(),
            "round": like.round + 1,
            "head": like.head,
            "tokens": 64,
            "steps": 1,
            "loss": 2.0,
            "norm": 1.0,
            "spans": (),
            "root": self.noise(32) if self.has_roots else b"",
            "commitment": self.noise(32) if self.has_sum_audits else b"",
        }
        return Ready(**{**fields, **changes})  # type: ignore[arg-type]

    def noise(self, num_bytes: int) -> bytes:
        return self.random.randbytes(num_bytes)


assert PREFIX_BYTES == 8, "attacks write frames by hand"


@asynccontextmanager
async def rogue_among(
    world: World, names: Sequence[str], identity: bytes | Identity
) -> AsyncIterator[tuple[Rogue, list[PeerId]]]:
    """A rogue that is connected to nodes of a world and knows their run, and these nodes.

    Args:
        identity: bytes stand for one that nobody has met.
    """
    if isinstance(identity, bytes):
        identity = Identity.from_seed(digest_of(identity))
    async with world.network.transport(identity) as transport:
        victims = [world.identity(name).peer_id for name in names]
        for victim in victims:
            await transport.connect(world.network.addresses_of(victim)[0])
        rogue = Rogue(transport, identity, random.Random(0))
        await rogue.learn_run(victims[0])
        yield rogue, victims
