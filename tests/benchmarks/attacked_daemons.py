"""What becomes of the attacks on real daemons, over real connections?

    python -m tests.benchmarks.attacked_daemons             # all rows; an hour
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
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.benchmarks import _attacked_by_drains as by_drains
from tests.benchmarks import _attacked_by_members as by_members
from tests.benchmarks import _attacked_by_strangers as by_strangers
from tests.benchmarks._attacked_swarm import MEMBERS, OPEN, manifest_text, steps_manifest_text
from tests.rogue import attacks_averages, attacks_claims, attacks_gossip
from tests.support.daemons import OPTIONS

STALLS_SECONDS = 400.0
"""Of H4, where a member spoils rings. It sits out twice as many rounds each time, so the first
minute is not like the next ones: the rounds of the first `SECONDS` are counted as well."""

HARMFUL = ("opposite", "noise", "huge")
BOTH_WAYS = ("sums:{me}", "averages:{me}")
SUMS = manifest_text(f'sync = "sparse"\n{MEMBERS}')  # of many members, in place of sets
SPARSE = manifest_text(f'sync = "sparse"\n{MEMBERS}', outer="top_k = 64")
DISTRO, OPEN_DISTRO = steps_manifest_text(MEMBERS), steps_manifest_text(OPEN)

counted, losses = by_members.counted_rounds, by_members.losses_with
found, credited = by_members.found_liars, by_members.credited_with

ROWS: Mapping[str, Callable[[Path, LocalSwarm], str]] = {
    "C1": counted(attacks_gossip.heads_of_invented_members),
    "C2 members": counted(attacks_averages.forged_averages, MEMBERS),
    "C2 open": counted(attacks_averages.forged_averages, OPEN),
    "C3": counted(attacks_claims.heads_without_blocks),
    "C4 open": losses(HARMFUL, OPEN),
    "C4 members": losses(("opposite",), MEMBERS),
    "C5 sparse": found([f"replace:{how}" for how in BOTH_WAYS], SPARSE),
    "C5 sums": found([f"replace:{how}" for how in BOTH_WAYS], SUMS),
    "C5 distro": found([f"replace:{how}" for how in BOTH_WAYS], DISTRO),
    "C6 sparse": found(["spoil:sums:{me}"], SPARSE),
    "C6 distro": found(["spoil:sums:{me}"], DISTRO),
    "C7": found(
        [f"{kind}:{how}" for kind in ("turn", "silence") for how in BOTH_WAYS],
        OPEN_DISTRO,
    ),
    "C7 signs": by_members.signs_against,
    "H1 open": losses(("claim",), OPEN),
    "H1 members": losses(("claim",), MEMBERS),
    "H2": by_strangers.stranger,
    "H3": credited(1, by_members.accused),
    "H4": counted(by_members.always_back, seconds=STALLS_SECONDS),
    "H5": by_strangers.too_large,
    "H6": by_strangers.newcomer,
    "H7 in turn": credited(1, by_members.left_out("InTurn")),
    "H7 out of turn": credited(1, by_members.left_out("OutOfTurn")),
    "H7 early": credited(1, by_members.left_out("Early")),
    "M1": by_drains.drain,
    "M2": by_drains.third_party,
    "M3 records": by_drains.lone_records,
    "M3 statements": by_drains.statements,
    "M4": by_drains.half_handshakes,
    "M5": by_members.false_rate,
    "M6": by_members.fresh_identities,
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
