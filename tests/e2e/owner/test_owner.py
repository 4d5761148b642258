"""The machine stays its owner's: orders and signals on real daemons, as a person gives them."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.storage.state_dir import StateDir
from tests.support.daemons import (
    OPTIONS,
    PATIENCE_SECONDS,
    add_founder,
    digests_on_disk,
    gossamer,
    poll,
    refused,
    said,
    start_founder,
    takes_part,
    trainer_of,
    wait_for_round,
)

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_pause_and_curve_survive_a_restart(swarm: LocalSwarm, founded: Path) -> None:
    node = start_founder(swarm, founded)
    before = wait_for_round(node, 6)
    state = ("--state-dir", node.root)
    answer = gossamer("pause", *state)
    assert answer.status == 0
    assert "The device is free" in answer.out
    assert trainer_of(node) is None
    assert node.leave() == 0, node.tail()
    node.start("start")
    again = node.wait_for(lambda status: status.phase == "paused", PATIENCE_SECONDS, "pause")
    assert trainer_of(node) is None
    assert said(node, "`gossamer resume` goes on")
    assert again.paused_reason == "user"
    assert again.loss_history[: len(before.loss_history)] == before.loss_history
    assert len(before.loss_history) >= 5  # of the founder's first life, too
    assert again.heldout_loss is not None
    assert gossamer("resume", *state).status == 0
    wait_for_round(node, again.round + 2)
    assert node.leave() == 0, node.tail()
    assert not (node.root / "paused").exists()


def test_finish_ends_the_round_and_the_node(swarm: LocalSwarm, founded: Path) -> None:
    node = start_founder(swarm, founded)
    wait_for_round(node, 4)
    status = node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    answer = gossamer("finish", "--state-dir", node.root)
    assert answer.status == 0, answer
    assert "when its present round ends" in answer.out
    assert node.wait(PATIENCE_SECONDS) == 0, node.tail()
    assert said(node, "left in order")
    assert max(digests_on_disk(node)) > status.round


def test_the_link_of_the_page_steers(swarm: LocalSwarm, founded: Path) -> None:
    node = start_founder(swarm, founded)
    wait_for_round(node, 3)
    answer = gossamer("page", "--state-dir", node.root)
    assert answer.status == 0
    link = urlsplit(answer.out.strip())
    token = link.fragment.removeprefix("token=")
    asking = httpx.Client(base_url=f"http://{link.netloc}")
    assert "Steer this node" in asking.get("/").text
    members = asking.get("/api/credit").json()["members"]
    assert members[0]["tokens"] > 0
    of_page = {"x-gossamer": "1", "origin": f"http://{link.netloc}"}
    assert asking.post("/api/pause", headers=of_page).status_code == 401
    with_token = {**of_page, "authorization": f"Bearer {token}"}
    log = asking.get("/api/log", headers=with_token).json()["lines"]
    assert any("status page at" in line for line in log)
    assert not any(token in line for line in log)
    assert not said(node, token)
    assert asking.post("/api/pause?seconds=3600", headers=with_token).status_code == 202
    status = node.wait_for(lambda status: status.phase == "paused", PATIENCE_SECONDS, "pause")
    assert status.paused_reason == "user"
    assert status.resumes_at is not None
    assert asking.post("/api/resume", headers=with_token).status_code == 202
    node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    asking.close()
    assert node.leave() == 0, node.tail()


@pytest.mark.long
def test_top_shows_and_steers(swarm: LocalSwarm, founded: Path) -> None:
    node = start_founder(swarm, founded)
    wait_for_round(node, 3)
    terminal, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, 120))
    command = [sys.executable, "-m", "gossamer.node.cli", "top", "--state-dir", str(node.root)]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = bytearray()

    def shows(text: bytes) -> bool:
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # Linux: the other end is closed
                shown.extend(os.read(terminal, 65_536))
        return text in shown

    poll(lambda: (shows(b"held-out") and shows(b"p pause")) or None, "the node on the screen")
    os.write(terminal, b"p")
    poll(lambda: (shows(b"hands over its round") and shows(b"paused")) or None, "the pause")
    os.write(terminal, b"r")
    poll(lambda: shows(b"The node goes on") or None, "the answer")
    node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    os.write(terminal, b"q")
    poll(lambda: (shows(b"\x1b[?1049l") and process.poll() is not None) or None, "the end")
    assert process.returncode == 0
    os.close(terminal)
    assert node.leave() == 0, node.tail()


def in_terminal(node: LocalNode, *command: str, prefix: tuple[str, ...] = ()) -> int:
    """Starts a node as the foreground job of a terminal of its own, and returns the terminal."""
    terminal, slave = pty.openpty()
    with open(node.log_path, "ab") as log:
        node.process = subprocess.Popen(
            [
                *prefix,
                *(sys.executable, "-m", "gossamer.node.cli", *command),
                *("--state-dir", str(node.root), "--listen", node.listen, "--api", "127.0.0.1:0"),
                *OPTIONS,
            ],
            stdin=slave,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(),
        )
    os.close(slave)
    return terminal


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.long
def test_a_closed_terminal_makes_the_node_leave_in_order(swarm: LocalSwarm, founded: Path) -> None:
    node = add_founder(swarm, founded)
    terminal = in_terminal(node, "start")
    node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    os.close(terminal)  # the kernel sends SIGHUP
    node.signal(signal.SIGHUP)  # and so does a shell
    assert node.wait(PATIENCE_SECONDS) == 0, node.tail()
    assert said(node, "left in order")


@pytest.mark.long
def test_a_node_under_nohup_outlives_its_terminal(swarm: LocalSwarm, founded: Path) -> None:
    node = add_founder(swarm, founded)
    terminal = in_terminal(node, "start", prefix=("nohup",))
    status = node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    os.close(terminal)
    wait_for_round(node, status.round + 2)
    assert node.leave() == 0, node.tail()
    poll(lambda: said(node, "left in order"), "orderly end")


def test_a_stranger_to_an_allow_run_is_told_its_id_and_not_started_again(
    swarm: LocalSwarm, tmp_path: Path, manifest_file: Path, corpus: Path
) -> None:
    manifest = tmp_path / "run.toml"
    friend = gossamer("id", "--state-dir", tmp_path / "friend").out.strip()
    admission = f'admission = "allow"\nallowed = ["{friend}"]\n[tokenizer]'
    manifest.write_text(manifest_file.read_text().replace("[tokenizer]", admission, 1))
    founder = swarm.found("--manifest", str(manifest), "--corpus", str(corpus))
    address, state = founder.address(), tmp_path / "stranger"
    own = gossamer("id", "--state-dir", state)
    assert own.status == 0, own
    for _ in range(2):
        error = refused("join", address, "--state-dir", state)
        assert "does not admit this node" in error
        assert own.out.strip() in error
    assert not StateDir(state).has_run()
    watched = gossamer("watch", address)
    assert (watched.status, "only members of this run" in watched.err) == (2, True), watched
    assert said(founder, f"{address}#")


def test_status_says_that_a_run_is_being_founded(
    swarm: LocalSwarm, tmp_path: Path, manifest_file: Path, corpus: Path
) -> None:
    # It takes far longer to read than a start does, also where others use the processors.
    large = tmp_path / "corpus"
    large.mkdir()
    text = "".join(path.read_text() for path in sorted(corpus.iterdir()))
    for number in range(400):
        (large / f"{number}.txt").write_text(f"{number}\n{text}")
    node = swarm.found("--manifest", str(manifest_file), "--corpus", str(large))

    def founding() -> str | None:
        answer = gossamer("status", "--state-dir", node.root)
        return answer.out if "it founds a run" in answer.out else None

    shown = poll(founding, "word of the founding")
    assert "is starting: it founds a run: " in shown
    node.signal(signal.SIGTERM)
    assert node.wait(PATIENCE_SECONDS) == 0, node.tail()
    assert "no node runs" in gossamer("status", "--state-dir", node.root).err
