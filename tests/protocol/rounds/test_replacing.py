"""How often, and how late, a peer goes from one ring to another that is to be preferred."""

from __future__ import annotations

import pytest

from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Action, BeginRing, Publish, Signer, Unsettled
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.ring_choice import OF_ONE_MAX, REPLACE_SECONDS
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.protocol.rounds.roster import RoundRules, make_roster
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.wire.envelopes import ring_id_of
from gossamer.protocol.wire.statements import Accusation, Roster, Signed
from tests.support.builders import HEAD, RING_RULES, RUN_ID, peers, ready, sealed, sign_as, verify

ME, ROGUE, OTHER = MEMBERS = rank_order(HEAD, 0, peers(3))


def ready_machine() -> Round:
    """A machine that is ready at second 0, and has yet to hear the others."""
    machine = Round(
        signer=Signer(ME, RUN_ID, sign_as(ME)),
        parent=Parent(HEAD, 4, 1000, Ledger()),
        rules=RoundRules(SumPayloads(codec("fp32")), 1024, 1, 20.0, 0.3, 5.0),
        verify=verify,
        now=-100.0,
    )
    machine.expect(0.0, [ROGUE, OTHER])
    machine.ready(0.0, ready())
    return machine


def rosters(organiser: PeerId, count: int, attempt: int = 0) -> list[tuple[Signed, Roster]]:
    """Rosters of one organiser, each with other work of its own and to be preferred to the one
    before."""
    made = []
    for number in range(count):
        readies = {peer: sealed(peer, ready()) for peer in MEMBERS}
        readies[organiser] = sealed(organiser, ready(sequence=100 + number))
        roster = make_roster(HEAD, 5, attempt, readies, RING_RULES)
        made.append((sealed(organiser, roster), roster))
    return sorted(made, key=lambda each: ring_id_of(each[0]), reverse=True)


def begun(actions: list[Action]) -> int:
    return sum(isinstance(action, BeginRing) for action in actions)


def noted(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, Unsettled)]


def left(actions: list[Action]) -> list[bytes]:
    """The rings of which this peer says that it is out."""
    found = [action.statement for action in actions if isinstance(action, Publish)]
    return [each.ring_id for each in found if isinstance(each, Accusation) and each.accused == ME]


def test_a_peer_follows_few_rings_of_one_organiser() -> None:
    machine, actions = ready_machine(), []
    offered = rosters(ROGUE, 12)
    for number, each in enumerate(offered):
        actions += machine.statement(1.0 + number / 10, *each)
    assert begun(actions) == OF_ONE_MAX
    assert noted(actions) == [Unsettled(ROGUE)], "once in a round"
    assert machine.ring is not None
    assert machine.ring.ring_id == ring_id_of(offered[OF_ONE_MAX - 1][0])
    said = [ring_id_of(signed) for signed, _ in offered[: 2 * OF_ONE_MAX]]
    assert left(actions) == [*said[: OF_ONE_MAX - 1], *said[OF_ONE_MAX:]], "and then nothing"


def test_a_ring_that_was_followed_for_long_is_not_replaced() -> None:
    machine, actions = ready_machine(), []
    for number, each in enumerate(rosters(ROGUE, 3)):
        actions += machine.statement(1.0 + 0.6 * number * REPLACE_SECONDS, *each)
    assert begun(actions) == 2
    assert noted(actions) == [Unsettled(ROGUE)]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_ring_of_another_organiser_may_come_a_little_later(is_late: bool) -> None:
    machine = ready_machine()
    (late,) = rosters(ROGUE, 1, attempt=1)
    assert begun(machine.statement(1.0, *late)) == 1
    (early,) = rosters(OTHER, 1)
    seconds = 1.0 + REPLACE_SECONDS * (1.01 if is_late else 0.99)
    actions = machine.statement(seconds, *early)
    assert begun(actions) == (0 if is_late else 1)
    assert noted(actions) == [], "its lateness may be the line's"
    assert len(left(actions)) == 1


@pytest.mark.parametrize("seconds", [0.7, 1.1])
def test_a_second_ring_that_comes_too_late_is_no_fault(seconds: float) -> None:
    """As of an organiser that was frozen, and heard of the other ring when it had organised its
    own. It organises again when that ring has come to nothing. A line may delay its ring, too."""
    machine, actions = ready_machine(), []
    (late,) = rosters(OTHER, 1, attempt=2)
    actions += machine.statement(1.0, *late)
    first, second = rosters(ROGUE, 2)
    followed_seconds = 1.0 + 0.9 * REPLACE_SECONDS
    actions += machine.statement(followed_seconds, *first)
    assert begun(actions) == 2
    actions += machine.statement(followed_seconds + seconds * REPLACE_SECONDS, *second)
    assert (begun(actions), noted(actions)) == (2, [])


def test_a_peer_that_is_out_of_its_ring_goes_to_another_one_at_any_time() -> None:
    machine = ready_machine()
    first, second = rosters(ROGUE, 2)
    machine.statement(1.0, *second)
    said = Accusation(ring_id_of(second[0]), ME, "silent")
    machine.statement(2.0, sealed(OTHER, said), said)
    assert begun(machine.statement(2 * REPLACE_SECONDS, *first)) == 1


def test_after_a_void_ring_a_peer_replaces_rings_anew() -> None:
    """Else a swarm that gathers again could not agree on one of two rosters."""
    machine = ready_machine()
    (void,) = rosters(OTHER, 1)
    assert begun(machine.statement(1.0, *void)) == 1
    said = Accusation(ring_id_of(void[0]), ME, "silent")
    machine.statement(2.0, sealed(OTHER, said), said)
    machine.expect(2.0, [])
    machine.expect(3.0, [ROGUE, OTHER])
    (late,) = rosters(ROGUE, 1, attempt=3)
    (early,) = rosters(OTHER, 1, attempt=2)
    assert begun(machine.statement(2 * REPLACE_SECONDS, *late)) == 1
    assert begun(machine.statement(2.9 * REPLACE_SECONDS, *early)) == 1
