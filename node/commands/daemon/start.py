"""`gossamer start`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.roles import Found, Resume
from gossamer.node.commands.daemon.running import held, run_held
from gossamer.node.commands.founder.founding_options import (
    PRESET_HELP,
    START_AFTER_HELP,
    check_founding_options,
    parse_start_after,
)
from gossamer.node.commands.node_options import NO_NODE_OPTIONS, Node
from gossamer.node.commands.options import settings_of, trains_on_own_text
from gossamer.node.commands.texts import texts_of
from gossamer.node.runs.draft import DataPlace
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import InnerOptimizer
from gossamer.trainer.presets.table import DEFAULT_PRESET

_PRESET_BY_DEFAULT = f"{DEFAULT_PRESET}; with --init-from the largest one below the model"


def start(
    *,
    manifest: Annotated[Path | None, Parameter(show_default="none: a preset is used")] = None,
    preset: Annotated[
        str | None,
        Parameter(
            show_default=_PRESET_BY_DEFAULT,
            help="Model and settings, instead of a manifest; with --init-from only the settings: "
            f"{PRESET_HELP}.",
        ),
    ] = None,
    corpus: Annotated[
        tuple[str, ...] | None,
        Parameter(consume_multiple=True, show_default="the sources of Python's standard library"),
    ] = None,
    init_from: Annotated[Path | None, Parameter(show_default="none: weights are drawn")] = None,
    optimizer: Annotated[
        InnerOptimizer | None,
        Parameter(show_default="as the manifest says, else muon, or adamw with --init-from"),
    ] = None,
    data: Annotated[
        DataPlace | None, Parameter(show_default="as the manifest says, else shared")
    ] = None,
    heldout: Annotated[
        tuple[str, ...] | None,
        Parameter(consume_multiple=True, show_default="a part of the shared corpus"),
    ] = None,
    messages: bool = False,
    skip_bad: bool = False,
    start_after: Annotated[str | None, Parameter(show_default=START_AFTER_HELP)] = None,
    options: Node = NO_NODE_OPTIONS,
) -> int:
    """Found a run here, or go on with the one in the state directory.

    Parameters
    ----------
    manifest
        TOML file from `gossamer init`.
    corpus
        Folders, files and patterns of text, JSONL (also .gz or .zst), Parquet and Arrow.
    init_from
        Folder of a Hugging Face model (Llama, SmolLM2, Mistral, Qwen 2.5 or 3, OLMo 2) whose
        weights and tokenizer the run begins with. Of the model in a manifest only the context
        counts then.
    optimizer
        Inner optimiser, instead of the preset's: muon for the matrices of the layers (and adamw for
        all else), or adamw for all, which takes less time a step.
    data
        Text that peers train on: shared (the corpus, which all get), or own (each peer's own, which
        does not leave its machine; the corpus is then this machine's).
    heldout
        With --data own: text that all peers get, to compare losses on.
    messages
        The corpus is conversations, a .jsonl line each: {"messages": [{"role", "content"}, ...]}.
        Only the assistant's tokens are learnt. It takes --init-from with a chat template.
    skip_bad
        Leave out files and lines of the corpus that cannot be used, instead of stopping at them.
        The log says how many, and names the first ones.
    start_after
        Begin the run when so much of the corpus is cut, a random sample of it, and cut and add the
        rest while it trains; or all.
    """
    settings = settings_of(options)
    if StateDir(settings.state_dir).has_run():
        flags = {
            "--manifest": manifest,
            "--preset": preset,
            "--corpus": corpus,
            "--init-from": init_from,
            "--optimizer": optimizer,
            "--data": data,
            "--heldout": heldout,
            "--messages": messages,
            "--start-after": start_after,
            "--skip-bad": skip_bad,
        }
        resume = Resume()
        if trains_on_own_text(settings):
            del flags["--corpus"], flags["--skip-bad"]
            resume = Resume(corpus=texts_of(corpus), skip_bad=skip_bad)
        ignored = [flag for flag, given in flags.items() if given]
        with held(settings) as state_dir:
            return run_held(settings, resume, state_dir, ignored)
    check_founding_options(
        manifest,
        preset,
        corpus,
        init_from,
        heldout=heldout,
        in_manifest={"--optimizer": optimizer, "--data": data, "--messages": messages},
    )
    role = Found(
        manifest_file=manifest,
        corpus=texts_of(corpus),
        preset=preset,
        init_from=init_from,
        optimizer=optimizer,
        skip_bad=skip_bad,
        own=data == "own",
        heldout=texts_of(heldout),
        messages=messages,
        start_bytes=parse_start_after(start_after),
    )
    with held(settings) as state_dir:
        return run_held(settings, role, state_dir)
