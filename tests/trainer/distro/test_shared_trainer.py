"""Rounds of shared steps at the trainer: gradients where all are, and what is left over stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.codecs.sign_codec import SignCodec, SignUpdate
from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.exact_transform import grids_of
from gossamer.protocol.state.shared_step import shapes_of, shared_rate_at, shared_step
from gossamer.trainer.checkpoint import CheckpointError, load_moments, load_momentum
from gossamer.trainer.distro.shared_trainer import SharedTrainer
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.ipc.messages import Place, SharedSteps, TrainerConfig
from tests.support.local_rounds import begin, steps_of

K = 8
MakePeer = Callable[..., SharedTrainer]


@pytest.fixture
def make_peer(model_config: ModelConfig, inner_config: InnerConfig, shard: str) -> MakePeer:
    def make(base: np.ndarray, *, lookahead: bool = False, path: Path | str = "") -> SharedTrainer:
        config = TrainerConfig(
            model=model_config,
            inner=inner_config,
            seed=7,
            token_bytes=2,
            device="cpu",
            optimizer_path=str(path),
        )
        steps = SharedSteps(top_k=K, lookahead=lookahead)
        trainer = SharedTrainer(config, base, np.ones_like(base), steps=steps)
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
    assert offer is not None
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
        begin(peer, 1, 0, 60, 600.0)
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
        begin(peer, 1, 0, 4, 600.0)
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
    begin(peer, 1, 0, 4, 600.0)
    next_update(peer, codec)
    peer.finish()
    begin(peer, 2, 4, 4, 600.0)
    assert not peer.waits_for_others


def test_it_takes_its_gradients_where_all_are(
    make_peer: MakePeer, base: np.ndarray, codec: SignCodec
) -> None:
    """The trainer takes its gradients at the present shared state, and not at the state in which
    the round began."""
    moved, at_once = make_peer(base), None
    moved.genesis()
    start = base.copy()
    begin(moved, 1, 0, 4, 600.0)
    base += np.float32(0.05) * np.sign(start)
    first = next_update(moved, codec)
    at_once = make_peer(base)
    begin(at_once, 1, 0, 4, 600.0)
    second = next_update(at_once, codec)
    assert (first.places == second.places).all()
    assert (first.is_positive == second.is_positive).all()


PLACE = Place(head=b"h" * 32, rings=(b"r" * 32,))


@pytest.fixture
def saved(make_peer: MakePeer, base: np.ndarray, codec: SignCodec, tmp_path: Path) -> SharedTrainer:
    """A trainer with some steps behind it, and the last part not taken; saved in a file."""
    peer = make_peer(base, lookahead=True, path=tmp_path / "momentum")
    assert (peer.optimizer_problem, peer.loaded_momentum) == ("", None)
    peer.genesis()
    begin(peer, 1, 0, 3, 600.0)
    for is_taken in (True, True, False):
        next_update(peer, codec)
        peer.share(taken=is_taken)
    peer.finish()
    assert peer.save(PLACE) == ""
    return peer


def test_a_momentum_that_is_kept_goes_on_as_if_nothing_had_happened(
    make_peer: MakePeer, base: np.ndarray, codec: SignCodec, saved: SharedTrainer, tmp_path: Path
) -> None:
    assert [p.name for p in tmp_path.iterdir() if "momentum" in p.name] == ["momentum"]
    size = (tmp_path / "momentum").stat().st_size
    assert 4 * base.size < size < 4 * base.size + 1024
    again = make_peer(base, lookahead=True, path=tmp_path / "momentum")
    assert (again.optimizer_problem, again.loaded_momentum) == ("", PLACE)
    again.keep_momentum(keep=True)
    assert torch.equal(again._momentum.values, saved._momentum.values)
    saved.forget()
    saved.push(0, str(tmp_path / "shard"), 0, 4400)
    offers = []
    for peer in (saved, again):
        begin(peer, 2, 3, 1, 600.0)
        update = next_update(peer, codec)
        peer.share(taken=True)
        offers.append((update.places.tobytes(), update.is_positive.tobytes()))
    assert offers[0] == offers[1]
    assert torch.equal(again._momentum.values, saved._momentum.values)


@pytest.mark.parametrize("word", [None, False])
def test_a_momentum_without_word_of_it_is_dropped(
    make_peer: MakePeer, base: np.ndarray, saved: SharedTrainer, tmp_path: Path, word: bool | None
) -> None:
    path = tmp_path / "momentum"
    content = path.read_bytes()
    again = make_peer(base, path=path)
    assert again._momentum.values.any()
    # What a round may have taken parts of is not saved as if it had been asked about.
    assert again.save(Place(head=b"n" * 32)) == ""
    assert path.read_bytes() == content
    if word is not None:
        again.keep_momentum(keep=word)
    begin(again, 2, 3, 1, 600.0)
    assert not again._momentum.values.any()
    assert path.read_bytes() == content


@pytest.mark.parametrize("damage", ["cut", "value", "place", "rate", "nan", "text", "empty"])
def test_a_damaged_momentum_is_refused_with_one_message(
    make_peer: MakePeer, base: np.ndarray, saved: SharedTrainer, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "momentum"
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[:-100]
    elif damage == "value":
        data[-5] ^= 1
    elif damage == "place":
        at = data.index(b"place") + 40
        data[at : at + 1] = b"0" if data[at : at + 1] != b"0" else b"1"
    elif damage == "rate":
        at = data.index(b"last_rate") + len('last_rate":"0x1.')
        data[at : at + 1] = b"0" if data[at : at + 1] != b"0" else b"1"
    elif damage == "nan":
        values = saved._momentum.values
        values[3] = torch.nan
        assert saved.save(PLACE) == ""
        data = bytearray(path.read_bytes())
    else:
        data = bytearray(b"no momentum" if damage == "text" else b"")
    path.write_bytes(data)
    again = make_peer(base, path=path)
    assert str(path) in again.optimizer_problem
    assert "damaged" in again.optimizer_problem
    assert again.optimizer_problem.endswith("; the momentum starts at zero")
    assert again.loaded_momentum is None
    assert not again._momentum.values.any()
    assert again.save(PLACE) == ""
    assert make_peer(base, path=path).loaded_momentum == PLACE


def test_a_momentum_of_another_model_or_format_is_refused(
    make_peer: MakePeer,
    base: np.ndarray,
    model_config: ModelConfig,
    saved: SharedTrainer,
    tmp_path: Path,
) -> None:
    path = tmp_path / "momentum"
    other = msgspec.structs.replace(model_config, rope_theta=5.0)  # with as many parameters
    with pytest.raises(CheckpointError, match="another model"):
        load_momentum(other, path)
    parameters = [torch.nn.Parameter(torch.zeros(2, 2))]
    with pytest.raises(CheckpointError, match="another model or format"):
        load_moments(AdamW(parameters, saved._config.inner), model_config, path)


def test_a_full_disk_keeps_the_old_momentum(
    base: np.ndarray, saved: SharedTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "momentum"
    old = path.read_bytes()

    def no_space(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gossamer.trainer.checkpoint.os.fsync", no_space)
    assert "No space left on device" in saved.save(Place(head=b"n" * 32))
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir() if "momentum" in p.name] == ["momentum"]


def test_without_a_path_nothing_is_kept(make_peer: MakePeer, base: np.ndarray) -> None:
    peer = make_peer(base)
    assert steps_of(peer) == 0
    assert peer.save(PLACE) == ""


def test_steps_that_are_skipped_offer_what_was_there_before(
    make_peer: MakePeer, base: np.ndarray, codec: SignCodec
) -> None:
    peer = make_peer(base)
    peer.genesis()
    begin(peer, 1, 0, 4, 600.0)
    base[:] = np.nan
    step = peer.step()
    assert step is not None
    assert step.skipped
    assert np.isfinite(peer._momentum.values.numpy()).all()
    offer = peer.offer()
    assert offer is not None
    assert codec.decode(offer.update) is not None


@pytest.mark.parametrize("value", [3e30, -1e25, float("inf"), float("nan")])
def test_a_momentum_with_a_value_out_of_range_begins_anew(
    make_peer: MakePeer, base: np.ndarray, codec: SignCodec, value: float
) -> None:
    """One such value would be the strongest frequency of its chunk for good, or all of them."""
    trainer, other = make_peer(base), make_peer(base)
    trainer.genesis()
    for peer in (trainer, other):
        begin(peer, 1, 0, 60, 600.0)
    next_update(trainer, codec)
    trainer.share(taken=True)
    trainer._momentum.values[5] = value
    step = trainer.step()
    assert step is not None
    assert step.skipped
    assert step.tokens == 0
    assert trainer.offer() is None, "there is nothing in it"
    assert not trainer.waits_for_others
    for _ in range(2):
        other.step()  # takes the same data
    other._momentum.clear()
    assert (next_update(trainer, codec).places == next_update(other, codec).places).all()
