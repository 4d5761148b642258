"""Averages and records that nobody made, sent by a member of the ring."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import trio
from msgspec.structs import replace

from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import payloads_of
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import PATH_BYTES
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.state.chain import Commit, Member
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.commit_records import encode_commit
from gossamer.protocol.wire.envelopes import open_signed
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL, ChunkMessage, Hello
from gossamer.protocol.wire.statements import Ready, Roster, Signed
from tests.rogue.attacks_claims import acknowledge_all, as_member
from tests.rogue.attacks_gossip import claim_of, next_header, vote_for
from tests.rogue.rogue import Rogue, encode, frame

FORGED_VALUE = 1000.0
"""Honest parameters stay below 10."""

Forge = Callable[[int, int, int], bytes]
"""Function from (chunk, elements, members) to a payload of all members."""


async def forged_averages(rogue: Rogue, victims: list[PeerId]) -> None:
    """An average of every chunk with the mask of all members, before anybody has one (C2)."""
    await _send_to_all(rogue, victims, is_average=True)


async def averages_of_others(rogue: Rogue, victims: list[PeerId]) -> None:
    """Likewise, in one ring, and it signs them: those that it has to finish, and all others."""
    await _send_to_all(rogue, victims, is_average=True, signs=True, rings_max=1)


async def contradicting_averages(rogue: Rogue, victims: list[PeerId]) -> None:
    """Likewise, and each member gets other ones."""
    await _send_to_all(rogue, victims, is_average=True, signs=True, rings_max=1, are_different=True)


async def forged_records(rogue: Rogue, victims: list[PeerId]) -> None:
    """Partial sums of all others but the receiver, with records, or a sum, that it invented."""
    await _send_to_all(rogue, victims, is_average=False)


async def signed_sums(rogue: Rogue, victims: list[PeerId]) -> None:
    """Likewise, and it signs the sums, as it has to."""
    await _send_to_all(rogue, victims, is_average=False, signs=True)


async def _send_to_all(
    rogue: Rogue,
    victims: list[PeerId],
    *,
    is_average: bool,
    signs: bool = False,
    rings_max: int = 8,
    are_different: bool = False,
) -> None:
    """Sends every chunk to all victims.

    Args:
        is_average: averages; else partial sums.
        signs: whether it signs the averages, as their finisher, or the sums.
        rings_max: rings in which it does so.
        are_different: whether each victim gets other values.
    """
    rings = 0
    manifest = rogue.manifest
    assert manifest is not None
    plan = ChunkPlan(manifest.model.num_parameters, manifest.outer.chunk_elements)
    payloads = payloads_of(manifest.sync, manifest.outer, manifest.trust)

    def payload_of(elements: int, positions: list[int], value: float) -> bytes:
        values = np.full(elements, value, np.float32)
        if not isinstance(payloads, RecordPayloads):
            return bytes(codec(manifest.outer.codec).encode(values))
        payload = b""
        for position in positions:
            block = payloads.encode(values) + rogue.noise(PATH_BYTES)
            payload = bytes(add_record(payload, position, block))
        return payload

    async def send(rogue: Rogue, victims: list[PeerId], signed: Signed, roster: Roster) -> None:
        order = [PeerId(member.author) for member in roster.members]
        finisher = order.index(rogue.me) if is_average else None
        nonlocal rings
        rings += 1
        if rings > rings_max:
            return

        async def to(victim: PeerId) -> None:
            value = FORGED_VALUE + (victims.index(victim) if are_different else 0)
            left_out = None if is_average else order.index(victim)
            positions = [place for place in range(len(order)) if place != left_out]
            mask = sum(1 << place for place in positions).to_bytes((len(order) + 7) // 8, "big")
            pieces: list[bytes] = []
            for chunk in range(plan.num_chunks):
                payload = payload_of(plan.elements_of(chunk), positions, value)
                signature = b""
                if signs:
                    sign = rogue.average_signature if is_average else rogue.sum_signature
                    signature = sign(signed, chunk, mask, digest_of(payload))
                message = encode(ChunkMessage(chunk, mask, finisher, signature))
                pieces.append(frame(message, payload))
            hello = frame(encode(Hello(signed)))
            await rogue.say(hello, *pieces, victim=victim, protocol=RING_PROTOCOL)

        async with trio.open_nursery() as nursery:
            for victim in victims:
                if victim in order:
                    nursery.start_soon(to, victim)

    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)
    await as_member(rogue, victims, send)


async def member_that_commits_alone(rogue: Rogue, victims: list[PeerId]) -> None:
    """A header of the ring that it is in, with a state that nobody has, which it signs alone: it
    calls all the others removed."""
    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)

    async def commit(rogue: Rogue, victims: list[PeerId], signed: Signed, roster: Roster) -> None:
        head = await rogue.head(victims[0])
        if head.head != roster.head:
            return  # the round is over
        members = []
        for each in roster.members:
            ready = open_signed(each, rogue.run_id, lambda *_: True)
            assert isinstance(ready, Ready)
            members.append(Member(each.author, 1, ready.norm))
        peers = [PeerId(each.author) for each in roster.members]
        header = replace(next_header(rogue, head, peers, signed, 1), members=tuple(members))
        others = [peer for peer in peers if peer != rogue.me]
        record = Commit(to_msgpack(header), signed, (vote_for(rogue, header, others),))
        await rogue.publish(rogue.topics()[1], b"\x01" + encode_commit(record))
        await rogue.gossip(claim_of(rogue, head, header))

    await as_member(rogue, victims, commit)
