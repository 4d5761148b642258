"""DeMo and DisTrO: what a peer sends, what it keeps, and the step that all take."""

from __future__ import annotations

import struct

import blake3
import numpy as np
import pytest
import torch

from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.outer_step import PARAMETER_MAX
from gossamer.protocol.state.shared_step import MEAN_SCALE, shared_rate_at, shared_step
from gossamer.trainer.distro.dct import ModelDct
from gossamer.trainer.distro.decoupled_momentum import Momentum
from gossamer.trainer.inner_step.schedule import learning_rate_at


@pytest.fixture
def dct(model_config: ModelConfig) -> ModelDct:
    return ModelDct(model_config)


def vector_of(seed: int, dct: ModelDct) -> torch.Tensor:
    return torch.randn(dct.num_parameters, generator=torch.Generator().manual_seed(seed))


def by_tensor(vector: torch.Tensor, dct: ModelDct) -> list[torch.Tensor]:
    return [vector[grid.tensor.range].view(grid.tensor.shape) for grid in dct.grids]


def gradient_of(seed: int, dct: ModelDct) -> list[torch.Tensor]:
    return by_tensor(vector_of(seed, dct), dct)


def coefficients_of(vector: torch.Tensor, dct: ModelDct) -> torch.Tensor:
    """(num_parameters,), as places number them."""
    parts = (dct.forward(grid, vector[grid.tensor.range]).view(-1) for grid in dct.grids)
    return torch.cat(list(parts))


def fp32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_the_strongest_coefficients_are_offered_and_leave_the_momentum(dct: ModelDct) -> None:
    momentum = Momentum(dct, top_k=3, decay=0.999)
    momentum.add(gradient_of(1, dct))
    before = coefficients_of(momentum.values, dct)
    update = momentum.offer()
    assert len(update.places) == 3 * sum(grid.num_tiles for grid in dct.grids)
    for grid in dct.grids:
        part = grid.tensor.range
        tiles = before[part].view(-1, grid.tile_elements).abs()
        sent = np.zeros(dct.num_parameters, bool)
        sent[update.places] = True
        of_tiles = torch.from_numpy(sent[part]).view(-1, grid.tile_elements)
        assert (of_tiles.sum(1) == 3).all()
        weakest_sent = tiles.masked_fill(~of_tiles, torch.inf).amin(1)
        assert (weakest_sent >= tiles.masked_fill(of_tiles, 0).amax(1)).all()
    assert (update.is_positive == (before.numpy()[update.places] > 0)).all()

    momentum.taken()
    after = coefficients_of(momentum.values, dct)
    places = torch.from_numpy(update.places)
    assert after[places].abs().max().item() < 1e-5
    after[places] = before[places] = 0
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)


def test_a_late_part_stays_in_its_senders_momentum(dct: ModelDct) -> None:
    momentum, lone = Momentum(dct, top_k=32, decay=0.5), Momentum(dct, top_k=32, decay=0.5)
    for one in (momentum, lone):
        one.add(gradient_of(1, dct))
    momentum.offer()
    for one in (momentum, lone):
        one.add(gradient_of(2, dct))
    assert (momentum.values == lone.values).all()
    momentum.offer()
    momentum.taken()
    once = momentum.values.clone()
    momentum.taken()
    assert (momentum.values == once).all(), "it was taken already"


def test_the_lookahead_goes_against_the_momentum(dct: ModelDct) -> None:
    momentum = Momentum(dct, top_k=32, decay=0.999)
    momentum.add(gradient_of(1, dct))
    parameters = vector_of(2, dct)
    momentum.look_ahead(ahead := parameters.clone(), 0.25)
    torch.testing.assert_close(parameters - ahead, 0.25 * momentum.values.sign(), atol=1e-6, rtol=0)


def updates(dct: ModelDct, number: int) -> list[SignUpdate]:
    """Updates from integers, so that they are the same everywhere."""
    every = np.arange(dct.num_parameters, dtype=np.int64)
    made = []
    for peer in range(number):
        mixed = every * 2654435761 + peer * 40503
        places = every[mixed % 1000003 % 7 == peer % 3]
        made.append(SignUpdate(places, places * 69069 % (65537 + peer) % 2 == 0))
    return made


def test_golden_bits(dct: ModelDct) -> None:
    parameters = ((np.arange(dct.num_parameters) * 7919 % 1009) / np.float32(5e3)).astype(
        np.float32
    )
    for number in (1, 3, 5):
        shared_step(dct.grids, parameters, updates(dct, number), 1e-3, 0.1, parameters)
    assert blake3.blake3(parameters.tobytes()).hexdigest()[:16] == "8adb1f4637ef112c"


def test_the_order_of_the_peers_does_not_matter(dct: ModelDct) -> None:
    parameters = np.zeros(dct.num_parameters, np.float32)
    one, other = np.empty_like(parameters), np.empty_like(parameters)
    shared_step(dct.grids, parameters, updates(dct, 5), 1e-3, 0.1, one)
    shared_step(dct.grids, parameters, updates(dct, 5)[::-1], 1e-3, 0.1, other)
    assert one.tobytes() == other.tobytes()


def test_what_was_not_sent_or_cancels_moves_nothing(dct: ModelDct) -> None:
    parameters = np.full(dct.num_parameters, 0.5, np.float32)
    places = np.arange(0, dct.num_parameters, 5)
    plus = SignUpdate(places, np.ones(len(places), bool))
    minus = SignUpdate(places, np.zeros(len(places), bool))
    out = np.empty_like(parameters)
    for given in ([], [plus, minus]):
        shared_step(dct.grids, parameters, given, 0.25, 0.1, out)
        for grid in dct.grids:
            expected = fp32(0.5 * fp32(1 - 0.25 * 0.1)) if grid.tensor.is_matrix else 0.5
            assert (out[grid.tensor.range] == np.float32(expected)).all()


def test_one_peer_moves_every_element_of_a_tile_by_its_signs(dct: ModelDct) -> None:
    """A single low frequency: the sign of a half wave."""
    parameters = np.zeros(dct.num_parameters, np.float32)
    out = np.empty_like(parameters)
    grid = dct.grids[0]
    update = SignUpdate(np.array([grid.tensor.start + 1]), np.array([True]))
    shared_step(dct.grids, parameters, [update], 0.5, 0.0, out)
    tile = out[: grid.tensor.num_elements].reshape(grid.tensor.shape)[: grid.rows, : grid.columns]
    half = grid.columns // 2
    assert (tile[:, :half] == -0.5).all()
    assert (tile[:, half:] == 0.5).all()


def test_no_parameter_leaves_its_bound(dct: ModelDct) -> None:
    """Also where the manifest's rate and weight decay make each step 99 times as far."""
    parameters = np.full(dct.num_parameters, 0.5, np.float32)
    for _ in range(40):
        shared_step(dct.grids, parameters, updates(dct, 3), 10.0, 10.0, parameters)
    assert np.abs(parameters).max() == PARAMETER_MAX
    assert np.isfinite(parameters).all()


def test_updates_that_cannot_be(dct: ModelDct) -> None:
    parameters = np.zeros(dct.num_parameters, np.float32)
    yes = np.array([True, True])
    for places in ([3, 2], [3, 3], [-1, 2], [0, dct.num_parameters]):
        with pytest.raises(ValueError, match="ascending"):
            shared_step(
                dct.grids, parameters, [SignUpdate(np.array(places), yes)], 1e-3, 0.0, parameters
            )
    none = SignUpdate(np.array([], np.int64), np.array([], bool))
    with pytest.raises(ValueError, match="at most"):
        shared_step(dct.grids, parameters, [none] * (MEAN_SCALE + 1), 1e-3, 0.0, parameters)


def test_the_rate_is_the_schedules(inner_config: InnerConfig) -> None:
    for step in range(inner_config.total_steps + 5):
        assert shared_rate_at(step, inner_config) == pytest.approx(
            learning_rate_at(step, inner_config), rel=1e-12
        )


@pytest.mark.long
def test_it_learns_a_sign_pattern(dct: ModelDct) -> None:
    """Four peers with noisy gradients of one quadratic reach its minimum within the rate."""
    target = 0.02 * vector_of(9, dct).numpy()
    parameters = np.zeros(dct.num_parameters, np.float32)
    peers = [Momentum(dct, top_k=32, decay=0.9) for _ in range(4)]
    before = np.square(parameters - target).mean()
    for step in range(150):
        given = []
        for number, peer in enumerate(peers):
            noise = 0.01 * vector_of(1000 * step + number, dct)
            peer.add(by_tensor(torch.from_numpy(parameters - target) + noise, dct))
            given.append(peer.offer())
            peer.taken()
        shared_step(dct.grids, parameters, given, 1e-3, 0.0, parameters)
    assert np.square(parameters - target).mean() < 0.1 * before
