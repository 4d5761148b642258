import json
from itertools import pairwise
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from gossamer.node.base.terminal.text_table import Look
from gossamer.node.commands.views.status_view import status_lines
from gossamer.node.telemetry.loss_history import LOSS_POINTS_MAX, LossHistory
from gossamer.node.telemetry.status import (
    CapacityStatus,
    DataStatus,
    LastRound,
    LossPoint,
    PeerStatus,
    Status,
    WorkStatus,
    decode_status,
    encode_status,
    is_ready,
)
from gossamer.protocol.wire.statements import Capacity, Phase


def full_status() -> Status:
    return Status(
        peer_id="me",
        run_id="ab" * 32,
        version="0.1.0",
        phase="training",
        round=3,
        head="cd" * 32,
        state_digest="ef" * 32,
        loss=2.5,
        work=WorkStatus(trained=3, committed_on_time=2, carried=1),
        data=DataStatus(epoch=0, tokens_consumed=1, num_tokens=9, shards_consumed=0, num_shards=3),
        peers=(PeerStatus(peer_id="you", phase="averaging", round=3, device="CPU"),),
        ring=("you", "me"),
        last_round=LastRound(
            round=3,
            members=("me", "you"),
            contributors=("me",),
            duration_seconds=1.5,
            bytes_sent=10,
            bytes_received=20,
            outcome="committed",
        ),
    )


def test_the_names_that_tools_depend_on() -> None:
    document = json.loads(encode_status(full_status()))
    assert {
        "peer_id", "run_id", "addresses", "phase", "round", "head", "state_digest",
        "tokens_total", "swarm_tokens_total", "loss", "peers", "last_round", "ring",
    } <= set(document)  # fmt: skip
    assert set(document["work"]) == {
        "trained", "committed_on_time", "committed_late", "dropped", "lost", "carried",
    }  # fmt: skip
    assert set(document["data"]) == {
        "epoch", "tokens_consumed", "num_tokens", "shards_consumed", "num_shards", "own",
        "expected_tokens", "cutting",
    }  # fmt: skip
    assert {"peer_id", "phase", "round", "head", "tokens_per_second", "device"} <= set(
        document["peers"][0]
    )
    assert set(document["last_round"]) == {
        "round", "members", "contributors", "duration_seconds", "bytes_sent", "bytes_received",
        "outcome",
    }  # fmt: skip


def test_round_trip_and_rubbish() -> None:
    assert decode_status(encode_status(full_status())) == full_status()
    with pytest.raises(msgspec.DecodeError):
        decode_status(b'{"phase": "dancing"}')


def test_a_loss_that_is_no_number_becomes_null() -> None:
    status = msgspec.structs.replace(full_status(), loss=float("nan"))
    assert json.loads(encode_status(status))["loss"] is None


@pytest.mark.parametrize(
    ("phase", "ready"),
    [("joining", False), ("syncing", False), ("training", True), ("averaging", True),
     ("paused", False), ("leaving", False), ("failed", False)],
)  # fmt: skip
def test_ready_means_taking_part_in_rounds(phase: Phase, ready: bool) -> None:
    assert is_ready(msgspec.structs.replace(full_status(), phase=phase)) is ready


def test_a_node_that_was_put_out_is_not_ready() -> None:
    assert not is_ready(msgspec.structs.replace(full_status(), put_out="it was put out"))


def test_speeds_are_unknown_until_measured() -> None:
    capacity = Capacity("GPU", "cuda", 24, 64, 8, 0.0, 1e6)
    status = CapacityStatus.of(capacity)
    assert status.tokens_per_second is None
    assert status.bandwidth_bytes_per_second == 1e6
    assert (status.device, status.device_memory_bytes, status.cores) == ("GPU", 24, 8)


def test_a_long_curve_is_thinned_evenly_and_ends_with_the_newest() -> None:
    history = LossHistory()
    for number in range(1, 10_001):
        history.add(LossPoint(round=number, loss=1.0 / number))
        assert history.points()[-1].round == number
        assert len(history.points()) <= LOSS_POINTS_MAX
    rounds = [point.round for point in history.points()]
    gaps = {later - earlier for earlier, later in pairwise(rounds[:-1])}
    assert rounds[0] == 1
    assert len(gaps) == 1
    assert len(rounds) >= LOSS_POINTS_MAX // 4


def test_a_point_may_be_completed_later() -> None:
    history = LossHistory()
    history.add(LossPoint(round=1, loss=3.0))
    history.add(LossPoint(round=1, loss=3.0, heldout_loss=3.1))
    assert history.points() == (LossPoint(round=1, loss=3.0, heldout_loss=3.1),)


def test_a_node_that_moves_to_another_head_drops_the_rounds_it_left() -> None:
    history = LossHistory()
    for number in (1, 2, 3, 4):
        history.add(LossPoint(round=number, loss=1.0))
    history.add(LossPoint(round=3, loss=2.0))
    assert [(point.round, point.loss) for point in history.points()] == [
        (1, 1.0), (2, 1.0), (3, 2.0),
    ]  # fmt: skip


HOSTILE = '\x1b[2J\x9b31m\u202eGPU\u2066\u200f\r\n\u2028\x7f\U000e0041"\\'


def hostile(kind: Any) -> Any:
    """A value of a type, in which every text is hostile."""
    if kind is str:
        return HOSTILE
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return (hostile(arguments[0]),)
    if origin in (Union, UnionType):
        return hostile(next(each for each in arguments if each is not type(None)))
    if origin is Literal:
        return arguments[0]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(**{name: hostile(hints[name]) for name in kind.__struct_fields__})
    return {int: 1, float: 1.0, bool: True}[kind]


def test_no_text_of_a_peer_reaches_the_terminal_as_it_is() -> None:
    status = hostile(Status)
    assert status.peers[0].device == HOSTILE
    encoded = encode_status(status)
    assert encoded.decode().isprintable()
    assert decode_status(encoded) == status
    assert json.loads(encoded)["peers"][0]["device"] == HOSTILE
    # As `gossamer status --json` prints it.
    shown = msgspec.json.format(encoded, indent=2).decode()
    assert all(line.isprintable() for line in shown.split("\n"))
    assert json.loads(shown)["peers"][0]["device"] == HOSTILE


def test_no_text_of_a_peer_reaches_the_table_as_it_is() -> None:
    lines = status_lines(hostile(Status), Look())
    assert len(lines) > 10
    assert all(line.isprintable() for line in lines)
