"""The trainer as the node uses it: one call a job, restarts hidden, failures told.

Behind it is a worker process (`trainer_process`) that may die at any time. Then its running job is
answered as far as it can be (a round that died has no work), and the worker is started again with
a growing wait. After `FAILURES_MAX` lives in a row in which it finished no round it is given up:
`failure` says why, jobs are answered at once as if it had died over them, and `resume` tries anew.

`pending`, the work that the swarm has not taken, is the daemon's alone. The worker leaves a round's
pseudo-gradient in memory of its own, from where it is added when the worker has said that it is
whole. So a worker that is killed, at whatever instant, leaves `pending` as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import structlog
import trio

from gossamer.node.base.settings.settings import Settings
from gossamer.node.machine.trainer import TrainerListener
from gossamer.node.machine.trainer_configuration import (
    configuration_of,
    frozen_paths,
    shared_steps_of,
)
from gossamer.node.machine.trainer_exit import TrainerExit
from gossamer.node.machine.trainer_process import TrainerGoneError, TrainerProcess
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.auditing.audits import has_audits
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.sync_sets import SyncSets
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.framing import bytes_max_of
from gossamer.trainer.resources.device_names import may_be_several

if TYPE_CHECKING:
    from trio_typing import TaskStatus

FAILURES_MAX = 5
"""Lives in a row without a finished round before the node says `failed`."""

RESTART_SECONDS = 0.5
"""Wait after the first of these lives. Each further one doubles it, to 4 s."""

GONE_SECONDS = 0.05
"""Wait after a worker is gone, until its end has been noticed everywhere."""

log = structlog.get_logger("trainer")


class TrainerClient:
    """The real trainer, in a process of its own.

    It has more than 15 public methods: those of `Trainer`, which describes them. It has more than
    12 attributes: they say what the present worker has, was asked for and has answered.
    """

    def __init__(self, manifest: Manifest, settings: Settings, optimizer_path: str) -> None:
        # Its folder has nothing else in it: a worker cannot write the node's key and chain.
        folder = Path(optimizer_path).parent if settings.confine_trainer == "on" else None
        self._process = TrainerProcess(
            manifest.model.num_parameters,
            folder=folder,
            has_audits=has_audits(manifest),
            has_several=may_be_several(settings.device),
            message_bytes_max=bytes_max_of(manifest.model, shared_steps_of(manifest)),
        )
        self._vectors = self._process.vectors
        self.base: FloatVector = self._vectors.base
        self._sync_set = SyncSets(manifest.model, manifest.outer, manifest.sync).whole
        self.pending: FloatVector = np.zeros(self._sync_set.plan.num_elements, np.float32)
        self.lives = 0
        self.loaded_momentum: messages.Place | None = None
        self.save_seconds = 0.0
        self.failure: str | None = None
        self._configure = configuration_of(manifest, settings, self._vectors, optimizer_path)
        self._frozen = partial(frozen_paths, manifest, settings)
        self._device = settings.device
        """The device that the newest worker took; before it said so, the owner's choice."""
        self.is_up = False
        self._changed = trio.Event()
        """The event of the next change of `is_up` or `failure`. It is replaced at each change."""
        self._resumed = trio.Event()
        self._resumed.set()
        self._failures = 0
        """Lives in a row that were of no use."""
        self._was_useful = False
        """Whether the present worker has finished a round."""
        self._answer: messages.FromWorker | TrainerExit | None = None
        self._answered = trio.Event()
        self._save_problem = ""
        """The reason why the newest save did not work; it is logged once."""
        self._asking = trio.Lock()
        self._round: int | None = None
        self._stop_asked = False
        self._has_work = False
        """Whether a round's work waits in the worker's memory."""
        self._base_read = trio.Event()
        """The event of the newest `rebase`. It is replaced at each one."""
        self._base_read.set()
        self._saved = trio.Event()
        """The event of the newest `save`. It is replaced at each one."""
        self._saved.set()

    @property
    def pid(self) -> int | None:
        """Process id of the running worker; None without one."""
        return self._process.pid

    async def run(self, listener: TrainerListener) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_events, listener)
                await self._keep_up(listener)
        finally:
            self._vectors.release()

    async def _keep_up(self, listener: TrainerListener) -> None:
        while True:
            await self._resumed.wait()
            self._was_useful = False
            exit_ = await self._one_life()
            self._set(is_up=False)
            self._base_read.set()  # no worker reads it any more
            self._saved.set()
            if exit_.wanted:
                continue
            self._failures = 1 if self._was_useful else self._failures + 1
            delay_seconds = RESTART_SECONDS * 2 ** (self._failures - 1)
            log.error(exit_.description, restart_in_seconds=delay_seconds, failures=self._failures)
            if self._failures >= FAILURES_MAX:
                self._give_up(exit_)
                continue
            listener.restarted(exit_.reason)
            await trio.sleep(delay_seconds)

    def _give_up(self, exit_: TrainerExit) -> None:
        self._resumed = trio.Event()
        self.failure = (
            f"{exit_.description}. It was started {self._failures} times in a row and did "
            f"not finish a round. {exit_.remedies(self._device)}"
        )
        self._set(is_up=False)

    def _set(self, *, is_up: bool) -> None:
        self.is_up = is_up
        self._changed.set()
        self._changed = trio.Event()

    async def _one_life(self) -> TrainerExit:
        exits: list[TrainerExit] = []

        async def live(task_status: TaskStatus[None]) -> None:
            try:
                exits.append(await self._process.run(task_status=task_status))
            except OSError as error:
                exits.append(TrainerExit(failure=f"its process could not be started: {error}"))
                task_status.started()

        async with trio.open_nursery() as nursery:
            await nursery.start(live)
            if not self._resumed.is_set():  # suspended while it was being started
                nursery.start_soon(self._process.close)
            await self._configure_worker()
        return exits[0]

    async def _configure_worker(self) -> None:
        # The blocks of these weights are here by the time at which the trainer runs.
        frozen = await trio.to_thread.run_sync(self._frozen) if self._configure.model.lora else ()
        try:
            await self._process.send(msgspec.structs.replace(self._configure, frozen_paths=frozen))
        except TrainerGoneError:
            log.debug("the trainer died at once")  # its TrainerExit says why

    async def _read_events(self, listener: TrainerListener) -> None:
        async for event in self._process.events:
            match event:
                case messages.Configured():
                    self.lives += 1
                    self.loaded_momentum = event.momentum
                    self._device = event.device
                    listener.configured(event)
                    if event.problem:
                        log.warning(event.problem)
                    self._set(is_up=True)
                case messages.Step():
                    listener.stepped(event)
                case messages.Shared():
                    listener.shared(event)
                case messages.NeedData():
                    listener.needs_data(event.tokens_queued)
                case messages.Rebased():
                    self._base_read.set()
                case messages.Saved():
                    self.save_seconds = event.seconds
                    if event.problem and not self._save_problem:
                        log.warning(event.problem)
                    self._save_problem = event.problem
                    self._saved.set()
                case messages.Failed():
                    pass  # its TrainerExit follows and carries the reason
                case _:
                    # The first one counts: a worker may answer and be dead a moment later.
                    if not self._answered.is_set():
                        self._answer = event
                        self._answered.set()

    async def _ask(
        self,
        message: messages.ToWorker,
        *,
        patient: bool = True,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> messages.FromWorker | TrainerExit | None:
        """Sends a message to the worker, if `patient` when one is up, and waits for its answer or
        its end. None without a worker to ask, or if the message is not wanted any more before it
        is sent.
        """
        async with self._asking:
            while self.failure is None and is_wanted():
                if self.is_up:
                    self._answered = trio.Event()
                    try:
                        await self._process.send(message)
                    except TrainerGoneError:
                        await trio.sleep(GONE_SECONDS)
                    else:
                        await self._answered.wait()
                        return self._answer
                elif patient:
                    await self._changed.wait()
                else:
                    break
        return None

    async def _tell(self, message: messages.ToWorker) -> None:
        """Sends a message that has no answer; nothing happens if no worker is up."""
        if self.is_up:
            try:
                await self._process.send(message)
            except TrainerGoneError:
                log.debug("message to a trainer that is gone", message=type(message).__name__)

    async def genesis(self) -> bool:
        while self.failure is None:
            if isinstance(await self._ask(messages.Genesis()), messages.GenesisDone):
                return True
            log.warning("the trainer died over the initial weights")
        return False

    async def train(self, begin: messages.Begin) -> messages.Finished:
        self._round, self._stop_asked = begin.round, False
        try:
            while not (self.is_up or self.failure is not None or self._stop_asked):
                await self._changed.wait()
            # A worker passes over a stop that comes before its round.
            answer = await self._ask(begin, is_wanted=lambda: not self._stop_asked)
        finally:
            self._round = None
        if isinstance(answer, messages.Finished):
            self._has_work = True
            self._was_useful = self._was_useful or answer.steps > 0
            return answer
        return messages.Finished(round=begin.round, steps=0, tokens=0, spans=(), loss=math.nan)

    async def collect(self) -> bool:
        if not self._has_work:
            return True
        self._has_work = False
        # The worker does not write before it is asked for another round.
        return await trio.to_thread.run_sync(
            lambda: self._sync_set.add_work(self._vectors.pseudo_gradient, self.pending)
        )

    async def share(self, *, taken: bool) -> None:
        await self._tell(messages.Share(taken=taken))

    async def rebase(self, ranges: messages.Ranges) -> None:
        if self.is_up:
            self._base_read = trio.Event()
            await self._tell(messages.Rebase(ranges=ranges))

    async def base_is_read(self) -> None:
        await self._base_read.wait()

    async def stop(self) -> None:
        if self._round is not None:
            self._stop_asked = True
            self._set(is_up=self.is_up)  # a round that waits for its worker does not begin
            await self._tell(messages.Stop())

    async def queue(self, shard: int, path: str, start: int, stop: int) -> None:
        if self.is_up:
            await self._tell(messages.Data(shard=shard, path=path, start=start, stop=stop))
        while not self.is_up:
            await self._changed.wait()

    async def forget(self) -> None:
        await self._tell(messages.Forget())

    async def evaluate(
        self, paths: Sequence[str], tokens_max: int, seconds_max: float
    ) -> messages.Evaluated | None:
        job = messages.Evaluate(paths=tuple(paths), tokens_max=tokens_max, seconds_max=seconds_max)
        answer = await self._ask(job, patient=False)
        return answer if isinstance(answer, messages.Evaluated) else None

    async def sample(self, task: messages.Sample) -> messages.Sampled | None:
        answer = await self._ask(task, patient=False)
        return answer if isinstance(answer, messages.Sampled) else None

    @property
    def audited(self) -> FloatVector:
        assert self._vectors.audited is not None
        return self._vectors.audited

    async def audit(self, sequences: Sequence[tuple[str, int]]) -> tuple[float, ...] | None:
        answer = await self._ask(messages.Audit(sequences=tuple(sequences)), patient=False)
        return answer.losses if isinstance(answer, messages.Audited) else None

    def give_back_audited(self) -> None:
        self._vectors.give_back_audited()

    async def limit(self, limits: messages.Limits) -> None:
        self._configure = msgspec.structs.replace(self._configure, limits=limits)
        if self.is_up:
            await self._tell(limits)

    async def suspend(self) -> None:
        if self._resumed.is_set():  # else `run` may wait for this very event
            self._resumed = trio.Event()
        await self._process.close()

    def resume(self) -> None:
        if self.failure is not None:
            self.failure, self._failures = None, 0
        self._resumed.set()

    async def keep_momentum(self, *, keep: bool) -> None:
        await self._tell(messages.KeepMomentum(keep=keep))

    async def save(self, place: messages.Place) -> None:
        # Not asked: a round that is under way is the answer that `_ask` waits for.
        if self.is_up and self._saved.is_set():
            self._saved = trio.Event()
            await self._tell(messages.Save(place=place))

    async def is_saved(self) -> None:
        await self._saved.wait()
