"""The small files of a state directory stay readable: these bytes are what nodes have on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.base.pausing import UserPause
from gossamer.node.storage.admission_files import read_pinned_head, write_pinned_head
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.storage.own_data import OwnData, _Place
from gossamer.node.storage.owner_files import (
    LossFile,
    MemberName,
    NamesFile,
    RoundSamples,
    Sample,
    SamplesFile,
)
from gossamer.node.storage.owner_orders import read_limits, read_pause, write_limits, write_pause
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.loss_history import Heldout
from gossamer.node.telemetry.status import LossPoint
from gossamer.protocol.ids import Digest, PeerId

RUN = b"r" * 4
HEAD = Digest(bytes(range(32)))
PEER = PeerId("12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN")
ADDRESS = "/ip4/10.0.0.1/tcp/4610"
POINT = LossPoint(round=3, loss=2.5, heldout_loss=2.75)
SAMPLES = (RoundSamples(3, (Sample("Once", "upon"),)),)

FILES = {
    "limits": b'{"upload":"10"}\n',
    "paused": b"2000.000 60.000\n",
    "pinned_head": b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n",
    "port": b"4610\n",
    "losses": (
        b"\x85\xa6run_id\xc4\x04rrrr\xacheldout_loss\xcb@\x06\0\0\0\0\0\0\xa6stride\x02"
        b"\xa6points\x91\x85\xa5round\x03\xa4loss\xcb@\x04\0\0\0\0\0\0"
        b"\xacheldout_loss\xcb@\x06\0\0\0\0\0\0"
        b"\xadbits_per_byte\xc0\xb5heldout_bits_per_byte\xc0\xadheldout_round\x03"
    ),
    "samples": (
        b"\x82\xa6run_id\xc4\x04rrrr\xa6rounds\x91\x82\xa5round\x03"
        b"\xa7samples\x91\x82\xa6prompt\xa4Once\xa4text\xa4upon"
    ),
    "names": b"\x82\xa6run_id\xc4\x04rrrr\xa5names\x81\xa4peer\x82\xa4name\xa3Ada\xa4team\xa4blue",
    "peers.msgpack": (b"\x91\x92\xd94" + PEER.encode() + b"\x91\xb6" + ADDRESS.encode()),
    "own/place": b"\x82\xa3key\xc4\x03key\xa8position\x11",
}


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """A state directory with all of these files."""
    (tmp_path / "own").mkdir()
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return StateDir(tmp_path)


def test_the_files_of_earlier_lives_are_read(state: StateDir) -> None:
    assert read_limits(state.limits_path) == {"upload": "10"}
    assert read_pause(state.paused_path, 1950.0) == UserPause(2000.0, 50.0)
    assert read_pinned_head(state.root) == HEAD
    assert state.addresses.read_port() == 4610
    history, heldout = LossFile(state.losses_path, RUN).load()
    assert (history.points(), history.stride, heldout) == ((POINT,), 2, Heldout(3, 2.75))
    assert SamplesFile(state.samples_path, RUN).load() == SAMPLES
    assert NamesFile(state.names_path, RUN).load() == {"peer": MemberName("Ada", "blue")}
    assert state.known_peers().newest_first() == [(PEER, (ADDRESS,))]


def test_a_curve_that_does_not_say_the_round_of_its_heldout_loss_is_read(tmp_path: Path) -> None:
    """So wrote earlier versions. A point may have the loss; a loss without a round is not shown."""
    written = FILES["losses"].replace(b"\x85", b"\x84", 1).removesuffix(b"\xadheldout_round\x03")
    file = LossFile(tmp_path / "losses", RUN)
    (tmp_path / "losses").write_bytes(written)
    assert file.load()[1] == Heldout(3, 2.75)
    newer = b"\xacheldout_loss\xcb@\x07\0\0\0\0\0\0\xa6stride"
    (tmp_path / "losses").write_bytes(
        written.replace(b"\xacheldout_loss\xcb@\x06\0\0\0\0\0\0\xa6stride", newer)
    )
    history, heldout = file.load()
    assert (history.points(), heldout) == ((POINT,), None)


def test_the_files_are_written_as_before(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    write_limits(state.limits_path, {"upload": "10"})
    write_pause(state.paused_path, UserPause(2000.0, 60.0))
    write_pinned_head(tmp_path, HEAD)
    state.addresses.write_port(4610)
    LossFile(state.losses_path, RUN).save((POINT,), 2, Heldout(3, 2.75))
    SamplesFile(state.samples_path, RUN).save(SAMPLES)
    NamesFile(state.names_path, RUN).save({"peer": MemberName("Ada", "blue")})
    known = KnownPeers(state.known_peers_path)
    known.saw({PEER: (ADDRESS,)})
    known.save()
    state.own_path.mkdir()
    OwnData(state.own_path)._write(_Place(b"key", 17))
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == FILES
