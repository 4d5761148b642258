"""One peer's local training: rounds of inner steps from `base`, the result in `pseudo_gradient`.

`LocalTrainer` is all of it without processes or pipes. The worker is a thin shell around it; tests
and experiments drive many of them in one process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossamer.trainer.checkpoint import CheckpointError, load_moments, save_moments
from gossamer.trainer.compiling.compiler import NOTE_NAME, Compiler
from gossamer.trainer.handover import HandOver
from gossamer.trainer.inner_step.gradients import Gradients, TrainerError
from gossamer.trainer.inner_step.muon import Muon, optimizer_for
from gossamer.trainer.inner_step.optimizer import AdamW, clip
from gossamer.trainer.inner_step.schedule import learning_rate_of
from gossamer.trainer.inner_step.step_clock import clock_of
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_round import LocalRound
from gossamer.trainer.model import decoder_on
from gossamer.trainer.ranks.spread import Spread, SpreadGradients
from gossamer.trainer.resources.device import take_device
from gossamer.trainer.resources.passes import moment_format_on, passes_of
from gossamer.trainer.state_reader import StateReader
from gossamer.trainer.text.data import DataQueue, num_targets
from gossamer.trainer.text_bytes import TextBytes

# Data is asked for when less than this many steps are queued: time for a shard to come over the
# network.
STEPS_AHEAD = 4


class LocalTrainer:
    """Model, data queue and optimiser of one peer. Not for use from several threads.

    `base` and `pseudo_gradient` are (num_parameters,) fp32, shared with the caller. `base` is only
    read, except by `genesis`. `pseudo_gradient` is written from `begin` to `finish`, and holds the
    work of the newest finished round in between.

    It has more than 15 public methods: each message of the daemon has one. It has more than 12
    attributes: the parts that a local round uses, and where the round is.
    """

    audited: NDArray[np.float32] | None = None
    """(num_parameters,), shared with the caller, of which `audit` tells the loss; None in a run
    without audits."""

    loaded_momentum: messages.Place | None = None
    """Place in the chain of a loaded momentum of shared steps; None if none was loaded."""

    def __init__(
        self,
        config: TrainerConfig,
        base: NDArray[np.float32],
        pseudo_gradient: NDArray[np.float32],
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Loads the moments if there are some; `optimizer_problem` says why they could not be.

        Args:
            on_progress: is called after every piece of longer work.

        Raises:
            DeviceError: no such device here.
            ValueError: `base` or `pseudo_gradient` of the wrong length or type.
            DataError: frozen weights that cannot be used.
        """
        model = config.model
        self._config = config
        self._base, self._pseudo_gradient = base, pseudo_gradient
        self.device = take_device(config.device, model.width)
        self._decoder = decoder_on(model, self.device, config.frozen_paths, on_progress)
        self._decoder.flat.zero_()
        self._handover = HandOver(base, pseudo_gradient, self._decoder.flat)
        self._text_bytes = TextBytes(config)
        self._reader = StateReader(
            self._decoder, self.device, config, self._text_bytes, on_progress
        )
        self._parameters = list(self._decoder.parameters())
        self._optimizer = self._make_optimizer()
        self._optimizer_path = Path(config.optimizer_path) if config.optimizer_path else None
        self._queue = DataQueue(model.context, config.token_bytes, model.vocabulary)
        self._clock = clock_of(self.device.torch_device)
        self._compiler = Compiler(
            self._decoder, self.device, model, config.compiling, note=self._compiling_note()
        )
        self._own = Gradients(
            self._decoder,
            self.device,
            passes_of(config, self.device),
            on_progress,
            self._clock,
            self._compiler,
        )
        self._gradients: Gradients | SpreadGradients = self._own
        self._round: LocalRound | None = None
        self._has_local = False
        """True if the local parameters belong to a round, which may have ended."""
        self._stays_behind = 0.0
        """`mixing` in a round that went on from the local parameters, else 0: a round that began
        from `base` would undo that part of the outer step."""
        self._asked = False
        self.optimizer_problem = self._load_moments()

    def _make_optimizer(self) -> AdamW | Muon | None:
        """The run's optimiser, or None in a trainer that updates the parameters in another way."""
        model, inner = self._config.model, self._config.inner
        moment_format = moment_format_on(self.device, model, inner, self._config.moments)
        return optimizer_for(self._decoder, inner, self.device.coarse_dtype, moment_format)

    def _compiling_note(self) -> Path | None:
        if self._config.children_use_device:
            return None
        # Without a place for the note, the trainer would compile again after each crash of it.
        return None if self._optimizer_path is None else self._optimizer_path.with_name(NOTE_NAME)

    def spread(self, spread: Spread) -> None:
        """Takes gradients also on other devices from now on. The trainer's own is the first."""
        self._gradients = SpreadGradients(self._own, self._decoder, spread)

    def withdraw(self) -> None:
        """The process is ended in order; see `Passes.withdraw`. May be called from any thread."""
        self._compiler.close()
        self._own.passes.withdraw()

    @property
    def round(self) -> LocalRound:
        """The round that is running. Raises TrainerError: none is."""
        if self._round is None:
            raise TrainerError("no round is running: Begin comes first")
        return self._round

    @property
    def moments(self) -> str:
        """The format in which the optimiser keeps its moments; empty without one."""
        return "" if self._optimizer is None else self._optimizer.moment_format

    @property
    def micro_batch(self) -> int:
        """Sequences of one forward pass at present."""
        return self._own.passes.present.sequences

    @property
    def in_round(self) -> bool:
        return self._round is not None

    @property
    def waits_for_others(self) -> bool:
        """True if the next step has to wait until the daemon says what became of the last one."""
        return False

    def genesis(self) -> None:
        """Writes the seed's initial weights into `base`."""
        self._require_between_rounds("Genesis")
        self._has_local = False
        self._decoder.initialise(self._config.seed)
        self._base[:] = self._decoder.flat.cpu().numpy()

    def push(self, shard: int, path: str, start: int, stop: int) -> None:
        """Queues data, see `DataQueue.push`."""
        self._queue.push(shard, path, start, stop)
        self._asked = False

    def forget(self) -> None:
        self._queue.forget()
        self._asked = False

    def begin(self, task: messages.Begin) -> None:
        """Starts a round; the first one, and the first after genesis, from `base` in any case.

        The work is measured against what it starts from: `base`; or the local parameters as the
        last round left them, if the caller has collected that round's work and carries it.
        """
        self._require_idle("Begin")
        goes_on = task.start == "local" and self._has_local
        # In `_pseudo_gradient` what the work is measured against: the shared `base` may move on.
        with self._clock.of("handover"):
            if goes_on:
                self._handover.begin_at_local()
            else:
                self._handover.begin_at_base()
        self._has_local = True
        self._stays_behind = self._config.mixing if goes_on else 0.0
        self._round = LocalRound(task)
        self._asked = False
        if goes_on:
            self.rebase(task.new)

    def need_data(self) -> messages.NeedData | None:
        """The message to the daemon if data runs short, once for each shortage; else None."""
        number, queued = self.round.task.round, self._queue.tokens_queued
        step_tokens = self._config.inner.sequences_per_step * (self._config.model.context + 1)
        if self._asked or queued >= STEPS_AHEAD * step_tokens:
            return None
        self._asked = True
        return messages.NeedData(round=number, tokens_queued=queued)

    def step(self) -> messages.Step | None:
        """One inner step; None if there is too little data.

        Raises:
            DataError: a shard that cannot be used.
            TrainerError: memory does not suffice for a single sequence.
        """
        current = self.round
        started = time.monotonic()
        with self._clock.of("data"):
            batch = self._queue.take(self._config.inner.sequences_per_step)
        if batch is None:
            return None
        targets = num_targets(batch.sequences)
        learning_rate = self._learning_rate(current, targets)
        with self._clock.of("handover"):
            self._take_position()
        loss, norm = self._gradients.take(batch.sequences)
        is_good = math.isfinite(loss) and math.isfinite(norm)
        if is_good and targets:
            clip(self._parameters, norm, self._config.inner.clip_norm)
            is_good = self._use_gradients(learning_rate)
        skipped = not is_good
        self._gradients.drop()
        self._clock.begins(None)
        tokens = 0 if skipped else targets
        text_bytes = self._text_bytes.of_targets(batch.sequences) if tokens else 0
        place = current.task.first_step + current.steps
        current.add_step(batch.spans, tokens, text_bytes, loss)
        return messages.Step(
            round=current.task.round,
            step=place,
            loss=loss,
            tokens=tokens,
            seconds=time.monotonic() - started,
            gradient_norm=norm,
            learning_rate=learning_rate,
            skipped=skipped,
            text_bytes=text_bytes,
            times=self._clock.take() if self._clock.is_read else None,
            device_memory_bytes=self.device.take_peak_bytes(),
        )

    def _learning_rate(self, current: LocalRound, targets: int) -> float:
        """The learning rate of the next step, which has so many targets."""
        inner = self._config.inner
        step_tokens = inner.sequences_per_step * self._config.model.context
        # The chain counts the tokens that are trained on, and so do the steps before it does.
        whole_steps = (current.tokens + targets) / step_tokens
        task = current.task
        return learning_rate_of(task.first_step, current.steps, inner, task.place, whole_steps)

    def _take_position(self) -> None:
        """Moves the model to the point where the next gradient is taken: the local parameters."""

    def _use_gradients(self, learning_rate: float) -> bool:
        """Updates the parameters with the gradients in `.grad`, which are finite and clipped.

        Returns False if the step came to nothing.
        """
        assert self._optimizer is not None
        self._optimizer.step(learning_rate)
        return True

    def rebase(self, ranges: messages.Ranges) -> None:
        """Takes over `base` in these ranges, where it is now the state that the round before the
        newest one led to. The newest round's work, done or still going on, is kept on top of it;
        see `overlap`. Called once a round.
        """
        if not self._has_local:
            return  # the first round begins from `base`
        with self._clock.of("handover"):
            self._handover.rebase(ranges, self._stays_behind, in_round=self.in_round)

    def finish(self) -> messages.Finished:
        """Ends the round: `pseudo_gradient = what the work is measured against - local`."""
        current = self.round
        with self._clock.of("handover"):
            if current.tokens or self._stays_behind:
                self._handover.collect()
            else:
                self._pseudo_gradient[:] = 0.0
        self._round = None
        return current.finished()

    def evaluate(
        self, paths: tuple[str, ...], tokens_max: int, seconds_max: float = math.inf
    ) -> messages.Evaluated:
        """See `StateReader.loss`."""
        self._require_idle("Evaluate")
        return self._reader.loss(self._base, paths, self.micro_batch, tokens_max, seconds_max)

    def sample(self, task: messages.Sample) -> messages.Sampled:
        """Texts of the model of `base`."""
        self._require_idle("Sample")
        return self._reader.texts(self._base, task)

    def audit(self, sequences: Sequence[tuple[str, int]]) -> messages.Audited:
        """Losses of the parameters in `audited`, see `StateReader.losses`.

        Raises:
            TrainerError: nothing is audited in this run, or not so much.
        """
        self._require_idle("Audit")
        if self.audited is None or len(sequences) > messages.AUDIT_SEQUENCES_MAX:
            raise TrainerError(f"Audit of {len(sequences)} sequences that this run does not have")
        return messages.Audited(losses=self._reader.losses(self.audited, sequences))

    def save(self, place: messages.Place | None = None) -> str:
        """Writes the moments to `optimizer_path`. Returns why it could not, or the empty string.

        `place`: see `messages.Save`.
        """
        optimizer = self._optimizer
        if optimizer is None:
            return ""
        return self._with_file(lambda path: save_moments(optimizer, self._config.model, path))

    def _load_moments(self) -> str:
        optimizer = self._optimizer
        if optimizer is None:
            return ""
        problem = self._with_file(lambda path: load_moments(optimizer, self._config.model, path))
        return problem and f"{problem}; the optimiser starts with fresh moments"

    def _with_file(self, use: Callable[[Path], None]) -> str:
        """Has `use` read or write the file that outlives the process. Returns why it could not, or
        the empty string, also where there is none."""
        try:
            if self._optimizer_path is not None:
                use(self._optimizer_path)
        except FileNotFoundError:
            return ""
        except CheckpointError as error:
            return str(error)
        return ""

    def _require_idle(self, what: str) -> None:
        """Requires that no round runs, and that the model is whole."""
        self._require_between_rounds(what)
        if self._config.model.lora and not self._config.frozen_paths:
            raise TrainerError(
                "the weights that the adapters of this run belong to are not here: start the node "
                "again, which fetches them"
            )

    def _require_between_rounds(self, what: str) -> None:
        if self._round is not None:
            raise TrainerError(
                f"{what} is for between rounds, but round {self.round.task.round} is running"
            )
