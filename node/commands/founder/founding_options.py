"""What the commands that need a run's choices have in common: `start`, `plan` and `init`.

They load the presets and the corpus code, which the commands of a running node do without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cyclopts import Parameter

from gossamer.node.base.roles import START_BYTES_DEFAULT, START_BYTES_MIN
from gossamer.node.base.settings.setting_values import parse_size
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.commands.texts import path_problems, text_problems
from gossamer.node.runs.planning.draft import unknown_preset
from gossamer.trainer.presets.table import PRESETS


def _millions(preset: str) -> str:
    millions = PRESETS[preset].model.num_parameters / 1e6
    return f"{millions:.1f} M" if millions < 10 else f"{millions:,.0f} M"


PRESET_HELP = ", ".join(
    f"{name} ({_millions(name)}{'' if place else ' parameters'})"
    for place, name in enumerate(PRESETS)
)
"""The presets with their numbers of parameters: the names are those of the literature."""


def preset_parameter(default: str) -> Parameter:
    """Describes --preset to `start` and `plan`. `default`: what holds without it."""
    return Parameter(
        show_default=default,
        help="Model and settings, instead of a manifest; with --init-from only the settings: "
        f"{PRESET_HELP}.",
    )


START_AFTER_HELP = f"{format_bytes(START_BYTES_DEFAULT)} of a corpus of twice as much or more"
"""The part of a corpus with which a run begins, if nobody says another."""

_KEYS = {
    "--optimizer": "optimizer into [inner]",
    "--data": 'data = "own" at the top',
    "--messages": 'format = "messages" into [corpus]',
}
"""Where a manifest file has what a flag says."""


def check_founding_options(
    manifest: Path | None,
    preset: str | None,
    corpus: Sequence[str | Path] | None = None,
    init_from: Path | None = None,
    *,
    heldout: Sequence[str | Path] | None = None,
    in_manifest: Mapping[str, object] | None = None,
) -> None:
    """Checks the options that a run is founded with, before anything is read or started.

    Args:
        in_manifest: values of the flags that a manifest file has keys for.

    Raises:
        ConfigError: options that exclude each other, or files that cannot be read.
    """
    problems = []
    if manifest is not None and preset is not None:
        problems.append("--manifest and --preset exclude each other: a manifest says everything")
    if preset is not None and preset not in PRESETS:
        problems.append(unknown_preset(preset))
    in_manifest = in_manifest or {}
    if heldout and manifest is None and in_manifest.get("--data") != "own":
        problems.append("--heldout is for --data own: a shared corpus has a part of it held out")
    for flag, value in in_manifest.items():
        if manifest is not None and value:
            problems.append(
                f"--manifest and {flag} exclude each other: write {_KEYS[flag]} of the manifest"
            )
    problems += text_problems("--corpus", corpus) + text_problems("--heldout", heldout)
    problems += path_problems([path for path in (manifest, init_from) if path is not None])
    if problems:
        raise ConfigError(problems)


def parse_start_after(text: str | None) -> int | None:
    """Returns how much of the corpus is cut before the run begins; None: all of it.

    Raises:
        ConfigError: it is no size.
    """
    if text is None:
        return START_BYTES_DEFAULT
    if text == "all":
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ConfigError([f"--start-after: {error}, or all"]) from error
    if size < START_BYTES_MIN:
        raise ConfigError(
            [
                f"--start-after: {size:,} bytes are too few to hold text out: at least "
                f"{START_BYTES_MIN // 1024} KiB"
            ]
        )
    return size
