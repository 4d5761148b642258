"""The guide "train your own model", from a folder to generated text, with its own commands."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.runs.founding.importing import with_pretrained
from gossamer.node.runs.planning.draft import problems_of_draft
from gossamer.node.runs.planning.manifest_file import read_manifest_file
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.folder import open_pretrained
from tests.support.daemons import (
    PATIENCE_SECONDS,
    Answer,
    digests_on_disk,
    gossamer,
    in_rounds_of,
    losses_until,
    poll,
    said,
    wait_for_round,
)
from tests.support.model_folders import config_of_family, make_folder

pytestmark = pytest.mark.e2e

GUIDE = Path(__file__).parents[3] / "docs/guides/train-your-own-model.md"
ROUNDS = 20

SMALL = """\
preset = "tiny"
[model]
context = 32
[inner]
learning_rate = 2e-3
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
checkpoint_rounds = 5
"""
"""The guide's manifest, for a model and a machine that take seconds instead of hours."""


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def ask(node: LocalNode, command: list[str]) -> Answer:
    """Runs a command of the guide on one of the machines."""
    answer = gossamer(*command, "--state-dir", node.root)
    assert answer.status == 0, answer
    return answer


@contextmanager
def served(node: LocalNode, command: list[str]) -> Iterator[httpx.Client]:
    """A client of the guide's server on one of the machines, at a free port."""
    place = command.index("--bind") + 1
    chosen = [*command[:place], "127.0.0.1:0", *command[place + 1 :]]
    with subprocess.Popen(
        [sys.executable, "-m", "gossamer.node.cli", *chosen, "--state-dir", str(node.root)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[0]
            with httpx.Client(base_url=address, timeout=PATIENCE_SECONDS) as client:
                yield client
        finally:
            process.terminate()
    assert process.returncode == 0


def model_of(client: httpx.Client) -> dict[str, Any]:
    (model,) = client.get("models").json()["data"]
    return dict(model)


def newer_than(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    return other if other["round"] > first["round"] else None


def test_the_guide_leads_from_a_folder_to_text(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of_family("llama", tie_word_embeddings=True, rope_theta=100_000)
    make_folder(Path("smollm2"), config)
    Path("texts").symlink_to(corpus)
    Path("run.toml").write_text(SMALL)
    commands = [shlex.split(line)[1:] for fence in fences("sh") for line in fence.splitlines()]
    start, join, status, generate, serve, export, to_gguf = commands
    names = ["start", "join", "status", "generate", "serve", "export", "export"]
    assert [command[0] for command in commands] == names

    founder = swarm.add()
    founder.start(*start)
    other = swarm.join(founder.address())
    assert join == ["join", "LINK"]
    founder.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    # No round began before the other was there, so it fetched the weights of the folder.
    assert not said(other, "draws other initial weights")
    with served(other, serve) as client:
        first = model_of(client)
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        chats = [client.post("chat/completions", json=chat | {"seed": n}) for n in range(4)]
        assert [each.status_code for each in chats] == [200] * 4
        bodies = [each.json() for each in chats]
        assert {body["model"] for body in bodies} == {first["id"]}
        # Random weights may end a text at once, but not every time.
        assert any(body["choices"][0]["message"]["content"] for body in bodies)
        losses = losses_until(founder, ROUNDS)
        newer = poll(lambda: newer_than(first, model_of(client)), "newer model")
        assert newer["state"] != first["state"]
    assert losses[max(losses)] < losses[1] - 0.2
    wait_for_round(other, ROUNDS)
    assert "round" in ask(other, status).out

    answers = [ask(other, generate) for _ in range(2)]
    for answer in answers:
        assert answer.out.startswith("The ring commits")
        assert len(answer.out) > len("The ring commits\n")
        assert int(answer.err.split()[1].rstrip(",")) >= ROUNDS - 5
    for node in (founder, other):
        assert node.leave() == 0, node.tail()
        assert "Traceback" not in node.tail(10_000)
    chains = [digests_on_disk(node) for node in (founder, other)]
    shared = set(chains[0]) & set(chains[1])
    assert len(shared) >= ROUNDS
    assert all(chains[0][number] == chains[1][number] for number in shared)

    newest = max(shared)
    texts = {ask(node, [*generate, "--round", str(newest)]).out for node in (founder, other)}
    assert len(texts) == 1
    ask(other, export)
    ask(other, to_gguf)
    better = open_pretrained(Path("better"))
    weights = better.weights.read()
    gguf = pytest.importorskip("gguf")
    (embedding,) = (
        tensor
        for tensor in gguf.GGUFReader("better-gguf/model.gguf").tensors
        if tensor.name == "token_embd.weight"
    )
    values = gguf.quants.dequantize(embedding.data, embedding.tensor_type).ravel()
    np.testing.assert_array_equal(values, weights[: values.size])
    assert np.abs(weights - open_pretrained(Path("smollm2")).weights.read()).max() > 1e-3
    transformers = pytest.importorskip("transformers")
    # `print` of the guide's program goes to the captured output.
    exec(fences("python")[0], {})
    template = transformers.AutoTokenizer.from_pretrained("better").apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False
    )
    assert template == "<|im_start|>hi<|im_end|>"


@pytest.mark.parametrize(("number", "num_parameters"), [(0, 134_515_008), (1, 1_843_200)])
def test_the_guides_manifests_fit_the_model_that_they_name(
    tmp_path: Path, number: int, num_parameters: int
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(fences("toml")[number])
    make_folder(tmp_path / "small", config_of_family("llama"))
    smollm2 = config_of_family(
        "llama",
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49_152,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    small = open_pretrained(tmp_path / "small")
    pretrained = dataclasses.replace(small, model=model_of_config(smollm2))
    assert pretrained.model.num_parameters == 134_515_008  # as published
    draft = with_pretrained(read_manifest_file(path), pretrained)
    assert not problems_of_draft(draft)
    assert draft.model.num_parameters == num_parameters


def test_a_folder_that_cannot_be_trained_is_refused_at_once(tmp_path: Path, corpus: Path) -> None:
    folder = tmp_path / "model"
    make_folder(folder, config_of_family("mistral"))
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace('"sliding_window": null', '"sliding_window": 9')
    )
    state_dir = tmp_path / "state"
    command = ("start", "--init-from", folder, "--corpus", corpus, "--state-dir", state_dir)
    ports = ("--listen", "/ip4/127.0.0.1/tcp/0", "--api", "127.0.0.1:0")
    answer = gossamer(*command, *ports)
    assert answer.status == 2
    assert "sliding_window is 9; attention over a sliding window is not supported" in answer.err
    missing = gossamer("start", "--init-from", tmp_path / "none", "--state-dir", state_dir, *ports)
    assert missing.status == 2
    assert "none: no such file or directory" in missing.err
