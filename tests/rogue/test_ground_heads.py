"""A member that finishes the last average of a round chooses its value by the head that follows.

It knows all other averages, so it can compute the head of each value before it sends one. Once the
head alone said who looks at the round: such a member made itself the auditor whenever it lied.
"""

from __future__ import annotations

from itertools import count as numbers
from pathlib import Path

import numpy as np
import pytest
import trio

from gossamer.node.modes.pending_work import Contributions
from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.policy.auditing.sum_audits import AuditSecrets, commitment_to, is_auditor
from gossamer.protocol.rounds.commit import members_of, propose
from gossamer.protocol.rounds.inventory import Average
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import Header, credits_of
from gossamer.protocol.state.chunk_plan import ChunkPlan
from tests.rogue.test_catalogue import count
from tests.rogue.test_sum_audits import (
    AUDITS_WAIT,
    FIRST_LIE,
    FORGED_VALUE,
    HONEST,
    LIAR,
    assert_only_the_liar_is_blamed,
    lying,
)
from tests.support.measured import measured
from tests.support.node_world import World, simulate, start

pytestmark = pytest.mark.usefixtures("quiet")

WHOLE_MODEL = 8192
"""Elements of a chunk that holds the whole model: its average is the last one of its round."""


def header_after(committed: CommittedState, ring: Ring, encoded: Buffer, mask: int) -> Header:
    """The header of the round whose only average this is."""
    payload = bytes(encoded)
    digest = committed.compute(committed.head, [payload], [mask], members_of(ring, [mask]))
    assert digest is not None
    average = Average(mask, digest_of(payload), 0, payload)
    run_id = committed._manifest.run_id
    return propose(run_id, committed.parent, ring, [average], [mask], digest).header


def test_a_finisher_that_tries_values_until_it_is_the_auditor_is_banned(tmp_path: Path) -> None:
    world = World(tmp_path, seed=23, chunk_elements=WHOLE_MODEL)
    me = world.identity(LIAR).peer_id
    run_id = decode_manifest(world.signed.manifest).run_id
    secrets = AuditSecrets(run_id, world.identity(LIAR).sign)
    tries: list[int] = []

    def is_mine(header: Header, ring: Ring) -> bool:
        """Of the auditors it can only choose itself: it knows no other secret."""
        own = ring.ready_of(me)
        secret = secrets.of(own.incarnation, own.sequence)
        assert commitment_to(secret) == own.commitment
        return is_auditor(header.digest, secret, len(credits_of(header)))

    def lie(own: Contributions, made: Contribution, plan: ChunkPlan, ring: Ring) -> None:
        payloads = own._payloads
        assert isinstance(payloads, SumPayloads)
        assert plan.num_chunks == 1
        committed = world.participant(LIAR).context.committed

        def finish_average(chunk: int, payload: Buffer, mask: int) -> Buffer:
            if mask.bit_count() < 2:
                return payload  # nobody looks at the round of a member alone, so no value is right
            for number in numbers(1):
                forged = np.full(plan.elements_of(chunk), FORGED_VALUE + number, np.float32)
                encoded: Buffer = payloads.coder.encode(forged)
                if is_mine(header_after(committed, ring, encoded, mask), ring):
                    tries.append(number)
                    return encoded
            raise AssertionError

        made.finish_average = finish_average  # type: ignore[method-assign]

    def is_found() -> bool:
        return any(count(world, name, "bans", "replaced") for name in HONEST)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, HONEST + LIAR)
        await world.reach(FIRST_LIE, *HONEST)
        last = FIRST_LIE + AUDITS_WAIT
        await world.until(
            lambda: is_found() or world.round("a") >= last, seconds=300.0, look_seconds=0.05
        )
        assert tries, "it has finished no average"
        assert is_found(), f"not found in {AUDITS_WAIT} rounds, of which it spoilt {len(tries)}"
        measured(f"found after {len(tries)} lies, values tried: {sum(tries)}")
        assert_only_the_liar_is_blamed(world)

    with lying(me, lie):
        simulate(world, story)
