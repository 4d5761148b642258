"""What becomes of each attack that once stopped a run, row by row?

    python -m tests.benchmarks.attacks            # all rows; some ten minutes
    python -m tests.benchmarks.attacks C2 H4      # these rows

Each row runs tests that show the attack to whole nodes in virtual time, or to real connections,
and prints what they have measured. A row whose tests fail says so, and the command ends with 1.
The column "before" is what was measured at a3ef9ca, before anything was done about it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass

from tests.support.measured import MARK

ROW_SECONDS_MAX = 900.0
HARM, OPEN = "tests/rogue/test_harm.py::", "tests/rogue/test_open_trust.py::"
INFLUENCE, CATALOGUE = "tests/rogue/test_influence.py::", "tests/rogue/test_catalogue.py::"


@dataclass(frozen=True)
class Row:
    """One attack."""

    name: str
    attack: str
    before: str
    tests: tuple[str, ...]


ROWS = (
    Row(
        "C1",
        "one signer names invented members, or comes back with rounds made alone",
        "all honest nodes took a model of zeros; 20 rounds undone",
        (
            f"{CATALOGUE}test_the_swarm_goes_on[heads_of_invented_members]",
            f"{HARM}test_rounds_that_one_member_made_in_secret_undo_none_of_the_others",
            "tests/rogue/test_lone_commit.py"
            "::test_its_record_is_no_proof_where_two_accusers_are_needed",
        ),
    ),
    Row(
        "C2",
        "a member sends an average that nobody made",
        "the whole model set by a quarter of the tokens; 5.5 nats",
        (
            f"{OPEN}test_among_members_one_sets_the_model",
            f"{OPEN}test_an_average_that_nobody_signed_is_refused",
        ),
    ),
    Row(
        "C3",
        "every 2 s a plausible head whose blocks nobody has",
        "1.9 to 0 rounds a second",
        (f"{HARM}test_heads_whose_blocks_nobody_has_do_not_stop_training",),
    ),
    Row(
        "C4",
        "the opposite of the work, noise, a constant of 2^63",
        "1,317 and 660 nats; no further round",
        (
            f"{INFLUENCE}test_one_of_four_does_not_carry_the_model_away",
            f"{INFLUENCE}test_nonsense_of_one_card_in_one_round_is_survived",
            f"{INFLUENCE}test_a_sum_is_carried_away_by_one",
        ),
    ),
    Row(
        "H1",
        "tokens claimed at the bound, with a flipped sign",
        "82 % of the weight; 982 nats",
        (f"{INFLUENCE}test_a_claim_of_tokens_does_not_turn_a_sum_round",),
    ),
    Row(
        "H2",
        "a peer that the run does not admit connects",
        "manifest, chain, model and all 64 shards",
        ("tests/rogue/test_strangers.py::test_a_stranger_to_a_closed_run_gets_nothing",),
    ),
    Row(
        "H3",
        "one of five accuses the same other one in every ring",
        "credited in 0 of 39 rounds",
        (f"{HARM}test_a_member_that_is_accused_in_every_ring_is_credited_all_the_same",),
    ),
    Row(
        "H4",
        "a member acknowledges, passes nothing on, and comes back",
        "2.0 to 0.03 rounds a second",
        (f"{HARM}test_a_member_that_spoils_every_ring_it_is_in_sits_out",),
    ),
    Row(
        "H5",
        "a manifest of billions of parameters",
        "the daemon is killed for memory, again after each restart",
        (
            "tests/node/runs/test_needs.py"
            "::test_memory_is_refused_above_seven_tenths_of_what_is_free",
        ),
    ),
    Row(
        "H6",
        "idle connections of strangers",
        "nobody else can connect or be dialled",
        ("tests/node/network/test_places.py::test_idle_strangers_keep_nobody_out",),
    ),
)


def run(row: Row) -> tuple[bool, list[str]]:
    """Runs the tests of a row; returns whether they passed, and what they measured."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-o", "timeout=0", *row.tests],
        capture_output=True,
        text=True,
        timeout=ROW_SECONDS_MAX,
    )
    lines = [line.strip() for line in done.stdout.splitlines()]
    found = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    return done.returncode == 0, list(dict.fromkeys(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="C1 to C4, H1 to H6")
    names = parser.parse_args().rows
    unknown = sorted({*names} - {row.name for row in ROWS})
    if unknown:
        parser.error(f"no such row: {' '.join(unknown)}")
    print("| | attack | before | now |\n| --- | --- | --- | --- |")
    all_passed = True
    for row in ROWS:
        if names and row.name not in names:
            continue
        has_passed, found = run(row)
        all_passed &= has_passed
        now = "; ".join(found) + ("" if has_passed else " **(a test failed)**")
        print(f"| {row.name} | {row.attack} | {row.before} | {now} |", flush=True)
    sys.exit(not all_passed)


if __name__ == "__main__":
    main()
