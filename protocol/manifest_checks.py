"""The rules for the values of a manifest. A check reports every mistake at once, each with its key
and the allowed values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError, ManifestError
from gossamer.protocol.ids import DIGEST_BYTES, PeerId, public_key_of
from gossamer.protocol.lora import problems_of_lora
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.sync_modes import SYNC_MODES

if TYPE_CHECKING:
    from gossamer.protocol.manifest import (
        DataConfig,
        InnerConfig,
        Manifest,
        OuterConfig,
        RoundConfig,
        TokenSchedule,
    )
    from gossamer.protocol.model_config import ImportedShape, ModelConfig


def require_valid(manifest: Manifest) -> Manifest:
    """The manifest itself, or ManifestError with one sentence a mistake."""
    if problems := problems_of(manifest):
        raise ManifestError(problems)
    return manifest


def step_chunks_max(model: ModelConfig, outer: OuterConfig) -> int:
    """Returns the most chunks that a shared step may have: each then has a row of tiles at least,
    and a round has no more chunks than a ring."""
    row_elements = limits.TILE_SIDE_MAX * max(model.width, model.hidden_width, model.query_width)
    in_model = model.num_parameters // row_elements
    return max(1, min(in_model, limits.CHUNKS_MAX // max(1, outer.inner_steps)))


def problems_of(manifest: Manifest) -> list[str]:
    """One sentence for each mistake: the key, what it is, what is allowed. Empty if all is well."""
    checks = _Checks()
    checks.run(manifest)
    checks.model(manifest.model)
    checks.inner(manifest.inner)
    checks.outer(manifest.outer)
    if checks.are_right("model.", "outer.fragments", "outer.inner_steps", "outer.chunk_elements"):
        checks.fragments(manifest)
        checks.chunks(manifest)
    checks.trust(manifest)
    checks.sync(manifest)
    checks.lora(manifest)
    checks.rounds(manifest.rounds)
    checks.data(manifest.data, manifest.model)
    checks.digest("genesis_digest", manifest.genesis_digest)
    return checks.problems


def problems_of_model(model: ModelConfig) -> list[str]:
    """One sentence for each mistake of a shape, as `problems_of` has them."""
    checks = _Checks()
    checks.model(model)
    return checks.problems


class _Checks:
    """Collects the mistakes of one manifest.

    It has more than 15 public methods: each table of the manifest is one.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def within(self, key: str, value: float, low: float, high: float) -> None:
        if not (math.isfinite(value) and low <= value <= high):
            self.problems.append(f"{key} is {value}; allowed: {low:g} to {high:g}")

    def require(self, condition: bool, problem: str) -> None:
        if not condition:
            self.problems.append(problem)

    def are_right(self, *keys: str) -> bool:
        """Returns whether no mistake so far is about these keys, or keys that begin so. A rule that
        compares several keys needs each of them to be right."""
        return not any(problem.startswith(keys) for problem in self.problems)

    def digest(self, key: str, digest: bytes, *, may_be_empty: bool = False) -> None:
        self.require(
            len(digest) == DIGEST_BYTES or (may_be_empty and not digest),
            f"{key} has {len(digest)} bytes; a digest has {DIGEST_BYTES}",
        )

    # The sections of a manifest

    def run(self, manifest: Manifest) -> None:
        self.require(
            manifest.version == limits.PROTOCOL_VERSION,
            f"version is {manifest.version}; this Gossamer speaks {limits.PROTOCOL_VERSION}",
        )
        self.require(
            0 < len(manifest.name) <= limits.TEXT_CHARACTERS_MAX,
            f"name has {len(manifest.name)} characters; allowed: 1 to {limits.TEXT_CHARACTERS_MAX}",
        )
        self._peer("founder", manifest.founder)
        for peer in manifest.allowed:
            self._peer("allowed", peer)
        self.require(
            len(manifest.allowed) <= limits.MEMBERS_MAX,
            f"allowed has {len(manifest.allowed)} peers; at most {limits.MEMBERS_MAX}",
        )
        self.require(
            manifest.admission != "allow" or bool(manifest.allowed),
            'admission is "allow" but allowed is empty: no peer could join',
        )
        self.within("seed", manifest.seed, 0, 2**63 - 1)

    def _peer(self, key: str, peer_id: str) -> None:
        try:
            public_key_of(PeerId(peer_id))
        except MalformedError as error:
            self.problems.append(f"{key}: {peer_id!r} is {error}")

    def model(self, model: ModelConfig) -> None:
        self.within("model.num_layers", model.num_layers, 1, limits.LAYERS_MAX)
        self.within("model.width", model.width, 8, 65_536)
        self.within("model.num_heads", model.num_heads, 1, 1024)
        self.within("model.num_kv_heads", model.num_kv_heads, 1, 1024)
        self.within("model.hidden_width", model.hidden_width, 8, 262_144)
        self.within("model.vocabulary", model.vocabulary, 2, 2**20)
        self.within("model.context", model.context, 8, 2**20)
        self.within("model.rope_theta", model.rope_theta, 1.0, 1e9)
        self.within("model.norm_epsilon", model.norm_epsilon, 1e-12, 1e-1)
        if model.imported:
            self.imported(model.imported)
        if model.lora:
            self.problems += problems_of_lora(model.lora)
        if not self.are_right("model."):
            return
        self.require(
            bool(model.imported)
            or (model.width % model.num_heads == 0 and (model.width // model.num_heads) % 2 == 0),
            f"model.width is {model.width}; it must be an even multiple of model.num_heads "
            f"({model.num_heads})",
        )
        self.require(
            model.num_heads % model.num_kv_heads == 0,
            f"model.num_kv_heads is {model.num_kv_heads}; it must divide model.num_heads "
            f"({model.num_heads})",
        )
        self.within(
            "number of blocks of the frozen weights",
            -(-model.frozen_bytes // limits.BLOCK_BYTES_MAX),
            0,
            limits.CHUNKS_MAX,
        )

    def imported(self, shape: ImportedShape) -> None:
        # Head widths in use go up to 256.
        self.within("model.imported.head_width", shape.head_width, 2, 1024)
        self.require(
            shape.head_width % 2 == 0,
            f"model.imported.head_width is {shape.head_width}; it must be even",
        )
        if (scaling := shape.rope_scaling) is None:
            return
        key = "model.imported.rope_scaling."
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        self.within(key + "factor", scaling.factor, 1.0, 1e4)
        self.within(key + "low_frequency_factor", low, 1e-3, 1e4)
        self.within(key + "high_frequency_factor", high, 1e-3, 1e4)
        self.within(key + "original_context", scaling.original_context, 8, 2**20)
        self.require(
            low < high,
            f"{key}low_frequency_factor is {low:g}; it must be below the high one ({high:g})",
        )

    def inner(self, inner: InnerConfig) -> None:
        self.within("inner.learning_rate", inner.learning_rate, 1e-8, 10.0)
        self.within("inner.warmup_steps", inner.warmup_steps, 0, 10**9)
        self.within("inner.total_steps", inner.total_steps, 1, 10**9)
        self.within("inner.final_fraction", inner.final_fraction, 0.0, 1.0)
        self.within("inner.beta1", inner.beta1, 0.0, 0.9999)
        self.within("inner.beta2", inner.beta2, 0.0, 0.999999)
        self.within("inner.epsilon", inner.epsilon, 1e-16, 1e-2)
        self.within("inner.weight_decay", inner.weight_decay, 0.0, 10.0)
        self.within("inner.clip_norm", inner.clip_norm, 1e-6, 1e6)
        self.within("inner.sequences_per_step", inner.sequences_per_step, 1, 65_536)
        if inner.schedule:
            self.schedule(inner.schedule)

    def schedule(self, schedule: TokenSchedule) -> None:
        tokens_max = limits.TOKENS_TOTAL_MAX
        self.within("schedule.total_tokens", schedule.total_tokens, 1, tokens_max)
        self.within("schedule.warmup_tokens", schedule.warmup_tokens, 0, tokens_max)
        self.within("schedule.cooldown_tokens", schedule.cooldown_tokens, 0, tokens_max)
        changing = schedule.warmup_tokens + schedule.cooldown_tokens
        self.require(
            changing <= schedule.total_tokens,
            f"schedule.warmup_tokens and schedule.cooldown_tokens are {changing} together; "
            f"allowed: at most schedule.total_tokens ({schedule.total_tokens})",
        )

    def outer(self, outer: OuterConfig) -> None:
        self.within("outer.inner_steps", outer.inner_steps, 1, 100_000)
        self.within("outer.learning_rate", outer.learning_rate, 1e-4, 10.0)
        self.within("outer.momentum", outer.momentum, 0.0, 0.9999)
        self.within("outer.displacement", outer.displacement, 0.0, 10.0)
        self.within("outer.top_k", outer.top_k, 1, 4096)
        self.within("outer.error_decay", outer.error_decay, 0.0, 1.0)
        self.within("outer.fragments", outer.fragments, 1, limits.LAYERS_MAX)
        self.within("outer.mixing", outer.mixing, 0.0, 1.0)
        self.within("outer.warmup_rounds", outer.warmup_rounds, 0, 1_000_000)
        self.within("outer.warmup_inner_steps", outer.warmup_inner_steps, 1, 100_000)
        self.within(
            "outer.chunk_elements",
            outer.chunk_elements,
            limits.CHUNK_ELEMENTS_MIN,
            limits.CHUNK_ELEMENTS_MAX,
        )

    def fragments(self, manifest: Manifest) -> None:
        outer, num_layers = manifest.outer, manifest.model.num_layers
        self.require(
            outer.fragments <= num_layers,
            f"outer.fragments is {outer.fragments}; allowed: 1 to model.num_layers ({num_layers})",
        )
        self.require(
            outer.inner_steps % outer.fragments == 0,
            f"outer.fragments is {outer.fragments}; it must divide outer.inner_steps "
            f"({outer.inner_steps})",
        )
        self.require(
            outer.fragments == 1 or SYNC_MODES[manifest.sync].may_have_fragments,
            f'outer.fragments is {outer.fragments}; with sync = "{manifest.sync}" it is 1',
        )
        self.require(
            not outer.mixing or outer.overlap or outer.fragments > 1,
            f"outer.mixing is {outer.mixing}; without overlap and fragments it is 0: local "
            "parameters are then the new state",
        )

    def chunks(self, manifest: Manifest) -> None:
        outer = manifest.outer
        # Each fragment but one may end with a chunk that is not full.
        full = -(-manifest.model.num_parameters // outer.chunk_elements)
        self.within(
            "number of chunks (model.num_parameters / outer.chunk_elements)",
            full + outer.fragments - 1,
            1,
            limits.CHUNKS_MAX,
        )

    def sync(self, manifest: Manifest) -> None:
        outer, mode = manifest.outer, SYNC_MODES[manifest.sync]
        if mode.shares_steps:
            self.within(
                "outer.inner_steps (shared steps of a round)",
                outer.inner_steps,
                1,
                limits.CHUNKS_MAX,
            )
            if self.are_right("model."):
                most = step_chunks_max(manifest.model, outer)
                self.within("outer.step_chunks", outer.chunks_of_step, 1, most)
            self.require(
                not outer.warmup_rounds,
                'outer.warmup_rounds is not 0: every step of "distro" is shared',
            )
            self.require(
                not outer.overlap,
                'outer.overlap is true: a step of "distro" needs the one before it',
            )
            self.require(
                not manifest.inner.uses_muon,
                'inner.optimizer is "muon"; with sync = "distro" no peer takes steps of its own',
            )
            self.require(
                not manifest.inner.counts_tokens,
                'schedule.kind is "wsd"; with sync = "distro" it is "cosine": all peers take each '
                "step, so no step is counted that was not taken",
            )
        else:
            self.require(
                outer.step_chunks is msgspec.UNSET,
                f"outer.step_chunks is {outer.chunks_of_step}; only the steps of "
                '"distro" have chunks',
            )
        self.require(
            not outer.displacement or mode.may_choose_momentum,
            'outer.displacement is not 0: only sync = "diloco" chooses its momentum',
        )

    def lora(self, manifest: Manifest) -> None:
        self.require(
            bool(manifest.model.lora) == bool(manifest.data.frozen_digest),
            "data.frozen_digest belongs to model.lora: a manifest has both, or neither",
        )
        if manifest.data.frozen_digest:
            self.digest("data.frozen_digest", manifest.data.frozen_digest)
        if not manifest.model.lora:
            return
        self.require(
            SYNC_MODES[manifest.sync].may_have_adapters,
            'model.lora is for sync = "diloco" and "sparse"; the signs of "distro" were not tried '
            "on adapters",
        )
        self.require(
            not manifest.inner.uses_muon,
            'inner.optimizer is "muon"; with model.lora only "adamw" is allowed: Muon is for whole '
            "matrices, and not for the factors of one",
        )

    def trust(self, manifest: Manifest) -> None:
        if probation := manifest.rounds.probation:
            self.within("rounds.probation", probation, 1, STANDING_ROUNDS)
        if manifest.trust != "open":
            self.require(
                not probation,
                f'rounds.probation is {probation}; only trust = "open" has one: a sum does not '
                "show its parts",
            )

    def rounds(self, rounds: RoundConfig) -> None:
        self.within("rounds.round_seconds", rounds.round_seconds, 0.1, 86_400.0)
        self.within("rounds.gather_seconds", rounds.gather_seconds, 0.1, 3_600.0)
        self.within("rounds.gather_fraction", rounds.gather_fraction, 0.01, 1_000.0)
        self.within("rounds.attempt_seconds", rounds.attempt_seconds, 0.1, 3_600.0)
        self.within("rounds.stale_rounds", rounds.stale_rounds, 1, 1000)
        self.within("rounds.checkpoint_rounds", rounds.checkpoint_rounds, 1, 1000)
        self.within("rounds.accusers", rounds.num_accusers, 1, 2)
        keepers = rounds.keeper_ids
        for peer in keepers:
            self._peer("rounds.keepers", peer)
        self.require(
            len(keepers) <= limits.KEEPERS_MAX and len(set(keepers)) == len(keepers),
            f"rounds.keepers has {len(keepers)} peers; allowed: {limits.KEEPERS_MAX} at most, each "
            "once",
        )

    def data(self, data: DataConfig, model: ModelConfig) -> None:
        vocabulary = model.vocabulary
        self.require(
            (data.tokenizer == "files") == bool(model.imported),
            f'data.tokenizer is "{data.tokenizer}"; an imported model has "files", and no other',
        )
        self.digest(
            "data.tokenizer_digest", data.tokenizer_digest, may_be_empty=data.tokenizer == "bytes"
        )
        self.digest("data.index_digest", data.index_digest)
        if data.own:
            self.within("data.num_shards (with data of each peer's own)", data.num_shards, 0, 0)
            self.within("data.num_tokens (with data of each peer's own)", data.num_tokens, 0, 0)
        else:
            self.within("data.num_shards", data.num_shards, 1, limits.SHARDS_MAX)
            self.within("data.num_tokens", data.num_tokens, 1, limits.TOKENS_MAX)
        self.require(
            not (data.own and data.grows),
            "data.grows is true; data of each peer's own are not the founder's to add",
        )
        self.within("data.heldout_tokens", data.heldout_tokens, 1, limits.TOKENS_MAX)
        self.require(
            data.tokenizer != "bytes" or vocabulary >= 256,
            f"model.vocabulary is {vocabulary}; plain bytes need at least 256",
        )
        self.require(
            not data.messages or (data.tokenizer == "files" and data.token_bytes == 4),
            "data.messages is true; conversations take the tokenizer of an imported model, whose "
            "chat template says how they are written, and data.token_bytes 4",
        )
        self.require(
            data.token_bytes != 2 or vocabulary <= 65_536,
            f"data.token_bytes is 2; a vocabulary of {vocabulary} needs 4",
        )
