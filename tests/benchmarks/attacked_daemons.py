"""What becomes of the attacks on real daemons, over real connections?

    python -m tests.benchmarks.attacked_daemons             # all rows; some fifteen minutes
    python -m tests.benchmarks.attacked_daemons C3 H4       # these rows

The rows are those of `attacks`, which shows them to whole nodes in virtual time. Here each row has
a swarm of daemons of its own, as a person starts them, with small trainers. Some attacks are those
of a peer that speaks the protocol by itself (`tests/rogue`), with a new identity whenever it was
banned. Others need a member that works: they are daemons with one method changed
(`_hostile_daemon`). Rounds are counted for some seconds without the attack and for as many with it,
on one machine, whose other load shows in both.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import trio

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import ProtocolRefused, Stream, TransportError
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.limits import CHUNK_ELEMENTS_MAX
from gossamer.protocol.manifest import (
    Manifest,
    SignedManifest,
    encode_manifest,
    signing_bytes,
)
from gossamer.protocol.state.chain import credits_of
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_request
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, ChainRequest
from gossamer.protocol.wire.run_messages import RUN_PROTOCOL, encode_signed_manifest
from tests.rogue import attacks_averages, attacks_claims, attacks_connections, attacks_gossip
from tests.rogue.catalogue import Attack
from tests.rogue.rogue import Rogue, encode, frame
from tests.support.daemons import (
    MANIFEST,
    OPTIONS,
    PATIENCE_SECONDS,
    digests_on_disk,
    in_rounds_of,
    metric_of,
    path_on_disk,
    write_corpus,
)

SECONDS = 40.0
"""Of an attack that is counted in rounds, and of the time without it."""

STALLS_SECONDS = 400.0
"""The same where each ring that is spoilt takes some ten seconds. The member sits out twice as many
rounds each time, so the first minute is not like the next ones."""

LAST_ROUND = 60
"""The round whose losses are compared, or the next one that is measured."""

ACCUSED_ROUNDS = 24
"""Rounds in which one member accuses the same other one."""

ROUNDS_SECONDS = 240.0
"""Time for so many rounds, of which one takes a second or two alone."""

LISTEN_SECONDS = 10.0
"""Time for which a stranger listens."""

HUGE_LAYERS = 180
"""Of a model of some ten billion parameters."""


class Swarm:
    """Real daemons of one run."""

    def __init__(self, folder: Path, local: LocalSwarm, lines: str = "") -> None:
        """`lines`: of the manifest, before its sections."""
        manifest = folder / "run.toml"
        manifest.write_text(MANIFEST.replace("[tokenizer]", f"{lines}\n[tokenizer]", 1))
        corpus = folder / "corpus"
        corpus.mkdir()
        write_corpus(corpus)
        self.local = local
        self.founder = local.found("--manifest", str(manifest), "--corpus", str(corpus))
        self.address = self.founder.address(PATIENCE_SECONDS)
        self.honest = [self.founder]

    def join(self, num_peers: int) -> None:
        """Adds honest daemons, and waits until all work together."""
        self.honest += [self.local.join(self.address, "--yes") for _ in range(num_peers)]
        self.wait_for_all()

    def join_hostile(self, kind: str) -> LocalNode:
        """Adds a daemon that does harm."""
        node = self.local.add()
        node.prefix = (sys.executable, "-m", "tests.benchmarks._hostile_daemon", kind)
        node.start("join", self.address, "--yes")
        return node

    def wait_for_all(self, num_members: int | None = None) -> None:
        """Waits until each honest daemon's newest round has so many members."""
        condition = in_rounds_of(num_members or len(self.honest))
        for node in self.honest:
            node.wait_for(condition, PATIENCE_SECONDS, f"round of {num_members or 'all'}")

    def rounds(self) -> int:
        """The newest round of the first daemon that joined."""
        status = self.honest[-1].wait_for(lambda _: True, PATIENCE_SECONDS, "an answer")
        return status.round

    def heldout(self) -> float:
        """The founder's held-out loss, in nats a token."""
        status = self.founder.wait_for(
            lambda s: s.heldout_loss is not None, PATIENCE_SECONDS, "held-out loss"
        )
        assert status.heldout_loss is not None
        return status.heldout_loss

    def heldout_from(self, number: int) -> tuple[int, float]:
        """The founder's first held-out loss of a round from this one on, with its round."""

        def found(status: Status) -> list[tuple[int, float]]:
            return [
                (each.round, each.heldout_loss)
                for each in status.loss_history
                if each.round >= number and each.heldout_loss is not None
            ]

        what = f"held-out loss from round {number} on"
        return found(self.founder.wait_for(lambda s: bool(found(s)), ROUNDS_SECONDS, what))[0]

    def num_chains(self) -> int:
        """How many different states the honest daemons have of a round that all have on disk."""
        chains = [digests_on_disk(node) for node in self.honest]
        shared = set.intersection(*(set(chain) for chain in chains))
        return max(len({chain[number] for chain in chains}) for number in shared)

    def bans(self) -> str:
        """The bans of the honest daemons, for people."""
        return f"{sum(metric_of(node, 'gossamer_bans_total') for node in self.honest):.0f} bans"

    def offences(self, reason: str) -> int:
        """The offences of one reason that they counted."""
        name = "gossamer_offences_total"
        return int(sum(metric_of(node, name, f'"{reason}"') for node in self.honest))


async def attack_for(swarm: Swarm, attack: Attack, seconds: float) -> None:
    """A rogue at work for so long. When it is banned, the next identity comes."""
    addresses: dict[PeerId, str] = {}
    for node in swarm.honest:
        status = node.status()
        assert status is not None
        addresses[PeerId(status.peer_id)] = status.addresses[0]
    victims = sorted(addresses)
    with trio.move_on_after(seconds):
        while True:
            identity = Identity.generate()
            async with open_libp2p_transport(identity, ["/ip4/127.0.0.1/tcp/0"]) as transport:
                rogue = Rogue(transport, identity, random.Random(0), addresses=addresses)
                with suppress(TransportError):
                    await attacks_connections.enter(rogue, victims)
                    await attack(rogue, victims)
                while set(victims) <= set(transport.peers()):  # noqa: ASYNC110 - has no event
                    await trio.sleep(0.1)


async def always_back(rogue: Rogue, victims: list[PeerId]) -> None:
    """A member that passes nothing on, in each ring that it is let into."""
    while True:
        await attacks_claims.member_that_passes_nothing_on(rogue, victims, look_seconds=0.5)


def counted_rounds(
    attack: Attack, lines: str = "", seconds: float = SECONDS
) -> Callable[[Path, LocalSwarm], str]:
    """A row that counts rounds with and without an attack of a rogue, which takes so long."""

    def row(folder: Path, local: LocalSwarm) -> str:
        swarm = Swarm(folder, local, lines)
        swarm.join(2)
        first = swarm.rounds()
        time.sleep(SECONDS)
        undisturbed = swarm.rounds() - first
        first = swarm.rounds()
        trio.run(attack_for, swarm, attack, seconds)
        attacked = swarm.rounds() - first
        swarm.wait_for_all()
        return (
            f"{attacked} rounds in {seconds:.0f} s, {undisturbed} in {SECONDS:.0f} s undisturbed; "
            f"then rounds of all three on {swarm.num_chains()} chain; {swarm.bans()}, "
            f"{swarm.offences('forged')} offences of forgery; held-out {swarm.heldout():.3f}"
        )

    return row


def losses_with(kinds: Sequence[str], lines: str) -> Callable[[Path, LocalSwarm], str]:
    """A row that compares losses after some rounds of three honest daemons and a hostile one."""

    def loss(folder: Path, local: LocalSwarm, kind: str | None) -> str:
        swarm = Swarm(folder, local, lines)
        swarm.join(2)
        if kind is not None:
            swarm.join_hostile(kind)
            swarm.wait_for_all(len(swarm.honest) + 1)
        joined = swarm.rounds()
        number, found = swarm.heldout_from(LAST_ROUND)
        return f"{kind or 'nobody'} {found:.3f} (from round {joined} on, at {number})"

    def row(folder: Path, _local: LocalSwarm) -> str:
        found = []
        for number, kind in enumerate((None, *kinds)):
            own = folder / str(number)
            own.mkdir()
            with LocalSwarm(own / "swarm", OPTIONS) as local:
                found.append(loss(own, local, kind))
        return f"held-out: {', '.join(found)}"

    return row


def stranger(folder: Path, local: LocalSwarm) -> str:
    """H2: a peer that an allow list does not name asks for all that there is."""
    friend = Identity.generate().peer_id
    swarm = Swarm(folder, local, f'admission = "allow"\nallowed = ["{friend}"]')
    manifest = manifest_of(swarm.founder)
    questions = {
        RUN_PROTOCOL: frame(),
        CHAIN_PROTOCOL: frame(encode(ChainRequest(manifest.run_id, 0))),
        BLOCKS_PROTOCOL: frame(encode_request(Digest(manifest.data.index_digest))),
    }
    victim = PeerId(manifest.founder)

    async def main() -> tuple[int, int]:
        identity = Identity.generate()
        async with open_libp2p_transport(identity, ["/ip4/127.0.0.1/tcp/0"]) as transport:
            await transport.connect(swarm.address)
            rogue = Rogue(transport, identity, random.Random(0), manifest)
            for topic in rogue.topics():
                transport.subscribe(topic, lambda _author, _data: True)
            refused = 0
            for protocol, question in questions.items():
                try:
                    await transport.open_stream(victim, protocol)
                except (ProtocolRefused, TransportError):
                    refused += 1
                await rogue.say(question, victim=victim, protocol=protocol)
            await trio.sleep(LISTEN_SECONDS)
            return refused, sum(received for _, received in transport.traffic().values())

    refused, num_bytes = trio.run(main)
    asked = f"{refused} of {len(questions)} protocols refused"
    return f"{asked}, {num_bytes} bytes in {LISTEN_SECONDS:.0f} s"


def accused(folder: Path, local: LocalSwarm) -> str:
    """H3: one of five accuses the same other one in every ring."""
    swarm = Swarm(folder, local)
    swarm.join(3)
    victim = swarm.honest[1].status()
    assert victim is not None
    swarm.join_hostile(f"accuse:{victim.peer_id}")
    swarm.founder.wait_for(in_rounds_of(5), PATIENCE_SECONDS, "round of five")
    first = swarm.rounds()
    last = first + ACCUSED_ROUNDS
    for node in swarm.honest:
        node.wait_for(lambda status: status.round >= last, ROUNDS_SECONDS, f"round {last}")
    assert swarm.founder.leave() == 0, swarm.founder.tail()
    chain, path = path_on_disk(swarm.founder)
    credited = [
        credits_of(chain.header(head)).get(PeerId(victim.peer_id), 0) > 0
        for head in path
        if chain.entry(head).round > first
    ]
    return f"credited in {sum(credited)} of {len(credited)} rounds"


def too_large(folder: Path, local: LocalSwarm) -> str:
    """H5: the manifest of a model that no home machine can hold."""
    swarm = Swarm(folder, local)
    small = manifest_of(swarm.founder)
    identity = Identity.generate()
    model = msgspec.structs.replace(
        small.model, num_layers=HUGE_LAYERS, width=2048, hidden_width=8192, num_heads=16
    )
    outer = msgspec.structs.replace(small.outer, chunk_elements=CHUNK_ELEMENTS_MAX)
    huge = msgspec.structs.replace(small, founder=identity.peer_id, model=model, outer=outer)
    signature = identity.sign(signing_bytes(huge.run_id))
    signed = SignedManifest(manifest=encode_manifest(huge), signature=signature)

    async def serve(stream: Stream) -> None:
        await receive_frame(stream)
        await send_frame(stream, b"", encode_signed_manifest(signed))
        await stream.close()

    async def main() -> tuple[int | None, float, int]:
        async with open_libp2p_transport(identity, ["/ip4/127.0.0.1/tcp/0"]) as transport:
            transport.handle(RUN_PROTOCOL, serve)
            began = time.monotonic()
            node = local.join(transport.addresses()[0], "--yes")
            assert node.process is not None
            process, largest = psutil.Process(node.process.pid), 0
            while node.is_running and time.monotonic() - began < PATIENCE_SECONDS:
                with suppress(psutil.Error):
                    largest = max(largest, process.memory_info().rss)
                await trio.sleep(0.02)
            print(node.tail(1), file=sys.stderr)
            return node.process.poll(), time.monotonic() - began, largest

    status, seconds, largest = trio.run(main)
    return (
        f"{huge.model.num_parameters / 1e9:.1f} B parameters: ends with {status} after "
        f"{seconds:.1f} s and {largest / 1e6:.0f} MB"
    )


def newcomer(folder: Path, local: LocalSwarm) -> str:
    """H6: three hundred connections of strangers that say nothing, and a newcomer beside them."""
    swarm = Swarm(folder, local)
    swarm.join(1)
    found: list[float] = []

    async def join(rogue: Rogue, victims: list[PeerId]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attacks_connections.silent_connections, rogue, victims)
            await trio.sleep(1.0)
            began = time.monotonic()
            node = local.join(swarm.address, "--yes")
            await trio.to_thread.run_sync(
                lambda: node.wait_for(lambda s: s.round > 0, PATIENCE_SECONDS, "round")
            )
            found.append(time.monotonic() - began)
            nursery.cancel_scope.cancel()

    trio.run(attack_for, swarm, join, PATIENCE_SECONDS)
    if not found:
        return "nobody came in"
    return f"a newcomer is at the run's head {min(found):.1f} s after its start"


def manifest_of(node: LocalNode) -> Manifest:
    """The manifest on a daemon's disk."""
    signed = StateDir(node.root).read_manifest()
    assert signed is not None
    return open_signed_manifest(signed)


OPEN, MEMBERS = 'trust = "open"', 'trust = "members"'
HARMFUL = ("opposite", "noise", "huge")

ROWS: Mapping[str, Callable[[Path, LocalSwarm], str]] = {
    "C1": counted_rounds(attacks_gossip.heads_of_invented_members),
    "C2 members": counted_rounds(attacks_averages.forged_averages, MEMBERS),
    "C2 open": counted_rounds(attacks_averages.forged_averages, OPEN),
    "C3": counted_rounds(attacks_claims.heads_without_blocks),
    "C4 open": losses_with(HARMFUL, OPEN),
    "C4 members": losses_with(("opposite",), MEMBERS),
    "H1 open": losses_with(("claim",), OPEN),
    "H1 members": losses_with(("claim",), MEMBERS),
    "H2": stranger,
    "H3": accused,
    "H4": counted_rounds(always_back, seconds=STALLS_SECONDS),
    "H5": too_large,
    "H6": newcomer,
}


def main() -> None:
    """Runs rows and prints a line of each."""
    parser = argparse.ArgumentParser("tests.benchmarks.attacked_daemons")
    parser.add_argument("rows", nargs="*", help="such as C3, or 'C2 open'; default: all")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no daemon is left
    wanted = [name for name in ROWS if not options.rows or {name, name[:2]} & {*options.rows}]
    for name in wanted:
        with tempfile.TemporaryDirectory(prefix="attacked-") as folder:
            root = Path(folder)
            with LocalSwarm(root / "swarm", OPTIONS) as local:
                print(f"| {name} | {ROWS[name](root, local)} |", flush=True)


if __name__ == "__main__":
    main()
