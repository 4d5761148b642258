"""The moment at which the demo kills a peer."""

from gossamer.node.demo.ring_aim import RingAim
from gossamer.node.telemetry.status import LastRound, Status
from gossamer.protocol.wire.statements import Phase


def look(round_number: int, phase: Phase, sent: int) -> Status:
    """A look at a peer whose rounds send 1,000 bytes each."""
    return Status(
        peer_id="peer",
        run_id="ab" * 32,
        version="0.1.0",
        phase=phase,
        round=round_number,
        bytes_sent_total=sent,
        last_round=LastRound(
            round=round_number,
            members=("peer",),
            contributors=("peer",),
            duration_seconds=1.0,
            bytes_sent=1000,
            bytes_received=1000,
            outcome="committed",
        ),
    )


def amid(*looks: Status) -> list[bool]:
    aim = RingAim()
    return [aim.is_amid(one) for one in looks]


def test_the_middle_of_a_ring_is_when_some_sums_are_sent() -> None:
    assert amid(
        look(4, "training", 5000),
        look(4, "averaging", 5010),
        look(4, "averaging", 5200),
        look(4, "averaging", 5600),
    ) == [False, False, True, False]


def test_results_that_a_peer_passes_on_after_its_commit_are_no_ring() -> None:
    assert not any(
        amid(
            look(4, "training", 4000),
            look(4, "averaging", 4700),
            look(5, "averaging", 5000),
            look(5, "averaging", 5100),
            look(5, "averaging", 5200),
        )
    )


def test_a_ring_that_was_under_way_at_the_first_look_does_not_count() -> None:
    assert not any(amid(look(4, "averaging", 4000), look(4, "averaging", 4100)))
