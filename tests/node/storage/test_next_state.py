"""The outer step of a round that chooses its momentum: as far as the manifest says."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gossamer.node.base import threads
from gossamer.node.network.identity import Identity
from gossamer.node.storage.state.next_state import NextState
from gossamer.node.storage.state.state_blocks import StateVectors
from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.manifest import Manifest, decode_manifest
from gossamer.protocol.state.chain import Member
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, index_of
from tests.support.node_world import found, initial_weights

DISPLACEMENT = 1.4
EARLY, LATE = 5, 6
"""Rounds of 10 steps, the last one in the first quarter of the run and the first one after it."""


def manifest_with(fragments: int) -> Manifest:
    signed, _ = found(Identity.from_seed(bytes(32)))
    manifest = decode_manifest(signed.manifest)
    change = msgspec.structs.replace
    return change(
        manifest,
        model=change(manifest.model, num_layers=2),
        inner=change(manifest.inner, total_steps=200),
        outer=change(
            manifest.outer,
            inner_steps=10 * fragments,
            learning_rate=0.8,
            momentum=0.95,
            warmup_rounds=0,
            codec="fp32",
            displacement=DISPLACEMENT,
            fragments=fragments,
        ),
    )


class Setting:
    """Two members, whose work has a common part and parts of their own, and a state before."""

    def __init__(self, fragments: int, round_number: int) -> None:
        manifest = manifest_with(fragments)
        self.round_number = round_number
        size = manifest.model.num_parameters
        self.plan = ChunkPlan(size, manifest.outer.chunk_elements)
        self.next = NextState(manifest, self.plan, np.zeros(size, np.float32))
        draws = [initial_weights(seed, size) for seed in range(5)]
        parameters, momentum = draws[0], draws[1] + draws[2]
        index = index_of(parameters, momentum, self.plan)
        self.present = StateVectors(parameters, momentum, index)
        self.sync_set = self.next.sync_sets.of_round(round_number)
        self.works: list[FloatVector] = []
        for own in draws[3:]:
            work = np.zeros(self.sync_set.plan.num_elements, np.float32)
            self.sync_set.add_work(draws[1] + own, work)
            self.works.append(work)

    def take(self, masks: list[int]) -> FloatVector:
        """The outer step, (num_elements,) in exchange order."""
        payloads, plan = self.next.payloads, self.sync_set.plan
        assert isinstance(payloads, SumPayloads)
        averages = []
        for chunk, mask in enumerate(masks):
            of_members = [self.works[i][plan.range_of(chunk)] for i in range(2) if mask >> i & 1]
            averages.append(payloads.coder.encode(np.mean(of_members, axis=0, dtype=np.float32)))
        members = [Member("", 100, norm_of(work)) for work in self.works]
        before = self.present.parameters.copy(), self.present.momentum.copy()
        told = self.next.compute(self.present, self.round_number, averages, masks, members)
        np.testing.assert_array_equal(before, (self.present.parameters, self.present.momentum))
        assert self.next.apply(self.present) == told
        self.present = replace(self.present, index=told)
        assert told == index_of(self.present.parameters, self.present.momentum, self.plan)
        step = np.zeros(plan.num_elements, np.float32)
        self.sync_set.add_work(before[0] - self.present.parameters, step)
        return step


@pytest.mark.parametrize("fragments", [1, 2])
def test_the_outer_step_is_as_long_as_the_manifest_says(fragments: int) -> None:
    setting = Setting(fragments, LATE)
    step = setting.take([0b11] * setting.sync_set.plan.num_chunks)
    own = np.median([norm_of(work) for work in setting.works])
    assert norm_of(step) == pytest.approx(DISPLACEMENT * own, rel=1e-3)
    assert setting.next.tuned is not None
    rate, momentum, scale = setting.next.tuned
    assert (rate, scale) == (0.8, 1.0)
    assert 0.0 < momentum < 0.95


def test_the_first_quarter_of_the_run_averages_only() -> None:
    setting = Setting(1, EARLY)
    step = setting.take([0b11] * setting.sync_set.plan.num_chunks)
    np.testing.assert_allclose(step, np.mean(setting.works, axis=0), atol=1e-6)
    assert setting.next.tuned == (1.0, 0.0, 1.0)


def test_what_a_single_member_did_is_taken_as_it_is() -> None:
    setting = Setting(1, LATE)
    plan = setting.sync_set.plan
    step = setting.take([0b01, *[0b11] * (plan.num_chunks - 1)])
    alone = plan.range_of(0)
    np.testing.assert_allclose(step[alone], setting.works[0][alone], atol=1e-6)
    assert norm_of(step) > 1.1 * norm_of(np.mean(setting.works, axis=0))


def test_a_round_of_one_member_chooses_nothing() -> None:
    setting = Setting(1, LATE)
    for mask, is_chosen in ((0b11, True), (0b01, False)):
        setting.take([mask] * setting.sync_set.plan.num_chunks)
        assert (setting.next.tuned is not None) is is_chosen


@pytest.mark.parametrize("fragments", [1, 2])
def test_threads_lead_to_the_same_bits(fragments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a false norm, so that the average is also cut."""
    found = []
    for num_threads in (1, 3):
        monkeypatch.setattr(threads, "PIECE_ELEMENTS", 1)
        monkeypatch.setattr(threads, "num_usable_cores", lambda num=num_threads: num)
        setting = Setting(fragments, LATE)
        setting.works = [100 * work if n else work for n, work in enumerate(setting.works)]
        step = setting.take([0b11] * setting.sync_set.plan.num_chunks)
        found.append((step.tobytes(), setting.present.momentum.tobytes(), setting.next.tuned))
    assert found[0] == found[1]
