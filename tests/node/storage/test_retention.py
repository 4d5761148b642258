"""What of the past stays on the disk, where rounds were taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gossamer.node.base.disk_health import DiskFullError
from gossamer.node.storage.block_files import path_of
from gossamer.node.storage.blocks import Buffer
from gossamer.node.storage.state import retention
from gossamer.node.storage.state.restoring import rebuild
from gossamer.protocol.ids import Digest, digest_of
from tests.support.committed_rounds import Holder, MadeRound, small_manifest
from tests.support.damage import damage

CHECKPOINT_ROUNDS = 10
NEWEST, TARGET = 38, 25
"""A node at the newest round goes back to the target. Both are no checkpoints."""


class Node:
    """A node alone, whose rounds take so long that two checkpoints are kept."""

    def __init__(self, root: Path) -> None:
        self.holder = Holder(small_manifest(checkpoint_rounds=CHECKPOINT_ROUNDS), root)
        self.made: dict[Digest, MadeRound] = {}
        self._seed = 0

    @property
    def round(self) -> int:
        return self.holder.state.entry.round

    @property
    def way(self) -> list[Digest]:
        """The heads from the run's first state on."""
        chain = self.holder.chain
        path = chain.path_between(chain.genesis, self.holder.state.head)
        assert path is not None
        return [chain.genesis, *path]

    @property
    def kept_rounds(self) -> list[int]:
        """The rounds on the way to the present one whose states this disk can rebuild."""
        blocks, found, is_here = self.holder.state.blocks, [], False
        for number, head in enumerate(self.way):
            is_here = blocks.has_state(head) or (is_here and blocks.has_averages(head))
            found += [number] if is_here else []
        return found

    def work_to(self, number: int) -> None:
        while self.round < number:
            self._seed += 1
            made = self.holder.commit(self.holder.averages(self._seed))
            self.made[made.head] = made

    def go_back(self, number: int) -> None:
        """As a node does whose disk has the states before."""
        target = self.way[number]
        assert rebuild(self.holder.state, target)
        assert self.holder.state.head == target
        self.holder.state.checkpoint()

    def pinned_checkpoints(self) -> list[Digest]:
        return [each.head for each in self.holder.state.checkpoints]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(retention, "CHECKPOINT_SECONDS", -1.0)
    node = Node(tmp_path)
    node.work_to(NEWEST)
    assert node.kept_rounds == [*range(20, NEWEST + 1)]
    return node


def test_a_checkpoint_that_the_disk_does_not_take_keeps_no_room_of_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of states that are not whole would fill a full disk for good: no eviction frees it."""
    store, checkpoints = node.holder.store, node.pinned_checkpoints()
    pinned, held = store.pinned_bytes(), store.num_blocks()
    put, room = store.put, [2]

    def put_while_there_is_room(data: Buffer, *, expected: Digest | None = None) -> Digest:
        if not room[0]:
            raise DiskFullError(store.root, memoryview(data).nbytes)
        room[0] -= 1
        return put(data, expected=expected)

    with monkeypatch.context() as full:
        full.setattr(store, "put", put_while_there_is_room)
        with pytest.raises(DiskFullError):
            node.holder.state.checkpoint()
    assert room == [0]
    assert (store.pinned_bytes(), store.num_blocks()) == (pinned, held)
    assert node.pinned_checkpoints() == checkpoints
    node.holder.state.checkpoint()
    # The disk may fail while blocks of a whole checkpoint are written again: they stay.
    whole = store.pinned_bytes()
    with monkeypatch.context() as full:
        full.setattr(store, "put", put_while_there_is_room)
        with pytest.raises(DiskFullError):
            node.holder.state.checkpoint()
    assert store.pinned_bytes() == whole


def by_replay(node: Node, number: int) -> None:
    """Rounds that are gone back to by replay, as a member does that the order reaches by gossip and
    whose way to the target is short."""
    target = node.way[number]
    assert rebuild(node.holder.state, target)


@pytest.mark.parametrize("go_back", [Node.go_back, by_replay])
def test_the_states_after_a_rollback_stay_until_the_new_branch_has_two_checkpoints(
    node: Node, go_back: Callable[[Node, int], None]
) -> None:
    go_back(node, TARGET)
    node.work_to(39)
    assert set(range(TARGET, 40)) <= set(node.kept_rounds)
    node.work_to(40)
    assert node.kept_rounds == [*range(30, 41)]


def test_the_states_of_a_void_branch_go_first(node: Node) -> None:
    void = node.way
    node.go_back(TARGET)
    node.work_to(30)
    blocks = node.holder.state.blocks
    assert not blocks.has_state(void[30])
    assert not any(blocks.has_averages(head) for head in void[TARGET + 1 :])
    assert len(node.pinned_checkpoints()) == retention.CHECKPOINTS_KEPT


def test_a_node_goes_back_again_from_a_branch_that_went_back(node: Node) -> None:
    node.go_back(TARGET)
    node.work_to(33)
    node.go_back(27)
    node.work_to(29)
    node.go_back(28)
    node.work_to(35)
    assert set(range(28, 36)) <= set(node.kept_rounds)


def test_a_node_that_cannot_follow_a_branch_comes_back_to_its_state(node: Node) -> None:
    """The state from which it begins there is whole, and the rounds after it do not follow."""
    state, mine = node.holder.state, node.holder.state.head
    way = node.way
    for number in (20, 30, 20):
        state.load_checkpoint(way[number])
        assert rebuild(state, mine)
        assert state.head == mine
    assert node.kept_rounds == [*range(20, NEWEST + 1)]


def test_a_damaged_record_of_an_old_round_costs_no_newer_state(node: Node, tmp_path: Path) -> None:
    """A node without peers began at the initial weights again."""
    head, way = node.holder.state.head, node.way
    [old] = (tmp_path / "chain").glob(f"*{way[5].hex()}")
    damage(old)
    again = Holder(node.holder.manifest, tmp_path)
    assert again.state.head == head
    made = again.commit(again.averages(1))
    assert again.state.entry.round == NEWEST + 1
    assert again.chain.only_in(made.head, head) == [made.head]
    assert again.chain.only_in(head, made.head) == []


def test_a_gap_behind_which_there_is_no_state_leads_back_to_an_older_one(
    node: Node, tmp_path: Path
) -> None:
    assert not node.holder.state.blocks.has_state(node.way[-1])
    [record] = (tmp_path / "chain").glob(f"*{node.way[-2].hex()}")
    damage(record)
    again = Holder(node.holder.manifest, tmp_path)
    assert again.state.head == node.way[-3]


def test_a_round_of_which_the_disk_has_the_record_alone_is_no_trouble(
    node: Node, tmp_path: Path
) -> None:
    """A life ended while it fetched the round."""
    before = node.way[-2]
    (tmp_path / "head").unlink()
    path_of(node.holder.store.root, digest_of(node.made[node.way[-1]].blocks[-1])).unlink()
    with capture_logs() as lines:
        again = Holder(node.holder.manifest, tmp_path)
    assert again.state.head == before
    [line] = [line for line in lines if "is not complete" in line["event"]]
    assert line["log_level"] == "info"
    assert "asks peers for the rest" in line["event"]


def test_a_checkpoint_that_is_found_again_is_one_checkpoint(node: Node) -> None:
    assert rebuild(node.holder.state, node.holder.state.head)
    kept = node.pinned_checkpoints()
    assert kept == [node.way[20], node.way[30]]


def test_a_new_life_keeps_all_blocks_of_an_older_checkpoint(node: Node, tmp_path: Path) -> None:
    """A newcomer that began with it goes on with it."""
    way = node.way
    again = Holder(node.holder.manifest, tmp_path)
    assert [each.head for each in again.state.checkpoints] == [way[20], way[30]]
    again.store.quota_bytes = 0
    again.store.evict()
    assert all(again.state.blocks.has_state(way[number]) for number in (20, 30))


def test_a_new_life_keeps_the_first_state_while_it_is_one_of_two(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.work_to(CHECKPOINT_ROUNDS + 1)
    kept = node.pinned_checkpoints()
    assert kept == [node.way[0], node.way[CHECKPOINT_ROUNDS]]
    again = Holder(node.holder.manifest, tmp_path)
    assert [each.head for each in again.state.checkpoints] == kept
