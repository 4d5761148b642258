"""Liveness of a yamux connection, in virtual time over a channel without a network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.rate_limit import NO_LIMIT, SMALL_BYTES_MAX
from gossamer.node.base.ticks import TICK_SECONDS
from gossamer.node.network.over_libp2p.liveness import (
    ASK_SECONDS,
    ASK_SECONDS_MAX,
    LOOK_SECONDS,
    QUESTIONS_PER_SECOND_MAX,
    RTT_SECONDS,
    SILENCE_SECONDS_MAX,
    Liveness,
)
from gossamer.node.network.over_libp2p.noise.noise import PLAINTEXT_BYTES_MAX, NoiseSession
from gossamer.node.network.over_libp2p.tcp.congestion import LineRate, LineSearch
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.frames import SMALL_FRAMES_RATE
from gossamer.node.network.over_libp2p.yamux.signs_of_life import PINGS_MAX
from gossamer.node.network.over_libp2p.yamux.stream import (
    ACK,
    DATA,
    HEADER,
    PING,
    SYN,
    WINDOW_UPDATE,
)
from gossamer.node.network.transport import PING_SECONDS, RING_PING_SECONDS
from gossamer.protocol.policy.membership import ANSWER_SECONDS
from tests.support.quiet_yamux import NoSocket, quiet_connection


class Channel:
    """A noise session whose other side answers when the test says so."""

    is_initiator = True
    has_room = True
    has_unsent = False
    is_writable = True
    limit = NO_LIMIT
    socket = NoSocket()

    def __init__(self) -> None:
        self.sealed: list[bytes] = []
        self._arrive, self._arrived = trio.open_memory_channel[bytes](math.inf)

    async def receive(self) -> list[bytes]:
        return [await self._arrived.receive()]

    @property
    def pings(self) -> list[int]:
        """The values of all pings that were sent, in their order."""
        frames = list(HEADER.iter_unpack(b"".join(self.sealed)))
        return [length for _, kind, flags, _, length in frames if kind == PING and flags & SYN]

    def answer_ping(self, number: int | None = None) -> None:
        """Answers a ping, the newest by default."""
        self._arrive.send_nowait(HEADER.pack(0, PING, ACK, 0, number or self.pings[-1]))

    def ask(self) -> None:
        """The other side asks for a sign of life."""
        self._arrive.send_nowait(HEADER.pack(0, PING, SYN, 0, 1))

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def seal(self, data: Any) -> None:
        self.sealed.append(bytes(data))

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    def send_at_once(self, data: bytes) -> None:
        self.seal(data)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


def connection_over(channel: Channel, liveness: Liveness) -> YamuxConnection:
    return YamuxConnection(cast(NoiseSession, channel), ID(b"peer"), liveness, LineRate())


def test_our_own_stop_is_not_the_peers_silence() -> None:
    clock = trio.testing.MockClock()

    async def stop(seconds: float) -> None:
        clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked(0.005)

    async def run(seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            await stop(TICK_SECONDS)  # too short for a stop

    async def main() -> None:
        channel = Channel()
        awake = AwakeClock()
        liveness = Liveness(awake)
        connection = connection_over(channel, liveness)
        async with trio.open_nursery() as nursery:
            await nursery.start(awake.run)
            nursery.start_soon(liveness.run)
            nursery.start_soon(connection.start)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                # Stopped for longer than a peer may be silent; its answers have yet to be read.
                await stop(3 * SILENCE_SECONDS_MAX)
                assert connection.is_established
                channel.answer_ping()
                await trio.testing.wait_all_tasks_blocked(0.005)
                await run(PING_SECONDS / 2)
                assert connection.is_established
            await stop(3 * SILENCE_SECONDS_MAX)
            silent_seconds = 0.0
            while connection.is_established:
                await run(PING_SECONDS / 2)
                silent_seconds += PING_SECONDS / 2
            nursery.cancel_scope.cancel()
            assert silent_seconds <= PING_SECONDS, "it is asked once more, and that is all"

    trio.run(main, clock=clock)


@pytest.mark.parametrize("answers", [True, False])
def test_our_own_stop_during_a_probe_is_not_the_peers_silence(answers: bool) -> None:
    """The answer had come, and this process had yet to read it."""
    clock = trio.testing.MockClock()
    found: list[bool] = []

    async def main() -> None:
        channel = Channel()
        awake = AwakeClock()
        liveness = Liveness(awake)
        connection = connection_over(channel, liveness)

        async def ask() -> None:
            found.append(await connection.signs.answers_within(5.0))

        async with trio.open_nursery() as nursery:
            await nursery.start(awake.run)
            nursery.start_soon(connection.start)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(60.0)
            await trio.testing.wait_all_tasks_blocked(0.005)
            assert found == []
            if answers:
                channel.answer_ping()
            for _ in range(round(5.0 / TICK_SECONDS)):
                await trio.testing.wait_all_tasks_blocked(0.005)
                clock.jump(TICK_SECONDS)
            await trio.testing.wait_all_tasks_blocked(0.005)
            assert found == [answers]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def probe(
    num_probes: int, answered: Callable[[list[int]], list[int]], seconds: float = 5.0
) -> tuple[list[bool], list[int], float]:
    """Probes a connection so many times at once, before it sends a ping of its own.

    Args:
        answered: which pings the peer answers, 0.1 s later, in their order.

    Returns:
        What each probe found, the pings that were sent for them, and the round trip in seconds.
    """
    found: list[bool] = []
    sent: list[int] = []
    rtt = 0.0

    async def main() -> None:
        nonlocal rtt
        channel = Channel()
        liveness = Liveness(AwakeClock())
        connection = connection_over(channel, liveness)

        async def ask() -> None:
            found.append(await connection.signs.answers_within(seconds))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(liveness.run)
            nursery.start_soon(connection.start)
            await trio.sleep(0.01)
            async with trio.open_nursery() as probes:
                for _ in range(num_probes):
                    probes.start_soon(ask)
                await trio.sleep(0.1)
                sent.extend(channel.pings)
                for number in answered(sent):
                    channel.answer_ping(number)
            rtt = connection.signs.rtt_seconds
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return found, sent, rtt


def test_probes_at_the_same_time_do_not_hide_each_others_answers() -> None:
    found, sent, rtt = probe(3, lambda sent: sent)
    assert found == [True, True, True]
    assert len(set(sent)) == 3
    assert rtt == pytest.approx(0.1)


def test_an_answer_counts_for_the_earlier_pings_and_not_for_later_ones() -> None:
    found, _, rtt = probe(3, lambda sent: sent[1:2])
    assert sorted(found) == [False, True, True]
    assert rtt == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", [0xFFFFFFFF, 12345])
def test_an_answer_to_no_ping_counts_for_none(wrong: int) -> None:
    found, _, rtt = probe(2, lambda _sent: [wrong])
    assert found == [False, False]
    assert rtt < 0.1


def test_more_probes_than_pings_may_wait_share_the_newest() -> None:
    found, sent, _ = probe(3 * PINGS_MAX, lambda sent: sent)
    assert len(sent) == PINGS_MAX
    assert found == [True] * 3 * PINGS_MAX


def test_a_peer_that_answered_nothing_for_long_is_found_alive_when_it_answers_again() -> None:
    """Pings without an answer do not use up the places of later ones."""

    async def main() -> None:
        channel = Channel()
        liveness = Liveness(AwakeClock())
        connection = connection_over(channel, liveness)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(liveness.run)
            nursery.start_soon(connection.start)
            await trio.sleep(0.01)
            for _ in range(2 * PINGS_MAX):
                assert not await connection.signs.answers_within(0.01)
            channel.answer_ping()
            await trio.sleep(0.01)
            with trio.fail_after(1.0):
                nursery.start_soon(answer_soon, channel)
                assert await connection.signs.answers_within(0.9)
            nursery.cancel_scope.cancel()

    async def answer_soon(channel: Channel) -> None:
        await trio.sleep(0.1)
        channel.answer_ping()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class Quiet:
    """A connection on which nothing comes, as `Liveness` sees it."""

    def __init__(self, looks: list[float]) -> None:
        self.looks = looks
        self.num_drops = 0

    def look(self, now: float, *, after_stall: bool) -> float:
        assert not after_stall
        self.looks.append(now)
        return now + ASK_SECONDS

    def drop(self, reason: str) -> None:
        self.num_drops += 1


def test_many_connections_wake_the_event_loop_no_more_often_than_few() -> None:
    looks: list[float] = []
    connections = [Quiet(looks) for _ in range(64)]

    async def main() -> None:
        liveness = Liveness(AwakeClock())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(liveness.run)
            for connection in connections:
                liveness.add(connection)
                await trio.sleep(0.05)
            looks.clear()
            began = trio.current_time()
            await trio.sleep(60)
            assert len(set(looks)) <= 60 / LOOK_SECONDS + 1
            assert len(looks) <= 64 * (60 / ASK_SECONDS + 1)
            assert all(later > began for later in looks)
            liveness.remove(connections.pop())
            looks.clear()
            await trio.sleep(ASK_SECONDS + LOOK_SECONDS)
            assert len(looks) >= 63
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class Asked:
    """A silent connection that answers each question, as `Liveness` sees it."""

    def __init__(self, liveness: Liveness, peer: ID) -> None:
        self.liveness = liveness
        self.peer = peer
        self.asked_at: list[float] = []

    def look(self, now: float, *, after_stall: bool) -> float:
        silence = self.liveness.ask_after_seconds(self.peer, was_dialled=True)
        if not self.asked_at or now >= self.asked_at[-1] + silence:
            self.asked_at.append(now)
        return self.asked_at[-1] + silence

    def drop(self, reason: str) -> None:
        raise AssertionError(reason)


@pytest.mark.parametrize("num_peers", [4, 64, 256])
def test_questions_do_not_grow_with_the_swarm(num_peers: int) -> None:
    seconds = 120.0

    async def main() -> None:
        liveness = Liveness(AwakeClock())
        connections = [
            Asked(liveness, ID(f"peer {number}".encode())) for number in range(num_peers)
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(liveness.run)
            for connection in connections:
                liveness.add(connection)
                await trio.sleep(0.05)
            liveness.listen([connections[0].peer])
            await trio.sleep(1.0)
            for connection in connections:
                connection.asked_at = connection.asked_at[-1:]
            await trio.sleep(seconds)
            others = connections[1:]
            num_questions = sum(len(connection.asked_at) - 1 for connection in others)
            rate_max = max(QUESTIONS_PER_SECOND_MAX, num_peers / ASK_SECONDS_MAX)
            assert num_questions <= 1.05 * rate_max * seconds
            for connection in others:
                for earlier, later in itertools.pairwise(connection.asked_at):
                    assert later - earlier <= liveness.signs_seconds()
            answer_seconds = liveness.silence_seconds_max() - liveness.signs_seconds()
            assert answer_seconds >= ANSWER_SECONDS, "a question can be answered before the end"
            in_ring = len(connections[0].asked_at) - 1
            assert in_ring >= 0.8 * seconds / RING_PING_SECONDS, "a ring listens as closely as ever"
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class Full(Channel):
    """A channel on which so many plaintexts have come already."""

    def __init__(self, plaintext: bytes, number: int) -> None:
        super().__init__()
        self._plaintext = plaintext
        self.num_left = number

    async def receive(self) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        if not self.num_left:
            await trio.sleep_forever()
        self.num_left -= 1
        return [self._plaintext]


def left_after(seconds: float, plaintext: bytes, number: int) -> int:
    """Returns how many of so many plaintexts a connection has not read after some seconds."""

    async def main() -> int:
        channel = Full(plaintext, number)
        connection = quiet_connection(channel, ID(b"peer"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.start)
            await trio.sleep(seconds)
            assert connection.is_established
            nursery.cancel_scope.cancel()
        return channel.num_left

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("plaintext", "num_frames"),
    [
        (b"", 1),
        (HEADER.pack(0, PING, ACK, 0, 0), 1),
        (HEADER.pack(0, WINDOW_UPDATE, 0, 1, 0) * 500, 500),
        (HEADER.pack(0, DATA, 0, 99, 0) * 500, 500),
        ((HEADER.pack(0, DATA, 0, 99, 1) + b"?") * 500, 500),
    ],
    ids=["no frame", "answers to no ping", "windows", "no data", "bytes"],
)
def test_frames_that_carry_next_to_nothing_are_read_at_a_rate(
    plaintext: bytes, num_frames: int
) -> None:
    """They cost this node a microsecond or two each, and their sender less."""
    rate = SMALL_FRAMES_RATE
    number = int(rate.burst + 2 * rate.per_second) // num_frames
    assert left_after(0.5, plaintext, number) >= rate.per_second // num_frames
    assert left_after(4.0, plaintext, number) == 0


def test_data_in_long_frames_is_read_at_once() -> None:
    body = bytes(PLAINTEXT_BYTES_MAX - HEADER.size)
    plaintext = HEADER.pack(0, DATA, 0, 99, len(body)) + body
    assert left_after(0.1, plaintext, 2 * int(SMALL_FRAMES_RATE.burst)) == 0


def test_a_look_that_fails_ends_one_connection() -> None:
    class Broken(Quiet):
        def look(self, now: float, *, after_stall: bool) -> float:
            raise ValueError("a bug")

    looks: list[float] = []
    broken, whole = Broken(looks), Quiet(looks)

    async def main() -> None:
        liveness = Liveness(AwakeClock())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(liveness.run)
            liveness.add(broken)
            liveness.add(whole)
            await trio.sleep(2 * PING_SECONDS)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert broken.num_drops == 1
    assert len(looks) >= 2


def pings_during(was_dialled: bool, story: Callable[[Channel], Awaitable[None]]) -> int:
    """Returns how often a connection asks its peer for a sign of life during a story."""
    num_pings = 0

    async def main() -> None:
        nonlocal num_pings
        channel = Channel()
        liveness = Liveness(AwakeClock())
        connection = connection_over(channel, liveness)
        connection.was_dialled = was_dialled
        async with trio.open_nursery() as nursery:
            nursery.start_soon(liveness.run)
            nursery.start_soon(connection.start)
            await trio.sleep(0.01)
            await story(channel)
            num_pings = len(channel.pings)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return num_pings


@pytest.mark.parametrize("was_dialled", [True, False])
def test_the_end_that_dialled_asks_and_the_other_one_only_where_nobody_does(
    was_dialled: bool,
) -> None:
    num_looks = 40

    async def other_end_asks(channel: Channel) -> None:
        for _ in range(num_looks):
            await trio.sleep(ASK_SECONDS / 2)
            channel.ask()

    async def other_end_answers(channel: Channel) -> None:
        num_answered = 0
        for _ in range(num_looks):
            await trio.sleep(ASK_SECONDS / 2)
            if len(channel.pings) > num_answered:
                num_answered = len(channel.pings)
                channel.answer_ping()

    seconds = num_looks * ASK_SECONDS / 2
    most = seconds / RTT_SECONDS + 1
    assert pings_during(was_dialled, other_end_asks) <= most, "only to know the round trip"
    assert pings_during(was_dialled, other_end_answers) >= seconds / (2 * PING_SECONDS)


def test_the_end_that_was_dialled_leaves_the_question_to_the_other_one() -> None:
    """That one asks as soon as its time has come, and the question gets here a moment later."""
    num_questions = 40

    async def other_end_asks(channel: Channel) -> None:
        for _ in range(num_questions):
            await trio.sleep(ASK_SECONDS + 0.1)
            channel.ask()

    most = num_questions * (ASK_SECONDS + 0.1) / RTT_SECONDS + 1
    assert pings_during(False, other_end_asks) <= most, "only to know the round trip"
    assert pings_during(True, other_end_asks) > num_questions // 4, "it asks itself"


@pytest.mark.parametrize("was_dialled", [True, False])
def test_a_peer_in_a_ring_is_heard_more_often_for_as_long_as_that_is_wanted(
    was_dialled: bool,
) -> None:
    """The silence between two signs of life of a peer that only answers."""
    silences: dict[str, float] = {}

    async def main() -> None:
        channel = Channel()
        liveness = Liveness(AwakeClock())
        connection = connection_over(channel, liveness)
        connection.was_dialled = was_dialled
        peer = connection.peer_id

        async def answer() -> None:
            num_answered = 0
            while True:
                await trio.sleep(0.01)
                if len(channel.pings) > num_answered:
                    num_answered = len(channel.pings)
                    channel.answer_ping()

        async def longest_silence(seconds: float) -> float:
            longest = 0.0
            for _ in range(round(seconds / 0.05)):
                await trio.sleep(0.05)
                longest = max(longest, trio.current_time() - connection.signs.heard_seconds)
            return longest

        async with trio.open_nursery() as nursery:
            nursery.start_soon(liveness.run)
            nursery.start_soon(connection.start)
            nursery.start_soon(answer)
            silences["idle"] = await longest_silence(30)
            while trio.current_time() < connection.signs.heard_seconds + RING_PING_SECONDS:  # noqa: ASYNC110
                await trio.sleep(0.05)
            liveness.listen([peer])  # of one ring
            liveness.listen([peer, ID(b"another")])  # and of the next one
            await trio.sleep(2 * LOOK_SECONDS)  # it is asked at once
            silences["begun"] = trio.current_time() - connection.signs.heard_seconds
            silences["ring"] = await longest_silence(30)
            liveness.end_listening([peer])
            silences["one of two"] = await longest_silence(30)
            liveness.end_listening([peer, ID(b"another")])
            await trio.sleep(PING_SECONDS)
            silences["ended"] = await longest_silence(30)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert RING_PING_SECONDS < silences["idle"] <= PING_SECONDS
    assert silences["begun"] <= 2 * LOOK_SECONDS
    assert silences["ring"] <= RING_PING_SECONDS
    assert silences["one of two"] <= RING_PING_SECONDS
    assert RING_PING_SECONDS < silences["ended"] <= PING_SECONDS


class FullLine(Channel):
    """A noise session over a line that takes a message now and then."""

    is_writable = False

    async def wait_writable(self) -> None:
        await trio.sleep(0.05)


@pytest.mark.parametrize("num_bytes", [2_000, 2_000_000])
def test_bulk_data_that_waits_has_the_search_of_the_line_watched(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(LineSearch, "look", lambda _search, now: looks.append(now))

    async def main() -> None:
        connection = connection_over(FullLine(), Liveness(AwakeClock()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.start)
            await connection.event_started.wait()
            stream = await connection.open_stream()
            stream.send_window = num_bytes
            await stream.send(bytes(num_bytes))
            await connection.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert bool(looks) == (num_bytes > SMALL_BYTES_MAX)
    assert looks == sorted(looks)
