"""Runs that many daemons on two cores can do, on lines that make their rings last a while.

A round trains for longer than its ring takes, also where nobody else uses the processors. Else a
machine that is cut off would do more alone than the others together, and its chain would win.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from pathlib import Path

from lab import Lab

from gossamer.protocol.manifest import ModelConfig
from gossamer.protocol.payloads import SPARSE, payloads_named
from gossamer.protocol.tensor_codecs import codec_names

ATTEMPT_SECONDS = 2.0
"""Without a roster for so long, the next organiser is asked."""

OPTIONS = ("--threads", "1")
"""Of every daemon."""

MODES = tuple(name + overlap for name in (*codec_names(), SPARSE) for overlap in ("", "+overlap"))
"""Ways of averaging."""

PEERS = 4
"""Whose rings last as long in every mode."""

OVERLAP_STEPS = 3
"""Times as many inner steps with overlap, where a round takes as long as its training or its ring.
Whoever is alone ahead has to take longer for one than the others take to fetch it."""

SLOW_TOP_K = 512
"""Of 4096: so a sparse ring takes about as many bytes as an `int4` one. With the default the model
would have to be forty times larger."""

_MANIFEST = """\
preset = "tiny"
name = "{name}"
sync = "{sync}"
[tokenizer]
kind = "bytes"
[model]
num_layers = 1
width = {width}
num_heads = 4
num_kv_heads = 2
hidden_width = {hidden_width}
context = 32
[inner]
learning_rate = 1e-3
warmup_steps = 10
total_steps = 100_000
sequences_per_step = {sequences_per_step}
[outer]
inner_steps = {inner_steps}
warmup_rounds = 1
warmup_inner_steps = {inner_steps}
codec = "{codec}"
overlap = {overlap}
top_k = {top_k}
chunk_elements = {chunk_elements}
[rounds]
gather_seconds = {gather_seconds}
attempt_seconds = {attempt_seconds}
checkpoint_rounds = 5
stale_rounds = 30
"""

_NUM_FILES = 16
_LINES_PER_FILE = 2_000
"""2 MB of text in all: some rounds of eight peers, or they would wait for each other's shards."""

_WORDS = ("peer", "ring", "round", "chunk", "head", "token", "commit", "swarm", "block", "state")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is trained, and the machines' lines."""

    name: str
    width: int
    hidden_width: int
    sequences_per_step: int
    inner_steps: int
    chunk_elements: int
    gather_seconds: float
    mbit: float
    sync: str = "diloco"
    codec: str = "fp32"
    overlap: bool = False
    top_k: int = 64

    def averaging(self, mode: str) -> Run:
        """The same run in one of `MODES`, with a model so much larger that rings last as long.

        Slower lines would not do: a twentieth of them would not carry the gossip.
        """
        name, _, overlap = mode.partition("+")
        changed = replace(
            self,
            sync=SPARSE if name == SPARSE else "diloco",
            codec="fp32" if name == SPARSE else name,
            overlap=bool(overlap),
            top_k=SLOW_TOP_K,
        )
        factor = self.ring_bytes(PEERS) / changed.ring_bytes(PEERS)
        return replace(
            changed,
            width=8 * round(math.sqrt(factor) * self.width / 8),
            hidden_width=8 * round(math.sqrt(factor) * self.hidden_width / 8),
            sequences_per_step=max(1, round(self.sequences_per_step / factor)),
            chunk_elements=1024 * round(factor * self.chunk_elements / 1024),
            inner_steps=(OVERLAP_STEPS if overlap else 1) * self.inner_steps,
        )

    def ring_bytes(self, num_peers: int) -> int:
        """Of all chunks on their way, the mean over the links of a ring."""
        payloads = payloads_named(SPARSE if self.sync == SPARSE else self.codec, self.top_k)
        return payloads.mean_bytes(self.num_elements, num_peers)

    @property
    def num_elements(self) -> int:
        """Of the model."""
        model = ModelConfig(
            num_layers=1,
            width=self.width,
            num_heads=4,
            num_kv_heads=2,
            hidden_width=self.hidden_width,
            vocabulary=256,
            context=32,
            tied_embeddings=True,
        )
        return model.num_parameters

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Manifest file, and a corpus that a small model learns from."""
        manifest, corpus = folder / "run.toml", folder / "corpus"
        values = {key: getattr(self, key) for key in self.__dataclass_fields__}
        values["overlap"] = "true" if self.overlap else "false"
        manifest.write_text(_MANIFEST.format(**values, attempt_seconds=ATTEMPT_SECONDS))
        corpus.mkdir()
        randomness = random.Random(1)
        for number in range(_NUM_FILES):
            lines = [" ".join(randomness.choices(_WORDS, k=12)) for _ in range(_LINES_PER_FILE)]
            (corpus / f"{number}.txt").write_text("\n".join(lines))
        return manifest, corpus

    def found(self, lab: Lab, num_peers: int) -> None:
        """Starts the daemons of the first so many machines; the first of all is the seed."""
        manifest, corpus = self.write(lab.root)
        seed, *others = lab.machines[:num_peers]
        # Alone it would do rounds quicker than the others get its state over their lines.
        wait = ("--wait-for-peers", str(len(others)))
        seed.run("start", "--manifest", str(manifest), "--corpus", str(corpus), *wait)
        address = seed.address()
        for machine in others:
            machine.run("join", address)


SLOW_RINGS = Run(
    name="chaos",
    width=128,
    hidden_width=448,
    sequences_per_step=16,
    inner_steps=32,
    chunk_elements=8192,
    gather_seconds=5.0,
    mbit=8.0,
)
"""A ring of four takes a second and a half."""

QUICK_ROUNDS = Run(
    name="soak",
    width=64,
    hidden_width=192,
    sequences_per_step=16,
    inner_steps=16,
    chunk_elements=4096,
    gather_seconds=5.0,
    mbit=8.0,
)
"""Many rounds of eight peers in little time, with little work for the processors."""
