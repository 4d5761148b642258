"""Rows of `attacked_daemons` in which a member does harm, or a peer that has come in as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.state.chain import credits_of
from tests.benchmarks._attacked_swarm import (
    OPEN,
    ROUNDS_SECONDS,
    SECONDS,
    Swarm,
    attack_for,
    make_hostile,
    manifest_text,
    peer_id_of,
    steps_manifest_text,
)
from tests.rogue import attacks_claims
from tests.rogue.catalogue import Attack
from tests.rogue.rogue import Rogue
from tests.support.daemons import (
    OPTIONS,
    PATIENCE_SECONDS,
    in_rounds_of,
    metric_of,
    path_on_disk,
    poll,
    takes_part,
    wait_for_round,
)
from tests.support.lab import Lab

_Kind = TypeVar("_Kind")

LAST_ROUND = 60
"""The round whose losses are compared, or the next one that is measured."""

ACCUSED_ROUNDS = 24
"""Rounds in which one member accuses the same other one, or leaves it out."""

FOUND_ROUNDS = 60
"""Rounds in which a liar is found: of three others at least one audits three rounds in four."""

BAN_REASONS = ("replaced", "forged", "malformed", "equivocation")
"""Of a member that lies."""

PROBATION = 16
SYBILS = 4
SYBIL_ROUNDS = 8
"""With the fresh identities in the ring: fewer than the probation has."""

RATES_MBIT = (200.0, 4.0, 4.0, 200.0)
"""Lines of two fast machines, of which the last one lies, and of two homes."""

RATE_ROUNDS = 8
"""With the false rate, each of which takes the home lines some six seconds."""

RATE_MANIFEST = """\
preset = "tiny"
name = "false-rate"
trust = "members"
[outer]
inner_steps = 4
warmup_rounds = 0
overlap = false
codec = "fp32"
[rounds]
round_seconds = 3600.0
gather_seconds = 20.0
"""


def counted_rounds(
    attack: Attack, lines: str = "", seconds: float = SECONDS
) -> Callable[[Path, LocalSwarm], str]:
    """A row that counts rounds with and without an attack of a rogue, which takes so long."""

    def row(folder: Path, local: LocalSwarm) -> str:
        swarm = Swarm(folder, local, manifest_text(lines))
        swarm.join(2)
        first = swarm.rounds()
        time.sleep(SECONDS)
        undisturbed = swarm.rounds() - first
        first = swarm.rounds()
        early: list[int] = []
        clock = threading.Timer(SECONDS, lambda: early.append(swarm.rounds() - first))
        clock.start()
        try:
            trio.run(attack_for, swarm, attack, seconds)
        finally:
            clock.cancel()
        attacked = swarm.rounds() - first
        swarm.wait_for_all()
        at_first = f" ({early[0]} in the first {SECONDS:.0f} s)" if seconds > SECONDS else ""
        return (
            f"{attacked} rounds in {seconds:.0f} s{at_first}, "
            f"{undisturbed} in {SECONDS:.0f} s undisturbed; "
            f"then rounds of all three on {swarm.num_chains()} chain; {swarm.bans()}, "
            f"{swarm.offences('forged')} offences of forgery; held-out {swarm.heldout():.3f}"
        )

    return row


async def always_back(rogue: Rogue, victims: list[PeerId]) -> None:
    """A member that passes nothing on, in each ring that it is let into."""
    while True:
        await attacks_claims.member_that_passes_nothing_on(rogue, victims, look_seconds=0.5)


def losses_with(kinds: Sequence[str], lines: str) -> Callable[[Path, LocalSwarm], str]:
    """A row that compares losses after some rounds of three honest daemons and a hostile one."""

    def loss(folder: Path, local: LocalSwarm, kind: str | None) -> str:
        swarm = Swarm(folder, local, manifest_text(lines))
        swarm.join(2)
        if kind is not None:
            swarm.join_hostile(kind)
            swarm.wait_for_all(len(swarm.honest) + 1)
        joined = swarm.rounds()
        number, found = swarm.heldout_from(LAST_ROUND)
        return f"{kind or 'nobody'} {found:.3f} (from round {joined} on, at {number})"

    def row(folder: Path, _local: LocalSwarm) -> str:
        found = _in_swarms_of_their_own(folder, (None, *kinds), loss)
        return f"held-out: {', '.join(found)}"

    return row


def _in_swarms_of_their_own(
    folder: Path, kinds: Sequence[_Kind], arm: Callable[[Path, LocalSwarm, _Kind], str]
) -> list[str]:
    """What each arm of a row says, in a swarm that no other arm has touched."""
    found = []
    for number, kind in enumerate(kinds):
        own = folder / str(number)
        own.mkdir()
        with LocalSwarm(own / "swarm", OPTIONS) as local:
            found.append(arm(own, local, kind))
    return found


def found_liars(kinds: Sequence[str], manifest: str) -> Callable[[Path, LocalSwarm], str]:
    """A row in which a member lies in each round, until an honest daemon bans it."""

    def found(folder: Path, local: LocalSwarm, kind: str) -> str:
        swarm = Swarm(folder, local, manifest)
        swarm.join(2)
        liar = swarm.join_hostile(kind)
        liar.wait_for(takes_part, PATIENCE_SECONDS, "work")
        began = last = swarm.rounds()
        reasons: set[str] = set()

        def is_over() -> bool:
            nonlocal last
            last = swarm.rounds()
            reasons.update(
                reason
                for reason in BAN_REASONS
                for node in swarm.honest
                if metric_of(node, "gossamer_bans_total", f'"{reason}"')
            )
            return bool(reasons) or last - began >= FOUND_ROUNDS

        poll(is_over, "end of the row", ROUNDS_SECONDS)
        told = f"banned ({', '.join(sorted(reasons))})" if reasons else "not banned"
        wait_for_round(swarm.founder, last + 3)
        others = "nobody else" if swarm.are_blamed(liar) else "others as well"
        num_left = sum(node.is_running for node in swarm.honest)
        return (
            f"{kind.partition(':{')[0]}: {told} after {last - began} rounds, {others}; "
            f"{num_left} of {len(swarm.honest)} honest daemons go on"
        )

    def row(folder: Path, _local: LocalSwarm) -> str:
        return "; ".join(_in_swarms_of_their_own(folder, kinds, found))

    return row


def signs_against(folder: Path, local: LocalSwarm) -> str:
    """C7: with shared steps and `open`, a member sends the opposite of its own signs."""
    swarm = Swarm(folder, local, steps_manifest_text(OPEN))
    swarm.join(2)
    liar = swarm.join_hostile("against")
    swarm.wait_for_all(4)
    began = swarm.rounds()
    wait_for_round(swarm.honest[-1], began + ACCUSED_ROUNDS)
    lines = swarm.logged("a member's updates oppose most others")
    name = f"peer={short(peer_id_of(liar))} "
    rounds = swarm.rounds() - began
    return (
        f"{sum(name in line for line in lines)} warnings about it in {rounds} rounds of three "
        f"daemons, {sum(name not in line for line in lines)} about others; {swarm.bans()}; "
        f"held-out {swarm.heldout():.3f}"
    )


def credited_with(
    num_hostile: int, kind_of: Callable[[str, Sequence[str]], str], num_honest: int = 4
) -> Callable[[Path, LocalSwarm], str]:
    """A row that counts the rounds in which a member is credited that others are against.

    Args:
        kind_of: makes the kind of the hostile daemons from the victim's peer id and theirs.
    """

    def row(folder: Path, local: LocalSwarm) -> str:
        swarm = Swarm(folder, local)
        swarm.join(num_honest - 1)
        victim = peer_id_of(swarm.honest[1])
        hostile = [local.add() for _ in range(num_hostile)]
        kind = kind_of(victim, [peer_id_of(node) for node in hostile])
        for node in hostile:
            swarm.join_hostile(kind, node)
        swarm.founder.wait_for(
            in_rounds_of(num_honest + num_hostile), PATIENCE_SECONDS, "round of all"
        )
        first = swarm.rounds()
        last = first + ACCUSED_ROUNDS
        for node in swarm.honest:
            node.wait_for(lambda status: status.round >= last, ROUNDS_SECONDS, f"round {last}")
        assert swarm.founder.leave() == 0, swarm.founder.tail()
        chain, path = path_on_disk(swarm.founder)
        credited = [
            credits_of(chain.header(head)).get(victim, 0) > 0
            for head in path
            if chain.entry(head).round > first
        ]
        return f"credited in {sum(credited)} of {len(credited)} rounds"

    return row


def accused(victim: str, _hostile: Sequence[str]) -> str:
    """H3: one of five accuses the same other one in every ring."""
    return f"accuse:{victim}"


def left_out(how: str) -> Callable[[str, Sequence[str]], str]:
    """H7: an organiser leaves the same ready member out of its rings."""

    def kind_of(victim: str, hostile: Sequence[str]) -> str:
        return f"leave_out:{how}:{victim}:{','.join(hostile)}"

    return kind_of


def false_rate(folder: Path, _local: LocalSwarm) -> str:
    """M5: a member says a rate of its link that it does not have, in rings with home lines."""

    def arm(number: int, kind: str | None) -> str:
        root = folder / f"lines{number}"
        with Lab(root, RATES_MBIT, OPTIONS) as lab:
            manifest = root / "run.toml"
            manifest.write_text(RATE_MANIFEST)
            founder, *others = lab.machines
            if kind is not None:
                make_hostile(others[-1], kind)
            # In a ring of three the word of one member counts, so nobody begins with fewer.
            founder.run("start", "--manifest", str(manifest), "--wait-for-peers", "3")
            address = founder.address(PATIENCE_SECONDS)
            for machine in others:
                machine.run("join", address, "--yes")
            founder.wait_for(in_rounds_of(4), ROUNDS_SECONDS, "round of four")
            honest = lab.machines[:3]

            def num_slow() -> float:
                return sum(
                    each.metrics()['gossamer_ring_skips_total{reason="slow"}'] for each in honest
                )

            status = founder.status()
            assert status is not None
            first, slow, began = status.round, num_slow(), time.monotonic()
            last = first + RATE_ROUNDS
            founder.wait_for(lambda s: s.round >= last, 2 * ROUNDS_SECONDS, f"round {last}")
            seconds = (time.monotonic() - began) / RATE_ROUNDS
            slow = num_slow() - slow
            assert founder.leave() == 0, founder.tail()
            chain, path = path_on_disk(founder)
            rounds = [
                chain.header(head) for head in path if first < chain.entry(head).round <= last
            ]
            homes = [peer_id_of(each) for each in lab.machines[1:3]]
            credited = sum(
                credits_of(header).get(home, 0) > 0 for header in rounds for home in homes
            )
        return (
            f"{'a false rate' if kind else 'nobody lies'}: {slow:.0f} verdicts of the honest "
            f"that a member is slow in {len(rounds)} rounds of {seconds:.1f} s, both homes "
            f"credited {credited} times"
        )

    return "; ".join(arm(number, kind) for number, kind in enumerate((None, "rate:{me}")))


def fresh_identities(folder: Path, _local: LocalSwarm) -> str:
    """M6: four fresh identities, beside three honest members, send -10 times their work."""

    def loss(folder: Path, local: LocalSwarm, arm: tuple[int, int]) -> str:
        num_sybils, probation = arm
        rounds = f"probation = {probation}" if probation else ""
        swarm = Swarm(folder, local, manifest_text(OPEN, outer='codec = "int8"', rounds=rounds))
        swarm.join(2)
        first = swarm.rounds()
        for node in swarm.honest:
            wait_for_round(node, first + PROBATION)
        before = swarm.heldout()
        nodes: list[LocalNode] = [swarm.join_hostile("opposite") for _ in range(num_sybils)]
        swarm.wait_for_all(len(swarm.honest) + len(nodes))
        joined = swarm.rounds()
        number, found = swarm.heldout_from(joined + SYBIL_ROUNDS)
        return (
            f"{num_sybils} of them, probation of {probation} rounds: {before:.3f} before, "
            f"{found:.3f} in round {number}, {number - joined} after they came in"
        )

    arms = ((0, PROBATION), (SYBILS, PROBATION), (SYBILS, 0))
    return f"held-out: {'; '.join(_in_swarms_of_their_own(folder, arms, loss))}"
