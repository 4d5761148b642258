"""Before anything is joined or founded the node says whether the model fits into the card."""

from __future__ import annotations

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.app import daemon
from gossamer.node.base.roles import Join
from gossamer.node.base.settings.settings import Settings
from gossamer.node.machine.capacity import DeviceMemory
from gossamer.node.runs.planning.device_fit import DRIVER_BYTES, device_fit, require_fit
from gossamer.node.runs.planning.draft import Draft, draft_of_preset
from gossamer.node.runs.planning.needs import TooLargeError, describe, needs_of
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import InnerOptimizer
from gossamer.trainer.inner_step.muon import optimizer_for
from gossamer.trainer.resources.passes import Pass, Passes, moment_format_on
from tests.support.builders import manifest
from tests.trainer.simulated_card import card, decoder_on, device_of

GB = 1000**3


def card_with(free_gigabytes: float) -> DeviceMemory:
    return DeviceMemory("NVIDIA A10", 24 * GB, int(free_gigabytes * GB))


def draft_with(name: str, optimizer: InnerOptimizer) -> Draft:
    draft = draft_of_preset(name)
    return replace(draft, inner=replace(draft.inner, optimizer=optimizer))


def test_a_model_that_does_not_fit_is_refused_with_numbers() -> None:
    draft = draft_with("1.1b", "adamw")
    fit = device_fit(draft, card_with(16), "fp32")
    with pytest.raises(TooLargeError) as refused:
        require_fit(draft, fit)
    text = str(refused.value)
    for number in ("1,100,048,384", "24.0 GB", "16.0 GB", "13.2 GB", "at least 18.6 GB"):
        assert number in text, text
    assert "NVIDIA A10" in text
    assert "--device" in text


def test_a_model_that_fits_says_how() -> None:
    for free, words in ((23, ("at once fit, with activations computed twice",)), (40, ("fit",))):
        draft = draft_with("1.1b", "adamw")
        fit = device_fit(draft, card_with(free))
        require_fit(draft, fit)
        assert all(fit.text.endswith(word) for word in words)
        assert f"{free}.0 GB of 24.0 GB are free" in fit.text
        assert fit.checkpointing is (free == 23)


def test_moments_are_in_less_where_only_that_fits() -> None:
    for optimizer, free, choice, expected in (
        ("adamw", 23, "auto", "fp32"),
        ("adamw", 16, "auto", "bf16"),
        ("adamw", 13, "auto", "8bit"),
        ("adamw", 23, "8bit", "8bit"),
        ("muon", 23, "auto", "fp32"),
        ("muon", 16, "auto", "fp32"),
        ("muon", 12, "auto", "8bit"),
    ):
        draft = draft_with("1.1b", optimizer)  # type: ignore[arg-type]
        fit = device_fit(draft, card_with(free), choice)  # type: ignore[arg-type]
        require_fit(draft, fit)
        assert fit.moment_format == expected, (optimizer, free)
        assert ("with moments in" in fit.text) is (expected != "fp32")
    draft = draft_with("1.1b", "adamw")
    with pytest.raises(TooLargeError, match=r"at least \d+.\d GB"):
        require_fit(draft, device_fit(draft, card_with(9)))


def test_the_owners_choice_of_moments_counts_in_what_a_run_needs() -> None:
    draft = draft_with("150m", "adamw")
    memory = [
        needs_of(draft, trains_on_host=True, cache_bytes=0, moments=choice).memory
        for choice in ("auto", "fp32", "bf16", "8bit")
    ]
    parameters = draft.model.num_parameters
    assert memory[0] == memory[1] == memory[2] + 4 * parameters
    assert memory[1] - memory[3] == pytest.approx((8 - 2 - 2 / 64) * parameters)


def test_shared_steps_need_one_vector_less() -> None:
    run = draft_with("150m", "adamw")
    fits = [device_fit(each, card_with(8)) for each in (run, replace(run, sync="distro"))]
    assert fits[0].vectors_bytes - fits[1].vectors_bytes == 4 * run.model.num_parameters


def test_muon_needs_one_vector_less_for_the_matrices_of_the_layers() -> None:
    run, muon = draft_with("150m", "adamw"), draft_with("150m", "muon")
    hidden = 12 * (4 * 1024**2 + 3 * 1024 * 2688)
    fits = [device_fit(each, card_with(8)) for each in (run, muon)]
    assert fits[0].vectors_bytes - fits[1].vectors_bytes == 4 * hidden
    needs = [needs_of(each, trains_on_host=True, cache_bytes=0) for each in (run, muon)]
    assert needs[0].memory - needs[1].memory == 4 * hidden


@pytest.mark.parametrize("name", ["40m", "150m", "1.1b"])
@pytest.mark.parametrize("optimizer_name", ["adamw", "muon"])
def test_the_trainer_begins_with_what_the_node_has_said(
    name: str, optimizer_name: InnerOptimizer
) -> None:
    draft = draft_with(name, optimizer_name)
    inner = draft.inner
    for gigabytes in (8, 12, 16, 24, 32, 80):
        fit = device_fit(draft, DeviceMemory("card", 100 * GB, gigabytes * GB))
        if not fit.sequences:
            continue
        with card(gigabytes * GB - DRIVER_BYTES) as memory:
            decoder = decoder_on(memory, draft.model)
            device = device_of(memory)
            moments = moment_format_on(device, draft.model, inner, "auto")
            assert moments == fit.moment_format
            optimizer = optimizer_for(decoder, inner, device.coarse_dtype, moments)
            passes = Passes(device, draft.model, inner.sequences_per_step)
            present = passes.present
            assert optimizer.num_steps
        assert present == Pass(fit.sequences, fit.checkpointing), f"{gigabytes} GB"


def test_the_owner_sees_how_the_model_fits_before_joining(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shown: list[str] = []

    def consent(memory: DeviceMemory) -> None:
        monkeypatch.setattr(daemon, "device_memories", lambda _device, _gpus: [memory])
        monkeypatch.setattr(daemon, "ask_owner", lambda lines, _show, _ask: shown.extend(lines))
        folder = tmp_path_factory.mktemp("state")
        role = Join(addresses=(), asks_owner=True)
        one = daemon._Daemon(Settings(state_dir=folder), role, StateDir(folder))
        trio.run(one._require_consent, manifest())

    consent(card_with(8))
    assert any(
        line.startswith("device    NVIDIA A10: 8.0 GB of 24.0 GB are free") for line in shown
    )
    assert any(line.startswith("memory    some ") and "that are free" in line for line in shown)
    with pytest.raises(TooLargeError, match="NVIDIA A10"):
        consent(card_with(0.3))


def test_a_card_of_which_nothing_is_known_is_named_by_what_it_takes() -> None:
    run = manifest()
    lines = describe(run, needs_of(run, trains_on_host=False, cache_bytes=0))
    assert any("of the training device" in line for line in lines)
