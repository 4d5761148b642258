"""The work of the trainer process (`worker`): it answers the daemon's messages.

A thread reads messages from stdin; the main thread trains and looks at them after every step; a
third thread says that the process lives, and how long the main one has been at what it does.
stdout belongs to the messages: anything that prints goes to stderr. The end of stdin means that
the daemon is gone and ends the process at once; SIGTERM does too. SIGINT is ignored: from a
terminal it reaches the daemon as well, which decides.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO

import msgspec

from gossamer.trainer.confinement.confine import Confinement, give_up_network
from gossamer.trainer.distro.shared_trainer import SharedTrainer
from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.ipc import environment, framing, memory, messages, pipe
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.ranks.spread import Spread
from gossamer.trainer.ranks.starting import start_others, useful
from gossamer.trainer.resources.device import (
    OWNER_LIMITS,
    Device,
    DeviceError,
    choose_device,
    choose_devices,
    is_out_of_memory,
)
from gossamer.trainer.resources.device_names import may_be_several, names_together
from gossamer.trainer.text.data import DataError

# Messages read and not yet looked at. Bounds the memory; the daemon never has so many under way.
_INBOX_MAX = 2 * messages.DATA_RANGES_MAX

# Longer waits for data are cut in pieces: the system's clock calls refuse very large ones.
_WAIT_SECONDS_MAX = 3600.0


NOT_ASKED_FOR = "the trainer is not confined: confine_trainer is off"


class _Exit(Exception):
    """The daemon said Exit."""


class Worker:
    """Answers messages with a `LocalTrainer` until Exit."""

    def __init__(self, output: IO[bytes], confinement: Confinement | None = None) -> None:
        """`confinement`: what the process gave up; None if nothing was asked for."""
        self._output = output
        self._confinement = confinement
        self._inbox: queue.Queue[messages.ToWorker | pipe.MessageError] = queue.Queue(_INBOX_MAX)
        self._trainer: LocalTrainer | None = None
        self._device: Device | None = None
        self._spread: Spread | None = None
        """The other devices; None with one alone."""
        self._bytes_max = framing.MESSAGE_BYTES_MAX
        self._sending = threading.Lock()
        self._busy_since: float | None = time.monotonic()
        """Time at which the main thread began its present piece of work; None while it waits."""
        self._waited_seconds = 0.0
        """Time spent waiting for messages since the newest step."""

    def show_life(self) -> None:
        """Sends Alive until the daemon is gone. Runs in a thread of its own."""
        while True:
            with self._sending:
                since = self._busy_since
                busy_seconds = 0.0 if since is None else time.monotonic() - since
                try:
                    self._write(messages.Alive(busy_seconds=busy_seconds))
                except OSError:
                    return
            time.sleep(messages.ALIVE_SECONDS)

    def _got_on(self) -> None:
        self._busy_since = time.monotonic()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Marks a wait for the daemon, in which Alive says 0 busy seconds."""
        self._busy_since = None
        try:
            yield
        finally:
            self._got_on()

    def read(self, source: IO[bytes]) -> None:
        """Reads messages until the end of `source`, and then ends the process. Runs in a thread."""
        try:
            while (body := pipe.read(source, framing.MESSAGE_BYTES_MAX)) is not None:
                self._inbox.put_nowait(framing.decode_to_worker(body))
        except pipe.MessageError as error:
            self._inbox.put(error)
        except queue.Full:
            self._inbox.put(pipe.MessageError(f"more than {_INBOX_MAX} messages are waiting"))
        else:
            self.leave()

    def leave(self, failed: str = "") -> None:
        """Ends the process, whatever the main thread does. `failed`: the reason for people, if it
        is no end in order."""
        with suppress(OSError):
            if self._trainer is not None:
                self._trainer.withdraw()  # the size of this device's passes is not to blame
        if failed:
            with suppress(OSError):
                self.fail(failed)
        self.end_others()
        # Not sys.exit: the main thread may be in a long step, whose result nothing needs any more.
        os._exit(1 if failed else 0)

    def run(self) -> None:
        """Works until Exit.

        Raises:
            MessageError, TrainerError, DataError, DeviceError, ValueError: the worker cannot go on.
        """
        try:
            while True:
                if self._trainer is not None and self._trainer.in_round:
                    self._train(self._trainer)
                else:
                    self._handle(self._next(None))
        except _Exit:
            return

    def _train(self, trainer: LocalTrainer) -> None:
        """One step, or a wait for data, of the round that is running."""
        while not self._inbox.empty():
            self._handle(self._next(None))
            if not trainer.in_round:
                return
        if trainer.round.is_over:
            self._send(trainer.finish())
            return
        if trainer.waits_for_others:
            self._wait(trainer)
            return
        self._got_on()
        done = trainer.step()
        if done is not None:
            self._send(msgspec.structs.replace(done, waited_seconds=self._waited_seconds))
            self._waited_seconds = 0.0
            if isinstance(trainer, SharedTrainer) and (offer := trainer.offer()) is not None:
                self._send(offer)
        if not trainer.round.is_over and (shortage := trainer.need_data()) is not None:
            self._send(shortage)
        if done is None:
            self._wait(trainer)

    def _wait(self, trainer: LocalTrainer) -> None:
        """Waits for the next message until the round's time is up, and handles it."""
        try:
            message = self._next(min(max(trainer.round.seconds_left, 0.0), _WAIT_SECONDS_MAX))
        except queue.Empty:
            return
        self._handle(message)

    def _next(self, timeout_seconds: float | None) -> messages.ToWorker:
        started = time.monotonic()
        try:
            with self._waiting():
                message = self._inbox.get(timeout=timeout_seconds)
        finally:
            self._waited_seconds += time.monotonic() - started
        if isinstance(message, pipe.MessageError):
            raise message
        return message

    def _handle(self, message: messages.ToWorker) -> None:
        if isinstance(message, messages.Exit):
            raise _Exit
        if isinstance(message, messages.Configure):
            self._configure(message)
            return
        trainer = self._trainer
        if trainer is None:
            raise TrainerError(f"{type(message).__name__} before Configure")
        match message:
            case messages.Data(shard=shard, path=path, start=start, stop=stop):
                trainer.push(shard, path, start, stop)
            case messages.Begin():
                trainer.begin(message)
            case messages.Stop():
                # Between rounds: it crossed with the Finished of a round that ended by itself.
                if trainer.in_round:
                    self._send(trainer.finish())
            case messages.Forget():
                trainer.forget()
            case messages.Share():
                if not isinstance(trainer, SharedTrainer):
                    raise TrainerError("Share without shared steps")
                trainer.share(taken=message.taken)
            case messages.Rebase(ranges=ranges):
                trainer.rebase(ranges)
                self._send(messages.Rebased())
            case messages.Evaluate():
                paths, tokens_max = message.paths, message.tokens_max
                self._send(trainer.evaluate(paths, tokens_max, message.seconds_max))
            case messages.Sample():
                self._send(trainer.sample(message))
            case messages.Audit():
                self._send(trainer.audit(message.sequences))
            case messages.Save():
                started = time.monotonic()
                problem = trainer.save(message.place)
                self._send(messages.Saved(problem=problem, seconds=time.monotonic() - started))
            case messages.KeepMomentum():
                if not isinstance(trainer, SharedTrainer):
                    raise TrainerError("KeepMomentum without shared steps")
                trainer.keep_momentum(keep=message.keep)
            case messages.Limits():
                self._limit(message, trainer.device)
            case messages.Genesis():
                trainer.genesis()
                self._send(messages.GenesisDone())

    def _configure(self, message: messages.Configure) -> None:
        if self._trainer is not None:
            raise TrainerError("Configure came twice")
        num_parameters = message.model.num_parameters
        self._bytes_max = framing.bytes_max_of(message.model, message.shared_steps)
        devices = self._take_devices(message)
        make: Callable[..., LocalTrainer] = LocalTrainer
        if message.shared_steps is not None:
            make = partial(SharedTrainer, steps=message.shared_steps)
        confinement = self._confinement
        config = msgspec.structs.replace(
            message,
            device=str(devices[0].torch_device),
            children_use_device=confinement is None or confinement.children_use_gpu,
        )
        trainer = make(
            config,
            memory.open_vector(message.base_fd, num_parameters),
            memory.open_vector(message.pseudo_gradient_fd, num_parameters),
            self._got_on,
        )
        if message.audited_fd is not None:
            trainer.audited = memory.open_vector(message.audited_fd, num_parameters)
        if self._spread is not None:
            trainer.spread(self._spread)
        if trainer.device.torch_device.type == "cpu":
            os.nice(environment.NICENESS)
        self._trainer = trainer
        self._send(
            messages.Configured(
                device=",".join(str(device.torch_device) for device in devices),
                device_name=names_together([device.name for device in devices]),
                precision=trainer.device.precision,
                moments=trainer.moments,
                momentum=trainer.loaded_momentum,
                problem=trainer.optimizer_problem,
                confinement=confinement.text if confinement else NOT_ASKED_FOR,
            )
        )

    def _take_devices(self, message: messages.Configure) -> tuple[Device, ...]:
        """The devices that train, under the owner's limits. With several their processes run and
        are connected; then this one gives up the network, which it kept for that."""
        found = choose_devices(message.device, message.model.width)
        devices = useful(found, message.inner.sequences_per_step)
        self._device = devices[0]
        if len(devices) > 1:
            self._spread = start_others(
                message,
                devices,
                is_confined=self._confinement is not None,
                on_progress=self._got_on,
                on_lost=self.leave,
            )
        if self._confinement is not None and may_be_several(message.device):
            self._confinement = give_up_network(self._confinement)
            if self._spread is not None:
                self._confinement = self._confinement.without(*self._spread.network_problems)
        self._limit(message.limits or messages.Limits(), self._device)
        return devices

    def _limit(self, limits: messages.Limits, device: Device) -> None:
        """Makes the owner's limits hold, of which each device's process has its part."""
        if self._spread is not None:
            num_devices = len(self._spread.shares.counts)
            limits = OWNER_LIMITS.share_of(limits, num_devices, device.torch_device)
            self._spread.followers.tell(limits)
        OWNER_LIMITS.apply(limits, device.torch_device)

    def end_others(self) -> None:
        """Ends the processes of the other devices, each with what it knows of its memory."""
        if self._spread is not None:
            self._spread.close()

    def _send(self, message: messages.FromWorker) -> None:
        with self._waiting(), self._sending:
            self._write(message)

    def _write(self, message: messages.FromWorker) -> None:
        self._output.write(framing.encode(message, self._bytes_max))
        self._output.flush()

    def fail(self, reason: str) -> None:
        self._send(messages.Failed(reason=reason))

    def fail_for_memory(self, error: Exception) -> None:
        """Memory ran out outside a step, where nothing smaller can be tried."""
        device = self._device or choose_device("cpu")
        what = str(error).partition("\n")[0] or type(error).__name__
        self.fail(
            f"{device.name} has too little memory for this model ({what}): {device.memory_advice}"
        )


def main(confinement: Confinement | None) -> int:
    """Works at stdin and stdout until the end. `confinement`: see `Worker`.

    Exit code: 0 after Exit, SIGTERM or the end of stdin; 1 after Failed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)

    source, output = pipe.take_pipes()
    worker = Worker(output, confinement)
    # Files on disk are replaced atomically, so there is little to tidy up.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: worker.leave())
    threading.Thread(target=worker.read, args=(source,), name="stdin", daemon=True).start()
    threading.Thread(target=worker.show_life, name="life", daemon=True).start()
    try:
        worker.run()
    except BrokenPipeError:
        return 0  # the daemon is gone, as at the end of stdin
    except (pipe.MessageError, TrainerError, DataError, DeviceError) as error:
        worker.fail(str(error))
        return 1
    except Exception as error:
        if is_out_of_memory(error):
            worker.fail_for_memory(error)
            return 1
        traceback.print_exc()
        worker.fail(f"{type(error).__name__}: {error}")
        return 1
    finally:
        worker.end_others()
    return 0
