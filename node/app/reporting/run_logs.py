"""The records of a node for the log of its run: inner steps and rounds."""

from __future__ import annotations

import re

from gossamer.node.app.runtime import NodeInputs
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.rounds.participant import Participant
from gossamer.node.telemetry.log_places import place_of
from gossamer.node.telemetry.loss_history import Heldout
from gossamer.node.telemetry.metric_labels import STEP_PARTS
from gossamer.node.telemetry.run_log import RunLog
from gossamer.node.telemetry.status import LossPoint
from gossamer.trainer.ipc.messages import Step

_NAME_CHARACTERS_MAX = 40
"""Of the run's name in that of its log, whose length wandb bounds (64, with the ids)."""


class RunLogs:
    """Reads the values of each record. Without a place it does nothing."""

    def __init__(self, node: NodeInputs, speed: SpeedMeter) -> None:
        self._speed = speed
        settings, manifest = node.settings, node.manifest
        folder = settings.log_folder_path
        run = log_name(manifest.name, manifest.run_id.hex(), node.identity.peer_id)
        config: dict[str, str | int] = {
            "run": manifest.name,
            "run_id": manifest.run_id.hex(),
            "peer_id": node.identity.peer_id,
            "num_parameters": manifest.model.num_parameters,
            "sync": manifest.sync,
            "sequences_per_step": manifest.inner.sequences_per_step,
        }
        places = [place_of(name, folder, run, config) for name in settings.log_to]
        self._log = RunLog(places, node.runtime.unix_seconds, node.runtime.read_in_thread)

    def stepped(self, step: Step) -> None:
        """The trainer did an inner step."""
        if not self._log.wants_step:
            return
        times = step.times
        parts: dict[str, float | None] = {
            f"{part}_seconds": None if times is None else getattr(times, part)
            for part in STEP_PARTS
        }
        self._log.step(
            step.step,
            {
                "loss": step.loss if step.tokens else None,
                "bits_per_byte": step.bits_per_byte,
                "gradient_norm": step.gradient_norm,
                "learning_rate": step.learning_rate,
                "round": step.round,
                "tokens_per_second": step.tokens / step.seconds if step.seconds else None,
                "mfu": self._speed.mfu_of(step),
                "seconds": step.seconds,
                "waited_seconds": step.waited_seconds,
                **parts,
                "gpu_memory_bytes": step.device_memory_bytes or None,
            },
        )

    def follow(self, participant: Participant) -> None:
        """Notes the rounds of a participant."""
        progress, committed = participant.progress, participant.context.committed

        def ended(point: LossPoint) -> None:
            last = progress.last_round
            is_last = last is not None and last.round == point.round
            self._log.round(
                point.round,
                {
                    "loss": point.loss,
                    "bits_per_byte": point.bits_per_byte,
                    "swarm_tokens": committed.entry.tokens_total,
                    "seconds": last.duration_seconds if last and is_last else None,
                    "bytes_sent": last.bytes_sent if last and is_last else None,
                    "bytes_received": last.bytes_received if last and is_last else None,
                    "members": len(last.members) if last and is_last else None,
                    "tokens_per_second": participant.context.speed.tokens_per_second,
                    "mfu": self._speed.mfu,
                },
            )

        def evaluated(heldout: Heldout) -> None:
            """With `overlap`, the state before a round is evaluated while that round is at work."""
            values = {
                "heldout_loss": heldout.loss, "heldout_bits_per_byte": heldout.bits_per_byte
            }  # fmt: skip
            self._log.round(heldout.round, values)

        progress.on_point, progress.on_heldout = ended, evaluated

    async def run(self) -> None:
        """Writes until cancelled, see `RunLog.run`."""
        await self._log.run()


def log_name(run_name: str, run_id: str, peer_id: str) -> str:
    """Returns the name of a node's log of a run, the same in all its lives. Nodes that write into
    one folder have different ones."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", run_name)[:_NAME_CHARACTERS_MAX].strip("-")
    return "-".join(part for part in (plain, run_id[:8], peer_id[-8:]) if part)
