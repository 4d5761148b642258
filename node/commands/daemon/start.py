"""`gossamer start`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.roles import Found, Resume
from gossamer.node.commands.daemon.running import held, run_held
from gossamer.node.commands.founder.founding_options import (
    START_AFTER_HELP,
    check_founding_options,
    parse_start_after,
    preset_parameter,
)
from gossamer.node.commands.node_options import NO_NODE_OPTIONS, Node
from gossamer.node.commands.options import settings_of, shown_default, trains_on_own_text
from gossamer.node.commands.texts import texts_of
from gossamer.node.runs.planning.draft import DataPlace
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import InnerOptimizer
from gossamer.trainer.presets.table import DEFAULT_PRESET

_PRESET_BY_DEFAULT = f"{DEFAULT_PRESET}; with --init-from the largest one below the model"


@dataclass(frozen=True, kw_only=True)
class FoundingOptions:
    """What a run is founded with."""

    manifest: Annotated[Path | None, shown_default("none: a preset is used")] = None
    """TOML file from `gossamer init`."""
    preset: Annotated[str | None, preset_parameter(_PRESET_BY_DEFAULT)] = None
    corpus: Annotated[
        tuple[str, ...] | None,
        Parameter(consume_multiple=True, show_default="the sources of Python's standard library"),
    ] = None
    """Folders, files and patterns of text, JSONL (also .gz or .zst), Parquet and Arrow."""
    init_from: Annotated[Path | None, shown_default("none: weights are drawn")] = None
    """Folder of a Hugging Face model (Llama, SmolLM2, Mistral, Qwen 2.5 or 3, OLMo 2) whose weights
    and tokenizer the run begins with. Of the model in a manifest only the context counts then."""
    optimizer: Annotated[
        InnerOptimizer | None,
        shown_default("as the manifest says, else muon, or adamw with --init-from"),
    ] = None
    """Inner optimiser, instead of the preset's: muon for the matrices of the layers (and adamw for
    all else), or adamw for all, which takes less time a step."""
    data: Annotated[DataPlace | None, shown_default("as the manifest says, else shared")] = None
    """Text that peers train on: shared (the corpus, which all get), or own (each peer's own, which
    does not leave its machine; the corpus is then this machine's)."""
    heldout: Annotated[
        tuple[str, ...] | None,
        Parameter(consume_multiple=True, show_default="a part of the shared corpus"),
    ] = None
    """With --data own: text that all peers get, to compare losses on."""
    messages: bool = False
    """The corpus is conversations, a .jsonl line each: {"messages": [{"role", "content"}, ...]}.
    Only the assistant's tokens are learnt. It takes --init-from with a chat template."""
    skip_bad: bool = False
    """Leave out files and lines of the corpus that cannot be used, instead of stopping at them. The
    log says how many, and names the first ones."""
    start_after: Annotated[str | None, shown_default(START_AFTER_HELP)] = None
    """Begin the run when so much of the corpus is cut, a random sample of it, and cut and add the
    rest while it trains; or all."""

    def given(self) -> list[str]:
        """Returns the flags that were given."""
        names = [field.name for field in fields(self) if getattr(self, field.name)]
        return [f"--{name.replace('_', '-')}" for name in names]


NO_FOUNDING_OPTIONS = FoundingOptions()


def start(
    *,
    run: Annotated[FoundingOptions, Parameter(name="*")] = NO_FOUNDING_OPTIONS,
    options: Node = NO_NODE_OPTIONS,
) -> int:
    """Found a run here, or go on with the one in the state directory."""
    settings = settings_of(options)
    if StateDir(settings.state_dir).has_run():
        resume, ignored = Resume(), run.given()
        if trains_on_own_text(settings):
            resume = Resume(corpus=texts_of(run.corpus), skip_bad=run.skip_bad)
            ignored = [flag for flag in ignored if flag not in ("--corpus", "--skip-bad")]
        with held(settings) as state_dir:
            return run_held(settings, resume, state_dir, ignored)
    check_founding_options(
        run.manifest,
        run.preset,
        run.corpus,
        run.init_from,
        heldout=run.heldout,
        in_manifest={"--optimizer": run.optimizer, "--data": run.data, "--messages": run.messages},
    )
    role = Found(
        manifest_file=run.manifest,
        corpus=texts_of(run.corpus),
        preset=run.preset,
        init_from=run.init_from,
        optimizer=run.optimizer,
        skip_bad=run.skip_bad,
        own=run.data == "own",
        heldout=texts_of(run.heldout),
        messages=run.messages,
        start_bytes=parse_start_after(run.start_after),
    )
    with held(settings) as state_dir:
        return run_held(settings, role, state_dir)
