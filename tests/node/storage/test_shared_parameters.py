"""The parameters between two commits: taken step by step, or all at once, they are the same."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gossamer.node.network.identity import Identity
from gossamer.node.storage.shared_parameters import SharedParameters, sign_payloads
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import SignPayloads
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.manifest import Manifest, decode_manifest
from tests.support.node_world import MODEL, every_place, found, initial_weights

STEPS = 4


@pytest.fixture
def manifest() -> Manifest:
    signed, _ = found(Identity.from_seed(bytes(32)), codec="distro")
    manifest = decode_manifest(signed.manifest)
    inner = msgspec.structs.replace(manifest.inner, warmup_steps=3, weight_decay=0.1)
    return msgspec.structs.replace(manifest, inner=inner)


@pytest.fixture
def payloads(manifest: Manifest) -> SignPayloads:
    return sign_payloads(MODEL, manifest.outer)


def average_of(payloads: SignPayloads, seed: int, positions: tuple[int, ...]) -> bytes:
    draw = np.random.default_rng(seed)
    places = np.array(every_place(payloads.coder), np.int64)
    average = b""
    for position in positions:
        update = SignUpdate(places, draw.random(len(places)) < 0.5)
        average = add_record(average, position, payloads.coder.encode(update))
    return average


def test_steps_as_they_come_and_all_at_once_lead_to_the_same(
    manifest: Manifest, payloads: SignPayloads
) -> None:
    start = initial_weights(1, MODEL.num_parameters)
    averages = [average_of(payloads, step, (0, 2)) for step in range(STEPS)]
    at_once = np.empty_like(start)
    SharedParameters(manifest, payloads, np.zeros_like(start)).lead(3, start, averages, at_once)
    assert (at_once != start).any()

    shared_parameters = SharedParameters(manifest, payloads, np.zeros_like(start))
    shared_parameters.begin(3, start)
    for step in (0, 2, 1, 2):  # step 2 comes before its turn at first
        shared_parameters.take(3, step, averages[step])
    shared_parameters.take(4, 3, averages[3])  # of another round
    assert (shared_parameters.values != at_once).any()
    one_by_one = np.empty_like(start)
    shared_parameters.lead(3, start, averages, one_by_one)
    assert one_by_one.tobytes() == at_once.tobytes()
    assert shared_parameters.values.tobytes() == at_once.tobytes()


def test_a_step_of_which_a_better_average_came_later_is_taken_again(
    manifest: Manifest, payloads: SignPayloads
) -> None:
    start = initial_weights(1, MODEL.num_parameters)
    averages = [average_of(payloads, step, (0, 2)) for step in range(STEPS)]
    wanted, found_ = np.empty_like(start), np.empty_like(start)
    SharedParameters(manifest, payloads, np.zeros_like(start)).lead(3, start, averages, wanted)
    shared_parameters = SharedParameters(manifest, payloads, np.zeros_like(start))
    shared_parameters.begin(3, start)
    shared_parameters.take(3, 0, averages[0])
    shared_parameters.take(3, 1, average_of(payloads, 1, (0,)))
    shared_parameters.take(3, 2, averages[2])
    shared_parameters.lead(3, start, averages, found_)
    assert found_.tobytes() == wanted.tobytes()


def test_the_place_in_the_schedule_is_the_rounds(
    manifest: Manifest, payloads: SignPayloads
) -> None:
    start = np.zeros(MODEL.num_parameters, np.float32)
    average = average_of(payloads, 0, (1,))
    moves = []
    for number in (1, 2):  # steps 0 and 4; the first is in the warm-up
        out = np.empty_like(start)
        shared_parameters = SharedParameters(manifest, payloads, np.zeros_like(start))
        shared_parameters.lead(number, start, [average], out)
        moves.append(np.abs(out).max())
    assert moves[0] == pytest.approx(manifest.inner.learning_rate / 3)
    assert moves[1] > 2.5 * moves[0]


def test_what_is_no_step_is_not_taken(manifest: Manifest, payloads: SignPayloads) -> None:
    shared_parameters = SharedParameters(
        manifest, payloads, np.zeros(MODEL.num_parameters, np.float32)
    )
    start = initial_weights(1, MODEL.num_parameters)
    shared_parameters.begin(1, start)
    with pytest.raises(MalformedError):
        shared_parameters.take(1, 0, b"rubbish")
    assert shared_parameters.values.tobytes() == start.tobytes()
