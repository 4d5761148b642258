"""For which proofs a node bans a peer that has contradicted itself."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
import trio

from gossamer.node.peers.offences import Offences
from gossamer.node.peers.statements import equivocations
from gossamer.node.peers.statements.equivocations import NUMBERS_MAX, Equivocations
from gossamer.protocol.limits import INCARNATION_MAX
from gossamer.protocol.policy.conduct.bans import BAN_SECONDS_MAX
from gossamer.protocol.wire.statements import Equivocation
from tests.support.builders import RUN_ID, announce, peer, ready, sealed, verify
from tests.support.memory_transport import run_simulated

ME, LIAR = peer(1), peer(2)


def proof_of(**number: int) -> Equivocation:
    """Two contributions of the liar with one number."""
    both = [sealed(LIAR, ready(tokens=tokens, **number)) for tokens in (4096, 8192)]
    first, second = sorted(both, key=lambda each: each.payload)
    return Equivocation(first, second)


class Judge:
    """A node that hears proofs, and its bans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(equivocations, "verify", verify)
        self.offences = Offences(MagicMock(), MagicMock())
        self._made = Equivocations(
            ME, RUN_ID, self.offences, lambda _peer: True, MagicMock(), MagicMock()
        )

    def hears(self, proof: Equivocation) -> bool:
        """Hears a proof that a peer carries. Returns whether the liar is banned then."""
        if self._made.admits(proof):
            self._made.heard(sealed(peer(3), announce()), proof)
        return self.offences.is_banned(LIAR)


def test_one_proof_bans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        judge = Judge(monkeypatch)
        assert judge.hears(proof_of())
        assert judge.hears(proof_of(sequence=9)), "while the ban lasts it is taken as well"
        await trio.sleep(BAN_SECONDS_MAX + 1)
        for proof in (proof_of(), proof_of(sequence=9)):
            assert not judge.hears(proof)

    run_simulated(story)


def test_a_proof_with_a_huge_number_saves_nobody_from_those_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A liar shows one about itself, which costs it an hour once."""

    async def story() -> None:
        judge = Judge(monkeypatch)
        assert judge.hears(proof_of(incarnation=INCARNATION_MAX))
        for sequence in range(NUMBERS_MAX + 1):
            await trio.sleep(BAN_SECONDS_MAX + 1)
            assert not judge.offences.is_banned(LIAR)
            assert judge.hears(proof_of(sequence=sequence))

    run_simulated(story)


def test_so_many_numbers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        judge = Judge(monkeypatch)
        for sequence in range(2 * NUMBERS_MAX):
            assert judge.hears(proof_of(sequence=sequence))
        (numbers,) = judge._made._judged.values()
        assert len(numbers) == NUMBERS_MAX

    run_simulated(story)
