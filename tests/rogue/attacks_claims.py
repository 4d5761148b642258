"""False claims of a rogue: to be ahead of all others, at work on everything, a member of the
ring."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import numpy as np
import trio
import zstandard

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import Stream, TransportError
from gossamer.protocol import limits
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import payloads_of
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.rounds.ring_order import encode_links, ring_order
from gossamer.protocol.state.chain import Header
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, decode_request, encode_reply
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, decode_chain_request
from gossamer.protocol.wire.envelopes import decode_statement, ring_id_of, seal
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL, Ack, ChunkMessage, Hello
from gossamer.protocol.wire.statements import Accusation, Announce, Ready, Roster, Signed, Vote
from tests.rogue.attacks_gossip import chain_of_its_own, claim_of, lone_record
from tests.rogue.rogue import Rogue, encode, frame

WITHOUT_BLOCKS_SECONDS = 60.0
LONG_CHAINS_SECONDS = 20.0
LONG_CHAIN_ROUNDS = 400

RINGS_SECONDS = 40.0
RING_PACE_SECONDS = 6.0
"""Below all waits for a ring that stands still."""

RING_STAYS_LOOKS = 6
"""Looks at the head before it is away, every 0.3 s: in less than the wait for a ring of others,
which is `gather_seconds`."""

NUM_STRANGERS = 8
"""As many as a small swarm lets in without a connection."""


async def made_up_heads(rogue: Rogue, victims: list[PeerId]) -> None:
    """Always at another head, far heavier than any, that does not exist."""
    await _pretend_to_be_ahead(rogue, victims, [encode([])])


async def made_up_chains(rogue: Rogue, victims: list[PeerId]) -> None:
    """Likewise, and asked for its proof it sends what is none."""
    answers = [encode([rogue.noise(60)]), rogue.noise(80), b"\x91" * 10_000, encode([b""] * 65)]
    await _pretend_to_be_ahead(rogue, victims, answers)


async def _pretend_to_be_ahead(rogue: Rogue, victims: list[PeerId], answers: list[bytes]) -> None:
    async def serve(stream: Stream) -> None:
        await receive_frame(stream)
        if rogue.random.random() < 0.2:
            await trio.sleep(30.0)
        await send_frame(stream, rogue.random.choice(answers))

    rogue.transport.handle(CHAIN_PROTOCOL, serve)
    head = await rogue.head(victims[0])
    for _ in range(40):
        liar = rogue.announce(
            head,
            phase="training",
            head=rogue.noise(32),
            round=head.round + 100,
            tokens_total=limits.TOKENS_TOTAL_MAX,
        )
        await rogue.gossip(liar)
        await trio.sleep(0.25)


async def heads_that_lead_nowhere(rogue: Rogue, victims: list[PeerId]) -> None:
    """Signed by all their members, which is the rogue alone, and no state follows from them."""
    assert rogue.manifest is not None
    tokens = WorkBounds(rogue.manifest).tokens_max
    for _ in range(4):
        head = await rogue.head(victims[0])
        header, record = lone_record(rogue, head, tokens)
        await rogue.publish(rogue.topics()[1], b"\x01" + record)
        await rogue.gossip(claim_of(rogue, head, header))
        await trio.sleep(1.0)


async def heads_without_blocks(rogue: Rogue, victims: list[PeerId]) -> None:
    """Every two seconds a head that its members have signed, which is the rogue alone. It proves
    each one, and does not answer when it is asked for blocks."""
    assert rogue.manifest is not None
    tokens = WorkBounds(rogue.manifest).tokens_max
    records: dict[bytes, bytes] = {}

    async def prove(stream: Stream) -> None:
        message, _ = await receive_frame(stream)
        record = records.get(decode_chain_request(message).head)
        await send_frame(stream, encode([] if record is None else [record]))
        await stream.close()

    async def keep_waiting(stream: Stream) -> None:
        with suppress(TransportError):
            await receive_frame(stream)
            await trio.sleep_forever()

    rogue.transport.handle(CHAIN_PROTOCOL, prove)
    rogue.transport.handle(BLOCKS_PROTOCOL, keep_waiting)
    with trio.move_on_after(WITHOUT_BLOCKS_SECONDS):
        while True:
            head = await rogue.head(victims[0])
            header, records[header.digest] = lone_record(rogue, head, tokens)
            await rogue.gossip(claim_of(rogue, head, header))
            await trio.sleep(2.0)


async def long_chains(rogue: Rogue, victims: list[PeerId]) -> list[bytes]:
    """A chain of rounds that it has signed alone, from the beginning of the run, heavier than the
    others' and proven to whoever asks. Its blocks are nowhere. Returns the records."""
    header, records = chain_of_its_own(rogue, await rogue.head(victims[0]), LONG_CHAIN_ROUNDS)
    await offer_chain(rogue, victims, header, records)
    return records


async def offer_chain(
    rogue: Rogue,
    victims: list[PeerId],
    header: Header,
    records: list[bytes],
    seconds: float = LONG_CHAINS_SECONDS,
) -> None:
    """For so long it says that it is at the head of a chain, and proves it to whoever asks."""

    async def prove(stream: Stream) -> None:
        message, _ = await receive_frame(stream)
        after = decode_chain_request(message).after_round
        await send_frame(stream, encode(records[after : after + limits.HEADERS_PER_REPLY_MAX]))
        await stream.close()

    rogue.transport.handle(CHAIN_PROTOCOL, prove)
    with trio.move_on_after(seconds):
        while True:
            like = await rogue.head(victims[0])
            await rogue.gossip(claim_of(rogue, like, header))
            await trio.sleep(2.0)


async def rounds_of_the_future(rogue: Rogue, victims: list[PeerId]) -> int:
    """It is ready for hundreds of heads of a round that nobody will see. Returns the bytes."""
    head = await rogue.head(victims[0])
    await rogue.gossip(rogue.announce(head, phase="paused"))
    spans = tuple((2 * place, 0, 1) for place in range(limits.SPANS_MAX))
    num_bytes = 0
    for _ in range(300):
        ready = rogue.ready(head, head=rogue.noise(32), round=limits.ROUNDS_MAX - 1, spans=spans)
        signed = rogue.sealed(ready)
        num_bytes += len(signed.payload)
        await rogue.gossip(signed)
    return num_bytes


async def claims_to_all_data(rogue: Rogue, victims: list[PeerId]) -> None:
    """It claims every shard there is and trains on none."""
    for _ in range(20):
        head = await rogue.head(victims[0])
        await rogue.gossip(
            rogue.announce(head, phase="training", claims=tuple(range(limits.CLAIMS_MAX)))
        )
        await trio.sleep(0.5)


async def wrong_blocks(rogue: Rogue, victims: list[PeerId]) -> None:
    """It serves whatever it is asked for, and never what it is."""

    async def serve(stream: Stream) -> None:
        with suppress(TransportError):
            while True:
                message, _ = await receive_frame(stream)
                reply = encode_reply(decode_request(message), found=True)
                await send_frame(stream, reply, rogue.noise(100))

    rogue.transport.handle(BLOCKS_PROTOCOL, serve)
    head = await rogue.head(victims[0])
    for _ in range(10):
        await rogue.gossip(rogue.announce(head, phase="training"))
        await trio.sleep(0.5)


async def rings_of_one(rogue: Rogue, victims: list[PeerId]) -> None:
    """It makes a ring of its own for every round, which the others would have to wait for."""
    with trio.move_on_after(20.0):
        while True:
            head = await rogue.head(victims[0])
            await rogue.gossip(rogue.announce(head, phase="averaging"))
            await rogue.gossip(_roster(rogue, head, [rogue.sealed(rogue.ready(head))]))
            await trio.sleep(0.05)


async def ring_that_comes_and_goes(rogue: Rogue, victims: list[PeerId]) -> None:
    """It makes a ring of its own for every round, and is away for an instant before the others lose
    patience with it."""
    known = b""
    with trio.move_on_after(RINGS_SECONDS):
        while True:
            head = await rogue.head(victims[0])
            await rogue.gossip(rogue.announce(head, phase="averaging"))
            if head.head != known:
                known = head.head
                await rogue.gossip(_roster(rogue, head, [rogue.sealed(rogue.ready(head))]))
            for _ in range(RING_STAYS_LOOKS):
                await trio.sleep(0.3)
                if (await rogue.head(victims[0])).head != known:
                    break
            else:
                await rogue.gossip(rogue.announce(head, phase="paused"))
                await trio.sleep(0.4)


async def rings_without_end(rogue: Rogue, victims: list[PeerId]) -> None:
    """It makes ring after ring for every round, each to be preferred to the one before."""
    with trio.move_on_after(20.0):
        while True:
            head = await rogue.head(victims[0])
            await rogue.gossip(rogue.announce(head, phase="averaging"))
            mine = [rogue.sealed(rogue.ready(head, steps=number)) for number in range(1, 40)]
            theirs = [
                signed
                for signed, statement in await rogue.statement_store(victims[0])
                if isinstance(statement, Ready) and statement.head == head.head
            ]
            rosters = [rogue.sealed(_roster(rogue, head, [one, *theirs])) for one in mine]
            for roster in sorted(rosters, key=ring_id_of, reverse=True) if theirs else ():
                await rogue.gossip(roster)
                await trio.sleep(0.05)
            await trio.sleep(0.05)


async def rings_one_after_the_other(rogue: Rogue, victims: list[PeerId]) -> None:
    """It is a member of a ring for every round, and replaces that ring again and again before
    anybody loses patience, each time with one that is to be preferred."""
    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)
    with trio.move_on_after(RINGS_SECONDS):
        while True:
            head = await rogue.head(victims[0])
            await rogue.gossip(rogue.announce(head, phase="averaging"))
            theirs = [
                signed
                for signed, statement in await rogue.statement_store(victims[0])
                if isinstance(statement, Ready)
                and statement.head == head.head
                and signed.author != rogue.me
            ]
            if len(theirs) < len(victims):
                await trio.sleep(0.05)
                continue
            mine = [rogue.sealed(rogue.ready(head, steps=number)) for number in range(1, 400)]
            rosters = [rogue.sealed(_roster(rogue, head, [one, *theirs])) for one in mine]
            for roster in _falling(rosters):
                await rogue.gossip(roster)
                await rogue.gossip(rogue.announce(head, phase="averaging"))
                await trio.sleep(RING_PACE_SECONDS)
                if (await rogue.head(victims[0])).head != head.head:
                    break


def _falling(rosters: list[Signed]) -> list[Signed]:
    """The longest list of rosters of which each is to be preferred to the one before, and takes its
    place in a store of statements."""
    longest: list[list[Signed]] = []
    """That ends with each roster."""
    for roster in sorted(rosters, key=ring_id_of, reverse=True):
        before = [each for each in longest if each[-1].digest > roster.digest]
        longest.append([*max(before, key=len, default=[]), roster])
    return max(longest, key=len)


async def identities_that_list_each_other(rogue: Rogue, victims: list[PeerId]) -> None:
    """Identities that never connect are ready for every round, and say that they are connected with
    each other only."""
    strangers = rogue.strangers[:NUM_STRANGERS]
    links = encode_links([stranger.peer_id for stranger in strangers])
    known: Digest | None = None
    with trio.move_on_after(RINGS_SECONDS):
        while True:
            head = await rogue.head(victims[0])
            if head.head != known:
                known = Digest(head.head)
                work = rogue.ready(head, links=links)
                for each in strangers:
                    await rogue.gossip(seal(work, each.peer_id, rogue.run_id, each.sign))
            await trio.sleep(0.02)


async def never_ready(rogue: Rogue, victims: list[PeerId]) -> None:
    """It says that it works on every round, and is never done."""
    with trio.move_on_after(20.0):
        while True:
            head = await rogue.head(victims[0])
            await rogue.gossip(rogue.announce(head, phase="training"))
            await trio.sleep(0.2)


def _roster(rogue: Rogue, head: Announce, members: list[Signed]) -> Roster:
    assert rogue.manifest is not None
    outer = rogue.manifest.outer
    envelopes = {PeerId(one.author): one for one in members}
    said = {peer: links_of(one) for peer, one in envelopes.items()}
    order = [envelopes[peer] for peer in ring_order(head.head, 0, said)]
    return Roster(head.round + 1, head.head, 0, tuple(order), outer.codec, outer.chunk_elements)


def links_of(signed: Signed) -> bytes:
    statement = decode_statement(signed.payload)
    return statement.links if isinstance(statement, Ready) else b""


# As a member of the ring


Member = Callable[[Rogue, list[PeerId], Signed, Roster], Awaitable[None]]


async def as_member(
    rogue: Rogue, victims: list[PeerId], misbehave: Member, look_seconds: float = 0.05
) -> None:
    """Takes part until a roster names it, then misbehaves; twice if it is let.

    Args:
        look_seconds: time between two looks at the head, each with a `Ready` for it.
    """
    seen: set[Digest] = set()
    with trio.move_on_after(20.0):
        while len(seen) < 8:
            head = await rogue.head(victims[0])
            await rogue.gossip(rogue.announce(head, phase="training"))
            await rogue.gossip(rogue.ready(head))
            for signed, statement in await rogue.statement_store(victims[0]):
                ring_id = ring_id_of(signed)
                if (
                    isinstance(statement, Roster)
                    and ring_id not in seen
                    and rogue.me in {member.author for member in statement.members}
                ):
                    seen.add(ring_id)
                    await misbehave(rogue, victims, signed, statement)
            await trio.sleep(look_seconds)


async def member_that_is_silent(rogue: Rogue, victims: list[PeerId]) -> None:
    """It takes what comes and acknowledges nothing."""

    async def serve(stream: Stream) -> None:
        with suppress(TransportError):
            while True:
                await receive_frame(stream)

    async def nothing(_rogue: Rogue, _victims: list[PeerId], _s: Signed, _r: Roster) -> None:
        pass

    rogue.transport.handle(RING_PROTOCOL, serve)
    await as_member(rogue, victims, nothing)


async def member_that_passes_nothing_on(
    rogue: Rogue, victims: list[PeerId], look_seconds: float = 0.05
) -> None:
    """It acknowledges all that it receives, and keeps it."""

    async def nothing(_rogue: Rogue, _victims: list[PeerId], _s: Signed, _r: Roster) -> None:
        pass

    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)
    await as_member(rogue, victims, nothing, look_seconds)


async def member_that_claims_anothers_part(rogue: Rogue, victims: list[PeerId]) -> None:
    """It sends the next member a sum that names the part of the one after it as well. That one
    finds the lie, in what an honest member has passed on."""
    assert rogue.manifest is not None
    outer = rogue.manifest.outer
    plan = ChunkPlan(rogue.manifest.model.num_parameters, outer.chunk_elements)

    async def claim(rogue: Rogue, _victims: list[PeerId], signed: Signed, roster: Roster) -> None:
        order = [PeerId(member.author) for member in roster.members]
        place, size = order.index(rogue.me), len(order)
        if size < 4:
            return
        mask = (1 << place | 1 << (place + 2) % size).to_bytes((size + 7) // 8, "big")
        zeros = np.zeros(plan.elements_of(place), np.float32)
        payload = bytes(codec(outer.codec).encode(zeros))
        signature = rogue.sum_signature(signed, place, mask, digest_of(payload))
        message = frame(encode(ChunkMessage(place, mask, None, signature)), payload)
        hello = frame(encode(Hello(signed)))
        await rogue.say(hello, message, victim=order[(place + 1) % size], protocol=RING_PROTOCOL)

    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)
    await as_member(rogue, victims, claim)


async def member_that_answers_nonsense(rogue: Rogue, victims: list[PeerId]) -> None:
    """Acknowledgements of what was not sent, inventories that are none, and too large frames."""
    answers = [
        frame(encode(Ack(10**6, 0))),
        frame(encode(["held"]), rogue.noise(77)),
        frame(encode(["held"])),
        b"\xff" * 8,
        frame(rogue.noise(50)),
        frame(b"\x91" * 1000),
    ]

    async def serve(stream: Stream) -> None:
        with suppress(TransportError):
            await receive_frame(stream)
            await stream.send(rogue.random.choice(answers))
            await trio.sleep(1.0)

    async def nothing(_rogue: Rogue, _victims: list[PeerId], _s: Signed, _r: Roster) -> None:
        pass

    rogue.transport.handle(RING_PROTOCOL, serve)
    await as_member(rogue, victims, nothing)


async def acknowledge_all(stream: Stream) -> None:
    """Receives as a good member does, except that nothing comes of it."""
    received = 0
    with suppress(TransportError):
        await receive_frame(stream)
        while True:
            await receive_frame(stream)
            received += 1
            await send_frame(stream, encode(Ack(received, 0)))


async def member_that_accuses_everybody(rogue: Rogue, victims: list[PeerId]) -> None:
    """It keeps its own line up, so that it is not accused first."""
    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)

    async def accuse(rogue: Rogue, _victims: list[PeerId], signed: Signed, roster: Roster) -> None:
        for member in roster.members:
            if member.author != rogue.me:
                await rogue.gossip(Accusation(ring_id_of(signed), member.author, "silent"))

    await as_member(rogue, victims, accuse)


async def member_that_votes_nonsense(rogue: Rogue, victims: list[PeerId]) -> None:
    """It votes for headers that no other member has, and holds all others to be out."""
    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)

    async def vote(rogue: Rogue, victims: list[PeerId], signed: Signed, _roster: Roster) -> None:
        for sequence in range(1, 6):
            others = tuple(sorted(victims))
            await rogue.gossip(Vote(ring_id_of(signed), sequence, rogue.noise(32), others))

    await as_member(rogue, victims, vote)


async def send_chunk(
    rogue: Rogue,
    victims: list[PeerId],
    signed: Signed,
    roster: Roster,
    chunk: int,
    mask: bytes,
    finisher: int | None,
    payload: bytes,
) -> None:
    """Sends a chunk to all, signed by the rogue as far as it can sign it."""
    position = [member.author for member in roster.members].index(rogue.me)
    signature, digest = b"", digest_of(payload)
    if finisher == position:  # else it is refused before it is looked at
        signature = rogue.average_signature(signed, chunk, mask, digest)
    elif finisher is None:
        signature = rogue.sum_signature(signed, chunk, mask, digest)
    chunk_message = frame(encode(ChunkMessage(chunk, mask, finisher, signature)), payload)
    hello = frame(encode(Hello(signed)))
    for victim in victims:
        await rogue.say(hello, chunk_message, victim=victim, protocol=RING_PROTOCOL)


async def member_that_packs_wrong(rogue: Rogue, victims: list[PeerId]) -> None:
    """Packed chunks with frames of another content, of too much of it, and of none."""
    assert rogue.manifest is not None
    outer = rogue.manifest.outer
    plan = ChunkPlan(rogue.manifest.model.num_parameters, outer.chunk_elements)
    payloads, elements = payloads_of(rogue.manifest.sync, outer, "members"), plan.elements_of(0)
    packing, values = payloads.packing(elements, 1), np.arange(elements, dtype=np.float32)
    assert packing is not None
    is_sparse = rogue.manifest.sync == "sparse"
    coder = SparseCodec(outer.top_k) if is_sparse else codec(outer.codec)
    encoded = coder.encode(values)
    compress = zstandard.ZstdCompressor().compress

    async def send(rogue: Rogue, victims: list[PeerId], signed: Signed, roster: Roster) -> None:
        position = [member.author for member in roster.members].index(rogue.me)
        mine = (1 << position).to_bytes((len(roster.members) + 7) // 8, "big")
        payload = add_record(None, position, encoded) if is_sparse else encoded
        rest, frame_of_values = packing.pack(payload)
        framed_bytes = packing.num_bytes - len(rest)
        for number, false_frame in enumerate(
            (
                compress(bytes(2**26)),  # some 2 kB that would take 64 MiB
                compress(b"\x7f" * elements),  # values out of range
                compress(bytes(elements - 1)),
                bytes(frame_of_values)[:-1],
                rogue.noise(framed_bytes // 2),
                b"(",
            )
        ):
            packed = bytes(rest) + false_frame[: framed_bytes - 1]
            chunk = number % plan.num_chunks
            await send_chunk(rogue, victims, signed, roster, chunk, mine, None, packed)

    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)
    await as_member(rogue, victims, send)


async def member_that_sends_wrong_chunks(rogue: Rogue, victims: list[PeerId]) -> None:
    """Chunks that are none, of members that are none, of lengths and values that cannot be."""
    assert rogue.manifest is not None
    plan = ChunkPlan(rogue.manifest.model.num_parameters, rogue.manifest.outer.chunk_elements)
    width = 4 if rogue.manifest.outer.codec == "fp32" else 2

    async def send(rogue: Rogue, victims: list[PeerId], signed: Signed, roster: Roster) -> None:
        num_members = len(roster.members)
        order = [member.author for member in roster.members]
        mine = (1 << order.index(rogue.me)).to_bytes((num_members + 7) // 8, "big")
        all_members = ((1 << num_members) - 1).to_bytes(len(mine), "big")
        elements = plan.elements_of(0)
        length = elements * 4 if width == 4 else 4 + elements * 2
        good = bytes(length)
        bad = np.full(elements, np.nan, dtype="<f4").tobytes()[:length].ljust(length, b"\xff")
        infinite = np.full(elements, np.inf, dtype="<f4").tobytes()[:length].ljust(length, b"\x7c")
        for chunk, mask, finisher, payload in (
            (0, mine, None, bad),
            (0, mine, None, infinite),
            (0, all_members, order.index(rogue.me), bad),
            (0, all_members, order.index(rogue.me), infinite),
            (0, all_members, None, good),
            (-1, mine, None, good),
            (plan.num_chunks, mine, None, good),
            (2**63, mine, None, good),
            (0, b"", None, good),
            (0, b"\xff" * 40, None, good),
            (0, mine, 300, good),
            (0, mine, -1, good),
            (0, mine, None, good[:-1]),
            (0, mine, None, b""),
            (0, mine, None, bytes(limits.BLOCK_BYTES_MAX)),
        ):
            await send_chunk(rogue, victims, signed, roster, chunk, mask, finisher, payload)

    # Otherwise it is out of the ring before its chunks are looked at.
    rogue.transport.handle(RING_PROTOCOL, acknowledge_all)
    await as_member(rogue, victims, send)


async def stranger_in_the_ring(rogue: Rogue, victims: list[PeerId]) -> None:
    """It greets with the roster of a ring that it is not in, and sends it chunks."""
    with trio.move_on_after(10.0):
        while True:
            for signed, statement in await rogue.statement_store(victims[0]):
                if isinstance(statement, Roster):
                    chunk_message = frame(encode(ChunkMessage(0, b"\x01", None)), bytes(64))
                    for victim in victims:
                        hello = frame(encode(Hello(signed)))
                        await rogue.say(hello, chunk_message, victim=victim, protocol=RING_PROTOCOL)
            await trio.sleep(0.1)
