"""GGUF files, read back by the `gguf` package: names, metadata, tokenizer and logits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.parameter_layout import layout_of
from gossamer.trainer.export.gguf_export import export_gguf
from gossamer.trainer.export.gguf_tokenizer import UnsupportedError, tokenizer_pairs
from gossamer.trainer.export.hugging_face import ExportError, byte_tokenizer_json
from gossamer.trainer.model import Decoder
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.pretrained.model_files import ModelFiles
from gossamer.trainer.pretrained.weights import stored_name
from tests.support.gguf_forward import GgufModel
from tests.support.model_folders import (
    CHAT_TEMPLATE,
    LLAMA3_ROPE,
    SPECIALS,
    VOCABULARY,
    config_of_family,
    make_folder,
    tokenizer_json,
)

CONFIGS = {
    "smollm2": config_of_family("llama", tie_word_embeddings=True, rope_theta=100_000),
    "llama3.1": config_of_family("llama", rope_theta=500_000.0, rope_scaling=LLAMA3_ROPE),
    "llama-head-width": config_of_family("llama", head_dim=16),
    "mistral": config_of_family("mistral", rope_theta=1e6),
    "qwen2.5": config_of_family("qwen2", rms_norm_eps=1e-6),
    "qwen3": config_of_family("qwen3", tie_word_embeddings=True, rope_theta=1e6),
    "olmo2": config_of_family("olmo2", rope_theta=500_000.0),
    "olmo2-tied": config_of_family("olmo2", tie_word_embeddings=True),
}

LOGITS_WITHIN = 1e-4
"""Of logits up to 5. The file's frequencies are fp32, as are all sums, in another order."""

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

NEMO_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""In the `tokenizer.json` of Mistral Nemo, and in llama.cpp as the origin of its own."""


def exported(folder: Path, config: dict[str, Any], **options: Any) -> tuple[GgufModel, ModelConfig]:
    make_folder(folder / "given", config)
    pretrained = open_pretrained(folder / "given")
    path = export_gguf(
        pretrained.weights.read(),
        pretrained.model,
        pretrained.files,
        folder / "out",
        name="a model",
        end_token=0,
        **options,
    )
    return GgufModel(path), pretrained.model


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_file_computes_what_the_model_does(config: dict[str, Any], tmp_path: Path) -> None:
    read, model = exported(tmp_path, config)
    decoder = Decoder(model)
    weights = open_pretrained(tmp_path / "given").weights.read()
    decoder.flat.copy_(torch.from_numpy(weights))
    tokens = torch.randint(0, VOCABULARY, (40,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = decoder(tokens[None])[0]
    assert ours.abs().max() > 2
    assert (ours - read.logits(tokens)).abs().max() < LOGITS_WITHIN


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_names_and_shapes_are_those_of_llama_cpp(config: dict[str, Any], tmp_path: Path) -> None:
    read, model = exported(tmp_path, config)
    (kind,) = (each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == read.architecture)
    names = gguf.get_tensor_name_map(kind, model.num_layers)
    wanted = {}
    for tensor in layout_of(model):
        name = names.get_name(stored_name(tensor), try_suffixes=(".weight", ".bias"))
        assert name is not None, tensor.name
        wanted[name] = tensor.shape
    extra = set(read.tensors) - set(wanted)
    assert extra <= {"rope_freqs.weight", "output.weight"}
    assert ("rope_freqs.weight" in extra) == (model.rope_scaling is not None)
    for name, shape in wanted.items():
        assert tuple(read.tensors[name].shape) == shape
    keys = gguf.Keys
    for key, value in {
        keys.LLM.CONTEXT_LENGTH: 64,
        keys.LLM.EMBEDDING_LENGTH: model.width,
        keys.LLM.BLOCK_COUNT: model.num_layers,
        keys.LLM.FEED_FORWARD_LENGTH: model.hidden_width,
        keys.LLM.VOCAB_SIZE: model.vocabulary,
        keys.Attention.HEAD_COUNT: model.num_heads,
        keys.Attention.HEAD_COUNT_KV: model.num_kv_heads,
        keys.Attention.KEY_LENGTH: model.head_width,
        keys.Attention.LAYERNORM_RMS_EPS: pytest.approx(model.norm_epsilon),
        keys.Rope.DIMENSION_COUNT: model.head_width,
        keys.Rope.FREQ_BASE: pytest.approx(model.rope_theta),
    }.items():
        assert read.fields[key.format(arch=read.architecture)] == value
    assert read.fields["general.name"] == "a model"
    assert read.fields["general.file_type"] == gguf.LlamaFileType.ALL_F32


def test_bf16_rounds_matrices_and_keeps_vectors(tmp_path: Path) -> None:
    read, model = exported(tmp_path, CONFIGS["qwen2.5"], dtype="bf16")
    assert read.fields["general.file_type"] == gguf.LlamaFileType.MOSTLY_BF16
    for name, values in read.tensors.items():
        expected = "BF16" if values.ndim == 2 else "F32"
        assert read.types[name].name == expected
    flat = open_pretrained(tmp_path / "given").weights.read()
    embedding = torch.from_numpy(flat[: model.vocabulary * model.width]).bfloat16().float()
    assert torch.equal(read.tensors["token_embd.weight"].flatten(), embedding)


def test_the_tokenizer_of_an_imported_model_is_written(tmp_path: Path) -> None:
    read, _ = exported(tmp_path, CONFIGS["smollm2"])
    fields = read.fields
    assert fields["tokenizer.ggml.model"] == "gpt2"
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert tuple(tokens[:4]) == SPECIALS
    assert types[:5] == [gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL]
    assert len(tokens) == len(types) == VOCABULARY
    assert types[-1] == gguf.TokenType.UNUSED
    assert (fields["tokenizer.ggml.eos_token_id"], fields["tokenizer.ggml.padding_token_id"]) == (
        1,
        0,
    )
    assert fields["tokenizer.ggml.eot_token_id"] == 2
    assert fields["tokenizer.ggml.add_bos_token"] is False
    assert fields["tokenizer.chat_template"] == CHAT_TEMPLATE


def test_a_token_that_is_minus_one_is_none(tmp_path: Path) -> None:
    config = config_of_family("llama", pad_token_id=-1, eos_token_id=[-1, 2**40, 1])
    make_folder(tmp_path / "given", config)
    files = open_pretrained(tmp_path / "given").files
    files = ModelFiles({name: files.files[name] for name in ("config.json", "tokenizer.json")})
    assert files.token_ids("eos_token_id") == [1]
    pairs = tokenizer_pairs(files.tokenizer_json, VOCABULARY, files, None)
    assert pairs["tokenizer.ggml.eos_token_id"] == 1
    assert "tokenizer.ggml.padding_token_id" not in pairs


def test_plain_bytes_and_a_learnt_vocabulary_are_written(
    model_config: ModelConfig, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(model_config, vocabulary=256)
    flat = np.zeros(config.num_parameters, np.float32)
    path = export_gguf(
        flat, config, byte_tokenizer_json(), tmp_path, name="x", end_token=0, dtype="bf16"
    )
    fields = GgufModel(path).fields
    assert len(fields["tokenizer.ggml.tokens"]) == 256
    assert fields["tokenizer.ggml.merges"] == []
    assert fields["tokenizer.ggml.eos_token_id"] == 0


def byte_level(steps: list[Any], **changes: Any) -> dict[str, Any]:
    vocabulary = {text: number for number, text in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    vocabulary["ab"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    parsed: dict[str, Any] = json.loads(tokenizer.to_str())
    parsed["model"] |= changes
    return parsed


def pairs_of(parsed: dict[str, Any]) -> dict[str, Any]:
    return dict(tokenizer_pairs(json.dumps(parsed).encode(), VOCABULARY, None, 0))


def words(pattern: str) -> list[Any]:
    split: Any = pre_tokenizers.Split
    whole: Any = pre_tokenizers.ByteLevel
    return [
        split(Regex(pattern), behavior="isolated"),
        whole(add_prefix_space=False, use_regex=False),
    ]


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize(
    ("parsed", "name"),
    [
        (byte_level([GPT2]), "gpt-2"),
        (byte_level([pre_tokenizers.Digits(individual_digits=True), GPT2]), "smollm"),
        (byte_level(words(LLAMA3_WORDS)), "dbrx"),
        (byte_level(words(LLAMA3_WORDS), ignore_merges=True), "llama-bpe"),
        (byte_level(words(LLAMA3_WORDS.replace("{1,3}", ""))), "qwen2"),
        (byte_level(words(NEMO_WORDS), ignore_merges=True), "tekken"),
    ],
    ids=["gpt2", "smollm", "olmo2", "llama3", "qwen2", "nemo"],
)
def test_the_way_of_cutting_words_is_named(parsed: dict[str, Any], name: str) -> None:
    pairs = pairs_of(parsed)
    assert pairs["tokenizer.ggml.pre"] == name
    assert pairs["tokenizer.ggml.merges"] == ["a b"]


@pytest.mark.parametrize(
    ("parsed", "said"),
    [
        (byte_level(words(r"\d+")), "cuts texts in its own way"),
        (byte_level([pre_tokenizers.Digits(individual_digits=False), GPT2]), "in its own way"),
        (byte_level([GPT2], ignore_merges=True), "ignore_merges"),
        (byte_level(words(NEMO_WORDS)), "without ignore_merges"),
        (byte_level([pre_tokenizers.Whitespace()]), "pre-tokenizer Whitespace"),
        (byte_level([pre_tokenizers.ByteLevel(add_prefix_space=True)]), "add_prefix_space"),
        (byte_level([GPT2], end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (byte_level([GPT2]) | {"normalizer": {"type": "Lowercase"}}, "normalizer Lowercase"),
        (json.loads(Tokenizer(models.WordPiece({"a": 0})).to_str()), "the type WordPiece"),
        (json.loads(Tokenizer(models.Unigram([("a", 0.0)])).to_str()), "the type Unigram"),
    ],
)
def test_what_llama_cpp_does_not_have_is_refused(parsed: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        pairs_of(parsed)


def sentence_piece(scheme: str = "first") -> Tokenizer:
    """As Llama 2 has it: pieces in the order in which they were learnt, all their merges."""
    learnt = ["ab", "abc", "\u2581ab", "bc", "\u2581abc", "cab", "\u2581\u2581"]
    letters = ["\u2581", "a", "b", "c"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [*learnt, *letters]
    merges = [
        (text[:cut], text[cut:])
        for text in learnt
        for cut in range(1, len(text))
        if {text[:cut], text[cut:]} <= {*learnt, *letters}
    ]
    model: Any = models.BPE
    tokenizer = Tokenizer(
        model(
            {text: number for number, text in enumerate(pieces)},
            merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        metaspace: Any = pre_tokenizers.Metaspace
        tokenizer.pre_tokenizer = metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def cut_by_scores(pairs: dict[str, Any], text: str) -> list[int]:
    """SentencePiece's BPE: of all neighbours that are a token together, those with the highest
    score become it, the leftmost first; what is no token at the end becomes its bytes."""
    numbers = {piece: number for number, piece in enumerate(pairs["tokenizer.ggml.tokens"])}
    scores = pairs["tokenizer.ggml.scores"]
    text = text.replace(" ", "\u2581")
    parts = list("\u2581" + text if pairs["tokenizer.ggml.add_space_prefix"] else text)
    while True:
        found = [
            (-scores[numbers[one + other]], at)
            for at, (one, other) in enumerate(itertools.pairwise(parts))
            if one + other in numbers
        ]
        if not found:
            break
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    cut: list[int] = []
    for part in parts:
        whole = [part] if part in numbers else [f"<0x{byte:02X}>" for byte in part.encode()]
        cut += [numbers[each] for each in whole]
    return cut


@pytest.mark.parametrize("scheme", ["legacy", "first", "never"])
def test_scores_cut_texts_as_the_merges_do(scheme: str) -> None:
    tokenizer = sentence_piece(scheme)
    pairs = pairs_of(json.loads(tokenizer.to_str()))
    assert pairs["tokenizer.ggml.model"] == "llama"
    types = pairs["tokenizer.ggml.token_type"]
    assert types[:4] == [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.BYTE]
    random = np.random.default_rng(0)
    for length in range(1, 200):
        text = "a" + "".join(random.choice(list("abc \u00fc"), length))
        assert cut_by_scores(pairs, text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_merges_that_are_no_scores_are_refused() -> None:
    parsed = json.loads(sentence_piece().to_str())
    lacks = json.loads(json.dumps(parsed))
    lacks["model"]["merges"].remove(["a", "bc"])
    mixed = json.loads(json.dumps(parsed))
    mixed["model"]["merges"].append(mixed["model"]["merges"].pop(1))
    bytes_gone = json.loads(json.dumps(parsed))
    bytes_gone["model"]["vocab"]["other"] = bytes_gone["model"]["vocab"].pop("<0x41>")
    spaces = json.loads(json.dumps(parsed)) | {"pre_tokenizer": None}
    for changed, said in (
        (lacks, "without all merges"),
        (mixed, "another order"),
        (bytes_gone, "byte 65"),
        (spaces, "other rules for spaces"),
    ):
        with pytest.raises(UnsupportedError, match=said):
            pairs_of(changed)


def test_an_export_that_is_refused_says_what_to_do(
    model_config: ModelConfig, tmp_path: Path
) -> None:
    flat = np.zeros(model_config.num_parameters, np.float32)
    tokenizer = Tokenizer(models.WordPiece({"a": 0})).to_str().encode()
    with pytest.raises(ExportError, match=r"WordPiece.*Export without --gguf"):
        export_gguf(flat, model_config, tokenizer, tmp_path / "out", name="x", end_token=0)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ExportError, match="tokens that the model does not have"):
        export_gguf(flat, model_config, tokenizer_json().encode(), tmp_path, name="x", end_token=0)
