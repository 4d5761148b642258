"""The parameters between two commits: taken step by step, or all at once, they are the same."""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import pytest

from gossamer.node.base import threads
from gossamer.node.network.identity import Identity
from gossamer.node.storage.state import shared_parameters as module
from gossamer.node.storage.state.shared_parameters import SharedParameters, sign_payloads
from gossamer.protocol.codecs.contributions import add_record, split
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.manifest import Manifest, decode_manifest
from gossamer.protocol.state.exact_transform import Grid, grids_of, inverse_exact, pieces_of
from gossamer.trainer.presets.table import PRESETS
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


@pytest.mark.parametrize("num_chunks", [2, 3, 5])
def test_a_step_in_chunks_leads_where_a_step_in_one_does(
    manifest: Manifest, payloads: SignPayloads, num_chunks: int
) -> None:
    start = initial_weights(1, MODEL.num_parameters)
    whole = [average_of(payloads, step, (0, 2)) for step in range(STEPS)]
    wanted, found_ = np.empty_like(start), np.empty_like(start)
    SharedParameters(manifest, payloads, np.zeros_like(start)).lead(3, start, whole, wanted)
    outer = msgspec.structs.replace(manifest.outer, step_chunks=num_chunks)
    run = msgspec.structs.replace(manifest, outer=outer)
    cut = sign_payloads(MODEL, outer)
    averages: list[bytes] = []
    for average in whole:
        steps = [payloads.coder.decode(bytes(r.block)) for r in split(average, None, 1024)]
        parts = [cut.coder.cut(cut.coder.encode(each)) for each in steps]
        for of_a, of_b in zip(*parts, strict=True):
            averages.append(add_record(add_record(None, 0, of_a), 2, of_b))
    assert len(averages) == STEPS * num_chunks
    SharedParameters(run, cut, np.zeros_like(start)).lead(3, start, averages, found_)
    assert found_.tobytes() == wanted.tobytes()
    one_by_one = SharedParameters(run, cut, np.zeros_like(start))
    one_by_one.begin(3, start)
    for chunk in (1, 0, *range(len(averages))):  # what comes before its turn is not taken
        one_by_one.take(3, chunk, averages[chunk])
    assert one_by_one.values.tobytes() == wanted.tobytes()


def test_what_is_no_step_is_not_taken(manifest: Manifest, payloads: SignPayloads) -> None:
    shared_parameters = SharedParameters(
        manifest, payloads, np.zeros(MODEL.num_parameters, np.float32)
    )
    start = initial_weights(1, MODEL.num_parameters)
    shared_parameters.begin(1, start)
    with pytest.raises(MalformedError):
        shared_parameters.take(1, 0, b"rubbish")
    assert shared_parameters.values.tobytes() == start.tobytes()


def test_threads_and_pieces_lead_to_the_same_bits(
    manifest: Manifest, payloads: SignPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = initial_weights(1, MODEL.num_parameters)
    averages = [average_of(payloads, step, (0, 2)) for step in range(STEPS)]
    workers: set[str] = set()
    met = threading.Barrier(2)

    def noted(grid: Grid, coefficients: np.ndarray) -> np.ndarray:
        name = threading.current_thread().name
        if name not in workers:
            workers.add(name)
            met.wait(60)  # until two threads are at work at the same time
        return inverse_exact(grid, coefficients)

    found = []
    for num_threads, elements in ((1, 2**18), (1, 1), (2, 1)):
        for each in (module, threads):
            monkeypatch.setattr(each, "PIECE_ELEMENTS", elements)
        monkeypatch.setattr(threads, "num_usable_cores", lambda num=num_threads: num)
        if num_threads > 1:
            monkeypatch.setattr("gossamer.protocol.state.shared_step.inverse_exact", noted)
        out = np.empty_like(start)
        SharedParameters(manifest, payloads, np.zeros_like(start)).lead(3, start, averages, out)
        found.append(out.tobytes())
    assert found[0] == found[1] == found[2]
    assert len(workers) == 2


def test_a_step_of_a_small_model_starts_no_threads(
    manifest: Manifest, payloads: SignPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_arguments: object) -> None:
        raise AssertionError("threads were started")

    monkeypatch.setattr(threads, "num_usable_cores", lambda: 8)
    monkeypatch.setattr(threads, "ThreadPoolExecutor", started)
    start, out = initial_weights(1, MODEL.num_parameters), np.zeros(MODEL.num_parameters, "f4")
    averages = [average_of(payloads, step, (0, 2)) for step in range(STEPS)]
    SharedParameters(manifest, payloads, np.zeros_like(start)).lead(3, start, averages, out)
    assert (out != start).any()


@pytest.mark.parametrize("elements_max", [1, 2**18, 2**40])
def test_pieces_cover_all_parameters_once(elements_max: int) -> None:
    grids = grids_of(PRESETS["1.1b"].model)
    pieces = pieces_of(grids, elements_max)
    stop = 0
    for piece in pieces:
        assert piece.tensor.start == stop
        stop = piece.tensor.range.stop
        rows_of_tiles = piece.tensor.num_elements // (piece.rows * piece.tensor.shape[-1])
        is_small = piece.tensor.num_elements <= elements_max or rows_of_tiles == 1
        assert is_small or not piece.tensor.is_matrix
    assert stop == PRESETS["1.1b"].model.num_parameters
    assert (len(pieces) == len(grids)) is (elements_max == 2**40)
