"""`gossamer start`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.settings import Found, Resume
from gossamer.node.commands.options import PRESET_HELP, Node, check_founding_options, settings_of
from gossamer.node.commands.running import run_node
from gossamer.node.storage.state_dir import StateDir
from gossamer.trainer.presets import DEFAULT_PRESET

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
    options: Node = None,
) -> int:
    """Found a run here, or go on with the one in the state directory.

    Parameters
    ----------
    manifest
        TOML file from `gossamer init`.
    corpus
        Folders and files of text and JSONL to train on.
    init_from
        Folder of a Hugging Face model (Llama, SmolLM2, Mistral, Qwen 2.5 or 3, OLMo 2) whose
        weights and tokenizer the run begins with. Of the model in a manifest only the context
        counts then.
    """
    settings = settings_of(options)
    if StateDir(settings.state_dir).has_run():
        flags = {
            "--manifest": manifest,
            "--preset": preset,
            "--corpus": corpus,
            "--init-from": init_from,
        }
        return run_node(settings, Resume(), [flag for flag, given in flags.items() if given])
    check_founding_options(manifest, preset, corpus, init_from)
    paths = tuple(map(Path, corpus or ()))
    role = Found(manifest_file=manifest, corpus=paths, preset=preset, init_from=init_from)
    return run_node(settings, role)
