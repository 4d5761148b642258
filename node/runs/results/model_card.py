"""The model card of an export: a README.md that says what the model is and how it came to be.

It has only what this disk knows. The licence is for the founder to choose, who fills in the field.
Names of the run are written by its founder and escaped here, since hubs show the card as a page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gossamer.node.base.terminal.printable import printable
from gossamer.node.runs.results.credit import Credits
from gossamer.node.telemetry.status import LossPoint
from gossamer.protocol.manifest import Manifest
from gossamer.trainer.export.hugging_face import CARD_MARK
from gossamer.trainer.export.weight_files import ExportType

MEMBERS_MAX = 20
"""Members that the card names, those with the most tokens. `gossamer peers --csv` has all."""

_HEAD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- gossamer
# license: (the founder of the run chooses it, such as apache-2.0)
---
"""

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


def model_card(
    credits: Credits, state_digest: bytes, points: Sequence[LossPoint], dtype: ExportType
) -> bytes:
    """Returns the card of the state after `credits.round`.

    Args:
        points: the curve of losses of this node, in nats a token, oldest first.
    """
    manifest = credits.manifest
    model = manifest.model
    last = f" of {manifest.last_round:,}" if manifest.last_round is not None else ""
    facts = {
        "run": f"`{manifest.run_id.hex()}`",
        "founder": f"`{manifest.founder}`",
        "rounds": f"{credits.round:,}{last}",
        "tokens": f"{credits.tokens_total:,}",
        "members that gave tokens": f"{len(credits.rows):,}",
        "held-out loss": _heldout(points, credits.round),
        "state": f"`{state_digest.hex()}`",
        "parameters": f"{model.whole.num_parameters:,}, stored as {dtype}",
    }
    parts = [
        _HEAD + CARD_MARK,
        f"# {_escaped(manifest.name)}",
        "A language model, trained together by volunteers with Gossamer.",
        _table(("what", "value"), list(facts.items())),
        "## Settings",
        _table(("setting", "value"), _settings(manifest)),
        "## Members",
        _members(credits),
        "## Licence",
        _licence(manifest),
    ]
    return ("\n\n".join(parts) + "\n").encode()


def _escaped(text: str) -> str:
    return _PUNCTUATION.sub(r"\\\1", printable(text))


def _heldout(points: Sequence[LossPoint], round_number: int) -> str:
    known = [
        (point.round, point.heldout_loss)
        for point in points
        if point.heldout_loss is not None and point.round <= round_number
    ]
    if not known:
        return "not known on the machine that exported it"
    measured, loss = known[-1]
    return f"{loss:.4f} nats a token after round {measured:,}"


def _settings(manifest: Manifest) -> list[tuple[str, str]]:
    model, inner, outer = manifest.model, manifest.inner, manifest.outer
    optimizer = "Muon and AdamW" if inner.uses_muon else "AdamW"
    adapters = []
    if lora := model.lora:
        what = f"rank {lora.rank}, alpha {lora.alpha:g}, of {', '.join(lora.targets)}"
        adapters.append(
            ("trained", f"adapters (LoRA) of {model.num_parameters:,} parameters: {what}")
        )
    return [
        ("family", model.family),
        (
            "shape",
            f"{model.num_layers} layers of width {model.width}, {model.num_heads} heads, "
            f"{model.num_kv_heads} key and value heads, hidden width {model.hidden_width}",
        ),
        *adapters,
        ("vocabulary", f"{model.vocabulary:,} ({manifest.data.tokenizer})"),
        ("training sequences", f"{model.context:,} tokens"),
        ("training text", _training_text(manifest)),
        ("first state", "imported weights" if model.imported else f"seed {manifest.seed}"),
        ("way of averaging", f"{manifest.sync}, codec {outer.codec}, trust {manifest.trust}"),
        ("inner optimiser", f"{optimizer}, learning rate {inner.learning_rate:g}"),
        ("inner step", f"{inner.sequences_per_step} sequences a member"),
        ("round", f"{outer.inner_steps} inner steps"),
        ("outer step", f"learning rate {outer.learning_rate:g}, momentum {outer.momentum:g}"),
    ]


def _training_text(manifest: Manifest) -> str:
    if manifest.data.own:  # the index counts only what is held out
        return "each member's own, which the others do not know"
    when = "when the run began; its founder added more" if manifest.data.grows else "an epoch"
    return f"{manifest.data.num_tokens:,} tokens {when}"


def _members(credits: Credits) -> str:
    if not credits.rows:
        return "No round was committed: these are the weights that the run began with."
    rows = [
        (f"`{row.peer_id}`", f"{row.tokens:,}", f"{row.share:.1%}", f"{row.rounds:,}")
        for row in credits.rows[:MEMBERS_MAX]
    ]
    table = _table(("member", "tokens", "share", "rounds"), rows)
    more = len(credits.rows) - MEMBERS_MAX
    return f"{table}\n\n{more:,} more gave fewer tokens." if more > 0 else table


def _licence(manifest: Manifest) -> str:
    choose = "The founder of the run chooses the licence and names it at the top of this file."
    if not manifest.model.imported:
        return choose
    return (
        f"{choose} The run began with weights that somebody else published: their licence holds "
        "for this model too, and `LICENSE` and `NOTICE` are theirs if they are here."
    )


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
