"""A run ends, with real daemons: they leave with status 0, and the final states are equal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.support.daemons import (
    MANIFEST,
    OPTIONS,
    PATIENCE_SECONDS,
    digests_on_disk,
    get,
    gossamer,
    metric_of,
    poll,
    said,
    trainer_of,
)
from tests.support.webhook import hook

pytestmark = pytest.mark.e2e

STEPS = 200
LAST = 6
"""Two rounds of 20 steps and four of 40 complete 200."""


def read_all(controller: int) -> str:
    """What was written to a terminal that is closed. The kernel hands it over in pieces, and says
    at the end that nobody writes any more."""
    shown = bytearray()
    with contextlib.suppress(OSError):
        while piece := os.read(controller, 4096):
            shown += piece
    return shown.decode()


def test_daemons_reach_the_end_serve_the_model_and_leave_with_status_0(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path
) -> None:
    manifest = tmp_path / "run.toml"
    text = MANIFEST.replace("total_steps = 2_000\nends = false", f"total_steps = {STEPS}")
    assert text != MANIFEST
    manifest.write_text(text)
    founder = swarm.found(
        "--manifest", str(manifest), "--corpus", str(corpus), "--wait-for-peers", "1"
    )
    with hook(503, 200) as webhook:
        other = swarm.add(environment={"GOSSAMER_NOTICES": webhook.url})
        other.start("join", founder.address(), "--serve-after", "0")
        assert other.wait(PATIENCE_SECONDS) == 0, other.tail()
    # It has told its owner, in a second attempt, although it left at once.
    assert [body["event"] for body in webhook.bodies] == ["finished", "finished"], other.tail()
    assert f"is finished: {LAST} rounds" in str(webhook.bodies[-1]["text"])
    assert "s3cret" not in other.log_path.read_text()
    assert said(other, "the run is finished")
    status = founder.wait_for(lambda s: s.phase == "finished", PATIENCE_SECONDS, "end of the run")
    assert (status.round, status.final_round) == (LAST, LAST)
    assert metric_of(founder, "gossamer_phase", "finished") == 1
    assert trainer_of(founder) is None
    assert "Finished" in get(founder, "/")[1]
    assert digests_on_disk(founder) == digests_on_disk(other)

    newcomer = swarm.join(founder.address(), "--serve-after", "forever")
    late = newcomer.wait_for(lambda s: s.phase == "finished", PATIENCE_SECONDS, "final state")
    assert (late.round, late.state_digest) == (LAST, status.state_digest)
    for node in (newcomer, founder):
        assert node.leave() == 0, node.tail()
    done = gossamer("export", tmp_path / "model", "--state-dir", newcomer.root)
    assert done.status == 0, done

    # Once more, at a terminal: it says what was reached, serves as long as it is told, and ends.
    controller, terminal = pty.openpty()
    command = [
        *(sys.executable, "-m", "gossamer.node.cli", "start", "--state-dir", str(founder.root)),
        *("--listen", "/ip4/127.0.0.1/tcp/0", "--api", "127.0.0.1:0", "--serve-after", "0"),
        *OPTIONS,
    ]
    with open(tmp_path / "again.log", "wb") as errors:
        again = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=errors)
    try:
        poll(lambda: again.poll() is not None, "end of the second life")
    finally:
        again.kill()
        again.wait()
    os.close(terminal)
    shown = read_all(controller)
    os.close(controller)
    assert again.returncode == 0
    assert f"is finished: {LAST} rounds" in shown
    assert f"{status.swarm_tokens_total:,} tokens" in shown
    assert f"gossamer export FOLDER --state-dir {founder.root}" in shown
