"""A newcomer begins at a signed checkpoint, and at none without the founder's stake behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.peers.chain.chain_records import (
    BehindError,
    OpenedCommit,
    UnknownHeadError,
)
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.chain_checkpoint import (
    KEPT_ROUNDS,
    claimed_by,
    decode_checkpoint,
    signing_bytes,
)
from gossamer.protocol.policy.heads.chain_summary import (
    CHECKPOINT_PERIOD,
    NO_SUMMARY,
)
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.wire.chain_messages import ChainRequest
from gossamer.protocol.wire.checkpoint_messages import CheckpointSignature, SignedCheckpoint
from tests.support.long_chains import rounds_after
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.pruned_runs import Member, Peer

NUM_ROUNDS = KEPT_ROUNDS + 2 * CHECKPOINT_PERIOD
MEMBER, NEWCOMER = Identity.from_seed(b"m" * 32), Identity.from_seed(b"n" * 32)

Story = Callable[[Member, Peer], Awaitable[None]]


def play(folder: Path, story: Story, signers: int | None = None) -> None:
    """A member of a run of four, whose old headers are gone, and a newcomer that knows nothing."""

    async def main() -> None:
        network = MemoryNetwork(seed=1)
        async with network.transport(MEMBER) as served, network.transport(NEWCOMER) as asking:
            member = Member(folder / "member", served, 4, signers=signers)
            member.advance(NUM_ROUNDS)
            newcomer = Peer(folder / "newcomer", asking)
            await asking.connect(network.addresses_of(MEMBER.peer_id)[0])
            await story(member, newcomer)

    run_simulated(main)


async def learn(member: Member, newcomer: Peer) -> None:
    await newcomer.records.learn(member.committed.head, MEMBER.peer_id)


def assert_nothing_is_taken(newcomer: Peer) -> None:
    assert newcomer.chain.start is None
    assert newcomer.chain.heads_by_weight() == [newcomer.chain.genesis]
    assert newcomer.checkpoints.last is None


def test_a_newcomer_gets_the_kept_headers_and_can_serve_the_next_one(tmp_path: Path) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        await learn(member, newcomer)
        head, checkpoint = member.committed.head, member.checkpoints.last
        assert checkpoint is not None
        assert newcomer.chain.start is not None
        assert newcomer.chain.start.head == checkpoint.head
        path = newcomer.chain.path_between(newcomer.chain.root, head)
        assert path is not None
        assert len(path) == NUM_ROUNDS - checkpoint.round + STANDING_ROUNDS
        at = Digest(checkpoint.head)
        assert newcomer.choice.stakes_at(at) == member.choice.stakes_at(at)
        assert newcomer.checkpoints.last == checkpoint
        assert newcomer.offences == member.offences == []
        again = Peer(tmp_path / "newcomer", newcomer.checkpoints._transport)
        assert again.chain.path_between(again.chain.root, head) == path
        assert again.checkpoints.last == checkpoint

    play(tmp_path, story)


def forge(member: Member, **changes: object) -> None:
    """The member serves another checkpoint under the signatures of the last one."""
    one = member.checkpoints._path[0].signed
    checkpoint = decode_checkpoint(one.checkpoint, member.manifest.run_id)
    other = msgspec.structs.replace(checkpoint, **changes)
    serve(member, SignedCheckpoint(to_msgpack(other), one.signatures))


def serve(member: Member, signed: SignedCheckpoint) -> None:
    """The member serves this checkpoint in place of its own."""
    assert len(member.checkpoints._path) == 1
    member.checkpoints._path = (claimed_by(signed, member.manifest.run_id),)


def test_a_checkpoint_with_another_content_than_was_signed_is_an_offence(tmp_path: Path) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        forge(member, summary_digest=bytes(32))
        with pytest.raises(ForgedError):
            await learn(member, newcomer)
        assert_nothing_is_taken(newcomer)

    play(tmp_path, story)


@pytest.mark.parametrize("who", ["too few", "strangers"])
def test_a_checkpoint_that_too_few_or_strangers_signed_is_not_followed(
    tmp_path: Path, who: str
) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        one = member.checkpoints._path[0].signed
        if who == "too few":  # two of four, the founder among them
            names = set(member.members[:2])
            signatures = tuple(each for each in one.signatures if each.author in names)
            assert len(signatures) == 2
            serve(member, SignedCheckpoint(one.checkpoint, signatures))
        else:  # a private history: its members are invented, and sign all of it
            strangers = [Identity.from_seed(bytes([200 + n]) * 32) for n in range(4)]
            checkpoint = decode_checkpoint(one.checkpoint, member.manifest.run_id)
            names_of = sorted(each.peer_id for each in strangers)
            stakes = tuple(
                msgspec.structs.replace(stake, peer_id=peer)
                for stake, peer in zip(checkpoint.stakes, names_of, strict=True)
            )
            private = msgspec.structs.replace(checkpoint, stakes=stakes)
            message = signing_bytes(member.manifest.run_id, private.digest)
            signatures = tuple(CheckpointSignature(s.peer_id, s.sign(message)) for s in strangers)
            serve(member, SignedCheckpoint(to_msgpack(private), signatures))
        with pytest.raises(BehindError, match="too few members"):
            await learn(member, newcomer)
        assert_nothing_is_taken(newcomer)

    play(tmp_path, story)


def test_another_summary_than_was_signed_is_an_offence(tmp_path: Path) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        member.checkpoints._summary = to_msgpack(NO_SUMMARY)
        with pytest.raises(MalformedError):
            await learn(member, newcomer)
        assert_nothing_is_taken(newcomer)

    play(tmp_path, story)


def test_rounds_that_lead_elsewhere_are_an_offence(tmp_path: Path) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        records_after = member.chain.records_after

        def other_rounds(head: Digest, after_round: int) -> list[bytes]:
            return records_after(member.committed.head, after_round + 1)

        member.chain.records_after = other_rounds  # type: ignore[method-assign]
        with pytest.raises(RemoteProtocolError):
            await learn(member, newcomer)
        assert_nothing_is_taken(newcomer)

    play(tmp_path, story)


def test_a_page_that_comes_again_is_an_offence(tmp_path: Path) -> None:
    """A peer that answers each question with the same record would be asked for ever."""

    async def story(member: Member, newcomer: Peer) -> None:
        await learn(member, newcomer)
        records = member.chain.records_after(member.committed.head, NUM_ROUNDS - 1)

        def same_page(head: Digest, after_round: int) -> list[bytes]:
            return records

        member.chain.records_after = same_page  # type: ignore[method-assign]
        with pytest.raises(MalformedError, match="begins at another round"):
            await newcomer.records.learn(Digest(b"?" * 32), MEMBER.peer_id)

    play(tmp_path, story)


def test_a_peer_that_answers_slowly_does_not_hold_up_another_ones_checkpoint(
    tmp_path: Path,
) -> None:
    """Each of its answers comes just in time, and there are more than a hundred."""

    async def story(member: Member, newcomer: Peer) -> None:
        slow = Identity.from_seed(b"s" * 32)
        ask_path = newcomer.checkpoints.ask_path

        async def ask_slowly(peer: PeerId) -> Any:
            if peer == slow.peer_id:
                await trio.sleep(1800.0)
            return await ask_path(peer)

        newcomer.checkpoints.ask_path = ask_slowly  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(newcomer.adoption.adopt, slow.peer_id)
            await trio.sleep(1.0)
            with trio.fail_after(60.0):
                await learn(member, newcomer)
            nursery.cancel_scope.cancel()
        assert newcomer.chain.start is not None

    play(tmp_path, story)


def test_without_a_majority_nothing_is_signed_and_no_header_goes(tmp_path: Path) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        assert member.checkpoints.last is None
        assert member.chain.start is None
        await learn(member, newcomer)
        head = member.committed.head
        assert len(newcomer.chain.path_between(newcomer.chain.genesis, head) or ()) == NUM_ROUNDS

    play(tmp_path, story, signers=2)


def test_a_head_that_does_not_exist_is_an_offence_in_such_a_run_too(tmp_path: Path) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        await learn(member, newcomer)
        newcomer.committed.head = member.committed.head
        with pytest.raises(UnknownHeadError):
            await newcomer.records.learn(Digest(b"?" * 32), MEMBER.peer_id)

    play(tmp_path, story)


def test_a_chain_that_breaks_a_rollback_is_not_begun(tmp_path: Path) -> None:
    """The founder took back a round before the checkpoint, so members would have signed none."""

    async def story(member: Member, newcomer: Peer) -> None:
        newcomer.adoption.rolled_back = lambda: [CHECKPOINT_PERIOD]
        with pytest.raises(BehindError, match="took back"):
            await learn(member, newcomer)
        assert_nothing_is_taken(newcomer)

    play(tmp_path, story)


def test_a_crash_before_the_start_is_written_leaves_a_newcomer(tmp_path: Path) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        def killed(_start: object) -> None:
            raise KeyboardInterrupt

        newcomer.chain.write_start = killed  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            await learn(member, newcomer)
        again = Peer(tmp_path / "newcomer", newcomer.checkpoints._transport)
        assert_nothing_is_taken(again)
        await learn(member, again)
        assert again.chain.is_whole(member.committed.head)

    play(tmp_path, story)


def own_chain(newcomer: Peer, identities: list[Identity], num_rounds: int) -> None:
    """Rounds of others that the newcomer has taken over, after its present head."""
    entry = newcomer.committed.entry
    rounds = rounds_after(
        [each.peer_id for each in identities], num_rounds, entry.head, round_number=entry.round,
        tokens_total=entry.tokens_total, run_id=newcomer.manifest.run_id,
    )  # fmt: skip
    for commit, header in rounds:
        newcomer.committed.head = newcomer.chain.add(commit, header)


@pytest.mark.parametrize("num_shared", [0, 100])
def test_a_node_that_was_led_astray_comes_back(tmp_path: Path, num_shared: int) -> None:
    """It followed a private history of a member that is longer than the run, from the beginning or
    after a hundred true rounds, whose headers the others do not have any more."""

    async def story(member: Member, newcomer: Peer) -> None:
        own_chain(newcomer, member.identities, num_shared)
        own_chain(newcomer, member.identities[3:], NUM_ROUNDS)
        assert newcomer.committed.entry.round > member.committed.entry.round - CHECKPOINT_PERIOD
        await learn(member, newcomer)
        assert newcomer.chain.is_whole(member.committed.head)
        assert not newcomer.chain.is_linked(newcomer.committed.head)

    play(tmp_path, story)


def test_the_founder_alone_does_not_undo_the_others_history(tmp_path: Path) -> None:
    """It went on alone for so long that it has no old headers, and signed its own checkpoints."""

    async def story(member: Member, newcomer: Peer) -> None:
        run_alone = Member(tmp_path / "alone", member.checkpoints._transport, 4)
        run_alone.advance(100)
        run_alone.members = run_alone.members[:1]
        run_alone._signers = run_alone.identities[:1]
        run_alone.advance(NUM_ROUNDS)
        assert run_alone.checkpoints.last is not None
        assert run_alone.chain.start is not None
        own_chain(newcomer, member.identities, 100)
        own_chain(newcomer, member.identities[1:], 400)
        head = newcomer.committed.head
        with pytest.raises(BehindError, match="too few members"):
            await newcomer.records.learn(run_alone.committed.head, MEMBER.peer_id)
        assert newcomer.committed.head == head
        assert_own_chain_stays(newcomer)

    play(tmp_path, story)


def assert_own_chain_stays(newcomer: Peer) -> None:
    assert newcomer.chain.start is None
    assert newcomer.chain.is_whole(newcomer.committed.head)


def test_a_node_with_a_damaged_record_gets_that_one_from_a_peer(tmp_path: Path) -> None:
    async def story(member: Member, newcomer: Peer) -> None:
        await learn(member, newcomer)
        head, start = member.committed.head, newcomer.chain.start
        assert start is not None
        (damaged,) = newcomer.directory.glob(f"{start.round + 40:010d}-*")
        damaged.write_bytes(b"")
        again = Peer(tmp_path / "newcomer", newcomer.checkpoints._transport)
        again.committed.head = head  # the state on its disk is of this round
        assert head in again.chain
        assert not again.chain.is_linked(head)
        await learn(member, again)
        assert again.chain.is_linked(head)
        assert again.offences == []

    play(tmp_path, story)


@pytest.mark.parametrize("num_after", [0, NUM_ROUNDS])
def test_the_head_of_the_link_stays_passed_where_the_summary_does_not_name_it(
    tmp_path: Path, num_after: int
) -> None:
    """A node that stood behind the head of its link was away, and the summary of the others lacks
    that head: a record of it was lost. No head would be allowed here any more. A head that lies on
    a private history, which the node leaves, was not passed."""

    async def story(member: Member, newcomer: Peer) -> None:
        own_chain(newcomer, member.identities, 100)
        if is_astray := num_after > 0:
            own_chain(newcomer, member.identities[3:], num_after)
        pin = newcomer.chain.pinned_head = newcomer.committed.head
        own_chain(newcomer, member.identities[3:] if is_astray else member.identities, 20)
        await learn(member, newcomer)
        assert newcomer.chain.start is not None
        assert (pin in newcomer.chain.passed) is not is_astray

    play(tmp_path, story)


def test_a_peer_that_has_all_headers_is_not_blamed_for_a_checkpoint_of_another_one(
    tmp_path: Path,
) -> None:
    """Its page begins at the run, and comes when this node has begun at the checkpoint."""

    async def main() -> None:
        network, whole = MemoryNetwork(seed=1), Identity.from_seed(b"w" * 32)
        async with (
            network.transport(MEMBER) as served,
            network.transport(whole) as serving_all,
            network.transport(NEWCOMER) as asking,
        ):
            member = Member(tmp_path / "member", served, 4)
            holder = Peer(tmp_path / "whole", serving_all)
            genesis = holder.committed.entry
            rounds = rounds_after(
                member.members, NUM_ROUNDS, genesis.head, round_number=0, tokens_total=0,
                run_id=member.manifest.run_id,
            )  # fmt: skip
            for commit, header in rounds:
                holder.committed.head = holder.chain.add(commit, header)
            member.advance(NUM_ROUNDS)
            assert holder.committed.head == member.committed.head
            newcomer = Peer(tmp_path / "newcomer", asking)
            for peer in (MEMBER.peer_id, whole.peer_id):
                await asking.connect(network.addresses_of(peer)[0])
            request, pages = newcomer.records.request, 0

            async def slow_request(peer: PeerId, wanted: ChainRequest) -> list[OpenedCommit]:
                nonlocal pages
                page = await request(peer, wanted)
                pages += peer == whole.peer_id
                if peer == whole.peer_id and newcomer.chain.start is None:
                    assert page[0][1].round == 1
                    assert await newcomer.adoption.adopt(MEMBER.peer_id)
                return page

            newcomer.records.request = slow_request  # type: ignore[method-assign, assignment]
            await newcomer.records.learn(holder.committed.head, whole.peer_id)
            assert newcomer.chain.is_whole(holder.committed.head)
            assert newcomer.chain.start is not None
            assert pages > 1

    run_simulated(main)
