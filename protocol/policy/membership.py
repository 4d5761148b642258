"""The peers of a run, from what they announce of themselves.

Rules
-----
- A peer exists from its first `Announce`. A higher (incarnation, sequence) replaces a lower one.
- A peer is *living* while something came from it within `member_seconds` of the local clock, its
  connection was not seen to break since, and it does not say that it leaves. An announcement
  counts, and any sign of life on its connection. So a peer announces itself when it has news, and
  otherwise seldom. Clocks of different peers are never compared.
- A peer without a connection to this node gives no signs of life. Its announcements come through
  others, and count for `FAR_SECONDS`.
- While this process was stopped (SIGSTOP, a laptop's sleep) no peer was silent: the caller's clock
  stands still then. Otherwise this process would take all peers for dead when it goes on, and begin
  a round alone.
- A broken connection ends a peer's life at once. Its next announcement begins it again.
- Living is not training: a peer that is paused, or whose trainer failed, lives, because it follows
  heads and serves blocks. `awaited` says for which peers a round waits.
- The members of a ring whose work a committed round has taken are at its head, also before they say
  so, unless a member was out of that ring. To all others `NUM_HERALDS` of them announce it at once.
- At most `MEMBERS_MAX` peers are kept. A new peer replaces the one that has been silent longest. If
  all are living, a connected peer replaces one that is not connected, and any other new peer is
  refused. So invented identities keep no real peer out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.wire.statements import Announce

ANNOUNCE_SECONDS = 10.0
"""Time between two announcements of a peer without news: some 0.6 KiB each. They are for peers that
are not connected to it, and for what is no news, such as its speed."""

MEMBER_SECONDS = 12.0
"""Silence on a connection after which a peer counts as gone, at the least: two signs of life, and
longer than the 10 s in which the transport notices a dead link."""

ANSWER_SECONDS = 6.5
"""Time for a sign of life that is due. Where they come so seldom that it ends after
`MEMBER_SECONDS`, a peer counts as gone at that later moment."""

FAR_SECONDS = 3 * ANNOUNCE_SECONDS + 5.0
"""Silence after which a peer without a connection counts as gone: three announcements, and some
comparisons of statements until the last of them is here."""

NEAR_ROUNDS = 2
"""Rounds that a peer may be behind the head and still be waited for. Without it a newcomer would
run after a swarm of quick rounds for ever."""

NEAR_SECONDS = 2.0
"""A peer that has the head of so long ago is waited for as well, however many rounds ended since
then. It takes two messages and the replay of a round to come from there to the newest head, and
rounds of small models may take less. It is the shortest wait of a round (`gathering`)."""

TRAILING_ROUNDS = 16
"""Rounds that a peer may be behind, or on a losing branch, and still count as left behind by the
others. A peer further behind counts as a newcomer with a whole state to fetch."""


NUM_HERALDS = 3
"""Members of a ring that announce its head at once. Each of them is heard by all peers that it is
connected to; the others say it with their next news, `ANNOUNCE_SECONDS` later at most."""


def member_seconds(signs_seconds: float) -> float:
    """Returns the silence on a connection after which a peer counts as gone.

    Args:
        signs_seconds: longest time between two signs of life of a living peer.
    """
    return max(MEMBER_SECONDS, signs_seconds + ANSWER_SECONDS)


class Awaited(NamedTuple):
    """The peers for which a round waits, each group sorted by peer id."""

    at_work: list[PeerId]
    trailing: list[PeerId]
    """Peers that are many and have rounds to fetch."""
    strangers: frozenset[PeerId] = frozenset()
    """Those of both groups that have no standing: rounds wait for them for a share of the time
    (`rounds.roster`)."""
    stakes: Mapping[PeerId, int] = MappingProxyType({})
    """The stake of each peer at the round's parent, of peers that are not awaited as well: when the
    wait begins depends on it (`rounds.ready_times`)."""


def near_rounds(now: float, moved_seconds: Iterable[float]) -> int:
    """Rounds that a peer may be behind and still be waited for: `NEAR_ROUNDS`, or those that ended
    within `NEAR_SECONDS`. Local times in seconds.

    Args:
        moved_seconds: when this peer moved to each of its newest heads.
    """
    return max(NEAR_ROUNDS, sum(now - each <= NEAR_SECONDS for each in moved_seconds))


def awaited(
    living: Mapping[PeerId, Announce],
    chain: Sequence[Digest],
    round_number: int,
    is_lost: Callable[[Announce], bool],
    near_rounds: int = NEAR_ROUNDS,
    has_standing: Callable[[PeerId], bool] = lambda _peer: True,
) -> Awaited:
    """The peers for which a round waits, no longer than its gathering lasts.

    The round waits for peers at work on its head, or on one shortly before it. These have committed
    that round too or will do so soon, or are newcomers that have almost caught up. Waiting for them
    once lets them in.

    If these are no more than half of the peers that took part lately, the round waits for the
    trailing peers as well. Otherwise a few peers with short rounds would run away from the many
    that fetch each round from them, over the lines of those few, and their work would be lost with
    them. The round also waits for peers on another branch that loses: they are about to come over.
    Their own word suffices, as it does for the others: a lie costs one gathering and no more, and
    all lies of peers without standing together a share of the time. Peers with standing that trail
    are many or not among those with standing alone.

    Args:
        living: the newest announcement of each other living peer.
        chain: the round's parent and the heads before it, newest first, `TRAILING_ROUNDS` of them.
        round_number: of the parent.
        is_lost: whether a head that a peer announces loses to the parent.
        near_rounds: rounds that a peer may be behind and still count as at work (`near_rounds`).
        has_standing: whether a round of the newest ones took work of a peer.
    """
    near = set(chain[: near_rounds + 1])
    recent = set(chain[: TRAILING_ROUNDS + 1])
    at_work, trailing = [], []
    for peer, announce in sorted(living.items()):
        if announce.phase in ("training", "averaging") and announce.head in near:
            at_work.append(peer)
        elif announce.phase in ("training", "averaging", "syncing"):
            is_close = abs(round_number - announce.round) <= TRAILING_ROUNDS
            if announce.head in recent or (is_close and is_lost(announce)):
                trailing.append(peer)
    strangers = frozenset(peer for peer in (*at_work, *trailing) if not has_standing(peer))
    found = strangers.intersection(_many(at_work, trailing))
    found = found.union(_many({*at_work} - strangers, {*trailing} - strangers))
    return Awaited(at_work, sorted(found), strangers)


def _many(at_work: Collection[PeerId], trailing: Collection[PeerId]) -> Collection[PeerId]:
    """Returns the trailing peers if those at work, with this peer, are no more than they."""
    return () if 1 + len(at_work) > len(trailing) else trailing


def heralds(head: Digest, members: Iterable[PeerId]) -> list[PeerId]:
    """The members of a ring that announce the head to which it led; others at each head."""
    order = {peer: digest_of(b"gossamer herald:", head, peer.encode()) for peer in members}
    return sorted(order, key=lambda peer: order[peer])[:NUM_HERALDS]


@dataclass(frozen=True)
class Seen:
    """A peer's newest announcement and the time at which it was heard, on the clock that stops
    too."""

    announce: Announce
    seen_seconds: float
    connected: bool
    """Whether its connection was not seen to break since it announced itself."""
    far: bool = True
    """Whether its words come through others: it has given no sign of life on a connection."""

    def is_living(self, awake_seconds: float, member_seconds: float = MEMBER_SECONDS) -> bool:
        """Returns whether the peer lives. `member_seconds`: see the function of that name."""
        silent_seconds = awake_seconds - self.seen_seconds
        return (
            self.connected
            and silent_seconds <= (FAR_SECONDS if self.far else member_seconds)
            and self.announce.phase != "leaving"
        )


class Membership:
    """The announcements of the other peers.

    Events carry the seconds of a clock that stands still while this process does not run.
    """

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._peers: dict[PeerId, Seen] = {}
        """Sorted by peer id."""
        self._member_seconds = MEMBER_SECONDS

    def announced(
        self,
        awake_seconds: float,
        author: PeerId,
        announce: Announce,
        connected: Collection[PeerId] = (),
    ) -> bool:
        """Takes an announcement.

        Args:
            connected: peers that are connected now.

        Returns:
            Whether there is something new in it. An announcement that repeats what a living peer
            has said before has nothing new.
        """
        if author == self._me:
            return False
        known = self._peers.get(author)
        version = (announce.incarnation, announce.sequence)
        if known is not None:
            old = (known.announce.incarnation, known.announce.sequence)
            if version <= old:
                return False
        elif not self._has_room(awake_seconds, author, connected):
            return False
        was_living = self.is_living(awake_seconds, author)
        self._peers[author] = Seen(announce, awake_seconds, True, far=author not in connected)
        if known is None:
            self._peers = dict(sorted(self._peers.items()))
            return True
        repeated = msgspec.structs.replace(known.announce, sequence=announce.sequence)
        return not was_living or repeated != announce

    def signs_come_every(self, seconds: float) -> None:
        """Notes the longest time between two signs of life of a living peer."""
        self._member_seconds = member_seconds(seconds)

    def heard(self, awake_seconds: float, peer: PeerId) -> None:
        """A peer gave a sign of life on its connection. It does not begin a life that ended when
        a connection broke: the peer may be another one since, and says so itself."""
        seen = self._peers.get(peer)
        if seen is not None and seen.connected:
            self._peers[peer] = Seen(seen.announce, awake_seconds, True, far=False)

    def committed(
        self, members: Iterable[PeerId], head: Digest, round_number: int, tokens_total: int
    ) -> None:
        """A ring has committed a head: members that have not announced it will be there. One that
        does not get there says so by its next announcement."""
        for peer in members:
            seen = self._peers.get(peer)
            if seen is not None and seen.announce.round < round_number:
                said = msgspec.structs.replace(
                    seen.announce, round=round_number, head=head, tokens_total=tokens_total
                )
                self._peers[peer] = Seen(said, seen.seen_seconds, seen.connected, seen.far)

    def disconnected(self, peer: PeerId) -> None:
        """The connection to a peer broke: it is not living until it announces itself again."""
        if peer in self._peers:
            seen = self._peers[peer]
            self._peers[peer] = Seen(seen.announce, seen.seen_seconds, False)

    def is_living(self, awake_seconds: float, peer: PeerId) -> bool:
        return peer in self._peers and self._peers[peer].is_living(
            awake_seconds, self._member_seconds
        )

    def living(self, awake_seconds: float) -> dict[PeerId, Announce]:
        """The living others, sorted by peer id."""
        return {
            peer: seen.announce
            for peer, seen in self._peers.items()
            if seen.is_living(awake_seconds, self._member_seconds)
        }

    def is_known(self, peer: PeerId) -> bool:
        """Returns whether a peer has announced itself and is remembered."""
        return peer in self._peers

    def known(self) -> dict[PeerId, Announce]:
        """All known peers, the dead ones too, sorted by peer id."""
        return {peer: seen.announce for peer, seen in self._peers.items()}

    def _has_room(
        self, awake_seconds: float, author: PeerId, connected: Collection[PeerId]
    ) -> bool:
        """Makes room for a new peer if there is none, and says whether there is now."""
        if len(self._peers) < limits.MEMBERS_MAX:
            return True
        spare = [peer for peer in self._peers if not self.is_living(awake_seconds, peer)]
        if not spare and author in connected:
            spare = [peer for peer in self._peers if peer not in connected]
        if not spare:
            return False
        del self._peers[min(spare, key=lambda peer: self._peers[peer].seen_seconds)]
        return True
