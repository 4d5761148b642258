"""The conclusions of a watch from the statuses that it saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.telemetry.status import Status
from tests.chaos.watch import Watch
from tests.support.lab import Lab


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """A watch of three machines that do not exist; it sends no requests."""
    return Watch(Lab(tmp_path, [1.0, 1.0, 1.0]), ring_bytes=1)


def status(head: str, state_digest: str) -> Status:
    return Status(
        peer_id="", run_id=None, version="", phase="training", head=head, state_digest=state_digest
    )


def test_equal_states_are_counted_and_unequal_ones_are_found(watch: Watch) -> None:
    for name in ("m1", "m2", "m3", "m3"):
        watch.note_state(name, status("head", "state"))
    watch.note_state("m1", status("other head", "other state"))
    assert watch.num_digests_compared() == 2
    watch.note_state("m2", status("other head", "state"))
    with pytest.raises(AssertionError, match="two states of head other head"):
        watch.num_digests_compared()


def test_the_longest_stall_is_that_of_the_first_machine(watch: Watch) -> None:
    one, other = (watch.seen(machine) for machine in watch.lab.machines[:2])
    one.committed_seconds = {3: 0.0, 4: 10.0, 5: 30.0, 6: 31.0}
    other.committed_seconds = {4: 9.0, 5: 26.0, 3: 29.0}
    assert watch.longest_stall_seconds(5.0, 35.0) == 17.0
    assert watch.longest_stall_seconds(5.0, 80.0) == 49.0
