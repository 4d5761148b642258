"""What the node needs of a trainer, and what a trainer tells the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gossamer.node.base.settings.settings import Settings
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.state.digest import FloatVector
from gossamer.trainer.ipc import messages


class TrainerFailedError(Exception):
    """The trainer does not do what the node cannot start without; the text says why."""


class TrainerListener(Protocol):
    """The node, as its trainer sees it. A trainer calls these on the event loop while it runs."""

    def configured(self, configured: messages.Configured) -> None:
        """A worker is up, with an empty queue."""

    def stepped(self, step: messages.Step) -> None:
        """The worker did an inner step."""

    def shared(self, shared: messages.Shared) -> None:
        """The worker has its part of a shared step."""

    def needs_data(self, tokens_queued: int) -> None:
        """The worker's queue runs out: so many tokens are left."""

    def restarted(self, reason: str) -> None:
        """The worker is started again; `reason` is one of `metrics.RESTART_REASONS`."""


class Trainer(Protocol):
    """The trainer, as the node uses it. Tests have one that trains in virtual time.

    It has more than 15 public methods: nearly each is a message to the trainer.
    """

    base: FloatVector
    pending: FloatVector
    """Elements in the order of the sync sets (`protocol.state.sync_sets`)."""

    lives: int
    """Workers so far that were ready to be asked."""

    loaded_momentum: messages.Place | None
    """Place of the momentum that the newest worker found on disk (`sync = "distro"`)."""

    failure: str | None
    """The reason why there is no trainer any more, and the remedy; None while it is up or will
    be."""

    @property
    def is_up(self) -> bool:
        """Returns whether a worker is ready to be asked."""

    async def run(self, listener: TrainerListener) -> None:
        """Keeps the trainer up and tells the listener what happens, until cancelled."""

    async def genesis(self) -> bool:
        """Fills `base` with the initial weights of the run's seed. False if it cannot be had."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        """Trains one round. Its work is to be collected before the next."""

    async def collect(self) -> bool:
        """Adds the work of the newest finished round to `pending`. Once a round.

        Returns False, with `pending` as it was, if the work has a value that cannot be used.
        """

    async def rebase(self, ranges: messages.Ranges) -> None:
        """`base` is new in these ranges: the work of the newest round, finished or not, is kept on
        top of it. Not after its work was collected."""

    async def base_is_read(self) -> None:
        """Returns when `base` may be written again after `rebase`, and the work of a round
        that had finished is whole again."""

    async def share(self, *, taken: bool) -> None:
        """`base` is where all are: the next shared step. `taken`: whether they took the last."""

    async def stop(self) -> None:
        """Ends the running round after its present step."""

    async def queue(self, shard: int, path: str, start: int, stop: int) -> None:
        """Queues tokens to train on. Where a worker has to be waited for, they are not queued: it
        begins with an empty queue, as `TrainerListener.configured` has said by then."""

    async def forget(self) -> None:
        """Empties the queue."""

    async def evaluate(
        self, paths: Sequence[str], tokens_max: int, seconds_max: float
    ) -> messages.Evaluated | None:
        """Loss of `base` on held-out shards, of as much as takes so long; NaN without a token to
        predict; None if the trainer died over it."""

    async def sample(self, task: messages.Sample) -> messages.Sampled | None:
        """Texts of the model of `base`; None if there is no worker, or it died over it."""

    @property
    def audited(self) -> FloatVector:
        """(num_parameters,) of which `audit` tells the loss, in a run with audits. It takes memory
        from when it is written to `give_back_audited`."""

    async def audit(self, sequences: Sequence[tuple[str, int]]) -> tuple[float, ...] | None:
        """Losses of `audited` on single sequences, in nats a token, NaN for one without a token to
        predict; None if there is no worker, or it died over it. Between rounds only.

        Args:
            sequences: (file of a shard, first token).
        """

    def give_back_audited(self) -> None:
        """`audited` is not needed any more. Its values are zeros afterwards."""

    async def limit(self, limits: messages.Limits) -> None:
        """The owner's limits of the worker hold from its present step on, and for later workers."""

    async def suspend(self) -> None:
        """Ends the worker process, which frees the device, until `resume`."""

    def resume(self) -> None:
        """Starts it again, after `suspend` or a failure."""

    async def keep_momentum(self, *, keep: bool) -> None:
        """Says whether a worker goes on from the momentum that it found on disk. Without this call
        its first round begins without the momentum."""

    save_seconds: float
    """Duration of the newest save."""

    async def save(self, place: messages.Place) -> None:
        """Has the inner optimiser's state, or the momentum and its place, written to disk after the
        step that the worker is at. Nothing if it has not come to the last one yet."""

    async def is_saved(self) -> None:
        """Waits until the newest save is done, or the worker is gone."""


MakeTrainer = Callable[[Manifest, Settings, str], Trainer]
"""Makes the trainer of a run; the text is the file of the inner optimiser's state. The trainer runs
only when its `run` is called."""
