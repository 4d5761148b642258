"""Credit, report and reset on the directory of a real daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.storage.state_names import HELD_NAME, IDENTITY_NAMES
from tests.support.daemons import gossamer, start_founder, wait_for_round

pytestmark = pytest.mark.e2e


def test_a_volunteer_sees_its_credit_publishes_it_and_resets(
    swarm: LocalSwarm, founded: Path, tmp_path: Path
) -> None:
    node = start_founder(swarm, founded)
    state = ("--state-dir", node.root)
    answer = gossamer("peers", "--json", *state)  # beside a running node
    assert answer.status == 0, answer.err
    before = json.loads(answer.out)
    wait_for_round(node, before["round"] + 2)
    refused = gossamer("reset", "--yes", *state)
    assert refused.status == 1
    assert "is in use by process" in refused.err
    assert node.leave() == 0, node.tail()

    after = json.loads(gossamer("peers", "--json", *state).out)
    # The first life of this node, that of the fixture, counts as well.
    assert after["tokens_total"] > before["tokens_total"] > 0
    (mine,) = after["peers"]
    assert mine["you"]
    assert (mine["rank"], mine["share"], mine["first_round"]) == (1, 1.0, 1)
    assert mine["tokens"] == after["tokens_total"]
    assert "100 % of the run (rank 1 of 1" in gossamer("peers", *state).out

    folder = tmp_path / "public"
    done = gossamer("report", folder, "--sample", "def ", *state)
    assert done.status == 0, done.err
    page = (folder / "index.html").read_text()
    assert mine["peer_id"] in page
    assert "<polyline" in page
    assert "<pre><b>def </b>" in page

    assert gossamer("reset", "--yes", *state).status == 0
    assert {path.name for path in node.root.iterdir()} == {*IDENTITY_NAMES, HELD_NAME}
    assert gossamer("id", *state).out.strip() == mine["peer_id"]
