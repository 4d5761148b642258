"""The daemon process: its signals, and its role, which is to found, join or resume.

SIGINT, SIGTERM, or the SIGHUP of a closed terminal asks the node to leave in order. A second signal
ends the process at once.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import ipaddress
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog
import trio

from gossamer.node.app.assembly import Node
from gossamer.node.app.http.http import require_free
from gossamer.node.app.joining import join_run
from gossamer.node.app.listening import listen_addresses
from gossamer.node.app.owner.owner_limits import OwnerLimits
from gossamer.node.app.reporting.reached import reached
from gossamer.node.app.runtime import NodeInputs, Runtime
from gossamer.node.app.service_notify import ServiceManager
from gossamer.node.base.roles import Found, Join, Resume, Role
from gossamer.node.base.settings.setting_values import CACHE_BYTES_MIN
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.interrupting import only_error
from gossamer.node.base.terminal.terminal import ask
from gossamer.node.base.threads import RunInThread, run_abandonable
from gossamer.node.machine.capacity import (
    device_memories,
    devices_of,
    free_memory_bytes,
    training_gpus,
    trains_on_host,
)
from gossamer.node.machine.machine_use import MachineUse
from gossamer.node.network.home_router.port_mapping import PortMapper, UpnpGateway
from gossamer.node.network.identity import Identity
from gossamer.node.network.lan import LanNeighbours
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.peers.members.run_exchange import JoinError
from gossamer.node.runs.founding.own_text import OwnText, own_text_of, require_fitting
from gossamer.node.runs.founding.starting import found_here
from gossamer.node.runs.manifest_here import signed_manifest_here
from gossamer.node.runs.planning.device_fit import device_fits, require_fit
from gossamer.node.runs.planning.least_limits import least_problems
from gossamer.node.runs.planning.needs import (
    Needs,
    TooLargeError,
    ask_owner,
    describe,
    describe_limits,
    needs_of,
    require_disk,
    require_memory,
)
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.gpus import Gpus
from gossamer.protocol.manifest import Manifest, SignedManifest

if TYPE_CHECKING:
    from trio_typing import TaskStatus

_M_ARENA_MAX = -8  # <malloc.h>
_MALLOC_ARENAS = 2

log = structlog.get_logger("node")


def run(settings: Settings, role: Role, state_dir: StateDir) -> int:
    """Runs a node until it has left, and returns the exit status: 0 after an orderly leave.

    Args:
        state_dir: that of the settings; this process holds its lock.

    Raises:
        StateDirError, DiskError, ListenError, JoinError, ManifestError, CorpusError, OSError: the
            node cannot run; the message says why and what to do.
    """
    limit_malloc_arenas()
    keep_from_others()
    manager = ServiceManager.of(os.environ)
    if manager.watchdog_seconds is not None:
        faulthandler.enable()  # the watchdog's SIGABRT leaves in the log where the process hung
    try:
        return trio.run(_Daemon(settings, role, state_dir, manager).main)
    except BaseExceptionGroup as group:
        raise only_error(group) from None


def keep_from_others() -> None:
    """Lets no other user write to files that this process and its trainer make.

    The state directory may be one that others can enter, and a container or a cluster may leave it
    to each program who can write (umask 0).
    """
    os.umask(os.umask(0o077) | 0o022)


def limit_malloc_arenas() -> None:
    """Tells glibc to keep few heaps.

    By default every worker thread has its own heap, and the memory that a large step frees there
    stays resident. With 5 M parameters a third more memory was resident than in use (measured).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl and macOS have none
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _MALLOC_ARENAS)


def _signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that ask the node to leave. One that was ignored from the start, as
    `nohup` does with SIGHUP, stays ignored."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return tuple(each for each in wanted if signal.getsignal(each) is not signal.SIG_IGN)


class _Daemon:
    """One life of the daemon."""

    def __init__(
        self,
        settings: Settings,
        role: Role,
        state_dir: StateDir,
        manager: ServiceManager | None = None,
    ) -> None:
        self._settings = settings
        self._role = role
        self._state_dir = state_dir
        self._manager = manager or ServiceManager()
        self._starting = ""
        """What the daemon does before there is a node."""
        self._node: Node | None = None
        self._leave: Callable[[], None] | None = None
        self._status = 0
        self._reached: Sequence[str] = ()
        """Lines on what a finished run has reached."""

    async def main(self) -> int:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_signals, nursery.cancel_scope)
            runtime = Runtime(use=machine_use(self._settings.device))
            await nursery.start(runtime.awake.run)
            nursery.start_soon(self._manager.run, self._doing)
            await self._run(runtime)
            self._manager.stopping()
            nursery.cancel_scope.cancel()
        if sys.stdout.isatty():  # elsewhere the log has said so
            for line in self._reached:
                print(line)
        return self._status

    async def _watch_signals(
        self,
        scope: trio.CancelScope,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with trio.open_signal_receiver(*_signals()) as signals:
            task_status.started()
            num_signals = 0
            async for number in signals:
                if number == signal.SIGHUP and num_signals:
                    continue  # a closed terminal sends it more than once: the kernel and the shell
                num_signals += 1
                if num_signals == 1 and self._leave is not None:
                    log.info("leaving in order; a second signal ends the process at once")
                    self._manager.stopping()
                    self._leave()
                else:
                    if num_signals == 1:
                        log.info("stopped before the node took part in a run")
                    self._status = 1 if num_signals > 1 else 0
                    scope.cancel()

    def _doing(self) -> str:
        """Returns a line on what the daemon does, for the service manager."""
        reporter = None if self._node is None else self._node.reporter
        return self._starting if reporter is None else reporter.line()

    def _starts(self, does: str) -> None:
        self._starting = does
        DaemonFiles(self._state_dir).write_starting(does)

    async def _run(self, runtime: Runtime) -> None:
        state_dir, in_thread = self._state_dir, runtime.run_in_thread
        limits = OwnerLimits(self._settings, state_dir, runtime.read_in_thread)
        self._settings = settings = limits.settings
        require_free(settings.api)
        self._starts("it opens its ports")
        # A busy disk takes seconds to make a file durable: signals, the service manager and the
        # network do not wait for it.
        identity = await in_thread(lambda: _identity_in(state_dir))
        await in_thread(lambda: _mend_manifest(state_dir))
        here = signed_manifest_here(state_dir)
        port = state_dir.addresses.read_port()
        given = settings.bootstrap
        if not isinstance(self._role, Found):
            given = (*self._role.addresses, *given)
        await in_thread(lambda: state_dir.addresses.write_seeds(given))
        async with open_libp2p_transport(
            identity,
            await listen_addresses(settings, port),
            announced=settings.announce,
            typed=state_dir.addresses.read_seeds(),
            networks=[ipaddress.ip_network(each) for each in settings.own_networks],
            port=port,
            limits=limits.rates,
            awake=runtime.awake,
        ) as transport:
            await in_thread(lambda: state_dir.addresses.write_port(transport.port))
            self._manager.ready()  # to join or to found may take as long as it takes
            signed, own_text = await self._begin(transport, identity, here, given, in_thread)
            manifest = open_signed_manifest(signed)
            if isinstance(self._role, Resume):
                require_fitting(manifest, has_text=own_text is not None, has_shards=True)
            self._require_memory(manifest)
            store = BlockStore(
                state_dir.blocks_path, settings.cache_bytes, check_place=state_dir.require_ours
            )
            bootstrap = tuple(dict.fromkeys((*given, *state_dir.addresses.read_seeds())))
            settings = msgspec.structs.replace(settings, bootstrap=bootstrap)
            inputs = NodeInputs(manifest, settings, state_dir, identity, store, transport, runtime)
            node = Node(inputs, signed, limits)
            self._leave, self._node = node.leave, node
            self._starts("it measures this machine and fetches what the run needs")
            async with trio.open_nursery() as nursery:
                _start_in_own_network(nursery, settings, node, transport)
                await node.run(own_text)
                nursery.cancel_scope.cancel()
            self._reached = reached(node.participant, settings.state_dir)

    async def _begin(
        self,
        transport: Libp2pTransport,
        identity: Identity,
        here: SignedManifest | None,
        addresses: tuple[str, ...],
        in_thread: RunInThread,
    ) -> tuple[SignedManifest, OwnText | None]:
        """Returns the run that is founded, joined or gone on with, and this machine's own text."""
        state_dir, role = self._state_dir, self._role
        if isinstance(role, Found):
            signed, own_text = await found_here(
                role,
                identity,
                state_dir.blocks_path,
                self._settings,
                lambda does: self._starts(f"it founds a run: {does}"),
            )
            await in_thread(functools.partial(state_dir.write_manifest, signed))
            return signed, own_text
        own_text = own_text_of(role.corpus, role.text_field, skip_bad=role.skip_bad)
        if isinstance(role, Join):
            log.debug("asking for the run", addresses=len(addresses))
            self._starts("it asks its peers for the run")
            signed = await join_run(
                transport, role, addresses, state_dir, self._require_consent, in_thread
            )
            await in_thread(lambda: state_dir.addresses.write_seeds(addresses, has_joined=True))
            return signed, own_text
        if here is None:
            raise JoinError(
                f"there is no run in {state_dir.root}: `gossamer start` founds one, "
                "`gossamer join ADDRESS` joins one"
            )
        return here, own_text

    def _require_memory(self, manifest: Manifest) -> Needs:
        """Returns what a run needs here. Raises TooLargeError where that is too much."""
        settings, gpus = self._settings, Gpus().read()
        is_on_host = trains_on_host(settings.device, gpus)
        needs = needs_of(
            manifest,
            trains_on_host=is_on_host,
            cache_bytes=settings.cache_bytes,
            moments=settings.moments,
            num_devices=len(devices_of(settings.device, gpus)),
        )
        require_memory(manifest, needs, free_memory_bytes())
        problems = least_problems(
            manifest,
            settings,
            trains_on_host=is_on_host,
            disk_bytes=CACHE_BYTES_MIN + manifest.model.frozen_bytes,
            cards=device_memories(settings.device, gpus),
            tokens_per_second=None,
        )
        if problems:
            raise TooLargeError("; ".join(problems))
        return needs

    async def _require_consent(self, manifest: Manifest) -> None:
        """Asks the owner of this machine, where one is at the terminal.

        Raises:
            TooLargeError, NotWantedError: the run is not joined.
        """
        assert isinstance(self._role, Join)
        require_fitting(manifest, has_text=bool(self._role.corpus))
        needs = self._require_memory(manifest)
        # Not at each start: a disk that others have filled since is a trouble that passes.
        await run_abandonable(lambda: require_disk(manifest, needs, self._settings.state_dir))
        cards = device_memories(self._settings.device, Gpus().read())
        fits = device_fits(manifest, cards, self._settings.moments)
        device = "; ".join(require_fit(manifest, fit).text for fit in fits)
        lines = describe(manifest, needs, free_memory_bytes(), device)
        lines.append(f"limits    {describe_limits(self._settings)}")
        if self._role.asks_owner:
            await run_abandonable(lambda: ask_owner(lines, print, ask))
        else:
            log.info("joining a run", uses="; ".join(" ".join(each.split()) for each in lines))


def _identity_in(state_dir: StateDir) -> Identity:
    """Returns the identity in a state directory, or a new one. Raises IdentityError."""
    path = state_dir.identity_path
    if state_dir.has_run() and not path.exists():
        log.warning(
            f"{path} was missing beside a run: this node is a new peer to the others, without the "
            "rights of the old one. `gossamer identity restore FILE` brings a back-up of it back",
            fields={"event": "new_identity", "file": str(path)},
        )
    return Identity.load_or_create(path)


def _mend_manifest(state_dir: StateDir) -> None:
    """Writes a file of the manifest again that is damaged or missing, from the other one."""
    with state_dir.health.writing("manifest"):
        name = state_dir.manifest_files.mend()
        if name is not None:
            log.warning(
                "a file of the run's manifest was damaged or missing: it is written again from "
                "the other one",
                file=name,
            )


def _start_in_own_network(
    nursery: trio.Nursery, settings: Settings, node: Node, transport: Libp2pTransport
) -> None:
    """Starts what talks to the router and to the neighbours, where the owner lets it."""
    own = transport.own
    if settings.port_mapping == "on":
        mapper = PortMapper(transport.port, UpnpGateway(), own.interfaces, own.note_mapping)
        nursery.start_soon(mapper.run)
    if settings.lan == "on":
        lan = LanNeighbours(
            transport.peer_id,
            node.inputs.manifest.run_id.hex(),
            own.interfaces,
            node.first.known_peers.found,
        )
        nursery.start_soon(lan.run)


def machine_use(device: str) -> MachineUse:
    """Returns the readers of this machine. `device`: the setting of the trainer's device."""
    gpus = functools.cache(Gpus)

    def read_gpu_celsius() -> float | None:
        # In a thread: a driver may hang.
        found = (gpu.temperature_celsius for gpu in training_gpus(device, gpus().read()))
        return max((celsius for celsius in found if celsius is not None), default=None)

    return MachineUse(read_gpu_celsius=read_gpu_celsius)
