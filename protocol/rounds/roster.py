"""The choice of the peers that average together: one message that any ready peer may have to send.

Rules
-----
- For every head and attempt the ready peers are ranked by ``blake3(head, attempt, peer id)``. The
  first peer is the organiser of that attempt. A ready peer that is not expected does not count: it
  may be invented, and the attempts of such peers would pass in vain.
- A round is *due* when all living peers that work on the head are ready, or when the wait for the
  others is over (`gathering`).
- Attempt 0 begins when the round is due, and each further attempt `attempt_seconds` later. The
  organiser of the current attempt publishes the ring of all ready peers.
- Of several rosters for a head that name this peer it follows the preferred one (`preference`):
  lowest attempt, then most members, then the organiser's rank. So two peers that saw different
  rosters agree as soon as they have seen the same ones.
- The members of a roster must be in the ring order of its attempt (`ring_order`), so an organiser
  cannot choose its neighbours. Whom it leaves out is its own choice (`linked_members`).

`decide` is a pure function from what a peer knows to what it does, with the reason.

Rules of waits for strangers (`StrangersWait`)
----------------------------------------------
A *stranger* is a peer of which no round of the newest ones has taken work. A round waits for it on
its word alone (`membership.awaited`), because a newcomer has nothing else. Identities cost nothing,
though, and neither does an announcement at each head. Eight strangers that did no more than that
left 12 to 17 of 86 rounds.

- Only the time counts in which a round would have gone on without strangers: all others that are
  expected are ready, and this peer is. It counts for all strangers together, because a new identity
  is as free as an old one.
- That time is `STRANGER_WAITS_MAX` times the manifest's `gather_seconds` at once, and
  `STRANGERS_SHARE` of all time. While `gather_seconds` of it are left a round waits for strangers
  as for the others. Other rounds do not wait for strangers.
- So some rounds wait as long as ever, and no round waits for a moment only: a newcomer gets in with
  one wait that is long enough.
- A peer that hears a ring of another one does not wait for strangers before it follows it. That
  organiser may have waited already, by its own count.
- A stranger that is ready in time is in the ring, whether the round waits for it or not. It is
  expected, and may organise the ring. So peers that wait and peers that do not agree on all else.
- A peer that does not wait counts the waits of others too, beyond `STRANGERS_GOSSIP_SECONDS`.
  Otherwise the members would wait in turn, each for its own share.
- A member with stake that was waited for in vain, for longer than that, counts as a stranger here
  until it is in a ring: of the members that say that they train one may never be ready. One that is
  honest and slow offers its work before it trains again, and so is in the third ring at the latest.
  Halves of a swarm that was cut in two wait for each other again when one took the other's rounds.

A new life of this peer has waited for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.ready_times import ALL_DONE
from gossamer.protocol.rounds.ring_order import (
    Standpoint,
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

STRANGER_WAITS_MAX = 2
"""Waits of the longest kind that may follow one after the other. A newcomer may miss its first wait
because it fetches the rounds meanwhile."""

STRANGERS_SHARE = 1 / 16
"""Share of the time in which rounds wait for strangers in the long run. One in 17 rounds that wait
for no longer than they take costs as much. A newcomer beside strangers that lie gets in within some
16 waits."""

STRANGERS_GOSSIP_SECONDS = 0.5
"""Time from a complete gathering to the ring of an organiser that waits for no stranger."""


class RingRules(NamedTuple):
    """The values that the manifest demands of every roster."""

    codec: str
    chunk_elements: int
    members_max: int
    accusers: int = 1
    """See `RoundConfig.accusers`."""


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
    round_seconds: float = math.inf
    """Longest time that a peer trains for the round."""
    round_tokens: int = 0
    """Tokens of a peer that does all inner steps of the round; 0 where the ring does them."""
    round_steps: int = 0
    """Inner steps of the round; 0 where the ring does them."""

    @property
    def ring_rules(self) -> RingRules:
        payloads, elements = self.payloads, self.chunk_elements
        return RingRules(payloads.name, elements, payloads.members_max(elements), self.accusers)

    def done_by(self, ready: Ready) -> Fraction:
        """Returns the part of the round's work that a peer says that it did, at most 1. Tokens that
        it carries from earlier rounds have no steps of this one."""
        if not (self.round_tokens and self.round_steps):
            return ALL_DONE
        tokens = Fraction(ready.tokens, self.round_tokens)
        return min(tokens, Fraction(ready.steps, self.round_steps), ALL_DONE)

    def chunk_bytes(self, num_members: int) -> int:
        """Mean size of a chunk in transit, over a whole ring."""
        return self.payloads.mean_bytes(self.chunk_elements, num_members)


class StrangersWait(NamedTuple):
    """What a peer has waited for strangers, at one time."""

    spent_seconds: float = 0.0
    """Waits that no time since has made up for."""
    at_seconds: float = 0.0

    def at(self, now: float) -> StrangersWait:
        """Returns the same at a later time, in which no stranger was waited for."""
        since = max(0.0, now - self.at_seconds)
        spent = max(0.0, self.spent_seconds - STRANGERS_SHARE * since)
        return StrangersWait(spent, self.at_seconds + since)

    def waits(self, gather_seconds: float) -> bool:
        """Returns whether a round that begins now waits for strangers."""
        return self.spent_seconds <= (STRANGER_WAITS_MAX - 1) * gather_seconds

    def after(self, held_seconds: float, gather_seconds: float) -> StrangersWait:
        """Returns the same after a round that stood still for strangers for so long."""
        if not self.waits(gather_seconds):
            held_seconds = max(0.0, held_seconds - STRANGERS_GOSSIP_SECONDS)
        spent = self.spent_seconds + min(held_seconds, gather_seconds)
        return self._replace(spent_seconds=spent)


NO_WAIT = StrangersWait()
"""Nothing has been waited for."""


class Vain(NamedTuple):
    """A peer that is not waited for before a ring is followed: it made this peer wait in vain."""

    peer: PeerId
    until: int
    """The last round in which it is not waited for."""
    times: int
    """Waits in vain since it was in a ring."""


class RoundHints(NamedTuple):
    """Hints that a round gives a peer for its next round."""

    found_slow: frozenset[PeerId] = frozenset()
    """Members with lines far slower than the others', perhaps this peer itself."""
    came_late: bool = False
    """Whether the others committed without this peer, or this peer is new."""
    replay_seconds: float = 0.0
    """Time that a peer needs to fetch such a round instead."""
    doubted: frozenset[PeerId] = frozenset()
    """Members whose accusations the accused may answer (`ring.ring_members`)."""
    suspected: frozenset[PeerId] = frozenset()
    """Members that have lately kept what they should pass on (`ring.followed_ring`)."""
    unfair: frozenset[PeerId] = frozenset()
    """Organisers that left out ready peers again and again (`ring_choice`)."""
    wronged: frozenset[PeerId] = frozenset()
    """Peers that were ready and were left out again and again, by any organisers."""
    in_vain: tuple[Vain, ...] = ()
    """Peers that are not waited for (`waited_in_vain`)."""
    strangers_wait: StrangersWait = NO_WAIT
    """What this peer has waited for strangers."""
    missed: tuple[PeerId, ...] = ()
    """Members that were waited for in vain and have been in no ring since, the newest last."""
    excused: frozenset[tuple[PeerId, PeerId]] = frozenset()
    """Organisers, each with a member that it may leave out: verdicts say why (`audits`)."""


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
    began_seconds: float | None
    """Local time at which the wait for the others begins; None: there is no `Ready`."""
    complete_seconds: float | None
    """Local time since which all expected peers have been ready; None: a peer is missing."""
    first_attempt: int = 0
    """Lowest attempt that may still succeed: the rings of earlier ones are void."""
    not_waited_for: Collection[PeerId] = ()
    """Expected peers without which this round goes on (`StrangersWait`)."""


class Decision(NamedTuple):
    """The attempt to publish a roster for (None: no roster), and why."""

    attempt: int | None
    reason: str


def is_complete(gathering: Gathering) -> bool:
    """Returns whether this peer is ready, and all expected peers that are waited for."""
    return gathering.me in gathering.ready and not _waited_for(gathering)


def _waited_for(gathering: Gathering) -> frozenset[PeerId]:
    expected = frozenset(gathering.expected)
    return expected.difference(gathering.ready, gathering.not_waited_for)


def attempt_of(number: int) -> int:
    """The attempt with a number that has no end. After the last one comes the first one again: an
    organiser may begin with any attempt, and the last one has the same organiser for good."""
    return number % (limits.ATTEMPTS_MAX + 1)


def decide(
    now: float, gathering: Gathering, gather_seconds: float, attempt_seconds: float
) -> Decision:
    """Returns whether this peer publishes a roster now, and why."""
    if gathering.me not in gathering.ready:
        return Decision(None, "not ready")
    assert gathering.began_seconds is not None, "I am ready, so a Ready was seen"
    deadline = gathering.began_seconds + gather_seconds
    due = deadline
    if gathering.complete_seconds is not None:
        due = min(due, gathering.complete_seconds)
    if now < due:
        return Decision(None, f"waiting for {len(_waited_for(gathering))} peers")
    num_past = int((now - due) / attempt_seconds)
    attempt = attempt_of(gathering.first_attempt + num_past)
    able = {gathering.me, *gathering.expected}.intersection(gathering.ready)
    organiser = min(able, key=lambda peer: rank(gathering.head, attempt, peer))
    if organiser != gathering.me:
        return Decision(None, f"attempt {attempt} is {organiser}'s")
    return Decision(attempt, f"organiser of attempt {attempt}")


def make_roster(
    head: bytes,
    round_number: int,
    attempt: int,
    ready: Mapping[PeerId, Signed],
    rules: RingRules,
    standpoint: Standpoint | None = None,
) -> Roster:
    """The ring of all ready peers, at most `rules.members_max` of them by rank.

    Fewer fit into one message if they consumed data in very many pieces. A peer that has no
    neighbour to whom it is linked, or to whom another member can relay, is left out. Peers that the
    organiser has not met have the last places.

    Args:
        standpoint: of the organiser, where it is known (`ring_order.Standpoint`).
    """
    chosen = rank_order(head, attempt, ready)
    if standpoint is not None:
        met = {standpoint.me, *standpoint.met}
        chosen.sort(key=lambda peer: peer not in met)  # stable: else by rank
    del chosen[rules.members_max :]
    num_bytes = 0
    for place, peer in enumerate(chosen):
        num_bytes += len(ready[peer].payload) + _MEMBER_OVERHEAD_BYTES
        if num_bytes > ROSTER_BYTES_MAX:
            chosen = chosen[:place]
            break
    links = {peer: _links_of(ready[peer]) for peer in chosen}
    order = ring_order(head, attempt, linked_members(head, attempt, links, standpoint))
    members = tuple(ready[peer] for peer in order)
    return Roster(round_number, head, attempt, members, rules.codec, rules.chunk_elements)


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

    def ready_of(self, member: PeerId) -> Ready:
        """The `Ready` of a member."""
        return self.ready[self.members.index(member)]

    @property
    def weights(self) -> dict[PeerId, int]:
        """Tokens of each member."""
        return {peer: ready.tokens for peer, ready in zip(self.members, self.ready, strict=True)}


def open_roster(
    signed: Signed, roster: Roster, run_id: Digest, verify: Verify, rules: RingRules
) -> Ring:
    """The ring of a roster after everything in it was checked.

    Raises:
        MalformedError: members that are not ready for this head, in the wrong order, without work,
            or more of them than a chunk has room for; an organiser that is not a member; or another
            codec or chunk plan than the manifest's.
        ForgedError: a member's `Ready` that it did not sign.
    """
    if (roster.codec, roster.chunk_elements) != (rules.codec, rules.chunk_elements):
        raise MalformedError("roster with another codec or chunk plan than the manifest's")
    if len(roster.members) > rules.members_max:
        number = len(roster.members)
        raise MalformedError(f"roster of {number} members; at most {rules.members_max}")
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
    return preference_of(ring.roster, ring.organiser, ring.ring_id)


def preference_of(
    roster: Roster, organiser: PeerId, ring_id: Digest
) -> tuple[int, int, bytes, bytes]:
    """The same of a roster that need not be opened for it."""
    place = rank(roster.head, roster.attempt, organiser)
    return roster.attempt, -len(roster.members), place, ring_id
