"""Bad invitations, claims and pages of a roll: a peer is blamed or ignored, and nobody comes in."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from gossamer.node.base.settings.links import invitation_text, parse_links
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import StreamClosed
from gossamer.node.peers.members.introductions import Applicant, claim_of
from gossamer.node.peers.members.roll_keeper import RollKeeper
from gossamer.node.storage.admission_files import RollFile
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.wire.invitation_messages import (
    PIECES_MAX,
    ROLL_PROTOCOL,
    Invitation,
    RollPage,
    Welcomed,
    decode_claim,
    decode_invitation,
    decode_page,
    decode_revocation,
    decode_welcomed,
)
from gossamer.protocol.wire.piece_messages import decode_digests
from gossamer.protocol.wire.run_messages import ADMIT_PROTOCOL
from tests.fuzz.conversations import check_decoder, conversations
from tests.fuzz.scripted import ME, ROGUE, Offences, ScriptedStream, ScriptedTransport
from tests.support.builders import members_of
from tests.support.mutations import anything, damaged

RUN_ID = digest_of(b"a run by invitation")
NOW = 1_700_000_000
SECRET = bytes([7]) * 32
ADDRESS = f"/ip4/192.0.2.7/tcp/4610/p2p/{ME.peer_id}"


def new_roll() -> Roll:
    return Roll(RUN_ID, [ME.peer_id], verify)


def _genuine() -> tuple[Invitation, Roll]:
    """An invitation by which ROGUE has come in, and the roll after that."""
    roll = new_roll()
    key = public_key_of(Identity.from_seed(SECRET).peer_id)
    by = roll.certify(ME.peer_id, key, 1, NOW + 1000, 1, ME.sign)
    invitation = Invitation(SECRET, by, (), (ADDRESS,))
    claim = claim_of(invitation, RUN_ID, ROGUE.peer_id)
    entry = roll.let_in(claim, ROGUE.peer_id, ME.peer_id, NOW, ME.sign)
    assert entry is not None
    roll.add(RollPage((entry,), ()))
    roll.add(RollPage((), (roll.revoke(ROGUE.peer_id, key, ROGUE.sign),)))
    return invitation, roll


INVITATION, ROLL = _genuine()
CLAIM = to_msgpack(claim_of(INVITATION, RUN_ID, ROGUE.peer_id))
PAGE = to_msgpack(ROLL.page())
CHAIN = ROLL.proof_of(ROGUE.peer_id)
WELCOMED = to_msgpack(Welcomed(True, "", CHAIN, CHAIN))
DIGESTS = b"".join(ROLL.digests())
DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "claim": (decode_claim, CLAIM),
    "welcomed": (decode_welcomed, WELCOMED),
    "page": (decode_page, PAGE),
    "invitation": (decode_invitation, to_msgpack(INVITATION)),
    "revocation": (decode_revocation, to_msgpack(ROLL.page().revocations[0])),
}


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_decoders(name: str, data: st.DataObject) -> None:
    check_decoder(*DECODERS[name], data)


@given(data=st.data())
def test_digests(data: st.DataObject) -> None:
    with suppress(RemoteProtocolError):
        assert all(
            len(each) == 32 for each in decode_digests(data.draw(damaged([DIGESTS])), PIECES_MAX)
        )


@given(data=st.data())
def test_texts_of_people(data: st.DataObject) -> None:
    """A damaged text is refused with a sentence, or is another invitation."""
    whole = f"{ADDRESS}#{RUN_ID.hex()}@{RUN_ID.hex()}.{invitation_text(INVITATION)}"
    assert parse_links((whole,)).invitation == to_msgpack(INVITATION)
    text = data.draw(damaged([whole.encode()])).decode("latin-1")
    with suppress(ConfigError):
        parse_links((text,))


def keeper(folder: Path, roll: Roll, answer: bytes = b"") -> tuple[RollKeeper, Offences]:
    offences = Offences()
    made = RollKeeper(
        roll,
        ScriptedTransport(answer),
        ME,
        offences,  # type: ignore[arg-type]
        RollFile(folder),
        (),
        lambda: NOW,
        random.Random(0),
    )
    made.open()
    return made, offences


def _run(task: Callable[[], Awaitable[None]]) -> None:
    trio.run(task, clock=trio.testing.MockClock(autojump_threshold=0))


QUESTIONS: dict[str, list[tuple[bytes, bytes]]] = {
    ADMIT_PROTOCOL: [(CLAIM, b"")],
    ROLL_PROTOCOL: [(ROLL.digest(), b""), (b"", DIGESTS)],
}


@pytest.mark.parametrize("protocol", QUESTIONS)
@given(data=st.data())
def test_servers(
    protocol: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stream = ScriptedStream(data.draw(conversations(QUESTIONS[protocol])), protocol)

    async def serve() -> None:
        roll = new_roll()
        made, offences = keeper(tmp_path_factory.getbasetemp(), roll)
        transport = made._transport
        assert isinstance(transport, ScriptedTransport)
        with suppress(StreamClosed):
            await transport.handlers[protocol](stream)
        assert {peer for peer, _ in offences.noted} <= {ROGUE.peer_id}
        assert members_of(roll) <= {ME.peer_id, ROGUE.peer_id}

    _run(serve)


async def _reconcile(made: RollKeeper) -> None:
    await made.reconcile(ROGUE.peer_id)


async def _introduce(made: RollKeeper) -> None:
    await made.introduce(ROGUE.peer_id)


async def _hear(made: RollKeeper) -> None:
    transport = made._transport
    assert isinstance(transport, ScriptedTransport)
    made._heard(ME.peer_id, transport.answer)


async def _apply(made: RollKeeper) -> None:
    applicant = Applicant(INVITATION, RUN_ID, ROGUE.peer_id)
    await applicant.ask(made._transport, ROGUE.peer_id)
    await applicant.learn(made._transport, made.roll)


CLIENTS: dict[str, tuple[Callable[[RollKeeper], Awaitable[None]], list[tuple[bytes, bytes]]]] = {
    "comparison": (_reconcile, [(b"", DIGESTS), (PAGE, b"")]),
    "introduction": (_introduce, [(WELCOMED, b"")]),
    "newcomer": (_apply, [(WELCOMED, b"")]),
}


@pytest.mark.parametrize("name", CLIENTS)
@given(data=st.data())
def test_clients(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    ask, frames = CLIENTS[name]
    answer = data.draw(conversations(frames))

    async def run() -> None:
        made, _ = keeper(tmp_path_factory.getbasetemp(), new_roll(), answer)
        with suppress(StreamClosed, RemoteProtocolError):
            await ask(made)
        assert members_of(made.roll) <= {ME.peer_id, ROGUE.peer_id}

    _run(run)


@given(data=st.data())
def test_gossip(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    said = data.draw(anything([PAGE]))

    async def run() -> None:
        made, offences = keeper(tmp_path_factory.getbasetemp(), new_roll(), said)
        await _hear(made)
        assert {peer for peer, _ in offences.noted} <= {PeerId(ME.peer_id)}
        assert members_of(made.roll) <= {ME.peer_id, ROGUE.peer_id}

    _run(run)


@given(data=st.data())
def test_the_file_of_the_roll(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = RollFile(tmp_path_factory.getbasetemp())
    file.path.write_bytes(data.draw(anything([PAGE])))
    roll = new_roll()
    with suppress(RemoteProtocolError):
        page = file.read()
        assert page is not None
        roll.add(page)
    assert members_of(roll) <= {ME.peer_id, ROGUE.peer_id}


def test_a_claim_has_no_more_bytes_than_its_bound() -> None:
    """With the largest times, and as many entries as a claim may have."""
    largest = msgspec.structs.replace(CHAIN[0], unix_seconds=2**40)
    whole = claim_of(INVITATION, RUN_ID, ROGUE.peer_id)
    decode_claim(to_msgpack(msgspec.structs.replace(whole, entries=(largest,) * 16)))
