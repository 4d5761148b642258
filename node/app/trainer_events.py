"""The trainer's events, handed on to the parts of the node that they concern."""

from __future__ import annotations

import structlog

from gossamer.node.app.reporting.run_logs import RunLogs
from gossamer.node.machine.hardware import Hardware
from gossamer.node.rounds.participant import Participant
from gossamer.node.telemetry.metrics import Metrics
from gossamer.trainer.ipc import messages

log = structlog.get_logger("node")


class TrainerEvents:
    """A `TrainerListener` that knows the whole node."""

    def __init__(
        self,
        participant: Participant,
        hardware: Hardware,
        metrics: Metrics,
        log_steps: int,
        run_logs: RunLogs,
    ) -> None:
        self._participant = participant
        self._context = participant.context
        self._hardware = hardware
        self._metrics = metrics
        self._log_steps = log_steps
        self._run_logs = run_logs

    def configured(self, configured: messages.Configured) -> None:
        if (gpu := self._hardware.missed_gpu(configured)) is not None:
            log.warning(
                f"the trainer does not find {gpu}; `gossamer doctor` says what to do",
                fields={"event": "the trainer does not find a GPU", "gpu": gpu},
            )
        self._hardware.trainer_configured(configured)
        self._context.speed.configured(configured)
        log.info(
            f"training on {configured.device_name}",
            precision=configured.precision,
            moments=configured.moments or "none",
            fields={"event": "training", "device": configured.device_name},
        )
        if configured.confinement:
            log.info(configured.confinement)
        self._participant.progress.confinement = configured.confinement or None
        self._context.feed.requeue()

    def stepped(self, step: messages.Step) -> None:
        self._context.speed.step(step)
        self._participant.stepped(step)
        self._run_logs.stepped(step)
        if self._log_steps and self._participant.progress.inner_step % self._log_steps == 0:
            log.debug("step", round=step.round, step=step.step, loss=round(step.loss, 3))

    def shared(self, shared: messages.Shared) -> None:
        self._participant.rounds.offered(shared)

    def needs_data(self, tokens_queued: int) -> None:
        self._context.feed.need_more(tokens_queued)

    def restarted(self, reason: str) -> None:
        self._metrics.restarts.add(reason)
