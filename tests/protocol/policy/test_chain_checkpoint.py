"""What a checkpoint of the chain holds, and which signatures prove it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from gossamer.node.network.identity import Identity, verify
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, MalformedError, UnprovenError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.policy.heads import chain_summary
from gossamer.protocol.policy.heads.chain_checkpoint import (
    KEPT_ROUNDS,
    ChainCheckpoint,
    OpenedCheckpoint,
    checkpoint_of,
    decode_checkpoint,
    due_round,
    follow_path,
    is_proven,
    kept_round,
    open_checkpoint,
    shortened,
    signing_bytes,
    signing_depth,
)
from gossamer.protocol.policy.heads.chain_summary import (
    CHECKPOINT_PERIOD,
    NO_SUMMARY,
    decode_summary,
    extended,
    is_mark,
    marks_of,
)
from gossamer.protocol.wire.checkpoint_messages import (
    PATH_MAX,
    CheckpointSignature,
    SignedCheckpoint,
    decode_path,
    encode_path,
)
from tests.support.builders import peer
from tests.support.long_chains import TOKENS, rounds_after

RUN_ID = digest_of(b"run")
IDENTITIES = [Identity.from_seed(bytes([number]) * 32) for number in range(8)]
PEERS = [identity.peer_id for identity in IDENTITIES]
FOUNDER = PEERS[0]


def made(places: Iterable[int], period: int = 1) -> ChainCheckpoint:
    """A checkpoint at which these peers have equal stakes."""
    members = [PEERS[place] for place in places]
    headers = [header for _, header in rounds_after(members, CHECKPOINT_PERIOD, RUN_ID)]
    header = msgspec.structs.replace(headers[-1], round=period * CHECKPOINT_PERIOD)
    summary = msgspec.structs.replace(extended(NO_SUMMARY, headers), round=header.round)
    stakes = dict.fromkeys(members, TOKENS)
    return checkpoint_of(header, stakes, summary, stakes)


def signed(checkpoint: ChainCheckpoint, signers: Iterable[int]) -> SignedCheckpoint:
    message = signing_bytes(RUN_ID, checkpoint.digest)
    return SignedCheckpoint(
        to_msgpack(checkpoint),
        tuple(
            CheckpointSignature(PEERS[place], IDENTITIES[place].sign(message)) for place in signers
        ),
    )


def opened(checkpoint: ChainCheckpoint, signers: Iterable[int]) -> OpenedCheckpoint:
    return open_checkpoint(signed(checkpoint, signers), RUN_ID, verify)


def stakes(*places: int) -> dict:  # type: ignore[type-arg]
    return {PEERS[place]: TOKENS for place in places}


# The summary


def test_a_summary_is_the_same_in_one_go_and_in_parts() -> None:
    headers = [header for _, header in rounds_after(PEERS[:3], 600, RUN_ID)]
    whole = extended(NO_SUMMARY, headers)
    parts = extended(extended(NO_SUMMARY, headers[:256]), headers[256:])
    assert whole == parts == decode_summary(to_msgpack(whole))
    assert whole.round == 600
    assert {row.peer_id: row.tokens for row in whole.rows} == dict.fromkeys(PEERS[:3], 6000)
    assert {(row.rounds, row.first_round, row.last_round) for row in whole.rows} == {(600, 1, 600)}
    marks = {header.digest for header in headers if is_mark(header.round)}
    assert marks_of(whole) == marks
    assert len(marks) == 17


def test_a_full_summary_loses_those_that_gave_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_summary, "CREDITS_MAX", 2)
    headers = [header for _, header in rounds_after(PEERS[:2], 255, RUN_ID)]
    headers += [
        header for _, header in rounds_after(PEERS[:3], 1, headers[-1].digest, round_number=255)
    ]
    summary = extended(NO_SUMMARY, headers)
    assert {row.peer_id for row in summary.rows} == set(PEERS[:2])
    assert summary.others == TOKENS
    assert sum(row.tokens for row in summary.rows) + summary.others == sum(
        header.tokens for header in headers
    )


def test_a_summary_of_headers_with_a_gap_is_a_mistake_here() -> None:
    headers = [header for _, header in rounds_after(PEERS[:1], 3, RUN_ID)]
    with pytest.raises(AssertionError, match="do not follow"):
        extended(NO_SUMMARY, [headers[0], headers[2]])


def test_a_checkpoint_names_as_many_stakes_as_it_may_those_with_most() -> None:
    headers = [header for _, header in rounds_after(PEERS[:1], CHECKPOINT_PERIOD, RUN_ID)]
    many = sorted(peer(3000 + number) for number in range(limits.MEMBERS_MAX + 2))
    given = {each: 10 + (number > 500) for number, each in enumerate(many)}
    checkpoint = checkpoint_of(headers[-1], given, extended(NO_SUMMARY, headers), given)
    assert len(checkpoint.by_peer) == limits.MEMBERS_MAX
    # Of equal stakes those with the higher peer ids go.
    assert set(given) - set(checkpoint.by_peer) == set(many[499:501])
    assert decode_checkpoint(to_msgpack(checkpoint), RUN_ID) == checkpoint


def test_a_checkpoint_names_those_that_worked_most_before_the_cap() -> None:
    """Strangers with ids that come first have as much stake as those that worked, and no tokens."""
    headers = [header for _, header in rounds_after(PEERS[:1], CHECKPOINT_PERIOD, RUN_ID)]
    many = sorted(peer(3000 + number) for number in range(limits.MEMBERS_MAX + 10))
    tokens = {each: 1000 if number >= len(many) - 5 else 10 for number, each in enumerate(many)}
    summary = extended(NO_SUMMARY, headers)
    checkpoint = checkpoint_of(headers[-1], dict.fromkeys(many, 10), summary, tokens)
    assert {*many[-5:]} < set(checkpoint.by_peer)
    assert set(checkpoint.by_peer.values()) == {10}


# Signatures


def test_signatures_of_others_or_for_others_are_refused() -> None:
    checkpoint = made([0, 1])
    good = signed(checkpoint, [0, 1])
    assert open_checkpoint(good, RUN_ID, verify).signers == set(PEERS[:2])
    other = made([0, 2])
    with pytest.raises(ForgedError, match="did not sign"):
        open_checkpoint(SignedCheckpoint(to_msgpack(other), good.signatures), RUN_ID, verify)
    with pytest.raises(MalformedError, match="another run"):
        open_checkpoint(good, digest_of(b"another run"), verify)
    nobody = CheckpointSignature("no peer", good.signatures[0].signature)
    with pytest.raises(ForgedError, match="did not sign"):
        open_checkpoint(SignedCheckpoint(good.checkpoint, (nobody,)), RUN_ID, verify)
    many = good.signatures * (limits.MEMBERS_MAX // 2 + 1)
    with pytest.raises(MalformedError, match="signatures"):
        open_checkpoint(SignedCheckpoint(good.checkpoint, many), RUN_ID, verify)
    swapped = (CheckpointSignature(PEERS[2], good.signatures[0].signature),)
    with pytest.raises(ForgedError, match="did not sign"):
        open_checkpoint(SignedCheckpoint(good.checkpoint, swapped), RUN_ID, verify)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 255},
        {"round": 0},
        {"head": b"short"},
        {"tokens_total": 0},
        {"stakes": ()},
        {"version": 2},
        {"round": limits.ROUNDS_MAX - limits.ROUNDS_MAX % CHECKPOINT_PERIOD + CHECKPOINT_PERIOD},
        {"tokens_total": limits.TOKENS_TOTAL_MAX + 1},
        {"run_id": digest_of(b"another run")},
    ],
)
def test_values_out_of_range_are_refused(change: dict) -> None:  # type: ignore[type-arg]
    wrong = msgspec.structs.replace(made([0, 1]), **change)
    with pytest.raises(MalformedError):
        decode_checkpoint(to_msgpack(wrong), RUN_ID)


@pytest.mark.parametrize("tokens", [0, limits.TOKENS_TOTAL_MAX + 1])
def test_a_stake_out_of_range_is_refused(tokens: int) -> None:
    good = made([0, 1])
    first, second = good.stakes
    wrong = msgspec.structs.replace(first, tokens=tokens)
    with pytest.raises(MalformedError):
        decode_checkpoint(to_msgpack(msgspec.structs.replace(good, stakes=(wrong, second))), RUN_ID)


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1},
        {"round": limits.ROUNDS_MAX + 1},
        {"others": -1},
        {"marks": bytes(31)},
        {"marks": bytes(32 * (chain_summary.MARKS_MAX + 1))},
    ],
)
def test_a_summary_with_a_value_out_of_range_is_refused(change: dict) -> None:  # type: ignore[type-arg]
    headers = [header for _, header in rounds_after(PEERS[:3], 3, RUN_ID)]
    good = extended(NO_SUMMARY, headers)
    assert decode_summary(to_msgpack(good)) == good
    with pytest.raises(MalformedError):
        decode_summary(to_msgpack(msgspec.structs.replace(good, **change)))


@pytest.mark.parametrize(
    "change",
    [
        {"peer_id": "0 no peer"},
        {"first_round": 0},
        {"first_round": 3, "last_round": 2},
        {"last_round": 4},
        {"rounds": 0},
        {"rounds": 4},
        {"tokens": 0},
        {"tokens": limits.TOKENS_TOTAL_MAX + 1},
    ],
)
def test_a_row_of_a_summary_with_a_value_out_of_range_is_refused(change: dict) -> None:  # type: ignore[type-arg]
    headers = [header for _, header in rounds_after(PEERS[:3], 3, RUN_ID)]
    good = extended(NO_SUMMARY, headers)
    first, *rest = good.rows
    rows = (msgspec.structs.replace(first, **change), *rest)
    with pytest.raises(MalformedError):
        decode_summary(to_msgpack(msgspec.structs.replace(good, rows=rows)))


def test_too_few_signers_and_strangers_prove_nothing() -> None:
    checkpoint = made([0, 1, 2, 3])
    known = stakes(0, 1, 2, 3)
    assert is_proven(known, opened(checkpoint, [0, 1, 2]))
    assert not is_proven(known, opened(checkpoint, [0, 1])), "half is no majority"
    assert not is_proven(known, opened(checkpoint, [4, 5, 6, 7]))
    invented = made([4, 5, 6, 7])
    assert not is_proven(known, opened(invented, [4, 5, 6, 7])), "a private history"
    assert not is_proven(known, opened(invented, [0, 1, 2, 3])), "nobody there signed it"


def test_members_of_one_branch_of_the_roll_have_no_majority() -> None:
    """Five of eight members are one person's. That branch counts for a quarter."""

    def branch_of(peer):  # type: ignore[no-untyped-def]
        return PEERS[3] if PEERS.index(peer) >= 3 else peer

    checkpoint, known = made(range(8)), stakes(*range(8))
    assert is_proven(known, opened(checkpoint, [3, 4, 5, 6, 7]))
    assert not is_proven(known, opened(checkpoint, [3, 4, 5, 6, 7]), branch_of)
    assert is_proven(known, opened(checkpoint, [0, 1, 2]), branch_of)


# Paths


def test_a_newcomer_follows_a_path_from_the_founder() -> None:
    first = opened(made([0, 1, 2]), [0, 1])
    second = opened(made([1, 2, 3], 2), [1, 2])
    newcomer = {FOUNDER: 1}
    assert follow_path([first, second], newcomer, 0) == second.checkpoint
    for path in ([second], [opened(made([0, 1, 2]), [1, 2]), second], []):
        with pytest.raises(UnprovenError):
            follow_path(path, newcomer, 0)


def test_a_peer_that_was_away_follows_from_its_own_head_and_only_to_newer_rounds() -> None:
    first = opened(made([0, 1, 2]), [0, 1])
    second = opened(made([1, 2, 3], 2), [1, 2])
    assert follow_path([first, second], stakes(1, 2), 300) == second.checkpoint
    assert follow_path([second], stakes(1, 5), 300) == second.checkpoint, "half is enough here"
    with pytest.raises(UnprovenError):
        follow_path([second], stakes(1, 5, 6), 300)
    with pytest.raises(UnprovenError):
        follow_path([first, second], stakes(1, 2), 2 * CHECKPOINT_PERIOD)


def test_a_path_is_as_short_as_its_signers_allow() -> None:
    first = opened(made([0, 1, 2]), [0, 1, 2])
    second = opened(made([1, 2, 3], 2), [1, 2])
    assert shortened([first], second, FOUNDER) == [0]
    with_founder = opened(made([0, 1, 2, 3], 3), [0, 1, 2])
    assert shortened([first, second], with_founder, FOUNDER) == []
    of_strangers = opened(made([4, 5, 6], 3), [4, 5, 6])
    assert shortened([first, second], of_strangers, FOUNDER) is None


def test_a_path_whose_signers_are_one_branch_by_now_proves_nothing_new() -> None:
    """The members of it that the roll has lost are one branch, that of all strangers."""
    branches = {PEERS[place]: PEERS[place] for place in range(8)}
    first = opened(made(range(7)), [0, 1, 2, 3])
    second = opened(made(range(4, 8), 2), [4, 5, 6, 7])
    branches.update(dict.fromkeys(PEERS[1:4], PEERS[1]))
    assert is_proven(first.checkpoint.by_peer, second, branches.__getitem__)
    assert shortened([first], second, FOUNDER, branches.__getitem__) is None
    with_founder = opened(made([0, 4, 5, 6], 2), [0, 4, 5, 6])
    assert shortened([first], with_founder, FOUNDER, branches.__getitem__) == []


def test_what_a_path_does_not_prove_any_more_is_left_out_of_a_new_one() -> None:
    """A newcomer proves each checkpoint by the one before it, and went no further than this one."""
    branches = {PEERS[place]: PEERS[place] for place in range(8)}
    first = opened(made(range(7)), [0, 1, 2, 3])
    second = opened(made([0, 4, 5], 2), [0, 4, 5])
    branches.update(dict.fromkeys(PEERS[1:4], PEERS[1]))
    branch_of = branches.__getitem__
    new = opened(made([4, 5], 3), [4, 5])
    assert not is_proven({FOUNDER: 1}, first, branch_of)
    assert shortened([first, second], new, FOUNDER, branch_of) == [1]
    assert is_proven({FOUNDER: 1}, second, branch_of)
    assert is_proven(second.checkpoint.by_peer, new, branch_of)


def test_a_path_has_an_end() -> None:
    path = [opened(made([0, 1, 2]), [0, 1, 2])] + [opened(made([3], 2), [3])] * (PATH_MAX - 1)
    # Only the last one's member signs, so nothing before it can be left out.
    path[-1] = opened(made([4], 2), [4])
    assert shortened(path, opened(made([4], 3), [4]), FOUNDER) is None


def test_a_long_path_comes_in_pages() -> None:
    one = signed(made(range(8)), range(8))
    page = decode_path(encode_path([one] * PATH_MAX))
    assert page == [one] * PATH_MAX
    large = SignedCheckpoint(bytes(200_000), ())
    assert decode_path(encode_path([large] * 3)) == [large]


# Rounds


@pytest.mark.parametrize("checkpoint_rounds", [1, 5, 300, 1000])
def test_what_is_signed_lies_behind_a_whole_state_and_every_rollback(
    checkpoint_rounds: int,
) -> None:
    depth = signing_depth(checkpoint_rounds)
    for head_round in range(0, 20_000, 77):
        due = due_round(head_round, checkpoint_rounds)
        assert due % CHECKPOINT_PERIOD == 0
        assert due or head_round < depth + CHECKPOINT_PERIOD
        if due:
            assert depth <= head_round - due < depth + CHECKPOINT_PERIOD
            next_state = -(-due // checkpoint_rounds) * checkpoint_rounds
            assert next_state <= head_round
        kept = kept_round(head_round, checkpoint_rounds, 5)
        assert kept <= due
        assert head_round - kept < max(KEPT_ROUNDS, depth) + CHECKPOINT_PERIOD
        assert not kept or head_round - kept >= KEPT_ROUNDS


def test_digests_are_those_of_the_bytes() -> None:
    checkpoint = made([0, 1])
    assert checkpoint.digest == Digest(digest_of(to_msgpack(checkpoint)))
    assert decode_checkpoint(to_msgpack(checkpoint), RUN_ID) == checkpoint
