"""Bad votes: a peer is blamed or ignored, and nobody is put out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import StreamClosed
from gossamer.node.peers.members.expulsion_keeper import ExpulsionKeeper
from gossamer.node.peers.members.introductions import claim_of
from gossamer.node.storage.admission_files import ExpulsionFile
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members.expulsions import Expulsions
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.policy.members.roll_order import peer_of
from gossamer.protocol.wire.expulsion_messages import (
    EXPULSION_PIECES_MAX,
    EXPULSION_PROTOCOL,
    VOTE_PERIOD,
    ExpulsionPage,
    decode_expulsion_page,
    decode_saved,
)
from gossamer.protocol.wire.invitation_messages import Invitation, RollPage
from gossamer.protocol.wire.piece_messages import decode_digests
from tests.fuzz.conversations import check_decoder, conversations, frame
from tests.fuzz.scripted import ME, ROGUE, Offences, ScriptedStream, ScriptedTransport
from tests.support.mutations import anything, damaged

RUN_ID = digest_of(b"a run by invitation")
NOW = 1_700_000_000
SECRET = bytes([7]) * 32
HEAD = digest_of(b"a head")
STRANGERS = [Identity.from_seed(bytes([seed]) * 32).peer_id for seed in (31, 32)]
TARGET = public_key_of(ROGUE.peer_id)


class Standings:
    """ME has a third of the stake at the only head, as ROGUE and two strangers have."""

    settled_round = VOTE_PERIOD

    def head_at(self, round_number: int) -> Digest | None:
        return HEAD if round_number == VOTE_PERIOD else None

    def stakes_at(self, _head: Digest) -> dict[PeerId, int]:
        return {ME.peer_id: 10, ROGUE.peer_id: 20, **dict.fromkeys(STRANGERS, 20)}


def new_roll() -> Roll:
    roll = Roll(RUN_ID, [ME.peer_id], verify)
    key = public_key_of(Identity.from_seed(SECRET).peer_id)
    by = roll.certify(ME.peer_id, key, 1, NOW + 1000, 1, ME.sign)
    claim = claim_of(Invitation(SECRET, by, (), ()), RUN_ID, ROGUE.peer_id)
    entry = roll.let_in(claim, ROGUE.peer_id, ME.peer_id, NOW, ME.sign)
    assert entry is not None
    roll.add(RollPage((entry,), ()))
    return roll


def _held() -> Expulsions:
    """What a member holds where ME has voted on ROGUE: a third of the stake."""
    expulsions = Expulsions(new_roll(), verify)
    vote = expulsions.vote(ME.peer_id, TARGET, Standings(), ME.sign)
    assert vote is not None
    expulsions.take([vote], Standings())
    assert expulsions.expelled == frozenset()
    return expulsions


HELD = _held()
PAGE = to_msgpack(HELD.pieces(HELD.digests()))
SAVED = to_msgpack(HELD.saved())
DIGESTS = b"".join(HELD.digests())
DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "page": (decode_expulsion_page, PAGE),
    "saved": (decode_saved, SAVED),
}


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_decoders(name: str, data: st.DataObject) -> None:
    check_decoder(*DECODERS[name], data)


@given(data=st.data())
def test_digests(data: st.DataObject) -> None:
    with suppress(RemoteProtocolError):
        found = decode_digests(data.draw(damaged([DIGESTS])), EXPULSION_PIECES_MAX)
        assert all(len(each) == 32 for each in found)


def keeper(folder: Path, answer: bytes = b"") -> tuple[ExpulsionKeeper, Offences, Roll]:
    offences, roll = Offences(), new_roll()
    made = ExpulsionKeeper(
        roll,
        ScriptedTransport(answer),
        ME,
        offences,  # type: ignore[arg-type]
        ExpulsionFile(folder),
    )
    made.standings = Standings()
    made.open()
    return made, offences, roll


def _run(task: Callable[[], Awaitable[None]]) -> None:
    trio.run(task, clock=trio.testing.MockClock(autojump_threshold=0))


@given(data=st.data())
def test_the_server(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    said = data.draw(conversations([(digest_of(b"other"), b""), (b"", DIGESTS)]))
    stream = ScriptedStream(said, EXPULSION_PROTOCOL)

    async def serve() -> None:
        made, offences, roll = keeper(tmp_path_factory.getbasetemp())
        transport = made._transport
        assert isinstance(transport, ScriptedTransport)
        with suppress(StreamClosed):
            await transport.handlers[EXPULSION_PROTOCOL](stream)
        assert {peer for peer, _ in offences.noted} <= {ROGUE.peer_id}
        assert roll.is_member(ROGUE.peer_id)

    _run(serve)


@given(data=st.data())
def test_the_client(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    answer = data.draw(conversations([(b"", DIGESTS), (PAGE, b"")]))

    async def run() -> None:
        made, _, roll = keeper(tmp_path_factory.getbasetemp(), answer)
        with suppress(StreamClosed, RemoteProtocolError):
            await made.reconcile(ROGUE.peer_id)
        assert roll.is_member(ROGUE.peer_id)

    _run(run)


def test_an_exchange_brings_what_is_missing(tmp_path: Path) -> None:
    async def run() -> None:
        made, offences, _ = keeper(tmp_path, frame(b"", DIGESTS) + frame(PAGE))
        await made.reconcile(ROGUE.peer_id)
        assert made.expulsions.digest() == HELD.digest()
        assert offences.noted == []

    _run(run)


def test_an_operator_is_told_of_a_vote_once_a_target(tmp_path: Path) -> None:
    made, _, roll = keeper(tmp_path)
    key = public_key_of(Identity.from_seed(SECRET).peer_id)
    held = Expulsions(roll, verify)
    votes = [
        held.vote(voter.peer_id, target, Standings(), voter.sign)
        for voter in (ROGUE, ME)
        for target in (key, TARGET)
    ]
    with capture_logs() as logs:
        for _ in range(2):
            for vote in votes:
                assert vote is not None
                made._heard(peer_of(vote.voter), to_msgpack(ExpulsionPage((vote,))))
    told = [(each["voter"], each["target"]) for each in logs if "votes to put" in each["event"]]
    assert told == [(ROGUE.peer_id, peer_of(key)), (ROGUE.peer_id, ROGUE.peer_id)]


@given(data=st.data())
def test_gossip(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    said = data.draw(anything([PAGE]))

    async def run() -> None:
        made, offences, roll = keeper(tmp_path_factory.getbasetemp())
        made._heard(ROGUE.peer_id, said)
        assert {peer for peer, _ in offences.noted} <= {ROGUE.peer_id}
        assert roll.is_member(ROGUE.peer_id)
        assert not made._heard(PeerId("nobody"), PAGE)

    _run(run)


@given(data=st.data())
def test_the_file(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    made, _, roll = keeper(tmp_path_factory.getbasetemp())
    made._file.path.write_bytes(data.draw(anything([SAVED])))
    made.load()
    assert made.expulsions.expelled <= {TARGET}
    assert roll.is_member(ME.peer_id)
