"""What is published, what waits for a comparison of statements, and how often those take place."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.statements import store_comparison
from gossamer.node.peers.statements.compact_rosters import (
    LACKING_MAX,
    LACKING_OF_ONE_MAX,
    LACKING_SECONDS,
)
from gossamer.node.peers.statements.gossip import PUBLISHING_RING_MAX, Gossip
from gossamer.node.peers.statements.store_comparison import (
    APART_SECONDS,
    DROPPED_SECONDS,
    NEWS_SECONDS,
    QUIET_RECONCILE_SECONDS,
    RECONCILE_SECONDS,
    StoreComparison,
)
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.policy.conduct.gossip_quota import ASKER_RATE
from gossamer.protocol.rounds.roster import make_roster
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.gossip_messages import encode_compact, encode_own
from gossamer.protocol.wire.statements import Announce, Ready, Roster, Signed, Statement
from tests.support.builders import HEAD, RING_RULES, RUN_ID, announce, ready
from tests.support.gossip_listener import OpenListener
from tests.support.memory_transport import MemoryNetwork, run_simulated


class Listener(OpenListener):
    """Notes what it hears."""

    apart = False
    hears_news = True
    """Whether what it hears says something new."""
    is_known = True
    """Whether the other one has announced itself."""

    def __init__(self) -> None:
        self.heard: list[Statement] = []
        self.commits: list[Commit] = []
        self.offences: list[RemoteProtocolError] | None = None
        """None: an offence is a failure."""

    def heard_statement(self, signed: Signed, statement: Statement) -> bool:
        self.heard.append(statement)
        return self.hears_news

    def heard_commit(self, commit: Commit) -> bool:
        self.commits.append(commit)
        return True

    def is_apart(self) -> bool:
        return self.apart

    def is_member(self, peer: PeerId) -> bool:
        return self.is_known

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        if self.offences is None:
            super().offence(peer, error)
        else:
            self.offences.append(error)


def with_two(story: Callable[[list[Gossip], list[Listener]], Awaitable[None]]) -> None:
    """Runs a story with the gossip of two connected peers."""

    async def main() -> None:
        network, listeners = MemoryNetwork(), [Listener(), Listener()]
        async with AsyncExitStack() as stack:
            gossips, transports = [], []
            for number, listener in enumerate(listeners):
                identity = Identity.from_seed(digest_of(b"%d" % number))
                transport = await stack.enter_async_context(network.transport(identity))
                randomness = random.Random(number)
                gossip = Gossip(transport, identity, RUN_ID, listener, randomness)
                gossip.start()
                gossips.append(gossip)
                transports.append(transport)
            await transports[0].connect(transports[1].addresses()[0])
            async with trio.open_nursery() as nursery:
                for gossip in gossips:
                    nursery.start_soon(gossip.run)
                await story(gossips, listeners)
                nursery.cancel_scope.cancel()

    run_simulated(main)


def test_what_is_kept_comes_with_a_comparison_and_what_is_said_at_once() -> None:
    said, kept = announce(sequence=1), announce(sequence=2)

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        gossips[0].say(said)
        await trio.sleep(0.1)
        assert listeners[1].heard == [said]
        gossips[0].keep(kept)
        await trio.sleep(0.1)
        assert listeners[1].heard == [said]
        await trio.sleep(2 * RECONCILE_SECONDS)
        assert listeners[1].heard == [said, kept]

    with_two(story)


def counted_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The local times at which any node compares stores from now on."""
    asked: list[float] = []
    reconcile = StoreComparison.reconcile

    async def counted(comparison: StoreComparison, peer: PeerId) -> None:
        asked.append(trio.current_time())
        await reconcile(comparison, peer)

    monkeypatch.setattr(StoreComparison, "reconcile", counted)
    return asked


@pytest.mark.parametrize(
    ("apart", "has_news", "seconds"),
    [
        (False, False, QUIET_RECONCILE_SECONDS),
        (False, True, RECONCILE_SECONDS),
        (True, False, APART_SECONDS),
        (True, True, APART_SECONDS),
    ],
)
def test_stores_are_compared_more_often_after_news_and_by_a_peer_that_lacks_a_connection(
    monkeypatch: pytest.MonkeyPatch, apart: bool, has_news: bool, seconds: float
) -> None:
    monkeypatch.setattr(Listener, "apart", apart)
    asked = counted_comparisons(monkeypatch)

    async def story(gossips: list[Gossip], _listeners: list[Listener]) -> None:
        for sequence in range(20):
            said = announce(sequence=sequence)
            # What is kept is no news, neither here nor where a comparison brings it.
            gossips[0].say(said) if has_news else gossips[0].keep(said)
            await trio.sleep(NEWS_SECONDS / 3)

    with_two(story)
    expected = 2 * 20 * NEWS_SECONDS / 3 / seconds
    assert len(asked) == pytest.approx(expected, rel=0.15)


def test_what_repeats_is_published_and_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members without a connection to each other repeat what they said to all others. These
    compared their stores as often as after news."""
    monkeypatch.setattr(Listener, "hears_news", False)
    asked = counted_comparisons(monkeypatch)
    num_repeated = 20

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        await trio.sleep(NEWS_SECONDS)
        asked.clear()
        for sequence in range(num_repeated):
            gossips[0].repeat(announce(sequence=sequence))
            await trio.sleep(0.5)
            assert len(listeners[1].heard) == sequence + 1
            await trio.sleep(NEWS_SECONDS / 3 - 0.5)

    with_two(story)
    expected = 2 * num_repeated * NEWS_SECONDS / 3 / QUIET_RECONCILE_SECONDS
    assert len(asked) == pytest.approx(expected, rel=0.15)


def test_news_after_a_quiet_time_is_followed_by_a_comparison_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = counted_comparisons(monkeypatch)
    waits: list[float] = []

    async def story(gossips: list[Gossip], _listeners: list[Listener]) -> None:
        for sequence in range(10):
            await trio.sleep(NEWS_SECONDS + 10.1)
            gossips[0].say(announce(sequence=sequence))
            now = trio.current_time()
            num_before = len(asked)
            await trio.sleep(1.5 * RECONCILE_SECONDS)
            waits.append(asked[num_before] - now)

    with_two(story)
    assert max(waits) <= 1.2 * RECONCILE_SECONDS + 0.1


@pytest.mark.parametrize("num_members", [PUBLISHING_RING_MAX, PUBLISHING_RING_MAX + 1])
def test_the_commit_record_of_a_large_ring_is_not_published(num_members: int) -> None:
    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        roster = gossips[0].say(announce())
        gossips[0].publish_commit(Commit(b"header", roster, ()), num_members)
        await trio.sleep(1)
        assert len(listeners[1].commits) == (num_members <= PUBLISHING_RING_MAX)

    with_two(story)


def test_a_comparison_brings_nothing_that_is_there() -> None:
    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        gossips[0].say(announce(sequence=3))
        await trio.sleep(5)
        heard = [each for each in listeners[1].heard if isinstance(each, Announce)]
        assert len(heard) == 1
        store = gossips[0].statement_store
        assert store.missing_from(gossips[1].statement_store.tags()) == []

    with_two(story)


def test_what_was_dropped_is_not_sent_again_by_who_holds_it_still() -> None:
    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        gossips[0].say(announce(sequence=3))
        await trio.sleep(2 * RECONCILE_SECONDS)
        gossips[1].statement_store.keep(lambda _signed, _statement: False)
        await trio.sleep(DROPPED_SECONDS - 1)
        assert len(listeners[1].heard) == 1
        # It was dropped by mistake, as after a change to another head and back.
        await trio.sleep(1 + 3 * RECONCILE_SECONDS)
        assert len(listeners[1].heard) == 2

    with_two(story)


IDENTITIES = [Identity.from_seed(digest_of(b"%d" % number)) for number in range(8)]
"""The first two are those of `with_two`."""


def readies() -> dict[PeerId, tuple[Signed, Ready]]:
    """A signed `Ready` of each of eight peers."""
    made = ready()
    return {
        each.peer_id: (seal(made, each.peer_id, RUN_ID, each.sign), made) for each in IDENTITIES
    }


def roster_of(signed: dict[PeerId, tuple[Signed, Ready]]) -> Roster:
    return make_roster(HEAD, 5, 0, {peer: one for peer, (one, _) in signed.items()}, RING_RULES)


def rosters_in(heard: list[Statement]) -> list[Statement]:
    return [each for each in heard if isinstance(each, Roster)]


@pytest.fixture
def no_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores are compared only when something is missing."""
    monkeypatch.setattr(store_comparison, "RECONCILE_SECONDS", 1e6)
    monkeypatch.setattr(store_comparison, "QUIET_RECONCILE_SECONDS", 1e6)


@pytest.mark.usefixtures("no_comparisons")
def test_a_roster_comes_without_the_ready_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    received = Gossip._received

    def measured(gossip: Gossip, author: PeerId, data: bytes) -> bool:
        sizes.append(len(data))
        return received(gossip, author, data)

    monkeypatch.setattr(Gossip, "_received", measured)
    known = readies()
    roster = roster_of(known)

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        for gossip in gossips:
            for signed, statement in known.values():
                gossip.statement_store.post(signed, statement)
        sealed = gossips[0].say(roster)
        await trio.sleep(0.1)
        assert rosters_in(listeners[1].heard) == [roster]
        assert gossips[1].statement_store.has(sealed.digest), "byte for byte"
        assert sizes == [pytest.approx(115 + 8 * len(known), abs=15)]
        assert sizes[0] < len(to_msgpack(sealed)) / 5

    with_two(story)


@pytest.mark.usefixtures("no_comparisons")
@pytest.mark.parametrize("seconds", [0.1, None])
def test_a_roster_waits_for_a_ready_and_then_asks(seconds: float | None) -> None:
    """The last `Ready` is slower than the roster, or gossip has lost it."""
    known = readies()
    late = IDENTITIES[5].peer_id
    roster = roster_of(known)

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        for peer, (signed, statement) in known.items():
            gossips[0].statement_store.post(signed, statement)
            if peer != late:
                gossips[1].statement_store.post(signed, statement)
        gossips[0].say(roster)
        await trio.sleep(0.1 if seconds is None else seconds)
        assert not rosters_in(listeners[1].heard)
        if seconds is None:
            await trio.sleep(LACKING_SECONDS)
        else:
            assert gossips[1]._received(late, b"\x03" + encode_own(known[late][0]))
        assert rosters_in(listeners[1].heard) == [roster]
        await trio.sleep(1)
        assert len(rosters_in(listeners[1].heard)) == 1

    with_two(story)


@pytest.mark.usefixtures("no_comparisons")
def test_a_ready_that_its_author_signed_anew_makes_no_roster_forged() -> None:
    """The organiser has another signature of it than this peer, and both are good elsewhere: the
    listener fails at any offence."""
    known = readies()
    odd = IDENTITIES[5].peer_id
    signed, statement = known[odd]
    other = Signed(signed.author, signed.payload, bytes(64))
    roster = roster_of({**known, odd: (other, statement)})

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        for one, said in known.values():
            gossips[1].statement_store.post(one, said)
        gossips[0].say(roster)
        await trio.sleep(0.1)
        assert not listeners[1].heard
        await trio.sleep(LACKING_SECONDS)
        assert rosters_in(listeners[1].heard) == [roster], "as a whole"

    with_two(story)


@pytest.mark.usefixtures("no_comparisons")
def test_rosters_that_can_never_be_put_together_take_little_room() -> None:
    invented = roster_of(readies())

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        for attempt in range(3 * LACKING_MAX):
            organiser = IDENTITIES[attempt % len(IDENTITIES)]
            other = Roster(5, HEAD, attempt, invented.members, "fp32", 1024)
            sealed = seal(other, organiser.peer_id, RUN_ID, organiser.sign)
            message = b"\x02" + encode_compact(sealed, other)
            assert not gossips[1]._received(organiser.peer_id, message)
        assert len(gossips[1]._rosters._lacking) == LACKING_MAX
        await trio.sleep(1)
        assert not gossips[1]._rosters._lacking
        assert not listeners[1].heard

    with_two(story)


@pytest.mark.usefixtures("no_comparisons")
def test_rosters_that_can_never_be_put_together_provoke_few_comparisons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each provoked one: some fifty a second, in each of which this node names all that it holds.
    Those of one organiser keep no room from those of others."""
    asked = counted_comparisons(monkeypatch)
    invented, seconds = roster_of(readies()), 5

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        for attempt in range(20 * seconds):
            other = Roster(5, HEAD, attempt, invented.members, "fp32", 1024)
            sealed = seal(other, IDENTITIES[0].peer_id, RUN_ID, IDENTITIES[0].sign)
            gossips[1]._received(IDENTITIES[0].peer_id, b"\x02" + encode_compact(sealed, other))
            assert len(gossips[1]._rosters._lacking) <= LACKING_OF_ONE_MAX < LACKING_MAX
            await trio.sleep(1 / 20)

    with_two(story)
    assert len(asked) <= seconds + 1


@pytest.mark.usefixtures("no_comparisons")
def test_one_comparison_brings_all_rosters_of_an_organiser() -> None:
    known = readies()
    rosters = [roster_of(known), replace(roster_of(known), attempt=1)]

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        for signed, statement in known.values():
            gossips[0].statement_store.post(signed, statement)
        for roster in rosters:
            gossips[0].say(roster)
        await trio.sleep(0.5 + LACKING_SECONDS)
        assert rosters_in(listeners[1].heard) == rosters

    with_two(story)


LONG_SECONDS = 3 * QUIET_RECONCILE_SECONDS
"""Each node has compared its store with the other one's by then."""


def keep_foreign(gossip: Gossip, statement: Statement) -> None:
    """Lets a node hold a statement that it has signed for another run."""
    me = gossip._identity
    run_id = digest_of(b"another run")
    gossip.statement_store.post(seal(statement, me.peer_id, run_id, me.sign), statement)


@pytest.mark.parametrize("is_refused", [False, True], ids=["well formed", "malformed here"])
def test_a_peer_of_another_run_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """Its statements looked forged, or as no peer may make them: it was banned."""
    asked = counted_comparisons(monkeypatch)

    def refuse(_self: Listener, _author: PeerId, _statement: Statement) -> bool:
        raise MalformedError("a statement that no peer of this run makes")

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        if is_refused:
            monkeypatch.setattr(Listener, "admits", refuse)
        for listener in listeners:
            listener.is_known = False
        for gossip in gossips:
            keep_foreign(gossip, announce())
        await trio.sleep(LONG_SECONDS)
        one, other = (gossip._transport for gossip in gossips)
        assert one.peers() == other.peers() == []
        await one.connect(other.addresses()[0])
        num_before = len(asked)
        await trio.sleep(60.0)
        assert len(asked) <= num_before + 1, "each has asked the other one once"
        assert not any(listener.heard for listener in listeners)

    with_two(story)


def test_a_peer_that_comes_over_to_this_run_is_one_of_it() -> None:
    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        listeners[0].is_known = False
        keep_foreign(gossips[1], announce(sequence=1))
        await trio.sleep(LONG_SECONDS)
        one, other = (gossip._transport for gossip in gossips)
        await one.connect(other.addresses()[0])
        gossips[1].keep(announce(sequence=2))
        await trio.sleep(LONG_SECONDS)
        assert not listeners[0].heard
        listeners[0].is_known = True
        await trio.sleep(LONG_SECONDS)
        assert len(listeners[0].heard) == 1

    with_two(story)


def test_a_member_that_hands_on_what_is_forged_has_an_offence() -> None:
    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        listeners[0].offences = []
        keep_foreign(gossips[1], announce())
        await trio.sleep(LONG_SECONDS)
        assert listeners[0].offences
        assert all(isinstance(error, ForgedError) for error in listeners[0].offences)

    with_two(story)


@pytest.mark.usefixtures("no_comparisons")
@pytest.mark.parametrize("has_standing", [True, False])
def test_a_peer_that_asks_without_end_is_answered_now_and_then(*, has_standing: bool) -> None:
    """Each answer has up to 256 KiB, and it takes milliseconds to choose what is in it."""

    async def story(gossips: list[Gossip], listeners: list[Listener]) -> None:
        gossips[1].statement_store.has_standing = lambda _author: has_standing
        gossips[1].say(announce())
        peer, num_answered, began = gossips[1]._transport.peer_id, 0, trio.current_time()
        while trio.current_time() < began + 20.0:
            with suppress(TransportError):
                await gossips[0].reconcile(peer)
                num_answered += 1
        assert num_answered <= ASKER_RATE.burst + 21 * ASKER_RATE.per_second
        await trio.sleep(2.0)
        await gossips[0].reconcile(peer)

    with_two(story)
