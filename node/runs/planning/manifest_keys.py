"""The keys of the manifest file, their meaning, and their sections."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_type_hints

import msgspec

from gossamer.node.runs.planning.draft import CorpusDraft, Draft, ScheduleDraft, TokenizerDraft
from gossamer.protocol.manifest import InnerConfig, OuterConfig, RoundConfig
from gossamer.protocol.model_config import ModelConfig

HEADER = """\
This file says what a Gossamer run trains and by which rules. Found the run with:

    gossamer start --manifest THIS-FILE

After that the run is fixed: its id is a digest of these values and of the data.
A shorter file may name a preset (preset = "...") and only the keys that differ from it.
"""

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "corpus": CorpusDraft,
    "tokenizer": TokenizerDraft,
    "model": ModelConfig,
    "inner": InnerConfig,
    "schedule": ScheduleDraft,
    "outer": OuterConfig,
    "rounds": RoundConfig,
}

SECTION_TITLES = {
    "corpus": "The text. The founder reads it once; the peers get it as token shards.",
    "tokenizer": "How text becomes tokens.",
    "model": "A Llama-type decoder.",
    "inner": "Steps of each peer, and their learning rate (DiLoCo, arXiv 2311.08105).",
    "schedule": "How learning rate and end of the run are counted.",
    "outer": "Averaging: after H inner steps on each peer, the swarm does one Nesterov step.",
    "rounds": "How long peers wait for each other, in seconds.",
}

EXPLANATIONS: dict[str, dict[str, str]] = {
    "": {
        "name": "Name of the run, for people.",
        "seed": "Seed of the initial weights and of the order of the documents.",
        "sync": 'Data that peers exchange: "diloco" (whole pseudo-gradients, an outer Nesterov '
        'step), "sparse" (only their largest values, two bits each), or "distro" (the signs of the '
        "strongest frequencies of every step).",
        "trust": 'Members of a ring trust each other ("members": sums of all work travel, and one '
        'member can replace a sum), or not ("open": each contribution travels by itself, is '
        "checked against its member's signature, and counts no more than the others; that takes "
        "more bytes, as gossamer plan shows).",
        "admission": 'Peers that may join: "open" (all), "allow" (the founder and those below), or '
        '"invite" (these, and everybody whom a member invites with "gossamer invite").',
        "allowed": 'Peer ids that may join when admission is not "open"; see "gossamer status". '
        'With "invite" it may be empty.',
        "data": 'Text that peers train on: "shared" (the founder\'s, which all peers get), or '
        '"own" (each peer\'s own, which does not leave its machine: gossamer join ADDRESS --corpus '
        "FOLDER).",
    },
    "corpus": {
        "paths": "Files, folders and patterns (*) of text, .jsonl (both also .gz or .zst) and "
        ".parquet or .arrow, relative to this file. Empty: the sources of Python's standard "
        "library.",
        "sources": "Instead of paths: several sources, and the share of the text that each gets by "
        "its weight.",
        "text_field": "Field of a .jsonl line, or column of a .parquet or .arrow file, that "
        "holds the text.",
        "format": '"text", or "messages": a .jsonl line is {"messages": [{"role", "content"}, '
        "...]}, written with the chat template of --init-from; only the assistant's tokens are "
        "learnt.",
        "heldout": 'With data = "own": files of text that all peers get, to compare losses on and '
        "to learn a tokenizer from. Nothing else of the founder's leaves its machine.",
        "max_bytes": "Limit of the text in bytes (a random choice of documents); 0: all of it.",
    },
    "tokenizer": {
        "kind": '"bytes", or "bpe" (byte-pair encoding, learnt from the corpus).',
        "vocabulary": "Number of different tokens: 256 for bytes, at least 257 for bpe.",
    },
    "model": {
        "num_layers": "Number of decoder layers.",
        "width": "Width of the residual stream; an even multiple of num_heads.",
        "num_heads": "Number of attention heads.",
        "num_kv_heads": "Key-value heads; a divisor of num_heads (grouped-query attention).",
        "hidden_width": "Width of the hidden layer of SwiGLU.",
        "context": "Number of tokens in a training sequence.",
        "tied_embeddings": "Whether input and output embeddings are the same weights.",
        "rope_theta": "Base of the rotary position embedding.",
        "norm_epsilon": "Epsilon of RMSNorm.",
        "lora": "With gossamer start --init-from: only adapters of this rank are trained and sent, "
        "their product counts alpha / rank times (LoRA, arXiv 2106.09685), and the weights of the "
        'folder stay as they are. weights = "bf16" rounds these.',
    },
    "inner": {
        "learning_rate": "Highest learning rate, right after the warm-up.",
        "warmup_steps": "Number of inner steps of linear warm-up (cosine).",
        "total_steps": "Inner steps of the whole run on one peer; cosine and run end there.",
        "ends": "Whether the run ends with the round that completes total_steps, or by "
        "its tokens with wsd: all peers then have the final state. false: training goes on at the "
        "final learning rate.",
        "final_fraction": "Learning rate at the end, as a fraction of learning_rate.",
        "beta1": "AdamW's decay of the gradient's mean; with sync = \"distro\", of the momentum.",
        "beta2": "AdamW's decay of the gradient's mean square.",
        "epsilon": "Epsilon of AdamW.",
        "weight_decay": "Weight decay of matrices; gains have none.",
        "clip_norm": "Greatest norm of a gradient; a longer one is scaled down to it.",
        "sequences_per_step": "Number of sequences in one inner step of one peer.",
        "optimizer": '"adamw", or "muon": the matrices of the layers are updated by Muon, all else '
        "by AdamW, at one learning rate (MuLoCo, arXiv 2505.23725). Without this key it is "
        '"adamw" with sync = "distro", trust = "open", lora and gossamer start --init-from, else '
        '"muon".',
    },
    "schedule": {
        "kind": '"cosine": by inner.warmup_steps and total_steps, as many as rounds plan. "wsd": '
        "by the tokens of all peers in the chain: warm-up, a constant rate, and a cool-down that "
        'gossamer extend can move; not with sync = "distro".',
        "warmup_tokens": "Tokens of all peers in which the learning rate rises; wsd only.",
        "total_tokens": "Tokens of all peers with which the run ends; wsd only.",
        "cooldown_tokens": "The last of these, in which the learning rate falls; wsd only.",
    },
    "outer": {
        "inner_steps": "H: inner steps of a round, after the warm-up. With "
        'sync = "distro", the number of shared steps for which one ring lasts.',
        "learning_rate": "Learning rate of the Nesterov step.",
        "momentum": "Momentum of the Nesterov step; with displacement, its upper bound.",
        "displacement": "Length of the outer step, as a multiple of a single peer's own change. "
        "Each round chooses its momentum for this length, and has none in the first quarter of the "
        "run. 0: every round has the momentum above.",
        "warmup_rounds": "Number of first rounds with plain averaging and few inner steps; they "
        "help below 10 million parameters.",
        "warmup_inner_steps": "Inner steps of a warm-up round.",
        "codec": 'Encoding of chunks: "fp32", "fp16" (half the bytes), "int8" (a quarter) or '
        '"int4" (an eighth). Rounding errors are carried into the next round.',
        "chunk_elements": "Number of elements of a chunk. Without this key, the model is cut into "
        "32 to 64 chunks, and a large model into more.",
        "top_k": 'Number of values sent: with sync = "sparse" of each 4,096, with "distro" of each '
        "chunk of a tensor (at most 64 x 64 values).",
        "error_decay": 'With sync = "sparse": the fraction of the unsent values that is carried '
        "into the next round.",
        "step_chunks": 'With sync = "distro": number of chunks in which a step travels. With more '
        "of them a ring has room for more peers, and more lines work at the same time. Without "
        "this key they are as many as 64 peers need.",
        "lookahead": 'With sync = "distro": whether a peer computes its gradients at the point to '
        "which its own momentum would lead.",
        "overlap": "Whether a peer goes on training while its round is averaged. It applies its "
        "newer steps to the new state.",
        "fragments": 'With sync = "diloco": number of groups of layers. Each group is averaged '
        "every inner_steps at its own time, so that a round sends only one group. It divides "
        "inner_steps; 1: the whole model at once.",
        "mixing": "With overlap or fragments: weight of a peer's own parameters against a new "
        "state (alpha of Streaming DiLoCo). 0 is best with fragments, and for states that come "
        "soon. For states in one piece that come half a round late or later, 0.4 is best with Muon "
        "and 0.25 with AdamW.",
        "widening": 'With codec = "int4": whether sums of more than 8 members have 5 to 7 bits a '
        "value, so that an average stays as exact in a large ring as in a small one.",
        "sparse_sums": 'With sync = "sparse" and trust = "members": whether the parts of many '
        'members travel as a sum, as with codec = "int4", where one by one they would be longer.',
        "packing": 'With codec = "fp32" or "fp16", or with sync = "sparse": whether chunks are '
        "packed without loss on their way, which saves some 15 % of the bytes of floats, and 30 % "
        "of those of sparse updates with top_k = 64.",
    },
    "rounds": {
        "round_seconds": "Time after which a peer ends its inner steps, however few it did.",
        "gather_seconds": "Longest time that the others have after the first peer is ready.",
        "gather_fraction": "The same limit as a fraction of the time that the first peer took (at "
        "least 2 seconds), so that one slow machine does not slow all peers.",
        "attempt_seconds": "Time without a roster after which the next organiser is asked.",
        "stale_rounds": "Number of missed rounds after which work is dropped instead of carried.",
        "checkpoint_rounds": "Rounds between two whole states that each peer keeps for newcomers.",
        "accusers": "Members that must say that another one is out before their round counts "
        "without its vote: 1, or 2 so that no member of a ring of three or more can prove a round "
        "alone. With 2 the last survivor of a ring begins its round again.",
        "keepers": "Peer ids, as gossamer id shows them, of which more than half take rounds back "
        "together with gossamer rollback. The founder can do so alone in any case.",
        "probation": 'With trust = "open": rounds that have to take work of a new peer before it '
        "has its whole influence on averages, 1 to 64. Until then it has a part of it, and none in "
        "its first round. Without this key all peers are alike from the beginning.",
    },
}


def _hints() -> dict[str, dict[str, Any]]:
    hints = {
        section: {key: _when_given(hint) for key, hint in get_type_hints(struct).items()}
        for section, struct in SECTIONS.items()
    }
    del hints["model"]["vocabulary"]  # tokenizer.vocabulary sets it
    del hints["model"]["imported"]  # the folder of `gossamer start --init-from` says it
    del hints["inner"]["schedule"]  # the section `schedule` says it
    hints["tokenizer"]["kind"] = Literal["bytes", "bpe"]
    top = {key: hint for key, hint in get_type_hints(Draft).items() if key not in SECTIONS}
    del top["init_from"]
    return {"": top, **hints}


def _when_given(hint: Any) -> Any:
    """Returns the type of a field of the manifest where the manifest has it."""
    kinds = [kind for kind in get_args(hint) if kind is not msgspec.UnsetType]
    return kinds[0] if len(kinds) < len(get_args(hint)) else hint


HINTS = _hints()
"""The type of each key that `gossamer init` writes, by section; "" is the top of the file."""
