"""Runs of adapters: what the manifest allows, what their parameters are, and the frozen weights."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.lora import TARGETS, LoraConfig
from gossamer.protocol.manifest import Manifest, decode_manifest, encode_manifest
from gossamer.protocol.manifest_checks import problems_of
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.frozen_weights import blocks_of, decode_list, values_of
from gossamer.protocol.state.parameter_layout import layout_of
from gossamer.protocol.state.sync_sets import fragments_of
from tests.support.builders import manifest

LORA = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "down_proj"), weights="bf16")


def of_adapters(lora: LoraConfig = LORA) -> Manifest:
    good = manifest()
    data = replace(good.data, frozen_digest=bytes(32))
    return replace(good, data=data, model=replace(good.model, lora=lora))


def test_a_manifest_of_adapters_comes_back_and_older_ones_keep_their_bytes() -> None:
    run = of_adapters()
    assert problems_of(run) == []
    assert decode_manifest(encode_manifest(run)) == run
    assert run.model.whole == manifest().model
    for name in (b"lora", b"frozen"):
        assert name not in encode_manifest(manifest())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank": 0}, "model.lora.rank is 0; allowed: 1 to 1024"),
        ({"alpha": float("nan")}, "model.lora.alpha is nan"),
        ({"alpha": 0.0}, "model.lora.alpha is 0.0"),
        ({"targets": ()}, "model.lora.targets is empty"),
        ({"targets": ("v_proj", "q_proj")}, "each once and in this order"),
        ({"targets": ("q_proj", "q_proj")}, "each once and in this order"),
    ],
)
def test_a_mistake_in_the_adapters_is_said(change: dict[str, object], said: str) -> None:
    wrong = of_adapters(replace(LORA, **change))
    assert any(said in problem for problem in problems_of(wrong))
    with pytest.raises(MalformedError):
        decode_manifest(encode_manifest(wrong))


def test_what_does_not_go_with_adapters_is_refused() -> None:
    run = of_adapters()
    shared = replace(run, sync="distro", outer=replace(run.outer, warmup_rounds=0))
    muon = replace(run, inner=replace(run.inner, optimizer="muon"))
    without = replace(run, data=manifest().data)
    beside = replace(manifest(), data=run.data)
    for wrong, said in (
        (shared, 'model.lora is for sync = "diloco" and "sparse"'),
        (muon, 'inner.optimizer is "muon"; with model.lora only "adamw"'),
        (without, "a manifest has both, or neither"),
        (beside, "a manifest has both, or neither"),
    ):
        assert [problem for problem in problems_of(wrong) if said in problem], said
    assert not problems_of(replace(run, sync="sparse"))


def test_weights_beyond_a_list_of_blocks_are_refused() -> None:
    run = of_adapters()
    huge = replace(run.model, width=65_536, hidden_width=262_144, num_layers=256)
    assert any(
        "blocks of the frozen weights" in each for each in problems_of(replace(run, model=huge))
    )


def model_of(targets: tuple[str, ...]) -> ModelConfig:
    lora = replace(LORA, targets=targets)
    return ModelConfig(
        num_layers=3, width=32, num_heads=4, num_kv_heads=2, hidden_width=48, vocabulary=64,
        context=16, tied_embeddings=False, lora=lora,
    )  # fmt: skip


def test_the_parameters_are_a_and_b_of_each_target() -> None:
    model = model_of(TARGETS)
    layout = layout_of(model)
    assert sum(tensor.num_elements for tensor in layout) == model.num_parameters
    matrices = {tensor.name: tensor for tensor in layout_of(model.whole)}
    for a, b in zip(layout[::2], layout[1::2], strict=True):
        matrix = matrices[a.name.replace("lora_A.", "")]
        assert a.name.replace("lora_A", "lora_B") == b.name
        assert (b.shape[0], a.shape[1]) == matrix.shape
        assert a.shape[0] == b.shape[1] == 4
    assert len(layout) == 2 * 7 * 3


def test_fragments_hold_every_adapter_once() -> None:
    model = model_of(("k_proj", "up_proj"))
    held = np.zeros(model.num_parameters, int)
    for ranges in fragments_of(model, 2):
        for part in ranges:
            held[part] += 1
    assert (held == 1).all()


@pytest.mark.parametrize("weights", ["bf16", "fp32", msgspec.UNSET])
def test_frozen_weights_come_back_from_their_blocks(
    weights: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BLOCK_BYTES_MAX", 4096)
    model = model_of(("q_proj",))
    assert model.lora
    lora = replace(model.lora, weights=weights)
    model = replace(model, lora=lora)
    values = np.random.default_rng(0).standard_normal(model.whole.num_parameters, np.float32)
    blocks = list(blocks_of(values, lora))
    assert sum(map(len, blocks)) == model.frozen_bytes
    again = np.concatenate([values_of(block, lora) for block in blocks])
    assert np.abs(again - values).max() <= (2**-8 * 4 if weights == "bf16" else 0)
    # A model that is bf16 already loses nothing.
    exact = np.concatenate([values_of(each, lora) for each in blocks_of(again, lora)])
    np.testing.assert_array_equal(exact, again)

    digests = tuple(map(digest_of, blocks))
    assert decode_list(to_msgpack(digests), model) == digests
    for wrong in (
        to_msgpack(digests[:-1]),
        to_msgpack((*digests, digests[0])),
        msgspec.msgpack.encode([digest[:31] for digest in digests]),
        b"\xc1",
    ):
        with pytest.raises(MalformedError):
            decode_list(wrong, model)
