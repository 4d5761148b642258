"""Frames between the daemon and its trainer."""

from __future__ import annotations

import math

import pytest

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.shared_step import step_codec
from gossamer.trainer.ipc import framing, pipe
from gossamer.trainer.ipc import messages as m


def test_every_message_comes_back(model_config: ModelConfig, inner_config: InnerConfig) -> None:
    to_worker: list[m.ToWorker] = [
        m.Configure(
            model=model_config,
            inner=inner_config,
            seed=2**62,
            base_fd=7,
            pseudo_gradient_fd=8,
            token_bytes=2,
        ),
        m.Genesis(),
        m.Data(shard=1, path="/tmp/é", start=0, stop=10),
        m.Begin(round=1, first_step=2, steps_max=3, seconds_max=4.5),
        m.Begin(
            round=1,
            first_step=2,
            steps_max=3,
            seconds_max=4.5,
            start="local",
            new=((0, 9), (11, 12)),
        ),
        m.Stop(),
        m.Rebase(ranges=((0, 2**33),)),
        m.Evaluate(paths=("a", "b"), tokens_max=5),
        m.Forget(),
        m.Save(),
        m.Save(place=m.Place(head=b"h" * 32, rings=(b"r" * 32,))),
        m.KeepMomentum(keep=True),
        m.Exit(),
    ]
    from_worker: list[m.FromWorker] = [
        m.Configured(device="cpu", device_name="x", precision="fp32"),
        m.Configured(
            device="cpu",
            device_name="x",
            precision="fp32",
            momentum=m.Place(head=b"h" * 32),
        ),
        m.Alive(busy_seconds=0.5),
        m.GenesisDone(),
        m.Evaluated(loss=1.5, tokens=2),
        m.Saved(problem="disk full"),
        m.NeedData(round=1, tokens_queued=0),
        m.Finished(round=1, steps=2, tokens=3, spans=((0, 1, 2),), loss=0.5),
        m.Failed(reason="because"),
    ]
    stream = b"".join(framing.encode(message) for message in to_worker)
    assert [
        framing.decode_to_worker(body) for body in framing.MessageSplitter().feed(stream)
    ] == to_worker
    stream = b"".join(framing.encode(message) for message in from_worker)
    splitter = framing.MessageSplitter()
    bodies = [body for byte in stream for body in splitter.feed(bytes([byte]))]
    assert [framing.decode_from_worker(body) for body in bodies] == from_worker


def test_a_loss_that_is_not_a_number_travels() -> None:
    step = m.Step(
        round=1,
        step=0,
        loss=math.nan,
        tokens=0,
        seconds=0.1,
        gradient_norm=math.inf,
        learning_rate=0.1,
        skipped=True,
    )
    back = framing.decode_from_worker(framing.encode(step)[pipe.LENGTH_BYTES :])
    assert isinstance(back, m.Step)
    assert math.isnan(back.loss)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x81\xa4type\xa4Nope", framing.encode(m.Stop())[4:] + b"x", b"\x91" * 5000],
)
def test_what_is_no_message(body: bytes) -> None:
    with pytest.raises(pipe.MessageError):
        framing.decode_to_worker(body)
    with pytest.raises(pipe.MessageError):
        framing.decode_from_worker(body)


def test_directions_are_kept_apart() -> None:
    with pytest.raises(pipe.MessageError):
        framing.decode_from_worker(framing.encode(m.Exit())[pipe.LENGTH_BYTES :])


def test_lengths_are_bounded() -> None:
    with pytest.raises(pipe.MessageError, match="limit"):
        framing.MessageSplitter().feed(b"\x7f\xff\xff\xff")
    with pytest.raises(pipe.MessageError, match="limit"):
        framing.encode(m.Failed(reason="x" * framing.MESSAGE_BYTES_MAX))


def test_a_part_of_a_large_models_step_fits_a_message() -> None:
    """A run is bounded by its chunks, which have to fit blocks, and not by their sum."""
    model = ModelConfig(
        num_layers=28,
        width=3072,
        num_heads=24,
        num_kv_heads=8,
        hidden_width=8192,
        vocabulary=128_256,
        context=1024,
        tied_embeddings=True,
    )
    steps = m.SharedSteps(top_k=4, chunks=84, lookahead=False)
    bytes_max = framing.bytes_max_of(model, steps)
    update = bytes(step_codec(model, steps.top_k, steps.chunks).encoded_bytes)
    assert len(update) > framing.MESSAGE_BYTES_MAX
    frame = framing.encode(m.Shared(round=2**31, update=update), bytes_max)
    (body,) = framing.MessageSplitter(bytes_max).feed(frame)
    assert framing.decode_from_worker(body) == m.Shared(round=2**31, update=update)
    with pytest.raises(pipe.MessageError, match="limit"):
        framing.encode(m.Failed(reason="x" * bytes_max), bytes_max)
    with pytest.raises(pipe.MessageError, match="limit"):
        framing.MessageSplitter(bytes_max).feed((bytes_max + 1).to_bytes(4, "big"))


def test_messages_of_a_run_without_shared_steps_are_short(model_config: ModelConfig) -> None:
    assert framing.bytes_max_of(model_config, None) == framing.MESSAGE_BYTES_MAX
