"""The event loop of a node waits for no disk that is asked to be durable, and for no GPU driver."""

from __future__ import annotations

import os
import threading
import traceback
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from gossamer.node.machine.hardware import Hardware
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.peers import known_peers_file
from gossamer.node.telemetry.gpus import Gpu, Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.wire.envelopes import seal
from gossamer.trainer.ipc import messages
from tests.support.builders import announce
from tests.support.node_world import World, start

RATE = 4.0
"""Seconds of the nodes in one second here."""


def test_durable_writes_are_made_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = threading.get_ident()
    fsync = os.fsync
    in_loop: list[list[str]] = []
    in_threads: list[list[str]] = []

    def noted(descriptor: int) -> None:
        frames = [frame.name for frame in traceback.extract_stack()]
        if "locked" not in frames:  # a daemon locks its directory before it has a loop
            (in_loop if threading.get_ident() == loop else in_threads).append(frames)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(known_peers_file, "SAVE_SECONDS", 1.0)
    world = World(tmp_path, 61, run_in_thread=trio.to_thread.run_sync, look_seconds=0.02)

    def file_of(name: str) -> int:
        return int((tmp_path / name / "incarnation").read_text())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await start(world, nursery, "ab")
            await world.reach(2, "a", "b")
            swarm, identity = world.participant("b").context.swarm, world.identity("b")
            twin = msgspec.structs.replace(announce(), incarnation=swarm.incarnation + 7)
            signed = seal(
                twin, identity.peer_id, world.nodes["b"].inputs.manifest.run_id, identity.sign
            )
            swarm.gossip._take_own(signed)
            world.nodes["b"].pause()
            number = swarm.incarnation
            assert number == twin.incarnation + 1
            await world.until(lambda: file_of("b") == number)
            await world.until(lambda: (tmp_path / "b" / "peers.msgpack").exists())
            await world.until(lambda: (tmp_path / "b" / "paused").exists())
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=RATE))
    assert in_threads
    assert in_loop == []


class SlowGpus(Gpus):
    """Notes the threads that read it."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def read(self) -> list[Gpu]:
        self.threads.append(threading.get_ident())
        return [Gpu(index=0, uuid="GPU-1", name="L4", memory_total_bytes=7, memory_used_bytes=1)]


@pytest.mark.parametrize(
    ("wanted", "found", "missed"),
    [("auto", "cpu", "L4"), ("auto", "cuda:0", None), ("cpu", "cpu", None)],
)
def test_a_gpu_that_the_trainer_does_not_find_is_named(
    wanted: str, found: str, missed: str | None
) -> None:
    hardware = Hardware(wanted, SlowGpus(), SpeedMeter(Metrics()), trio.to_thread.run_sync)
    trio.run(hardware.measure)
    configured = messages.Configured(device=found, device_name="x", precision="fp32")
    assert hardware.missed_gpu(configured) == missed


def test_gpus_are_read_in_threads() -> None:
    gpus = SlowGpus()
    hardware = Hardware("cuda", gpus, SpeedMeter(Metrics()), trio.to_thread.run_sync)

    async def main() -> None:
        await hardware.measure()
        assert hardware.capacity().device == "L4"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hardware.run)
            for device, name in (("cpu", "EPYC"), ("cuda:0", "L4")):
                hardware.trainer_configured(
                    messages.Configured(
                        device=device,
                        device_name=name,
                        precision="fp32",
                    )
                )
                with trio.fail_after(10.0):
                    while hardware.capacity().device != name:  # noqa: ASYNC110
                        await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert len(gpus.threads) == 3
    assert threading.get_ident() not in gpus.threads
