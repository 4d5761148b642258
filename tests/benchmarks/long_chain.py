"""What does a run of very many rounds cost on the disk, and a newcomer to it?

    python -m tests.benchmarks.long_chain
    python -m tests.benchmarks.long_chain --members 64 --rounds 20000

Synthetic rounds of the same members, whose records are as long as real ones without spans. Old
headers go as in a node. After some numbers of rounds the table has the bytes of the chain's folder,
what a newcomer fetches, and how long it takes until it knows the chain: signed checkpoints, summary
and headers, with as many signatures checked as real records have. The network is in memory and has
no latency; the model's state is not part of it. The time to make the rounds is not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from gossamer.node.network.identity import Identity, verify
from gossamer.protocol.state.chain import Commit, Header, decode_header
from tests.support.committed_rounds import IDENTITY
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.pruned_runs import Member, Peer

MEMBER, NEWCOMER = Identity.from_seed(b"m" * 32), Identity.from_seed(b"n" * 32)
MESSAGE = bytes(300)
SIGNATURE = IDENTITY.sign(MESSAGE)


class Cost(NamedTuple):
    """The cost of a run after a number of rounds."""

    rounds: int
    disk_bytes: int
    join_bytes: int
    join_seconds: float
    rounds_learned: int


def open_commit(commit: Commit) -> Header:
    """Checks as many signatures as a real record has: `Ready` and vote of each member, and the
    roster's."""
    header = decode_header(commit.header)
    for _ in range(2 * len(header.members) + 1):
        assert verify(IDENTITY.peer_id, MESSAGE, SIGNATURE)
    return header


def measure(
    folder: Path, num_members: int, after: Sequence[int], *, says_all: bool = False
) -> list[Cost]:
    """The costs after each of these numbers of rounds, which grow.

    Args:
        says_all: see `rounds_after`.
    """
    costs: list[Cost] = []

    async def main() -> None:
        network = MemoryNetwork(seed=1, latency_seconds=0.0)
        async with network.transport(MEMBER) as served, network.transport(NEWCOMER) as asking:
            member = Member(folder / "member", served, num_members, says_all=says_all)
            await asking.connect(network.addresses_of(MEMBER.peer_id)[0])
            for number, rounds in enumerate(after):
                member.advance(rounds - member.committed.entry.round)
                newcomer = Peer(folder / f"newcomer {number}", asking, open_commit)
                begun = time.perf_counter()
                await newcomer.records.learn(member.committed.head, MEMBER.peer_id)
                seconds = time.perf_counter() - begun
                assert newcomer.chain.is_whole(member.committed.head)
                learned = len(newcomer.chain.ancestors(member.committed.head, rounds)) - 1
                costs.append(
                    Cost(rounds, member.disk_bytes(), newcomer.num_bytes, seconds, learned)
                )

    run_simulated(main)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=100_000)
    arguments = parser.parse_args()
    # The same number of rounds after the newest checkpoint each time.
    after = sorted({2_048, 10_240, 51_200, arguments.rounds // 256 * 256} - {0})
    after = [each for each in after if each <= arguments.rounds]
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(Path(folder), arguments.members, after, says_all=True)
    table = Table(title=f"{arguments.members} members")
    for name in ("rounds", "disk MB", "join MB", "join s", "headers learned"):
        table.add_column(name, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.rounds:,}",
            f"{cost.disk_bytes / 1e6:.2f}",
            f"{cost.join_bytes / 1e6:.3f}",
            f"{cost.join_seconds:.2f}",
            str(cost.rounds_learned),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
