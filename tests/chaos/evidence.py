"""Proofs from a node's state directory: its chain, and the contributors of each average.

Read with the project's own decoders, while the daemon may be running.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gossamer.node.demo.local_swarm import LocalNode
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import WorkStatus
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.state.chain import Header, decode_update_index
from gossamer.protocol.state.sync_sets import SyncSets
from tests.chaos.runs import Run
from tests.chaos.watch import Watch
from tests.support.daemons import chain_of, path_on_disk
from tests.support.lab import Machine, wait_until

SETTLE_SECONDS = 5.0
"""Time from a commit to its place in the account: some file writes on a busy machine."""


@dataclass(frozen=True)
class CommittedRound:
    """One round of a chain."""

    header: Header
    state_dir: StateDir

    @cached_property
    def head(self) -> Digest:
        return self.header.digest

    @property
    def tokens(self) -> dict[PeerId, int]:
        """Tokens that the round took of each member of its ring; 0 of a member that is in no
        chunk."""
        return {PeerId(member.peer_id): member.tokens for member in self.header.members}

    @property
    def contributors(self) -> set[PeerId]:
        return {peer for peer, tokens in self.tokens.items() if tokens}

    def contributors_of_chunks(self) -> list[set[PeerId]]:
        """Contributors of each chunk of a new round: older averages are not kept on disk."""
        signed = self.state_dir.read_manifest()
        assert signed is not None
        manifest = open_signed_manifest(signed)
        sync_sets = SyncSets(manifest.model, manifest.outer, manifest.sync)
        plan = sync_sets.of_round(self.header.round).plan
        store = BlockStore(self.state_dir.blocks_path, 0, read_only=True)
        update = store.get(Digest(self.header.update_digest))
        members = list(self.tokens)
        averages = decode_update_index(update, plan.num_chunks, len(members)).averages
        return [
            {peer for place, peer in enumerate(members) if average.mask() >> place & 1}
            for average in averages
        ]


def history_of(node: LocalNode) -> dict[int, CommittedRound]:
    """Number to round, along the chain of the head that the node wrote last."""
    chain, path = path_on_disk(node)
    rounds = [CommittedRound(chain.header(head), StateDir(node.root)) for head in path]
    return {one.header.round: one for one in rounds}


def num_digests_compared(histories: Sequence[dict[int, CommittedRound]]) -> int:
    """Pairs of nodes and rounds whose states were compared: all equal, or AssertionError."""
    compared = 0
    numbers = sorted(set().union(*histories))
    for number in numbers:
        found = [history[number] for history in histories if number in history]
        for other in found[1:]:
            assert other.head == found[0].head, f"two heads of round {number}"
            assert other.header.state_digest == found[0].header.state_digest
            compared += 1
    return compared


def known_rounds(node: LocalNode) -> dict[Digest, int]:
    """Number of every committed round that the node has heard of, in its chain or not."""
    chain = chain_of(node)
    heads = {head for tip in chain.tips() for head in chain.only_in(tip, chain.genesis)}
    return {head: chain.entry(head).round for head in heads}


def check_data(history: dict[int, CommittedRound]) -> None:
    """AssertionError unless every shard is consumed in order, without a gap or an overlap."""
    consumed: dict[int, int] = {}
    for _, one in sorted(history.items()):
        for span in one.header.spans:
            assert span.start == consumed.get(span.partition, 0), (
                f"round {one.header.round} goes on at {span.start} of shard {span.partition}, "
                f"which was consumed up to {consumed.get(span.partition, 0)}"
            )
            consumed[span.partition] = span.stop


class Effort:
    """A machine's work from now on, or from when its daemon answers for the first time."""

    def __init__(self, machine: Machine, run: Run) -> None:
        self._machine = machine
        self._run = run
        self._before = work_of(machine)
        self._before_round = self._round()

    def check_kept(self) -> None:
        """AssertionError unless all of it is committed or carried, and the chain says the same.

        With shared steps nothing is carried from round to round but the trainer's momentum: what a
        round that went on without the machine did not take of it is dropped, and no more than that.
        """
        work = work_of(self._machine)
        dropped = work.dropped - self._before.dropped
        if self._run.trains_in_ring:
            assert dropped <= self._tokens_not_taken(), f"{dropped} tokens were dropped"
        else:
            assert dropped == 0
        assert work.lost == self._before.lost
        check_account(self._machine)

    def _tokens_not_taken(self) -> int:
        """Returns the tokens that the rounds since then could have had of this machine, and do not
        have."""
        most = self._run.round_tokens
        history = history_of(self._machine)
        since = [one for number, one in history.items() if number > self._before_round]
        return sum(most - one.tokens.get(self._machine.peer_id, 0) for one in since)

    def _round(self) -> int:
        status = self._machine.status()
        assert status is not None
        return status.round


def work_of(machine: Machine) -> WorkStatus:
    """AssertionError if the daemon does not answer."""
    status = machine.status()
    assert status is not None
    assert status.work is not None
    return status.work


def check_account(machine: Machine) -> None:
    """AssertionError unless the node's account balances and is what its chain holds.

    A daemon that has just committed a round books its part a moment later, so it is asked again.
    """

    def is_right() -> bool:
        status = machine.status()
        assert status is not None
        assert status.work is not None
        work = status.work
        committed = work.committed_on_time + work.committed_late
        assert work.trained == committed + work.dropped + work.lost + work.carried
        rounds = (one for one in history_of(machine).values() if one.header.round <= status.round)
        return committed == sum(one.tokens.get(machine.peer_id, 0) for one in rounds)

    wait_until(is_right, f"account of {machine.name} that is what its chain says", SETTLE_SECONDS)


def check_round(
    watch: Watch,
    survivors: Sequence[Machine],
    number: int,
    seconds_max: float,
    undisturbed: float,
) -> None:
    """The same round committed on all survivors, in time, with all of them in every chunk."""
    ended = watch.outcome(survivors, number)
    worst = max(one.duration_seconds for one in ended.values())
    print(
        f"round {number}: {worst:.1f} s, bound {seconds_max:.1f} s; contributors "
        f"{[len(one.contributors) for one in ended.values()]}; load {os.getloadavg()[0]:.1f}"
    )
    assert {one.outcome for one in ended.values()} == {"committed"}, watch.summary()
    rounds = [history_of(machine)[number] for machine in survivors]
    heads = {(one.head, one.header.state_digest) for one in rounds}
    assert len(heads) == 1, watch.summary()
    ids = {machine.peer_id for machine in survivors}
    if watch.trains_in_ring:  # who is late for a shared step abstains, and has a part in the next
        assert ids <= rounds[0].contributors
    else:
        assert all(ids <= chunk for chunk in rounds[0].contributors_of_chunks())
    assert worst <= seconds_max + undisturbed
