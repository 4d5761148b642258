"""Writes vectors.json: the test vectors of protocol/SPEC.md.

    python -m tests.protocol.make_vectors

A change of these bytes is a change of the protocol. Keys are Ed25519 from seeds of 32 equal bytes.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from msgspec.structs import replace

from gossamer.protocol.accounting.ledger import Ledger, claim_rank
from gossamer.protocol.accounting.partitions import partition_shards
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.record_tree import RecordTree, leaf_of
from gossamer.protocol.codecs.robust_average import robust_average, robust_weights
from gossamer.protocol.codecs.sign_codec import SignCodec, SignUpdate
from gossamer.protocol.codecs.sparse_codec import SparseCodec, place_bytes
from gossamer.protocol.codecs.tensor_codecs import codec, codec_names
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import PeerId, digest_of, peer_id_from_public_key, public_key_of
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.manifest import Manifest, encode_manifest
from gossamer.protocol.manifest import signing_bytes as manifest_signing_bytes
from gossamer.protocol.model_config import ImportedShape, RopeScaling
from gossamer.protocol.policy.auditing.sum_audits import (
    AuditSecrets,
    audited_chunk,
    commitment_to,
    is_auditor,
)
from gossamer.protocol.policy.heads.chain_checkpoint import (
    ChainCheckpoint,
    Stake,
)
from gossamer.protocol.policy.heads.chain_checkpoint import (
    signing_bytes as checkpoint_signing_bytes,
)
from gossamer.protocol.policy.heads.chain_summary import ChainSummary, CreditRow
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.rounds.inventory import Held, Inventory, encode_inventory
from gossamer.protocol.rounds.ring_order import rank, rank_order
from gossamer.protocol.rounds.roster import make_roster, open_roster
from gossamer.protocol.state.chain import ChunkAverage, Commit, UpdateIndex, mask_bytes
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.commit_records import encode_commit
from gossamer.protocol.state.digest import index_of
from gossamer.protocol.state.sync_sets import fragments_of
from gossamer.protocol.token_caps import capped_tokens
from gossamer.protocol.wire.audit_messages import AuditSecret, SumVerdict, Verdict
from gossamer.protocol.wire.average_signatures import FinishedAverage, PassedSum, SignedStep
from gossamer.protocol.wire.envelopes import ring_id_of, seal, signing_bytes
from gossamer.protocol.wire.expulsion_messages import ExpulsionPage, ExpulsionVote, expulsion_digest
from gossamer.protocol.wire.framing import encode_prefix
from gossamer.protocol.wire.gossip_messages import encode_compact, encode_own
from gossamer.protocol.wire.invitation_messages import (
    Certificate,
    Claim,
    Entry,
    Revocation,
    RollPage,
    Welcomed,
    proof_bytes,
)
from gossamer.protocol.wire.opening_messages import Open, Opened, Step
from gossamer.protocol.wire.ring_messages import ChunkMessage
from gossamer.protocol.wire.statements import (
    Accusation,
    Equivocation,
    Extension,
    LinkRate,
    MoreData,
    Rollback,
    Signed,
    Statement,
)
from tests.support.builders import (
    HEAD,
    RING_ID,
    RING_RULES,
    RUN_ID,
    announce,
    header_of,
    manifest,
    ready,
    vote,
)

CLAIMED_TOKENS = [100, 110, 120, 10_000]
STEP_PARTS = (b"a", b"b", b"c")
RECORDS = RecordTree([leaf_of(chunk, block) for chunk, block in enumerate((b"a", b"b", b"c"))])
PARTS = [
    np.array(part, np.float32) for part in ([1, 2, -1.5, 0], [1.5, 1, -1, 0.25], [-10, 40, 30, 9])
]
# Two members that agree, one that sends the opposite, and one of twice their length.
OPPOSED_PARTS = [
    np.array([sign * (i * 7 % 13 - 6) + i * step % 5 for i in range(16)], np.float32)
    for sign, step in ((1, 2), (-1, 3), (1, 4), (2, 1))
]
# Five members with something in common, two of which add the same.
ALIKE_PARTS = [
    np.array([(i * 7 % 13 - 6) * 2 + i * step % 11 - 5 for i in range(32)], np.float32)
    for step in (2, 3, 4, 5, 3)
]
PATH = Path(__file__).parent / "vectors.json"
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed in (1, 2, 3)]
PEERS = [peer_id_from_public_key(key.public_key().public_bytes_raw()) for key in KEYS]
SECRET = AuditSecrets(RUN_ID, KEYS[1].sign).of(3, 8)


def sealed(index: int, statement: Statement) -> Signed:
    return seal(statement, PEERS[index], RUN_ID, KEYS[index].sign)


def verify(author: PeerId, data: bytes, signature: bytes) -> bool:
    """Returns whether a signature is one of its author."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(author)).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def invitation_vector() -> dict[str, str]:
    """The root is the first key, the newcomer the second; the root is its own witness."""
    one_time = Ed25519PrivateKey.from_private_bytes(bytes([4]) * 32)
    root, newcomer = (public_key_of(peer) for peer in PEERS[:2])
    key = one_time.public_key().public_bytes_raw()
    unsigned = Certificate(root, key, 2, 1_700_604_800, 1, b"")
    certificate = replace(unsigned, signature=KEYS[0].sign(unsigned.signing_bytes(RUN_ID)))
    proof = one_time.sign(proof_bytes(RUN_ID, newcomer))
    blank = Entry(certificate, newcomer, proof, root, 1_700_000_000, b"")
    entry = replace(blank, signature=KEYS[0].sign(blank.signing_bytes(RUN_ID)))
    unrevoked = Revocation(root, newcomer, b"")
    revocation = replace(unrevoked, signature=KEYS[0].sign(unrevoked.signing_bytes(RUN_ID)))
    unsigned_vote = ExpulsionVote(root, newcomer, 48, digest_of(b"a head"), b"")
    vote = replace(unsigned_vote, signature=KEYS[0].sign(unsigned_vote.signing_bytes(RUN_ID)))
    roll = Roll(RUN_ID, PEERS[:1], lambda *_: True)
    roll.add(RollPage((entry,), (revocation,)))
    return {
        "one_time_seed": one_time.private_bytes_raw().hex(),
        "certificate_signed_bytes": certificate.signing_bytes(RUN_ID).hex(),
        "certificate": to_msgpack(certificate).hex(),
        "proof_signed_bytes": proof_bytes(RUN_ID, newcomer).hex(),
        "entry": to_msgpack(entry).hex(),
        "entry_digest": entry.digest.hex(),
        "revocation": to_msgpack(revocation).hex(),
        "claim": to_msgpack(Claim((), certificate, proof)).hex(),
        "welcomed": to_msgpack(Welcomed(True, "", (entry,), ())).hex(),
        "page": to_msgpack(roll.page()).hex(),
        "roll_digest": roll.digest().hex(),
        "vote_signed_bytes": unsigned_vote.signing_bytes(RUN_ID).hex(),
        "vote_page": to_msgpack(ExpulsionPage((vote,))).hex(),
        "vote_digest": vote.digest.hex(),
        "expelled_digest": expulsion_digest(RUN_ID, newcomer).hex(),
    }


def statement_vector(statement: Statement) -> dict[str, str]:
    signed = sealed(0, statement)
    return {
        "payload": signed.payload.hex(),
        "signed_bytes": signing_bytes(RUN_ID, signed.payload).hex(),
        "signature": signed.signature.hex(),
        "envelope": to_msgpack(signed).hex(),
        "digest": signed.digest.hex(),
    }


def finished_average_vector() -> dict[str, str]:
    """The second key finishes chunk 2 of a ring of three, in which it has position 1; and a proof
    with another average of that chunk, which the third key says."""
    both: list[Signed] = []
    for content in (b"an average", b"another average"):
        finished = FinishedAverage(3, 8, RING_ID, 2, mask_bytes(0b111, 3), digest_of(content))
        payload = to_msgpack(finished)
        both.append(Signed(PEERS[1], payload, KEYS[1].sign(signing_bytes(RUN_ID, payload))))
    message = ChunkMessage(2, mask_bytes(0b111, 3), 1, both[0].signature)
    first, second = sorted(both, key=lambda each: each.payload)
    return {
        "payload": both[0].payload.hex(),
        "signature": both[0].signature.hex(),
        "message": to_msgpack(message).hex(),
        "proof": to_msgpack(sealed(2, Equivocation(first, second))).hex(),
    }


def passed_sum_vector() -> dict[str, str]:
    """The second key passes on chunk 2 of that ring, with the parts of the first two members; and
    how the third one opens the chunk."""
    contributors, digest = mask_bytes(0b011, 3), digest_of(b"a sum")
    payload = to_msgpack(PassedSum(3, 8, RING_ID, 2, contributors, digest))
    signature = KEYS[1].sign(signing_bytes(RUN_ID, payload))
    step = Step(1, contributors, digest, signature, digest_of(b"a sum of all"))
    return {
        "payload": payload.hex(),
        "signature": signature.hex(),
        "message": to_msgpack(ChunkMessage(2, contributors, None, signature)).hex(),
        "question": to_msgpack(Open(HEAD, SECRET, with_part=False)).hex(),
        "answer": to_msgpack(Opened((step,), b"")).hex(),
    }


def audit_secret_vector() -> dict[str, Any]:
    """The second key's secret of its `Ready` in that ring, and what it says after some heads, in a
    round of three members and ten chunks."""
    heads = [digest_of(number.to_bytes(4, "big")) for number in range(4)]
    payload = to_msgpack(AuditSecret(3, 8))
    return {
        "signed_bytes": signing_bytes(RUN_ID, payload).hex(),
        "secret": SECRET.hex(),
        "commitment": commitment_to(SECRET).hex(),
        "draws": [
            {
                "head": head.hex(),
                "is_auditor": is_auditor(head, SECRET, 3),
                "chunk": audited_chunk(head, SECRET, 10),
            }
            for head in heads
        ],
    }


def signed_step_vector() -> dict[str, Any]:
    """The second key signs its parts of step 5 of that ring, in three chunks."""
    tree = RecordTree([leaf_of(number, part) for number, part in enumerate(STEP_PARTS)], 2)
    payload = to_msgpack(SignedStep(3, 8, RING_ID, 5, tree.root))
    signature = KEYS[1].sign(signing_bytes(RUN_ID, payload))
    return {
        "parts": [part.decode() for part in STEP_PARTS],
        "root": tree.root.hex(),
        "payload": payload.hex(),
        "signature": signature.hex(),
        "block of chunk 2": (STEP_PARTS[2] + signature + tree.path(2)).hex(),
    }


def equivocation() -> Equivocation:
    """Two `Ready` of the second key with one number."""
    both = [sealed(1, ready(tokens=tokens)) for tokens in (4096, 8192)]
    first, second = sorted(both, key=lambda each: each.payload)
    return Equivocation(first, second)


def packing_vector() -> dict[str, Any]:
    """A chunk whose values all have the same upper byte, so that a frame of one block has it once.

    The frame is written here byte by byte, because its bytes are the choice of who packs: the magic
    number, the descriptor of a single segment, the content's size, and the head of a last block of
    type RLE, which repeats one byte.
    """
    values = np.arange(1024, 1056, dtype=np.float32) / np.float32(1024)
    payload = bytes(codec("fp16").encode(values))
    head, lower, upper = payload[:4], payload[4::2], payload[5::2]
    assert set(upper) == {upper[0]}
    frame = _frame_of_one_byte(upper[0], len(upper))
    return {"bytes": payload.hex(), "packed": (head + lower + frame).hex()}


def place_packing_vector() -> dict[str, Any]:
    """A list of one sparse update with every fourth of 64 values, so that all steps are 3."""
    values = np.zeros(64, np.float32)
    values[3::4] = 1.0
    coder = SparseCodec(1024)
    payload = add_record(None, 1, coder.encode(values))
    places = place_bytes(coder.num_kept(64))
    frame = _frame_of_one_byte(3, coder.num_kept(64))
    return {"bytes": payload.hex(), "packed": (payload[:-places] + frame).hex()}


def _frame_of_one_byte(byte: int, times: int) -> bytes:
    """A frame of zstd that has one byte so many times."""
    block = (times << 3 | 1 << 1 | 1).to_bytes(3, "little") + bytes([byte])
    return bytes.fromhex("28b52ffd") + bytes([0x20, times]) + block


def _imported(run: Manifest) -> Manifest:
    """The same run, begun with the weights of a folder."""
    change = msgspec.structs.replace
    scaling = RopeScaling(
        factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=8192
    )
    shape = ImportedShape(family="llama", head_width=16, rope_scaling=scaling)
    data = change(run.data, tokenizer="files", tokenizer_digest=digest_of(b"files"))
    return change(run, model=change(run.model, imported=shape), data=data)


def _of_adapters(run: Manifest) -> Manifest:
    """The same run, of adapters beside the weights of a folder."""
    change = msgspec.structs.replace
    lora = LoraConfig(rank=8, alpha=16.0, targets=("q_proj", "v_proj"), weights="bf16")
    data = change(run.data, frozen_digest=digest_of(b"list of weights"))
    return change(run, model=change(run.model, lora=lora), data=data)


def checkpoint_vector() -> dict[str, str]:
    """A summary of two members, and a checkpoint with the signature of the first."""
    rows = (CreditRow(PEERS[0], 500, 256, 1, 256), CreditRow(PEERS[1], 300, 9, 4, 200))
    summary = ChainSummary(256, tuple(sorted(rows, key=lambda row: row.peer_id)), 0, bytes(HEAD))
    stakes = tuple(Stake(peer, 64) for peer in sorted(PEERS[:2]))
    checkpoint = ChainCheckpoint(1, RUN_ID, 256, HEAD, 800, stakes, summary.digest)
    signature = KEYS[0].sign(checkpoint_signing_bytes(RUN_ID, checkpoint.digest))
    return {
        "summary": to_msgpack(summary).hex(),
        "checkpoint": to_msgpack(checkpoint).hex(),
        "digest": checkpoint.digest.hex(),
        "signature of key 0": signature.hex(),
    }


def vectors() -> dict[str, Any]:
    """All vectors, bytes as hex."""
    readies: dict[PeerId, Signed] = {
        peer: sealed(index, ready()) for index, peer in enumerate(PEERS)
    }
    roster = make_roster(HEAD, 5, 0, readies, RING_RULES)
    organiser = PEERS.index(PeerId(roster.members[0].author))
    envelope = sealed(organiser, roster)
    ring = open_roster(envelope, roster, RUN_ID, verify, RING_RULES)
    header_bytes = to_msgpack(header_of(ring, tokens_total=100_000))
    say = vote(digest_of(header_bytes), ring_id=ring.ring_id)
    votes = tuple(sealed(index, say) for index in range(2))
    by_author = tuple(sorted(votes, key=lambda one: one.author))
    run = msgspec.structs.replace(manifest(), founder=PEERS[0])
    imported = _imported(run)
    of_adapters = _of_adapters(imported)
    update = UpdateIndex(
        "fp32",
        (
            ChunkAverage(digest_of(b"chunk 0"), mask_bytes(0b111, 3)),
            ChunkAverage(digest_of(b"chunk 1"), mask_bytes(0b101, 3)),
        ),
    )
    ledger = Ledger(((0, 100), (7, 1_000_000)))
    values = np.array([1.0, -0.5, 3.25, 0.0, 1e-3], np.float32)
    spread = np.array([0, 1, -2, 0.5, 7, 0, 0, -0.5, 3, 0, 0.25, -6], np.float32)
    state = index_of(values, np.zeros_like(values), ChunkPlan(5, 4))
    return {
        "keys": [
            {
                "seed": key.private_bytes_raw().hex(),
                "public_key": key.public_key().public_bytes_raw().hex(),
                "peer_id": peer,
            }
            for key, peer in zip(KEYS, PEERS, strict=True)
        ],
        "digest": {"of": b"a run".hex(), "is": digest_of(b"a run").hex()},
        "run_id": RUN_ID.hex(),
        "head": HEAD.hex(),
        "ring_id": RING_ID.hex(),
        "statements": {
            "announce": statement_vector(announce()),
            "ready": statement_vector(ready(commitment=commitment_to(SECRET))),
            "suspect": statement_vector(Accusation(RING_ID, PEERS[1], "reset")),
            "pace": statement_vector(LinkRate(RING_ID, 1, 1_250_000.0, 2_500_000.0)),
            "vote": statement_vector(vote(HEAD, removed=[PEERS[1]])),
            "rollback": statement_vector(Rollback(RING_ID, HEAD, 41)),
            "extend": statement_vector(Extension(2, 40_000_000_000, 8_000_000_000)),
            "data": statement_vector(MoreData(3, HEAD, 250_000_000, 25_000_000_000)),
            "proof": statement_vector(equivocation()),
            "verdict": statement_vector(Verdict(41, HEAD, True, -0.25, 0.5)),
            "sum verdict": statement_vector(SumVerdict(41, HEAD, SECRET, PEERS[1], True)),
        },
        "finished average": finished_average_vector(),
        "passed sum": passed_sum_vector(),
        "signed step": signed_step_vector(),
        "audit secret": audit_secret_vector(),
        "chain checkpoint": checkpoint_vector(),
        "weights": {"tokens": CLAIMED_TOKENS, "weights": capped_tokens(CLAIMED_TOKENS)},
        "records": {
            "chunks": ["a", "b", "c"],
            "root": RECORDS.root.hex(),
            "path of chunk 2": RECORDS.path(2).hex(),
        },
        "robust average": {
            "parts": [part.tolist() for part in PARTS],
            "tokens": [100, 300, 200],
            "average": robust_average(PARTS, robust_weights([100, 300, 200])).tobytes().hex(),
        },
        "robust average without a member that is out": {
            "parts": [part.tolist() for part in OPPOSED_PARTS],
            "tokens": [100, 300, 200, 250],
            "average": robust_average(OPPOSED_PARTS, robust_weights([100, 300, 200, 250]))
            .tobytes()
            .hex(),
        },
        "robust average with members that are alike": {
            "parts": [part.tolist() for part in ALIKE_PARTS],
            "tokens": [100, 300, 200, 250, 150],
            "average": robust_average(ALIKE_PARTS, robust_weights([100, 300, 200, 250, 150]))
            .tobytes()
            .hex(),
        },
        "fragments": {
            "model": msgspec.to_builtins(run.model),
            "ranges": [
                [[part.start, part.stop] for part in ranges]
                for ranges in fragments_of(run.model, 2)
            ],
        },
        "roster": {
            "attempt": 0,
            "ranks": {peer: rank(HEAD, 0, peer).hex() for peer in PEERS},
            "order": rank_order(HEAD, 0, PEERS),
            "envelope": to_msgpack(envelope).hex(),
            "ring_id": ring_id_of(envelope).hex(),
            "own": encode_own(envelope).hex(),
            "compact": encode_compact(envelope, roster).hex(),
        },
        "header": {"bytes": header_bytes.hex(), "digest": digest_of(header_bytes).hex()},
        "commit": to_msgpack(Commit(header_bytes, envelope, votes)).hex(),
        "compact commit": encode_commit(Commit(header_bytes, envelope, by_author)).hex(),
        "update": {"bytes": to_msgpack(update).hex(), "digest": update.digest.hex()},
        "inventory": {
            "num_members": 3,
            "bytes": encode_inventory(
                Inventory((Held(), Held(copy_mask=0b011), Held(0b001, (0b111, HEAD)))), 3
            ).hex(),
        },
        "ledger": {"bytes": to_msgpack(ledger).hex(), "digest": ledger.digest.hex()},
        "state": {
            "parameters": values.astype("<f4").tobytes().hex(),
            "chunk_elements": 4,
            "bytes": to_msgpack(state).hex(),
            "digest": state.digest.hex(),
        },
        "manifest": {
            "bytes": encode_manifest(run).hex(),
            "run_id": run.run_id.hex(),
            "signature": KEYS[0].sign(manifest_signing_bytes(run.run_id)).hex(),
        },
        "imported_manifest": {
            "bytes": encode_manifest(imported).hex(),
            "run_id": imported.run_id.hex(),
        },
        "adapters_manifest": {
            "bytes": encode_manifest(of_adapters).hex(),
            "run_id": of_adapters.run_id.hex(),
        },
        "frame_prefix": {
            "message": 300,
            "payload": 65_536,
            "bytes": encode_prefix(300, 65_536).hex(),
        },
        "codecs": {
            name: {
                "values": [struct.pack("<f", value).hex() for value in values],
                "bytes": bytes(codec(name).encode(values)).hex(),
            }
            for name in codec_names()
        },
        "sums": {
            str(num_members): bytes(
                codec("int4", is_widening=True).of_sum(num_members).encode(values)
            ).hex()
            for num_members in (8, 9, 33, 129)
        },
        "packing": packing_vector(),
        "place packing": place_packing_vector(),
        "sparse": {
            "k": 1024,
            "values": [struct.pack("<f", value).hex() for value in spread],
            "bytes": SparseCodec(1024).encode(spread).hex(),
        },
        "signs": {
            "chunk_coefficients": 4096,
            "indices": [[1, 4095]],
            "is_negative": [[False, True]],
            "bytes": SignCodec([(1, 4096)], 2)
            .encode(SignUpdate(np.array([1, 4095]), np.array([True, False])))
            .hex(),
        },
        "contributions": {
            "members": [1, 3],
            "blocks": ["", b"later".hex()],
            "bytes": add_record(add_record(None, 3, b"later"), 1, b"").hex(),
        },
        "invitation": invitation_vector(),
        "claim_rank": {"partition": 3, "peer_id": PEERS[0], "rank": claim_rank(3, PEERS[0]).hex()},
        "partitions": [
            {
                "tokens_per_round": tokens_per_round,
                "num_shards": num_shards,
                "num_tokens": num_tokens,
                "shards_per_partition": partition_shards(tokens_per_round, num_shards, num_tokens),
            }
            for tokens_per_round, num_shards, num_tokens in (
                (262_400_000, 3_815, 1_000_000_000),  # at least 128 partitions
                (262_400_000, 28_639, 30_000_000_000),  # sixteen a round, rounded up
                (10_400, 3_815, 250_000_000),
                (262_400_000, 40, 160_000),
            )
        ],
    }


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    PATH.write_text(json.dumps(vectors(), indent=1) + "\n")
    print(f"wrote {PATH}")
