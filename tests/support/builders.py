"""Valid protocol objects to start a test from. Signatures are keyed digests, which cost nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blake3 import blake3
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of, peer_id_from_public_key
from gossamer.protocol.manifest import DataConfig, InnerConfig, Manifest, OuterConfig, RoundConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.policy.members.roll_order import peer_of
from gossamer.protocol.rounds.roster import Ring, RingRules, make_roster, open_roster
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.wire.average_signatures import FinishedAverage, SignedStep
from gossamer.protocol.wire.envelopes import Sign, seal, signing_bytes
from gossamer.protocol.wire.statements import (
    Accusation,
    Announce,
    Capacity,
    Equivocation,
    Ready,
    Signed,
    Span,
    Statement,
    Vote,
)

RUN_ID = digest_of(b"a run")
HEAD = digest_of(b"a head")
RING_ID = digest_of(b"a ring")


def peer(index: int) -> PeerId:
    return peer_id_from_public_key(digest_of(b"peer", index.to_bytes(4, "big")))


def peers(count: int) -> list[PeerId]:
    return [peer(index) for index in range(count)]


def sign_as(author: PeerId) -> Sign:
    return lambda data: blake3(data, key=digest_of(author.encode())).digest(length=64)


def verify(author: PeerId, data: bytes, signature: bytes) -> bool:
    return signature == sign_as(author)(data)


def sealed(author: PeerId, statement: Statement, run_id: Digest = RUN_ID) -> Signed:
    return seal(statement, author, run_id, sign_as(author))


def capacity() -> Capacity:
    return Capacity("NVIDIA T4", "cuda", 16 * 2**30, 32 * 2**30, 8, 12_000.0, 2.5e6)


def announce(**changes: object) -> Announce:
    example = Announce(
        incarnation=3,
        sequence=7,
        phase="training",
        round=4,
        head=HEAD,
        tokens_total=100_000,
        checkpoint_round=0,
        claims=(1, 5),
        addresses=("/ip4/192.0.2.1/tcp/4001",),
        capacity=capacity(),
    )
    return replace(example, **changes)


SECRET = digest_of(b"a secret")


def ready(**changes: object) -> Ready:
    example = Ready(
        incarnation=3,
        sequence=8,
        round=5,
        head=HEAD,
        tokens=8192,
        steps=16,
        loss=2.5,
        norm=1.5,
        spans=(Span(1, 0, 8192),),
    )
    return replace(example, **changes)


def equivocation_of(author: PeerId, run_id: Digest = RUN_ID) -> Equivocation:
    """The proof that a peer has signed two `Ready` with one number."""
    both = [sealed(author, ready(tokens=tokens), run_id) for tokens in (4096, 8192)]
    first, second = sorted(both, key=lambda each: each.payload)
    return Equivocation(first, second)


def finished_average(**changes: object) -> FinishedAverage:
    example = FinishedAverage(3, 8, RING_ID, 2, b"\x07", digest_of(b"an average"))
    return replace(example, **changes)


def sealed_average(
    author: PeerId, finished: FinishedAverage | SignedStep, run_id: Digest = RUN_ID
) -> Signed:
    """An envelope of a proof, with an average or a step that its author signed."""
    payload = to_msgpack(finished)
    return Signed(author, payload, sign_as(author)(signing_bytes(run_id, payload)))


def signed_step(**changes: object) -> SignedStep:
    example = SignedStep(3, 8, RING_ID, 5, digest_of(b"a root"))
    return replace(example, **changes)


def accusation_of(accused: PeerId, ring_id: bytes = RING_ID) -> Accusation:
    return Accusation(ring_id, accused, "reset")


def vote(
    header_digest: bytes,
    sequence: int = 1,
    removed: Iterable[str] = (),
    ring_id: bytes = RING_ID,
) -> Vote:
    return Vote(ring_id, sequence, header_digest, tuple(removed))


def ring_of(
    members: Iterable[PeerId],
    attempt: int = 0,
    tokens: int = 100,
    roots: Mapping[PeerId, bytes] | None = None,
    spans: Mapping[PeerId, tuple[Span, ...]] | None = None,
    commitment: bytes = b"",
) -> Ring:
    """A ring that the first of its members in rank order organised."""
    signed, offered = roots or {}, spans or {}
    own = ready().spans
    readies = {
        member: sealed(
            member,
            ready(
                tokens=tokens,
                root=signed.get(member, b""),
                spans=offered.get(member, own),
                commitment=commitment,
            ),
        )
        for member in members
    }
    roster = make_roster(HEAD, 5, attempt, readies, RING_RULES)
    organiser = PeerId(roster.members[0].author)
    envelope = sealed(organiser, roster)
    return open_roster(envelope, roster, RUN_ID, verify, RING_RULES)


def header(signers: Iterable[PeerId], **changes: object) -> Header:
    example = Header(
        version=limits.PROTOCOL_VERSION,
        run_id=RUN_ID,
        round=5,
        parent=HEAD,
        ring_id=RING_ID,
        members=tuple(Member(member, 100, 1.0) for member in signers),
        tokens_total=10_000,
        update_digest=digest_of(b"update"),
        state_digest=digest_of(b"state"),
        ledger_digest=digest_of(b"ledger"),
        spans=(Span(0, 0, 100), Span(1, 50, 60)),
    )
    return replace(example, **changes)


RING_RULES = RingRules("fp32", 1024, limits.RING_MEMBERS_MAX)
"""What `ring_of` makes rosters by."""


def header_of(ring: Ring, **changes: object) -> Header:
    """The header of a ring that took all work of all its members."""
    members = tuple(
        Member(member, ready.tokens, ready.norm)
        for member, ready in zip(ring.members, ring.ready, strict=True)
    )
    return header(
        ring.members,
        **{"ring_id": ring.ring_id, "members": members, "spans": ring.ready[0].spans, **changes},
    )


def commit_of(
    ring: Ring,
    signers: Iterable[PeerId],
    header: Header | None = None,
    removed: Iterable[str] = (),
) -> Commit:
    """The record of a header of a ring with the votes of some peers, who call others removed."""
    content = to_msgpack(header_of(ring) if header is None else header)
    say = vote(digest_of(content), removed=removed, ring_id=ring.ring_id)
    return Commit(content, ring.envelope, tuple(sealed(signer, say) for signer in signers))


def manifest(**changes: object) -> Manifest:
    example = Manifest(
        version=limits.PROTOCOL_VERSION,
        name="example",
        founder=peer(0),
        created_unix_seconds=1_760_000_000,
        sync="diloco",
        model=ModelConfig(
            num_layers=2,
            width=64,
            num_heads=4,
            num_kv_heads=2,
            hidden_width=128,
            vocabulary=256,
            context=128,
            tied_embeddings=True,
        ),
        inner=InnerConfig(
            learning_rate=1e-3,
            warmup_steps=10,
            total_steps=1000,
            final_fraction=0.1,
            beta1=0.9,
            beta2=0.95,
            epsilon=1e-8,
            weight_decay=0.1,
            clip_norm=1.0,
            sequences_per_step=8,
        ),
        outer=OuterConfig(
            inner_steps=50,
            learning_rate=0.7,
            momentum=0.9,
            warmup_rounds=2,
            warmup_inner_steps=5,
            codec="fp16",
            chunk_elements=4096,
        ),
        rounds=RoundConfig(
            round_seconds=60.0, gather_seconds=20.0, attempt_seconds=5.0, stale_rounds=10
        ),
        data=DataConfig(
            tokenizer="bytes",
            tokenizer_digest=b"",
            token_bytes=2,
            index_digest=digest_of(b"index"),
            num_shards=12,
            num_tokens=1_000_000,
            heldout_tokens=10_000,
        ),
        seed=7,
        genesis_digest=digest_of(b"genesis"),
        admission="open",
        allowed=(),
    )
    return replace(example, **changes)


def members_of(roll: Roll) -> frozenset[PeerId]:
    """All peers that are in now."""
    keys = [*roll.roots, *(entry.newcomer for entry in roll.page().entries)]
    return frozenset(filter(roll.is_member, map(peer_of, keys)))
