"""The manifest: what one run trains and by which rules, fixed by its founder.

A manifest is canonical msgpack: fields in the order in which the classes below declare them,
no defaults left out. `run_id` is the BLAKE3 digest of exactly these bytes, so two peers with the
same `run_id` agree on everything here. The founder signs the `run_id`.

`problems_of` explains every mistake of a manifest at once, naming the key and what is allowed.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError, ManifestError, OversizedError, VersionError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId, digest_of, public_key_of

Codec = Literal["fp32", "fp16", "int8", "int4"]
SyncMode = Literal["diloco", "sparse", "distro"]

_SIGNATURE_CONTEXT = b"gossamer manifest 1:"

LAYERS_MAX = 256
"""Of a model: twice as many as Llama 3.1 with 405 billion parameters has."""


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shape of a Llama-type decoder (RMSNorm, RoPE, SwiGLU, grouped-query attention)."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    hidden_width: int
    """Width of the SwiGLU's two gates."""
    vocabulary: int
    context: int
    """Tokens in one training sequence."""
    tied_embeddings: bool
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5

    @property
    def num_parameters(self) -> int:
        embeddings = self.vocabulary * self.width * (1 if self.tied_embeddings else 2)
        return self.num_layers * self.layer_parameters + embeddings + self.width

    @property
    def layer_parameters(self) -> int:
        """Of one decoder layer."""
        head_width = self.width // self.num_heads
        attention = self.width * head_width * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + 3 * self.width * self.hidden_width + 2 * self.width


class InnerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """AdamW of the inner steps (DiLoCo, arXiv 2311.08105, section 3)."""

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


class OuterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nesterov outer step (DiLoCo, algorithm 1) and its warm-up.

    The first `warmup_rounds` rounds have `warmup_inner_steps` inner steps each and are plain
    averaging (learning rate 1, momentum 0); then `inner_steps`, `learning_rate` and `momentum`
    hold for every average of two or more peers.

    What a single peer contributed is adopted as it is (1 and 0 again), so that a peer alone is
    plain AdamW. An outer step that goes further than the average pays only where averaging took
    out noise: the best outer learning rate falls with the number of replicas (scaling laws, arXiv
    2503.09799, section 3), and a single one with momentum is worse than without an outer step
    (measured: tests/benchmarks/parity.py).
    """

    inner_steps: int
    learning_rate: float
    momentum: float
    """With `displacement` the most that it may be."""
    displacement: float = 0.0
    """Length of an outer step, as a multiple of what a peer did by itself: each round has the
    momentum that leads so far (`protocol.outer_tuning`). 0: momentum is a constant."""
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
    """Of `sparse`: the part of what was not sent that is carried into the next round."""
    lookahead: bool = False
    """Of `distro`: whether a peer takes its gradients where its own momentum would lead."""
    fragments: int = 1
    """Parts of the parameters that are averaged one after the other (`protocol.fragments`), each of
    them every `inner_steps`: with more than one, a round after the warm-up has its share of these
    steps and averages one fragment."""

    def is_warmup(self, round_number: int) -> bool:
        """Whether round `round_number` (the first is 1) belongs to the warm-up."""
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


class RoundConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Waits of a round, in seconds of each peer's own clock: clocks are never compared."""

    round_seconds: float
    """A peer stops its inner steps after this long, whatever their number."""
    gather_seconds: float
    """After the first peer is ready, the others have this long at most to be ready too."""
    attempt_seconds: float
    """Without a roster after this long, the next organiser is asked."""
    stale_rounds: int
    """Work that missed this many rounds is dropped instead of carried."""
    checkpoint_rounds: int = 5
    """Every peer keeps the whole state of the rounds that this divides, for newcomers."""
    gather_fraction: float = 0.3
    """The others are waited for no longer than this part of the time that the first one took."""


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is trained on: an index of token shards, by digest."""

    tokenizer: Literal["bytes", "bpe"]
    tokenizer_digest: bytes
    """Block with the tokenizer file (empty for `bytes`)."""
    token_bytes: Literal[2, 4]
    index_digest: bytes
    """Block with the `ShardIndex`."""
    num_shards: int
    num_tokens: int
    """Training tokens of one epoch."""
    heldout_tokens: int


class ShardInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One shard: BLAKE3 of its compressed bytes, its length in tokens and in compressed bytes."""

    digest: bytes
    num_tokens: int
    num_bytes: int


class ShardIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All shards of a corpus in their order, and the held-out shards that are never trained on."""

    shards: tuple[ShardInfo, ...]
    heldout: tuple[ShardInfo, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that all peers of a run must agree on."""

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
    admission: Literal["open", "allow"]
    allowed: tuple[str, ...]
    """Peer ids that may join when `admission` is `allow`."""

    @property
    def run_id(self) -> Digest:
        return digest_of(encode_manifest(self))

    @property
    def stale_rounds(self) -> int:
        """Rounds that work may miss: `rounds.stale_rounds` turns of its fragment."""
        return self.rounds.stale_rounds * self.outer.fragments


class SignedManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    manifest: bytes
    signature: bytes


class _Versioned(msgspec.Struct):
    """What a manifest of any version has."""

    version: int


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_version_decoder = msgspec.msgpack.Decoder(_Versioned)
_manifest_decoder = msgspec.msgpack.Decoder(Manifest)
_index_decoder = msgspec.msgpack.Decoder(ShardIndex)


def encode_manifest(manifest: Manifest) -> bytes:
    """Canonical bytes; `decode_manifest(encode_manifest(m)) == m`."""
    return _encoder.encode(manifest)


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
    try:
        version = _version_decoder.decode(data).version
        if version != limits.PROTOCOL_VERSION:
            raise VersionError(
                f"a run of protocol version {version}; this Gossamer speaks "
                f"{limits.PROTOCOL_VERSION}: install the release that the run was founded with"
            )
        manifest = _manifest_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a manifest: {error}") from error
    if encode_manifest(manifest) != data:
        raise MalformedError("manifest is not in canonical form")
    if problems := problems_of(manifest):
        raise MalformedError("manifest with values that are not allowed: " + "; ".join(problems))
    return manifest


def signing_bytes(run_id: Digest) -> bytes:
    """What the founder signs."""
    return _SIGNATURE_CONTEXT + run_id


def encode_index(index: ShardIndex) -> bytes:
    return _encoder.encode(index)


def decode_index(data: bytes) -> ShardIndex:
    """Raises MalformedError if the bytes are not a valid shard index."""
    try:
        index = _index_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a shard index: {error}") from error
    if len(index.shards) + len(index.heldout) > limits.SHARDS_MAX:
        raise OversizedError(f"shard index of more than {limits.SHARDS_MAX} shards")
    for shard in (*index.shards, *index.heldout):
        if (
            len(shard.digest) != DIGEST_BYTES
            or not 0 < shard.num_tokens <= limits.SHARD_TOKENS_MAX
            or not 0 < shard.num_bytes <= limits.BLOCK_BYTES_MAX
        ):
            raise MalformedError("shard index with a shard out of range")
    return index


def require_valid(manifest: Manifest) -> Manifest:
    """The manifest itself, or ManifestError with one sentence a mistake."""
    if problems := problems_of(manifest):
        raise ManifestError(problems)
    return manifest


def problems_of(manifest: Manifest) -> list[str]:
    """One sentence for each mistake: the key, what it is, what is allowed. Empty if all is well."""
    problems: list[str] = []

    def check(key: str, value: float, low: float, high: float) -> None:
        if not (math.isfinite(value) and low <= value <= high):
            problems.append(f"{key} is {value}; allowed: {low:g} to {high:g}")

    if manifest.version != limits.PROTOCOL_VERSION:
        problems.append(
            f"version is {manifest.version}; this Gossamer speaks {limits.PROTOCOL_VERSION}"
        )
    if not 0 < len(manifest.name) <= limits.TEXT_CHARACTERS_MAX:
        problems.append(
            f"name has {len(manifest.name)} characters; allowed: 1 to {limits.TEXT_CHARACTERS_MAX}"
        )
    for key, peer_id in [
        ("founder", manifest.founder),
        *(("allowed", peer) for peer in manifest.allowed),
    ]:
        try:
            public_key_of(PeerId(peer_id))
        except MalformedError as error:
            problems.append(f"{key}: {peer_id!r} is {error}")
    if len(manifest.allowed) > limits.MEMBERS_MAX:
        problems.append(f"allowed has {len(manifest.allowed)} peers; at most {limits.MEMBERS_MAX}")
    if manifest.admission == "allow" and not manifest.allowed:
        problems.append('admission is "allow" but allowed is empty: nobody could join')
    check("seed", manifest.seed, 0, 2**63 - 1)

    model = manifest.model
    check("model.num_layers", model.num_layers, 1, LAYERS_MAX)
    check("model.width", model.width, 8, 65_536)
    check("model.num_heads", model.num_heads, 1, 1024)
    check("model.num_kv_heads", model.num_kv_heads, 1, 1024)
    check("model.hidden_width", model.hidden_width, 8, 262_144)
    check("model.vocabulary", model.vocabulary, 2, 2**20)
    check("model.context", model.context, 8, 2**20)
    check("model.rope_theta", model.rope_theta, 1.0, 1e9)
    check("model.norm_epsilon", model.norm_epsilon, 1e-12, 1e-1)
    if not problems:
        if model.width % model.num_heads or (model.width // model.num_heads) % 2:
            problems.append(
                f"model.width is {model.width}; it must be an even multiple of model.num_heads "
                f"({model.num_heads})"
            )
        if model.num_heads % model.num_kv_heads:
            problems.append(
                f"model.num_kv_heads is {model.num_kv_heads}; it must divide model.num_heads "
                f"({model.num_heads})"
            )

    inner = manifest.inner
    check("inner.learning_rate", inner.learning_rate, 1e-8, 10.0)
    check("inner.warmup_steps", inner.warmup_steps, 0, 10**9)
    check("inner.total_steps", inner.total_steps, 1, 10**9)
    check("inner.final_fraction", inner.final_fraction, 0.0, 1.0)
    check("inner.beta1", inner.beta1, 0.0, 0.9999)
    check("inner.beta2", inner.beta2, 0.0, 0.999999)
    check("inner.epsilon", inner.epsilon, 1e-16, 1e-2)
    check("inner.weight_decay", inner.weight_decay, 0.0, 10.0)
    check("inner.clip_norm", inner.clip_norm, 1e-6, 1e6)
    check("inner.sequences_per_step", inner.sequences_per_step, 1, 65_536)

    outer = manifest.outer
    check("outer.inner_steps", outer.inner_steps, 1, 100_000)
    check("outer.learning_rate", outer.learning_rate, 1e-4, 10.0)
    check("outer.momentum", outer.momentum, 0.0, 0.9999)
    check("outer.displacement", outer.displacement, 0.0, 10.0)
    check("outer.top_k", outer.top_k, 1, 4096)
    check("outer.error_decay", outer.error_decay, 0.0, 1.0)
    check("outer.fragments", outer.fragments, 1, LAYERS_MAX)
    check("outer.warmup_rounds", outer.warmup_rounds, 0, 1_000_000)
    check("outer.warmup_inner_steps", outer.warmup_inner_steps, 1, 100_000)
    check(
        "outer.chunk_elements",
        outer.chunk_elements,
        limits.CHUNK_ELEMENTS_MIN,
        limits.CHUNK_ELEMENTS_MAX,
    )
    if not problems:
        problems += _problems_of_fragments(manifest)
        # Each fragment but one may end with a chunk that is not full.
        num_chunks = -(-model.num_parameters // outer.chunk_elements) + outer.fragments - 1
        check(
            "number of chunks (model.num_parameters / outer.chunk_elements)",
            num_chunks,
            1,
            limits.CHUNKS_MAX,
        )

    if manifest.sync == "distro":
        check(
            "outer.inner_steps (shared steps of a round)", outer.inner_steps, 1, limits.CHUNKS_MAX
        )
        if outer.warmup_rounds:
            problems.append('outer.warmup_rounds is not 0: every step of "distro" is shared')
        if outer.overlap:
            problems.append('outer.overlap is true: a step of "distro" needs the one before it')

    if outer.displacement and manifest.sync != "diloco":
        problems.append('outer.displacement is not 0: only sync = "diloco" chooses its momentum')

    rounds = manifest.rounds
    check("rounds.round_seconds", rounds.round_seconds, 0.1, 86_400.0)
    check("rounds.gather_seconds", rounds.gather_seconds, 0.1, 3_600.0)
    check("rounds.gather_fraction", rounds.gather_fraction, 0.01, 1_000.0)
    check("rounds.attempt_seconds", rounds.attempt_seconds, 0.1, 3_600.0)
    check("rounds.stale_rounds", rounds.stale_rounds, 1, 1000)
    check("rounds.checkpoint_rounds", rounds.checkpoint_rounds, 1, 1000)

    data = manifest.data
    for key, digest, may_be_empty in (
        ("data.tokenizer_digest", data.tokenizer_digest, data.tokenizer == "bytes"),
        ("data.index_digest", data.index_digest, False),
        ("genesis_digest", manifest.genesis_digest, False),
    ):
        if len(digest) != DIGEST_BYTES and not (may_be_empty and not digest):
            problems.append(f"{key} has {len(digest)} bytes; a digest has {DIGEST_BYTES}")
    check("data.num_shards", data.num_shards, 1, limits.SHARDS_MAX)
    check("data.num_tokens", data.num_tokens, 1, limits.TOKENS_MAX)
    check("data.heldout_tokens", data.heldout_tokens, 1, limits.TOKENS_MAX)
    if data.tokenizer == "bytes" and model.vocabulary < 256:
        problems.append(f"model.vocabulary is {model.vocabulary}; plain bytes need at least 256")
    if data.token_bytes == 2 and model.vocabulary > 65_536:
        problems.append(f"data.token_bytes is 2; a vocabulary of {model.vocabulary} needs 4")
    return problems


def _problems_of_fragments(manifest: Manifest) -> list[str]:
    """Mistakes of `outer.fragments` beside other keys that are well by themselves."""
    outer, problems = manifest.outer, []
    if outer.fragments > manifest.model.num_layers:
        problems.append(
            f"outer.fragments is {outer.fragments}; allowed: 1 to model.num_layers "
            f"({manifest.model.num_layers})"
        )
    if outer.inner_steps % outer.fragments:
        problems.append(
            f"outer.fragments is {outer.fragments}; it must divide outer.inner_steps "
            f"({outer.inner_steps})"
        )
    if outer.fragments > 1 and manifest.sync != "diloco":
        problems.append(
            f'outer.fragments is {outer.fragments}; with sync = "{manifest.sync}" it is 1'
        )
    return problems
