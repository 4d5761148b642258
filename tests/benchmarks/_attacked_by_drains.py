"""Rows of `attacked_daemons` in which strangers take what is not theirs: upload, dials, disk,
memory and processor time (M1 to M4)."""

from __future__ import annotations

import multiprocessing
import random
import selectors
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import Transport, TransportError
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.shard_index import decode_index
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_request
from gossamer.protocol.wire.envelopes import seal
from tests.benchmarks import half_handshakes as handshakes
from tests.benchmarks._attacked_swarm import (
    LOOPBACK,
    Swarm,
    addresses_of,
    manifest_of,
    peer_id_of,
    process_of,
    share_of_a_core,
)
from tests.rogue import attacks_claims, attacks_connections, attacks_gossip
from tests.rogue.rogue import Rogue
from tests.support.daemons import (
    MANIFEST,
    OPTIONS,
    PATIENCE_SECONDS,
    path_on_disk,
    wait_for_round,
)
from tests.support.lab import Lab
from tests.support.netns import Network, run_tool

BUDGET_MBIT = 8
"""Of M1: what strangers together may upload from the founder."""

DRAIN_STREAMS, MEMBER_STREAMS = 15, 4
DRAIN_SECONDS = 10.0

THIRD_PARTY = "198.51.100"
"""The network of a third party, which is kept for documentation."""

NUM_ANNOUNCED = 12
"""Identities, of which each announces as many addresses as it may."""

ADDRESSES = 8
ANNOUNCED_SECONDS = 60.0
FIRST_PORT = 20_000

NUM_ROGUES = 4
LOOK_SECONDS = 0.2
OFFER_SECONDS = 60.0
CHAIN_ROUNDS = 6000
"""Of each rogue's chain: half as many bytes again as one peer may bring."""

LATER_ROUNDS = (3, 20)
"""After the strangers have left, one after the other."""

SHARE_SECONDS = 8.0
HALF_SOCKETS = 400


def drain(folder: Path, local: LocalSwarm) -> str:
    """M1: a stranger asks for blocks on 15 streams, and then a member does beside it on four."""
    environment = {"GOSSAMER_SERVE_LIMIT": str(BUDGET_MBIT)}
    swarm = Swarm(folder, local, environment=environment, lines_per_file=2500)
    swarm.join(2)
    *_, leaver = swarm.honest
    key = Identity.load(StateDir(leaver.root).identity_path)
    assert leaver.leave() == 0, leaver.tail()
    index = Digest(manifest_of(swarm.founder).data.index_digest)
    block = StateDir(swarm.founder.root).blocks_path / index.hex()[:2] / index.hex()
    digests = [Digest(shard.digest) for shard in decode_index(block.read_bytes()).shards]
    victim = peer_id_of(swarm.founder)
    received = {"stranger": 0, "member": 0}

    async def take(name: str, transport: Transport) -> None:
        with suppress(TransportError):
            stream = await transport.open_stream(victim, BLOCKS_PROTOCOL)
            while True:
                await send_frame(stream, encode_request(random.choice(digests)))
                _, payload = await receive_frame(stream)
                received[name] += len(payload)

    async def rates(seconds: float) -> tuple[float, float]:
        before, began = dict(received), time.monotonic()
        await trio.sleep(seconds)
        passed = time.monotonic() - began
        got = {name: (received[name] - before[name]) / passed for name in received}
        return got["stranger"], got["member"]

    async def main() -> tuple[float, float, float]:
        async with (
            open_libp2p_transport(Identity.generate(), [LOOPBACK]) as stranger,
            open_libp2p_transport(key, [LOOPBACK]) as member,
            trio.open_nursery() as nursery,
        ):
            await stranger.connect(swarm.address)
            await member.connect(swarm.address)
            for _ in range(DRAIN_STREAMS):
                nursery.start_soon(take, "stranger", stranger)
            await trio.sleep(1.0)  # the bucket is empty
            alone, _ = await rates(DRAIN_SECONDS)
            for _ in range(MEMBER_STREAMS):
                nursery.start_soon(take, "member", member)
            beside, of_member = await rates(DRAIN_SECONDS)
            nursery.cancel_scope.cancel()
        return alone, beside, of_member

    before = swarm.founder.status()
    began = time.monotonic()
    alone, beside, of_member = trio.run(main)
    seconds = time.monotonic() - began
    after = swarm.founder.status()
    assert before is not None
    assert after is not None
    budget = BUDGET_MBIT * 1e6 / 8
    return (
        f"of a budget of {budget / 1e6:.1f} MB/s the stranger gets {alone / budget:.2f}, and "
        f"{beside / budget:.2f} beside a member that gets {of_member / 1e6:.1f} MB/s; "
        f"{after.round - before.round} rounds of two daemons in these {seconds:.0f} s"
    )


class Knocks:
    """Counts the connections that come to a machine, each of which it closes at once."""

    def __init__(self, network: Network, machine: int, ports: Sequence[int]) -> None:
        self.num = 0
        self._network, self._machine, self._ports = network, machine, ports
        self._ended = threading.Event()

    @contextmanager
    def counted(self) -> Iterator[Knocks]:
        """Counts inside the block."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._network.inside(self._machine):
            for port in self._ports:
                listener = socket.create_server(("0.0.0.0", port), backlog=128)
                selector.register(listener, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(0.1):
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.accept()[0].close()
                    self.num += 1
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def third_party(folder: Path, _local: LocalSwarm) -> str:
    """M2: announcements name the addresses of somebody who has nothing to do with the run."""
    ports = [FIRST_PORT + number for number in range(NUM_ANNOUNCED * ADDRESSES)]
    arms = {
        "one host": [f"/ip4/{THIRD_PARTY}.7/tcp/{port}" for port in ports],
        "one network": [
            f"/ip4/{THIRD_PARTY}.{number + 1}/tcp/{FIRST_PORT}" for number in range(len(ports))
        ],
        "many networks": [
            f"/ip4/11.{number // 250}.{number % 250}.7/tcp/{FIRST_PORT}"
            for number in range(len(ports))
        ],
    }
    found = [
        f"{_num_dials(folder / str(n), arms[arm], ports)} to {arm}" for n, arm in enumerate(arms)
    ]
    return f"dials of one daemon in {ANNOUNCED_SECONDS:.0f} s: {', '.join(found)}"


def _num_dials(folder: Path, addresses: Sequence[str], ports: Sequence[int]) -> int:
    """How often a daemon dials addresses that identities of a rogue announce."""
    with Lab(folder, [100.0] * 3, OPTIONS) as lab:
        network = lab.network
        for net in (f"{THIRD_PARTY}.0/24", "11.0.0.0/8"):
            run_tool(*network.prefix(0), "ip", "route", "add", net, "via", network.host(2))
            run_tool(*network.prefix(2), "ip", "route", "add", "local", net, "dev", "lo")
        manifest = folder / "run.toml"
        manifest.write_text(MANIFEST)
        founder = lab.machines[0]
        founder.run("start", "--manifest", str(manifest))
        address = founder.address(PATIENCE_SECONDS)
        wait_for_round(founder, 2)
        victim = peer_id_of(founder)

        async def announce() -> None:
            identity = Identity.generate()
            listen = [f"/ip4/{network.host(1)}/tcp/0"]
            async with open_libp2p_transport(identity, listen) as transport:
                rogue = Rogue(transport, identity, random.Random(0), addresses={victim: address})
                await attacks_connections.enter(rogue, [victim])
                with trio.move_on_after(ANNOUNCED_SECONDS):
                    while True:
                        await _say_addresses(rogue, victim, addresses)
                        await trio.sleep(5.0)

        with Knocks(network, 2, ports).counted() as knocks:
            with network.inside(1):
                trio.run(announce)
            return knocks.num


async def _say_addresses(rogue: Rogue, victim: PeerId, addresses: Sequence[str]) -> None:
    """Identities that never connect announce their parts of the addresses."""
    like = await rogue.head(victim)
    for number in range(NUM_ANNOUNCED):
        own = tuple(addresses[number * ADDRESSES : (number + 1) * ADDRESSES])
        stranger = rogue.strangers[number]
        said = rogue.announce(like, phase="training", addresses=own)
        signed = seal(said, stranger.peer_id, rogue.run_id, stranger.sign)
        await rogue.publish(rogue.topics()[0], b"\x00" + to_msgpack(signed))


def lone_records(folder: Path, local: LocalSwarm) -> str:
    """M3: strangers sign chains of rounds alone, from the beginning of the run."""
    swarm = Swarm(folder, local)
    swarm.join(1)
    for node in swarm.honest:  # from now on its own chain says who is known
        node.wait_for(lambda s: s.round > STANDING_ROUNDS, 2 * PATIENCE_SECONDS, "known chain")
    process = process_of(swarm.founder)
    chain = StateDir(swarm.founder.root).chain_path

    def beside() -> int:
        """Bytes of records on the disk that are not on the daemon's own chain."""
        own, path = path_on_disk(swarm.founder)
        of_chain = sum(own.entry(head).num_bytes + 32 for head in path)
        on_disk = 0
        for each in chain.iterdir():
            with suppress(FileNotFoundError):  # it was being written, or forgotten
                on_disk += each.stat().st_size
        return on_disk - of_chain

    async def attack(rogue: Rogue, victims: list[PeerId]) -> int:
        head = await rogue.head(victims[0])
        # In a thread, because a peer that answers nothing for seconds is disconnected.
        header, records = await trio.to_thread.run_sync(
            attacks_gossip.chain_of_its_own, rogue, head, CHAIN_ROUNDS
        )
        with suppress(TransportError, trio.TooSlowError):
            await attacks_claims.offer_chain(rogue, victims, header, records, OFFER_SECONDS)
        return sum(map(len, records))

    memory, first = process.memory_info().rss, swarm.rounds()
    said, peak = _with_rogues(swarm, attack, lambda: (beside(), process.memory_info().rss))
    rounds = swarm.rounds() - first
    last = swarm.rounds() + 5
    wait_for_round(swarm.founder, last)
    return (
        f"{sum(said) / 1e6:.1f} MB of records of {len(said)} strangers: at most "
        f"{peak[0] / 1e6:.1f} MB beside the chain on the disk, {beside() / 1e6:.1f} MB five rounds "
        f"after they left; memory {memory / 1e6:.0f} MB before, at most {peak[1] / 1e6:.0f} MB, "
        f"{process.memory_info().rss / 1e6:.0f} MB then; {rounds} rounds meanwhile; {swarm.bans()}"
    )


def statements(folder: Path, local: LocalSwarm) -> str:
    """M3: strangers are ready for hundreds of heads of a round that nobody will see."""
    swarm = Swarm(folder, local)
    swarm.join(1)
    process = process_of(swarm.founder)

    async def attack(rogue: Rogue, victims: list[PeerId]) -> int:
        num_bytes = await attacks_claims.rounds_of_the_future(rogue, victims)
        await trio.sleep(2.0)  # all of it has arrived
        return num_bytes

    async def kept() -> int:
        """Bytes of the statements of strangers in the founder's store."""
        members = {peer_id_of(node) for node in swarm.honest}
        identity = Identity.generate()
        async with open_libp2p_transport(identity, [LOOPBACK]) as transport:
            await transport.connect(swarm.address)
            asker = Rogue(transport, identity, random.Random(0), manifest_of(swarm.founder))
            store = await asker.statement_store(peer_id_of(swarm.founder))
            return sum(len(one.payload) for one, _ in store if one.author not in members)

    memory = process.memory_info().rss
    said, peak = _with_rogues(swarm, attack, lambda: (trio.run(kept), process.memory_info().rss))
    left = []
    for num_rounds in LATER_ROUNDS:
        wait_for_round(swarm.founder, swarm.rounds() + num_rounds)
        left.append(f"{trio.run(kept):,} bytes {num_rounds} rounds later")
    return (
        f"{sum(said) / 1e6:.1f} MB of statements of {len(said)} strangers: an answer with all that "
        f"the store has was at most {peak[0] / 1e6:.2f} MB, {', '.join(left)}; memory "
        f"{memory / 1e6:.0f} MB before, at most {peak[1] / 1e6:.0f} MB; {swarm.bans()}"
    )


def _with_rogues(
    swarm: Swarm,
    attack: Callable[[Rogue, list[PeerId]], Awaitable[int]],
    look: Callable[[], tuple[int, int]],
) -> tuple[list[int], tuple[int, int]]:
    """Lets some rogues attack at once, each in a process of its own.

    Returns:
        What each of them said in bytes, and the largest figures that were seen meanwhile.
    """
    addresses = addresses_of(swarm)
    victims = sorted(addresses)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    async def one() -> None:
        identity = Identity.generate()
        async with open_libp2p_transport(identity, [LOOPBACK]) as transport:
            rogue = Rogue(transport, identity, random.Random(), addresses=addresses)
            await attacks_connections.enter(rogue, victims)
            answers.put(await attack(rogue, victims))

    rogues = [context.Process(target=trio.run, args=(one,)) for _ in range(NUM_ROGUES)]
    peak = (0, 0)
    for rogue in rogues:
        rogue.start()
    try:
        while any(rogue.is_alive() for rogue in rogues):
            seen = look()
            peak = max(peak[0], seen[0]), max(peak[1], seen[1])
            time.sleep(LOOK_SECONDS)
    finally:
        for rogue in rogues:
            rogue.kill()
            rogue.join()
    said = []
    while not answers.empty():
        said.append(answers.get())
    return said, peak


def half_handshakes(folder: Path, local: LocalSwarm) -> str:
    """M4: handshakes of noise that nobody finishes, of one network, and a newcomer of another."""
    swarm = Swarm(folder, local, listen="/ip4/127.0.0.2/tcp/0")
    swarm.join(1)
    answers, refused = multiprocessing.Value("i", 0), multiprocessing.Value("i", 0)

    def joined() -> float:
        """Seconds from a newcomer's start until it is at the run's head."""
        began = time.monotonic()
        node = local.join(swarm.address, "--yes")
        node.wait_for(lambda s: s.round > 0, PATIENCE_SECONDS, "round")
        swarm.honest.append(node)
        return time.monotonic() - began

    joined_before = joined()
    undisturbed = share_of_a_core(swarm.founder, SHARE_SECONDS)
    port = int(swarm.address.split("/")[4])
    attack = multiprocessing.get_context("fork").Process(
        target=handshakes.strangers, args=(port, HALF_SOCKETS, 1, False, answers, refused)
    )
    attack.start()
    try:
        time.sleep(1.0)
        before = answers.value, refused.value
        share = share_of_a_core(swarm.founder, SHARE_SECONDS)
        rates = [
            (now.value - then) / SHARE_SECONDS
            for now, then in zip((answers, refused), before, strict=True)
        ]
        joined_beside = joined()
        swarm.wait_for_all()
    finally:
        attack.kill()
        attack.join()
    return (
        f"{HALF_SOCKETS} sockets of one network: {rates[0]:.0f} answers and {rates[1]:.0f} resets "
        f"a second, {share:.0%} of a core, {undisturbed:.0%} undisturbed; a newcomer of another "
        f"network is at the run's head after {joined_beside:.1f} s, {joined_before:.1f} s "
        "undisturbed, and works with the others"
    )
