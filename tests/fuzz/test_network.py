"""Bad messages of a peer, by stream or gossip: it is blamed or ignored, and nothing else happens.

Every reader of the network is run on frames that are damaged versions of what it expects.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.network.frames import receive_frame
from gossamer.node.network.over_libp2p.addresses import parse_address
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import ConnectError, StreamClosed
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.peers.chain.chain_checkpoints import ChainCheckpoints, NoAnswerError
from gossamer.node.peers.chain.chain_records import BehindError, ChainRecords
from gossamer.node.peers.members.run_exchange import (
    JoinError,
    request_manifest,
    serve_admission,
    serve_manifest,
)
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.peers.statements.store_comparison import (
    STATEMENTS_PROTOCOL,
    decode_statement_store,
)
from gossamer.node.rounds.dispatcher import LinkTarget
from gossamer.node.rounds.ring_chunks import CommittedRing, Receiver, RingChunks, serve_ring
from gossamer.node.rounds.ring_link import LinkFailed, RingLink
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol.codecs.payloads import payloads_named
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from gossamer.protocol.policy.heads.chain_checkpoint import (
    ChainCheckpoint,
    Stake,
    decode_checkpoint,
)
from gossamer.protocol.policy.heads.chain_summary import (
    ChainSummary,
    CreditRow,
    decode_summary,
)
from gossamer.protocol.rounds.actions import Send
from gossamer.protocol.rounds.commit_proof import open_commit
from gossamer.protocol.rounds.inventory import encode_inventory
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.commit_records import encode_commit
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_reply, encode_request
from gossamer.protocol.wire.chain_messages import (
    CHAIN_PROTOCOL,
    ChainRequest,
    decode_chain_reply,
    decode_chain_request,
)
from gossamer.protocol.wire.checkpoint_messages import (
    CHECKPOINT_PROTOCOL,
    CheckpointSignature,
    PathRequest,
    SignaturesRequest,
    SignedCheckpoint,
    SummaryRequest,
    decode_checkpoint_request,
    decode_path,
    decode_signatures,
    decode_summary_reply,
)
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.framing import encode_prefix
from gossamer.protocol.wire.gossip_messages import encode_compact, encode_own
from gossamer.protocol.wire.ring_messages import Ack, ChunkMessage, HeldChunks, Hello
from gossamer.protocol.wire.run_messages import (
    ADMIT_PROTOCOL,
    RUN_PROTOCOL,
    Admitted,
    decode_admitted,
    decode_signed_manifest,
)
from gossamer.protocol.wire.statements import Signed
from tests.fuzz.conversations import check_decoder
from tests.fuzz.scripted import ME, ROGUE, Offences, ScriptedStream, ScriptedTransport
from tests.support.builders import (
    HEAD,
    RING_RULES,
    announce,
    commit_of,
    header_of,
    manifest,
    peers,
    ready,
    ring_of,
    sealed,
    vote,
)
from tests.support.gossip_listener import OpenListener
from tests.support.mutations import anything, damaged
from tests.support.node_world import in_no_thread

RUN_ID = manifest().run_id
encode = msgspec.msgpack.encode


def frame(message: bytes, payload: bytes = b"") -> bytes:
    return encode_prefix(len(message), len(payload)) + message + payload


def signed(statement: object) -> Signed:
    return seal(statement, ROGUE.peer_id, RUN_ID, ROGUE.sign)  # type: ignore[arg-type]


RING = ring_of(peers(3))
ROSTER = sealed(RING.organiser, RING.roster)
BLOCK = b"a block"
COMMIT = commit_of(RING, sorted(RING.members), header_of(RING, run_id=RUN_ID))

STATEMENTS = [signed(one) for one in (announce(), ready(), vote(HEAD), ring_of(peers(3)).roster)]
STATEMENT_STORE = encode(STATEMENTS)
RECORDS = encode([encode_commit(COMMIT), to_msgpack(COMMIT)])
_RUN = encode_manifest(manifest(founder=ROGUE.peer_id))
MANIFEST = encode(
    SignedManifest(manifest=_RUN, signature=ROGUE.sign(signing_bytes(digest_of(_RUN))))
)

SUMMARY = to_msgpack(ChainSummary(256, (CreditRow(ROGUE.peer_id, 10, 3, 1, 256),), 0, bytes(HEAD)))
SIGNED_CHECKPOINT = SignedCheckpoint(
    to_msgpack(
        ChainCheckpoint(1, RUN_ID, 256, HEAD, 10, (Stake(ROGUE.peer_id, 10),), digest_of(SUMMARY))
    ),
    (CheckpointSignature(ROGUE.peer_id, bytes(64)),),
)

Decoder = Callable[[bytes], object]
DECODERS: dict[str, tuple[Decoder, bytes]] = {
    "chain request": (decode_chain_request, encode(ChainRequest(HEAD, 7))),
    "chain reply": (decode_chain_reply, RECORDS),
    "checkpoint request": (decode_checkpoint_request, encode(SignaturesRequest(HEAD))),
    "path": (decode_path, encode([SIGNED_CHECKPOINT])),
    "signatures": (decode_signatures, encode([CheckpointSignature(ROGUE.peer_id, bytes(64))])),
    "summary": (lambda data: decode_summary(decode_summary_reply(data)), encode(SUMMARY)),
    "checkpoint": (lambda data: decode_checkpoint(data, RUN_ID), SIGNED_CHECKPOINT.checkpoint),
    "statements": (decode_statement_store, STATEMENT_STORE),
    "admission": (decode_admitted, encode(Admitted(True))),
    "run": (lambda data: open_signed_manifest(decode_signed_manifest(data)), MANIFEST),
}


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_decoders_of_streams(name: str, data: st.DataObject) -> None:
    check_decoder(*DECODERS[name], data)


@st.composite
def conversations(draw: st.DrawFn, messages: list[tuple[bytes, bytes]]) -> bytes:
    """Some frames, a part of them damaged, and perhaps damaged once more as a whole."""
    said = b""
    for message, payload in draw(st.lists(st.sampled_from(messages), min_size=1, max_size=4)):
        if message and draw(st.booleans()):
            message = draw(anything([message]))[:1000]
        if payload and draw(st.booleans()):
            payload = draw(damaged([payload]))[:1000]
        said += frame(message, payload)
    return draw(damaged([said])) if draw(st.booleans()) else said


class _OpenChain:
    """The committed state as `ChainSync` uses it."""

    def __init__(self, folder: Path) -> None:
        self.chain = ChainStore(folder, RUN_ID, digest_of(b"genesis"))
        self.entry = self.chain.entry(RUN_ID)


async def _no_thread(function: Callable[[], object]) -> object:
    return function()


def _open_commit(commit: Commit) -> Header:
    return open_commit(commit, RUN_ID, lambda *_: True, RING_RULES)


class _Listener(OpenListener):
    """Opens commit records, and notes offences."""

    def __init__(self, offences: Offences) -> None:
        self._offences = offences

    def heard_commit(self, commit: Commit) -> bool:
        return bool(_open_commit(commit))

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        self._offences.note(peer, error)


class Node:
    """The servers and clients of every stream protocol, on a scripted transport."""

    def __init__(self, folder: Path, answer: bytes = b"") -> None:
        self.transport = ScriptedTransport(answer)
        self.offences = Offences()
        self.gossip = Gossip(
            self.transport,
            ME,
            RUN_ID,
            _Listener(self.offences),
            random.Random(0),
        )
        self.gossip.start()
        self.blocks = BlockService(
            self.transport,
            BlockStore(folder / "blocks", 2**20),
            self.offences.note,
        )
        self.store = self.blocks._store
        self.records = ChainRecords(
            self.transport,
            _OpenChain(folder / "chain"),  # type: ignore[arg-type]
            run_in_thread=_no_thread,  # type: ignore[arg-type]
            open_commit=_open_commit,
            on_offence=self.offences.note,
            uploads=Uploads(),
        )
        self.checkpoints = ChainCheckpoints(
            manifest(), self.transport, folder / "chain", DiskHealth(), None, lambda _: None,
            self.offences.note, Uploads(),
        )  # fmt: skip
        serve_admission(self.transport, lambda _peer: True)
        serve_manifest(self.transport, SignedManifest(manifest=b"", signature=b""), Uploads())


QUESTIONS: dict[str, list[tuple[bytes, bytes]]] = {
    STATEMENTS_PROTOCOL: [(b"", HEAD * 3)],
    BLOCKS_PROTOCOL: [(encode_request(digest_of(BLOCK)), b"")],
    CHAIN_PROTOCOL: [(encode(ChainRequest(HEAD, 0)), b"")],
    CHECKPOINT_PROTOCOL: [
        (encode(PathRequest(0)), b""),
        (encode(SignaturesRequest(HEAD)), b""),
        (encode(SummaryRequest(HEAD)), b""),
    ],
    RUN_PROTOCOL: [(b"", b"")],
    ADMIT_PROTOCOL: [(b"", b"")],
}


@pytest.mark.parametrize("protocol", QUESTIONS)
@given(data=st.data())
def test_servers(
    protocol: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stream = ScriptedStream(data.draw(conversations(QUESTIONS[protocol])), protocol)

    async def serve() -> None:
        node = Node(tmp_path_factory.getbasetemp() / "servers")
        try:
            await node.transport.handlers[protocol](stream)
        except StreamClosed:
            pass  # the transport ends the stream
        except RemoteProtocolError:
            assert protocol != BLOCKS_PROTOCOL  # that service notes its offences itself
        assert {peer for peer, _ in node.offences.noted} <= {stream.peer_id}

    _run(serve)


async def _reconcile(node: Node) -> None:
    await node.gossip.reconcile(ROGUE.peer_id)


async def _learn(node: Node) -> None:
    await node.records.learn(HEAD, ROGUE.peer_id)


async def _ask_path(node: Node) -> None:
    with contextlib.suppress(NoAnswerError):
        await node.checkpoints.ask_path(ROGUE.peer_id)


async def _fetch(node: Node) -> None:
    await node.blocks.fetch([digest_of(BLOCK)], lambda: [ROGUE.peer_id], passes=1)
    # Only what is right is taken.
    assert node.store.get(digest_of(BLOCK)) == BLOCK


async def _join(node: Node) -> None:
    node.transport.fixed[ADMIT_PROTOCOL] = frame(encode(Admitted(True)))
    await _ask_to_join(node)


async def _ask_to_join(node: Node) -> None:
    await request_manifest(node.transport, ("/ip4/127.0.0.1/tcp/1",), None)


ANSWERS: dict[str, tuple[Callable[[Node], Awaitable[None]], list[tuple[bytes, bytes]]]] = {
    "statements": (_reconcile, [(STATEMENT_STORE, b"")]),
    "chain": (_learn, [(RECORDS, b""), (encode([]), b"")]),
    "path": (_ask_path, [(encode([SIGNED_CHECKPOINT]), b""), (encode([]), b"")]),
    "blocks": (
        _fetch,
        [
            (encode_reply(digest_of(BLOCK), found=True), BLOCK),
            (encode_reply(digest_of(BLOCK), found=False), b""),
        ],
    ),
    "run": (_join, [(b"", MANIFEST)]),
    "admission": (_ask_to_join, [(encode(Admitted(False)), b"")]),
}


@pytest.mark.parametrize("name", ANSWERS)
@given(data=st.data())
def test_clients(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    ask, messages = ANSWERS[name]
    answer = data.draw(conversations(messages))

    async def run() -> None:
        node = Node(tmp_path_factory.getbasetemp() / "clients", answer)
        node.store.quota_bytes = 0
        node.store.evict()
        node.store.quota_bytes = 10**6
        with contextlib.suppress(
            StreamClosed, RemoteProtocolError, BehindError, FetchError, JoinError
        ):
            await ask(node)

    _run(run)


def _to_receiver() -> list[tuple[bytes, bytes]]:
    chunk_message = encode(ChunkMessage(0, b"\x01", None))
    return [
        (encode(Hello(ROSTER)), b""),
        (chunk_message, bytes(16)),
        (encode(ChunkMessage(1, b"\x07", 2)), b"x"),
    ]


@given(data=st.data())
def test_the_rings_receiver(data: st.DataObject) -> None:
    said = frame(encode(Hello(ROSTER))) + data.draw(conversations(_to_receiver()))
    if data.draw(st.booleans()):
        said = data.draw(conversations(_to_receiver()))

    async def greeted(_peer: PeerId, envelope: Signed) -> Receiver | None:
        return CommittedRing(2, 3) if envelope == ROSTER else None

    async def serve() -> None:
        with contextlib.suppress(StreamClosed, RemoteProtocolError):
            await serve_ring(ScriptedStream(said), greeted)

    _run(serve)


@given(data=st.data())
def test_the_rings_sender(data: st.DataObject) -> None:
    inventory = encode_inventory(CommittedRing(2, 3).inventory(), 3)
    answers = [
        (encode(HeldChunks()), inventory),
        (encode(Ack(1, 0)), b""),
        (encode(Ack(2, 5)), b""),
    ]
    transport = ScriptedTransport(data.draw(conversations(answers)))

    async def send() -> None:
        target = LinkTarget(
            ROGUE.peer_id, ring_of(peers(3)), waits_for_inventory=data.draw(st.booleans())
        )
        chunks = RingChunks(ChunkPlan(16, 8), payloads_named("fp16", is_packing=True), in_no_thread)
        link = RingLink(transport, target, chunks, AwakeClock().awake_since)
        link.send(Send(ROGUE.peer_id, 0, 1, None, bytes(4 + 2 * 8)))
        link.finish()
        try:
            await link.run()
        except LinkFailed as error:
            assert str(error)  # noqa: PT017

    _run(send)


GOSSIP = [
    *(b"\x00" + to_msgpack(one) for one in STATEMENTS),
    b"\x03" + encode_own(STATEMENTS[0]),
    b"\x02" + encode_compact(ROSTER, RING.roster),
    b"\x01" + encode_commit(COMMIT),
    b"\x01" + to_msgpack(COMMIT),
]


@given(data=st.data())
def test_gossip(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    kind = data.draw(st.sampled_from((b"\x00", b"\x01", b"\x02", b"\x03", b"")))
    bodies = [message[1:] for message in GOSSIP]
    message = kind + data.draw(anything(bodies))

    async def hear() -> None:
        node = Node(tmp_path_factory.getbasetemp() / "gossip")
        for handler in node.transport.topics.values():
            assert handler(ROGUE.peer_id, message) in (True, False)
        assert {peer for peer, _ in node.offences.noted} <= {ROGUE.peer_id}

    _run(hear)


def test_what_is_not_damaged_is_taken(tmp_path: Path) -> None:
    """The examples above are good, else the tests would try the first check only."""

    async def run() -> None:
        node = Node(tmp_path, frame(encode_reply(digest_of(BLOCK), found=True), BLOCK))
        await _fetch(node)
        for message in GOSSIP[:-1]:
            node.gossip._received(ROGUE.peer_id, message)
        assert len(node.gossip.statement_store.tags()) == len(STATEMENTS)
        node.transport.answer = frame(RECORDS)
        with pytest.raises(MalformedError, match="does not begin at the run"):
            await _learn(node)
        assert node.gossip._received(ROGUE.peer_id, GOSSIP[-1])
        assert node.offences.noted == []

    _run(run)


@given(data=st.binary(max_size=40), limits=st.tuples(st.integers(0, 50), st.integers(0, 50)))
def test_frames(data: bytes, limits: tuple[int, int]) -> None:
    async def receive() -> None:
        try:
            message, payload = await receive_frame(
                ScriptedStream(data), message_bytes_max=limits[0], payload_bytes_max=limits[1]
            )
        except (StreamClosed, RemoteProtocolError):
            return
        assert len(message) <= limits[0]
        assert len(payload) <= limits[1]

    _run(receive)


ADDRESSES = [
    f"/ip4/192.0.2.1/tcp/4001/p2p/{ROGUE.peer_id}".encode(),
    b"/dns4/example.org/tcp/4001",
    b"/ip6/::1/tcp/1",
]


@given(st.one_of(st.text(max_size=80), damaged(ADDRESSES).map(lambda data: data.decode("latin-1"))))
def test_addresses(address: str) -> None:
    try:
        parse_address(address)
    except ConnectError as error:
        assert str(error)  # noqa: PT017


def _run(function: Callable[[], Awaitable[None]]) -> None:
    """Runs in virtual time: retries and time-outs cost nothing."""

    async def bounded() -> None:
        with trio.fail_after(3600.0):
            await function()

    trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))
