"""The event loop goes on while the disk takes its time at the start of a node."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from gossamer.node.app import daemon
from gossamer.node.app.runtime import Runtime
from gossamer.node.base.roles import Found, Join, Role
from gossamer.node.base.settings.settings import Settings
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import SignedManifest
from tests.node.whole_nodes.runs.test_invitations import invitation
from tests.support.node_world import NumbersTrainer, World

SLOW_SECONDS = 10.0
"""How long a write lasts for which the event loop stops. Others end when the loop has gone on."""

RATE = 4.0
"""Seconds of the nodes in one second here."""


class SlowDisk:
    """A disk that makes nothing durable before the event loop has gone on, or for a long time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beats = 0
        self.num_writes = 0
        self.stopped: list[list[str]] = []
        """Where the event loop stood still, one for each write that stopped it."""
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    async def beat(self) -> None:
        """Shows that the event loop goes on, until cancelled."""
        while True:
            self.beats += 1
            await trio.sleep(0.01)

    def fsync(self, descriptor: int) -> None:
        frames = [frame.name for frame in traceback.extract_stack()]
        if "locked" not in frames and self.beats:  # before, there is no event loop
            self.num_writes += 1
            beats, until = self.beats, time.monotonic() + SLOW_SECONDS
            while self.beats < beats + 2 and time.monotonic() < until:
                time.sleep(0.005)
            if self.beats < beats + 2:
                self.stopped.append(frames[-6:])
        self._fsync(descriptor)


def test_a_node_that_joins_and_opens_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    world = World(
        tmp_path, seed=83, is_by_invitation=True, run_in_thread=trio.to_thread.run_sync,
        look_seconds=0.02, serves_http=True, settings={"api": "127.0.0.1:0"},
    )  # fmt: skip

    async def nodes() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run, "a")
            await world.reach(1, "a")
            claim, head = invitation(world, "a"), world.path("a")[0]
            await nursery.start(world.run, "b", ["a"], NumbersTrainer, claim, head)
            await world.until(lambda: (tmp_path / "b" / "api").exists())
            nursery.cancel_scope.cancel()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.beat)
            await nodes()  # with the writes that are under way when they end
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=RATE))
    assert disk.stopped == []
    assert disk.num_writes > 5


class HasBegunError(Exception):
    """The daemon has come to the end of what is tested here."""


@pytest.mark.parametrize("role", [Found(), Join(addresses=("/ip4/127.0.0.1/tcp/1",))])
def test_a_daemon_that_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role) -> None:
    disk = SlowDisk(monkeypatch)
    signed = World(tmp_path, seed=84).signed

    @contextlib.asynccontextmanager
    async def transport(*_: object, **__: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(port=4615)

    async def found(*_: object) -> tuple[SignedManifest, None]:
        return signed, None

    async def join(*_: object) -> SignedManifest:
        return signed

    def ends(*_: object) -> None:
        raise HasBegunError

    for name, stand_in in (
        ("open_libp2p_transport", transport), ("found_here", found), ("join_run", join),
    ):  # fmt: skip
        monkeypatch.setattr(daemon, name, stand_in)
    monkeypatch.setattr(daemon._Daemon, "_require_memory", ends)
    state_dir = StateDir(tmp_path / "node")
    settings = Settings(
        state_dir=state_dir.root, api="127.0.0.1:0", lan="off", bootstrap=("/ip4/127.0.0.1/tcp/2",)
    )

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.beat)
            await trio.sleep(0.02)
            with pytest.raises(HasBegunError):
                await daemon._Daemon(settings, role, state_dir)._run(Runtime())
            nursery.cancel_scope.cancel()

    with state_dir.locked():
        trio.run(main)
    assert disk.stopped == []
    assert disk.num_writes >= 6, "identity, seeds and port, each with its folder"
    assert state_dir.addresses.read_port() == 4615
    assert state_dir.addresses.seeds_path.exists()
