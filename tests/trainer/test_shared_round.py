"""Rounds of shared steps at the trainer: gradients where all are, and what is left over stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gossamer.protocol.manifest import InnerConfig, ModelConfig
from gossamer.protocol.sign_codec import SignCodec, SignUpdate
from gossamer.trainer.dct_exact import grids_of
from gossamer.trainer.messages import SharedSteps
from gossamer.trainer.shared_round import SharedTrainer
from gossamer.trainer.shared_step import shapes_of, shared_rate_at, shared_step

K = 8
MakePeer = Callable[..., SharedTrainer]


@pytest.fixture
def make_peer(model_config: ModelConfig, inner_config: InnerConfig, shard: str) -> MakePeer:
    def make(base: np.ndarray, *, lookahead: bool = False) -> SharedTrainer:
        trainer = SharedTrainer(
            model_config,
            inner_config,
            steps=SharedSteps(top_k=K, lookahead=lookahead),
            seed=7,
            base=base,
            pseudo_gradient=np.ones_like(base),
            token_bytes=2,
            device="cpu",
        )
        trainer.push(0, shard, 0, 4400)
        return trainer

    return make


@pytest.fixture
def base(model_config: ModelConfig) -> np.ndarray:
    return np.zeros(model_config.num_parameters, np.float32)


@pytest.fixture
def codec(model_config: ModelConfig) -> SignCodec:
    return SignCodec(shapes_of(grids_of(model_config)), K)


def next_update(trainer: SharedTrainer, codec: SignCodec) -> SignUpdate:
    step = trainer.step()
    assert step is not None
    assert not trainer.waits_for_others
    offer = trainer.offer()
    assert trainer.waits_for_others
    return codec.decode(offer.update)


@pytest.mark.parametrize("lookahead", [False, True])
def test_two_peers_learn_by_shared_steps(
    make_peer: MakePeer,
    base: np.ndarray,
    codec: SignCodec,
    model_config: ModelConfig,
    inner_config: InnerConfig,
    shard: str,
    lookahead: bool,
) -> None:
    peers = [make_peer(base, lookahead=lookahead) for _ in range(2)]
    peers[0].genesis()
    before = peers[0].evaluate((shard,), 1000).loss
    for peer in peers:
        peer.begin(1, 0, 60, 600.0)
    for step in range(60):
        updates = [next_update(peer, codec) for peer in peers]
        rate = 0.3 * shared_rate_at(step, inner_config)
        shared_step(grids_of(model_config), base, updates, rate, 0.0, base)
        for peer in peers:
            peer.share(taken=True)
    finished = [peer.finish() for peer in peers]
    assert [each.steps for each in finished] == [60, 60]
    assert not peers[0]._pseudo_gradient.any(), "nothing is a peer's own"
    assert peers[0].evaluate((shard,), 1000).loss < 0.8 * before


def test_what_was_not_taken_stays_and_what_was_taken_goes(
    make_peer: MakePeer, base: np.ndarray, codec: SignCodec
) -> None:
    late, taken = make_peer(base), make_peer(base)
    late.genesis()
    norms = []
    for peer, is_taken in ((late, False), (taken, True)):
        peer.begin(1, 0, 4, 600.0)
        next_update(peer, codec)
        before = peer._momentum.values.norm().item()
        peer.share(taken=is_taken)
        norms.append(peer._momentum.values.norm().item() / before)
    assert norms[0] == 1.0
    assert norms[1] < 0.99


def test_a_new_round_does_not_wait_for_word_of_the_last(
    make_peer: MakePeer, base: np.ndarray, codec: SignCodec
) -> None:
    peer = make_peer(base)
    peer.genesis()
    peer.begin(1, 0, 4, 600.0)
    next_update(peer, codec)
    peer.finish()
    peer.begin(2, 4, 4, 600.0)
    assert not peer.waits_for_others


def test_it_takes_its_gradients_where_all_are(
    make_peer: MakePeer, base: np.ndarray, codec: SignCodec
) -> None:
    """Not where it was when the round began."""
    moved, at_once = make_peer(base), None
    moved.genesis()
    start = base.copy()
    moved.begin(1, 0, 4, 600.0)
    base += np.float32(0.05) * np.sign(start)
    first = next_update(moved, codec)
    at_once = make_peer(base)
    at_once.begin(1, 0, 4, 600.0)
    second = next_update(at_once, codec)
    assert (first.places == second.places).all()
    assert (first.is_positive == second.is_positive).all()


def test_no_moments_are_kept(make_peer: MakePeer, base: np.ndarray) -> None:
    peer = make_peer(base)
    assert peer.optimizer_steps == 0
    assert peer.save() == ""


def test_steps_that_are_skipped_offer_what_was_there_before(
    make_peer: MakePeer, base: np.ndarray, codec: SignCodec
) -> None:
    peer = make_peer(base)
    peer.genesis()
    peer.begin(1, 0, 4, 600.0)
    base[:] = np.nan
    step = peer.step()
    assert step is not None
    assert step.skipped
    assert np.isfinite(peer._momentum.values.numpy()).all()
    assert codec.decode(peer.offer().update) is not None
