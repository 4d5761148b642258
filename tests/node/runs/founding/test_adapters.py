"""Founding a run of adapters on a folder, its consent numbers, and its exports against
`transformers`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from gossamer.node.base.settings.settings import Settings
from gossamer.node.cli import run_command
from gossamer.node.network.identity import Identity
from gossamer.node.runs.founding.founding import prepare_data, sign_manifest
from gossamer.node.runs.founding.importing import with_pretrained, write_frozen
from gossamer.node.runs.planning.draft import Draft, problems_of_draft
from gossamer.node.runs.planning.manifest_file import parse_manifest_file, render
from gossamer.node.runs.planning.needs import describe, needs_of
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.node.runs.results.reading import read_state
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state.restoring import open_read_only
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import Digest
from gossamer.protocol.model_config import Family
from gossamer.trainer.model import Decoder
from gossamer.trainer.pretrained.folder import Pretrained, open_pretrained
from gossamer.trainer.pretrained.weights import _read_header
from tests.support.gguf_forward import GgufModel
from tests.support.model_folders import (
    VOCABULARY,
    config_of_family,
    make_folder,
    tensors_of,
    write_safetensors,
)

MANIFEST = """\
preset = "tiny"
[model]
context = 32
[model.lora]
rank = 4
alpha = 16
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""


ADAPTER_FILES = {"adapter_config.json", "adapter_model.safetensors"}


def draft_of(folder: Path, text: str = MANIFEST) -> tuple[Draft, Pretrained]:
    pretrained = open_pretrained(folder)
    return with_pretrained(parse_manifest_file(text, folder), pretrained), pretrained


def found_adapters(root: Path, family: Family, **changes: Any) -> Settings:
    """A state directory with a run of adapters whose first state has no zeros, as after rounds.
    Their products are a tenth of the matrices."""
    (root / "texts").mkdir()
    for number in range(20):
        (root / "texts" / f"{number}.txt").write_text(f"Text {number}.\n" + "some words\n" * 50)
    make_folder(root / "model", config_of_family(family, **changes))
    draft, pretrained = draft_of(root / "model")
    settings = Settings(state_dir=root / "state")
    state_dir = StateDir(settings.state_dir)
    adapters = np.random.default_rng(0).normal(0, 0.05, draft.model.num_parameters)
    with state_dir.locked():
        identity = Identity.load_or_create(state_dir.identity_path)
        put = BlockStore(state_dir.blocks_path, settings.cache_bytes).put
        data = prepare_data(draft, [root / "texts"], put=put)
        assert draft.model.lora
        # A cache that is far too small for the weights keeps them and the corpus.
        data = write_frozen(
            data, pretrained.weights.read(), draft.model.lora, state_dir.blocks_path, 1000
        )
        parameters = adapters.astype(np.float32)
        founded = sign_manifest(draft, data, parameters, identity=identity)
        state_dir.write_manifest(founded.signed)
    with state_dir.locked():
        committed, store = open_read_only(founded.manifest, state_dir, settings.cache_bytes)
        shards = (*data.index.shards, *data.index.heldout)
        assert not store.missing([Digest(shard.digest) for shard in shards])
        store = BlockStore(state_dir.blocks_path, settings.cache_bytes)
        write_first_state(store, parameters, founded.manifest.outer.chunk_elements)
        assert committed.begins_with_drawn_weights
    return settings


def write_first_state(store: BlockStore, parameters: np.ndarray, chunk_elements: int) -> None:
    from gossamer.node.storage.state.state_blocks import StateVectors, write_state
    from gossamer.protocol.accounting.ledger import Ledger
    from gossamer.protocol.state.chunk_plan import ChunkPlan
    from gossamer.protocol.state.digest import index_of

    plan, momentum = ChunkPlan(parameters.size, chunk_elements), np.zeros_like(parameters)
    index = index_of(parameters, momentum, plan)
    write_state(store, plan, StateVectors(parameters, momentum, index), Ledger())


def export(settings: Settings, folder: Path, *options: str) -> int:
    return run_command(["export", str(folder), "--state-dir", str(settings.state_dir), *options])


def logits_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(tokens).logits
    return logits


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    return {
        name: torch.frombuffer(
            bytearray(data[place.start :]), dtype=torch.float32, count=int(np.prod(place.shape))
        ).view(*place.shape)
        for name, place in _read_header(path).items()
    }


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", {}), ("qwen2", {"tie_word_embeddings": True}), ("qwen3", {}), ("olmo2", {})],
)
def test_a_merged_export_computes_what_folder_and_adapters_do(
    tmp_path: Path, family: Family, changes: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    settings = found_adapters(tmp_path, family, **changes)
    assert export(settings, tmp_path / "merged") == 0
    assert export(settings, tmp_path / "adapter", "--adapter") == 0
    tokens = torch.randint(0, VOCABULARY, (3, 30), generator=torch.Generator().manual_seed(0))

    # By PEFT's rules: names without `base_model.model.` and the factor's own are modules' of the
    # model, to whose product `lora_alpha / r * B A x` is added.
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    factors = read_tensors(tmp_path / "adapter" / "adapter_model.safetensors")
    load = transformers.AutoModelForCausalLM.from_pretrained
    # In fp64, so that what differs is the rounding of the merged weights to fp32.
    model = load(tmp_path / "model", dtype=torch.float64)
    before = logits_of(model, tokens)
    modules = {name.removeprefix("base_model.model.").rsplit(".", 2)[0] for name in factors}
    assert len(modules) == len(factors) / 2 == 7 * 2
    for name in modules:
        assert name.rpartition(".")[2] in config["target_modules"]
        a, b = (factors[f"base_model.model.{name}.lora_{one}.weight"].double() for one in "AB")
        assert a.shape[0] == b.shape[1] == config["r"]
        model.get_submodule(name).register_forward_hook(
            lambda _module, inputs, output, a=a, b=b: (
                output + config["lora_alpha"] / config["r"] * inputs[0] @ a.T @ b.T
            )
        )
    both = logits_of(model, tokens)
    merged = logits_of(load(tmp_path / "merged", dtype=torch.float64), tokens)
    assert (both - before).abs().max() > 0.1
    assert (merged - both).abs().max() < 1e-5

    state = read_state(settings, adapters_alone=True)
    frozen = open_pretrained(tmp_path / "model").weights.read()
    decoder = Decoder(state.model)
    decoder.load_frozen(iter([frozen]))
    decoder.flat.copy_(torch.from_numpy(state.parameters))
    with torch.no_grad():
        assert (decoder(tokens) - both).abs().max() < 1e-5


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return found_adapters(tmp_path_factory.mktemp("run"), "llama")


def test_other_exports_have_the_merged_weights(settings: Settings, tmp_path: Path) -> None:
    assert export(settings, tmp_path / "merged") == 0
    assert export(settings, tmp_path / "gguf", "--gguf") == 0
    merged = read_tensors(tmp_path / "merged" / "model.safetensors")
    read = GgufModel(tmp_path / "gguf" / "model.gguf").tensors["blk.1.ffn_down.weight"]
    torch.testing.assert_close(read, merged["model.layers.1.mlp.down_proj.weight"], rtol=0, atol=0)
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "adapters (LoRA) of 3,712 parameters: rank 4, alpha 16" in card


def test_a_base_model_beside_adapters_stays(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "out", config_of_family("llama"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert export(settings, tmp_path / "out", "--adapter", "--force", "--dtype", "bf16") == 0
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in before
    assert after.keys() - before.keys() == ADAPTER_FILES
    assert before.items() <= after.items()
    assert export(settings, tmp_path / "other", "--adapter", "--gguf") == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_merged_export_leaves_no_adapters_beside_it(settings: Settings, tmp_path: Path) -> None:
    """Programs that load the folder would apply them a second time."""
    assert export(settings, tmp_path / "out", "--adapter") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == ADAPTER_FILES
    assert export(settings, tmp_path / "out", "--force") == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in names
    assert not names & ADAPTER_FILES


def test_adapters_that_no_export_wrote_stay(settings: Settings, tmp_path: Path) -> None:
    assert export(settings, tmp_path / "out", "--adapter") == 0
    path = tmp_path / "out" / "adapter_config.json"
    theirs = json.loads(path.read_text()) | {"peft_version": "0.21.2"}
    for content in (json.dumps(theirs), "[]", "not JSON"):
        path.write_text(content)
        assert export(settings, tmp_path / "out", "--force") == 0
        assert {path.name for path in (tmp_path / "out").iterdir()} >= ADAPTER_FILES


def test_adapters_are_not_written_beside_a_merged_model(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(settings, tmp_path / "out") == 0
    before = {path.name for path in (tmp_path / "out").iterdir()}
    assert export(settings, tmp_path / "out", "--adapter", "--force") == 2
    assert "name another folder" in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in (tmp_path / "out").iterdir()} == before


def test_adapters_are_written_beside_a_base_model_that_an_export_of_another_run_wrote(
    settings: Settings, tmp_path: Path
) -> None:
    """A run can begin with the model that another one made, whose folder then is a base model."""
    folder = tmp_path / "out"
    assert export(settings, folder) == 0
    own_run = read_state(settings).manifest.run_id.hex()
    card = (folder / "README.md").read_text()
    assert own_run in card
    (folder / "README.md").write_text(card.replace(own_run, "ab" * 32))
    assert export(settings, folder, "--adapter", "--force") == 0
    assert {path.name for path in folder.iterdir()} >= {*ADAPTER_FILES, "model.safetensors"}


def test_generate_reads_the_merged_model(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ("--state-dir", str(settings.state_dir))
    assert run_command(["generate", "some", "--tokens", "4", *where]) == 0
    assert capfd.readouterr().out.startswith("some")


def test_weights_that_are_gone_are_told(settings: Settings) -> None:
    state = read_state(settings)
    store = BlockStore(StateDir(settings.state_dir).blocks_path, 2**30)
    listed = Digest(state.manifest.data.frozen_digest or b"")
    data = store.get(listed)
    store.path(listed).unlink()
    try:
        assert read_state(settings, adapters_alone=True).model.lora
        with pytest.raises(StateDirError, match=r"are not whole in .* Start the node"):
            read_state(settings)
    finally:
        store.path(listed).write_bytes(data)


@pytest.mark.parametrize("text", [MANIFEST, 'preset = "tiny"\n[corpus]\nformat = "messages"\n'])
def test_a_run_that_begins_with_a_model_is_not_planned_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "run.toml").write_text(text)
    assert run_command(["plan", str(tmp_path / "run.toml")]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "gossamer plan --init-from FOLDER" in " ".join(said.err.split())


def test_adapters_are_planned_for_the_model_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "model", config_of_family("llama"))
    (tmp_path / "run.toml").write_text(MANIFEST)
    command = ["plan", "--init-from", str(tmp_path / "model"), "--json"]
    assert run_command([*command, str(tmp_path / "run.toml")]) == 0
    said = json.loads(capsys.readouterr().out)
    draft, pretrained = draft_of(tmp_path / "model")
    assert said["parameters"] == draft.model.num_parameters == 3712
    planned = plan_round(draft, 4, Line(20, 100, 0.02))
    assert said["payload_bytes"] == planned.payload_bytes
    assert said["state_bytes"] == planned.state_bytes

    assert run_command([*command, "--preset", "tiny"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == pretrained.model.num_parameters
    assert run_command(["plan", "--init-from", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_the_draft_has_the_folders_shape_and_type(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "model", config_of_family("llama"))
    draft, pretrained = draft_of(tmp_path / "model")
    assert not problems_of_draft(draft)
    assert draft.model.lora
    assert draft.model.lora.weights == "fp32"
    assert draft.model.whole == replace(pretrained.model, context=32)
    assert draft.model.num_parameters == 3712
    assert draft.outer.chunk_elements == 1024

    flat = pretrained.weights.read()
    tensors = {
        name: (values.view(np.uint32) >> 16).astype(np.uint16)
        for name, values in tensors_of(model, flat).items()
    }
    write_safetensors(tmp_path / "model" / "model.safetensors", tensors, dtype="BF16")
    assert draft_of(tmp_path / "model")[0].model.frozen_bytes == 2 * model.num_parameters
    chosen = draft_of(tmp_path / "model", MANIFEST + 'weights = "fp32"\n')[0]
    assert chosen.model.frozen_bytes == 4 * model.num_parameters


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("[inner]\noptimizer = 'muon'", 'with model.lora only "adamw"'),
        ("[model.lora]\nrank = 0\nalpha = 1\ntargets = ['q_proj']", "model.lora.rank is 0"),
        ("[model.lora]\nrank = 4\nalpha = 1\ntargets = ['lm_head']", "Invalid enum value"),
        ("[model.lora]\nrank = 4", "a table [model.lora] with rank and alpha"),
        ("[model.lora]\nrank = 4\nalpha = 1\ntargets = ['q_proj']\nr = 1", "unknown field `r`"),
        ("[model]\nlora = 4", "model.lora is 4"),
    ],
)
def test_a_mistake_in_a_manifest_file_is_said(tmp_path: Path, lines: str, said: str) -> None:
    text = 'preset = "tiny"\n' + lines
    if "optimizer" in lines:
        text = MANIFEST + lines
    with pytest.raises(ManifestError) as raised:
        parse_manifest_file(text, tmp_path)
    assert any(said in problem for problem in raised.value.problems), raised.value.problems
    shared = 'sync = "distro"\n' + MANIFEST
    with pytest.raises(ManifestError, match=r"model\.lora is for sync"):
        parse_manifest_file(shared, tmp_path)


def test_a_manifest_file_with_adapters_is_written_and_read_back(tmp_path: Path) -> None:
    draft = parse_manifest_file(MANIFEST, tmp_path)
    assert parse_manifest_file(render(draft), tmp_path).model == draft.model
    plain = parse_manifest_file('preset = "tiny"', tmp_path)
    text = render(plain)
    assert "# lora = {rank" in text
    assert parse_manifest_file(text.replace("# lora =", "lora ="), tmp_path).model.lora


def test_adapters_without_a_folder_found_nothing(tmp_path: Path) -> None:
    put: Sequence[bytes] = []
    with pytest.raises(ManifestError, match="there is no model whose weights the adapters belong"):
        prepare_data(parse_manifest_file(MANIFEST, tmp_path), [tmp_path], put=put.append)  # type: ignore[attr-defined]
    assert not put


def test_consent_and_plan_count_adapters_and_weights_apart(settings: Settings) -> None:
    manifest = read_state(settings).manifest
    whole = manifest.model.whole
    adapters = manifest.model.num_parameters
    for on_host, item in ((True, 4), (False, 4)):
        with_lora, of_whole = (
            needs_of(each, trains_on_host=on_host, cache_bytes=0)
            for each in (manifest, replace(manifest, model=whole))
        )
        trainer = with_lora.memory if on_host else with_lora.device_memory
        fewer = (of_whole.memory if on_host else of_whole.device_memory) - trainer
        # 16 bytes a parameter in the trainer and 28 in the daemon, and the weights once.
        a_parameter = 16 + (28 if on_host else 0)
        assert (
            fewer == a_parameter * (whole.num_parameters - adapters) - item * whole.num_parameters
        )
        assert with_lora.disk == 64 * adapters + manifest.model.frozen_bytes
    lines = describe(manifest, needs_of(manifest, trains_on_host=True, cache_bytes=0))
    said = next(line for line in lines if line.startswith("model"))
    assert "3,712 parameters of adapters, beside 36,000 that stay as they are" in said
    plan = plan_round(manifest, 2, Line(10.0, 10.0))
    assert plan.parameters == adapters
    assert plan.state_bytes == 8 * adapters + manifest.model.frozen_bytes
    assert plan.sent_bytes < 4 * adapters + 1000
