"""The shape that a Hugging Face `config.json` describes, or a reason why it cannot be trained here.

Families: Llama (Llama 3.x, SmolLM2), Mistral without sliding windows, Qwen 2 and 2.5, Qwen 3,
OLMo 2. A key that is missing has the default of the family's class in `transformers`. A key that
the family's class does not read is ignored, as `transformers` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from gossamer.protocol.manifest_checks import problems_of_model
from gossamer.protocol.model_config import Family, ImportedShape, ModelConfig, RopeScaling
from gossamer.trainer.pretrained.errors import FolderError

INTEGER_MAX = 2**31
"""No dimension and no token is larger. The manifest's checks have the limit of each."""

FAMILIES: tuple[Family, ...] = get_args(Family)


class _Defaults(NamedTuple):
    """What the family's class in `transformers` has where `config.json` says nothing."""

    architecture: str
    context: int
    num_kv_heads: int | None = None
    """None: as many as heads."""
    head_width: int | None = None
    """None: width / heads."""
    norm_epsilon: float = 1e-6


DEFAULTS: dict[Family, _Defaults] = {
    "llama": _Defaults("LlamaForCausalLM", 2048),
    "mistral": _Defaults("MistralForCausalLM", 4096 * 32, num_kv_heads=8),
    "olmo2": _Defaults("Olmo2ForCausalLM", 2048, norm_epsilon=1e-5),
    "qwen2": _Defaults("Qwen2ForCausalLM", 32_768, num_kv_heads=32),
    "qwen3": _Defaults("Qwen3ForCausalLM", 32_768, num_kv_heads=32, head_width=128),
}


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in a file. Raises FolderError: it is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:  # JSON's and UTF-8's errors are ValueErrors
        raise FolderError(f"{name} is damaged: {error}; copy or download it again") from error
    if not isinstance(value, dict):
        raise FolderError(f"{name} is no JSON object; copy or download it again")
    return value


def model_of_config(config: Mapping[str, Any]) -> ModelConfig:
    """The shape of a model; its `context` is the longest for which it was made.

    Raises:
        FolderError: a shape that this trainer does not have, or values that make no sense. One
            sentence each.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise FolderError(
            f"model_type is {_shown(family)}; supported: {', '.join(sorted(FAMILIES))}"
        )
    reader = _Reader(config, family)
    model = reader.model()
    problems = reader.problems or problems_of_model(model)
    if problems:
        raise FolderError(*(f"config.json: {problem}" for problem in problems))
    return model


class _Reader:
    """Reads one configuration and collects its problems."""

    def __init__(self, config: Mapping[str, Any], family: Family) -> None:
        self._config, self._family = config, family
        self._defaults = DEFAULTS[family]
        self.problems: list[str] = []

    def model(self) -> ModelConfig:
        """The shape; without meaning if there are problems."""
        defaults = self._defaults
        self._require_supported()
        width = self._integer("hidden_size")
        num_heads = self._integer("num_attention_heads")
        head_width = self._integer("head_dim", defaults.head_width or width // num_heads)
        if defaults.head_width is None and self._config.get("head_dim") is None:
            self._require(
                width % num_heads == 0,
                f"hidden_size is {width}, no multiple of num_attention_heads ({num_heads})",
            )
        # An explicit null means one for each head, whatever the class has.
        has_default = "num_key_value_heads" not in self._config and defaults.num_kv_heads
        num_kv_heads = defaults.num_kv_heads if has_default else num_heads
        theta, scaling = self._rope()
        return ModelConfig(
            num_layers=self._integer("num_hidden_layers"),
            width=width,
            num_heads=num_heads,
            num_kv_heads=self._integer("num_key_value_heads", num_kv_heads),
            hidden_width=self._integer("intermediate_size"),
            vocabulary=self._integer("vocab_size"),
            context=self._integer("max_position_embeddings", defaults.context),
            tied_embeddings=self._flag("tie_word_embeddings"),
            rope_theta=theta,
            norm_epsilon=self._number("rms_norm_eps", defaults.norm_epsilon),
            imported=ImportedShape(
                family=self._family, head_width=head_width, rope_scaling=scaling
            ),
        )

    def _require_supported(self) -> None:
        config, architecture = self._config, self._defaults.architecture
        named = config.get("architectures")
        self._require(
            named is None or named == [architecture],
            f"architectures is {_shown(named)}; supported for {self._family}: {architecture}",
        )
        self._require_value("hidden_act", "silu")
        for key in ("attention_bias", "mlp_bias"):
            self._require_value(key, False)
        if config.get("quantization_config") is not None:
            self.problems.append("the weights are quantised; use the folder that they were made of")
        if self._flag("use_sliding_window", default=self._family == "mistral"):
            window = config.get("sliding_window", 4096)
            self._require(
                window is None,
                f"sliding_window is {_shown(window)}; attention over a sliding window is not "
                "supported",
            )
        layers = config.get("layer_types")
        self._require(
            layers is None
            or (isinstance(layers, list) and all(kind == "full_attention" for kind in layers)),
            "layer_types has others than full_attention, which are not supported",
        )

    def _rope(self) -> tuple[float, RopeScaling | None]:
        """(base of the frequencies, their scaling), from the keys of transformers 4 or 5."""
        rope: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):
            given = self._config.get(key)
            if isinstance(given, dict):
                rope |= given
            elif given is not None:
                self.problems.append(f"{key} is {_shown(given)}; allowed: an object")
        theta = self._number("rope_theta", 10_000.0, rope if "rope_theta" in rope else None)
        for place in (self._config, rope):
            partial = place.get("partial_rotary_factor", 1.0)
            self._require(
                partial in (None, 1.0),
                f"partial_rotary_factor is {_shown(partial)}; supported: 1.0",
            )
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return theta, None
        if kind != "llama3":
            self.problems.append(f"rope_type is {_shown(kind)}; supported: default and llama3")
            return theta, None
        return theta, RopeScaling(
            factor=self._number("factor", None, rope),
            low_frequency_factor=self._number("low_freq_factor", None, rope),
            high_frequency_factor=self._number("high_freq_factor", None, rope),
            original_context=self._integer("original_max_position_embeddings", None, rope),
        )

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            self.problems.append(problem)

    def _require_value(self, key: str, wanted: str | bool) -> None:
        value = self._config.get(key, wanted)
        self._require(value == wanted, f"{key} is {_shown(value)}; supported: {json.dumps(wanted)}")

    def _flag(self, key: str, *, default: bool = False) -> bool:
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            self.problems.append(f"{key} is {_shown(value)}; allowed: true or false")
            return default
        return value

    def _integer(
        self, key: str, default: int | None = None, place: Mapping[str, Any] | None = None
    ) -> int:
        """A whole number from 1 on; 1 instead of one that is wrong."""
        value = (self._config if place is None else place).get(key)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < INTEGER_MAX:
            return value
        self.problems.append(
            f"{key} is {'missing' if value is None else _shown(value)}; allowed: a whole number "
            "from 1 on"
        )
        return 1

    def _number(
        self, key: str, default: float | None, place: Mapping[str, Any] | None = None
    ) -> float:
        """A finite number; 1.0 instead of one that is wrong."""
        value = (self._config if place is None else place).get(key)
        value = default if value is None else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        self.problems.append(
            f"{key} is {'missing' if value is None else _shown(value)}; allowed: a number"
        )
        return 1.0


def _shown(value: object) -> str:
    """A value of a file as it stands there, cut short."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else text[:60] + "..."
