"""The head that wins over a round under way: which node yields, and when, as the daemon decides it.

The chain here: mine is at `MINE`, one round after the genesis, and my ring may make it 100 tokens
heavier.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from gossamer.node.heads.heads import Heads
from gossamer.node.rounds.decisions import OVERTAKEN_SECONDS
from gossamer.node.rounds.turn import is_round_overtaken
from gossamer.node.storage.chain_store import ChainStore
from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, digest_of, peer_id_from_public_key
from gossamer.protocol.state.chain import Commit, Header, Member, encode_header

RUN_ID = Digest(bytes(32))
PEER = peer_id_from_public_key(bytes(range(32)))
MINE_TOKENS, RING_TOKENS = 100, 100
ATTAINABLE = MINE_TOKENS + RING_TOKENS
MY_RING, OTHER_RING = digest_of(b"mine"), digest_of(b"other")


class Chain:
    """Rounds without votes, and the `Heads` of a peer among them."""

    def __init__(self, directory: Path) -> None:
        self.store = ChainStore(directory, RUN_ID, Digest(bytes(32)))
        committed = SimpleNamespace(chain=self.store, head=RUN_ID)
        chain_sync = SimpleNamespace(unfinished=frozenset())
        unused: Any = None
        self.heads = Heads(cast(Any, committed), cast(Any, chain_sync), unused, unused)
        self.mine = committed.head = self.add(RUN_ID, MINE_TOKENS)

    def add(self, parent: Digest, tokens: int, ring_id: Digest = OTHER_RING) -> Digest:
        before = self.store.entry(parent)
        header = Header(
            version=limits.PROTOCOL_VERSION,
            run_id=RUN_ID,
            round=before.round + 1,
            parent=parent,
            ring_id=ring_id,
            members=(Member(PEER, tokens, 1.0),),
            tokens_total=before.tokens_total + tokens,
            update_digest=bytes(32),
            state_digest=bytes(32),
            ledger_digest=bytes(32),
            spans=(),
        )
        head = self.store.add(Commit(encode_header(header), ()), header)
        self.heads.note_counting(head)
        return head

    def is_overtaken_after(self, seconds: float, *, is_at_work: bool = True) -> bool:
        """Returns whether my ring is left so long after the better head was first seen."""

        async def main() -> bool:
            self.heads.better()
            await trio.sleep(seconds)
            return is_round_overtaken(self.heads, MY_RING, ATTAINABLE, is_at_work=is_at_work).holds

        return trio.run(main, clock=MockClock(autojump_threshold=0.0))


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path / "chain")


def test_without_a_better_head_a_round_goes_on(chain: Chain) -> None:
    chain.add(RUN_ID, MINE_TOKENS - 1)
    assert not chain.is_overtaken_after(60.0)


def test_what_follows_my_head_is_on_mine_and_a_branch_is_not(chain: Chain) -> None:
    child = chain.add(chain.mine, 1)
    branch = chain.add(RUN_ID, MINE_TOKENS + 1)
    assert chain.heads.is_on_mine(chain.mine)
    assert chain.heads.is_on_mine(child)
    assert chain.heads.is_on_mine(chain.add(child, 1))
    assert not chain.heads.is_on_mine(branch)
    assert not chain.heads.is_on_mine(chain.add(branch, 1))


def test_a_lone_commit_on_my_head_does_not_stop_a_ring_of_many(chain: Chain) -> None:
    chain.add(chain.mine, RING_TOKENS - 1)
    assert not chain.is_overtaken_after(60.0)


def test_a_commit_on_my_head_that_weighs_as_much_as_mine_may_does(chain: Chain) -> None:
    chain.add(chain.mine, RING_TOKENS)
    assert chain.is_overtaken_after(0.0)


def test_of_two_branches_the_one_behind_yields_at_once_whatever_its_ring_may_commit(
    chain: Chain,
) -> None:
    chain.add(RUN_ID, MINE_TOKENS + 1)
    assert chain.is_overtaken_after(0.0)


def test_the_commit_of_my_own_ring_by_others_is_finished_here_if_that_is_soon(
    chain: Chain,
) -> None:
    chain.add(chain.mine, RING_TOKENS, MY_RING)
    assert not chain.is_overtaken_after(OVERTAKEN_SECONDS - 0.01)
    assert chain.is_overtaken_after(OVERTAKEN_SECONDS)
    assert chain.is_overtaken_after(0.0, is_at_work=False)


def test_patience_is_for_my_own_ring_only(chain: Chain) -> None:
    chain.add(chain.add(chain.mine, RING_TOKENS, MY_RING), 1, OTHER_RING)
    assert not chain.is_overtaken_after(0.0), "the way there begins with my ring's round"
    chain.add(chain.add(chain.mine, RING_TOKENS, OTHER_RING), 2, MY_RING)
    assert chain.is_overtaken_after(0.0)
