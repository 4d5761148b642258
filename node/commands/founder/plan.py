"""`gossamer plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.terminal import open_console
from gossamer.node.commands.founder.founding_options import (
    START_AFTER_HELP,
    check_founding_options,
    parse_start_after,
    preset_parameter,
)
from gossamer.node.commands.founder.plan_view import print_plan
from gossamer.node.commands.options import shown_default
from gossamer.node.commands.texts import texts_of
from gossamer.node.runs.founding.data_plan import plan_data
from gossamer.node.runs.founding.founding import problems_without_model
from gossamer.node.runs.founding.importing import draft_for, with_pretrained
from gossamer.node.runs.planning.draft import Draft, draft_of_preset
from gossamer.node.runs.planning.manifest_file import read_manifest_file
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.protocol.errors import ManifestError
from gossamer.trainer.presets.table import DEFAULT_PRESET
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.text.sources.corpus_errors import CorpusError
from gossamer.trainer.text.tokenizers.encoders import num_cores


@dataclass(frozen=True, kw_only=True)
class RingOptions:
    """The peers of the round that is planned, which are supposed to be alike."""

    peers: int = 4
    """Number of peers that take part, up to 256."""
    up: float = 20.0
    """Mbit/s that each peer can send."""
    down: float = 100.0
    """Mbit/s that each peer can receive."""
    latency: float = 20.0
    """Milliseconds of a message from one peer to the next, one way."""
    tokens_per_second: Annotated[
        float | None, shown_default("none: utilisation is not estimated")
    ] = None
    """Tokens per second that each peer trains; `gossamer status` shows it for a running node."""


USUAL_RING = RingOptions()


def plan(
    manifest: Annotated[Path | None, Parameter(show_default="none: a preset is planned")] = None,
    *,
    preset: Annotated[str | None, preset_parameter(DEFAULT_PRESET)] = None,
    corpus: Annotated[
        tuple[str, ...] | None,
        Parameter(consume_multiple=True, show_default="as the manifest says"),
    ] = None,
    init_from: Annotated[
        Path | None, Parameter(show_default="none: the model of the manifest or preset")
    ] = None,
    start_after: Annotated[str | None, Parameter(show_default=START_AFTER_HELP)] = None,
    ring: Annotated[RingOptions, Parameter(name="*")] = USUAL_RING,
    json: bool = False,
) -> int:
    """Estimate what a round costs each peer: bytes, seconds, utilisation.

    With the text of the run also when its data are there.

    Parameters
    ----------
    manifest
        TOML file from `gossamer init`.
    corpus
        Files, folders and patterns of the text, to plan when its parts are there. It is supposed
        that this machine cuts them.
    init_from
        Folder of a Hugging Face model that the run begins with, as in `gossamer start`. A manifest
        with model.lora, or of conversations, is planned only with it.
    start_after
        Part of the corpus with which the run begins, as in `gossamer start`; or all.
    json
        Print JSON.
    """
    check_founding_options(manifest, preset, corpus, init_from)
    start_bytes = parse_start_after(start_after)
    draft = _draft_of(manifest, preset, init_from)
    try:
        line = Line(ring.up, ring.down, ring.latency / 1000)
        planned = plan_round(draft, ring.peers, line, ring.tokens_per_second)
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    data, notes = None, list[str]()
    if draft.data == "shared" and (corpus or draft.corpus.paths or draft.corpus.sources):
        try:
            data = plan_data(draft, texts_of(corpus), start_bytes, planned, num_cores())
        except CorpusError as error:
            if corpus:
                raise ConfigError(list(error.problems)) from error
            # A run may be planned on another machine than the founder's.
            notes = [f"The data are not planned: {problem}." for problem in error.problems]
    print_plan(planned, data, open_console(), json=json, notes=notes)
    return 0


def _draft_of(manifest: Path | None, preset: str | None, init_from: Path | None) -> Draft:
    """Returns the draft that `gossamer start` would found.

    Raises:
        ManifestError, FolderError: it would found none.
    """
    if init_from is None:
        if manifest is None:
            return draft_of_preset(preset or DEFAULT_PRESET)
        draft = read_manifest_file(manifest)
        if problems := problems_without_model(draft, "gossamer plan"):
            raise ManifestError(problems)
        return draft
    pretrained = open_pretrained(init_from)
    if manifest is None:
        return draft_for(pretrained, preset)[0]
    return with_pretrained(read_manifest_file(manifest, from_weights=True), pretrained)
