"""Statements: every value is checked, and no peer can make them for another author or for another
run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, MalformedError, OversizedError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.wire.audit_messages import SumVerdict, Verdict
from gossamer.protocol.wire.envelopes import decode_signed, open_signed
from gossamer.protocol.wire.statements import (
    Capacity,
    Extension,
    LinkRate,
    MoreData,
    Rollback,
    Signed,
    Span,
    Statement,
    key_of,
    version_of,
)
from tests.support.builders import (
    HEAD,
    RING_ID,
    RUN_ID,
    SECRET,
    accusation_of,
    announce,
    capacity,
    equivocation_of,
    peer,
    peers,
    ready,
    ring_of,
    sealed,
    verify,
    vote,
)

ME = peer(0)
PROOF = equivocation_of(peer(2))
STATEMENTS: list[Statement] = [
    announce(),
    announce(name="Ada L\u00e9vy \u4e2d"),
    # Unicode has no such letter yet in the Python of some nodes, and in none of today.
    announce(name="Ana \U0001fae8", team="Ana \U0001faff \u0378"),
    ready(),
    ring_of(peers(3)).roster,
    accusation_of(peer(1)),
    vote(HEAD, removed=[peer(1)]),
    LinkRate(RING_ID, 2, 1e6, 1e6),
    Rollback(HEAD, RING_ID, 7),
    Extension(1, 2_000, 500),
    Extension(limits.EXTENSIONS_MAX, limits.TOKENS_TOTAL_MAX, limits.TOKENS_TOTAL_MAX),
    MoreData(1, HEAD, 2_000, 5_000),
    MoreData(limits.DATA_PARTS_MAX, HEAD, limits.TOKENS_MAX, limits.TOKENS_MAX),
    equivocation_of(peer(2)),
    Verdict(7, HEAD, True, -0.25, 0.5),
    SumVerdict(7, HEAD, SECRET, peer(1), True),
]


def opened(statement: Statement) -> Statement:
    return open_signed(sealed(ME, statement), RUN_ID, verify)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: type(s).__name__)
def test_a_statement_comes_back_from_its_envelope(statement: Statement) -> None:
    signed = decode_signed(to_msgpack(sealed(ME, statement)))
    assert open_signed(signed, RUN_ID, verify) == statement


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: type(s).__name__)
def test_a_changed_byte_is_forged(statement: Statement) -> None:
    signed = sealed(ME, statement)
    payload = bytes([*signed.payload[:-1], signed.payload[-1] ^ 1])
    with pytest.raises(ForgedError):
        open_signed(Signed(signed.author, payload, signed.signature), RUN_ID, verify)


def test_an_envelope_is_worth_nothing_under_another_name_or_in_another_run() -> None:
    signed = sealed(ME, ready())
    with pytest.raises(ForgedError):
        open_signed(Signed(peer(1), signed.payload, signed.signature), RUN_ID, verify)
    with pytest.raises(ForgedError):
        open_signed(signed, digest_of(b"another run"), verify)
    with pytest.raises(ForgedError):
        open_signed(Signed(ME, signed.payload, signed.signature[:63]), RUN_ID, verify)
    with pytest.raises(MalformedError):
        open_signed(Signed("not-a-peer", signed.payload, signed.signature), RUN_ID, verify)


SHORT = bytes(31)
NAN = float("nan")


@pytest.mark.parametrize(
    "statement",
    [
        announce(incarnation=-1),
        announce(name="x" * (limits.NAME_CHARACTERS_MAX + 1)),
        announce(name="Ada\x1b[2J"),
        announce(name="Ada\u202e"),
        announce(name="Ada\u0085"),
        announce(team="Ada\u2028"),
        announce(team="Ada\u2069"),
        announce(name=" Ada"),
        announce(sequence=-1),
        announce(round=limits.ROUNDS_MAX + 1),
        announce(checkpoint_round=-1),
        announce(tokens_total=limits.TOKENS_TOTAL_MAX + 1),
        announce(head=SHORT),
        announce(claims=tuple(range(limits.CLAIMS_MAX + 1))),
        announce(claims=(limits.SHARDS_MAX + 1,)),
        announce(addresses=("/ip4/192.0.2.1",) * (limits.ADDRESSES_MAX + 1)),
        announce(addresses=("x" * (limits.ADDRESS_CHARACTERS_MAX + 1),)),
        announce(capacity=Capacity("x" * 300, "cuda", 1, 1, 1, 1.0, 1.0)),
        announce(capacity=Capacity("x", "cuda", -1, 1, 1, 1.0, 1.0)),
        announce(capacity=Capacity("x", "cuda", 1, 1, 2**21, 1.0, 1.0)),
        announce(capacity=Capacity("x", "cuda", 1, 1, 1, NAN, 1.0)),
        announce(capacity=Capacity("x", "cuda", 1, 1, 1, 1.0, float("inf"))),
        announce(capacity=Capacity("x", "cuda", 1, 1, 1, -1.0, 1.0)),
        ready(round=-1),
        ready(head=SHORT),
        ready(tokens=0),
        ready(tokens=limits.TOKENS_MAX + 1),
        ready(steps=-1),
        ready(loss=NAN),
        ready(loss=1e10),
        ready(norm=NAN),
        ready(norm=-1.0),
        ready(root=SHORT),
        ready(commitment=SHORT),
        SumVerdict(7, HEAD, SHORT, peer(1), True),
        ready(norm=limits.NORM_MAX),
        ready(spans=(Span(0, 0, 1),) * (limits.SPANS_MAX + 1)),
        ready(spans=(Span(0, 5, 5),)),
        ready(spans=(Span(-1, 0, 5),)),
        ready(spans=(Span(0, -1, 5),)),
        ready(spans=(Span(0, 0, limits.TOKENS_MAX + 1),)),
        accusation_of(peer(1), SHORT),
        vote(SHORT),
        vote(HEAD, sequence=-1),
        vote(HEAD, removed=[peer(1), peer(1)]),
        vote(HEAD, removed=["not-a-peer"]),
        vote(HEAD, removed=peers(limits.RING_MEMBERS_MAX + 1)),
        LinkRate(SHORT, 1, 1e6, 1e6),
        LinkRate(HEAD, -1, 1e6, 1e6),
        LinkRate(HEAD, limits.LINK_RATES_MAX + 1, 1e6, 1e6),
        LinkRate(HEAD, 1, -1.0, 1e6),
        LinkRate(HEAD, 1, NAN, 1e6),
        LinkRate(HEAD, 1, 1e6, -1.0),
        LinkRate(HEAD, 1, 1e6, NAN),
        Rollback(SHORT, HEAD, 1),
        Rollback(HEAD, SHORT, 1),
        Rollback(HEAD, HEAD, -1),
        Rollback(HEAD, HEAD, limits.ROUNDS_MAX + 1),
        Extension(0, 2_000, 500),
        Extension(limits.EXTENSIONS_MAX + 1, 2_000, 500),
        Extension(1, 0, 0),
        Extension(1, 2_000, -1),
        Extension(1, 2_000, 2_001),
        Extension(1, limits.TOKENS_TOTAL_MAX + 1, 500),
        MoreData(0, HEAD, 2_000, 5_000),
        MoreData(limits.DATA_PARTS_MAX + 1, HEAD, 2_000, 5_000),
        MoreData(1, SHORT, 2_000, 5_000),
        MoreData(1, HEAD, 0, 5_000),
        MoreData(1, HEAD, limits.TOKENS_MAX + 1, 0),
        MoreData(1, HEAD, 1, -1),
        MoreData(1, HEAD, 1, limits.TOKENS_MAX + 1),
        replace(PROOF, second=PROOF.first),
        replace(PROOF, first=PROOF.second, second=PROOF.first),
        replace(PROOF, second=replace(PROOF.second, author=peer(3))),
    ],
    ids=repr,
)
def test_values_out_of_range_are_malformed(statement: Statement) -> None:
    with pytest.raises(MalformedError):
        opened(statement)


def test_rosters_are_bounded() -> None:
    roster = ring_of(peers(2)).roster
    for broken in (
        {"members": ()},
        {"members": roster.members * 2},
        {"attempt": limits.ATTEMPTS_MAX + 1},
        {"chunk_elements": limits.CHUNK_ELEMENTS_MIN - 1},
        {"chunk_elements": limits.CHUNK_ELEMENTS_MAX + 1},
        {"codec": "x" * 300},
        {"head": SHORT},
    ):
        fields = {name: getattr(roster, name) for name in roster.__struct_fields__}
        with pytest.raises(MalformedError):
            opened(type(roster)(**{**fields, **broken}))


def test_bytes_that_are_no_envelope_are_refused() -> None:
    with pytest.raises(MalformedError):
        decode_signed(b"\x93\x01\x02\x03")
    with pytest.raises(OversizedError):
        decode_signed(bytes(limits.GOSSIP_BYTES_MAX + 1))
    with pytest.raises(MalformedError):  # unknown fields are no place to hide things
        decode_signed(b"\x94" + to_msgpack(sealed(ME, ready()))[1:] + b"\xc0")


def test_a_newer_statement_has_the_key_of_the_older_and_a_higher_version() -> None:
    for older, newer in (
        (announce(), announce(sequence=8)),
        (announce(sequence=900), announce(incarnation=4, sequence=0)),
        (ready(), ready(sequence=9)),
        (ready(sequence=900), ready(incarnation=4, sequence=0, tokens=1)),
        (vote(HEAD), vote(RING_ID, sequence=2)),
        (LinkRate(HEAD, 1, 1e6, 1e6), LinkRate(HEAD, 2, 1e5, 1e6)),
    ):
        assert key_of(ME, older) == key_of(ME, newer)
        assert version_of(newer) > version_of(older)


def test_statements_about_different_things_do_not_replace_each_other() -> None:
    roster = ring_of(peers(2)).roster
    statements: list[Statement] = [
        announce(),
        ready(),
        ready(head=RING_ID),
        roster,
        ring_of(peers(2), attempt=1).roster,
        accusation_of(peer(1)),
        accusation_of(peer(2)),
        accusation_of(peer(1), HEAD),
        vote(HEAD),
        LinkRate(HEAD, 1, 1e6, 1e6),
        LinkRate(RING_ID, 1, 1e6, 1e6),
        Rollback(HEAD, RING_ID, 7),
        Rollback(RING_ID, HEAD, 7),
        Extension(1, 2_000, 500),
        MoreData(1, HEAD, 2_000, 5_000),
        Verdict(7, HEAD, True, -0.25, 0.5),
        Verdict(7, RING_ID, True, -0.25, 0.5),
    ]
    keys = {key_of(author, s) for author in peers(2) for s in statements}
    assert len(keys) == 2 * len(statements)


def test_capacity_of_a_machine_without_accelerator_is_valid() -> None:
    idle = Capacity("", "cpu", 0, 0, 0, 0.0, 0.0)
    assert opened(announce(capacity=idle)) != opened(announce(capacity=capacity()))
