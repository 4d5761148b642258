"""A rogue's statements, by gossip and from its store: forged, wrong, old or too many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import msgspec
import trio
from msgspec.structs import replace

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Stream
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.protocol.rounds.roster import RingRules, make_roster
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.state.commit_records import encode_commit
from gossamer.protocol.wire.envelopes import decode_statement, ring_id_of, seal, signing_bytes
from gossamer.protocol.wire.statements import (
    Announce,
    Equivocation,
    Ready,
    Roster,
    Signed,
    Span,
    Vote,
)
from tests.rogue.rogue import Rogue, encode

NONSENSE = (b"", b"\x00", b"\x01", b"\x02", b"\xff" * 100, b"\x00" + b"\x91" * 100_000)


async def gossip_that_is_none(rogue: Rogue, victims: list[PeerId]) -> None:
    """Nothing, noise, nesting, and as many bytes as gossip takes."""
    for topic in rogue.topics():
        for data in (*NONSENSE, rogue.noise(300), b"\x00" + bytes(limits.GOSSIP_BYTES_MAX - 1)):
            await rogue.publish(topic, data)


async def forged_statements(rogue: Rogue, victims: list[PeerId]) -> None:
    """Statements in another's name, for another run, and by an author that is no peer id."""
    head = await rogue.head(victims[0])
    mine = rogue.sealed(rogue.ready(head))
    other_run = rogue.sealed(rogue.ready(head), digest_of(b"another run"))
    for victim in victims:
        for signed in (
            Signed(victim, mine.payload, mine.signature),
            Signed(rogue.me, mine.payload, bytes(64)),
            Signed(rogue.me, mine.payload, b""),
            Signed("not-a-peer", mine.payload, mine.signature),
            Signed("1" * 500, mine.payload, mine.signature),
            other_run,
        ):
            await rogue.gossip(signed)


async def wrong_values(rogue: Rogue, victims: list[PeerId]) -> None:
    """Properly signed, and of values that cannot be: negative, not a number, beyond all bounds."""
    head = await rogue.head(victims[0])
    ready, announce = rogue.ready(head), rogue.announce(head)
    spans = tuple(Span(shard, 0, limits.TOKENS_MAX) for shard in range(256))
    changes: list[tuple[object, dict[str, object]]] = [
        (ready, {"tokens": 0}),
        (ready, {"tokens": -1}),
        (ready, {"tokens": limits.TOKENS_MAX}),
        (ready, {"tokens": 2**63}),
        (ready, {"loss": float("nan")}),
        (ready, {"loss": float("inf")}),
        (ready, {"norm": float("nan")}),
        (ready, {"norm": -1.0}),
        (ready, {"norm": 1e200}),
        (ready, {"spans": spans}),
        (ready, {"spans": (Span(0, 5, 5),)}),
        (ready, {"head": b"short"}),
        (ready, {"round": -1}),
        (announce, {"tokens_total": -1}),
        (announce, {"tokens_total": 2**64 - 1}),
        (announce, {"addresses": ("x" * 300,)}),
        (announce, {"claims": tuple(range(limits.CLAIMS_MAX + 1))}),
        (announce, {"phase": "raging"}),
        (announce, {"capacity": msgspec.structs.replace(announce.capacity, cores=-1)}),
        (
            announce,
            {
                "capacity": msgspec.structs.replace(
                    announce.capacity, tokens_per_second=float("inf")
                )
            },
        ),
    ]
    for statement, change in changes:
        payload = encode(msgspec.structs.replace(statement, **change))  # type: ignore[type-var]
        signature = rogue.identity.sign(signing_bytes(rogue.run_id, payload))
        await rogue.gossip(Signed(rogue.me, payload, signature))


async def heads_without_votes(rogue: Rogue, victims: list[PeerId]) -> None:
    """Commit records of rounds that their members did not sign, or did not work for."""
    head = await rogue.head(victims[0])
    mine = roster_of(rogue, head)
    theirs = next_header(rogue, head, victims)
    vote = Vote(theirs.ring_id, 1, digest_of(to_msgpack(theirs)), ())
    forged = tuple(Signed(victim, encode(vote), bytes(64)) for victim in victims)
    alone = next_header(rogue, head, [rogue.me], mine)
    too_much = next_header(rogue, head, [rogue.me], mine, limits.TOKENS_MAX)
    without_them = vote_for(rogue, theirs, victims)
    with_them = next_header(rogue, head, [rogue.me, *victims], mine)
    for header, votes in (
        (theirs, ()),
        (theirs, (rogue.sealed(vote),)),
        (theirs, (without_them,)),
        (theirs, forged),
        (alone, ()),
        (too_much, (vote_for(rogue, too_much),)),
        (with_them, (vote_for(rogue, with_them, victims),)),
    ):
        record = encode_commit(Commit(to_msgpack(header), mine, votes))
        await rogue.publish(rogue.topics()[1], b"\x01" + record)


async def heads_of_invented_members(rogue: Rogue, victims: list[PeerId]) -> None:
    """Rounds of members that it invents, at the bound of the plausible, signed by it alone.

    They are proven: each invented member has signed its `Ready`.
    """
    assert rogue.manifest is not None
    tokens = WorkBounds(rogue.manifest).tokens_max
    for _ in range(8):
        head = await rogue.head(victims[0])
        invented = [one.peer_id for one in rogue.strangers]
        roster = roster_of(rogue, head, [*rogue.strangers, rogue.identity], tokens)
        header = next_header(rogue, head, members_in(roster), roster, tokens)
        votes = (vote_for(rogue, header, invented),)
        record = encode_commit(Commit(to_msgpack(header), roster, votes))
        await rogue.publish(rogue.topics()[1], b"\x01" + record)
        await rogue.gossip(claim_of(rogue, head, header))
        await trio.sleep(1.0)


def claim_of(rogue: Rogue, like: Announce, header: Header) -> Announce:
    """The rogue's word that it is at this header's head and trains on."""
    return rogue.announce(
        like,
        phase="training",
        head=header.digest,
        round=header.round,
        tokens_total=header.tokens_total,
    )


def roster_of(
    rogue: Rogue, head: Announce, members: Sequence[Identity] = (), tokens: int = 1000
) -> Signed:
    """A roster that the rogue organises on a head: of itself, or of these members."""
    assert rogue.manifest is not None
    outer = rogue.manifest.outer
    rules = RingRules(outer.codec, outer.chunk_elements, limits.RING_MEMBERS_MAX)
    work = rogue.ready(head, tokens=tokens, norm=1.0)
    readies = {
        each.peer_id: seal(work, each.peer_id, rogue.run_id, each.sign)
        for each in members or [rogue.identity]
    }
    number = head.round + 1
    return rogue.sealed(make_roster(head.head, number, 0, readies, rules))


def members_in(roster: Signed) -> list[PeerId]:
    statement = decode_statement(roster.payload)
    assert isinstance(statement, Roster)
    return [PeerId(member.author) for member in statement.members]


def next_header(
    rogue: Rogue,
    head: Announce,
    members: list[PeerId],
    roster: Signed | None = None,
    tokens: int = 1000,
) -> Header:
    """A header that follows a head, made of nothing."""
    return Header(
        version=limits.PROTOCOL_VERSION,
        run_id=rogue.run_id,
        round=head.round + 1,
        parent=head.head,
        ring_id=rogue.noise(32) if roster is None else ring_id_of(roster),
        members=tuple(Member(member, tokens, 1.0) for member in members),
        tokens_total=head.tokens_total + tokens * len(members),
        update_digest=rogue.noise(32),
        state_digest=rogue.noise(32),
        ledger_digest=rogue.noise(32),
        spans=(),
    )


def lone_record(rogue: Rogue, head: Announce, tokens: int) -> tuple[Header, bytes]:
    """A round after a head of which the rogue is the only member, with its proof."""
    roster = roster_of(rogue, head, tokens=tokens)
    header = next_header(rogue, head, [rogue.me], roster, tokens)
    commit = Commit(to_msgpack(header), roster, (vote_for(rogue, header),))
    return header, encode_commit(commit)


def chain_of_its_own(rogue: Rogue, like: Announce, num_rounds: int) -> tuple[Header, list[bytes]]:
    """So many rounds from the beginning of the run with the rogue's signature alone: the header of
    the last one, and the records of all."""
    assert rogue.manifest is not None
    tokens = WorkBounds(rogue.manifest).tokens_max
    records: list[bytes] = []
    at = rogue.announce(like, round=0, head=rogue.run_id, tokens_total=0)
    for _ in range(num_rounds):
        header, record = lone_record(rogue, at, tokens)
        records.append(record)
        at = claim_of(rogue, at, header)
    return header, records


def vote_for(rogue: Rogue, header: Header, removed: Sequence[PeerId] = ()) -> Signed:
    digest = digest_of(to_msgpack(header))
    return rogue.sealed(Vote(header.ring_id, 1, digest, tuple(sorted(removed))))


async def wrong_rosters(rogue: Rogue, victims: list[PeerId]) -> None:
    """Rosters of strangers, of 256 members, unordered, empty, and of a head that does not exist."""
    head = await rogue.head(victims[0])
    strangers = [
        seal(rogue.ready(head), one.peer_id, rogue.run_id, one.sign) for one in rogue.strangers
    ]
    assert rogue.manifest is not None
    outer = rogue.manifest.outer

    def roster(members: list[Signed], **changes: object) -> Roster:
        fields: dict[str, object] = {
            "round": head.round + 1,
            "head": head.head,
            "attempt": 0,
            "members": tuple(members),
            "codec": outer.codec,
            "chunk_elements": outer.chunk_elements,
        }
        return Roster(**{**fields, **changes})  # type: ignore[arg-type]

    mine = rogue.sealed(rogue.ready(head))
    authors = {PeerId(one.author): one for one in [mine, *strangers]}
    order = [authors[peer] for peer in rank_order(head.head, 0, authors)]
    unsigned = [Signed(one.author, one.payload, bytes(64)) for one in order]
    for wrong in (
        roster([mine]),  # one that only keeps the others waiting
        roster(order),
        roster(order[::-1]),
        roster(unsigned),
        roster([*order[:1] * 256]),
        roster([mine], attempt=-1),
        roster([mine], codec="gzip"),
        roster([mine], round=head.round + 7),
        roster([mine], head=rogue.noise(32)),
        roster([]),
        roster([rogue.sealed(Vote(bytes(32), 1, bytes(32), ()))]),
        roster([rogue.sealed(rogue.ready(head, tokens=limits.TOKENS_MAX))]),
    ):
        await rogue.gossip(wrong)


async def replays(rogue: Rogue, victims: list[PeerId]) -> None:
    """Everything that was said some rounds ago, again and again."""
    old = [signed for signed, _ in await rogue.statement_store(victims[0])]
    await trio.sleep(3.0)
    for _ in range(5):
        for signed in old:
            await rogue.gossip(signed)


async def flood(rogue: Rogue, victims: list[PeerId]) -> None:
    """Thousands of good messages, and some of the largest that there may be."""
    head = await rogue.head(victims[0])
    for number in range(2500):
        ring_id = digest_of(number.to_bytes(4, "big"))
        await rogue.gossip(Vote(ring_id, 1, ring_id, ()))
    large = rogue.ready(head, spans=tuple(Span(1, n, n + 1) for n in range(0, 512, 2)))
    for _ in range(50):
        await rogue.gossip(msgspec.structs.replace(large, steps=rogue.random.randrange(2**40)))


async def lying_statement_store(rogue: Rogue, victims: list[PeerId]) -> None:
    """Its statement store is full of forgeries and of announcements of two thousand strangers."""
    head = await rogue.head(victims[0])
    forged = Signed(victims[0], encode(rogue.ready(head)), bytes(64))
    invented: list[Signed] = []
    for stranger in rogue.strangers:
        for sequence in range(10):
            statement = rogue.announce(head, sequence=sequence)
            invented.append(seal(statement, stranger.peer_id, rogue.run_id, stranger.sign))
    # In turn, so that a rogue that is banned early has shown each kind.
    stores = cycle([encode(invented), encode([forged]), rogue.noise(100), encode([1, 2, 3])])

    async def serve(stream: Stream) -> None:
        await receive_frame(stream)
        await send_frame(stream, next(stores))

    rogue.transport.handle(STATEMENTS_PROTOCOL, serve)
    await trio.sleep(12.0)


async def two_contributions_under_one_number(rogue: Rogue, victims: list[PeerId]) -> None:
    """It signs two contributions with one number. The second one has the higher digest, so that
    nobody passes it on: only the first victim has both."""
    for _ in range(4):
        head = await rogue.head(victims[0])
        await rogue.gossip(rogue.announce(head, phase="training"))
        await trio.sleep(0.2)
        one = rogue.ready(head)
        both = [rogue.sealed(replace(one, tokens=tokens)) for tokens in (32, 64)]
        for signed in sorted(both, key=lambda each: each.digest):
            await rogue.gossip(signed)
            await trio.sleep(0.2)


async def false_proofs(rogue: Rogue, victims: list[PeerId]) -> None:
    """Proofs that a victim has contradicted itself: with its newest contribution and one that the
    rogue has signed, and with two that have two numbers."""
    for _ in range(4):
        store = await rogue.statement_store(victims[0])
        ready = [(signed, each) for signed, each in store if isinstance(each, Ready)]
        for signed, one in ready:
            forged = rogue.sealed(replace(one, tokens=one.tokens + 1))
            own = replace(forged, author=signed.author)
            both = sorted((signed, own), key=lambda each: each.payload)
            await rogue.gossip(Equivocation(*both))
        mine = [rogue.sealed(rogue.ready(await rogue.head(victims[0]))) for _ in range(2)]
        await rogue.gossip(Equivocation(*sorted(mine, key=lambda each: each.payload)))
        await trio.sleep(0.3)


async def wrong_weights(rogue: Rogue, victims: list[PeerId]) -> None:
    """It offers an impossible amount of work for every round."""
    assert rogue.manifest is not None
    for _ in range(10):
        head = await rogue.head(victims[0])
        await rogue.gossip(rogue.announce(head, phase="training"))
        for tokens in (limits.TOKENS_MAX, 2**40):
            await rogue.gossip(rogue.ready(head, tokens=tokens))
        await trio.sleep(0.3)
