"""The trainer as the node uses it: one call a job, restarts hidden, failures told.

Behind it is a worker process (`trainer_process`) that may die at any time. Then its running job is
answered as far as it can be (a round that died has no work), the worker is started again with
back-off, and after `FAILURES_MAX` failures in a row the node is told to give up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from gossamer.node.interface.config import Settings
from gossamer.node.machine.trainer_process import (
    Backoff,
    TrainerExit,
    TrainerGoneError,
    TrainerProcess,
)
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.state import FloatVector
from gossamer.trainer import messages

if TYPE_CHECKING:
    from trio_typing import TaskStatus

FAILURES_MAX = 5
"""Starts in a row that fail (with 0.5 to 8 s between them) before the node says `failed`."""

STOP_SECONDS = 300.0
"""The longest inner step that a stop waits for: a large model on a slow machine."""

log = structlog.get_logger("trainer")


class TrainerFailedError(Exception):
    """The trainer does not stay up; the text says why and what to do."""


class Trainer(Protocol):
    """What the node needs of a trainer. Tests have one that trains in virtual time."""

    base: FloatVector
    pending: FloatVector

    @property
    def is_up(self) -> bool:
        """Whether a trainer is there to be asked."""

    async def run(self) -> None:
        """Keeps the trainer up until cancelled. Raises TrainerFailedError."""

    async def genesis(self) -> None:
        """Fills `base` with the initial weights of the run's seed."""

    async def train(
        self, round_number: int, first_step: int, steps: int, seconds: float
    ) -> messages.Finished:
        """Trains one round from `base`; its work is in `pending` then."""

    async def stop(self) -> None:
        """Ends the running round after its present step."""

    async def queue(self, shard: int, path: str, start: int, stop: int) -> None:
        """Queues tokens to train on."""

    async def forget(self) -> None:
        """Empties the queue."""

    async def evaluate(self, paths: Sequence[str], tokens_max: int) -> messages.Evaluated | None:
        """Loss of `base` on held-out shards; None if the trainer died over it."""

    async def suspend(self) -> None:
        """Ends the worker process, which frees the device, until `resume`."""

    def resume(self) -> None: ...

    async def save(self) -> None:
        """Writes the inner optimiser's state to disk."""


class ProcessTrainer:
    """The real trainer, in a process of its own."""

    def __init__(
        self,
        manifest: Manifest,
        settings: Settings,
        optimizer_path: str,
        *,
        on_step: Callable[[messages.Step], None],
        on_need: Callable[[int], None],
        on_restart: Callable[[str], None],
        on_configured: Callable[[messages.Configured], None],
    ) -> None:
        self._process = TrainerProcess(manifest.model.num_parameters)
        self.base: FloatVector = self._process.base
        self.pending: FloatVector = self._process.pending
        self._configure = messages.Configure(
            model=manifest.model,
            inner=manifest.inner,
            device=settings.device,
            threads=settings.threads,
            seed=manifest.seed,
            base_fd=self._process.base_fd,
            pending_fd=self._process.pending_fd,
            token_bytes=manifest.data.token_bytes,
            optimizer_path=optimizer_path,
        )
        self._on_step = on_step
        self._on_need = on_need
        self._on_restart = on_restart
        self._on_configured = on_configured
        self._is_up = trio.Event()
        self._resumed = trio.Event()
        self._resumed.set()
        self._answer: messages.FromWorker | TrainerExit | None = None
        self._answered = trio.Event()
        self._asking = trio.Lock()
        self._round: int | None = None

    @property
    def is_up(self) -> bool:
        return self._is_up.is_set()

    @property
    def pid(self) -> int | None:
        """Of the worker that runs now."""
        return self._process.pid

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_events)
                await self._keep_up()
        finally:
            self._process.release()

    async def _keep_up(self) -> None:
        backoff = Backoff()
        while True:
            await self._resumed.wait()
            exit_ = await self._one_life()
            self._is_up = trio.Event()
            if exit_.wanted:
                continue
            backoff = backoff.after(exit_.lived_seconds)
            reason = "killed" if exit_.signal is not None else "failed"
            log.error(
                exit_.description,
                restart_in_seconds=backoff.delay_seconds,
                failures=backoff.failures,
            )
            if backoff.failures >= FAILURES_MAX:
                raise TrainerFailedError(
                    f"{exit_.description}; it was started {backoff.failures} times in a row. "
                    "`gossamer doctor` checks the device; --device cpu trains without it"
                )
            self._on_restart(reason)
            await trio.sleep(backoff.delay_seconds)

    async def _one_life(self) -> TrainerExit:
        exits: list[TrainerExit] = []

        async def live(task_status: TaskStatus[None]) -> None:
            exits.append(await self._process.run(task_status=task_status))

        async with trio.open_nursery() as nursery:
            await nursery.start(live)
            await self._configure_worker()
        return exits[0]

    async def _configure_worker(self) -> None:
        try:
            await self._process.send(self._configure)
        except TrainerGoneError:
            log.debug("the trainer died at once")  # its TrainerExit says why

    async def _read_events(self) -> None:
        async for event in self._process.events:
            match event:
                case messages.Configured():
                    self._on_configured(event)
                    if event.problem:
                        log.warning(event.problem)
                    self._is_up.set()
                case messages.Step():
                    self._on_step(event)
                case messages.NeedData():
                    self._on_need(event.tokens_queued)
                case messages.Failed():
                    pass  # its TrainerExit follows and carries the reason
                case _:
                    self._answer = event
                    self._answered.set()

    async def _ask(self, message: messages.ToWorker) -> messages.FromWorker | TrainerExit:
        """Sends a message when the worker is up and waits for its answer or its end."""
        async with self._asking:
            while True:
                await self._is_up.wait()
                self._answered = trio.Event()
                try:
                    await self._process.send(message)
                except TrainerGoneError:
                    await trio.sleep(0.05)  # its end is being noticed
                    continue
                await self._answered.wait()
                assert self._answer is not None
                return self._answer

    async def _tell(self, message: messages.ToWorker) -> None:
        """Sends a message that has no answer; nothing happens if no worker is up."""
        if self._is_up.is_set():
            try:
                await self._process.send(message)
            except TrainerGoneError:
                log.debug("message to a trainer that is gone", message=type(message).__name__)

    async def genesis(self) -> None:
        while not isinstance(await self._ask(messages.Genesis()), messages.GenesisDone):
            log.warning("the trainer died over the initial weights; trying again")

    async def train(
        self, round_number: int, first_step: int, steps: int, seconds: float
    ) -> messages.Finished:
        begin = messages.Begin(
            round=round_number, first_step=first_step, steps_max=steps, seconds_max=seconds
        )
        self._round = round_number
        try:
            answer = await self._ask(begin)
        finally:
            self._round = None
        if isinstance(answer, messages.Finished):
            return answer
        return messages.Finished(
            round=round_number, steps=0, tokens=0, spans=(), loss_mean=math.nan, seconds=0.0
        )

    async def stop(self) -> None:
        if self._round is not None:
            await self._tell(messages.Stop())

    async def queue(self, shard: int, path: str, start: int, stop: int) -> None:
        await self._is_up.wait()
        await self._tell(messages.Data(shard=shard, path=path, start=start, stop=stop))

    async def forget(self) -> None:
        await self._tell(messages.Forget())

    async def evaluate(self, paths: Sequence[str], tokens_max: int) -> messages.Evaluated | None:
        answer = await self._ask(messages.Evaluate(paths=tuple(paths), tokens_max=tokens_max))
        return answer if isinstance(answer, messages.Evaluated) else None

    async def suspend(self) -> None:
        self._resumed = trio.Event()
        await self._process.close()

    def resume(self) -> None:
        self._resumed.set()

    async def save(self) -> None:
        if self._is_up.is_set():
            answer = await self._ask(messages.Save())
            if isinstance(answer, messages.Saved) and answer.problem:
                log.warning(answer.problem)
