"""The choice of the peers that average together: one message that any ready peer may have to send.

Rules
-----
- For every head and attempt the ready peers are ranked by ``blake3(head, attempt, peer id)``. The
  first peer is the organiser of that attempt.
- A round is *due* when all living peers that work on the head are ready, or `gather_seconds` after
  the first `Ready` was seen.
- Attempt 0 begins when the round is due, and each further attempt `attempt_seconds` later. The
  organiser of the current attempt publishes the ring of all ready peers.
- Of several rosters for a head that name this peer it follows the preferred one (`preference`):
  lowest attempt, then most members, then the organiser's rank. So two peers that saw different
  rosters agree as soon as they have seen the same ones.
- The members of a roster must be in the ring order of its attempt (`ring_order`), so an organiser
  cannot choose its neighbours.

`decide` is a pure function from what a peer knows to what it does, with the reason.

Rosters that leave out a peer which is ready
--------------------------------------------
The organiser of a ring names the peers whose `Ready` it has. It may leave out one that is ready and
linked, and does not have to say why. Gossip is late now and then, so one such roster proves
nothing. Nor is anything taken from its author, for members that refuse a ring stand still with it.

- A roster *leaves out* the peers that this peer expects in the round, whose `Ready` it holds when
  the roster comes, and with which the ring has more members.
- A member of the ring notes who made such a roster. It follows the ring, as long as that author
  has not done so again and again (`policy.ring_conduct`).
- Else it publishes a roster of the same attempt with those peers in it. All members prefer that one
  (`preference`), whatever each of them remembers, because it has more members.
- It waits `MEND_HOLD_SECONDS` at most for a peer that it expects and that is not ready yet: such an
  organiser may be quick only to leave that one out.
- One member is enough, so the others wait, each `MEND_STEP_SECONDS` longer by its rank, and follow
  what comes. A member that waits follows no ring of that author meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.ring_order import (
    chunk_starters,
    linked_members,
    rank,
    rank_order,
    ring_order,
)
from gossamer.protocol.wire.envelopes import Verify, decode_statement, open_signed, ring_id_of
from gossamer.protocol.wire.statements import Ready, Roster, Signed

ROSTER_BYTES_MAX = limits.GOSSIP_BYTES_MAX // 2 - limits.KIB
"""Bytes of the members of one roster: it has to fit a gossip message and a
reply of the statement store."""

_MEMBER_OVERHEAD_BYTES = 136
"""Author and signature of a member's `Ready`, and msgpack's lengths."""


MEND_STEP_SECONDS = 0.5
"""Time for a roster of a member that is before this one by rank: gossip takes less. A stream of the
ring waits far longer for this peer (`dispatcher.HELLO_SECONDS`)."""

MEND_HOLD_SECONDS = 2.0
"""As long as any round waits for the others (`gathering.GATHER_SECONDS_MIN`), and less than a
stream of the ring waits for this peer."""

MEND_STEPS_MAX = 4
"""Members that wait one after the other. The others wait as long as the last of these: most of them
are honest where a ring has so many members, and then one of the first has spoken."""


@dataclass(frozen=True)
class RoundRules:
    """The rules of the manifest for a round."""

    payloads: Payloads
    chunk_elements: int
    num_chunks: int
    gather_seconds: float
    gather_fraction: float
    attempt_seconds: float
    ring_seconds: float = 0.0
    """Time that a ring works beside its transfers: with shared steps its members train in it."""
    steps_seconds: float = 0.0
    """Duration of the shared steps of the round before."""
    accusers: int = 1
    """Votes that call a member removed before a commit counts it as out."""

    @property
    def members_max(self) -> int:
        return self.payloads.members_max(self.chunk_elements)

    def chunk_bytes(self, num_members: int) -> int:
        """Mean size of a chunk in transit, over a whole ring."""
        return self.payloads.mean_bytes(self.chunk_elements, num_members)


class RoundHints(NamedTuple):
    """Hints that a round gives a peer for its next round."""

    found_slow: frozenset[PeerId] = frozenset()
    """Members with lines far slower than the others', perhaps this peer itself."""
    came_late: bool = False
    """Whether the others committed without this peer, or this peer is new."""
    replay_seconds: float = 0.0
    """Time that a peer needs to fetch such a round instead."""
    doubted: frozenset[PeerId] = frozenset()
    """Members whose accusations the accused may answer (`accusations`)."""
    unfair: frozenset[PeerId] = frozenset()
    """Organisers that left out ready peers again and again (`Mending`)."""


NO_HINTS = RoundHints()


class Gathering(NamedTuple):
    """A peer's knowledge of the round that it wants to take part in. Times: local clock,
    seconds."""

    me: PeerId
    head: bytes
    ready: Collection[PeerId]
    """Peers whose `Ready` for this head is known, `me` among them if ready."""
    expected: Collection[PeerId]
    """Living other peers that work on this head."""
    first_ready_seconds: float | None
    """Local time of the first `Ready`; None: there is none."""
    complete_seconds: float | None
    """Local time since which all expected peers have been ready; None: a peer is missing."""
    first_attempt: int = 0
    """Lowest attempt that may still succeed: the rings of earlier ones are void."""


class Decision(NamedTuple):
    """The attempt to publish a roster for (None: no roster), and why."""

    attempt: int | None
    reason: str


def is_complete(gathering: Gathering) -> bool:
    """Returns whether this peer and all expected peers are ready."""
    ready = gathering.ready
    return gathering.me in ready and not frozenset(gathering.expected).difference(ready)


def decide(
    now: float, gathering: Gathering, gather_seconds: float, attempt_seconds: float
) -> Decision:
    """Returns whether this peer publishes a roster now, and why."""
    if gathering.me not in gathering.ready:
        return Decision(None, "not ready")
    assert gathering.first_ready_seconds is not None, "I am ready, so a Ready was seen"
    deadline = gathering.first_ready_seconds + gather_seconds
    due = deadline
    if gathering.complete_seconds is not None:
        due = min(due, gathering.complete_seconds)
    if now < due:
        waiting = sorted(set(gathering.expected) - set(gathering.ready))
        return Decision(None, f"waiting for {len(waiting)} peers")
    num_past = int((now - due) / attempt_seconds)
    attempt = min(gathering.first_attempt + num_past, limits.ATTEMPTS_MAX)
    organiser = min(gathering.ready, key=lambda peer: rank(gathering.head, attempt, peer))
    if organiser != gathering.me:
        return Decision(None, f"attempt {attempt} is {organiser}'s")
    return Decision(attempt, f"organiser of attempt {attempt}")


def make_roster(
    head: bytes,
    round_number: int,
    attempt: int,
    ready: Mapping[PeerId, Signed],
    codec: str,
    chunk_elements: int,
    members_max: int = limits.RING_MEMBERS_MAX,
) -> Roster:
    """The ring of all ready peers, at most `members_max` of them by rank.

    Fewer fit into one message if they consumed data in very many pieces. A peer that has no
    neighbour to whom it is linked, or to whom another member can relay, is left out.
    """
    chosen = rank_order(head, attempt, ready)[:members_max]
    num_bytes = 0
    for place, peer in enumerate(chosen):
        num_bytes += len(ready[peer].payload) + _MEMBER_OVERHEAD_BYTES
        if num_bytes > ROSTER_BYTES_MAX:
            chosen = chosen[:place]
            break
    links = {peer: _links_of(ready[peer]) for peer in chosen}
    order = ring_order(head, attempt, linked_members(head, attempt, links))
    return Roster(
        round_number, head, attempt, tuple(ready[peer] for peer in order), codec, chunk_elements
    )


def _links_of(signed: Signed) -> bytes:
    statement = decode_statement(signed.payload)
    assert isinstance(statement, Ready), "only a Ready is noted as one"
    return statement.links


@dataclass(frozen=True)
class Ring:
    """A checked roster: members in ring order, each with its `Ready`."""

    ring_id: Digest
    organiser: PeerId
    roster: Roster
    members: tuple[PeerId, ...]
    ready: tuple[Ready, ...]
    envelope: Signed
    """The roster as its organiser signed it, for the commit record."""

    @property
    def starters(self) -> tuple[int, ...]:
        """Positions of the members that start chunks, in turn."""
        said = {peer: ready.links for peer, ready in zip(self.members, self.ready, strict=True)}
        return chunk_starters(self.members, said)

    @property
    def weights(self) -> dict[PeerId, int]:
        """Tokens of each member."""
        return {peer: ready.tokens for peer, ready in zip(self.members, self.ready, strict=True)}


def open_roster(
    signed: Signed,
    roster: Roster,
    run_id: Digest,
    verify: Verify,
    codec: str,
    chunk_elements: int,
    members_max: int = limits.RING_MEMBERS_MAX,
) -> Ring:
    """The ring of a roster after everything in it was checked.

    Raises:
        MalformedError: members that are not ready for this head, in the wrong order, without work,
            or more of them than a chunk has room for; an organiser that is not a member; or another
            codec or chunk plan than the manifest's.
        ForgedError: a member's `Ready` that it did not sign.
    """
    if roster.codec != codec or roster.chunk_elements != chunk_elements:
        raise MalformedError("roster with another codec or chunk plan than the manifest's")
    if len(roster.members) > members_max:
        raise MalformedError(f"roster of {len(roster.members)} members; at most {members_max}")
    members: list[PeerId] = []
    readies: list[Ready] = []
    for envelope in roster.members:
        statement = open_signed(envelope, run_id, verify)
        if not isinstance(statement, Ready):
            raise MalformedError("roster with a member that is not ready")
        if statement.head != roster.head or statement.round != roster.round:
            raise MalformedError("roster with a member of another round")
        members.append(PeerId(envelope.author))
        readies.append(statement)
    links = {peer: ready.links for peer, ready in zip(members, readies, strict=True)}
    if members != ring_order(roster.head, roster.attempt, links):
        raise MalformedError("roster that is not in ring order")
    if signed.author not in members:
        raise MalformedError("roster of an organiser that is not in it")
    if sum(ready.tokens for ready in readies) == 0:
        raise MalformedError("roster without any work")
    return Ring(
        ring_id_of(signed),
        PeerId(signed.author),
        roster,
        tuple(members),
        tuple(readies),
        signed,
    )


def preference(ring: Ring) -> tuple[int, int, bytes, bytes]:
    """The order of rings for one head: the ring with the lower value is followed."""
    roster = ring.roster
    return (
        roster.attempt,
        -len(ring.members),
        rank(roster.head, roster.attempt, ring.organiser),
        ring.ring_id,
    )


class Mending(NamedTuple):
    """A ring that this peer does not follow yet, because it leaves peers out."""

    ring: Ring
    since_seconds: float
    """Local time at which its roster came."""
    wait_seconds: float
    """Time that this peer leaves to members before it by rank."""

    def is_due(self, now: float, last_ready_seconds: float, *, is_one_missing: bool) -> bool:
        """Returns whether this peer publishes a roster with more members, or follows the ring.

        Args:
            last_ready_seconds: local time of the newest `Ready`.
            is_one_missing: whether a peer is expected that is neither ready nor a member.
        """
        if is_one_missing and now < self.since_seconds + MEND_HOLD_SECONDS:
            return False
        return now >= max(self.since_seconds, last_ready_seconds) + self.wait_seconds


def mend_later(now: float, ring: Ring, me: PeerId) -> Mending:
    """Returns how a member of a ring mends it."""
    roster = ring.roster
    order = rank_order(roster.head, roster.attempt, {*ring.members} - {ring.organiser})
    return Mending(ring, now, MEND_STEP_SECONDS * min(order.index(me), MEND_STEPS_MAX))


def with_more(
    ring: Ring, left_out: Collection[PeerId], ready: Mapping[PeerId, Signed], rules: RoundRules
) -> Roster | None:
    """The roster of a ring with those that it leaves out; None if that has no more members, because
    they are not linked or there is no room.

    Args:
        ready: the `Ready` of each peer that is left out, at least.
    """
    if not left_out:
        return None
    old = ring.roster
    members = dict(zip(ring.members, old.members, strict=True))
    roster = make_roster(
        old.head,
        old.round,
        old.attempt,
        members | {peer: ready[peer] for peer in left_out},
        old.codec,
        old.chunk_elements,
        rules.members_max,
    )
    return roster if len(roster.members) > len(members) else None
