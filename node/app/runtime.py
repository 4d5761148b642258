"""The surroundings of a node, which a test replaces, and what a node's life begins with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import tzinfo

import trio

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.threads import RunInThread, run_abandonable
from gossamer.node.machine.machine_use import MachineUse
from gossamer.node.machine.trainer import MakeTrainer
from gossamer.node.machine.trainer_client import TrainerClient
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import Manifest


@dataclass(frozen=True)
class Runtime:
    """The surroundings of a node. A test in virtual time has no process, thread or socket."""

    make_trainer: MakeTrainer = TrainerClient
    run_in_thread: RunInThread = trio.to_thread.run_sync
    serves_http: bool = True
    unix_seconds: Callable[[], float] = time.time
    local_seconds: Callable[[], float] = time.monotonic
    """A clock that is never set, for threads too."""
    use: MachineUse = field(default_factory=MachineUse)
    read_in_thread: RunInThread = run_abandonable
    """Runs the readers of `use`, which may hang with a broken driver."""
    random_bytes: Callable[[int], bytes] = os.urandom
    """Draws so many bytes by chance, for the number of a life."""
    zone: tzinfo | None = None
    """The zone of the owner's hours; None: that of this machine."""
    awake: AwakeClock = field(default_factory=AwakeClock)
    """The clock without the time in which this process was stopped. It has to run as long as the
    node."""


@dataclass(frozen=True)
class NodeInputs:
    """The things with which a node's life begins."""

    manifest: Manifest
    settings: Settings
    state_dir: StateDir
    identity: Identity
    store: BlockStore
    transport: Transport
    runtime: Runtime
