"""Real daemons on machines that die, freeze, crawl, fall silent and come back: the short set.

One swarm for all tests, each of which hits it in the middle of a round. `machines` are those that
take part; every test leaves a swarm that the next one can go on with. The bounds are over the
duration of an undisturbed round. Another such duration is added to each (`check_round`), because
many daemons share two cores here; `tests/benchmarks/faults.py` measures without that.

In every way of averaging: ``pytest tests/chaos --mode sparse+overlap``.
"""

from __future__ import annotations

import time

import pytest

from gossamer.node.telemetry.status import Status
from tests.chaos.evidence import Effort, check_round, history_of
from tests.chaos.runs import ATTEMPT_SECONDS, Run
from tests.chaos.watch import Watch
from tests.support.apart import REUNION_SECONDS
from tests.support.lab import Lab, Machine

pytestmark = [pytest.mark.e2e, pytest.mark.real_processes]

KILL_SECONDS = 2.0
SILENCE_SECONDS = 12.0
SLOW_FACTOR = 1.5
"""Bounds on the cost of a fault to a round: a death adds at most `KILL_SECONDS`, a silence at most
`SILENCE_SECONDS`, and a slow peer makes the round at most `SLOW_FACTOR` times as long."""

SLOW_PART = 1 / 20
"""Part of the others' bandwidth, or of their computing power, that a slow peer has."""

QUICK_LINES = 4
"""Factor by which the lines are faster while a swarm that was split comes together."""


@pytest.mark.long
def test_a_slow_line_and_a_slow_processor_do_not_slow_the_others(
    run: Run, machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    slow_line, slow_processor, *others = machines
    efforts = [Effort(slow_line, run), Effort(slow_processor, run)]
    slow_line.set_rate(SLOW_PART * run.mbit)
    with slow_processor.slowed_down(SLOW_PART):
        first = watch.newest_round(machines) + 2  # the first that is all slow
        for number in (first, first + 1):
            check_round(watch, others, number, SLOW_FACTOR * undisturbed, undisturbed)
    slow_line.set_rate(run.mbit)
    watch.together(machines)
    for effort in efforts:
        effort.check_kept()


@pytest.mark.long
def test_a_frozen_machine_is_left_out_and_comes_back(
    run: Run, machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    ring = watch.mid_ring(machines)
    frozen, *others = ring.members
    effort = Effort(frozen, run)
    frozen.freeze()
    check_round(watch, others, ring.number, undisturbed + SILENCE_SECONDS, undisturbed)
    frozen.thaw()
    watch.together(machines)
    effort.check_kept()


@pytest.mark.long
def test_a_silent_line_is_left_out_and_comes_back(
    run: Run, machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    ring = watch.mid_ring(machines)
    silent, *others = ring.members
    effort = Effort(silent, run)
    silent.cut()
    check_round(watch, others, ring.number, undisturbed + SILENCE_SECONDS, undisturbed)
    silent.mend()
    watch.together(machines)
    effort.check_kept()


def test_two_neighbours_die_that_are_half_of_the_ring(
    machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    ring = watch.mid_ring(machines)
    *others, one, two = ring.members
    for machine in (one, two):
        machine.power_off()
    check_round(watch, others, ring.number, undisturbed + KILL_SECONDS, undisturbed)
    for machine in (one, two):
        machine.again()
    watch.together(machines)


@pytest.mark.long
def test_the_organiser_dies_about_when_it_says_who_is_in_the_ring(
    machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    ring = watch.organised(machines)
    organiser, *others = ring.members
    organiser.power_off()
    bound = undisturbed + ATTEMPT_SECONDS + KILL_SECONDS
    check_round(watch, others, ring.number, bound, undisturbed)
    organiser.again()


@pytest.mark.long
def test_the_first_seed_dies_for_good(
    machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    seed, *others = machines
    ring = watch.mid_ring(machines)
    seed.retire()
    check_round(watch, others, ring.number, undisturbed + KILL_SECONDS, undisturbed)


@pytest.mark.long
def test_a_newcomer_joins_by_anybodys_address_while_a_ring_is_at_work(
    lab: Lab, machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    newcomer = lab.machines[-1]
    watch.together(machines)
    address = machines[-1].address()
    ring = watch.mid_ring(machines)
    newcomer.run("join", address)
    check_round(watch, machines, ring.number, SLOW_FACTOR * undisturbed, undisturbed)

    def caught_up() -> Status | None:
        status = watch.seen(newcomer).status
        is_there = status is not None and status.phase == "training" and not status.rounds_behind
        return status if is_there else None

    ready = watch.wait(caught_up, "newcomer that has caught up")
    watch.together([*machines, newcomer])
    # The round that was at work when it had caught up went on without it; it is in the next one.
    first = min(
        number
        for number, one in history_of(newcomer).items()
        if newcomer.peer_id in one.contributors
    )
    assert first <= ready.round + 2


@pytest.mark.long
def test_two_halves_go_on_and_become_one_again(
    lab: Lab, run: Run, machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    left, right = machines[: len(machines) // 2], machines[len(machines) // 2 :]
    efforts = [Effort(machine, run) for machine in machines]
    lab.split(left, right)
    for half in (left, right):
        watch.together(half)
    parted = max(watch.newest_round(half) for half in (left, right))
    watch.wait(
        lambda: min(watch.newest_round(half) for half in (left, right)) >= parted + 2,
        "two more rounds of both halves",
    )
    lab.unite()
    # A machine whose head lost fetches what it missed, some times a round's bytes. On these lines
    # that takes as long as the rounds themselves, which a round of a real run outlasts many times.
    for machine in machines:
        machine.set_rate(QUICK_LINES * run.mbit)
    united_seconds = time.monotonic()
    watch.mesh(machines)
    reunion_seconds = time.monotonic() - united_seconds
    connected_round = watch.newest_round(machines)
    watch.together(machines)
    num_rounds = watch.newest_round(machines) - connected_round
    print(f"connected after {reunion_seconds:.1f} s, in one ring {num_rounds} rounds later")
    assert reunion_seconds <= REUNION_SECONDS + undisturbed
    assert num_rounds <= 3  # after two they have one head, with which they do the third
    histories = [history_of(machine) for machine in machines]
    common = min(max(history) for history in histories)
    assert len({history[common].head for history in histories}) == 1
    for effort in efforts:
        effort.check_kept()


def test_everybody_dies_and_all_but_one_come_back_in_another_order(
    machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    watch.mid_ring(machines)
    # At once, as when the mains fail. One that sees the others die before itself may yet commit the
    # round alone, and two that are back before it outweigh that round, as they may.
    for machine in machines:
        machine.cut()
    for machine in machines:
        machine.power_off()
    for machine in machines:
        machine.mend()
    others = machines[1:]
    newest = max(
        (one for machine in others for one in history_of(machine).values()),
        key=lambda one: one.header.tokens_total,
    )
    for machine in reversed(others):
        machine.again()
    watch.together(others)
    number = newest.header.round
    for machine in others:
        assert history_of(machine)[number].head == newest.head
