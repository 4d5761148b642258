"""All that threads and the event loop share, at once: state, blocks, chain, journal, known peers.

The main thread does what the event loop does at any time, and others what nodes do in threads. They
are switched thousands of times a second. At the end all must be whole, in memory and on disk.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gossamer.node.storage.block_files import MissingBlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.storage.work.own_work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol import limits
from gossamer.protocol.ids import digest_of, peer_id_from_public_key
from gossamer.protocol.wire.statements import Span
from tests.support.balance import is_balanced
from tests.support.committed_rounds import Holder, MadeRound, small_manifest

pytestmark = pytest.mark.usefixtures("eager_switching")

ROUNDS = 60
REPLAYED = 4
"""One round in so many is replayed, and the others are committed here."""

PEERS = [peer_id_from_public_key(number.to_bytes(32)) for number in range(200)]


class Threads:
    """Work that is repeated in threads until the main thread has done its own."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.num_done: dict[str, int] = {}
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def repeat(self, name: str, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                while not self._is_over.is_set():
                    work()
                    self.num_done[name] = self.num_done.get(name, 0) + 1
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run, name=name))

    def run_while(self, work: Callable[[], object]) -> None:
        """Raises the first error of a thread. Each has done its work at least twice."""
        for thread in self._threads:
            thread.start()
        try:
            work()
            deadline = time.monotonic() + 10.0
            while any(self.num_done.get(thread.name, 0) < 2 for thread in self._threads):
                assert time.monotonic() < deadline or self.errors, "a thread did nothing"
                if self.errors:
                    break
                time.sleep(0.001)
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join(30.0)
        assert not any(thread.is_alive() for thread in self._threads)
        if self.errors:
            raise self.errors[0]


def test_the_state_its_chain_and_its_blocks(tmp_path: Path) -> None:
    """A thread commits and replays, a driver that was left computes, others' blocks are stored and
    served, records are served, and the event loop reads, adds records and forgets branches."""
    manifest = small_manifest()
    theirs, mine = Holder(manifest, tmp_path / "theirs"), Holder(manifest, tmp_path / "mine")
    state, chain, store = mine.state, mine.chain, mine.store
    rounds: list[MadeRound] = [theirs.commit(theirs.averages(number)) for number in range(ROUNDS)]
    others = Holder(manifest, tmp_path / "others")
    side = [others.commit(others.averages(100 + number)) for number in range(10)]
    draw = random.Random(0)
    threads = Threads()
    parents = [chain.genesis]

    def left_step() -> None:
        averages = mine.averages(900)
        mine.take_step(averages, parent=parents[-1])
        assert mine.take_step(averages, is_wanted=lambda: False) is None
        if len(parents) > 2:  # long ago
            assert mine.take_step(averages, parent=parents[0]) is None

    def fetch_and_serve() -> None:
        digest = store.put(random.randbytes(300))
        try:
            assert digest_of(store.get(digest)) == digest
            for block in rounds[0].blocks:
                store.get(digest_of(block))
        except MissingBlockError:
            pass  # evicted

    def serve_records() -> None:
        for made in (rounds[-1], side[-1]):
            records = chain.records_after(made.head, 0)
            assert len(records) <= limits.HEADERS_PER_REPLY_MAX

    def follow() -> None:
        """Does the work of the loop of turns: commits of its own, and every now and then a
        replay."""
        for number, made in enumerate(rounds):
            parents.append(state.head)
            if number % REPLAYED:
                digest = mine.take_step(made.averages)
                assert digest == made.header.state_digest
                mine.install(made)
            else:
                state.blocks.hold([digest_of(block) for block in made.blocks])
                mine.learn(made)
                state.replay(made.head)
                state.blocks.release()
            assert state.head == made.head
            mine.assert_whole()

    def event_loop() -> None:
        following = threading.Thread(target=partial(_into, threads.errors, follow))
        following.start()
        heard = iter(rounds)
        newest = 0
        while following.is_alive():
            entry = state.entry
            assert entry.round <= ROUNDS
            assert state.checkpoint_round <= state.entry.round
            assert state.parent.tokens_total >= entry.tokens_total
            assert chain.is_whole(entry.head)
            newest, before = state.checkpoint_round, newest
            assert newest >= before
            made = next(heard, None)
            if made is not None and draw.random() < 0.1 and made.header.parent in chain:
                chain.add(made.commit, made.header)  # by gossip, perhaps while it is committed
            for other in side:
                chain.add(other.commit, other.header)
            chain.heads_by_weight()
            chain.forget_all_but([made.head for made in rounds])
            assert side[0].head not in chain
        following.join()

    for work in (left_step, fetch_and_serve, serve_records):
        threads.repeat(work.__name__, work)
    store.quota_bytes = 40_000
    threads.run_while(event_loop)
    assert state.entry.round == ROUNDS
    mine.assert_whole()
    on_disk = {path.name for path in store.root.rglob("*") if path.is_file()}
    assert len(on_disk) == store.num_blocks()
    again = Holder(manifest, tmp_path / "mine")
    assert again.state.head == rounds[-1].head
    again.assert_whole()
    assert (again.store.num_blocks(), again.store.used_bytes()) == (
        store.num_blocks(),
        store.used_bytes(),
    )


def _into(errors: list[BaseException], work: Callable[[], object]) -> None:
    try:
        work()
    except BaseException as error:
        errors.append(error)


def test_blocks_that_come_go_and_are_pinned(tmp_path: Path) -> None:
    """Pinned blocks stay, and the store's figures are those of the disk."""
    store = BlockStore(tmp_path, 30_000)
    pinned = [number.to_bytes(4) * 100 for number in range(20)]
    threads, draw = Threads(), random.Random(1)

    def fetch() -> None:
        digest = store.put(draw.randrange(200).to_bytes(4) * 100)
        store.has(digest)

    def read() -> None:
        with contextlib.suppress(MissingBlockError):
            store.get(digest_of(draw.randrange(200).to_bytes(4) * 100))

    def round_by_round() -> None:
        number = draw.randrange(1000, 2000)
        blocks = [(number + i).to_bytes(4) * 50 for i in range(5)]
        digests = [digest_of(block) for block in blocks]
        store.pin(f"round {number}", digests)
        for block in blocks:
            store.put(block)
        assert not store.missing(digests)
        store.discard(f"round {number}")

    def event_loop() -> None:
        store.pin("kept", [digest_of(block) for block in pinned])
        for block in pinned:
            store.put(block)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            assert not store.missing([digest_of(block) for block in pinned])
            store.forget_lost()
            assert store.num_pinned() >= len(pinned)

    for work in (fetch, read, round_by_round):
        threads.repeat(work.__name__, work)
    threads.run_while(event_loop)
    store.evict()
    again = BlockStore(tmp_path, 30_000)
    assert (again.num_blocks(), again.used_bytes()) == (store.num_blocks(), store.used_bytes())
    assert not again.missing([digest_of(block) for block in pinned])


def test_the_journal_and_the_known_peers(tmp_path: Path) -> None:
    pending = np.zeros(manifest_size := small_manifest().model.num_parameters, np.float32)
    holder = Holder(small_manifest(), tmp_path / "state")
    plan = holder.state.sync_sets.whole.plan
    assert plan.num_elements == manifest_size
    work = Work(tmp_path / "work", pending, plan, 5, Metrics(), tokens_max=limits.TOKENS_TOTAL_MAX)
    known = KnownPeers(tmp_path / "peers")
    threads, draw = Threads(), random.Random(2)
    heads = [digest_of(number.to_bytes(4)) for number in range(100_000)]
    all_chunks = (1 << plan.num_chunks) - 1
    rounds = iter(range(len(heads) - 1))

    def one_round() -> None:
        number = next(rounds)
        head, new = heads[number], heads[number + 1]
        work.close_offer()
        work.trained(head, number + 1, 100, (Span(0, 0, 100),))
        work.offer(head, number + 1)
        if number % 3:
            work.committed_by(new, head, bytes(32), 100, all_chunks, counts_spans=True)
        work.moved_to(new)
        work.drop_stale(number + 2)
        work.save()

    def event_loop() -> None:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            work.stepped(1)
            assert work.status.trained >= 0
            known.saw({draw.choice(PEERS): ("/ip4/10.0.0.1/tcp/1",)})
            if draw.random() < 0.3:
                known.forget(draw.choice(PEERS))

    for name, repeated in (("rounds", one_round), ("peers", known.save), ("again", known.save)):
        threads.repeat(name, repeated)
    threads.run_while(event_loop)
    known.save()
    assert KnownPeers(tmp_path / "peers").newest_first() == known.newest_first()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    again = Work(
        tmp_path / "work",
        np.zeros_like(pending),
        plan,
        5,
        Metrics(),
        tokens_max=limits.TOKENS_TOTAL_MAX,
    )
    again.load()
    assert not again.is_damaged
    assert again.head == work.head
    assert is_balanced(again.account)
    # Inner steps of the last half second may be missing.
    assert again.status.carried == work.status.carried
