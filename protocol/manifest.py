"""The manifest: what one run trains and by which rules, fixed by its founder.

A manifest is canonical msgpack: fields in the order in which the classes below declare them,
no defaults left out. A field that may be `UNSET` is none of the map where it is so; its docstring
says what that means. `run_id` is the BLAKE3 digest of exactly these bytes, so two peers with the
same `run_id` agree on everything here. The founder signs the `run_id`.

`manifest_checks` has the allowed values.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import decoded
from gossamer.protocol.errors import MalformedError, OversizedError, VersionError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest_checks import problems_of
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.sync_modes import SyncMode

Codec = Literal["fp32", "fp16", "int8", "int4"]
Trust = Literal["open", "members"]
InnerOptimizer = Literal["adamw", "muon"]

_SIGNATURE_CONTEXT = b"gossamer manifest 1:"


class TokenSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Warm-up, stable phase and cool-down, in tokens of all peers (`protocol.state.run_end`)."""

    warmup_tokens: int
    """The learning rate rises during the first ones."""
    total_tokens: int
    """The run is over with them, unless the founder extends it."""
    cooldown_tokens: int
    """The learning rate falls during the last ones."""

    @property
    def cooldown_start(self) -> int:
        """Tokens in the chain with which the learning rate begins to fall."""
        return self.total_tokens - self.cooldown_tokens


class InnerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The optimiser of the inner steps (DiLoCo, arXiv 2311.08105, section 3).

    It has more than 12 attributes: each is a key of the manifest.
    """

    learning_rate: float
    warmup_steps: int
    total_steps: int
    """Inner steps of the whole run; the cosine ends here."""
    final_fraction: float
    """Learning rate at the end of the cosine, as a part of `learning_rate`."""
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    sequences_per_step: int
    """Sequences of `context` tokens in one inner step of one peer."""
    ends: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the run ends with the round that completes `total_steps` (`Manifest.last_round`).
    UNSET: it never ends."""
    optimizer: InnerOptimizer | msgspec.UnsetType = msgspec.UNSET
    """`muon`: the matrices of the layers by Muon (MuLoCo, arXiv 2505.23725), all else by AdamW.
    UNSET: `adamw`."""
    schedule: TokenSchedule | msgspec.UnsetType = msgspec.UNSET
    """The schedule of a run that counts tokens instead of planned steps (WSD). UNSET: a cosine
    over `warmup_steps` and `total_steps`."""

    @property
    def uses_muon(self) -> bool:
        return self.optimizer == "muon"

    @property
    def counts_tokens(self) -> bool:
        """Whether learning rate and end of the run follow from the tokens in the chain."""
        return bool(self.schedule)


class OuterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nesterov outer step (DiLoCo, algorithm 1) and its warm-up.

    The first `warmup_rounds` rounds have `warmup_inner_steps` inner steps each and are plain
    averaging (learning rate 1, momentum 0); then `inner_steps`, `learning_rate` and `momentum`
    hold for every average of two or more peers.

    The work of a single contributor is adopted as it is (1 and 0 again), so that a peer alone is
    plain AdamW. An outer step that goes further than the average pays only where averaging took out
    noise: the best outer learning rate falls with the number of replicas (scaling laws, arXiv
    2503.09799, section 3), and a single one with momentum is worse than without an outer step
    (measured: tests/benchmarks/parity.py).

    It has more than 12 attributes: each is a key of the manifest.
    """

    inner_steps: int
    learning_rate: float
    momentum: float
    """Momentum of the outer step; with `displacement` the largest momentum that a round may
    choose."""
    displacement: float = 0.0
    """Length of an outer step, as a multiple of what a peer did by itself: each round has the
    momentum that leads so far (`protocol.state.outer_momentum`). 0: momentum is a constant."""
    warmup_rounds: int
    warmup_inner_steps: int
    codec: Codec
    chunk_elements: int
    overlap: bool = False
    """Whether a peer trains on while its round is averaged, once the warm-up is over."""
    top_k: int = 64
    """Values that are sent: of `sparse` of each 4,096 (SparseLoCo, arXiv 2508.15706), of `distro`
    of each chunk of up to 64 x 64 coefficients (DeMo, arXiv 2411.19870)."""
    error_decay: float = 0.95
    """Part of the unsent work that is carried into the next round (`sparse` only)."""
    lookahead: bool = False
    """Whether a peer takes its gradients where its own momentum would lead (`distro` only)."""
    fragments: int = 1
    """Parts of the parameters that are averaged one after the other (`protocol.state.sync_sets`),
    each of them every `inner_steps`: with more than one, a round after the warm-up has its share of
    these steps and averages one fragment."""
    mixing: float = 0.0
    """Streaming DiLoCo's alpha (arXiv 2501.18512, section 3.3): with `overlap` or `fragments`, the
    part of the way to a new state that the local parameters stay behind (`trainer.overlap`)."""
    widening: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the codes of a partial sum get wider with the number of members in it (`int4` only,
    `protocol.codecs.wide_codecs`). UNSET: no."""
    sparse_sums: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the parts of many members travel as a sum where a set of them would be longer
    (`sparse` with `trust = "members"` only, `protocol.codecs.payloads`). UNSET: no."""
    packing: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether chunks are packed on their way to the next member (values of `fp32` and `fp16`, and
    the places of sparse updates, `protocol.codecs.packing`). UNSET: no."""
    step_chunks: int | msgspec.UnsetType = msgspec.UNSET
    """Chunks in which a shared step travels (`distro` only, `protocol.codecs.step_codec`). UNSET:
    one."""

    @property
    def chunks_of_step(self) -> int:
        """Returns the number of chunks of a shared step."""
        return 1 if self.step_chunks is msgspec.UNSET else self.step_chunks

    def is_warmup(self, round_number: int) -> bool:
        """Returns whether round `round_number` (the first is 1) belongs to the warm-up."""
        return round_number <= self.warmup_rounds

    def inner_steps_of(self, round_number: int) -> int:
        return self.warmup_inner_steps if self.is_warmup(round_number) else self._steps_of_turn

    @property
    def _steps_of_turn(self) -> int:
        return self.inner_steps // self.fragments

    @property
    def round_steps_max(self) -> int:
        """Inner steps of the longest round."""
        return max(self.warmup_inner_steps, self._steps_of_turn)

    def rates_of(self, round_number: int, num_contributors: int) -> tuple[float, float]:
        """(learning rate, momentum) of a round's outer step on a chunk.

        The momentum vector has no rule of its own: it becomes `momentum * vector + average` with
        the momentum of this step. So a step with momentum 0 leaves the newest average in it, and
        the next step of several peers goes on from there.

        Args:
            num_contributors: members whose work is in the chunk's average (its mask says it, so
                all peers agree); 1 or more.
        """
        if self.is_warmup(round_number) or num_contributors == 1:
            return (1.0, 0.0)
        return (self.learning_rate, self.momentum)

    def first_inner_step_of(self, round_number: int) -> int:
        """Inner steps of a whole round that lie before round `round_number` (counts from 1)."""
        before = round_number - 1
        warm = min(before, self.warmup_rounds)
        return warm * self.warmup_inner_steps + (before - warm) * self._steps_of_turn

    def round_of_inner_step(self, num_steps: int) -> int:
        """Returns the round with which the planned inner steps come to `num_steps` (1 or more)."""
        warm_steps = self.warmup_rounds * self.warmup_inner_steps
        if num_steps <= warm_steps:
            return -(-num_steps // self.warmup_inner_steps)
        return self.warmup_rounds - (warm_steps - num_steps) // self._steps_of_turn


def last_round_of(inner: InnerConfig, outer: OuterConfig) -> int | None:
    """See `Manifest.last_round`."""
    if not inner.ends or inner.counts_tokens:
        return None
    return outer.round_of_inner_step(inner.total_steps)


class RoundConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Waits of a round, in seconds of each peer's own clock: clocks are never compared."""

    round_seconds: float
    """A peer stops its inner steps after this long, whatever their number."""
    gather_seconds: float
    """Longest time that the others have to be ready after the first peer is ready."""
    attempt_seconds: float
    """Time without a roster after which the next organiser is asked."""
    stale_rounds: int
    """Work that missed this many rounds is dropped instead of carried."""
    checkpoint_rounds: int = 5
    """Every peer keeps the whole state of the rounds that this divides, for newcomers."""
    gather_fraction: float = 0.3
    """Longest wait for the others, as a part of the time that the first peer took."""
    accusers: int | msgspec.UnsetType = msgspec.UNSET
    """Votes that must call a member of a ring of three or more removed before a commit counts it as
    out, 1 or 2. UNSET: 1."""
    keepers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Peer ids of which more than half may take rounds back together, as the founder may alone
    (`policy.heads.rollback_signers`). UNSET: none."""
    probation: int | msgspec.UnsetType = msgspec.UNSET
    """Rounds that have to take a peer's work before it has its whole influence, in a run with
    `trust = "open"` (`protocol.standing`). UNSET: 0."""

    @property
    def keeper_ids(self) -> tuple[str, ...]:
        return () if self.keepers is msgspec.UNSET else self.keepers

    @property
    def num_accusers(self) -> int:
        return 1 if self.accusers is msgspec.UNSET else self.accusers


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The data of a run: an index of token shards, by digest."""

    tokenizer: Literal["bytes", "bpe", "files"]
    """`files`: the tokenizer of an imported model, one of its files."""
    tokenizer_digest: bytes
    """Block with the tokenizer file (empty for `bytes`), or with the files of the imported model,
    its tokenizer among them."""
    token_bytes: Literal[2, 4]
    index_digest: bytes
    """Block with the `ShardIndex`."""
    num_shards: int
    num_tokens: int
    """Training tokens of one epoch."""
    heldout_tokens: int
    own: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether every peer trains on data of its own, which does not leave it. The index then has
    nothing but the held-out shards, and no message names data. UNSET: no."""
    messages: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the data are conversations, of which only the assistant's tokens are targets
    (`protocol.shard_index.PROMPT_BIT`). UNSET: no."""
    frozen_digest: bytes | msgspec.UnsetType = msgspec.UNSET
    """Only in a run of adapters: block with the list of the model's weights, which stay as they are
    (`protocol.state.frozen_weights`)."""
    grows: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the founder adds shards while the run goes on (`protocol.data_parts`). The shards and
    tokens of the manifest are then those that the run begins with. UNSET: no."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that all peers of a run must agree on.

    It has more than 12 attributes: each is a key, or a table of keys.
    """

    version: int
    name: str
    founder: str
    """Peer id of the founder, whose key signs the manifest."""
    created_unix_seconds: int
    sync: SyncMode
    model: ModelConfig
    inner: InnerConfig
    outer: OuterConfig
    rounds: RoundConfig
    data: DataConfig
    seed: int
    genesis_digest: bytes
    """State digest of the initial weights with zero momentum."""
    admission: Literal["open", "allow", "invite"]
    allowed: tuple[str, ...]
    """Peer ids that may join when `admission` is `allow`. With `invite` they and the founder are
    the roots, which are in and may invite others (`protocol.policy.members.roll`)."""
    trust: Trust = "members"
    """Whether members of a ring trust each other's sums (`members`), or check each contribution
    against what its member signed (`open`)."""

    @property
    def run_id(self) -> Digest:
        return digest_of(encode_manifest(self))

    @property
    def stale_rounds(self) -> int:
        """Rounds that work may miss: `rounds.stale_rounds` turns of its fragment."""
        return self.rounds.stale_rounds * self.outer.fragments

    @property
    def last_round(self) -> int | None:
        """The round whose state is the result of the run; None for a run that does not end, or that
        ends by its tokens (`protocol.state.run_end`)."""
        return last_round_of(self.inner, self.outer)


class SignedManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    manifest: bytes
    signature: bytes


class _Versioned(msgspec.Struct):
    """The fields that a manifest of any version has."""

    version: int


_encoder = msgspec.msgpack.Encoder()
_version_decoder = msgspec.msgpack.Decoder(_Versioned)
_manifest_decoder = msgspec.msgpack.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Canonical bytes; `decode_manifest(encode_manifest(m)) == m`."""
    # The encoder writes a struct of more than 15 declared fields with the long header of a map,
    # also where some are left out. A map gets the header that its length needs.
    fields = msgspec.to_builtins(manifest, builtin_types=(bytes,), order="deterministic")
    return _encoder.encode(fields)


def decode_manifest(data: bytes) -> Manifest:
    """A manifest from canonical bytes, with every value checked.

    Raises:
        OversizedError: more than `MANIFEST_BYTES_MAX`.
        VersionError: of a version of the protocol that this one does not speak.
        MalformedError: not a manifest, not canonical, or with values that are not allowed.
    """
    if len(data) > limits.MANIFEST_BYTES_MAX:
        raise OversizedError(
            f"manifest of {len(data)} bytes; {limits.MANIFEST_BYTES_MAX} is the limit"
        )
    version = decoded(_version_decoder, data, "a manifest").version
    if version != limits.PROTOCOL_VERSION:
        raise VersionError(
            f"a run of protocol version {version}; this Gossamer speaks "
            f"{limits.PROTOCOL_VERSION}: install the release that the run was founded with"
        )
    manifest = decoded(_manifest_decoder, data, "a manifest")
    if encode_manifest(manifest) != data:
        raise MalformedError("manifest is not in canonical form")
    if problems := problems_of(manifest):
        raise MalformedError("manifest with values that are not allowed: " + "; ".join(problems))
    return manifest


def signing_bytes(run_id: Digest) -> bytes:
    """Returns the bytes that the founder signs."""
    return _SIGNATURE_CONTEXT + run_id
