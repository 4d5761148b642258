"""The measured members are real ones, in processes of their own: they must not fall behind nodes.

Small vectors on loopback, and on lines as fast as the machine: that it works, not how fast.
"""

from __future__ import annotations

import argparse
import sys

import pytest
from rich.console import Console

from tests.benchmarks import ring, traffic
from tests.support.netns import NamespacesUnavailable

ELEMENTS = 100_000


def test_members_average_and_say_what_it_took() -> None:
    options = argparse.Namespace(
        peers=4, elements=ELEMENTS, repeats=1, mbit=None, chunk_elements=None
    )
    system = ring.System("Gossamer", "_ring_gossamer", sys.executable, "fp32")
    ring.measure(options, [system], Console(quiet=True))
    (turn,) = system.turns
    assert turn.is_whole
    assert turn.identical
    assert turn.error <= ring.error_max("fp32", 4, turn.magnitude)
    own_links = 4 * ring.ideal_bytes("fp32", ELEMENTS, 4)
    assert own_links <= turn.bytes_sent <= 1.2 * own_links


@pytest.mark.parametrize("codec", ["sparse", "distro"])
def test_bytes_are_counted_at_the_interfaces(codec: str) -> None:
    (mode,) = (mode for mode in traffic.MODES if mode.codec == codec)
    try:
        result = traffic.measure(mode, ELEMENTS, 4)
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))
    # Each member's part goes over every link but one, and something comes on top.
    passed_on = 3 * result.payload_bytes
    assert passed_on < result.sent_mean < passed_on + 300_000
    assert result.sent_mean == pytest.approx(result.received_mean, rel=0.1)
