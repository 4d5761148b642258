"""Measures what the control plane costs one peer, and how that grows with the number of peers.

    python -m tests.benchmarks.scale                             # docs/benchmarks/scale.md
    python -m tests.benchmarks.scale --net loopback --peers 4 8
    python -m tests.benchmarks.scale --net memory --peers 4 8 16 32 64 --save "decision 120"
    python -m tests.benchmarks._scale_picture                    # draws what was saved

Whole nodes with a trainer of numbers are in one process: `--net memory` has the transport in memory
and virtual time, `--net loopback` has libp2p over TCP on this machine. First all nodes wait for one
more peer, which is presence; then they do rounds. The model has some thousand parameters, so nearly
all bytes are control.

Columns, each a mean over the peers, of bytes received; repetitions of a message are counted too:
    presence    bytes a second of a peer that waits: gossip and the comparisons of statements. Over
                loopback the headers of gossipsub and what it says of itself are in it
    line        the same at the TCP socket, with all connections' pings and encryption (loopback)
    CPU         share of one core that a waiting peer takes (loopback)
    round       bytes for one round: statements about rounds, commit records and comparisons, and
                what is asked of others about their heads
    presence's  bytes of announcements for one round, caused by its news
    messages    of gossip for one round; each has 160 bytes of headers over libp2p
    new         share of the received gossip messages that were not received before
    members     of the rings of those rounds
    seconds     for one round
    header      bytes of one of these rounds' headers for each member, as it travels in its record
    record      of the whole record: header, the members' `Ready`, roster and votes
A last line for each network has the exponents of growth: the slope of log(bytes) over log(peers).
"""

from __future__ import annotations

import argparse
import logging
import math
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from unittest.mock import patch

import msgspec
import structlog
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from rich.console import Console
from rich.table import Table

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.gossip.pubsub import GuardedPubsub
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.noise.noise import NoiseSession
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.protocol.ids import PeerId
from gossamer.protocol.state.commit_records import compacted
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL
from tests.benchmarks._scale_picture import RESULTS, Series, save
from tests.support.memory_peer import MemoryPeer
from tests.support.memory_transport import run_simulated
from tests.support.node_world import World, headers_of

GATHERED_SECONDS = 240.0
"""Patience until all peers know each other."""

ROUND_SECONDS = 300.0
"""Patience for all rounds together."""

SETTLE_SECONDS = 10.0
"""From then until presence is measured: newcomers fetch the corpus and greet."""

Network = str


@dataclass(frozen=True)
class Cost:
    """What one swarm costs a peer of it; see the module's text."""

    peers: int
    presence: float
    line: float
    cpu: float
    round: float = math.nan
    announced: float = math.nan
    messages: float = math.nan
    new: float = math.nan
    members: float = math.nan
    seconds: float = math.nan
    header: float = math.nan
    record: float = math.nan


class Bytes:
    """Bytes that all nodes of this process have received, by what they were for."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self.num_messages = 0
        self.num_new = 0
        self.transports: dict[PeerId, MemoryPeer | Libp2pTransport] = {}

    def now(self) -> Counter[str]:
        """Returns the sums so far."""
        sums = self.of.copy()
        for transport in self.transports.values():
            traffic = transport.traffic()
            sums["board"] += traffic.get(STATEMENTS_PROTOCOL, (0, 0))[1]
            sums["chain"] += traffic.get(CHAIN_PROTOCOL, (0, 0))[1]
        return sums

    def memory(self) -> AbstractContextManager[object]:
        """Counts at the transport in memory while it is open."""
        hear = MemoryPeer.hear

        def heard(peer: MemoryPeer, topic: str, author: PeerId, data: bytes, number: int,
                  sender: PeerId, times: int) -> None:  # fmt: skip
            self.transports[peer.peer_id] = peer
            self.of[topic.rpartition("/")[2]] += len(data)
            self.num_messages += 1
            self.num_new += number not in peer._seen
            hear(peer, topic, author, data, number, sender, times)

        return patch.object(MemoryPeer, "hear", heard)

    def loopback(self) -> AbstractContextManager[object]:
        """Counts at libp2p while it is open."""
        take, receive = GuardedPubsub._take_rpc, NoiseSession._open_all

        async def took(pubsub: GuardedPubsub, peer: ID, rpc: rpc_pb2.RPC, num_bytes: int) -> None:
            topics = [message.topicIDs[0].rpartition("/")[2] for message in rpc.publish]
            self.of[topics[0] if topics else "control"] += num_bytes
            self.num_messages += len(topics)
            self.num_new += sum(not pubsub._is_msg_seen(message) for message in rpc.publish)
            await take(pubsub, peer, rpc, num_bytes)

        def opened(session: NoiseSession, end: int) -> list[bytes]:
            self.of["line"] += end
            return receive(session, end)

        stack = ExitStack()
        stack.enter_context(patch.object(GuardedPubsub, "_take_rpc", took))
        stack.enter_context(patch.object(NoiseSession, "_open_all", opened))
        return stack


class Loopback:
    """The real network for a `World`, in the place of the one in memory."""

    def __init__(self, counted: Bytes) -> None:
        self._counted = counted

    @asynccontextmanager
    async def transport(self, identity: Identity) -> AsyncIterator[Libp2pTransport]:
        async with open_libp2p_transport(identity, ["/ip4/127.0.0.1/tcp/0"]) as transport:
            self._counted.transports[identity.peer_id] = transport
            yield transport

    def addresses_of(self, peer_id: PeerId) -> list[str]:
        transport = self._counted.transports[peer_id]
        assert isinstance(transport, Libp2pTransport)
        return [f"/ip4/127.0.0.1/tcp/{transport.port}/p2p/{peer_id}"]


async def _measure(
    world: World, counted: Bytes, num_peers: int, idle_seconds: float, num_rounds: int
) -> Cost:
    names = [*"abcdefghijklmnopqrstuvwxyz", *(f"n{number}" for number in range(num_peers))]
    names = names[:num_peers]

    def know_all() -> bool:
        found = [world.participant_or_none(name) for name in names]
        return all(one and len(one.context.swarm.living()) == num_peers - 1 for one in found)

    def are_there() -> bool:
        return know_all() and all(world.participant(n).progress.phase == "training" for n in names)

    async with trio.open_nursery() as nursery:
        await nursery.start(world.run, names[0])
        for name in names[1:]:
            await nursery.start(world.run, name, [names[0]])
        await world.until(know_all, GATHERED_SECONDS, 0.2)
        await trio.sleep(SETTLE_SECONDS)
        before, cpu, began = counted.now(), time.process_time(), trio.current_time()
        await trio.sleep(idle_seconds)
        idle = counted.now() - before
        seconds = trio.current_time() - began
        presence = (idle.total() - idle["line"]) / seconds / num_peers
        share = (time.process_time() - cpu) / seconds / num_peers
        assert know_all(), "a peer is not seen by all others although nothing happened"
        if not num_rounds:
            nursery.cancel_scope.cancel()
            return Cost(num_peers, presence, idle["line"] / seconds / num_peers, share)
        for name in names:
            world.participant(name)._wait_for_peers = num_peers - 1
        await world.reach(2, *names, seconds=ROUND_SECONDS)
        before, began = counted.now(), trio.current_time()
        first = world.round(names[0])
        counted.num_messages = counted.num_new = 0
        await world.reach(first + num_rounds, *names, seconds=ROUND_SECONDS)
        rounds = counted.now() - before
        per_round = (world.round(names[0]) - first) * num_peers
        per_second = (trio.current_time() - began) / (world.round(names[0]) - first)
        newest = headers_of(world, names[0])[first:]
        header_bytes, record_bytes = _lengths(world, names[0], first)
        nursery.cancel_scope.cancel()
    statements = sum(rounds[each] for each in ("rounds", "control", "board", "chain"))
    return Cost(
        peers=num_peers,
        presence=presence,
        line=idle["line"] / seconds / num_peers,
        cpu=share,
        round=statements / per_round,
        announced=rounds["members"] / per_round,
        messages=counted.num_messages / per_round,
        new=counted.num_new / max(1, counted.num_messages),
        members=sum(len(header.members) for header in newest) / len(newest),
        seconds=per_second,
        header=header_bytes / sum(len(header.members) for header in newest),
        record=record_bytes / sum(len(header.members) for header in newest),
    )


def _lengths(world: World, name: str, first: int) -> tuple[int, int]:
    """Bytes of the headers, and of the records, of a node's rounds after the first ones."""
    chain = world.participant(name).context.committed.chain
    headers = records = 0
    for head in world.path(name)[first:]:
        compact = compacted(chain.commit(head))
        assert compact is not None, "a record without a compact form"
        headers += len(msgspec.msgpack.encode(compact.header))
        records += len(chain.record(head))
    return headers, records


def measure(net: Network, num_peers: int, idle_seconds: float, num_rounds: int) -> Cost:
    """Runs one swarm of that many peers."""
    found: list[Cost] = []
    counted = Bytes()
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        world = World(
            Path(folder),
            seed=7,
            wait_for_peers=num_peers,
            num_shards=8 * num_peers,
            inner_steps=20,
            latency_seconds=0.02,
            look_seconds=0.1,
        )

        async def main() -> None:
            found.append(await _measure(world, counted, num_peers, idle_seconds, num_rounds))

        if net == "memory":
            with counted.memory():
                run_simulated(main, world.seed)
        else:
            world.network = Loopback(counted)  # type: ignore[assignment]
            with counted.loopback():
                trio.run(main)
    return found[0]


def exponent(costs: Sequence[Cost], column: str) -> float:
    """Slope of log(column) over log(peers), by least squares."""
    points = [(math.log(cost.peers), math.log(max(getattr(cost, column), 1e-9))) for cost in costs]
    x_mean, y_mean = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else math.nan


def _save(name: str, costs: Sequence[Cost]) -> None:
    commit = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), check=True, capture_output=True, text=True
    )
    with_rounds = [cost for cost in costs if not math.isnan(cost.round)]
    series = Series(
        name,
        commit.stdout.strip(),
        [cost.peers for cost in costs],
        [cost.presence for cost in costs],
        [cost.round for cost in with_rounds],
        [cost.announced for cost in with_rounds],
    )
    save(RESULTS / "scale.json", series)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the control plane costs a peer.")
    parser.add_argument("--net", choices=("memory", "loopback"), nargs="+",
                        default=["memory", "loopback"])  # fmt: skip
    parser.add_argument("--peers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=4, help="0: presence alone")
    parser.add_argument("--save", help="keep the figures of the transport in memory by this name")
    options = parser.parse_args()
    errors_only = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=errors_only)
    console = Console(width=130)
    for net in options.net:
        costs = []
        for num_peers in options.peers:
            began = time.monotonic()
            cost = measure(net, num_peers, options.idle_seconds, options.rounds)
            costs.append(cost)
            console.print(f"{net} {cost} in {time.monotonic() - began:.0f} s", highlight=False)
        table = Table("peers", "presence B/s", "line B/s", "CPU", "round B", "presence's B",
                      "messages", "new", "members", "seconds", "header B", "record B",
                      title=net)  # fmt: skip
        for cost in costs:
            table.add_row(
                str(cost.peers), f"{cost.presence:,.0f}", f"{cost.line:,.0f}", f"{cost.cpu:.1%}",
                f"{cost.round:,.0f}", f"{cost.announced:,.0f}", f"{cost.messages:.0f}",
                f"{cost.new:.0%}",
                f"{cost.members:.1f}", f"{cost.seconds:.1f}", f"{cost.header:.1f}",
                f"{cost.record:.0f}",
            )  # fmt: skip
        if options.save is not None and net == "memory":
            _save(options.save, costs)
        columns = [field.name for field in fields(Cost)][1:]
        table.add_row("exponent", *(f"{exponent(costs, column):.2f}" for column in columns))
        console.print(table)


if __name__ == "__main__":
    main()
