"""The committed test vectors are what the code does, and what SPEC.md quotes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gossamer.protocol.codecs.contributions import split
from gossamer.protocol.codecs.payloads import payloads_named
from gossamer.protocol.codecs.sign_codec import SignCodec
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import (
    DataConfig,
    InnerConfig,
    OuterConfig,
    RoundConfig,
    decode_manifest,
)
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.policy.conduct.equivocation import open_equivocation
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.rounds.commit_proof import open_commit
from gossamer.protocol.rounds.roster import open_roster
from gossamer.protocol.state.commit_records import decode_commit
from gossamer.protocol.wire.envelopes import check_signature, decode_signed, open_signed
from gossamer.protocol.wire.gossip_messages import decode_compact, decode_own, put_together
from gossamer.protocol.wire.invitation_messages import decode_page
from gossamer.protocol.wire.opening_messages import Opened, decode_answer, decode_question
from gossamer.protocol.wire.ring_messages import ChunkMessage, decode_to_receiver
from gossamer.protocol.wire.statements import Equivocation, Roster, Signed
from tests.protocol.make_vectors import PATH, PEERS, vectors, verify
from tests.support.builders import RING_RULES

SPEC = Path(__file__).parents[2] / "protocol" / "SPEC.md"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(PATH.read_text())
    return content


def test_the_code_writes_the_committed_bytes(committed: dict[str, Any]) -> None:
    """The code writes the committed bytes. A failure means that the wire has changed: raise the
    protocol's version, or undo the change."""
    assert json.loads(json.dumps(vectors())) == committed


def test_the_committed_bytes_are_accepted(committed: dict[str, Any]) -> None:
    run_id = Digest(bytes.fromhex(committed["run_id"]))
    for statement in committed["statements"].values():
        signed = decode_signed(bytes.fromhex(statement["envelope"]))
        open_signed(signed, run_id, verify)
    finished = committed["finished average"]
    proof = open_signed(decode_signed(bytes.fromhex(finished["proof"])), run_id, verify)
    assert isinstance(proof, Equivocation)
    assert open_equivocation(proof, run_id, verify) == (3, 8)
    message = decode_to_receiver(bytes.fromhex(finished["message"]))
    assert isinstance(message, ChunkMessage)
    said = {(each.payload.hex(), each.signature) for each in (proof.first, proof.second)}
    assert (finished["payload"], message.signature) in said
    passed = committed["passed sum"]
    message = decode_to_receiver(bytes.fromhex(passed["message"]))
    assert isinstance(message, ChunkMessage)
    answer = decode_answer(bytes.fromhex(passed["answer"]))
    assert isinstance(answer, Opened)
    (step,) = answer.steps
    assert step.signature == message.signature == bytes.fromhex(passed["signature"])
    check_signature(
        Signed(PEERS[1], bytes.fromhex(passed["payload"]), step.signature), run_id, verify
    )
    assert not decode_question(bytes.fromhex(passed["question"])).with_part
    envelope = decode_signed(bytes.fromhex(committed["roster"]["envelope"]))
    roster = open_signed(envelope, run_id, verify)
    assert isinstance(roster, Roster)
    ring = open_roster(envelope, roster, run_id, verify, RING_RULES)
    assert ring.ring_id.hex() == committed["roster"]["ring_id"]
    assert list(ring.members) == committed["roster"]["order"]
    compact = decode_compact(bytes.fromhex(committed["roster"]["compact"]))
    named = {one.digest[:8]: one for one in roster.members}
    assert put_together(ring.organiser, compact, named) == envelope
    own = bytes.fromhex(committed["roster"]["own"])
    assert decode_own(ring.organiser, own) == envelope
    commit = decode_commit(bytes.fromhex(committed["commit"]))
    header = open_commit(commit, run_id, verify, RING_RULES)
    assert header.digest.hex() == committed["header"]["digest"]
    short = decode_commit(bytes.fromhex(committed["compact commit"]))
    assert (short.header, short.roster) == (commit.header, commit.roster)
    assert {*short.votes} == {*commit.votes}
    for name in ("manifest", "imported_manifest", "adapters_manifest"):
        run = decode_manifest(bytes.fromhex(committed[name]["bytes"]))
        assert run.run_id.hex() == committed[name]["run_id"]
    for name, vector in committed["codecs"].items():
        values = np.frombuffer(bytes.fromhex("".join(vector["values"])), "<f4")
        decoded = codec(name).decode(bytes.fromhex(vector["bytes"]), len(values))
        bound = {"fp32": 0.0, "fp16": 2**-11, "int8": 1 / 252, "int4": 0.16}[name]
        assert np.abs(decoded - values).max() <= bound * np.abs(values).max()
    values = np.frombuffer(bytes.fromhex("".join(committed["codecs"]["int4"]["values"])), "<f4")
    assert committed["sums"]["8"] == committed["codecs"]["int4"]["bytes"]
    for num_members, bound in (("9", 0.115), ("33", 0.06), ("129", 0.036)):
        coder = codec("int4", is_widening=True).of_sum(int(num_members))
        decoded = coder.decode(bytes.fromhex(committed["sums"][num_members]), len(values))
        assert np.abs(decoded - values).max() <= bound * np.abs(values).max()
    packing = payloads_named("fp16", is_packing=True).packing(32, 1)
    assert packing is not None
    packed = bytes.fromhex(committed["packing"]["packed"])
    assert packing.is_length(len(packed))
    assert bytes(packing.unpack(packed)).hex() == committed["packing"]["bytes"]
    packing = payloads_named("sparse", 1024, is_packing=True).packing(64, 0b10)
    assert packing is not None
    packed = bytes.fromhex(committed["place packing"]["packed"])
    assert packing.is_length(len(packed))
    assert bytes(packing.unpack(packed)).hex() == committed["place packing"]["bytes"]
    invitation = committed["invitation"]
    roll = Roll(run_id, [PeerId(committed["keys"][0]["peer_id"])], verify)
    roll.add(decode_page(bytes.fromhex(invitation["page"])))
    newcomer = PeerId(committed["keys"][1]["peer_id"])
    assert roll.was_member(newcomer)
    assert not roll.is_member(newcomer)
    assert roll.digest().hex() == invitation["roll_digest"]
    sparse = committed["sparse"]
    values = np.frombuffer(bytes.fromhex("".join(sparse["values"])), "<f4")
    vector = SparseCodec(sparse["k"]).decode(bytes.fromhex(sparse["bytes"]), len(values))
    assert vector.places.tolist() == [4, 8, 11]
    assert vector.values.tolist() == [6.5, 3.0, -6.5]
    signs = committed["signs"]
    sign_codec = SignCodec([(1, signs["chunk_coefficients"])], 2)
    found = sign_codec.decode(bytes.fromhex(signs["bytes"]))
    assert [found.places.tolist()] == signs["indices"]
    assert [(~found.is_positive).tolist()] == signs["is_negative"]
    contributions = committed["contributions"]
    records = split(bytes.fromhex(contributions["bytes"]), 0b1010, 5)
    assert [record.position for record in records] == contributions["members"]
    assert [record.block.hex() for record in records] == contributions["blocks"]


def test_what_the_specification_quotes_is_in_the_vectors(committed: dict[str, Any]) -> None:
    known = json.dumps(committed)
    text = SPEC.read_text()
    quoted = [line.split()[-1] for line in text.splitlines() if line.startswith("    = ")]
    assert len(quoted) >= 8
    for value in quoted:
        assert value in known, f"SPEC.md quotes {value}"


@pytest.mark.parametrize(
    ("section", "declared"),
    [
        ("model", ModelConfig),
        ("inner", InnerConfig),
        ("outer", OuterConfig),
        ("rounds", RoundConfig),
        ("data", DataConfig),
    ],
)
def test_the_specification_names_the_fields_of_the_manifest_in_their_order(
    section: str, declared: type[msgspec.Struct]
) -> None:
    """Another order is another run id, and no canonical form."""
    text = SPEC.read_text()
    (row,) = re.findall(rf"^\| `{section}` \| map \| (.*) \|$", text, re.MULTILINE)
    fields = declared.__struct_fields__
    named = [name for name in re.findall(r"`(\w+)`", row) if name in fields]
    assert tuple(dict.fromkeys(named)) == fields
