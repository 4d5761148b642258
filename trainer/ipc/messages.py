"""The messages of the daemon and its trainer process, over the worker's stdin and stdout,
in frames (`pipe`), each with one tagged struct of this module as msgpack.

The daemon sends `ToWorker`, the worker answers with `FromWorker`. The parameters themselves do not
travel: both sides map the same two files of fp32 values, `base` and `pseudo_gradient` (module
`memory`).

Order of a life: Configure -> Configured, then any number of `Genesis -> GenesisDone`, `Evaluate ->
Evaluated`, `Sample -> Sampled`, `Audit -> Audited`, and rounds `Begin -> Step, Step, ... NeedData
... -> Finished`. The worker reads `base` between Begin, Evaluate, Sample or Rebase and its answer
(for Begin: the first thing that it says of the round); at any other time the daemon may write it.
`pseudo_gradient` is the worker's from Begin to Finished and from Rebase to Rebased, and means
nothing meanwhile. `Data`, `Forget`, `Save`, `Stop`, `Limits` and `Rebase -> Rebased` are allowed at
any time; a Stop that arrives after its round has ended is ignored. The end of stdin ends the worker
at once. The vector `audited` is the daemon's but between Audit and Audited.

In a round of shared steps (`sync = "distro"`) a Step is followed by Shared, what this peer has for
the others, and the next one waits for Share. The worker reads `base`, the newest state that all
share, with each Share, and the daemon does not wait for that: a gradient taken between two of its
states is as good as one of either. A part that the others did not take stays in the momentum, which
is the worker's own and is saved with its place in the chain. The place of a loaded one is in
Configured; without KeepMomentum the first round begins without it.

From its start the worker sends Alive every `ALIVE_SECONDS`, from a thread of its own.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.run_end import SchedulePlace
from gossamer.trainer.ipc.choices import CompileChoice, MomentChoice
from gossamer.trainer.ipc.measures import StepTimes, bits_per_byte

# Ranges that may be queued, some 10 MB: two rounds of the largest preset are 8,127 shards of a
# corpus of 0.25 billion tokens, and half are left for what is on its way at a refill.
DATA_RANGES_MAX = 32 * 1024

# Of one round, in `Finished`: at most 16 bytes each, half a megabyte.
SPANS_PER_ROUND_MAX = DATA_RANGES_MAX

AUDIT_SEQUENCES_MAX = 64
"""Twice as many as an audit has (`policy.auditing.audits`)."""

ALIVE_SECONDS = 2.0
"""Interval of the worker's signs of life, which have a few bytes each."""

Span = tuple[int, int, int]
"""(shard, first token, token after the last one) of consumed data."""


class _ToWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


class _FromWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


class TrainerConfig(_ToWorker, frozen=True, kw_only=True):
    """The training of one peer: its model and how it learns. It holds for the life of a trainer."""

    model: ModelConfig
    inner: InnerConfig
    seed: int
    """Of the initial parameters."""
    token_bytes: int
    """2 or 4: little-endian unsigned tokens in the shards."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:0`, `mps`."""
    optimizer_path: str = ""
    """File that keeps the optimiser's moments, or the momentum of shared steps, over restarts.
    Empty: they are not kept."""
    micro_batch: int = 0
    """Sequences of one forward pass to begin with; 0 begins with what fits by an estimate. The
    worker takes fewer when memory runs out, and keeps what fits beside `optimizer_path`."""
    moments: MomentChoice = "auto"
    """What the optimiser keeps its moments in; see `moments`."""
    compiling: CompileChoice = "off"
    """Whether the layers are compiled behind the training."""
    children_use_device: bool = True
    """Whether a process that the trainer starts can use the device. The worker finds that out."""
    mixing: float = 0.0
    """The manifest's `outer.mixing`; see `overlap`."""
    frozen_paths: tuple[str, ...] = ()
    """Files with the weights that a run of adapters leaves as they are, in order: blocks, named by
    their digests. Empty in any other run, and where only Genesis is asked for. Without them a run
    of adapters can draw its initial parameters, and nothing else."""
    tokenizer: Literal["", "bytes", "bpe", "files"] = ""
    """The run's tokenizer, by which the bytes of the text are counted; empty: they are not."""
    tokenizer_path: str = ""
    """File of the run's tokenizer; empty for plain bytes."""


class Configure(TrainerConfig, frozen=True, kw_only=True):
    """First message of a life; answered with Configured."""

    base_fd: int
    pseudo_gradient_fd: int
    audited_fd: int | None = None
    """fp32 values like `base`, of which Audit asks; None in a run without audits."""
    limits: Limits | None = None
    """None leaves everything to torch and to the system."""
    shared_steps: SharedSteps | None = None
    """None: inner steps are the peer's own."""


class Limits(_ToWorker, frozen=True, kw_only=True):
    """The owner's limits of the worker. They hold from Configure on, and may come at any time."""

    threads: int = 0
    """Threads of torch on the CPU; 0 leaves torch's own choice."""
    memory_bytes: int = 0
    """Host memory, without what is shared with the daemon; 0 is no limit."""
    gpu_memory_bytes: int = 0
    """Memory of the device, if that is a card; 0 is no limit."""


class SharedSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of `sync = "distro"` that a worker needs."""

    top_k: int
    """Coefficients of each tile that are sent."""
    chunks: int = 1
    """Chunks in which a step travels."""
    lookahead: bool
    """True if a gradient is taken at the point where the peer's own momentum would lead."""


class Genesis(_ToWorker, frozen=True, kw_only=True):
    """Fill `base` with the initial weights of the seed."""


class Data(_ToWorker, frozen=True, kw_only=True):
    """Queue tokens `start` to `stop` of a zstd-compressed shard on disk, behind what is queued."""

    shard: int
    path: str
    start: int
    stop: int


Ranges = tuple[tuple[int, int], ...]
"""(first element, element after the last one) of pieces of the flat vectors."""

Start = Literal["base", "local"]
"""Start of a round: `base`, or the local parameters as the last round left them, while the state
that it leads to is not known yet (Rebase brings it)."""


class Begin(_ToWorker, frozen=True, kw_only=True):
    """Start a round. `first_step` is the first inner step's place in a schedule of planned steps.

    A worker that has had no round starts from `base` in any case.
    """

    round: int
    first_step: int
    steps_max: int
    seconds_max: float
    start: Start = "base"
    new: Ranges = ()
    """Ranges of `base` that are new since the last round. They are taken as by a Rebase before the
    first step, if the round starts from the local parameters."""
    place: SchedulePlace | None = None
    """The round's place in a schedule of tokens; None in a run that counts planned steps."""


class Stop(_ToWorker, frozen=True, kw_only=True):
    """End the round after the step that is being done; answered with Finished."""


class Share(_ToWorker, frozen=True, kw_only=True):
    """Go on with the next step of a round of shared ones, from `base`."""

    taken: bool
    """True if the swarm took the newest Shared. Otherwise it stays in the momentum."""


class Rebase(_ToWorker, frozen=True, kw_only=True):
    """Take over `base` in these ranges: it is now the state that the round before the newest led
    to, and the newest round's work is kept on top of it. Answered after the step that is being
    done. Not for a round whose work was collected."""

    ranges: Ranges


class Evaluate(_ToWorker, frozen=True, kw_only=True):
    """Loss of `base` over held-out shards. Between rounds only."""

    paths: tuple[str, ...]
    tokens_max: int
    seconds_max: float = math.inf
    """The evaluation ends after this time with what it has; one micro-batch is always done, if
    there is a token to predict."""


class Sample(_ToWorker, frozen=True, kw_only=True):
    """Continue prompts with the model of `base`; answered with Sampled. Between rounds only."""

    prompts: tuple[str, ...]
    tokens: int
    """Tokens of a continuation at most."""
    temperature: float
    seed: int
    seconds_max: float
    """Time for all prompts together."""
    tokenizer: Literal["bytes", "bpe", "files"]
    tokenizer_path: str
    """File of the run's tokenizer; empty for plain bytes."""


class Audit(_ToWorker, frozen=True, kw_only=True):
    """Loss of the parameters in the vector of `audited_fd` on single sequences. Between rounds
    only."""

    sequences: tuple[tuple[str, int], ...]
    """(file of a shard, first token), at most `AUDIT_SEQUENCES_MAX`."""


class Forget(_ToWorker, frozen=True, kw_only=True):
    """Drop the queued data that no step has consumed."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a momentum of shared steps in the chain: what the swarm took of it up to there
    is not in it any more."""

    head: bytes
    """Digest of the committed head."""
    rings: tuple[bytes, ...] = ()
    """Ids of rings on that head that it had parts in, and that were not committed by then."""


class Save(_ToWorker, frozen=True, kw_only=True):
    """Write the optimiser's moments, or the momentum of shared steps, to `optimizer_path`."""

    place: Place | None = None
    """Place of the momentum; an optimiser's moments have none."""


class KeepMomentum(_ToWorker, frozen=True, kw_only=True):
    """Confirm or drop a momentum that was loaded. Allowed between rounds only."""

    keep: bool
    """True: training goes on from it. False: it becomes zero."""


class Exit(_ToWorker, frozen=True, kw_only=True):
    """Exit with code 0 after the step that is being done; an unfinished round is dropped."""


class Alive(_FromWorker, frozen=True, kw_only=True):
    """The process runs, whatever its main thread does."""

    busy_seconds: float
    """Time for which the main thread has been at one piece of work (a micro-batch, a shard, a
    file); 0 while it waits for a message."""


class Configured(_FromWorker, frozen=True, kw_only=True):
    device: str
    """`cpu`, `cuda:0`, `mps:0`."""
    device_name: str
    """Model of the processor or of the graphics card, for people."""
    precision: str
    """`fp32`; or `bf16` or `fp16`, where matrix products are done in it (weights stay fp32)."""
    moments: str = ""
    """What the optimiser keeps its moments in; empty with shared steps, which have none."""
    momentum: Place | None = None
    """Place of the momentum that was loaded; None if none was."""
    problem: str = ""
    """For people: why the file at `optimizer_path` was not used; empty if all is well."""
    confinement: str = ""
    """What the worker's process cannot do any more, for people."""


class GenesisDone(_FromWorker, frozen=True, kw_only=True):
    pass


class _TextLoss(_FromWorker, frozen=True, kw_only=True):
    loss: float
    """Nats per token: the mean over `tokens`; NaN if there are none."""
    tokens: int
    text_bytes: int = 0
    """Bytes of the text that these tokens stand for; 0: not known, or there are no tokens."""

    @property
    def bits_per_byte(self) -> float | None:
        """See `measures.bits_per_byte`."""
        return bits_per_byte(self.loss, self.tokens, self.text_bytes)


class Evaluated(_TextLoss, frozen=True, kw_only=True):
    """The loss that Evaluate asked for."""


class Sampled(_FromWorker, frozen=True, kw_only=True):
    texts: tuple[str, ...] = ()
    """A continuation for each prompt; empty if there is a problem."""
    problem: str = ""
    """The reason for people why there is none."""


class Audited(_FromWorker, frozen=True, kw_only=True):
    losses: tuple[float, ...]
    """Nats per token, of each sequence; NaN for one without a token to predict, as in the middle of
    a long prompt."""


class Rebased(_FromWorker, frozen=True, kw_only=True):
    """`base` was read."""


class Saved(_FromWorker, frozen=True, kw_only=True):
    problem: str = ""
    """For people: why nothing was written, and the earlier file is untouched; empty if all is
    well."""
    seconds: float = 0.0


class Step(_TextLoss, frozen=True, kw_only=True):
    """One inner step is done."""

    round: int
    step: int
    """Place in the schedule: Begin's `first_step` and up."""
    loss: float
    """Mean over the step's tokens, in nats, before the update. May be NaN if `skipped`."""
    tokens: int
    """Target tokens trained; 0 if `skipped`."""
    seconds: float
    gradient_norm: float
    """Norm of the gradient before clipping."""
    learning_rate: float
    skipped: bool
    """Loss or gradient was not finite: nothing was updated, the data counts as consumed. In rounds
    of shared steps also: the momentum had a value out of range, and begins anew."""
    waited_seconds: float = 0.0
    """Time since the step before in which the worker waited for messages."""
    times: StepTimes | None = None
    """None on a device whose clock is not read."""
    device_memory_bytes: int = 0
    """The most memory that the trainer's tensors took on the card since the step before; 0 on a
    CPU."""


class Shared(_FromWorker, frozen=True, kw_only=True):
    """This peer's part of a shared step, after its newest gradient. The next step waits for
    Share."""

    round: int
    update: bytes
    """The signs, as the bytes of all chunks of the step (`step_codec`)."""


class NeedData(_FromWorker, frozen=True, kw_only=True):
    """Queued data will run out soon. Said once, and again after each Data that was not enough."""

    round: int
    tokens_queued: int


class Finished(_TextLoss, frozen=True, kw_only=True):
    """A round has ended and `pseudo_gradient` holds its work."""

    round: int
    steps: int
    """Inner steps done, the skipped ones among them."""
    spans: tuple[Span, ...]
    """Ranges of the consumed data, in order; neighbouring ranges of a shard are merged."""


class Failed(_FromWorker, frozen=True, kw_only=True):
    """The worker cannot go on; the text says why, for people. It exits with code 1 after this."""

    reason: str


ToWorker = (
    Configure | Genesis | Data | Begin | Stop | Share | Rebase | Evaluate | Sample | Audit | Forget
    | Save | KeepMomentum | Limits | Exit
)  # fmt: skip
FromWorker = (
    Alive | Configured | GenesisDone | Evaluated | Sampled | Audited | Rebased | Saved | Step
    | Shared | NeedData | Finished | Failed
)  # fmt: skip
