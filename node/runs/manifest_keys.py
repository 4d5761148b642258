"""The keys of the manifest file, what they mean, and how they are grouped."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec

from gossamer.node.runs.draft import CorpusDraft, Draft, TokenizerDraft
from gossamer.protocol.manifest import InnerConfig, ModelConfig, OuterConfig, RoundConfig

HEADER = """\
What a Gossamer run trains and by which rules. Found the run with:

    gossamer start --manifest THIS-FILE

From then on the run is fixed: its id is a digest of all of this and of the data.
A shorter file may say preset = "..." and only what differs from that preset.
"""

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "corpus": CorpusDraft,
    "tokenizer": TokenizerDraft,
    "model": ModelConfig,
    "inner": InnerConfig,
    "outer": OuterConfig,
    "rounds": RoundConfig,
}

SECTION_TITLES = {
    "corpus": "The text. It is read once, here, and travels to the peers as token shards.",
    "tokenizer": "How text becomes tokens.",
    "model": "A Llama-type decoder.",
    "inner": "AdamW on each peer, with linear warm-up and a cosine (DiLoCo, arXiv 2311.08105).",
    "outer": "The averaging: after H inner steps on each peer, one Nesterov step of all.",
    "rounds": "How long peers wait for each other, in seconds.",
}

EXPLANATIONS: dict[str, dict[str, str]] = {
    "": {
        "name": "What people call this run.",
        "seed": "Of the initial weights and of the order of the documents.",
        "sync": 'What peers share: "diloco" (whole pseudo-gradients, an outer Nesterov step), '
        '"sparse" (only the largest values of them, two bits each), or "distro" (every step, and '
        "of it the signs of its strongest frequencies).",
        "admission": 'Who may join: "open" (everybody) or "allow" (the founder and those allowed).',
        "allowed": 'Peer ids that may join when admission is "allow"; see "gossamer status".',
    },
    "corpus": {
        "paths": "Files and folders of text, .jsonl among them, relative to this file. "
        "None: Python's library sources.",
        "text_field": "Field of a .jsonl line that holds the text.",
        "max_bytes": "Use no more bytes of text than this (a random choice of documents); 0: all.",
    },
    "tokenizer": {
        "kind": '"bytes", or "bpe" (byte-pair encoding, learnt from the corpus).',
        "vocabulary": "Number of different tokens: 256 for bytes, 257 or more for bpe.",
    },
    "model": {
        "num_layers": "Decoder layers.",
        "width": "Of the residual stream; an even multiple of num_heads.",
        "num_heads": "Attention heads.",
        "num_kv_heads": "Key-value heads; divides num_heads (grouped-query attention).",
        "hidden_width": "Of the SwiGLU's two gates.",
        "context": "Tokens in a training sequence.",
        "tied_embeddings": "Whether input and output embeddings are the same weights.",
        "rope_theta": "Base of the rotary position embedding.",
        "norm_epsilon": "Of RMSNorm.",
    },
    "inner": {
        "learning_rate": "At the top, after the warm-up.",
        "warmup_steps": "Inner steps of linear warm-up.",
        "total_steps": "Inner steps of the whole run on one peer; here the cosine ends.",
        "final_fraction": "Learning rate from there on, as a part of learning_rate.",
        "beta1": "AdamW's decay of the gradient's mean; of the momentum with sync = \"distro\".",
        "beta2": "AdamW's decay of the gradient's mean square.",
        "epsilon": "AdamW's.",
        "weight_decay": "Of matrices; gains have none.",
        "clip_norm": "Longer gradients are shortened to this.",
        "sequences_per_step": "Sequences of context tokens in one inner step of one peer.",
    },
    "outer": {
        "inner_steps": "H: inner steps of a round, once the warm-up is over. With "
        'sync = "distro" the shared steps for which one ring holds.',
        "learning_rate": "Of the Nesterov step.",
        "momentum": "Of the Nesterov step; with displacement the most that it may be.",
        "displacement": "Each round has the momentum with which its outer step is so many times "
        "as long as what a peer did by itself; none in the first quarter of the run. 0: always "
        "the momentum above.",
        "warmup_rounds": "Rounds at the start with plain averaging and few inner steps; "
        "a warm start pays below 10 million parameters.",
        "warmup_inner_steps": "Inner steps of such a round.",
        "codec": 'How chunks travel: "fp32", "fp16" (half the bytes), "int8" (a quarter) or '
        '"int4" (an eighth); what is rounded off is carried into the next round.',
        "chunk_elements": "Elements of a chunk. Left out, the model is cut into 32 to 64 chunks, "
        "a large one into more.",
        "top_k": 'Values sent of each 4,096 with sync = "sparse"; with "distro" of each chunk of a '
        "tensor, 64 x 64 values or fewer.",
        "error_decay": 'With sync = "sparse": the part of what was not sent that is carried into '
        "the next round.",
        "lookahead": 'With sync = "distro": whether a peer takes its gradients where its own '
        "momentum would lead.",
        "overlap": "Whether a peer trains on while its round is averaged. Its newer steps are kept "
        "on top of what comes.",
        "fragments": 'With sync = "diloco": the layers in so many parts, each averaged every '
        "inner_steps at its own time, so that a round sends a part only. Divides inner_steps; 1: "
        "all at once.",
        "mixing": "With overlap or fragments: the part of the way to a new state that a peer's own "
        "parameters stay behind (alpha of Streaming DiLoCo). 0 is best, but for states in one "
        "piece that come a whole round late: 0.25.",
    },
    "rounds": {
        "round_seconds": "A peer stops its inner steps after this long, however few it did.",
        "gather_seconds": "After the first peer is ready, the others have this long at most.",
        "gather_fraction": "And no longer than this part of the time that the first one took "
        "(2 seconds at least), so that one slow machine does not set everybody's pace.",
        "attempt_seconds": "Without a roster after this long, the next organiser is asked.",
        "stale_rounds": "Work that missed this many rounds is dropped instead of carried.",
        "checkpoint_rounds": "Every so many rounds each peer keeps the whole state for newcomers.",
    },
}


def _hints() -> dict[str, dict[str, Any]]:
    hints = {section: get_type_hints(struct) for section, struct in SECTIONS.items()}
    del hints["model"]["vocabulary"]  # it is the tokenizer's
    top = {key: hint for key, hint in get_type_hints(Draft).items() if key not in SECTIONS}
    return {"": top, **hints}


HINTS = _hints()
"""By section ("" for the top), the type of each key that `gossamer init` writes."""
