"""What a `Ready` may say under its run's manifest."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from gossamer.protocol.accounting.partitions import named_tokens_max, round_tokens
from gossamer.protocol.errors import (
    ImplausibleError,
    MalformedError,
)
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Trust
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.sync_modes import SyncMode
from gossamer.protocol.wire.statements import Roster, Span
from tests.support.builders import (
    HEAD,
    RUN_ID,
    SECRET,
    header,
    manifest,
    peer,
    peers,
    ready,
    sealed,
)

ROOT = digest_of(b"records")


@pytest.mark.parametrize(
    ("trust", "sync", "root"),
    [
        ("open", "diloco", ROOT),
        ("members", "distro", b""),
        ("members", "sparse", ROOT),
        ("members", "diloco", ROOT),
    ],
)
def test_a_root_is_there_as_the_manifest_says(trust: Trust, sync: SyncMode, root: bytes) -> None:
    bounds = WorkBounds(msgspec.structs.replace(manifest(trust=trust), sync=sync))
    commitment = SECRET if trust == "members" else b""
    good = ready(root=root, commitment=commitment)
    bad = ready(root=b"" if root else ROOT, commitment=commitment)
    bounds.check_statement(good, RUN_ID)
    with pytest.raises(MalformedError, match="a root over its"):
        bounds.check_statement(bad, RUN_ID)
    members = [sealed(peer(0), good), sealed(peer(1), bad)]
    bounds.check_statement(Roster(5, HEAD, 0, (members[0],), "fp16", 4096), RUN_ID)
    with pytest.raises(MalformedError, match="a root over its"):
        bounds.check_statement(Roster(5, HEAD, 0, tuple(members), "fp16", 4096), RUN_ID)


@pytest.mark.parametrize(
    ("trust", "sync"), [("members", "diloco"), ("members", "distro"), ("open", "diloco")]
)
def test_a_commitment_to_a_secret_is_there_where_sums_are_audited(
    trust: Trust, sync: SyncMode
) -> None:
    bounds = WorkBounds(msgspec.structs.replace(manifest(trust=trust), sync=sync))
    root, is_audited = b"" if sync == "distro" else ROOT, trust == "members"
    bounds.check_statement(ready(root=root, commitment=SECRET * is_audited), RUN_ID)
    with pytest.raises(MalformedError, match="commitment to a secret"):
        bounds.check_statement(ready(root=root, commitment=SECRET * (not is_audited)), RUN_ID)


def test_no_round_follows_the_last_one() -> None:
    endless = manifest()
    inner = msgspec.structs.replace(endless.inner, total_steps=5, ends=True)  # one warm-up round
    bounds = WorkBounds(msgspec.structs.replace(endless, inner=inner))
    last, late = (
        ready(round=1, root=ROOT, commitment=SECRET),
        ready(round=2, root=ROOT, commitment=SECRET),
    )
    bounds.check_statement(last, RUN_ID)
    bounds.check_header(header(peers(1), round=1))
    with pytest.raises(ImplausibleError, match="ends with 1"):
        bounds.check_statement(late, RUN_ID)
    with pytest.raises(ImplausibleError, match="ends with 1"):
        bounds.check_statement(Roster(2, HEAD, 0, (sealed(peer(0), last),), "fp16", 4096), RUN_ID)
    with pytest.raises(ImplausibleError, match="ends with 1"):
        bounds.check_header(header(peers(1), round=2))
    WorkBounds(endless).check_header(header(peers(1), round=2))


def test_no_data_is_named_where_each_peer_has_its_own() -> None:
    shared = manifest()
    own = msgspec.structs.replace(shared.data, num_shards=0, num_tokens=0, own=True)
    bounds = WorkBounds(msgspec.structs.replace(shared, data=own))
    bounds.check_statement(ready(spans=(), root=ROOT, commitment=SECRET), RUN_ID)
    bounds.check_header(header(peers(2), spans=()))
    WorkBounds(shared).check_statement(ready(root=ROOT, commitment=SECRET), RUN_ID)
    with pytest.raises(ImplausibleError, match="at most 0"):
        bounds.check_statement(ready(root=ROOT, commitment=SECRET), RUN_ID)
    with pytest.raises(ImplausibleError, match="consumes 1 tokens of data"):
        bounds.check_header(header(peers(2), spans=(Span(0, 0, 1),)))


@pytest.mark.parametrize("grows", [False, True])
def test_a_span_names_a_partition_of_the_run(grows: bool) -> None:
    """In a run whose data grow this peer may not know the newest parts."""
    shared = manifest()
    data = msgspec.structs.replace(
        shared.data, num_shards=12, num_tokens=12_000, grows=grows or msgspec.UNSET
    )
    bounds = WorkBounds(msgspec.structs.replace(shared, data=data))
    bounds.check_statement(ready(spans=(Span(11, 0, 1),), root=ROOT, commitment=SECRET), RUN_ID)
    for invented in (12, 10_000):
        bad = ready(spans=(Span(0, 0, 1), Span(invented, 0, 1)), root=ROOT, commitment=SECRET)
        roster = Roster(5, HEAD, 0, (sealed(peer(0), bad),), "fp16", 4096)
        for statement in (bad, roster):
            if grows:
                bounds.check_statement(statement, RUN_ID)
                continue
            with pytest.raises(ImplausibleError, match=f"partition {invented} of 12 shards"):
                bounds.check_statement(statement, RUN_ID)


@pytest.mark.parametrize("stale_rounds", [1, 1000])
@pytest.mark.parametrize("sync", get_args(SyncMode))
def test_an_honest_peer_names_less_data_than_would_be_an_offence(
    sync: SyncMode, stale_rounds: int
) -> None:
    """Also with the data of a round that it trains ahead."""
    example = manifest(trust="members")
    rounds = msgspec.structs.replace(example.rounds, stale_rounds=stale_rounds)
    run = msgspec.structs.replace(example, sync=sync, rounds=rounds)
    bound = WorkBounds(run).span_tokens_max
    assert named_tokens_max(run) + round_tokens(run) < bound
