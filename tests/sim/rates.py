"""How many rounds honest swarms commit in a minute, where one machine is slow or several fail.

python -m tests.sim.rates --fault slow|dying --seeds 24

To compare two versions of a rule, run both with the same seeds.
"""

from __future__ import annotations

import argparse
from random import Random

from tests.sim.simulator.scenario import CHUNK_BYTES, Machine, Scenario
from tests.sim.simulator.world import World
from tests.support.faults import FaultKind, draw_faults

SECONDS = 60.0
RING_SECONDS = 0.1
KINDS: tuple[FaultKind, ...] = ("crash", "freeze", "vanish", "restart", "isolate")


def drawn(seed: int, fault: str) -> Scenario:
    """A swarm with one slow machine, or with as many faults as peers."""
    random = Random(f"rate {seed}")
    num_peers = random.choice((4, 5, 6, 8))
    train_seconds = random.choice((2.0, 4.0, 8.0))
    slow = random.randrange(num_peers) if fault == "slow" else None
    factor = random.choice((1.5, 3.0, 20.0))
    machines = []
    for index in range(num_peers):
        seconds = train_seconds * (factor if index == slow else 1)
        rate = 2 * num_peers * CHUNK_BYTES / RING_SECONDS * random.uniform(0.5, 1.0)
        machines.append(Machine(rate, (0.9 * seconds, seconds), random.randint(0, 10_000)))
    faults = draw_faults(random, KINDS, num_peers, 5.0, SECONDS) if fault == "dying" else ()
    return Scenario(
        seed=seed,
        machines=tuple(machines),
        num_chunks=num_peers,
        gather_seconds=random.choice((2.0, 10.0)),
        gather_fraction=random.choice((0.3, 1000.0)),
        latency_seconds=(0.01, 0.1),
        gossip_loss=random.choice((0.0, 0.1)),
        gossip_seconds=random.choice(((0.01, 0.1), (0.05, 1.0))),
        faults=faults,
        fault_seconds=SECONDS,
    )


def rounds_of(seed: int, fault: str) -> int:
    """The highest round of a living peer after `SECONDS`."""
    world = World(drawn(seed, fault))
    rounds = [0]

    def look() -> None:
        rounds.extend(world.checks.round_of(peer.heads.head) for peer in world.living())

    world.at(SECONDS, look)
    world.run()
    return max(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=("slow", "dying"), default="slow")
    parser.add_argument("--seeds", type=int, default=24)
    arguments = parser.parse_args()
    total = 0
    for seed in range(arguments.seeds):
        rounds = rounds_of(seed, arguments.fault)
        total += rounds
        print(f"seed {seed}: {rounds} rounds", flush=True)
    print(f"{total} rounds in {arguments.seeds} worlds of {SECONDS:.0f} s")


if __name__ == "__main__":
    main()
