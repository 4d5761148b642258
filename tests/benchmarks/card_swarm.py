"""Does a swarm of real daemons on one card learn as much as one trainer with all their batches?

    python -m tests.benchmarks.card_swarm --preset 150m --device cuda:0 --text FOLDER
    python -m tests.benchmarks.card_swarm --preset 1m --device cpu --steps 40 --peers 2

First so many daemons found a run, join it by the commands that people use, train on one device at
once, and finish after `--steps` inner steps of each. Then one trainer alone, for each optimiser of
`--alone`, trains on as many tokens from the same weights, each step on as many sequences as all
daemons have in a step of theirs: synchronous training. All read the founder's shards, and all
losses are of the same held-out tokens. Inner rates and schedules are the same.

Printed are for the swarm each committed round: seconds since the first step, tokens, held-out nats;
then the seconds that the founder spent in each phase of its rounds, and the held-out nats of the
states that its disk still has; at the end the same for the trainers, and the text that the swarm's
model goes on with.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from gossamer.node.base.settings.settings import Settings
from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm, SwarmError
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.rounds.evaluation import EVALUATION_TOKENS_MAX
from gossamer.node.runs.results.reading import read_state
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.manifest import InnerConfig, InnerOptimizer, Manifest
from gossamer.protocol.shard_index import decode_index
from gossamer.protocol.state.digest import FloatVector
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.presets.table import PRESETS
from tests.support.local_rounds import begin

MANIFEST = """\
preset = "{preset}"
name = "one card"
[inner]
optimizer = "{optimizer}"
learning_rate = {rate}
warmup_steps = {warmup}
total_steps = {steps}
ends = true
sequences_per_step = {sequences}
[schedule]
kind = "cosine"
warmup_tokens = 0
total_tokens = 0
cooldown_tokens = 0
[outer]
inner_steps = {inner_steps}
learning_rate = 1.0
momentum = 0.9
displacement = 1.4
warmup_rounds = {warmup_rounds}
warmup_inner_steps = {warmup_inner_steps}
codec = "{codec}"
[rounds]
gather_seconds = 10.0
attempt_seconds = 10.0
"""

OPTIONS = ("--port-mapping", "off", "--lan", "off", "--log-format", "json")
START_SECONDS = 180.0
POLL_SECONDS = 0.5


def say(text: str) -> None:
    print(text, flush=True)


def run_swarm(swarm: LocalSwarm, options: argparse.Namespace) -> tuple[LocalNode, int]:
    """Trains with daemons to the end of the run; returns the founder, which still serves, and the
    tokens of all."""
    run = PRESETS[options.preset]
    manifest = swarm.root / "manifest.toml"
    manifest.write_text(
        MANIFEST.format(
            preset=options.preset,
            optimizer=options.optimizer,
            rate=options.rate or run.inner.learning_rate,
            warmup=options.steps // 10,
            steps=options.steps,
            sequences=options.sequences or run.inner.sequences_per_step,
            inner_steps=options.inner_steps,
            warmup_rounds=options.warmup_rounds,
            warmup_inner_steps=max(1, options.inner_steps // 5),
            codec=options.codec,
        )
    )
    started = time.monotonic()
    corpus = ["--corpus", *map(str, options.text)] if options.text else []
    wait = ["--wait-for-peers", str(options.peers - 1)]
    founder = swarm.found("--manifest", str(manifest), *corpus, *wait)
    address = founder.address(START_SECONDS)
    say(f"founded after {time.monotonic() - started:.1f} s")
    for _ in range(options.peers - 1):
        swarm.join(address, "--yes")
    return founder, watch(founder, options)


def watch(founder: LocalNode, options: argparse.Namespace) -> int:
    """Prints a line for each round until the run is finished; returns the tokens of all."""
    tokens = 0
    began = deadline = math.inf
    shown = 0
    started = time.monotonic()
    while time.monotonic() < min(deadline, started + options.seconds_max):
        status = founder.status()
        if not founder.is_running:
            raise SwarmError(f"the founder ended\n{founder.tail()}")
        if status is None:
            time.sleep(POLL_SECONDS)
            continue
        if began == math.inf and (status.inner_step or status.round):
            began = time.monotonic()
            say(f"first step {began - started:.1f} s after the first join")
        tokens = status.swarm_tokens_total
        if status.round > shown:
            shown = status.round
            last = status.last_round
            others = len(last.contributors) if last else 0
            mfu = f"{status.mfu:.1%}" if status.mfu else "-"
            say(
                f"| {shown} | {time.monotonic() - began:.1f} | {status.swarm_tokens_total:,} "
                f"| {status.heldout_loss or math.nan:.4f} | {status.loss or math.nan:.4f} "
                f"| {others} | {status.tokens_per_second or 0:,.0f} | {mfu} |"
            )
        if status.phase == "finished":
            seconds = time.monotonic() - began
            say(
                f"swarm of {options.peers}, {options.optimizer}: {status.swarm_tokens_total:,} "
                f"tokens, held-out {status.heldout_loss:.4f} nats, {seconds:.0f} s, "
                f"{status.bytes_sent_total / 1e9:.2f} GB sent by the founder"
            )
            return tokens
        time.sleep(POLL_SECONDS)
    say(f"the swarm was not done after {options.seconds_max:.0f} s; node 1 said at the end:")
    say(founder.tail())
    return tokens


def say_phases(founder: LocalNode) -> None:
    """Prints how long the founder's rounds were in each of their phases, all rounds together."""
    address = DaemonFiles(StateDir(founder.root)).read_api()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    name = "gossamer_round_duration_seconds"
    seconds = dict(re.findall(rf'^{name}_sum{{phase="(\w+)"}} (\S+)$', text, re.MULTILINE))
    say(", ".join(f"{phase} {float(spent):.1f} s" for phase, spent in seconds.items()))


class Lone(NamedTuple):
    """A trainer without a daemon."""

    trainer: LocalTrainer
    base: FloatVector
    """(num_parameters,), the state that it reads."""
    work: FloatVector
    """(num_parameters,), what it hands over."""


class Shards:
    """The founder's shards on its disk."""

    def __init__(self, founder: LocalNode) -> None:
        state_dir = StateDir(founder.root)
        signed = state_dir.read_manifest()
        assert signed is not None
        self.manifest: Manifest = open_signed_manifest(signed)
        self._blocks = state_dir.blocks_path
        self.index = decode_index(Path(self._path(self.manifest.data.index_digest)).read_bytes())

    def _path(self, digest: bytes) -> str:
        return str(self._blocks / digest.hex()[:2] / digest.hex())

    @property
    def heldout(self) -> tuple[str, ...]:
        return tuple(self._path(shard.digest) for shard in self.index.heldout)

    def push(self, trainer: LocalTrainer) -> None:
        for number, shard in enumerate(self.index.shards):
            trainer.push(number, self._path(shard.digest), 0, shard.num_tokens)


def trainer_on(manifest: Manifest, inner: InnerConfig, device: str) -> Lone:
    base = np.zeros(manifest.model.num_parameters, np.float32)
    work = np.zeros_like(base)
    config = TrainerConfig(
        model=manifest.model,
        inner=inner,
        seed=manifest.seed,
        token_bytes=manifest.data.token_bytes,
        device=device,
        compiling="auto",
    )
    return Lone(LocalTrainer(config, base, work), base, work)


def measure_states(shards: Shards, root: Path, rounds: int, options: argparse.Namespace) -> None:
    """Prints the held-out loss of every third state, as far as the disk has them, and the last."""
    trainer, base, _ = trainer_on(shards.manifest, shards.manifest.inner, options.device)
    for number in [*range(3, rounds, 3), None]:
        try:
            state = read_state(Settings(state_dir=root), number)
        except StateDirError as error:
            say(f"round {number}: {error}")
            continue
        base[:] = state.parameters
        loss = trainer.evaluate(shards.heldout, EVALUATION_TOKENS_MAX, 30.0).loss
        say(f"| state of the swarm after round {state.entry.round} | held-out {loss:.4f} |")


def train_alone(
    shards: Shards, optimizer: InnerOptimizer, tokens_max: int, options: argparse.Namespace
) -> None:
    """Trains one synchronous trainer on so many tokens, with a line after some rounds."""
    manifest = shards.manifest
    sequences = options.peers * manifest.inner.sequences_per_step
    inner = msgspec.structs.replace(
        manifest.inner, sequences_per_step=sequences, optimizer=optimizer
    )
    trainer, base, work = trainer_on(manifest, inner, options.device)
    trainer.genesis()
    seconds, tokens, done, number = 0.0, 0, 0, 0
    loss = math.nan
    num_steps = round(tokens_max / (sequences * manifest.model.context))
    while done < num_steps:
        number += 1
        count = min(options.inner_steps * 3, num_steps - done)
        trainer.forget()
        shards.push(trainer)
        for _ in range(done):  # what the rounds before have read
            trainer._queue.take(sequences)
        started = time.monotonic()
        begin(trainer, number, done, count, 1e9)
        while not trainer.round.is_over:
            step = trainer.step()
            assert step is not None, "the text is too short for so many steps"
            loss = step.loss
        tokens += trainer.finish().tokens
        seconds += time.monotonic() - started
        base -= work
        done += count
        heldout = trainer.evaluate(shards.heldout, EVALUATION_TOKENS_MAX, 30.0).loss
        say(
            f"| alone, {optimizer} | {done} | {seconds:.1f} | {tokens:,} | {heldout:.4f} "
            f"| {loss:.4f} | {tokens / seconds:,.0f} |"
        )
    trainer.withdraw()


def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="150m")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--text", type=Path, nargs="+", default=())
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300, help="inner steps of each peer")
    parser.add_argument("--inner-steps", type=int, default=20, help="of a round")
    parser.add_argument("--warmup-rounds", type=int, default=5, help="of a fifth of these steps")
    parser.add_argument("--sequences", type=int, help="of a peer's step; default: the preset's")
    parser.add_argument("--rate", type=float, help="inner learning rate; default: the preset's")
    parser.add_argument("--optimizer", default="adamw", help="of the swarm")
    parser.add_argument("--codec", default="int8")
    parser.add_argument("--alone", nargs="*", default=["adamw", "muon"])
    parser.add_argument("--seconds-max", type=float, default=3600.0, help="of the swarm")
    parser.add_argument("--keep", type=Path, help="folder for the nodes' states and logs")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = options.keep or Path(folder)
        with LocalSwarm(root, (*OPTIONS, "--device", options.device)) as swarm:
            founder, tokens = run_swarm(swarm, options)
            status = founder.status()
            say_phases(founder)
            for node in swarm.nodes:
                node.kill()
            shards = Shards(founder)
        if status is not None:
            measure_states(shards, founder.root, status.round, options)
        command = ("generate", "def ", "--tokens", "80", "--state-dir", str(founder.root))
        said = subprocess.run(
            [sys.executable, "-m", "gossamer.node.cli", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        say(f"the swarm's model goes on:\n{said.stdout}{said.stderr[-500:]}")
        for optimizer in options.alone:
            train_alone(shards, optimizer, tokens, options)


if __name__ == "__main__":
    main()
