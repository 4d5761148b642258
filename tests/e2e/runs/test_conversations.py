"""Two peers teach a model to answer, each with conversations of its own."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.telemetry.status import Status
from tests.support.daemons import (
    PATIENCE_SECONDS,
    gossamer,
    in_rounds_of,
    losses_until,
    shared_rounds,
    wait_for_round,
)
from tests.support.model_folders import config_of_family, make_folder

pytestmark = pytest.mark.e2e

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
)
ROUNDS = 15

MANIFEST = """\
preset = "tiny"
data = "own"
[corpus]
format = "messages"
[model]
context = 64
[inner]
learning_rate = 3e-3
warmup_steps = 10
total_steps = 2_000
sequences_per_step = 8
[outer]
codec = "int4"
inner_steps = 10
warmup_rounds = 0
[rounds]
gather_seconds = 5.0
attempt_seconds = 2.0
"""


def talks(path: Path, seed: int, number: int = 300) -> Path:
    """Questions that are drawn, with one answer."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for _ in range(number):
            asked = "".join(draw.choices("abcdefgh", k=12))
            messages = [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": "the answer is yes"},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def knows_the_answer(status: Status) -> bool:
    return status.heldout_loss is not None and status.heldout_loss < 0.6


@pytest.mark.long
def test_answers_are_learnt_and_conversations_stay_at_home(
    swarm: LocalSwarm, tmp_path: Path
) -> None:
    make_folder(tmp_path / "model", config_of_family("llama", tie_word_embeddings=True))
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": CHATML}))
    (tmp_path / "run.toml").write_text(MANIFEST)
    founder = swarm.found(
        *("--init-from", str(tmp_path / "model"), "--manifest", str(tmp_path / "run.toml")),
        *("--corpus", str(talks(tmp_path / "a.jsonl", 1)), "--wait-for-peers", "1"),
        *("--heldout", str(talks(tmp_path / "h.jsonl", 2, 50))),
    )
    other = swarm.join(founder.address(), "--corpus", str(talks(tmp_path / "b.jsonl", 3)))
    founder.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    losses = losses_until(founder, ROUNDS)
    # Questions are drawn of eight letters: with them in the loss it would stay above 0.5.
    assert losses[max(losses)] < 0.4 < 1.0 < losses[1]
    # An evaluation is due by time, and these rounds take a fifth of a second.
    founder.wait_for(knows_the_answer, PATIENCE_SECONDS, "held-out loss")
    wait_for_round(other, ROUNDS)
    for node in (founder, other):
        assert node.leave() == 0, node.tail()
    assert len(shared_rounds(founder, other)) >= ROUNDS
    prompt = "<|im_start|>user\nabcabcabcabc<|im_end|>\n<|im_start|>assistant\n"
    said = gossamer("generate", prompt, "--temperature", "0", "--state-dir", str(other.root))
    assert "the answer is yes" in said.out
