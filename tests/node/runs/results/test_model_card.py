"""The model card: what it says of the run, also of an earlier round, and hostile names in it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from gossamer.node.runs.results.credit import read_credits
from gossamer.node.runs.results.model_card import MEMBERS_MAX, model_card
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import LossPoint
from gossamer.protocol.ids import Digest
from gossamer.trainer.export.hugging_face import CARD_MARK
from tests.support.chains import OTHERS, commit_rounds, run_in

A, B, *_ = (each.peer_id for each in OTHERS)
ATTACK = "<script>alert(1)</script>\n---\n# [x](http://x) | \x1b[2J\u202e"
POINTS = [
    LossPoint(round=1, heldout_loss=5.0),
    LossPoint(round=2, heldout_loss=2.5),
    LossPoint(round=3, loss=1.0),
]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state_dir = StateDir(tmp_path / "state")
    manifest = run_in(state_dir, name=ATTACK)
    commit_rounds(state_dir, manifest, [{A: 100, B: 50}, {B: 350}])
    return state_dir


def card_of(state: StateDir, at: Digest | None = None) -> str:
    return model_card(read_credits(state, at), b"\x5a" * 32, POINTS, "bf16").decode()


def test_it_says_what_the_run_was(state: StateDir) -> None:
    credits = read_credits(state)
    text = card_of(state)
    for line in (
        f"| run | `{credits.manifest.run_id.hex()}` |",
        "| tokens | 500 |",
        "| members that gave tokens | 2 |",
        "| held-out loss | 2.5000 nats a token after round 2 |",
        f"| `{B}` | 400 | 80.0% | 2 |",
        f"| state | `{'5a' * 32}` |",
        f"| parameters | {credits.manifest.model.num_parameters:,}, stored as bf16 |",
    ):
        assert f"{line}\n" in text
    assert "| rounds | 2" in text
    assert len(credits.rows) <= MEMBERS_MAX


def test_a_run_on_texts_of_the_members_own_has_no_number_of_tokens(state: StateDir) -> None:
    credits = read_credits(state, None)
    data = replace(credits.manifest.data, own=True, num_tokens=0)
    credits = dataclasses.replace(credits, manifest=replace(credits.manifest, data=data))
    card = model_card(credits, b"\x5a" * 32, POINTS, "bf16").decode()
    assert "| training text | each member's own, which the others do not know |" in card


def test_an_earlier_round_has_its_own_numbers(state: StateDir) -> None:
    newest = read_credits(state)
    signed = newest.manifest
    chain = ChainStore(
        state.chain_path, signed.run_id, Digest(signed.genesis_digest), read_only=True
    )
    text = card_of(state, chain.entry(newest.head).parent)
    assert "| rounds | 1" in text
    assert "| tokens | 150 |" in text
    assert "5.0000 nats a token after round 1 |" in text


def test_the_licence_is_left_to_the_founder(state: StateDir) -> None:
    _, head, body = card_of(state).split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields["library_name"] == "transformers"
    assert "license" not in fields
    assert "# license: " in head
    assert body.startswith(CARD_MARK)


def test_a_name_cannot_write_on_the_card(state: StateDir) -> None:
    text = card_of(state)
    assert not re.search(r"(?<!\\)[<\[|]\s*(script|x\])", text)
    assert "[x](http" not in text
    assert not any(letter in text for letter in "\x1b\u202e")
    titles = [line for line in text.splitlines() if line.startswith("# ") and "license" not in line]
    assert len(titles) == 1
