"""Real daemons behind routers: everybody's work is in the rounds, and no ring stalls.

A short set; `python -m tests.internet.run` has all topologies, with a ring that takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest

from gossamer.node.app.http.client import give_order
from gossamer.node.peers.known_peers_file import SAVE_SECONDS
from gossamer.node.storage.state_dir import StateDir
from tests.internet.homes import PORT, Home, Homes
from tests.internet.internet import Machine, Router
from tests.support.daemons import MANIFEST, PATIENCE_SECONDS, poll
from tests.support.netns import NamespacesUnavailable

pytestmark = pytest.mark.e2e

MEASURED_SECONDS = 8.0
"""Some ten rounds on a busy machine."""

BACK_SECONDS = 60.0
"""The kernel finds dead connections after 9 s, and a dial into nothing takes 10 s. The two cases
took 22 and 27 s with the start of all daemons; a machine that tests something else needs longer."""

CONNECT_SECONDS = 4.0
"""From the start of a join to a connection as a member: 1.3 s for the fifth address, twice if it is
dialled again, and some tenths for handshakes. On a busy machine it may take twice as long."""

SLEEP_SECONDS = 20.0
"""Longer than the kernels of the others keep a silent connection (10 s)."""

ROUNDS_MIN = 3
SHARE_MIN = 0.95

PUBLIC, CROSSABLE, STRICT = Machine(), Machine(Router()), Machine(Router(ports="random"))
RESETS = Machine(Router(uninvited="reset"))
FORWARDS = Machine(Router(forwards=PORT))
CLOUD = Machine(Router(is_cloud=True))


def _found(founder: Home, folder: Path, wait_for_peers: int = 0) -> None:
    manifest, corpus = folder / "manifest.toml", folder / "corpus.txt"
    manifest.write_text(MANIFEST)
    corpus.write_text("The quick brown fox jumps over the lazy dog. " * 20_000)
    wait = ("--wait-for-peers", str(wait_for_peers))
    founder.start("start", "--manifest", str(manifest), "--corpus", str(corpus), *wait)


def _swarm(homes: Homes, folder: Path) -> None:
    """The first home founds a run, and the others join it."""
    founder, *others = homes.homes
    _found(founder, folder, len(others))
    founder.wait_for(lambda status: status.phase == "training", PATIENCE_SECONDS, "its run")
    for other in others:
        other.start("join", founder.public_address)


@pytest.mark.parametrize(
    ("machines", "paths"),
    [
        ([PUBLIC, CROSSABLE, RESETS], {"direct", "crossed"}),
        ([PUBLIC, STRICT, STRICT, CROSSABLE], {"direct", "relayed"}),
    ],
    ids=["crossed", "relayed"],
)
def test_members_behind_routers_are_in_every_round(
    machines: list[Machine], paths: set[str], tmp_path: Path
) -> None:
    try:
        with Homes(tmp_path, machines) as homes:
            _swarm(homes, tmp_path)
            for home in homes.homes:
                home.wait_for(
                    lambda status: (
                        status.last_round is not None
                        and len(status.last_round.contributors) == len(machines)
                    ),
                    PATIENCE_SECONDS,
                    "a round of all",
                )
            rounds = homes.watch(homes.homes[0], MEASURED_SECONDS, ROUNDS_MIN)
            statuses = [home.status() for home in homes.homes]
            logs = "".join(home.log_path.read_text(errors="replace") for home in homes.homes)
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert len(rounds.num_members) >= ROUNDS_MIN
    assert rounds.share_of(len(machines)) >= SHARE_MIN, rounds
    assert "timeout: no receipt" not in logs
    seen = {peer.path for status in statuses if status is not None for peer in status.peers}
    assert paths <= seen, seen


def test_a_forwarded_port_and_a_cloud_machine_are_announced_by_name(tmp_path: Path) -> None:
    """The third member finds both by what they announce, though it was given one address only."""
    machines = [FORWARDS, CLOUD, PUBLIC]
    try:
        with Homes(tmp_path, machines) as homes:
            for home in homes.homes[:2]:
                host = homes.internet.public_host(home.number)
                home.options = (*home.options, "--announce", f"/ip4/{host}/tcp/{PORT}")
            _swarm(homes, tmp_path)
            last = homes.homes[2]
            status = last.wait_for(
                lambda status: sum(peer.path == "direct" for peer in status.peers) == 2,
                PATIENCE_SECONDS,
                "two direct connections",
            )
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert {peer.path for peer in status.peers} == {"direct"}


@pytest.mark.long
def test_a_forwarded_port_is_found_open_and_a_closed_one_is_not(tmp_path: Path) -> None:
    """Members of other networks dial back; nobody has named an address."""
    machines = [PUBLIC, FORWARDS, CROSSABLE, PUBLIC]
    try:
        with Homes(tmp_path, machines) as homes:
            _swarm(homes, tmp_path)
            for number, reach in enumerate(("open", "open", "crossable", "open")):
                homes.homes[number].wait_for(
                    lambda status, reach=reach: status.reach == reach,  # type: ignore[misc]
                    PATIENCE_SECONDS,
                    f"reach {reach} of home {number}",
                )
            time.sleep(MEASURED_SECONDS)
            status = homes.homes[2].status()
            assert status is not None
            assert status.reach == "crossable"
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.long
def test_a_founder_behind_a_router_that_speaks_upnp_can_be_joined(tmp_path: Path) -> None:
    """The router forwards the port, the founder announces it, and gives it back when it leaves."""
    try:
        with Homes(tmp_path, [Machine(Router(speaks_upnp=True)), PUBLIC]) as homes:
            founder, other = homes.homes
            host = homes.internet.public_host(founder.number)
            outer = f"/ip4/{host}/tcp/{PORT}"
            _found(founder, tmp_path)
            founder.wait_for(
                lambda status: any(outer in address for address in status.addresses),
                PATIENCE_SECONDS,
                "the forwarded port",
            )
            other.start("join", founder.public_address)
            status = founder.wait_for(
                lambda status: status.reach == "open" and bool(status.peers),
                PATIENCE_SECONDS,
                "a peer that has dialled in",
            )
            assert status.reach_text.startswith(f"Reachable at {outer} (confirmed by 1)")
            founder.leave()
            log = founder.log_path.read_text(errors="replace")
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert "the router forwards a port" in log


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1], ids=["public", "home"])
def test_a_member_whose_address_changes_is_back_in_the_rounds(number: int, tmp_path: Path) -> None:
    """All its connections break without a word. The others learn the new address from gossip."""
    machines = [PUBLIC, CROSSABLE, PUBLIC]
    try:
        with Homes(tmp_path, machines) as homes:
            _swarm(homes, tmp_path)
            watched = homes.homes[2]
            _wait_for_round_of_all(watched, len(machines))
            homes.internet.move(number)
            changed = time.monotonic()
            host = homes.internet.public_host(number)
            # Where a router resets the old connections, few rounds or none are without the member.
            status = watched.wait_for(
                lambda status: any(f"/{host}/" in a for p in status.peers for a in p.addresses),
                PATIENCE_SECONDS,
                "the new address",
            )
            _wait_for_round_of_all(watched, len(machines), after=status.round + 1)
            seconds = time.monotonic() - changed
            print(f"back after {seconds:.1f} s")
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert seconds < BACK_SECONDS


@pytest.mark.long
def test_a_laptop_that_sleeps_and_wakes_in_another_home_is_back_in_the_rounds(
    tmp_path: Path,
) -> None:
    """It has another private and another public address, and all its connections are dead."""
    machines = [PUBLIC, CROSSABLE, CROSSABLE]
    try:
        with Homes(tmp_path, machines) as homes:
            _swarm(homes, tmp_path)
            watched, _, laptop = homes.homes
            _wait_for_round_of_all(watched, len(machines))
            pids = homes.internet.pids(laptop.number)
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            asleep = watched.status()
            assert asleep is not None
            homes.internet.carry(laptop.number, 1)
            after = watched.wait_for(
                lambda status: (
                    status.last_round is not None
                    and status.round > asleep.round
                    and len(status.last_round.contributors) == len(machines) - 1
                ),
                PATIENCE_SECONDS,
                "a round without it",
            ).round
            time.sleep(SLEEP_SECONDS)
            woken = time.monotonic()
            for pid in pids:
                _signal(pid, signal.SIGCONT)
            _wait_for_round_of_all(watched, len(machines), after=after)
            seconds = time.monotonic() - woken
            print(f"back after {seconds:.1f} s")
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert seconds < BACK_SECONDS


@pytest.mark.long
@pytest.mark.parametrize("has_hairpin", [False, True], ids=["no hairpin", "hairpin"])
def test_two_members_of_one_home_meet_inside_it(has_hairpin: bool, tmp_path: Path) -> None:
    """The first one's port is forwarded and announced. Without a hairpin it leads nowhere from
    inside the home, and the private addresses are those of the other home as well."""
    home = Machine(Router(forwards=PORT, has_hairpin=has_hairpin))
    machines = [PUBLIC, home, Machine(home_of=1), CROSSABLE]
    try:
        with Homes(tmp_path, machines) as homes:
            first, second = homes.homes[1:3]
            announced = f"/ip4/{homes.internet.public_host(first.number)}/tcp/{PORT}"
            first.options = (*first.options, "--announce", announced)
            _swarm(homes, tmp_path)
            _wait_for_round_of_all(homes.homes[0], len(machines))
            rounds = homes.watch(homes.homes[0], MEASURED_SECONDS, ROUNDS_MIN)
            status = second.wait_for(
                lambda status: first.peer_id in {peer.peer_id for peer in status.peers},
                PATIENCE_SECONDS,
                "the other member of its home",
            )
            paths = {peer.peer_id: peer.path for peer in status.peers}
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert len(rounds.num_members) >= ROUNDS_MIN
    assert rounds.share_of(len(machines)) >= SHARE_MIN, rounds
    assert paths[first.peer_id] == "direct"


@pytest.mark.long
def test_members_that_cannot_be_dialled_meet_through_one_that_only_introduces(
    tmp_path: Path,
) -> None:
    """The public node is paused and relays no rings. The others cross their routers."""
    machines = [PUBLIC, CROSSABLE, CROSSABLE, CROSSABLE]
    try:
        with Homes(tmp_path, machines) as homes:
            rendezvous, *others = homes.homes
            rendezvous.options = (*rendezvous.options, "--relay", "introduce")
            _found(rendezvous, tmp_path)
            rendezvous.wait_for(lambda status: status.round >= 1, PATIENCE_SECONDS, "its run")
            with homes.internet.inside(rendezvous.number):
                give_order(StateDir(rendezvous.root), "pause")
            for other in others:
                other.start("join", rendezvous.public_address)
            for other in others:
                _wait_for_round_of_all(other, len(others))
            rounds = homes.watch(others[0], MEASURED_SECONDS, ROUNDS_MIN)
            statuses = [other.status() for other in others]
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert len(rounds.num_members) >= ROUNDS_MIN
    assert rounds.share_of(len(others)) >= SHARE_MIN, rounds
    ids = {other.peer_id for other in others}
    seen = {
        peer.path
        for status in statuses
        if status is not None
        for peer in status.peers
        if peer.peer_id in ids
    }
    assert seen == {"crossed"}


@pytest.mark.long
def test_a_member_finds_the_others_when_its_seed_is_gone(tmp_path: Path) -> None:
    """It restarts while the peer that it joined by is dead, and knows the others from before."""
    machines = [PUBLIC, PUBLIC, CROSSABLE]
    try:
        with Homes(tmp_path, machines) as homes:
            _swarm(homes, tmp_path)
            seed, watched, last = homes.homes
            _wait_for_round_of_all(watched, len(machines))
            known = {seed.peer_id, watched.peer_id}
            poll(
                lambda: known <= dict(StateDir(last.root).known_peers().newest_first()).keys(),
                "addresses of both on its disk",
                SAVE_SECONDS + PATIENCE_SECONDS,
            )
            last.kill()
            seed.kill()
            _wait_for_round_of_all(watched, 1)
            started = time.monotonic()
            last.start("join")
            _wait_for_round_of_all(watched, 2)
            seconds = time.monotonic() - started
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert seconds < BACK_SECONDS


@pytest.mark.long
def test_a_member_with_ipv6_alone_is_in_every_round(tmp_path: Path) -> None:
    """The founder has both families. The one without IPv4 and the one without IPv6 need a relay."""
    machines = [PUBLIC, Machine(has_ipv4=False), CROSSABLE]
    try:
        with Homes(tmp_path, machines) as homes:
            founder, modern, old = homes.homes
            for home in (founder, modern):
                home.options = (*home.options, "--listen", f"/ip6/::/tcp/{PORT}")
            _found(founder, tmp_path, len(machines) - 1)
            founder.wait_for(lambda status: status.phase == "training", PATIENCE_SECONDS, "a run")
            modern.start("join", founder.public_ipv6_address)
            old.start("join", founder.public_address)
            for home in homes.homes:
                _wait_for_round_of_all(home, len(machines))
            rounds = homes.watch(founder, MEASURED_SECONDS, ROUNDS_MIN)
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert len(rounds.num_members) >= ROUNDS_MIN
    assert rounds.share_of(len(machines)) >= SHARE_MIN, rounds


@pytest.mark.long
def test_a_node_joins_the_run_of_its_own_network_without_an_address(tmp_path: Path) -> None:
    """The bridge is one network, which multicast crosses."""
    try:
        with Homes(tmp_path, [PUBLIC, PUBLIC], lan="on") as homes:
            founder, other = homes.homes
            _found(founder, tmp_path)
            founder.wait_for(lambda status: status.round >= 1, PATIENCE_SECONDS, "its run")
            other.start("join")
            _wait_for_round_of_all(other, 2)
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.long
def test_of_five_addresses_the_right_one_is_found_at_once(tmp_path: Path) -> None:
    """The founder announces four addresses where no machine is, and its own last."""
    wrong = [f"/ip4/5.77.99.{number}/tcp/{PORT}" for number in range(1, 5)]
    try:
        with Homes(tmp_path, [PUBLIC, PUBLIC]) as homes:
            founder, other = homes.homes
            announced = [word for address in wrong for word in ("--announce", address)]
            founder.options = (*founder.options, *announced)
            other.options = (*other.options, "--log-format", "json")
            _found(founder, tmp_path)
            founder.wait_for(lambda status: status.round >= 1, PATIENCE_SECONDS, "its run")
            peer = founder.peer_id
            other.start("join", *(f"{each}/p2p/{peer}" for each in wrong), founder.public_address)
            other.wait_for(
                lambda status: any(peer.path == "direct" for peer in status.peers),
                PATIENCE_SECONDS,
                "a connection",
            )
            log = other.log_path.read_text()
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    asked, answered = (
        next(
            datetime.fromisoformat(line["time"])
            for line in map(json.loads, log.splitlines())
            if text in line["event"]
        )
        for text in ("asking for the run", "in a run")
    )
    print(f"connected after {(answered - asked).total_seconds()} s")
    assert (answered - asked).total_seconds() < CONNECT_SECONDS


@pytest.mark.long
def test_the_doctor_has_a_peer_dial_machines_on_which_no_node_runs(tmp_path: Path) -> None:
    """One home's router forwards the port, the other one's does not."""
    try:
        with Homes(tmp_path, [PUBLIC, FORWARDS, CROSSABLE]) as homes:
            founder, *others = homes.homes
            _found(founder, tmp_path)
            founder.wait_for(lambda status: status.phase == "training", PATIENCE_SECONDS, "its run")
            for other in others:
                other.start("doctor", founder.public_address)
            texts = []
            for other in others:
                other.wait(PATIENCE_SECONDS)
                texts.append(" ".join(other.log_path.read_text().split()))
            outside = f"/ip4/{homes.internet.public_host(others[0].number)}/tcp/{PORT}"
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    assert f"ok reach Reachable at {outside} (confirmed by 1)" in texts[0], texts[0]
    assert "no member has confirmed yet that it can be dialled" in texts[1], texts[1]
    assert f"open TCP port {PORT} on the router" in texts[1], texts[1]


def _signal(pid: int, number: signal.Signals) -> None:
    # The process that asks the router lives for some seconds, and the daemon ends it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for_round_of_all(home: Home, number: int, after: int = 0) -> None:
    home.wait_for(
        lambda status: (
            status.last_round is not None
            and status.last_round.round > after
            and len(status.last_round.contributors) == number
        ),
        PATIENCE_SECONDS,
        "a round of all",
    )
