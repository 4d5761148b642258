"""Runs that many daemons on two cores can do, on lines that make their rings last a while.

A round trains for longer than its ring takes, also where no other work uses the processors. Else a
machine that is cut off would do more alone than the others together, and its chain would win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from gossamer.protocol.codecs.payloads import SPARSE, payloads_named
from gossamer.protocol.codecs.step_payloads import DISTRO, SignPayloads
from gossamer.protocol.codecs.tensor_codecs import codec_names
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.shared_step import step_codec
from tests.support.daemons import write_corpus
from tests.support.lab import Lab

ATTEMPT_SECONDS = 2.0
"""Time without a roster after which the next organiser is asked."""

OPTIONS = ("--threads", "1")
"""Options of every daemon."""

STREAMING = "fragments"
"""A round averages one of `FRAGMENTS` parts of the model, in fp32."""

MODES = (
    *(
        name + overlap
        for name in (*codec_names(), SPARSE, STREAMING)
        for overlap in ("", "+overlap")
    ),
    DISTRO,
)
"""Ways of averaging."""

FRAGMENTS = 2
"""Fragments of the model, with a layer for each."""

PEERS = 4
"""Number of peers. Their rings last as long in every mode."""

OVERLAP_STEPS = 3
"""Times as many inner steps with overlap, where a round takes as long as its training or its ring.
A peer that is ahead alone has to take longer for a round than the others take to fetch it."""

SLOW_TOP_K = 512
"""Values sent of each 4096: a sparse ring takes about as many bytes as an `int4` one. The default
would need a model forty times larger."""

SHARED_TOP_K = 64
"""Coefficients sent of each chunk with `distro`: the lines, and not the processors, limit the speed
of its steps, as they do for a large model."""

CONTEXT = 32
"""Tokens of a sequence."""

SHARED_STEPS = 3
"""Times as many steps a round with `distro`. A line that became slow is found when both links of
its member were busy for `link_rate.VERDICT_SECONDS`; one after the other, where in other rings all
are busy at once. That takes some 5 s of a round, more than one of 32 steps lasts."""

_MANIFEST = """\
preset = "tiny"
name = "{name}"
sync = "{sync}"
[tokenizer]
kind = "bytes"
[model]
num_layers = {num_layers}
width = {width}
num_heads = 4
num_kv_heads = 2
hidden_width = {hidden_width}
context = {context}
[inner]
learning_rate = 1e-3
warmup_steps = 10
total_steps = 100_000
ends = false
sequences_per_step = {sequences_per_step}
[outer]
inner_steps = {inner_steps}
warmup_rounds = {warmup_rounds}
warmup_inner_steps = {inner_steps}
codec = "{codec}"
overlap = {overlap}
top_k = {top_k}
fragments = {fragments}
chunk_elements = {chunk_elements}
[rounds]
gather_seconds = {gather_seconds}
attempt_seconds = {attempt_seconds}
checkpoint_rounds = 5
stale_rounds = 30
"""

_LINES_PER_FILE = 2_000
"""2 MB of text in all: some rounds of eight peers, or they would wait for each other's shards."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The model to train, and the machines' lines."""

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
    fragments: int = 1
    warmup_rounds: int = 1

    def averaging(self, mode: str) -> Run:
        """The same run in one of `MODES`, with a model so much larger that rings last as long.

        Slower lines would not do: a twentieth of them would not carry the gossip.
        """
        name, _, overlap = mode.partition("+")
        if name == DISTRO:  # its rings last as long as its training does
            return replace(
                self,
                sync=DISTRO,
                top_k=SHARED_TOP_K,
                warmup_rounds=0,
                inner_steps=SHARED_STEPS * self.inner_steps,
            )
        fragments = FRAGMENTS if name == STREAMING else 1
        changed = replace(
            self,
            sync=SPARSE if name == SPARSE else "diloco",
            codec="fp32" if name in (SPARSE, STREAMING) else name,
            overlap=bool(overlap),
            top_k=SLOW_TOP_K,
            fragments=fragments,
        )
        factor = self.ring_bytes(PEERS) / changed.ring_bytes(PEERS)
        return replace(
            changed,
            width=8 * round(math.sqrt(factor) * self.width / 8),
            hidden_width=8 * round(math.sqrt(factor) * self.hidden_width / 8),
            sequences_per_step=max(1, round(self.sequences_per_step / (factor * fragments))),
            chunk_elements=1024 * round(factor * self.chunk_elements / 1024),
            inner_steps=(OVERLAP_STEPS if overlap else 1) * fragments * self.inner_steps,
        )

    def ring_bytes(self, num_peers: int) -> int:
        """Bytes of all chunks on their way, averaged over the links of a ring."""
        if self.sync == DISTRO:
            step = SignPayloads(step_codec(self.model, self.top_k, 1))
            return self.inner_steps * step.mean_bytes(1, num_peers)
        name = SPARSE if self.sync == SPARSE else self.codec
        payloads = payloads_named(name, self.top_k, sparse_sums_of=self.chunk_elements)
        return payloads.mean_bytes(self.num_elements, num_peers) // self.fragments

    @property
    def trains_in_ring(self) -> bool:
        """Returns whether a ring is at work while its members train."""
        return self.sync == DISTRO

    @property
    def num_elements(self) -> int:
        """Number of the model's parameters."""
        return self.model.num_parameters

    @property
    def model(self) -> ModelConfig:
        return ModelConfig(
            num_layers=self.fragments,
            width=self.width,
            num_heads=4,
            num_kv_heads=2,
            hidden_width=self.hidden_width,
            vocabulary=256,
            context=CONTEXT,
            tied_embeddings=True,
        )

    @property
    def round_tokens(self) -> int:
        """Upper bound on the tokens of one member in a round."""
        return self.inner_steps // self.fragments * self.sequences_per_step * CONTEXT

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Manifest file, and a corpus that a small model learns from."""
        manifest, corpus = folder / "run.toml", folder / "corpus"
        values = {key: getattr(self, key) for key in self.__dataclass_fields__}
        values["overlap"] = "true" if self.overlap else "false"
        values |= {"num_layers": self.model.num_layers, "context": CONTEXT}
        manifest.write_text(_MANIFEST.format(**values, attempt_seconds=ATTEMPT_SECONDS))
        corpus.mkdir()
        write_corpus(corpus, _LINES_PER_FILE)
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
