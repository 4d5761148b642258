"""What becomes of each attack that once stopped a run, row by row?

    python -m tests.benchmarks.attacks                   # all rows; C8 to C10 take minutes each
    python -m tests.benchmarks.attacks --seeds 1 2 3     # each of them in three worlds
    python -m tests.benchmarks.attacks C2 H4             # these rows

Each row runs tests that show the attack to whole nodes in virtual time, or to real connections,
and prints what they have measured. A row whose tests fail says so, and the command ends with 1.
The column "before" is what was measured at a3ef9ca, before anything was done about it.

A seed is another world for the same story: other identities, another order in rings, other draws of
all nodes. Seed 1 is the world of the test itself. Figures that differ between seeds are shown from
the lowest to the highest. Rows without whole nodes have no seed and run once.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.measured import MARK
from tests.support.node_world import WORLDS_VARIABLE

ROW_SECONDS_MAX = 900.0
"""Time for the tests of a row with one seed."""

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
"""A number as the tests write it: 12, 1,024, 2.61 or 8e+11."""

HARM, OPEN = "tests/rogue/test_harm.py::", "tests/rogue/test_open_trust.py::"
INFLUENCE, CATALOGUE = "tests/rogue/test_influence.py::", "tests/rogue/test_catalogue.py::"
UPLOADS, DIALS = "tests/node/peers/test_uploads.py::", "tests/node/peers/test_provoked_dials.py::"
QUOTA, LEFT_OUT = "tests/rogue/test_quota.py::", "tests/rogue/test_left_out.py::"
STEPS = "tests/rogue/test_open_steps.py::"
LIES = "tests/benchmarks/_credit_under_lies.py::test_honest_nodes_are_credited_under_every_attack"
TRICKLES = "tests/rogue/test_trickled_chunks.py::"
SUMS, SETS = "tests/rogue/test_sum_audits.py::", "tests/rogue/test_set_audits.py::"


@dataclass(frozen=True)
class Row:
    """One attack."""

    name: str
    attack: str
    before: str
    tests: tuple[str, ...]
    has_seed: bool = True
    """Whether its tests run whole nodes, in worlds that take a seed."""


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
            f"{OPEN}test_among_members_one_sets_the_model_by_the_sums_that_it_passes_on",
            f"{OPEN}test_among_members_an_average_that_its_finisher_did_not_sign_is_refused",
            f"{OPEN}test_among_members_one_sets_the_averages_that_it_has_to_finish",
            f"{OPEN}test_an_average_that_nobody_signed_is_refused",
            f"{SUMS}test_a_liar_that_opens_its_chunks_is_banned_by_the_auditor",
            f"{SUMS}test_a_liar_that_opens_nothing_sits_out",
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
        "C5",
        "a member replaces the records of the others in the sets that it passes on or finishes",
        "no liar found in 40 rounds",
        (
            f"{SETS}test_a_liar_that_opens_its_chunks_is_banned_by_the_auditor",
            f"{SETS}test_a_liar_that_opens_nothing_sits_out",
        ),
    ),
    Row(
        "C6",
        "a member passes on records of the others that cannot be decoded",
        "an honest node ends, or an honest finisher is blamed",
        (f"{SETS}test_a_member_that_spoils_the_records_of_others_is_blamed_by_its_receivers",),
    ),
    Row(
        "C7",
        "with shared steps and `open`, a member turns or empties the parts of others, or signs "
        "against them",
        "`open` was refused with shared steps",
        (
            f"{STEPS}test_what_a_member_did_not_sign_is_the_offence_of_who_sends_it",
            f"{STEPS}test_who_signs_against_the_others_has_no_part_in_the_steps",
        ),
    ),
    Row(
        "C8",
        "three of eight, with `open` and `diloco`, int8: six attacks and a mixed one "
        "in place of their work, and tokens claimed at the bound",
        "-",
        (f"{LIES}[int8]",),
    ),
    Row(
        "C9",
        "three of eight, with `open` and `sparse`: six attacks and a mixed one "
        "in place of their work, and tokens claimed at the bound",
        "-",
        (f"{LIES}[sparse]",),
    ),
    Row(
        "C10",
        "three of eight, with `open` and `distro`: six attacks and a mixed one "
        "in place of their work, and tokens claimed at the bound",
        "-",
        (f"{LIES}[distro]",),
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
            "tests/node/runs/planning/test_needs.py"
            "::test_memory_is_refused_above_seven_tenths_of_what_is_free",
        ),
        has_seed=False,
    ),
    Row(
        "H6",
        "idle connections of strangers",
        "nobody else can connect or be dialled",
        (
            "tests/node/network/test_places.py::test_idle_strangers_keep_nobody_out",
            "tests/node/network/test_places.py"
            "::test_announced_identities_without_standing_keep_nobody_out",
        ),
        has_seed=False,
    ),
    Row(
        "H7",
        "an organiser leaves the same ready member out of its rings",
        "credited in 1 of 40 rounds",
        (f"{LEFT_OUT}test_a_member_that_an_organiser_leaves_out_is_credited_all_the_same",),
    ),
    Row(
        "H8",
        "a member passes its chunks on one by one, and accuses nobody",
        "a ring of 5 s takes 275 s, and 38 s where it trickles its last chunks",
        (
            f"{TRICKLES}test_a_member_that_trickles_its_chunks_holds_a_ring_for_a_round_and_a_wait",
            f"{TRICKLES}test_a_member_that_trickles_its_last_chunks_is_put_out_alone",
        ),
        has_seed=False,
    ),
    Row(
        "H9",
        "a member keeps the averages that the one before it finished",
        "43 s in a ring of five, 103 s of eight, and the one before it is put out instead",
        (f"{TRICKLES}test_a_member_that_keeps_the_averages_of_the_one_before_it_is_put_out_alone",),
        has_seed=False,
    ),
    Row(
        "M1",
        "a stranger asks for blocks on 15 streams at once",
        "98 MB/s of upload",
        (
            f"{UPLOADS}test_a_stranger_with_fifteen_streams_gets_no_more_than_the_budget",
            f"{UPLOADS}test_a_member_has_no_budget_and_strangers_give_way",
        ),
        has_seed=False,
    ),
    Row(
        "M2",
        "announcements that name a third party's addresses",
        "15 dials a second from one node",
        (
            f"{DIALS}test_announcements_that_name_a_third_party_flood_nobody",
            f"{DIALS}test_a_third_partys_network_is_not_flooded_through_its_many_hosts",
            f"{DIALS}test_many_networks_together_have_a_bound",
        ),
        has_seed=False,
    ),
    Row(
        "M3",
        "commit records that strangers sign alone, and statements of theirs",
        "93 MB that stay",
        (
            f"{QUOTA}test_chains_that_strangers_sign_alone_are_under_a_quota",
            f"{QUOTA}test_statements_of_strangers_are_under_a_quota_and_go",
        ),
    ),
    Row(
        "M4",
        "handshakes of noise that are begun and not finished",
        "91 % of a core",
        (
            "tests/node/network/test_doorstep.py"
            "::test_half_handshakes_are_turned_away_and_other_networks_come_in",
        ),
        has_seed=False,
    ),
    Row(
        "M5",
        "a member says a rate of its link that it does not have",
        "-",
        ("tests/rogue/test_false_rate.py",),
        has_seed=False,
    ),
    Row(
        "M6",
        "four fresh identities beside three honest members",
        "-",
        ("tests/rogue/test_sybils.py",),
    ),
)


def run(row: Row, seed: int) -> tuple[bool, list[str]]:
    """Runs the tests of a row; returns whether they passed, and what they measured."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-o", "timeout=0", *row.tests],
        capture_output=True,
        text=True,
        timeout=ROW_SECONDS_MAX,
        env=os.environ | {WORLDS_VARIABLE: str(seed)},
    )
    lines = [line.strip() for line in done.stdout.splitlines()]
    found = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    for line in lines:
        if line.startswith(("FAILED ", "ERROR ")):
            print(f"{row.name}, seed {seed}: {line}", file=sys.stderr, flush=True)
    return done.returncode == 0, found


def spread(lines_of_seeds: Mapping[int, Sequence[str]]) -> list[str]:
    """Returns what the seeds measured as one list: numbers that differ as LOWEST to HIGHEST.

    Seeds that did not measure the same things, because a test failed, are shown one by one.
    """
    if (
        len({tuple(NUMBER.sub("0", line) for line in lines) for lines in lines_of_seeds.values()})
        > 1
    ):
        return [
            f"seed {seed}: {'; '.join(lines) or 'nothing'}"
            for seed, lines in lines_of_seeds.items()
        ]
    merged = [_merged(lines) for lines in zip(*lines_of_seeds.values(), strict=True)]
    return list(dict.fromkeys(merged))


def _merged(lines: Sequence[str]) -> str:
    """Merges one line of each seed; they differ in numbers alone."""
    columns = iter(zip(*(NUMBER.findall(line) for line in lines), strict=True))

    def ranged(_found: re.Match[str]) -> str:
        column = sorted(next(columns), key=lambda text: float(text.replace(",", "")))
        return column[0] if len(set(column)) == 1 else f"{column[0]} to {column[-1]}"

    return NUMBER.sub(ranged, lines[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="C1 to C10, H1 to H7, M1 to M6")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="worlds, from 1 on")
    options = parser.parse_args()
    unknown = sorted({*options.rows} - {row.name for row in ROWS})
    if unknown:
        parser.error(f"no such row: {' '.join(unknown)}")
    print("| | attack | before | now |\n| --- | --- | --- | --- |")
    all_passed = True
    for row in ROWS:
        if options.rows and row.name not in options.rows:
            continue
        seeds = options.seeds if row.has_seed else options.seeds[:1]
        results = {seed: run(row, seed) for seed in seeds}
        failed = [seed for seed, (has_passed, _) in results.items() if not has_passed]
        all_passed &= not failed
        now = "; ".join(spread({seed: found for seed, (_, found) in results.items()}))
        if failed:
            now += f" **(a test failed with seed {', '.join(map(str, failed))})**"
        print(f"| {row.name} | {row.attack} | {row.before} | {now} |", flush=True)
    sys.exit(not all_passed)


if __name__ == "__main__":
    main()
