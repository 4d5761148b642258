"""The living peers after announcements, broken connections, departures and silences, in any
order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.policy.membership import (
    FAR_SECONDS,
    MEMBER_SECONDS,
    Membership,
    awaited,
)
from gossamer.protocol.wire.statements import Phase
from tests.support.builders import HEAD, announce, peers

ME, *OTHERS = peers(4)
HEADS = (HEAD, digest_of(b"another head"))
PHASES: tuple[Phase, ...] = ("training", "averaging", "paused", "syncing", "failed", "leaving")


@dataclass
class Known:
    """This test's knowledge of a peer."""

    version: tuple[int, int]
    phase: Phase
    head: bytes
    silent_seconds: float = 0.0
    connected: bool = True
    far: bool = False

    @property
    def is_living(self) -> bool:
        patience_seconds = FAR_SECONDS if self.far else MEMBER_SECONDS
        is_silent = self.silent_seconds > patience_seconds
        return self.connected and self.phase != "leaving" and not is_silent


class MembershipMachine(RuleBasedStateMachine):
    """One peer's membership beside a plain account of what it was told.

    Times are eighths of seconds, which floats add without rounding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.membership = Membership(ME)
        self.now = 1000.0
        self.model: dict[PeerId, Known] = {}
        self.membership.living(self.now)

    @rule(
        author=st.sampled_from([ME, *OTHERS]),
        incarnation=st.integers(1, 3),
        sequence=st.integers(1, 5),
        phase=st.sampled_from(PHASES),
        head=st.sampled_from(HEADS),
        far=st.booleans(),
    )
    def announced(
        self,
        author: PeerId,
        incarnation: int,
        sequence: int,
        phase: Phase,
        head: bytes,
        far: bool,
    ) -> None:
        """A peer's announcement arrives, which may be new, repeated or old; or an earlier one of
        this peer itself."""
        version = (incarnation, sequence)
        known = self.model.get(author)
        is_taken = author != ME and (known is None or version > known.version)
        is_repeated = (
            known is not None
            and known.is_living
            and (known.version[0], known.phase, known.head) == (incarnation, phase, head)
        )
        statement = announce(incarnation=incarnation, sequence=sequence, phase=phase, head=head)
        connected = () if far else (author,)
        is_news = self.membership.announced(self.now, author, statement, connected)
        assert is_news == (is_taken and not is_repeated)
        if is_taken:
            self.model[author] = Known(version, phase, head, far=far)

    @rule(peer=st.sampled_from([ME, *OTHERS]))
    def heard(self, peer: PeerId) -> None:
        """A sign of life comes on a peer's connection."""
        self.membership.heard(self.now, peer)
        if peer in self.model and self.model[peer].connected:
            self.model[peer].silent_seconds = 0.0
            self.model[peer].far = False

    @rule(peer=st.sampled_from([ME, *OTHERS]))
    def disconnected(self, peer: PeerId) -> None:
        self.membership.disconnected(peer)
        if peer in self.model:
            self.model[peer].connected = False

    @rule(eighths=st.integers(0, int(8 * 1.5 * FAR_SECONDS)))
    def time_passes(self, eighths: int) -> None:
        self.now += eighths / 8
        for known in self.model.values():
            known.silent_seconds += eighths / 8

    @invariant()
    def those_live_that_announced_themselves_lately(self) -> None:
        living = sorted(peer for peer, known in self.model.items() if known.is_living)
        assert list(self.membership.living(self.now)) == living
        for peer in (ME, *OTHERS):
            assert self.membership.is_living(self.now, peer) == (peer in living)

    @invariant()
    def rounds_wait_for_those_that_work_on_their_head(self) -> None:
        for head in HEADS:
            at_work = {
                peer
                for peer, known in self.model.items()
                if known.is_living and known.head == head and known.phase in PHASES[:2]
            }
            assert at_work <= set(
                awaited(self.membership.living(self.now), [head], 0, lambda _: False).at_work
            )

    @invariant()
    def every_known_peer_is_remembered(self) -> None:
        known = self.membership.known()
        assert list(known) == sorted(self.model)
        for peer, statement in known.items():
            assert (statement.incarnation, statement.sequence) == self.model[peer].version


MembershipMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestMembership = MembershipMachine.TestCase
