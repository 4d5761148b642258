"""Swarms of real daemons for `attacked_daemons`, and rogues beside them."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import trio

from gossamer.node.demo.local_swarm import ANY_PORT, LocalNode, LocalSwarm
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import TransportError
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status
from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Manifest
from tests.rogue import attacks_connections
from tests.rogue.catalogue import Attack
from tests.rogue.rogue import Rogue
from tests.support.daemons import (
    MANIFEST,
    PATIENCE_SECONDS,
    digests_on_disk,
    in_rounds_of,
    metric_of,
    write_corpus,
)

SECONDS = 40.0
"""Of an attack that is counted in rounds, and of the time without it."""

ROUNDS_SECONDS = 240.0
"""Time for some dozens of rounds, of which one takes a second or two alone."""

LOOPBACK = "/ip4/127.0.0.1/tcp/0"

OPEN, MEMBERS = 'trust = "open"', 'trust = "members"'


def manifest_text(lines: str = "", *, outer: str = "", rounds: str = "") -> str:
    """The small run of the end-to-end tests, with more lines before its sections and in two."""
    text = MANIFEST.replace("[tokenizer]", f"{lines}\n[tokenizer]", 1)
    text = text.replace("[outer]", f"[outer]\n{outer}", 1)
    return text.replace("[rounds]", f"[rounds]\n{rounds}", 1)


def steps_manifest_text(lines: str) -> str:
    """The same run with a few shared steps a round, which has no warm-up rounds."""
    text = manifest_text(f'sync = "distro"\n{lines}')
    text = text.replace("warmup_rounds = 2\nwarmup_inner_steps = 20", "warmup_rounds = 0", 1)
    return text.replace("inner_steps = 40", "inner_steps = 8", 1)


class Swarm:
    """Real daemons of one run."""

    def __init__(
        self,
        folder: Path,
        local: LocalSwarm,
        manifest: str = MANIFEST,
        *,
        environment: Mapping[str, str] | None = None,
        listen: str = ANY_PORT,
        lines_per_file: int = 250,
    ) -> None:
        """
        Args:
            environment: of the founder.
            listen: where the founder listens.
            lines_per_file: of the corpus.
        """
        path = folder / "run.toml"
        path.write_text(manifest)
        corpus = folder / "corpus"
        corpus.mkdir()
        write_corpus(corpus, lines_per_file)
        self.local = local
        self.founder = local.add(environment=environment, listen=listen)
        self.founder.start("start", "--manifest", str(path), "--corpus", str(corpus))
        self.address = self.founder.address(PATIENCE_SECONDS)
        self.honest = [self.founder]

    def join(self, num_peers: int) -> None:
        """Adds honest daemons, and waits until all work together."""
        self.honest += [self.local.join(self.address, "--yes") for _ in range(num_peers)]
        self.wait_for_all()

    def join_hostile(self, kind: str, node: LocalNode | None = None) -> LocalNode:
        """Adds a daemon that does harm. `{me}` in its kind is its peer id."""
        node = self.local.add() if node is None else node
        make_hostile(node, kind)
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

    def logged(self, event: str) -> list[str]:
        """The lines with an event in the logs of the honest daemons."""
        logs = (node.log_path.read_text(errors="replace") for node in self.honest)
        return [line for log in logs for line in log.splitlines() if event in line]

    def are_blamed(self, node: LocalNode) -> bool:
        """Returns whether each ban in the logs of the honest daemons is of this node."""
        bans = self.logged("a peer is banned for a while")
        return all(f"peer={peer_id_of(node)} " in each for each in bans)


def make_hostile(node: LocalNode, kind: str) -> None:
    """Lets a daemon that is not started yet do harm."""
    module = ("-m", "tests.benchmarks._hostile_daemon", kind.format(me=peer_id_of(node)))
    node.prefix = (*node.prefix, sys.executable, *module)


def peer_id_of(node: LocalNode) -> PeerId:
    """The peer id of a daemon, also before its first start."""
    node.root.mkdir(exist_ok=True)
    return Identity.load_or_create(StateDir(node.root).identity_path).peer_id


def addresses_of(swarm: Swarm) -> dict[PeerId, str]:
    """An address of each honest daemon."""
    addresses: dict[PeerId, str] = {}
    for node in swarm.honest:
        status = node.status()
        assert status is not None
        addresses[PeerId(status.peer_id)] = status.addresses[0]
    return addresses


async def attack_for(swarm: Swarm, attack: Attack, seconds: float) -> None:
    """A rogue at work for so long. When it is banned, the next identity comes."""
    addresses = addresses_of(swarm)
    victims = sorted(addresses)
    with trio.move_on_after(seconds):
        while True:
            identity = Identity.generate()
            async with open_libp2p_transport(identity, [LOOPBACK]) as transport:
                rogue = Rogue(transport, identity, random.Random(0), addresses=addresses)
                with suppress(TransportError):
                    await attacks_connections.enter(rogue, victims)
                    await attack(rogue, victims)
                while set(victims) <= set(transport.peers()):  # noqa: ASYNC110 - has no event
                    await trio.sleep(0.1)


def manifest_of(node: LocalNode) -> Manifest:
    """The manifest on a daemon's disk."""
    signed = StateDir(node.root).read_manifest()
    assert signed is not None
    return open_signed_manifest(signed)


def process_of(node: LocalNode) -> psutil.Process:
    """The daemon's process."""
    assert node.process is not None
    return psutil.Process(node.process.pid)


def share_of_a_core(node: LocalNode, seconds: float) -> float:
    """The part of one core that a daemon takes in the next seconds, without its trainer."""
    process = process_of(node)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
