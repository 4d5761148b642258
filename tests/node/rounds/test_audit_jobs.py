"""The audit that a node owes: how long it waits for its data, and what comes of it without them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from gossamer.node.rounds import auditor as module
from gossamer.node.rounds.auditor import DATA_ROUNDS, WAIT_ROUNDS, Auditor
from gossamer.node.runs.planning.draft import draft_of_preset
from gossamer.node.training.audit_data import AuditSequences
from gossamer.protocol.accounting.excerpts import Excerpt
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.auditing.audits import SEQUENCES_MIN, Audit
from gossamer.trainer.presets.table import DEFAULT_PRESET

ME, MEMBER = PeerId("me"), PeerId("member")
ROUND = 5
PLACES = [("shard", number) for number in range(SEQUENCES_MIN)]


class Data:
    """The data of audits: what the members of the first ones name comes never."""

    def __init__(self, num_late: int = 0, heldout: list[tuple[str, int]] | None = None) -> None:
        self._num_late = num_late
        self._heldout = PLACES if heldout is None else heldout
        self.fetches: list[int] = []
        """The rounds of the audits whose data were asked for."""

    def declared(self, *_of: object) -> tuple[Excerpt, ...]:
        return tuple(Excerpt(0, number) for number in range(SEQUENCES_MIN))

    heldout = declared

    async def fetch(
        self, declared: object, heldout: object, patience: trio.CancelScope
    ) -> AuditSequences:
        self.fetches.append(len(self.fetches))
        with patience:
            if len(self.fetches) <= self._num_late:
                await trio.sleep_forever()
            return AuditSequences(PLACES * 2, len(PLACES))
        return AuditSequences(self._heldout, 0)

    def done(self) -> None:
        pass


class Node:
    """An auditor, and what it says of audits without a verdict."""

    def __init__(self, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reasons: list[str] = []
        self.trainer = SimpleNamespace(is_up=True, give_back_audited=lambda: None)
        ring = SimpleNamespace(members=[MEMBER], ready=[None])
        monkeypatch.setattr(module, "open_ring", lambda *_: ring)
        committed = SimpleNamespace(ring_rules=None)
        auditing = SimpleNamespace(audit_of_commit=self._audit_of, cannot_tell=self._cannot_tell)
        self.auditor = Auditor(
            cast(Any, auditing),
            cast(Any, committed),
            cast(Any, self.trainer),
            cast(Any, data),
            cast(Any, None),
            ME,
            draft_of_preset(DEFAULT_PRESET).outer,
        )
        self.auditor._state = cast(Any, SimpleNamespace(load=trio.lowlevel.checkpoint))

    def _audit_of(self, outcome: Any) -> Audit:
        return Audit(Digest(bytes(32)), outcome.proposal.header.round, MEMBER, (ME,))

    def _cannot_tell(self, _audit: Audit, reason: str) -> None:
        self.reasons.append(reason)

    async def commit(self, number: int) -> None:
        header = SimpleNamespace(round=number, run_id=bytes(32))
        update = SimpleNamespace(averages=())
        proposal = SimpleNamespace(header=header, update=update)
        outcome = SimpleNamespace(proposal=proposal, commit=None)
        await self.auditor.note(cast(Any, None), cast(Any, outcome))
        await trio.testing.wait_all_tasks_blocked()

    @property
    def found(self) -> AuditSequences | None:
        return None if self.auditor._job is None else self.auditor._job.sequences


def run(
    monkeypatch: pytest.MonkeyPatch, data: Data, story: Callable[[Node], Awaitable[None]]
) -> None:
    async def main() -> None:
        node = Node(data, monkeypatch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.auditor.run)
            await story(node)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock())


def test_data_that_come_slowly_are_waited_for_and_then_held_out_text_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member could otherwise name data that its own identities serve, as slowly as they want."""

    async def story(node: Node) -> None:
        for number in range(ROUND, ROUND + DATA_ROUNDS + 1):
            await node.commit(number)
            assert node.found is None
        await node.commit(ROUND + DATA_ROUNDS + 1)
        assert node.found == (PLACES, 0)
        assert node.reasons == []

    run(monkeypatch, Data(num_late=1), story)


def test_an_audit_without_any_data_says_so_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: Node) -> None:
        for number in range(ROUND, ROUND + DATA_ROUNDS + 2):
            await node.commit(number)
        assert node.reasons == ["no data for it can be had"]
        await node.commit(ROUND + DATA_ROUNDS + 2)
        assert node.found == (PLACES * 2, len(PLACES))

    run(monkeypatch, Data(num_late=1, heldout=[]), story)


def test_an_audit_that_is_given_up_is_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data would come before those of the next one."""

    class Stuck(Data):
        """Held-out text does not come either."""

        async def fetch(self, *wanted: Any) -> AuditSequences:
            if not self.fetches:
                self.fetches.append(0)
                await trio.sleep_forever()
            return await super().fetch(*wanted)

    data = Stuck()

    async def story(node: Node) -> None:
        for number in range(ROUND, ROUND + WAIT_ROUNDS + 1):
            await node.commit(number)
            assert node.found is None
        await node.commit(ROUND + WAIT_ROUNDS + 1)
        assert len(data.fetches) == 2
        assert node.found == (PLACES * 2, len(PLACES))

    run(monkeypatch, data, story)
